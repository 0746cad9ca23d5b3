"""The region of figures that agree with a claim: around a number, beyond a bound, or a sign."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from siliconprof.claims.evidence import Figure

AGREES, AGAINST, OPEN = "agrees", "against", "open"
ADDED = ("difference",)  # kinds with values that add up; those of others multiply


@dataclass(frozen=True)
class Region:
    """The figures that agree with a claim."""

    low: float
    high: float
    apart: bool = False  # the figures outside low to high agree
    strict: bool = False  # the ends themselves are excluded

    @classmethod
    def of(cls, compare: Mapping[str, Any], value: float | None) -> Region:
        """The region around a claim's value; None = a sign: 1 for a ratio, 0 for a difference."""
        added = compare["kind"] in ADDED
        if value is None:
            value = 0.0 if added else 1.0
        share = float(compare.get("tolerance", 0.0))
        reach = abs(value) * share
        below, above = (
            (value - reach, value + reach) if added else (value / (1 + share), value * (1 + share))
        )
        expect = compare["expect"]
        if expect in ("about", "apart"):
            return cls(below, above, apart=expect == "apart")
        if expect == "at_least":
            return cls(below, math.inf)
        if expect == "at_most":
            return cls(-math.inf, above)
        if expect == "more":
            return cls(above, math.inf, strict=True)
        return cls(-math.inf, below, strict=True)

    def answer(self, low: float, high: float) -> str:
        """Whether a figure between two ends agrees, is against, or is open."""
        if self.apart:
            if low > self.high or high < self.low:
                return AGREES
            return AGAINST if self.low <= low and high <= self.high else OPEN
        if self.strict:
            # One end of the region is infinite, and includes infinite figures.
            inside = (math.isinf(self.low) or low > self.low) and (
                math.isinf(self.high) or high < self.high
            )
            outside = high <= self.low or low >= self.high
        else:
            inside = self.low <= low and high <= self.high
            outside = high < self.low or low > self.high
        return AGREES if inside else AGAINST if outside else OPEN

    def favour(self, figure: Figure) -> float:
        """How far a figure is on the claim's side; the smallest value is the least favourable."""
        middle = figure.middle
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
        if low == high:
            return not (self.strict or other.strict)
        return low < high


def shown(value: float) -> str:
    """`1.24`, `20`, `0.0031`, `31,500`."""
    if math.isinf(value):
        return "−∞" if value < 0 else "∞"
    if 1e3 <= abs(value) < 1e6:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"
