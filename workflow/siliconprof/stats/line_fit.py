"""A straight line through step times over batch sizes: what is fixed, and what each sample adds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

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
    covariance: Any  # 2 × 2, of per_sample_s and fixed_s
    residual: float | None  # rms of (t - line) / t; None where two points leave none

    def fixed_share(self, batch: float) -> Share:
        """The share of `fixed_s` in a step of a batch size, 0 to 1.

        Its interval is to first order in the errors of the line, cut off at 0 and 1.
        """
        variable_s = self.per_sample_s * batch
        step_s = self.fixed_s + variable_s
        if step_s <= 0:  # the line is off by the whole step at this end
            return Share(0.0, 0.0, 1.0)
        gradient = np.array([-self.fixed_s * batch, variable_s]) / step_s**2
        reach = NORMAL * math.sqrt(max(gradient @ self.covariance @ gradient, 0.0))
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
    seconds, weights = np.array(times), 1 / np.array(errors)
    line, covariance = np.polyfit(batches, seconds, 1, w=weights, cov="unscaled")
    residuals, residual = seconds - np.polyval(line, batches), None
    if degrees_of_freedom := len(times) - 2:
        covariance *= max(((residuals * weights) ** 2).sum() / degrees_of_freedom, 1.0)
        residual = float(np.sqrt(((residuals / seconds) ** 2).mean()))
    return Line(float(line[1]), float(line[0]), covariance, residual)
