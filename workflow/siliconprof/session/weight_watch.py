"""Checks that a training step trains: a whole step must change every trainable weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from siliconprof.session.cell_run import CellRun
from siliconprof.session.self_checks import Check, not_checked, verdict

MOST_STEPS = 8  # that are watched: a gradient scaler may skip some
MOST_NAMES = 4  # of weights, in a reason
CHANGES_NOTHING = "a whole step changes none of the weights that it is said to train"
UNCHANGED_FLAG = "weights_unchanged"


class WeightWatch:
    """Compares the weights of one training before and after whole steps, outside of what is timed.

    Args:
        workload: what is trained.
        weights: returns the current trained weights by name, arrays of the run's framework.
    """

    def __init__(
        self, cell_run: CellRun, workload: Any, weights: Callable[[], Mapping[str, Any]]
    ) -> None:
        self.cell_run, self.weights = cell_run, weights
        self._rate = workload.optimizer_settings(cell_run.cell.precision)["lr"]
        self.unchanged: set[str] | None = None  # by any watched step; None = none was watched
        self._steps = 0
        self._before: dict[str, Any] = {}

    @property
    def due(self) -> bool:
        """Whether the next whole step is to be watched."""
        return self.unchanged is None or (bool(self.unchanged) and self._steps < MOST_STEPS)

    def before(self) -> None:
        """Remember the weights before a step."""
        self._before = self._values()

    def after(self) -> None:
        """Compare the weights after the step."""
        before, after = self._before, self._values()
        same = {name for name in before if (before[name] == after[name]).all()}
        same -= {name for name in same if self._is_rounded_away(before[name], name)}
        self.unchanged = same if self.unchanged is None else self.unchanged & same
        self._before, self._steps = {}, self._steps + 1

    def facts(self) -> dict[str, Any]:
        """The point's `trained`: the number of weights, and those that no watched step changed.

        Raises:
            ArithmeticError: no step has changed any.
        """
        if self.unchanged is None or not (names := [*self.weights()]):
            return {}
        if len(self.unchanged) == len(names):
            raise ArithmeticError(CHANGES_NOTHING)
        return {"trained": {"weights": len(names), "unchanged": sorted(self.unchanged)}}

    def _values(self) -> dict[str, Any]:
        sampled = self.cell_run.backend.arrays.sampled
        return {name: sampled(weight) for name, weight in self.weights().items()}

    def _is_rounded_away(self, values: Any, name: str) -> bool:
        """Whether AdamW's step, about the learning rate, is less than half of the last digit."""
        digit = {"bfloat16": 2.0**-8, "float16": 2.0**-11}.get(
            str(self.weights()[name].dtype).rpartition(".")[2], 2.0**-24
        )
        return bool(abs(values).min() * digit / 2 > self._rate)


def check(cell_run: CellRun) -> Check:
    """Check that whole steps changed every trained weight; flag the cell where not."""
    found = [point["trained"] for point in cell_run.points if point.get("trained")]
    names = sorted({name for one in found for name in one["unchanged"]})
    weights = max((one["weights"] for one in found), default=0)
    if not found:
        return not_checked("no whole step was watched", weights=weights)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    reason = f"no whole step changes {', '.join(names[:MOST_NAMES])}{more}" if names else None
    if reason:
        cell_run.flag(UNCHANGED_FLAG, reason)
    return verdict(reason, weights=weights)
