"""Robust statistics of repeated times, standard library only (bare hosts have no numpy)."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile (0 to 1) by linear interpolation, numpy's default rule."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return quantile(values, 0.5)


def iqr(values: Sequence[float]) -> float:
    """Inter-quartile range, third quartile minus first."""
    return quantile(values, 0.75) - quantile(values, 0.25)


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Distribution-free confidence interval of the median from order statistics.

    The number of values below the median is binomial(n, 1/2); see Conover, Practical
    Nonparametric Statistics, section 3.2. With fewer than 6 values no 95 % interval exists and
    the range is returned.
    """
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        raise ValueError("no values")
    tail = (1 - confidence) / 2
    cumulative = 0.0
    low = 0
    for k in range(n // 2 + 1):
        cumulative += math.comb(n, k) * 0.5**n if n < 1000 else _normal_term(n, k)
        if cumulative > tail:
            break
        low = k + 1
    low = max(low - 1, 0)
    return ordered[low], ordered[n - 1 - low]


def _normal_term(n: int, k: int) -> float:
    """P(X = k) for binomial(n, 1/2), by logarithms, which do not overflow."""
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2)
    return math.exp(log)
