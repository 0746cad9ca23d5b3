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
    low = max(_below_tail((1 - confidence) / 2, n) - 1, 0)
    return ordered[low], ordered[n - 1 - low]


def _below_tail(tail: float, n: int) -> int:
    """The largest r with P(X < r) <= tail for X binomial(n, 1/2).

    Called after every repeat, so it starts ten standard deviations below the middle, where the
    probability of all that it leaves out is under 1e-22, and goes up term by term.
    """
    k = max(n // 2 - 5 * math.isqrt(n), 0)
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2)
    term = math.exp(log)
    cumulative = term
    while cumulative <= tail:
        term *= (n - k) / (k + 1)
        k += 1
        cumulative += term
    return k
