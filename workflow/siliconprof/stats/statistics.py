"""Robust statistics of repeated times, standard library only: MLX's processes load no numpy."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import mul
from typing import Any

BATCH_MEANS = 11  # of a series whose level may wander: an even number of degrees of freedom
WANDERS_BELOW = 1e-6  # the chance; neighbours with a correlation of 0.4 then seem to wander in one of 400 series
FEWEST_IN_ORDER = 10  # values needed to judge their order
COVERAGE = 0.94  # of an interval that is called one of 95 %, at least
NORMAL = 1.96  # standard deviations to either side that hold 95 % of a normal distribution
# Of trainings, a whole step and the next have a rank correlation of 0.2 in the median and up to 0.4 in
# nine of ten. This is the least that covers 94 % of an autoregressive series of 0.4, by simulation.
USUAL_INFLATION = 1.276
MOST_OF_CHANCE = 40  # values, up to which a correlation of 0.3 may be that of independent ones


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile (0 to 1) by linear interpolation, numpy's default rule.

    Raises:
        ValueError: there are no values.
    """
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


def median_interval(values: Sequence[float], inflation: float = 1.0) -> tuple[float, float]:
    """Distribution-free 95 % interval of the median from order statistics.

    Of independent values the number below the median is binomial(n, 1/2); see Conover, Practical
    Nonparametric Statistics, section 3.2. It is the shortest that covers 94 % at least, as far from
    the smallest as from the largest. With fewer than 6 no such interval exists, and the range is
    returned.

    Args:
        inflation: of the standard deviation of that number, by what neighbours have in common; 1 or
            more. Above 1 it is taken for normal.
    """
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        raise ValueError("no values")
    if inflation == 1.0:
        low = _below_tail((1 - COVERAGE) / 2, n) - 1
    else:
        low = math.floor((n - 1) / 2 - inflation * NORMAL * math.sqrt(n) / 2)
    low = max(low, 0)
    return ordered[low], ordered[n - 1 - low]


def block_median_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the median of times that resemble the times just before them.

    `median_interval`, widened by how much more the number of values below the median varies than
    that of independent values: by `USUAL_INFLATION`, and where more than `MOST_OF_CHANCE` values tell
    their own correlation from chance, by what the values themselves show (`block_inflation`) if that
    is more. With fewer than 8 values no such interval exists, and it is their range. Takes O(n log n).
    """
    seen = block_inflation(values) if len(values) > MOST_OF_CHANCE else 1.0
    return median_interval(values, max(seen, USUAL_INFLATION))


def block_inflation(values: Sequence[float]) -> float:
    """How much more the number of values below the median varies than independent ones' would.

    A circular block bootstrap (Politis and Romano 1992) draws blocks of neighbours, so what lasts
    longer than one repeat counts as often as it happened. How the number of values below the median
    varies from draw to draw follows from the blocks themselves, so nothing is drawn.

    1 for independent values or fewer than 8, sqrt of the block's length at most. The length is
    n^(1/3), or Carlstein's for an autoregressive series of the same lag-1 correlation where that
    is longer (Annals of Statistics 14, 1986, page 1171); a quarter of the values at most.
    """
    n = len(values)
    if n < 8:
        return 1.0
    middle = median(values)
    sides = [1 if value > middle else -1 if value < middle else 0 for value in values]
    total = sum(sides)
    variance = sum(map(abs, sides)) / n - (total / n) ** 2
    if variance <= 0:
        return 1.0
    product = sum(map(mul, sides, sides[1:])) / (n - 1) - (total / n) ** 2
    correlation = min(max(product / variance, 0.0), 0.99)
    carlstein = (math.sqrt(6) * correlation / (1 - correlation**2)) ** (2 / 3)
    length = min(max(round(max(carlstein, 1.0) * n ** (1 / 3)), 2), n // 4)
    sums = list(accumulate(sides + sides[:length], initial=0))
    expected = length * total / n
    blocks = [end - begin for begin, end in zip(sums[:n], sums[length:], strict=False)]
    block_variance = sum(map(mul, blocks, blocks)) / n - expected**2
    return max(math.sqrt(block_variance / (length * variance)), 1.0)


def drift(times: Sequence[float]) -> dict[str, Any] | None:
    """The second half of a series of times against its first; None with fewer than 10.

    `first_half_s`, `second_half_s`: medians; `ratio`: the second over the first; `significant`:
    whether the halves' 95 % intervals do not overlap, which asks for more than their difference
    being other than 0 at 5 %. Neighbours that resemble each other widen both, as in
    `block_median_interval`, but not by what a straight line through the half explains: such a
    trend is the drift itself.
    """
    if len(times) < FEWEST_IN_ORDER:
        return None
    first, second = times[: len(times) // 2], times[len(times) // 2 :]
    (low, high), (low_after, high_after) = (
        median_interval(half, block_inflation(_without_line(half))) for half in (first, second)
    )
    before_s, after_s = median(first), median(second)
    return {
        "first_half_s": before_s,
        "second_half_s": after_s,
        "significant": low_after > high or high_after < low,
        "ratio": after_s / before_s,
    }


def wandering(times: Sequence[float]) -> tuple[float, float] | None:
    """The lowest and highest median of a series' eleven equal parts, where its level wanders; else None.

    That is what neither two halves nor one change show: a level that falls and rises again. By the
    rank test of Kruskal and Wallis (Journal of the American Statistical Association 47, 1952, page 583),
    whose statistic is divided by the square of `block_inflation` of what is left of the values once the
    median of its part is taken off each; on 10 degrees of freedom its chance is that of `WANDERS_BELOW`. None
    below 55 values.
    """
    n = len(times)
    if n < 5 * BATCH_MEANS:
        return None
    ends = [i * n // BATCH_MEANS for i in range(BATCH_MEANS + 1)]
    parts = [times[begin:end] for begin, end in pairwise(ends)]
    ordered = sorted(times)
    ranks = [
        (bisect_left(ordered, t) + bisect_right(ordered, t) - n) / 2 for t in times
    ]  # middle 0
    between = sum(sum(ranks[b:e]) ** 2 / (e - b) for b, e in pairwise(ends))
    statistic = 12 / (n * (n + 1)) * between
    levels = [median(part) for part in parts]
    rest = [t - level for part, level in zip(parts, levels, strict=True) for t in part]
    half = statistic / block_inflation(rest) ** 2 / 2
    chance = math.exp(-half) * sum(
        half**k / math.factorial(k) for k in range((BATCH_MEANS - 1) // 2)
    )
    return (min(levels), max(levels)) if chance < WANDERS_BELOW else None


def _without_line(values: Sequence[float]) -> list[float]:
    """The values less a straight line of the slope that fits them best, by least squares."""
    middle = (len(values) - 1) / 2
    places = [i - middle for i in range(len(values))]
    slope = sum(map(mul, places, values)) / sum(map(mul, places, places))
    return [value - slope * place for value, place in zip(values, places, strict=True)]


def change_point(values: Sequence[float]) -> dict[str, Any] | None:
    """The likeliest place at which the level of times changes; None with fewer than 10 values.

    `after`: values before it; `before_s`, `after_s`: medians; `ratio`: the second over the first;
    `p`: probability of a change as clear as this one in a series without any.
    Pettitt's rank test (Applied Statistics 28, 1979, page 126) with his approximate p. It supposes
    independent values: the statistic is divided by `block_inflation` of what is left of the values
    once the median of its own side is taken off each. Takes O(n log n).
    """
    n = len(values)
    if n < FEWEST_IN_ORDER:
        return None
    ordered = sorted(values)
    # twice the mean rank of each value, minus (n + 1): the summand of Pettitt's U
    scores = [bisect_left(ordered, v) + bisect_right(ordered, v) - n for v in values]
    sums = list(accumulate(scores))[:-1]
    place = max(range(n - 1), key=lambda i: abs(sums[i]))
    before, after = values[: place + 1], values[place + 1 :]
    levels = median(before), median(after)
    rest = [v - levels[0] for v in before] + [v - levels[1] for v in after]
    statistic = abs(sums[place]) / block_inflation(rest)
    p = min(2 * math.exp(-6 * statistic**2 / (n**3 + n**2)), 1.0)
    return {
        "after": place + 1,
        "before_s": levels[0],
        "after_s": levels[1],
        "p": p,
        "ratio": levels[1] / levels[0],
    }


def _below_tail(tail: float, n: int) -> int:
    """The largest r with P(X < r) <= tail for X binomial(n, 1/2).

    Called while a cell measures, so it starts ten standard deviations below the middle, where the
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


def divided(value: float | None, by: float | None) -> float | None:
    """A quotient; None where a value is missing, the divisor is 0 or the result is not finite."""
    if value is None or not by:
        return None
    quotient = value / by
    return quotient if math.isfinite(quotient) else None
