"""Cells that die, hang or run out of memory, pipelines that are killed, and the host's lock.

The workload that goes wrong is a real plug-in, dropped into a copy of the project. Every process
that a test starts carries the copy's lock file in its environment: that is how orphans are found.
"""

from __future__ import annotations

import csv
import fcntl
import html
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
from conftest import QUICK, Checkout, cpu_cell, until
from siliconprof.backends import torch_mps
from siliconprof.hosts import cgroups
from siliconprof.measure import fork_server, lock, outcome
from siliconprof.measure.child import Output
from siliconprof.store import record
from siliconprof.store.cell import Cell
from test_memory_model import can_limit

LOCK_VARIABLE = "SILICONPROF_LOCK_FILE"
REACHED = "while: before the fault, step 7"

FAULTY = '''\
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

from siliconprof.workloads.base import KernelWorkload


class Plugin(KernelWorkload):
    """faulty"""

    frameworks = ("torch", "mlx")
    REQUIRED = ()
    PARAMETERS = {
        "mode": {"type": "string", "default": "fine", "description": "what happens"},
        "seconds": {"type": "number", "default": 0, "description": "how long it sleeps"},
        "mib": {"type": "integer", "default": 16, "description": "size of an allocation, MiB"},
        "folder": {"type": "string", "default": "", "description": "where it leaves traces"},
    }

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
                stream.write(line + "\\n")

    def fine(self):
        pass

    diverges = measures_nothing = fine

    def floods(self):
        """50 MB of stdout, the beginning and end of which are known."""
        print("the beginning")
        for number in range(1_000):
            print(f"line {number:44}\\n" * 1_000, end="")
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
        said = "Error: command buffer exited with error status.\\n\\tThe Metal Performance Shaders "
        said += "operations encoded on it may not have completed."
        print("x" * (1 << 21), said, "x" * (1 << 22), sep="\\n", flush=True)

    def stutters(self):
        code = "0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity"
        raise RuntimeError(f"[METAL] Command buffer execution failed: Impacting Interactivity ({code})")

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
            backend.evaluate(kept[-1])
'''


# -- fixtures and tools ------------------------------------------------------------------------


@pytest.fixture
def project(checkout: Checkout) -> Iterator[Checkout]:
    """A copy with the faulty workload in it; nothing that it starts outlives the test."""
    checkout.environment.pop(fork_server.VARIABLE, None)  # it knows no workload of this copy
    faulty = checkout.path / "workflow" / "siliconprof" / "workloads" / "faulty.py"
    faulty.write_text(FAULTY, encoding="utf-8")
    try:
        yield checkout
    finally:
        for process in processes(checkout):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def processes(project: Checkout, *words: str) -> list[psutil.Process]:
    """What runs for this copy, with one of the words in its command line or as its name."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(LOCK_VARIABLE)
            named = not words or {*words} & {*process.cmdline(), process.name()}
            if mark == project.environment[LOCK_VARIABLE] and named:
                found.append(process)
        except psutil.Error:
            continue  # has ended, or is somebody else's
    return found


def workers(project: Checkout) -> list[psutil.Process]:
    """The measuring processes of a copy, and their forks."""
    return processes(project, fork_server.WORKER, fork_server.PROCESS_NAME)


def cell(mode: str, workload: str = "faulty", backend: str = "mlx", **more: Any) -> Cell:
    """A cell of the faulty workload, as `measure` takes it by hand."""
    timing = QUICK | {"time_limit_s": more.pop("time_limit_s", 600)}
    parameters = {"seconds": 0, "mib": 16, "folder": ""} | more | {"mode": mode}
    return cpu_cell(
        host="desk",
        device="cpu",
        backend=backend,
        workload=workload,
        module="faulty",
        parameters=parameters,
        timing=timing,
    )


def arguments(cell: Cell) -> list[str]:
    """What `measure` is told about a cell; its record goes to `{workload}.json`."""
    return ["--cell", cell.to_json(), "--output", f"{cell.workload}.json"]


def measure(project: Checkout, cell: Cell, **more: Any) -> dict[str, Any]:
    """Measure a cell by hand; its record, checked."""
    project.stage("measure", *arguments(cell), **more)
    return record.read(project.path / f"{cell.workload}.json")


def begin_measure(project: Checkout, cell: Cell) -> subprocess.Popen:
    """Start to measure a cell, in a process group of its own, and go on."""
    command = ("siliconprof.measure", *arguments(cell))
    with open(project.path.parent / "output.txt", "a") as output:
        streams = {"stdout": output, "stderr": subprocess.STDOUT}
        return project.begin(*command, start_new_session=True, **streams)


def child_asleep(project: Checkout) -> psutil.Process:
    """The one measuring process of a copy, once its workload sleeps."""
    until((project.path.parent / "asleep").exists)
    return min(workers(project), key=lambda process: process.create_time())


def lock_is_free(project: Checkout) -> bool:
    with open(project.environment[LOCK_VARIABLE], "r+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


# -- each way to go wrong ----------------------------------------------------------------------

FAULTS = {
    "fine": ("ok", None),
    "diverges": ("ok", None),
    "raises": ("failed", rf"RuntimeError: wrong on purpose; {REACHED}"),
    "aborts": ("failed", "the GPU gave up work .* no step is sure to have trained; its output: .*"),
    "stutters": ("failed", r"RuntimeError: \[METAL\] .*; macOS's GPU watchdog .* display sleeps.*"),
    "segfaults": ("failed", rf"killed by signal 11 \(SIGSEGV\); {REACHED}.*"),
    "exits": ("failed", rf"exit status 3; {REACHED}; cannot go on"),
    "measures_nothing": ("failed", "it came to its end without a point: nothing was measured"),
    "leaves_daemons": ("ok", None),
    "hangs": ("timeout", rf"still running after its limit of 15 s; {REACHED}"),
    "hangs_at_exit": ("ok", None),
}


@pytest.mark.slow
def test_every_fault_leaves_a_record_and_the_report_is_made(project):
    common = {"module": "faulty", "backends": ["mlx"], "device_kinds": ["cpu"]}
    entries: dict[str, Any] = {mode: common | {"mode": mode} for mode in FAULTS}
    for mode in ("hangs", "hangs_at_exit"):
        entries[mode]["timing"] = {"time_limit_s": 15}
    entries["fine"]["backends"] = ["torch-cpu"]
    project.configure(host="desk", timing=QUICK, workloads=entries, cpu_threads=2)
    # Snakemake exports such variables under --cores 1, and so does many a cluster.
    project.snakemake("report", env={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})

    made = {r["cell"]["workload"]: r for r in project.records().values()}
    assert set(made) == set(FAULTS)
    for mode, (status, reason) in FAULTS.items():
        assert made[mode]["status"] == status, (mode, made[mode]["reason"])
        if reason is None:
            assert made[mode]["reason"] is None
        else:
            assert re.fullmatch(reason, made[mode]["reason"]), (mode, made[mode]["reason"])
            assert made[mode]["progress"] == {"doing": "before the fault", "step": 7}
        assert bool(made[mode]["points"]) == (status == "ok")
    assert made["fine"]["environment"]["backend"]["threads"] == 2
    assert made["fine"]["points"][0]["params"]["omp_num_threads"] == "2"
    assert made["diverges"]["points"][0]["loss"] == [1.0, None]
    assert "loss_not_finite" in {flag["code"] for flag in made["diverges"]["flags"]}
    assert 15 <= made["hangs"]["accounting"]["child_wall_s"] < 300
    assert "crashed_at_exit" in {flag["code"] for flag in made["hangs_at_exit"]["flags"]}
    flagged = {mode: flag["detail"] for mode, r in made.items() for flag in r["flags"]
               if flag["code"] == "left_processes"}  # fmt: skip
    assert flagged.keys() == {"leaves_daemons"}
    assert re.fullmatch(
        r"3 killed: \S+ \(PID \d+\)(, \S+ \(PID \d+\)){2}", flagged["leaves_daemons"]
    )
    folder = project.path / "results"
    for path in (folder / "records").rglob("*.json"):
        sha256 = record.load(path).sha256  # typed, and with its own hash
        kept = folder / "history" / path.relative_to(folder / "records").with_suffix("")
        assert [p.name for p in kept.glob("*.json")] == [f"{sha256}.json"]

    with open(folder / "tables" / "cells.csv", newline="", encoding="utf-8") as stream:
        rows = {row["workload"]: row for row in csv.DictReader(stream)}
    assert rows.keys() == made.keys()
    for name, row in rows.items():
        assert (row["status"], row["reason"]) == (made[name]["status"], made[name]["reason"] or "")
    page = html.unescape((folder / "report.html").read_text(encoding="utf-8"))
    for mode in FAULTS:
        assert mode in page
        assert made[mode]["reason"] is None or made[mode]["reason"] in page

    _, left = psutil.wait_procs(processes(project), 10)  # a last one may be at its end
    assert not left and not list(folder.rglob("*.tmp"))
    # A cell that failed is finished: it is not tried again unasked.
    before = project.stamps()
    assert "Nothing to be done" in project.snakemake("report").stderr
    assert project.stamps() == before


# -- output ------------------------------------------------------------------------------------


def test_a_sign_is_found_wherever_it_is_in_the_output() -> None:
    """Cut in two by the pipe; out of memory is told apart, and a cell that has failed has the remedy."""
    aborts = torch_mps.Plugin.aborts
    said = (
        "Error: command buffer exited with error status.\n\tError: Insufficient Memory (00000008)\n"
    )
    for cut in (0, 9, 30, len(said)):
        output = Output(aborts)
        for part in (said[:cut], said[cut:]):
            output.add(part.encode())
        assert output.found == {"command buffer exited with error status"}, cut
    report = {"status": "ok", "reason": None, "points": [{}]}
    found = outcome.aborted(report, aborts, output)
    assert (found["status"], found["points"]) == ("oom", []) and "Insufficient" in found["reason"]
    output.add(b"Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)")
    late = outcome.aborted(report | {"status": "timeout", "reason": "late"}, aborts, output)
    assert late["reason"].startswith("late; macOS aborted") and late["points"]
    assert outcome.aborted(report, aborts, Output(aborts)) is report
    assert outcome.aborted(report, {}, output) is report


@pytest.mark.slow
def test_output_is_bounded_in_the_log(project):
    """Of 50 MB a beginning and an end, and how much is left out; the end is in the reason."""
    log = project.stage("measure", *arguments(cell("floods"))).stderr
    assert log.startswith("the beginning") and " the end\n" in log
    assert 2.0e6 < len(log.encode()) < 2.1e6
    before, n_bytes, after = re.split(r"\n\[siliconprof: (\d+) bytes of .* left out.*\]\n", log)
    end = after.rpartition(" the end\n")[0]  # what follows is the supervisor's own
    assert 50e6 < len(f"{before}{end} the end\n".encode()) + int(n_bytes) < 51e6
    assert f"line {0:44}" in before and f"line {999:44}" in end
    made = record.read(project.path / "faulty.json")
    assert made["reason"] == f"exit status 3; {REACHED}; {'x' * 200}"


# -- memory ------------------------------------------------------------------------------------

# Without a limit that holds, a test that takes all memory would take all of the machine's.
only_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="macOS has no cgroups and ignores RLIMIT_AS"
)


@only_linux
@pytest.mark.slow
def test_an_allocation_that_is_refused_is_oom(project):
    """In the framework's words, under a limit that all processes of the cell inherit."""
    limit = (2**31, 2**31)
    made = measure(
        project,
        cell("exhausts", backend="torch-cpu", mib=64),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
    )
    assert made["status"] == "oom"
    asked = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 67108864 bytes"
    assert re.fullmatch(rf".*{asked}.*{REACHED}", made["reason"]), made["reason"]


GROUP = f"{cgroups.PREFIX}test-{os.getpid()}"


@pytest.fixture
def cgroup() -> Iterator[Callable[[], Any] | None]:
    """To be called in a new process: it and all it starts have 300 MiB; None without the right."""
    try:
        yield (lambda: cgroups.enter(300 * 2**20, GROUP)) if can_limit() else None
    finally:
        for parent, version in cgroups.parents():
            cgroups.Group(parent / GROUP, version).remove()


@only_linux
@pytest.mark.slow
def test_the_kernels_killer_leaves_evidence(project, cgroup):
    if cgroup is None:
        return
    made = measure(project, cell("exhausts"), preexec_fn=cgroup)
    assert made["status"] == "oom", made["reason"]
    evidence = "(the cgroup's oom_kill counter rose from 0 to 1|kernel log: .*)"
    assert re.fullmatch(rf"killed by signal 9 \(SIGKILL\); {REACHED}; {evidence}", made["reason"])


def test_a_plain_kill_is_never_oom(project):
    """Whatever the cell has printed before."""
    supervisor = begin_measure(project, cell("complains", seconds=600))
    child = child_asleep(project)
    child.send_signal(signal.SIGKILL)
    assert supervisor.wait(120) == 0
    made = record.read(project.path / "faulty.json")
    assert made["status"] == "failed"
    assert made["reason"].startswith("killed by signal 9 (SIGKILL); while: asleep, step 8")
    assert "oom_kill" not in made["reason"] and "kernel log" not in made["reason"]


@pytest.mark.parametrize("child_first", [False, True])
def test_a_supervisor_that_is_told_to_end_ends_its_child(project, child_first):
    """Also where its child was told first, as a scheduler does that cancels a job."""
    supervisor = begin_measure(project, cell("sleeps", seconds=600))
    child = child_asleep(project)
    if child_first:
        child.terminate()
        until(lambda: not child.is_running())  # its supervisor knows
        time.sleep(0.5)
    supervisor.terminate()
    assert supervisor.wait(120) == 130
    assert processes(project) == [] and lock_is_free(project)
    assert not (project.path / "faulty.json").exists()


# -- what a cell leaves ------------------------------------------------------------------------


def flags(made: dict[str, Any]) -> set[str]:
    return {flag["code"] for flag in made["flags"]}


def test_a_killed_supervisor_ends_its_cell_and_lets_the_next_begin(project):
    first = begin_measure(project, cell("sleeps", "first", seconds=600))
    child_asleep(project)
    second = begin_measure(project, cell("fine", "second"))
    until(lambda: "waiting for" in (project.path.parent / "output.txt").read_text())
    first.kill()
    assert second.wait(120) == 0 and first.wait(120) != 0
    assert processes(project) == []
    assert record.read(project.path / "second.json")["status"] == "ok"
    assert not (project.path / "first.json").exists()


# -- the lock ----------------------------------------------------------------------------------


def test_who_waits_says_for_whom(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "host.lock"))
    with lock.alone(lambda: None, "desk/cpu"), pytest.raises(ZeroDivisionError):
        with lock.alone(lambda: 1 / 0, "another"):  # its check ends the wait
            raise AssertionError("two hold it")
    said = rf"waiting for PID {os.getpid()}, desk/cpu of .+, since [\d:]{{8}}\n"
    assert all(re.fullmatch(said, stream) for stream in capsys.readouterr())


@pytest.mark.slow
def test_cells_of_one_host_never_overlap(project, tmp_path):
    """The second waits until the first has ended, and says so."""
    hold = tmp_path / "hold"
    hold.touch()
    first = begin_measure(project, cell("sleeps", "first", folder=str(tmp_path)))
    child_asleep(project)
    second = begin_measure(project, cell("sleeps", "second", folder=str(tmp_path)))
    waits = r"waiting for PID \d+, desk/cpu/mlx/first/auto/fp32 of \S+, since \d\d:\d\d:\d\d"
    until(lambda: re.search(waits, (project.path.parent / "output.txt").read_text()))
    hold.unlink()
    assert first.wait(120) == 0 and second.wait(120) == 0
    made = {n: record.read(project.path / f"{n}.json") for n in ("first", "second")}
    assert {n: r["status"] for n, r in made.items()} == {"first": "ok", "second": "ok"}
    waited_s = {n: r["accounting"]["waited_for_lock_s"] for n, r in made.items()}
    assert waited_s["second"] > waited_s["first"]
    (_, ended), (began, _) = (
        map(float, line.split()) for line in (tmp_path / "spans").read_text().splitlines()
    )
    assert ended <= began
