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
        """The part of the line at a batch size that does not grow with it.

        Its error is to first order in those of the line. A part lies between none and all.
        """
        variable = self.per_sample_s * batch
        whole = self.fixed_s + variable
        if whole <= 0:  # the line misses a step at this end by all of it
            return Share(0.0, 0.0, 1.0)
        variance = (
            (variable * self.fixed_error_s) ** 2
            + (self.fixed_s * batch * self.per_sample_error_s) ** 2
            - 2 * variable * self.fixed_s * batch * self.covariance
        )
        reach = NORMAL * math.sqrt(max(variance, 0.0)) / whole**2
        share = self.fixed_s / whole
        return Share(*(min(max(x, 0.0), 1.0) for x in (share, share - reach, share + reach)))


def fit(batches: Sequence[float], times: Sequence[float], errors: Sequence[float]) -> Line | None:
    """Weighted least squares; None with fewer than two batch sizes.

    Where points lie further from the line than their errors explain, the line's errors grow with
    that (reduced chi-square above 1).

    Args:
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
    off = [t - fixed - slope * b for b, t in zip(batches, times, strict=True)]
    spare = len(times) - 2
    inflation = max(total(weights, off, off) / spare, 1.0) if spare else 1.0
    relative = [o / t for o, t in zip(off, times, strict=True)]
    return Line(
        fixed,
        slope,
        math.sqrt(inflation * sxx / determinant),
        math.sqrt(inflation * s / determinant),
        -inflation * sx / determinant,
        math.sqrt(math.fsum(r * r for r in relative) / len(relative)) if spare else None,
    )
