"""Figures with their uncertainty, and the region of figures that agree with a claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from siliconprof.stats import inference

AGREES, AGAINST, OPEN = "agrees", "against", "open"


@dataclass(frozen=True)
class Figure:
    """A number with its uncertainty: an error of its logarithm, or an interval's two ends."""

    middle: float
    estimate: inference.Estimate | None = None
    low: float = math.nan
    high: float = math.nan
    basis: str = ""  # the source of the error
    remark: str = ""  # another reason why it is uncertain
    word: str = ""  # of a finding, in place of a number

    @classmethod
    def exact(cls, value: float, basis: str) -> Figure:
        """A number whose spread is unknown, or that has none."""
        return cls(value, None, value, value, basis)

    def interval(self, confidence: float = inference.CONFIDENCE) -> tuple[float, float]:
        """Its interval (low, high) at a confidence of 0 to 1; given ends are returned unchanged."""
        if self.estimate is None:
            return self.low, self.high
        if not self.estimate.error:
            return self.middle, self.middle
        return self.estimate.interval(confidence)

    def over(self, printed: float, basis: str) -> Figure:
        """This figure as a multiple of a printed number, which counts as exact."""
        estimate = self.estimate
        if estimate:
            estimate = replace(estimate, log=estimate.log - math.log(printed))
        low, high = self.low / printed, self.high / printed
        return Figure(
            self.middle / printed, estimate, low, high, f"{self.basis}; {basis}", self.remark
        )


def similar(a_usd: float | None, b_usd: float | None, times: float) -> bool:
    """Whether both prices are known, and the dearer is at most so many times the other."""
    low, high = sorted((a_usd or 0.0, b_usd or 0.0))
    return bool(low) and high <= times * low


def joined(texts: Iterable[str]) -> str:
    """Texts that are not empty, each once."""
    return "; ".join(dict.fromkeys(filter(None, texts)))


def _quotient(upper: float, lower: float) -> float:
    return upper / lower if lower else math.inf


def ratio(a: Figure, b: Figure) -> Figure:
    """a over b, with the uncertainty of both."""
    basis, remark = joined((a.basis, b.basis)), joined((a.remark, b.remark))
    middle = _quotient(a.middle, b.middle)
    if a.estimate and b.estimate:
        estimate = inference.difference(b.estimate, a.estimate, basis)
        return Figure(middle, estimate, basis=basis, remark=remark)
    (a_low, a_high), (b_low, b_high) = a.interval(), b.interval()
    return Figure(middle, None, _quotient(a_low, b_high), _quotient(a_high, b_low), basis, remark)


def difference(a: Figure, b: Figure) -> Figure:
    """a minus b, with the uncertainty of both."""
    basis, remark = joined((a.basis, b.basis)), joined((a.remark, b.remark))
    (a_low, a_high), (b_low, b_high) = a.interval(), b.interval()
    if not any((a_low, a_high, b_low, b_high)):
        return Figure(0.0, None, -math.inf, math.inf, basis, "nothing to compare: both are 0")
    return Figure(a.middle - b.middle, None, a_low - b_high, a_high - b_low, basis, remark)


def reduced(figures: Sequence[Figure], how: str) -> Figure:
    """The largest (most), smallest (least) or geometric mean (mean) of several figures."""
    combine: Callable[[Sequence[float]], float] = inference.geometric_mean
    combine = {"most": max, "least": min}.get(how, combine)
    lows, highs = zip(*(figure.interval() for figure in figures), strict=True)
    return Figure(
        combine([figure.middle for figure in figures]),
        None,
        combine(lows),
        combine(highs),
        joined(figure.basis for figure in figures),
        joined(figure.remark for figure in figures),
    )


def share_above_1(figures: Sequence[Figure]) -> Figure:
    """The share of figures above 1; its ends are those that certainly are and those that may be."""
    n = len(figures)
    confidence = 1 - (1 - inference.CONFIDENCE) / n
    lows, highs = zip(*(figure.interval(confidence) for figure in figures), strict=True)
    middles = [figure.middle for figure in figures]
    middle, low, high = (
        sum(value > 1 for value in values) / n for values in (middles, lows, highs)
    )
    return Figure(middle, None, low, high, joined(figure.basis for figure in figures))


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

    def meets(self, other: Region) -> bool:
        """Whether a figure may agree with both."""
        if self.apart or other.apart:
            return True  # the figures outside a stretch lie on both sides of it
        low, high = max(self.low, other.low), min(self.high, other.high)
        return low < high or (low == high and not (self.strict or other.strict))


def shown(value: float) -> str:
    """`1.24`, `20`, `0.0031`, `31,500`."""
    if math.isinf(value):
        return "−∞" if value < 0 else "∞"
    if 1e3 <= abs(value) < 1e6:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"
