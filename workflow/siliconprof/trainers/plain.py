"""Our own minimal training loop: the paper's "without the Hugging Face platform"."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from siliconprof.timing import Pace, PhaseClock, Plan, StepTimes
from siliconprof.trainers.base import Trainer, training_point

if TYPE_CHECKING:
    from siliconprof.session import Session

FORWARD_ONLY_STEPS = 3


class Plugin(Trainer):
    """plain"""

    frameworks = ("torch", "mlx")

    def run(self, session: Session) -> None:
        """See `Trainer.run`. Split and unsplit steps alternate after the warm-up."""
        cell, backend = session.cell, session.backend
        session.progress("build the model", 0)
        stepper = backend.stepper(session.workload, cell.seed)
        batches = session.data.batches(
            cell.parameters["batch_size"], cell.parameters["seq_len"], cell.seed
        )
        pace, times, losses = Pace(Plan.of(cell.timing)), StepTimes(), []
        clock = PhaseClock(backend)
        backend.reset_peak_memory()

        def step(split: bool) -> tuple[float, dict[str, float]]:
            clock.start(split)
            loss = stepper.step(next(batches), clock)
            measured = clock.stop()
            losses.append(loss())
            return measured

        while pace.warming_up():
            session.progress("warm-up", len(losses))
            pace.warmup_times.append(step(split=False)[0])
        times.warmup_step_s = pace.warmup_times
        while not pace.done():
            session.progress("training step", len(losses))
            times.add_split(*step(split=True))
            unsplit, _ = step(split=False)
            times.unsplit_step_s.append(unsplit)
            pace.times.append(unsplit)
        batch = next(batches)
        session.evidence |= stepper.dtypes(batch)
        session.method["split"] = "split and unsplit steps alternate; forward_only_s is the check"

        forward_only = []
        for index in range(FORWARD_ONLY_STEPS + 1):
            backend.synchronize()
            start = time.perf_counter()
            stepper.forward_only(batch)
            backend.synchronize()
            if index:  # the first has something to warm up
                forward_only.append(time.perf_counter() - start)
        session.add_point(training_point(session, times, losses, forward_only_s=forward_only))
