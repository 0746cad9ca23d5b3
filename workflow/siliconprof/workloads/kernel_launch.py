"""Kernel launch, which is several numbers: cold, enqueue only, launch and wait, amortised.

Of an empty compiled kernel where the backend can make one, and of the trivial operator, labelled
dispatch because its time includes the framework's own path. A process has only one cold launch, so
cold times, and those of import, context, another kernel and compiling, come from fresh ones.
Enqueue is, beside Python: on CUDA torch's dispatcher and cuLaunchKernel; on MPS encoding into the
open command buffer, without commit; in MLX a node of the graph and mx.async_eval; in torch on a CPU
the whole call. A cold operator's code is read in, or its pipeline made, in its launch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from siliconprof.declarations import Parameter, Quantity
from siliconprof.errors import BUSY
from siliconprof.lifetime import forks_here
from siliconprof.parameters import Count, Limits
from siliconprof.session import cold_launch
from siliconprof.session.cell_run import CellRun
from siliconprof.session.cold_launch import COMPILE_AND_LOAD_S, DISPATCH_COLD_S, EMPTY_COLD_S
from siliconprof.session.timing import Plan
from siliconprof.workloads._operation import checked, together
from siliconprof.workloads.base import KernelWorkload, only_fp32

DISPATCH, EMPTY_KERNEL = "dispatch", "empty kernel"
CHECKED_VALUES = 64  # of the trivial operator
# Shares of the cell's time limit, so that a process that hangs leaves time for the rest: for one with
# one launch, and for one whose forks do them all.
ONE_PROCESS, ALL_FORKS = 0.25, 0.75
# Fresh ones, each with one cold launch; where that may fork, forks of one that has imported.
PROCESSES = 10
COLD_METHOD = (
    "one process imports the framework; each of its forks in turn opens the device and launches"
)
BEFORE = (cold_launch.IMPORT_S, cold_launch.CONTEXT_S, cold_launch.OTHER_KERNEL_S)
HELD_BY_CELL = (
    "they cannot open the GPU while this cell's process holds it, since its compute mode lets one process alone "
    "use it: `sudo nvidia-smi -c 0` lets several"
)
COMES_COMPILED = "the operator comes compiled with the framework"


class Plugin(KernelWorkload):
    """kernel_launch"""

    fresh_processes = PROCESSES
    refuses = only_fp32("a launch computes nothing, so it has no precision")
    POINT = {
        "launch": Parameter("string", label="launch"),
        "note": Parameter("string", label="what is launched", identifies=False, derived=True),
        "burst": Parameter("integer", label="launches in a row", identifies=False, derived=True),
    }
    QUANTITIES = {
        "launch_and_wait_s": Quantity("launch and wait", "s", "lower", series=True),
        "enqueue_s": Quantity("enqueue", "s", "lower", series=True),
        "amortised_s": Quantity("amortised", "s", "lower", series=True),
        "cold_s": Quantity("cold launch", "s", "lower", series=True),
        "import_s": Quantity("import of the framework", "s", "lower", series=True),
        "context_s": Quantity("context", "s", "lower", series=True),
        "other_kernel_s": Quantity("another kernel", "s", "lower", series=True),
        "compile_and_load_s": Quantity("compile and load", "s", "lower", series=True),
    }

    class Parameters(KernelWorkload.Parameters):
        burst: Annotated[
            Count,
            "launches in a row, waited for once; enqueue time is measured on fewer "
            "where the backend's queue takes fewer without waiting",
        ] = 100
        bursts: Annotated[
            int, Limits(ge=10), "bursts measured for enqueue and amortised time, each"
        ] = 200

    def measure(self, cell_run: CellRun) -> None:
        arrays, kernels = cell_run.backend.arrays, cell_run.backend.kernels
        seed = cell_run.cell.seed
        seconds, failed = self.cold(cell_run)
        values, same = (arrays.normal((CHECKED_VALUES,), seed) for _ in range(2))
        error = arrays.relative_error(kernels.add_one(values), lambda x: x + 1, same)
        value = arrays.normal((1,), seed)
        note = "a + 1 on one element"
        point = self.point(cell_run, DISPATCH, note, lambda: kernels.add_one(value))
        point["result_error"] = checked(error, cell_run.cell.precision, "a + 1")
        cell_run.add_point(self.with_cold(point, seconds, failed))
        kernel, note = kernels.empty()
        if kernel is None:
            cell_run.flag("no_empty_kernel", note)
            return
        try:
            point = self.point(cell_run, EMPTY_KERNEL, note, kernel)
        except Exception as error:  # made by private or young interfaces: keep the dispatch
            cell_run.flag("no_empty_kernel", f"its launch failed: {error}")
            return
        cell_run.add_point(self.with_cold(point, seconds, failed, kernels.compiles_at_launch))

    def cold(self, cell_run: CellRun) -> tuple[dict[str, list[float]], list[str]]:
        """(seconds by name, one entry per fresh process; a reason for each that failed)."""
        cell = cell_run.cell
        stepping = cell_run.stepping("fresh process")
        all_s: dict[str, list[float]] = {}
        failed: list[str] = []
        may_fork = forks_here() and cell_run.backend.features.may_fork(cell.device_kind)
        forks, done = PROCESSES if may_fork else 0, 0
        while done < PROCESSES:
            stepping("start", done + 1)
            share = ALL_FORKS if forks else ONE_PROCESS
            launches = cold_launch.fresh(cell, share * Plan.of(cell.timing).time_limit_s, forks)
            if len(launches) > 1:
                cell_run.method["cold_launch"] = COLD_METHOD
            forks = 0  # where none could be forked, the next process could fork none either
            for timings, reason in launches:
                done += 1
                for name, seconds in timings.items():
                    all_s.setdefault(name, []).append(seconds)
                if reason:
                    failed.append(f"process {done}: {reason}")
        cell_run.timed(sum(map(sum, all_s.values())))
        if any(BUSY in reason for reason in failed):
            failed = [HELD_BY_CELL]
        if failed:
            cell_run.flag("fresh_process_failed", "; ".join(failed))
        return all_s, failed

    def with_cold(
        self,
        point: dict[str, Any],
        seconds: Mapping[str, list[float]],
        failed: list[str],
        compiles_at_launch: str | None = None,
    ) -> dict[str, Any]:
        """The point of one launcher with its cold times, and why any of them is missing."""
        empty = point["params"]["launch"] == EMPTY_KERNEL
        names = {name: name for name in (*BEFORE, *((COMPILE_AND_LOAD_S,) if empty else ()))}
        names["cold_s"] = EMPTY_COLD_S if empty else DISPATCH_COLD_S
        times = {name: seconds[own] for name, own in names.items() if own in seconds}
        failure = f"no fresh process reached this: {'; '.join(failed)}"
        reasons = dict.fromkeys((name for name in names if name not in times), failure)
        if not empty:
            reasons[COMPILE_AND_LOAD_S] = COMES_COMPILED
        elif compiles_at_launch:
            reasons["cold_s"] = compiles_at_launch
        cold = {"processes": PROCESSES, "failed": failed, "reasons": reasons}
        return point | {"times": point["times"] | times, "cold": cold}

    def point(
        self, cell_run: CellRun, what: str, note: str, launch: Callable[[], Any]
    ) -> dict[str, Any]:
        """The numbers of one launcher that this process can measure."""
        backend, burst = cell_run.backend, self.parameters["burst"]
        measured = cell_run.repeat(f"{what} and wait", launch)
        times = {
            "launch_and_wait_s" if name == "step_s" else name: values
            for name, values in measured.pop("times").items()
        }
        depth = backend.kernels.queue_depth
        below_depth = burst if depth is None else min(burst, depth)
        stepping = cell_run.stepping(f"{what} burst")

        def bursts() -> dict[str, Any]:
            series: dict[str, Any] = {"enqueue_s": [], "amortised_s": []}
            for index in range(self.parameters["bursts"]):
                stepping("measure", index)
                start = time.perf_counter()
                for _ in range(below_depth):
                    launch()
                series["enqueue_s"].append((time.perf_counter() - start) / below_depth)
                backend.clock.synchronize()
                start = time.perf_counter()
                for _ in range(burst):
                    launch()
                backend.clock.synchronize()
                series["amortised_s"].append((time.perf_counter() - start) / burst)
            return series

        more = cell_run.undisturbed(bursts)
        times |= {name: more.pop(name) for name in ("enqueue_s", "amortised_s")}
        return together(measured, more) | {
            "params": {"launch": what, "note": note, "burst": burst},
            "enqueue_burst": below_depth,
            "times": times,
            "flops": None,
            "bytes": None,
            "memory": cell_run.memory(),
        }
