"""Intervals between processes: of logarithms, a ratio and its inverse have the same one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

CONFIDENCE = 0.95  # of the interval that is shown
WITHIN = "within one process"
NORMAL_DF = 1000.0  # degrees of freedom from which Student's t is a normal distribution


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of at least one value; 0 where any is not above 0."""
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
    reach = half_width_factor(n - 1) * error
    return mean, mean - reach, mean + reach


def degrees_of_freedom(processes: Any) -> Any:
    """Degrees of freedom of times by their number of processes, a series; one process counts as normal."""
    return (processes - 1).where(processes > 1, NORMAL_DF).astype(float)


def basis(processes: Any) -> Any:
    """`within one process` or `between 5 processes`: what an interval is, a series."""
    between = "between " + processes.astype("Int64").astype("str") + " processes"
    return between.where(processes > 1, WITHIN)


def half_width_factor(df: Any, confidence: float = CONFIDENCE) -> Any:
    """Standard errors from the middle of Student's t interval to its end, by degrees of freedom."""
    from scipy import special

    return special.stdtrit(df, (1 + confidence) / 2)
