"""Which figures agree with a claim: a number with its tolerance, a bound, or a sign."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from siliconprof.claims.evidence import Figure

AGREES, AGAINST, OPEN = "agrees", "against", "open"
ADDED = ("difference",)  # kinds whose values add up; the others' multiply


@dataclass(frozen=True)
class Region:
    """Which figures agree with a claim."""

    low: float
    high: float
    apart: bool = False  # agrees outside
    strict: bool = False  # the ends themselves do not agree

    @classmethod
    def of(cls, compare: Mapping[str, Any], value: float | None) -> Region:
        """Around a claim's value; without one a sign: 1 of a ratio, 0 of a difference."""
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
        """What a figure between two ends says."""
        if self.apart:
            if low > self.high or high < self.low:
                return AGREES
            return AGAINST if self.low <= low and high <= self.high else OPEN
        if self.strict:
            # One end is open, and what is infinite lies on its side.
            inside = (math.isinf(self.low) or low > self.low) and (
                math.isinf(self.high) or high < self.high
            )
            outside = high <= self.low or low >= self.high
        else:
            inside = self.low <= low and high <= self.high
            outside = high < self.low or low > self.high
        return AGREES if inside else AGAINST if outside else OPEN

    def favour(self, figure: Figure) -> float:
        """How far a figure is on the claim's side; the least is the one to look at."""
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
            return True  # what lies outside one stretch is on both sides of it
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
