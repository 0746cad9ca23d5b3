"""From the figures of a few fresh processes a side to a ratio, its interval and a verdict.

Every figure is the median of one process. Processes differ by far more than their own intervals
show, so the error of a ratio comes from the processes: from pairs of neighbours in time where both
sides were measured in turn (drift cancels), from the spread on either side where the hosts differ,
or from a host's A/A runs. All is computed on logarithms, so a ratio and its inverse get the same
verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from siliconprof.stats import statistics

CONFIDENCE = 0.95  # of the interval that is shown, and within which `same` must lie
# The chance that a whole comparison of something with itself calls any point different. Half of
# what 95 % intervals would give, so that 50 such comparisons stay below 4 in 98 of 100 series.
FAMILY_ERROR = 0.02
LEAST_PROCESSES = 5  # a side
ROBUST_FROM = 7  # figures; fewer do not show which one is an outlier
REACH = 9  # median absolute deviations, about 6 standard deviations: outliers are further out

SAME, FASTER, SLOWER, AMBIGUOUS = "same", "faster", "slower", "ambiguous"


@dataclass(frozen=True)
class Estimate:
    """A logarithm with its standard error: of a mean, or of a ratio."""

    log: float
    error: float
    df: float  # degrees of freedom behind the error
    basis: str = ""  # where the error is from, for messages

    @property
    def ratio(self) -> float:
        """The ratio itself."""
        return math.exp(self.log)

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """The ratio's confidence interval, Student's t on its logarithm."""
        reach = student_quantile((1 + confidence) / 2, self.df) * self.error
        return math.exp(self.log - reach), math.exp(self.log + reach)

    def p_value(self) -> float:
        """Probability of a logarithm at least this far from 0 without a difference; two-sided."""
        if not self.error:
            return 1.0 if not self.log else 0.0
        return 2 * student_cdf(-abs(self.log) / self.error, self.df)


def geometric_mean(values: Sequence[float]) -> float:
    """Of at least one value; 0 where any is not above 0."""
    if min(values) <= 0:
        return 0.0
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def location(logs: Sequence[float]) -> Estimate:
    """The middle of a few logarithms: their mean, or from 7 values on Tukey's biweight.

    On a host that others use too, one process in ten is slower by half; a mean's error then hides
    every difference. The biweight gives such values no weight. Its error and degrees of freedom
    are Mosteller and Tukey's (Data Analysis and Regression, 1977, chapters 10 and 14): 95 %
    intervals of 7 or more normal values hold the truth in 94 to 95 %; with fewer they do not.
    Each value without weight takes two degrees of freedom more: where half of the values chance to
    lie close together others look like outliers, and the error is too small. With it p-values down to
    0.0004, which Holm's method asks for, come as often as they should.

    Raises:
        ValueError: fewer than two values, which have no spread.
    """
    n = len(logs)
    if n < 2:
        raise ValueError("at least two values")
    plain = Estimate(math.fsum(logs) / n, _deviation(logs) / math.sqrt(n), n - 1)
    middle = statistics.median(logs)
    scale = REACH * statistics.median([abs(value - middle) for value in logs])
    if n < ROBUST_FROM or not scale:
        return plain
    for _ in range(5):  # more change nothing that could be seen
        weights = [_inside(value - middle, scale) ** 2 for value in logs]
        middle = math.fsum(map(mul, weights, logs)) / math.fsum(weights)
    above = below = 0.0
    df = n - 1
    for value in logs:
        weight = _inside(value - middle, scale)
        if weight:
            above += (value - middle) ** 2 * weight**4
            below += weight * (5 * weight - 4)
        else:
            df -= 2
    error = math.sqrt(above / (below * max(1.0, below - 1)))
    return Estimate(middle, error, max(0.7 * df, 1.0))


def _inside(distance: float, scale: float) -> float:
    """1 - u^2 within the scale, 0 beyond."""
    return max(1 - (distance / scale) ** 2, 0.0)


def _deviation(values: Sequence[float]) -> float:
    """Standard deviation with n - 1 degrees of freedom."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def spread(logs: Sequence[float]) -> Estimate:
    """The mean of logarithms, with the standard deviation of a single value as its error.

    Outliers count in full, since a single process does not show whether it is one.
    """
    return Estimate(math.fsum(logs) / len(logs), _deviation(logs), len(logs) - 1)


def difference(a: Estimate, b: Estimate, basis: str) -> Estimate:
    """The ratio b / a of two independent means, degrees of freedom after Welch."""
    variances = a.error**2, b.error**2
    total = sum(variances)
    df = min(a.df, b.df)
    if total:
        df = total**2 / (variances[0] ** 2 / a.df + variances[1] ** 2 / b.df)
    return Estimate(b.log - a.log, math.sqrt(total), df, basis)


def neighbours(
    a: Sequence[tuple[str, float]], b: Sequence[tuple[str, float]]
) -> list[tuple[float, float]]:
    """Figures of either side that follow each other directly in time, each used once.

    Sides measured in turn (A B, B A, A B, …) give a pair a round; a side measured after the other
    gives one pair in all.

    Args:
        a: (when it was measured, ISO 8601 of one time zone; figure).
    """
    line = sorted([(at, "a", value) for at, value in a] + [(at, "b", value) for at, value in b])
    pairs = []
    index = 0
    while index + 1 < len(line):
        (_, first, one), (_, second, two) = line[index : index + 2]
        if first == second:
            index += 1
            continue
        pairs.append((one, two) if first == "a" else (two, one))
        index += 2
    return pairs


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for multiple comparisons (Holm, Scand. J. Statist. 6, 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def verdict(
    estimate: Estimate, adjusted_p: float, points: int, threshold: float
) -> tuple[str, str]:
    """(verdict, why) of a ratio of times.

    Args:
        adjusted_p: Holm's p-value among the comparison's points.
        threshold: the ratio's distance from 1 that matters, as a share.
    """
    low, high = estimate.interval()
    limit = 1 + threshold
    beyond = not low <= 1 <= high
    matters = abs(estimate.log) > math.log(limit)
    if matters and beyond and adjusted_p <= FAMILY_ERROR:
        return (SLOWER if estimate.log > 0 else FASTER), estimate.basis
    if 1 / limit <= low and high <= limit:
        return SAME, estimate.basis
    if not beyond:
        why = f"its interval contains 1 and reaches beyond the threshold of {100 * threshold:g} %"
        return AMBIGUOUS, f"{why}; more processes narrow it ({estimate.basis})"
    if not matters:
        why = "it differs from 1 by less than the threshold, but its interval reaches beyond it"
        return AMBIGUOUS, f"{why} ({estimate.basis})"
    among = f" among {points} points" if points > 1 else ""
    why = f"not significant{among}: p = {adjusted_p:.2g}, above {FAMILY_ERROR:g}"
    return AMBIGUOUS, f"{why}; more processes decide it ({estimate.basis})"


# -- Student's t -------------------------------------------------------------------------------


def student_cdf(t: float, df: float) -> float:
    """P(T <= t) of Student's distribution."""
    from scipy import special  # here, since a start of Snakemake reads noise floors by this module

    return float(special.stdtr(df, t))


def student_quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = p; 0 < p < 1."""
    from scipy import special

    return float(special.stdtrit(df, p))
