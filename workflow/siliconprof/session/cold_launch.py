"""The first kernel launch of a fresh process: how long it takes, and each step before it.

    python -m siliconprof.session.cold_launch --cell JSON --supervisor PID

Cold is the first launch of a kernel that is compiled and loaded, after the context exists and
another kernel has run. A process has only one, so `kernel_launch` starts several processes one
after the other (`fresh`). Each does the following, and prints every time as a line of its own, so
that a crash loses no earlier time: import the framework; open the device and put the first arrays
there; run another kernel; launch the trivial operator; compile an empty kernel, load it and launch
it. The operator goes first, so that only the one product has run before it. With `--forks N` the
process forks once the framework is imported, N times in turn, and the forks do the rest; where the
import has opened the device, which a fork then cannot, the process does it itself, once.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from siliconprof import plugins
from siliconprof.lifetime import end_with, in_a_fork, killed_by, leave
from siliconprof.store.cell import Cell

LAUNCH_MARK = "siliconprof cold launch: "
IMPORT_S, CONTEXT_S, OTHER_KERNEL_S = "import_s", "context_s", "other_kernel_s"
DISPATCH_COLD_S = "dispatch_cold_s"
COMPILE_AND_LOAD_S, EMPTY_COLD_S = "compile_and_load_s", "empty_cold_s"
OTHER_SIZE = 8  # of the product that runs first
ERROR = re.compile(r"[\w.]+(Error|Exception): ")  # after a CUDA error's own line there are more
# Folders in which CUDA's driver (CUDA programming guide, environment variables) and MLX
# (mlx/backend/cuda/jit_module.cpp) look for the kernel that a process before has compiled.
KERNEL_CACHES = ("CUDA_CACHE_PATH", "MLX_PTX_CACHE_DIR")

Result = TypeVar("Result")


# -- the fresh process ---------------------------------------------------------------------------


def report(**facts: Any) -> None:
    """Print facts as one line of JSON; a framework may have left a line unfinished."""
    print(f"\n{LAUNCH_MARK}{json.dumps(facts)}", flush=True)


def timed(name: str, doing: str, action: Callable[[], Result]) -> Result:
    """Report an action, run it, and report its seconds under a name."""
    report(doing=doing)
    start = time.perf_counter()
    result = action()
    seconds = time.perf_counter() - start
    report(**{name: seconds})
    return result


def launch_cold(backend: Any, cell: Cell) -> None:
    """Take all times that follow the import, in the order of the module's description."""

    def opened() -> tuple[Any, Any]:
        backend.open(cell.device_kind, cell.device_index, cell.threads, cell.precision)
        ones = [1.0] * OTHER_SIZE
        operand, value = map(backend.arrays.from_host, ([ones] * OTHER_SIZE, [0.5]))
        backend.clock.synchronize()
        return operand, value

    def run(launch: Callable[[], Any]) -> None:
        launch()
        backend.clock.synchronize()

    operand, value = timed(CONTEXT_S, "open the device", opened)
    kernels, arrays = backend.kernels, backend.arrays
    other, operator = (lambda: arrays.matmul(operand, operand)), (lambda: kernels.add_one(value))
    timed(OTHER_KERNEL_S, "run another kernel", lambda: run(other))
    timed(DISPATCH_COLD_S, "launch the operator", lambda: run(operator))
    doing = "compile and load an empty kernel"
    if kernels.compiles_at_launch:
        kernel, _ = kernels.empty()
        if kernel is not None:
            timed(COMPILE_AND_LOAD_S, doing, lambda: run(kernel))
        return
    report(doing=doing)
    start = time.perf_counter()
    kernel, _ = kernels.empty()
    seconds = time.perf_counter() - start
    if kernel is not None:
        report(**{COMPILE_AND_LOAD_S: seconds})
        timed(EMPTY_COLD_S, "launch the empty kernel", lambda: run(kernel))


def forked(times: int) -> bool:
    """Fork so many times, each after the end of the fork before; return True in a fork, else False."""
    parent = os.getpid()
    for _ in range(times):
        if not (pid := os.fork()):
            end_with(parent)
            for cache in KERNEL_CACHES:  # which the driver reads when the device is opened
                os.environ[cache] = tempfile.mkdtemp(dir=os.environ[cache])
            return True
        report(ended=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return False


def main(argv: Sequence[str] | None = None) -> int:
    """Launch for the first time and print the times."""
    parser = argparse.ArgumentParser(prog="siliconprof.session.cold_launch")
    parser.add_argument("--cell", required=True)
    parser.add_argument("--supervisor", type=int, required=True)
    parser.add_argument("--forks", type=int, default=0)
    arguments = parser.parse_args(argv)
    end_with(arguments.supervisor)
    cell = Cell.from_json(arguments.cell)
    backend = plugins.load("backends", cell.backend)()
    timed(IMPORT_S, f"import {backend.framework}", backend.import_framework)
    alone = not arguments.forks or bool(in_a_fork(backend.features.bad_fork))
    report(launches=1 if alone else arguments.forks)
    if alone or forked(arguments.forks):
        launch_cold(backend, cell)
    return 0


# -- the process that starts it ------------------------------------------------------------------


def fresh(cell: Cell, limit_s: float, forks: int = 0) -> list[tuple[dict[str, float], str | None]]:
    """Run one fresh process to its end: (seconds by name, why it failed or None) of each launch.

    It finds no kernel that an earlier process has compiled.

    Args:
        limit_s: seconds after which it is killed.
        forks: number of launches, each in a fork made after the import, whose time counts for the first;
            0 = one launch in the process itself, where none can be forked.
    """
    command = [sys.executable, "-m", "siliconprof.session.cold_launch", "--forks", str(forks)]
    command += ["--cell", cell.to_json(), "--supervisor", str(os.getpid())]
    with tempfile.TemporaryDirectory() as empty:
        try:
            done = subprocess.run(
                command,
                env=os.environ | dict.fromkeys(KERNEL_CACHES, empty),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            )
            output, code, late = done.stdout, done.returncode, False
        except subprocess.TimeoutExpired as error:
            output, code, late = error.output or b"", 0, True
    launches: list[tuple[dict[str, float], str | None]] = []
    times_s: dict[str, float] = {}
    doing, last, due = "start", "", forks or 1
    for line in output.decode(errors="replace").splitlines():
        text = line.strip()
        if text.startswith(LAUNCH_MARK):
            message = json.loads(text.removeprefix(LAUNCH_MARK))
            doing, due = message.pop("doing", doing), message.pop("launches", due)
            if "ended" in message:
                why = failure(message["ended"], False, limit_s, f"while: {doing}", last)
                launches.append((times_s, why))
                times_s, last = {}, ""
            else:
                times_s |= message
        elif text:
            last = last if ERROR.match(last) else text
            print(text, flush=True)  # into the cell's log
    while len(launches) < due:
        launches.append((times_s, failure(code, late, limit_s, f"while: {doing}", last)))
        times_s = {}
    return launches


def failure(code: int, late: bool, limit_s: float, reached: str, last: str) -> str | None:
    """Why a process ended early; None if it did not."""
    if late:
        return f"still running after {limit_s:g} s; {reached}"
    if code < 0:
        return f"{killed_by(-code)}; {reached}"
    return f"exit status {code}; {reached}; {last[:200]}" if code else None


if __name__ == "__main__":
    leave(main())
