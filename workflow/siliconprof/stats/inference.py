"""Logarithms with their errors: a ratio and its inverse have the same interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95  # of the interval that is shown


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


def geometric_mean(values: Sequence[float]) -> float:
    """Of at least one value; 0 where any is not above 0."""
    if min(values) <= 0:
        return 0.0
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def between_processes(medians: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of at least two processes' medians, all above 0, and its interval's ends."""
    logs = [math.log(value) for value in medians]
    n, mean = len(logs), math.fsum(logs) / len(logs)
    error = math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / (n - 1) / n)
    estimate = Estimate(mean, error, n - 1)
    return estimate.ratio, *estimate.interval()


def difference(a: Estimate, b: Estimate, basis: str) -> Estimate:
    """The ratio b / a of two independent means, degrees of freedom after Welch."""
    variances = a.error**2, b.error**2
    total = sum(variances)
    df = min(a.df, b.df)
    if total:
        df = total**2 / (variances[0] ** 2 / a.df + variances[1] ** 2 / b.df)
    return Estimate(b.log - a.log, math.sqrt(total), df, basis)


def student_quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = p; 0 < p < 1."""
    from scipy import special

    return float(special.stdtrit(df, p))
