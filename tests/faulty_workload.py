"""A workload that goes wrong on purpose, the way its entry asks for."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

from siliconprof.parameters import Number
from siliconprof.workloads.base import KernelWorkload


class Plugin(KernelWorkload):
    """faulty"""

    class Parameters(KernelWorkload.Parameters):
        mode: Annotated[str, "what happens"] = "fine"
        seconds: Annotated[Number, "how long it sleeps"] = 0
        mib: Annotated[int, "size of an allocation, MiB"] = 16
        folder: Annotated[str, "where it leaves traces"] = ""

    def measure(self, session):
        self.session = session
        session.progress("before the fault", 7)
        began = time.time()
        getattr(self, self.parameters["mode"])()
        if self.parameters["mode"] == "measures_nothing":
            return
        self.trace("spans", f"{began} {time.time()}")
        params = {"note": "faulty", "omp_num_threads": os.environ["OMP_NUM_THREADS"]}
        session.add_point(
            {
                "params": params,
                "times": {"step_s": [0.5, 0.5]},
                "flops": None,
                "bytes": None,
                "memory": session.memory(),
                "loss": [1.0, float("nan")] if self.parameters["mode"] == "diverges" else [],
            }
        )

    def trace(self, name, line):
        if self.parameters["folder"]:
            with open(Path(self.parameters["folder"], name), "a") as stream:
                stream.write(line + "\n")

    def fine(self):
        pass

    diverges = measures_nothing = fine

    def floods(self):
        """50 MB of stdout, the beginning and end of which are known."""
        print("the beginning")
        for number in range(1_000):
            print(f"line {number:44}\n" * 1_000, end="")
        print("x" * 500 + " the end", flush=True)
        os._exit(3)

    def leaves_daemons(self):
        """One by fork and setsid, one by two forks, one in a session of its own."""
        nap = [sys.executable, "-c", "import time; time.sleep(600)"]
        subprocess.Popen(nap, start_new_session=True)
        for n_forks in (1, 2):
            child = os.fork()
            if child:
                continue
            os.setsid()
            if n_forks == 2 and os.fork():
                os._exit(0)
            while True:  # all that it was given stays open
                time.sleep(60)
        self.sleeps()

    def sleeps(self):
        """For a time, and as long as the folder holds a file named so."""
        end = time.monotonic() + self.parameters["seconds"]
        hold = Path(self.parameters["folder"], "hold")
        while time.monotonic() < end or hold.is_absolute() and hold.exists():
            self.session.progress("asleep", 8, always=True)
            Path(os.environ["SILICONPROF_LOCK_FILE"]).with_name("asleep").touch()
            time.sleep(0.05)

    def complains(self):
        print("warning: one more of these and we are out of memory: std::bad_alloc", flush=True)
        self.sleeps()

    def raises(self):
        raise RuntimeError("wrong on purpose")

    def aborts(self):
        """As Metal Performance Shaders, whose caller goes on, in the middle of much else."""
        said = "Error: command buffer exited with error status.\n\tThe Metal Performance Shaders "
        said += "operations encoded on it may not have completed."
        print("x" * (1 << 21), said, "x" * (1 << 22), sep="\n", flush=True)

    def stutters(self):
        code = "0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity"
        raise RuntimeError(
            f"[METAL] Command buffer execution failed: Impacting Interactivity ({code})"
        )

    def segfaults(self):
        ctypes.string_at(0)

    def exits(self):
        print("cannot go on", flush=True)
        os._exit(3)

    def hangs_at_exit(self):
        atexit.register(time.sleep, 600)

    def hangs(self):
        """With a grandchild, and deaf to all that a process can be deaf to."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        while True:
            time.sleep(60)

    def exhausts(self):
        """Take memory, and use it, until there is no more."""
        backend, kept = self.session.backend, []
        ones = backend.torch.ones if backend.framework == "torch" else backend.mx.ones
        while True:
            kept.append(ones((self.parameters["mib"], 1 << 18)))
            backend.arrays.eval(kept[-1])
