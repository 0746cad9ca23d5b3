"""A straight line through step times over batch sizes: what is fixed, and what each sample adds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

NORMAL = 1.959964  # 97.5 % of a normal distribution lie below


class Share(NamedTuple):
    """Part of a step, 0 to 1, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """t(B) = fixed_s + per_sample_s · B."""

    fixed_s: float
    per_sample_s: float
    fixed_error_s: float  # standard errors
    per_sample_error_s: float
    covariance: float
    residual: float | None  # rms of (t - line) / t; None where two points leave none

    def interval_s(self) -> tuple[float, float]:
        """95 % interval of `fixed_s`."""
        reach = NORMAL * self.fixed_error_s
        return self.fixed_s - reach, self.fixed_s + reach

    def fixed_share(self, batch: float) -> Share:
        """The share of `fixed_s` in a step of a batch size, 0 to 1.

        Its interval is to first order in the errors of the line, cut off at 0 and 1.
        """
        variable_s = self.per_sample_s * batch
        step_s = self.fixed_s + variable_s
        if step_s <= 0:  # the line is off by the whole step at this end
            return Share(0.0, 0.0, 1.0)
        variance = (
            (variable_s * self.fixed_error_s) ** 2
            + (self.fixed_s * batch * self.per_sample_error_s) ** 2
            - 2 * variable_s * self.fixed_s * batch * self.covariance
        )
        reach = NORMAL * math.sqrt(max(variance, 0.0)) / step_s**2
        share = self.fixed_s / step_s
        return Share(*(min(max(x, 0.0), 1.0) for x in (share, share - reach, share + reach)))


def fit(batches: Sequence[float], times: Sequence[float], errors: Sequence[float]) -> Line | None:
    """Weighted least squares; None with fewer than two batch sizes.

    Where points lie further from the line than their errors explain, the line's errors grow in
    proportion (reduced chi-square above 1).

    Args:
        batches: batch sizes, as long as `times` and `errors`.
        times: seconds of a step.
        errors: their standard errors, seconds, above 0.
    """
    if len(set(batches)) < 2:
        return None
    weights = [error**-2 for error in errors]

    def total(*factors: Sequence[float]) -> float:
        return math.fsum(math.prod(parts) for parts in zip(*factors, strict=True))

    s, sx, sy = total(weights), total(weights, batches), total(weights, times)
    sxx, sxy = total(weights, batches, batches), total(weights, batches, times)
    determinant = s * sxx - sx**2
    fixed, slope = (sxx * sy - sx * sxy) / determinant, (s * sxy - sx * sy) / determinant
    residuals = [t - fixed - slope * b for b, t in zip(batches, times, strict=True)]
    degrees_of_freedom = len(times) - 2
    inflation = (
        max(total(weights, residuals, residuals) / degrees_of_freedom, 1.0)
        if degrees_of_freedom
        else 1.0
    )
    relative = [o / t for o, t in zip(residuals, times, strict=True)]
    return Line(
        fixed,
        slope,
        math.sqrt(inflation * sxx / determinant),
        math.sqrt(inflation * s / determinant),
        -inflation * sx / determinant,
        math.sqrt(math.fsum(r * r for r in relative) / len(relative))
        if degrees_of_freedom
        else None,
    )
