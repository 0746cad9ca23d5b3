"""Our own minimal training loop: the paper's "without the Hugging Face platform"."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from siliconprof.session import memory_limit
from siliconprof.trainers import _offload
from siliconprof.trainers.base import Course, Trainer

if TYPE_CHECKING:
    from siliconprof.session.session import Session

FORWARD_ONLY_STEPS = 5


class Plugin(Trainer):
    """plain"""

    compiles = True

    def run(self, session: Session) -> None:
        cell, backend = session.cell, session.backend
        workload: Any = session.workload
        session.progress("build the model", 0)
        if session.offloads:
            stepper: Any = _offload.OffloadStepper(session)
        else:
            stepper = backend.stepper(workload, cell.seed)
        batches = workload.batches(session.data, cell.seed)
        course = Course(session, stepper.compilation)
        backend.reset_peak_memory()
        course.follow(stepper, batches)
        batch = next(batches)
        session.evidence |= stepper.dtypes(batch)
        compiled = stepper.compilation() is not None
        extra = {} if compiled else {"forward_only_s": forward_only(session, stepper, batch)}
        session.method["split"] = "per-phase and whole steps alternate; forward_only_s is the check"
        if workload.max_gradient_norm() is not None and not session.offloads:
            session.method["split"] += "; other_s includes the gradients' norm and clipping"
        if compiled:
            session.method["split"] = "not split: a compiled step has no phases"
        point = course.point(**extra)
        whole = session.offloads or compiled  # nothing sees inside such a step
        again = None if whole else lambda: stepper.step(batch, course.clock)
        point["memory"] |= memory_limit.held(session, again, stepper.standing())
        session.add_point(point)


def forward_only(session: Session, stepper: Any, batch: Any) -> list[float]:
    """Seconds of each of a few forward passes alone, to check the split."""
    times = []
    forward = stepper.forward_only(batch)
    for index in range(FORWARD_ONLY_STEPS + 1):
        session.backend.synchronize()
        start = time.perf_counter()
        forward()
        session.backend.synchronize()
        if index:  # the first pass warms up
            times.append(time.perf_counter() - start)
    return times
