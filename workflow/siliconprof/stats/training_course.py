"""Readings off the course of a training: until when the gradient norm was elevated, when the loss
had converged, whether it diverged.

One definition for the page, which draws them, and for the claims, which are judged by them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from siliconprof.stats import statistics

LAST_SHARE = 10  # the last tenth of the steps stands for the end: single losses scatter


def final_loss(losses: Sequence[float]) -> float:
    """Mean over the last tenth of the steps, one at least."""
    last = losses[-max(1, len(losses) // LAST_SHARE) :]
    return math.fsum(last) / len(last) if all(map(math.isfinite, last)) else math.nan


def outcome(losses: Sequence[float]) -> dict[str, Any]:
    """`diverged`, `reason` and `final_loss` of a training, the losses of its steps in order.

    A training diverged if a loss is not finite or its final loss is above the first one. That is a
    result, not a failure.
    """
    final, reason = final_loss(losses), None
    bad_step = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if bad_step is not None:
        reason = f"the loss of step {bad_step} is not finite"
    elif final > losses[0]:
        reason = (
            f"the mean loss of the last tenth of the steps, {final:.4g}, is above the first one, "
            f"{losses[0]:.4g}"
        )
    return {
        "diverged": reason is not None,
        "reason": reason,
        "final_loss": final if math.isfinite(final) else None,
    }


SMOOTHED_OVER = 40  # so many stretches of a run keep their shape when it is smoothed
ELEVATED_FACTOR = 2.0  # times its usual level, from which on a gradient norm counts as elevated
LEAST_STEPS = 10  # of a course that readings are taken from
# A loss has settled when it changes by no more than this share of its whole fall over the last
# stretch; while it still falls, its end is unknown.
SETTLED_SHARE = 0.02
NEAR_SHARE = 0.05  # converged: all but this share of the whole fall is behind
MEDIAN_ERROR = math.sqrt(math.pi / 2)  # of a median over that of a mean, normal values


class Reading(NamedTuple):
    """A number read off a course, its range, and a remark on what else is uncertain.

    The range is that of noise and of what the course resolves: a step cannot be told more closely
    than over how many steps the course is smoothed.
    """

    middle: float
    low: float
    high: float
    remark: str = ""


def stretch(n: int) -> int:
    """The number of steps over which a course is smoothed."""
    return max(1, n // SMOOTHED_OVER)


def smoothed(values: Sequence[float]) -> list[float]:
    """The mean over a stretch of steps around each value, shorter at both ends; as many values.

    NaN and infinity are left out of the means; where nothing is left, the mean is NaN.
    """
    import pandas as pd  # not needed where a cell is measured

    finite = pd.Series([value if math.isfinite(value) else math.nan for value in values])
    width = stretch(len(values))
    return [*finite.rolling(width, center=True, min_periods=1).mean()] if width > 1 else [*values]


def running_median(values: Sequence[float]) -> list[float]:
    """The median over a twentieth of the steps around each, which a lone spike does not move."""
    import pandas as pd

    half = _window(len(values)) // 2
    padded = pd.Series([values[0]] * half + [*values] + [values[-1]] * half)
    return [*padded.rolling(2 * half + 1, center=True).median()[half:-half]]


def _window(n: int) -> int:
    """The width of the running median in steps, an odd number."""
    return max(5, n // 20) | 1


def _noise(values: Sequence[float], means: Sequence[float], over: int) -> float:
    """Half the 95 % interval of a smoothed value, from the residuals of single steps."""
    rest = [value - mean for value, mean in zip(values, means, strict=True)]
    spread = math.sqrt(math.fsum(r * r for r in rest) / max(1, len(rest) - 1))
    return statistics.NORMAL * spread / math.sqrt(over)


def elevated_until(norms: Sequence[float]) -> Reading | None:
    """The last step whose gradient norm is well above its later level; None if unknown.

    The norm is a running median; the level is the median over the second half of the run. Steps
    count from 1; 0 means never.
    """
    if len(norms) < LEAST_STEPS or not all(map(math.isfinite, norms)):
        return None
    limit = ELEVATED_FACTOR * statistics.median(norms[len(norms) // 2 :])
    middles = running_median(norms)
    noise = MEDIAN_ERROR * _noise(norms, middles, _window(len(norms)))

    def last(shift: float) -> float:
        above = [step for step, mean in enumerate(middles, 1) if mean + shift > limit]
        return float(above[-1]) if above else 0.0

    middle, half = last(0.0), _window(len(norms)) // 2
    low, high = min(middle, last(-noise)) - half, max(middle, last(noise)) + half
    return Reading(middle, max(low, 0.0), high)


def converged_at(losses: Sequence[float]) -> Reading | None:
    """The first step at which the smoothed loss is near where the run ends; None if unknown.

    While it still falls at the end of the run, the step may be any later one.
    """
    if len(losses) < LEAST_STEPS or not all(map(math.isfinite, losses)):
        return None
    means = smoothed(losses)
    tenth, fifth = max(1, len(losses) // 10), max(1, len(losses) // 5)
    level = math.fsum(losses[-tenth:]) / tenth
    change = (math.fsum(losses[-2 * fifth : -fifth]) - math.fsum(losses[-fifth:])) / fifth
    fall = means[0] - level
    if fall <= 0:
        return None
    target = level + NEAR_SHARE * fall
    noise = _noise(losses, means, stretch(len(losses)))

    def first(shift: float) -> float:
        below = (step for step, mean in enumerate(means, 1) if mean + shift <= target)
        return float(next(below, len(losses)))

    width = stretch(len(losses))
    middle, low, high = first(0.0), first(-noise) - width, first(noise) + width
    remark = _unsettled(change, fall, "the last two fifths of the steps")
    if not remark and middle > len(losses) - tenth:
        remark = "the loss came near its end only in the steps that the end is taken from"
    return Reading(middle, max(low, 0.0), math.inf if remark else high, remark)


def settled_loss(losses: Sequence[float], least: bool = False) -> Reading | None:
    """The level at which the loss of several evaluations in order settles; None if unknown.

    Its uncertainty is the change between the last two. While it still falls, it may end anywhere
    below.

    Args:
        least: the lowest of all instead of the last.
    """
    if len(losses) < 3 or not all(map(math.isfinite, losses)):
        return None
    last, change = losses[-1], losses[-2] - losses[-1]
    settled = min(losses) if least else last
    fall = losses[0] - min(losses)
    if fall <= 0:
        return None
    remark = _unsettled(change, fall, "its last two evaluations")
    low = 0.0 if remark else settled - abs(change)
    return Reading(settled, low, settled + abs(change), remark)


def _unsettled(change: float, fall: float, where: str) -> str:
    """A remark that a loss still falls; empty when it has settled."""
    if change <= SETTLED_SHARE * fall:
        return ""
    return f"the loss still fell by {change / fall:.0%} of its whole fall between {where}"
