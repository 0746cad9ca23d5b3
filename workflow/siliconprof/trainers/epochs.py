"""Whole trainings by epochs, as Keras's `fit` runs them: the study of Daniel 2023.

Every batch size of the cell is a training of its own from the same weights: a point. Its first
steps warm up, then per-phase and whole ones alternate until the timing plan has enough. The
validation part follows an epoch and is timed too. With `max_steps` one validation follows and an
epoch is extrapolated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from siliconprof.errors import UserError
from siliconprof.session import sweep
from siliconprof.session.cell_run import CellRun
from siliconprof.session.energy import EnergyMeter
from siliconprof.session.timing import Plan
from siliconprof.stats import statistics
from siliconprof.trainers.base import StepSchedule, Trainer
from siliconprof.trainers.plain import forward_only
from siliconprof.workloads._classic import FEWEST_EPOCH_STEPS

if TYPE_CHECKING:
    import numpy as np


def evaluate(
    cell_run: CellRun, stepper: Any, part: str, most: int | None
) -> tuple[list[float], dict[str, Any]]:
    """(seconds of every batch; mean `loss`, `accuracy` and `samples` of a part, {} without any).

    Args:
        most: batches at most; None = all.
    """
    workload = cell_run.workload
    batches = cell_run.data.part_batches(part, workload.batch_size)
    batch_s: list[float] = []
    losses_sum, right, samples = 0.0, 0, 0
    while most is None or len(batch_s) < most:
        cell_run.progress(part, len(batch_s))
        start = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        losses, hits = loss_and_hits(stepper.inference.outputs(batch), batch["labels"])
        batch_s.append(time.perf_counter() - start)
        losses_sum, right = losses_sum + losses, right + hits
        samples += len(batch["labels"])
    cell_run.timed(sum(batch_s))
    if not samples:
        return batch_s, {}
    result = {"loss": losses_sum / samples, "accuracy": right / samples, "samples": samples}
    return batch_s, result


def loss_and_hits(logits: np.ndarray, labels: np.ndarray) -> tuple[float, int]:
    """(summed cross-entropy in nats, correct predictions) of logits (B, classes), labels (B,)."""
    import numpy as np

    logits = logits.astype(np.float64)
    highest = logits.max(axis=1)
    logarithms = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1))
    losses = logarithms - logits[np.arange(len(labels)), labels]
    return float(losses.sum()), int((logits.argmax(axis=1) == labels).sum())


WARM_UP_SHARE = 1 / 2  # of all steps, at most
EPOCHS_METHOD = {
    "split": "after the warm-up per-phase and whole steps alternate until the timing plan has "
    "enough, and all others are whole; forward_only_s is the check",
    "epoch": "measured: the sum of its steps' times, warm-up and split steps of the first epoch "
    "and a smaller last batch included, and of its validation batches'; extrapolated: median "
    "whole step x steps, a smaller last batch counted as a whole one, plus, where not all "
    "validation batches were run, their median without the first x their number",
    "validation": "batches of the training's batch size are fetched and evaluated without "
    "training; the host computes loss and accuracy from the logits. The same for the test, which "
    "is not part of an epoch",
}


class Plugin(Trainer):
    """epochs"""

    # It would be useless for networks of megabytes.
    cannot_offload = "trainer epochs trains on the device alone"

    def run(self, cell_run: CellRun) -> None:
        """A point for every batch size."""
        cell = cell_run.workload
        sizes = cell.parameters["batch_sizes"]
        cell_run.method |= EPOCHS_METHOD | {"weights": cell.weights.origin()}
        try:
            for place, batch_size in enumerate(sizes):
                workload = type(cell)({**cell.parameters, "batch_size": batch_size})
                cell_run.workload = workload
                params = {"batch_size": batch_size, "network": workload.network}
                n_parameters = workload.weights.n_parameters()
                params |= {"n_parameters": n_parameters, "samples_per_step": batch_size}
                measured = partial(fit, cell_run, new_meter=place > 0)
                sweep.point(cell_run, f"batch_size={batch_size}", {"params": params}, measured)
        finally:
            cell_run.workload = cell


def fit(cell_run: CellRun, new_meter: bool) -> dict[str, Any]:
    """The point of one batch size; all but the cell's first have an energy meter of their own."""
    if cell_run.energy is not None and new_meter:
        cell_run.energy = EnergyMeter(cell_run.backend, Plan.of(cell_run.cell.timing))
        cell_run.energy.idle("before")
    return Fit(cell_run).run()


class Fit(StepSchedule):
    """One training with a fixed number of steps, from its weights to its point.

    Raises:
        UserError: it has too few steps on whole batches.
    """

    def __init__(self, cell_run: CellRun) -> None:
        super().__init__(cell_run)
        workload = cell_run.workload
        self.workload = workload
        self.parameters = workload.parameters
        self.max_steps = self.parameters["max_steps"]
        counts, batch_size = cell_run.data.counts, workload.batch_size
        n_train = counts["train"]
        self.epoch_steps = math.ceil(n_train / batch_size)  # with that on a smaller last batch
        self.total = self.max_steps or self.parameters["epochs"] * self.epoch_steps
        self.leaves_rest = n_train % batch_size > 0
        self.whole = self.total - self.leaves_rest * (self.total // self.epoch_steps)
        if self.whole < FEWEST_EPOCH_STEPS:
            raise UserError(
                f"batch_sizes: {batch_size} makes {self.whole} whole batches of {n_train} images "
                f"in {self.total} steps; expected at least {FEWEST_EPOCH_STEPS}: a smaller batch size, "
                "more epochs, or more images (n_train)"
            )
        self.validation_steps = math.ceil(counts["validation"] / batch_size)
        # Of whole batches only, for the steps after the training.
        self.whole_batches = cell_run.data.batches(batch_size, cell_run.cell.seed)
        cell_run.progress("build the model", 0)
        self.stepper: Any = cell_run.backend.stepper(workload, cell_run.cell.seed)
        self.partial_step_s: list[float] = []
        self.train_s: list[float] = []  # one entry per epoch, as in the next list
        self.validation_s: list[float] = []
        self.validated_steps = 0  # in the last validation
        self.evaluations: list[dict[str, Any]] = []

    def next_kind(self) -> str | None:
        """`partial` is a step on a smaller last batch; unsynchronised steps come later."""
        done = len(self.losses)
        if done >= self.total or (self.max_steps and self.overran):
            return None
        if self.leaves_rest and (done + 1) % self.epoch_steps == 0:
            return "partial"
        most = WARM_UP_SHARE * self.whole
        if len(self.pace.warmup_times) < most and self.pace.warming_up():
            return "warm-up"
        times, pace = self.times, self.pace
        paired = len(times.step_s) <= len(times.whole_step_s)
        return "split" if paired and not (pace.stopped_by or pace.done()) else "whole"

    def end(self, loss: Callable[[], float]) -> None:
        super().end(loss)
        if self._kind == "partial":
            self.partial_step_s.append(self.step_s)
            self.cell_run.timed(self.step_s)

    def run(self) -> dict[str, Any]:
        """Train, validate and test; return the point."""
        cell_run = self.cell_run
        batches = self.workload.batches(cell_run.data, cell_run.cell.seed)
        cell_run.backend.memory.reset_peak()
        spent_s = 0.0
        while kind := self.next_kind():
            self.step(kind, self.stepper, batches)
            spent_s += self.step_s
            if self.max_steps is None and len(self.losses) % self.epoch_steps == 0:
                self.train_s.append(spent_s)
                spent_s = 0.0
                self.validate()
        cell_run.under_way = False
        if self.max_steps is not None:
            median_s = statistics.median(self.times.whole_step_s)
            self.train_s.append(median_s * self.epoch_steps)
            self.validate()
        trained_steps = len(self.losses)
        _, tested = evaluate(cell_run, self.stepper, "test", self.parameters["max_test_steps"])
        self.run_freely(self.stepper, self.whole_batches)
        batch = next(self.whole_batches)
        cell_run.evidence |= self.stepper.inference.dtypes(batch)
        extra = {}
        if not self.overran:
            extra["forward_only_s"] = forward_only(cell_run, self.stepper, batch)
        point = self.point(**extra)
        self.watch_more(point, self.stepper, self.whole_batches)
        if tested:
            point["test"] = tested | {"trained_steps": trained_steps}
        return point

    def validate(self) -> None:
        """Validate; the time is extrapolated to the whole part where only some batches are run."""
        most = self.parameters["max_validation_steps"]
        batch_s, result = evaluate(self.cell_run, self.stepper, "validation", most)
        whole_s = spent_s = sum(batch_s)
        if 0 < len(batch_s) < self.validation_steps:
            warm = batch_s[1:] or batch_s  # the first batch warms up
            whole_s = statistics.median(warm) * self.validation_steps
        self.validation_s.append(whole_s)
        self.validated_steps = len(batch_s)
        if result:
            result["seconds"] = spent_s
            del result["samples"]
            self.evaluations.append({"step": len(self.losses), **result})

    def point(self, **extra: list[float]) -> dict[str, Any]:
        if self.partial_step_s:
            extra["partial_step_s"] = self.partial_step_s
        point = super().point(**extra)
        if point["stopped_by"] is None or (self.overran and not self.max_steps):
            point["stopped_by"] = "max_iterations"  # all steps of all epochs were run
        point["params"]["network"] = self.workload.network
        point["evaluations"] = self.evaluations
        steps, by_epochs = self.epoch_steps, self.max_steps is None
        whole = by_epochs and self.validated_steps == self.validation_steps
        point["epoch"] = {
            "means": "measured" if whole else "extrapolated",
            "steps": steps,
            "measured_steps": steps if by_epochs else len(self.times.whole_step_s),
            "validation_steps": self.validation_steps,
            "measured_validation_steps": self.validated_steps,
            "train_s": self.train_s,
            "validation_s": self.validation_s,
            "epoch_s": [sum(both) for both in zip(self.train_s, self.validation_s, strict=True)],
        }
        return point
