"""Whether a training step trains: a whole one changes every weight that it is said to train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from siliconprof.session.cell_run import CellRun
from siliconprof.session.self_checks import Check, not_checked, verdict

MOST_STEPS = 8  # of one training that are watched: a gradient scaler leaves some out
MOST_NAMES = 4  # of weights, in a reason
CHANGES_NOTHING = "a whole step changes none of the weights that it is said to train"
UNCHANGED_FLAG = "weights_unchanged"


class WeightWatch:
    """Watches the weights of one training around whole steps, outside of what is timed.

    Args:
        workload: what is trained.
        weights: the trained weights of the moment by name, arrays of the run's framework.
    """

    def __init__(
        self, cell_run: CellRun, workload: Any, weights: Callable[[], Mapping[str, Any]]
    ) -> None:
        self.cell_run, self.weights = cell_run, weights
        self._rate = workload.optimizer_settings(cell_run.cell.precision)["lr"]
        self.unchanged: set[str] | None = None  # by every step so far; None: none was watched
        self._steps = 0
        self._before: dict[str, Any] = {}

    @property
    def due(self) -> bool:
        """Whether the next whole step is to be watched."""
        return self.unchanged is None or (bool(self.unchanged) and self._steps < MOST_STEPS)

    def before(self) -> None:
        """A step begins."""
        self._before = self._values()

    def after(self) -> None:
        """The step is over."""
        before, after = self._before, self._values()
        same = {name for name in before if (before[name] == after[name]).all()}
        same -= {name for name in same if self._is_rounded_away(before[name], name)}
        self.unchanged = same if self.unchanged is None else self.unchanged & same
        self._before, self._steps = {}, self._steps + 1

    def facts(self) -> dict[str, Any]:
        """Of the training's point: how many weights there are, and which no step has changed.

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
    """Whether every trained weight was changed by a whole step; a flag where not."""
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
