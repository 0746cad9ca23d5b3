"""Our own minimal training loop: the paper's "without the Hugging Face platform"."""

from __future__ import annotations

from typing import Any

from siliconprof.session import memory_limit
from siliconprof.session.cell_run import CellRun
from siliconprof.session.timing import Plan, call_s
from siliconprof.trainers import _offload
from siliconprof.trainers.base import StepSchedule, Trainer

FORWARD_ONLY_STEPS = (2, 5)  # at least, and at most
FORWARD_ONLY_SHARE = 0.1  # of the budget, for them once there are the fewest


class Plugin(Trainer):
    """plain"""

    compiles = True

    def run(self, cell_run: CellRun) -> None:
        cell, backend = cell_run.cell, cell_run.backend
        workload = cell_run.workload
        cell_run.progress("build the model", 0)
        if cell_run.offloads:
            stepper: Any = _offload.OffloadStepper(cell_run)
        else:
            stepper = backend.stepper(workload, cell.seed)
        batches = workload.batches(cell_run.data, cell.seed)
        schedule = StepSchedule(cell_run, stepper.compilation)
        backend.memory.reset_peak()
        schedule.follow(stepper, batches)
        batch = next(batches)
        cell_run.evidence |= stepper.inference.dtypes(batch)
        compiled, extra = stepper.compilation() is not None, dict[str, list[float]]()
        if not compiled and not schedule.overran:
            extra["forward_only_s"] = forward_only(cell_run, stepper, batch)
        cell_run.method["split"] = (
            "per-phase and whole steps alternate; forward_only_s is the check"
        )
        if workload.parameters.get("max_gradient_norm") is not None and not cell_run.offloads:
            cell_run.method["split"] += "; other_s includes the gradients' norm and clipping"
        if compiled:
            cell_run.method["split"] = "not split: a compiled step has no phases"
        point = schedule.point(**extra)
        whole = cell_run.offloads or compiled  # no profiler sees into such a step
        again = None if whole else lambda: stepper.step(batch, schedule.clock)
        point["memory"] |= memory_limit.peak_of_step(cell_run, again, stepper.persistent_arrays())
        cell_run.add_point(point)


def forward_only(cell_run: CellRun, stepper: Any, batch: Any) -> list[float]:
    """Seconds of each of a few forward passes alone, to check the split."""
    budget_s = FORWARD_ONLY_SHARE * Plan.of(cell_run.cell.timing).budget_s
    fewest, most = FORWARD_ONLY_STEPS
    forward = stepper.inference.forward(batch)
    call_s(forward, cell_run.backend.clock)  # warms up
    times: list[float] = []
    while len(times) < fewest or (len(times) < most and sum(times) < budget_s):
        times.append(call_s(forward, cell_run.backend.clock))
    return times
