"""Figures with their uncertainty, and the region of figures that agree with a claim.

Figures are a frame, a line each, whose columns are the fields of `Figure`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from siliconprof.stats import inference

AGREES, AGAINST, OPEN = "agrees", "against", "open"


class Figure(NamedTuple):
    """A number with its uncertainty: the ends of an interval, or the error of its logarithm."""

    middle: float = math.nan
    low: float = math.nan
    high: float = math.nan
    basis: str = ""  # the source of the error
    remark: str = ""  # another reason why it is uncertain
    error: float = math.nan  # standard error of the logarithm; the ends count where there is none
    df: float = math.nan  # degrees of freedom behind it
    word: str = ""  # of a finding, in place of a number
    why_not: str = ""  # why there is no figure


FIGURE_TYPES = dict.fromkeys(("middle", "low", "high", "error", "df"), float)


def frame(index: pd.Index, **fields: Any) -> pd.DataFrame:
    """Figures of some rows; each field is one value for all, or a value for each."""
    return pd.DataFrame(Figure()._asdict() | fields, index).astype(FIGURE_TYPES)


def exact(values: pd.Series, basis: Any, why_not: Any) -> pd.DataFrame:
    """Figures without a spread."""
    return frame(values.index, middle=values, low=values, high=values, basis=basis, why_not=why_not)


def listed(index: pd.Index, each: Sequence[Figure]) -> pd.DataFrame:
    """Figures that were made one by one."""
    return pd.DataFrame(each, index, Figure._fields).astype(FIGURE_TYPES)


def interval(
    figures: pd.DataFrame, confidence: float = inference.CONFIDENCE
) -> tuple[np.ndarray, np.ndarray]:
    """The ends of their intervals at a confidence of 0 to 1; given ends are returned unchanged."""
    middle, low, high, error, df = figures[[*FIGURE_TYPES]].to_numpy().T
    reach = np.exp(inference.half_width_factor(df, confidence) * error)
    is_given = np.isnan(error)
    return np.where(is_given, low, middle / reach), np.where(is_given, high, middle * reach)


def joined(texts: Iterable[str]) -> str:
    """Texts that are not empty, each once."""
    return "; ".join(dict.fromkeys(filter(None, texts)))


def _quotient(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.where(lower == 0, math.inf, upper / lower)


def _both(a: pd.DataFrame, b: pd.DataFrame) -> dict[str, list[str]]:
    names = ("basis", "remark")
    return {name: list(map(joined, zip(a[name], b[name], strict=True))) for name in names}


def ratio(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """a over b, with the uncertainty of both; degrees of freedom after Welch."""
    (a_low, a_high), (b_low, b_high) = interval(a), interval(b)
    (a_middle, a_error, a_df), (b_middle, b_error, b_df) = (
        of[["middle", "error", "df"]].to_numpy().T for of in (a, b)
    )
    total = a_error**2 + b_error**2
    df = _quotient(total**2, a_error**4 / a_df + b_error**4 / b_df)
    return frame(
        a.index,
        middle=_quotient(a_middle, b_middle),
        low=_quotient(a_low, b_high),
        high=_quotient(a_high, b_low),
        error=total**0.5,
        df=np.where(total == 0, np.minimum(a_df, b_df), df),
        **_both(a, b),
    )


def difference(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """a minus b, with the uncertainty of both."""
    (a_low, a_high), (b_low, b_high) = interval(a), interval(b)
    nothing = ~np.any([a_low, a_high, b_low, b_high], axis=0)
    found = frame(
        a.index,
        middle=a["middle"] - b["middle"],
        low=np.where(nothing, -math.inf, a_low - b_high),
        high=np.where(nothing, math.inf, a_high - b_low),
        **_both(a, b),
    )
    found.loc[nothing, "remark"] = "nothing to compare: both are 0"
    return found


@dataclass(frozen=True)
class Region:
    """The figures that agree with a claim: around a number, beyond a bound, or a sign."""

    low: float
    high: float
    apart: bool = False  # the figures outside low to high agree
    strict: bool = False  # the ends themselves are excluded

    @classmethod
    def of(
        cls, expect: str, value: float | None, tolerance: float = 0.0, added: bool = False
    ) -> Region:
        """The region around a value.

        Args:
            value: None for a sign, which is 1 for a ratio and 0 for a difference.
            added: whether values add up, as those of a difference do; others multiply.
        """
        if value is None:
            value = 0.0 if added else 1.0
        reach = abs(value) * tolerance
        below, above = value / (1 + tolerance), value * (1 + tolerance)
        if added:
            below, above = value - reach, value + reach
        return {
            "about": cls(below, above),
            "apart": cls(below, above, apart=True),
            "at_least": cls(below, math.inf),
            "at_most": cls(-math.inf, above),
            "more": cls(above, math.inf, strict=True),
            "less": cls(-math.inf, below, strict=True),
        }[expect]

    def answer(self, low: float, high: float) -> str:
        """Whether a figure between two ends agrees, is against, or is open."""
        inside, outside = self.low <= low and high <= self.high, high < self.low or low > self.high
        if self.strict:
            # One end of the region is infinite, and includes infinite figures.
            inside = (math.isinf(self.low) or low > self.low) and (
                math.isinf(self.high) or high < self.high
            )
            outside = high <= self.low or low >= self.high
        if self.apart:
            inside, outside = outside, inside
        return AGREES if inside else AGAINST if outside else OPEN

    def favour(self, middle: float) -> float:
        """How far a figure is on the claim's side; the smallest value is the least favourable."""
        if math.isinf(self.high):
            return middle
        if math.isinf(self.low):
            return -middle
        centre = (self.low + self.high) / 2
        return abs(middle - centre) * (1 if self.apart else -1)

    def __str__(self) -> str:
        if self.apart:
            return f"outside {shown(self.low)} to {shown(self.high)}"
        if math.isinf(self.high):
            return f"{'above' if self.strict else 'at least'} {shown(self.low)}"
        if math.isinf(self.low):
            return f"{'below' if self.strict else 'at most'} {shown(self.high)}"
        return f"{shown(self.low)} to {shown(self.high)}"


def shown(value: float) -> str:
    """`1.24`, `20`, `0.0031`, `31,500`."""
    if math.isinf(value):
        return "−∞" if value < 0 else "∞"
    if 1e3 <= abs(value) < 1e6:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"
