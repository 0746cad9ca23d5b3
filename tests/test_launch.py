"""Kernel launch through the front door: four numbers, ten fresh processes, and those that fail."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Checkout, codes, cpu_cell, until
from faulty_cells import arguments, measure, processes
from siliconprof import lifetime, plugins
from siliconprof.backends import _cuda_driver, torch_cuda
from siliconprof.measure import fork_server
from siliconprof.probes import interference
from siliconprof.stats import statistics
from siliconprof.store.cell import Cell
from siliconprof.workloads.kernel_launch import PROCESSES

BEFORE = ("import_s", "context_s", "other_kernel_s")
FEWER = 3

# Python reads this file when it starts. It does its harm in the forks of the process that launches.
PLANTED = """\
import os
import sys
import time

if "siliconprof.session.cold_launch" in sys.orig_argv:
    real, faults = os.fork, iter([None, *{faults!r}])  # the first looks whether one can be forked

    def fork():
        fault = next(faults, None)
        if not (pid := real()):
            if fault == "dies":
                time.perf_counter = lambda: os.kill(os.getpid(), 9)
            if fault == "hangs":
                time.perf_counter = lambda: time.sleep(600)
            if fault == "has no device":
                time.perf_counter = lambda: sys.exit("no device")
        return pid

    os.fork = fork
"""


# Appended to the copy's MLX: a kernel takes 0.1 s to compile, unless a process before has left it
# where CUDA's driver looks, and 0.03 s more for its first launch.
COMPILING = """

class CompilingKernels(MlxKernels):
    compiles_at_launch = {compiles_at_launch!r}

    def empty(self):
        import pathlib
        import time

        left = pathlib.Path(os.environ.get("CUDA_CACHE_PATH", "."), "kernel")
        if left.exists():
            return (lambda: None), "loaded"
        left.touch()
        due_s = [0.03]
        if self.compiles_at_launch:
            due_s.append(0.1)
        else:
            time.sleep(0.1)

        def launch():
            while due_s:
                time.sleep(due_s.pop())

        return launch, "sleeps"


class Compiling(Plugin):
    def open(self, *arguments):
        super().open(*arguments)
        self.kernels = CompilingKernels(self.mx, self.device, self.dtype)


Plugin = Compiling
"""


BAD_FORK = """

MlxFeatures.bad_fork = lambda self: True

Plugin"""


def launch_cell(**timing: Any) -> Cell:
    """A cell as `measure` takes it by hand."""
    return cpu_cell("mlx", "kernel_launch", {"bursts": 10}, workload="launch", timing=timing)


def plant(checkout: Checkout, faults: list[str | None]) -> None:
    """Let the forks of a fresh process fail, in order."""
    folder = checkout.path.parent / "planted"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(PLANTED.format(faults=faults), encoding="utf-8")
    checkout.environment.pop(fork_server.SERVER_VARIABLE, None)  # processes are looked at
    checkout.environment["PYTHONPATH"] = f"workflow{os.pathsep}{folder}"


@pytest.mark.slow
def test_the_four_numbers_are_what_they_are_called(checkout: Checkout) -> None:
    """A first launch, and one that is waited for, cost more than one of many; ten are cold.

    In MLX, whose processes start fast; `test_default_run` looks at what torch leaves.
    """
    data = measure(checkout, launch_cell(iterations=30, max_iterations=30))
    assert data["status"] == "ok", data["reason"]
    assert "fresh_process_failed" not in codes(data)
    (point,) = data["points"]  # of the trivial operator, the only one on a CPU
    assert point["params"]["launch"] == "dispatch"
    times = point["times"]
    for name in ("cold_s", *BEFORE):
        n_readings = 1 if name == "import_s" and "cold_launch" in data["method"] else PROCESSES
        assert len(times[name]) == len(set(times[name])) == n_readings, name
        assert min(times[name]) > 0
    assert "compile_and_load_s" not in times  # nobody compiled anything
    reasons = {"compile_and_load_s": "the operator comes compiled with the framework"}
    assert point["cold"] == {"processes": PROCESSES, "failed": [], "reasons": reasons}
    assert statistics.median(times["import_s"]) > 10 * statistics.median(times["cold_s"])
    least = {name: min(values) for name, values in times.items()}
    assert least["cold_s"] > 2 * least["amortised_s"]
    assert least["launch_and_wait_s"] > least["amortised_s"]
    assert len(times["enqueue_s"]) == len(times["amortised_s"]) == 10
    assert point["params"]["burst"] == 100
    assert point["enqueue_burst"] == 10  # more would have to wait
    assert point["result_error"] < 1e-6


@pytest.mark.slow
def test_fresh_processes_that_fail_leave_a_reason_and_the_others_stand(checkout: Checkout) -> None:
    plant(checkout, [None, "dies", None, "has no device", None, None, "hangs"])
    env = {"PYTHONPATH": checkout.environment["PYTHONPATH"]}
    data = measure(checkout, launch_cell(time_limit_s=20), env=env)
    assert data["status"] == "ok"
    (point,) = data["points"]
    assert len(point["times"]["cold_s"]) == 4
    died, without, *hung = point["cold"]["failed"]
    assert died == "process 2: killed by signal 9 (SIGKILL); while: open the device"
    assert without == "process 4: exit status 1; while: open the device; no device"
    assert len(hung) == 4  # of one that hangs, those after it are not there either
    assert hung[0] == "process 7: still running after 15 s; while: open the device"
    (flag,) = [flag for flag in data["flags"] if flag["code"] == "fresh_process_failed"]
    assert flag["detail"] == "; ".join([died, without, *hung])
    assert len(point["times"]["launch_and_wait_s"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("compiles_at_launch", [None, "with its first launch"])
def test_an_empty_kernel_s_compiling_is_apart_from_its_cold_launch(
    checkout: Checkout, compiles_at_launch: str | None
) -> None:
    """Also where both are one: then there is no cold launch of a kernel that is compiled.

    Each launch has an interpreter of its own, where forks are turned off or could open no device.
    """
    source = COMPILING.format(compiles_at_launch=compiles_at_launch)
    if compiles_at_launch:
        checkout.environment[lifetime.FORKS_VARIABLE] = "0"
    else:
        source = source.replace("\n\nPlugin", BAD_FORK)
    package = checkout.path / "workflow/siliconprof"
    with (package / "backends/mlx.py").open("a") as module:
        module.write(source)
    workload = package / "workloads/kernel_launch.py"
    text = workload.read_text(encoding="utf-8")
    assert text.count(f"PROCESSES = {PROCESSES}\n") == 1
    text = text.replace(f"PROCESSES = {PROCESSES}\n", f"PROCESSES = {FEWER}\n")
    workload.write_text(text, encoding="utf-8")  # each imports MLX
    data = measure(checkout, launch_cell())
    assert data["status"] == "ok", data["reason"]
    assert "cold_launch" not in data["method"]
    operator, empty = data["points"]
    assert (operator["params"]["launch"], empty["params"]["launch"]) == ("dispatch", "empty kernel")
    assert empty["params"]["note"] == "sleeps"
    assert len(operator["times"]["cold_s"]) == len(empty["times"]["context_s"]) == FEWER
    assert "compile_and_load_s" not in operator["times"]
    compiled = empty["times"]["compile_and_load_s"]
    assert len(compiled) == FEWER
    if compiles_at_launch:
        assert min(compiled) >= 0.13
        assert "cold_s" not in empty["times"]
        assert empty["cold"]["reasons"] == {"cold_s": "with its first launch"}
    else:
        assert len(empty["times"]["cold_s"]) == FEWER
        assert min(compiled) >= 0.1
        assert 0.03 <= min(empty["times"]["cold_s"]) < 0.1
        assert empty["cold"]["reasons"] == {}


def test_no_fresh_process_outlives_the_supervisor(checkout: Checkout) -> None:
    plant(checkout, ["hangs"])
    command = ("siliconprof.measure", *arguments(launch_cell()))
    env = {"PYTHONPATH": checkout.environment["PYTHONPATH"]}
    supervisor = checkout.begin(*command, env=env, start_new_session=True)
    try:
        until(lambda: len(processes(checkout, "siliconprof.session.cold_launch")) == 2)
        supervisor.kill()
        supervisor.wait(120)
        until(lambda: processes(checkout) == [])
        assert not (checkout.path / "launch.json").exists()
    finally:
        for process in processes(checkout):
            process.kill()


@pytest.mark.flaky(reruns=1)  # it compares measured times
@pytest.mark.alone
def test_a_full_burst_is_handed_over_without_waiting() -> None:
    """As many launches as MLX's queue is said to take return while a slow product still runs."""
    backend = plugins.load("backends", "mlx")()
    assert backend.available()[0]
    backend.open("cpu", 0, 2, "fp32")
    wide, value = backend.arrays.normal((800, 800), 0), backend.arrays.normal((1,), 1)
    shares = []
    for _ in range(5):
        backend.clock.synchronize()
        backend.arrays.async_eval(wide @ wide @ wide)
        start = time.perf_counter()
        for _ in range(backend.kernels.queue_depth):
            backend.kernels.add_one(value)
        dispatch_s = time.perf_counter() - start
        backend.clock.synchronize()
        shares.append(dispatch_s / (time.perf_counter() - start))
    assert min(shares) < 0.2


@pytest.mark.flaky(reruns=1)  # it measures processor time
@pytest.mark.skipif(sys.platform != "linux", reason="living children are read from /proc")
def test_what_a_cell_starts_is_no_foreign_load() -> None:
    """Nor is what that has started, alive or waited for, as inductor's compile workers are."""
    spin = "import time\nwhile time.process_time() < 0.3: pass\nprint(1, flush=True)\ninput()"
    both = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {spin!r}])"
    before_s = interference.own_busy_seconds()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", both], **pipes)
    assert child.stdout and child.stdout.readline() == b"1\n"
    assert child.pid in interference.descendants() and len(interference.descendants()) >= 2
    alive_s = interference.own_busy_seconds() - before_s
    child.communicate(b"\n")
    assert child.pid not in interference.descendants()
    assert 0.25 < alive_s <= interference.own_busy_seconds() - before_s < 3


# -- forks on an NVIDIA GPU --------------------------------------------------------------------

# As CUDA's driver, which a fork of the process that initialised it cannot use (3, NOT_INITIALIZED).
CU_INIT = """
#include <unistd.h>
static int of = 0;
extern "C" int cuInit(unsigned) { of = of ? of : getpid(); return of == getpid() ? 0 : 3; }
"""


def test_the_driver_says_what_was_forked_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever has called it before, torch or another: a fork of that process opens no device."""
    path = str(tmp_path / "libcuda.so.1")
    command = ["c++", "-shared", "-fPIC", "-x", "c++", "-o", path, "-"]
    subprocess.run(command, input=CU_INIT, text=True, check=True)
    monkeypatch.setattr(_cuda_driver, "DRIVER_LIBRARY", path)
    backend = torch_cuda.Plugin()
    assert lifetime.in_a_fork(backend.features.bad_fork) == 0  # which nothing has called before
    assert not backend.features.bad_fork()
    assert lifetime.in_a_fork(backend.features.bad_fork) == 1
    assert lifetime.in_a_fork(lambda: 1 // 0) == 1  # nor does one go on that raises
