"""Intervals between processes: of logarithms, a ratio and its inverse have the same one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

CONFIDENCE = 0.95  # of the interval that is shown


def geometric_mean(values: Sequence[float]) -> float:
    """Of at least one value; 0 where any is not above 0."""
    if min(values) <= 0:
        return 0.0
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def between_processes(medians: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of at least two processes' medians, all above 0, and its interval's ends."""
    middle, low, high = map(math.exp, mean_and_interval([math.log(value) for value in medians]))
    return middle, low, high


def mean_and_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of at least two values, and its interval's ends by Student's t."""
    n, mean = len(values), math.fsum(values) / len(values)
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    reach = student_quantile((1 + CONFIDENCE) / 2, n - 1) * error
    return mean, mean - reach, mean + reach


def student_quantile(p: float, df: Any) -> Any:
    """The t with P(T <= t) = p, 0 < p < 1, of each number of degrees of freedom."""
    from scipy import special

    return special.stdtrit(df, p)
