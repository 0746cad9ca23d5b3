"""Our own minimal training loop: the paper's "without the Hugging Face platform"."""

from __future__ import annotations

from typing import Any

from siliconprof.session import memory_limit
from siliconprof.session.session import Session
from siliconprof.session.timing import Plan, call_s
from siliconprof.trainers import _offload
from siliconprof.trainers.base import StepSchedule, Trainer

FORWARD_ONLY_STEPS = (2, 5)  # at least, and at most
FORWARD_ONLY_SHARE = 0.1  # of the budget, for them once there are the fewest


class Plugin(Trainer):
    """plain"""

    compiles = True

    def run(self, session: Session) -> None:
        cell, backend = session.cell, session.backend
        workload = session.workload
        session.progress("build the model", 0)
        if session.offloads:
            stepper: Any = _offload.OffloadStepper(session)
        else:
            stepper = backend.stepper(workload, cell.seed)
        batches = workload.batches(session.data, cell.seed)
        schedule = StepSchedule(session, stepper.compilation)
        backend.reset_peak_memory()
        schedule.follow(stepper, batches)
        batch = next(batches)
        session.evidence |= stepper.dtypes(batch)
        compiled, extra = stepper.compilation() is not None, dict[str, list[float]]()
        if not compiled and not schedule.overran:
            extra["forward_only_s"] = forward_only(session, stepper, batch)
        session.method["split"] = "per-phase and whole steps alternate; forward_only_s is the check"
        if workload.max_gradient_norm() is not None and not session.offloads:
            session.method["split"] += "; other_s includes the gradients' norm and clipping"
        if compiled:
            session.method["split"] = "not split: a compiled step has no phases"
        point = schedule.point(**extra)
        whole = session.offloads or compiled  # nothing sees inside such a step
        again = None if whole else lambda: stepper.step(batch, schedule.clock)
        point["memory"] |= memory_limit.held(session, again, stepper.standing())
        session.add_point(point)


def forward_only(session: Session, stepper: Any, batch: Any) -> list[float]:
    """Seconds of each of a few forward passes alone, to check the split."""
    budget_s = FORWARD_ONLY_SHARE * Plan.of(session.cell.timing).budget_s
    fewest, most = FORWARD_ONLY_STEPS
    forward = stepper.forward_only(batch)
    call_s(forward, session.backend)  # warms up
    times: list[float] = []
    while len(times) < fewest or (len(times) < most and sum(times) < budget_s):
        times.append(call_s(forward, session.backend))
    return times
