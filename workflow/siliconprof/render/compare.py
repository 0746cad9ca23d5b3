"""Comparing step times: a median, its interval, a ratio of two, and the words for them.

Every interval here is made from the 95 % intervals of the two sides, see `uncertainty`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from siliconprof import words
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import Value, spanned
from siliconprof.render.variants import Family, Row, family, twins, variant

NO_STEP = "no unsplit step was timed"
UNSPLIT = "unsplit: median, 95 % interval"
FEW = 6  # below this there is no 95 % interval; the range stands in


class Times(NamedTuple):
    """How many times as long one step takes as another, and what both intervals allow."""

    middle: float
    low: float
    high: float


@dataclass
class Step:
    """The step time of a cell: median and interval in seconds."""

    row: Row
    middle: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, row: Row) -> Step | None:
        """The unsplit step of a measured cell, None when it has none."""
        numbers = [
            words.number(row[f"unsplit_step_{part}"])
            for part in ("median_s", "low_s", "high_s", "n")
        ]
        if any(value is None or value <= 0 for value in numbers):
            return None
        middle, low, high, n = (float(value) for value in numbers if value is not None)
        return cls(row, middle, low, high, int(n))

    def value(self) -> Value:
        """The median in ms, its interval below."""
        return spanned(self.middle * 1e3, self.low * 1e3, self.high * 1e3)

    def over(self, fast: Step) -> Times:
        """How many times as long it takes as another."""
        return Times(self.middle / fast.middle, self.low / fast.high, self.high / fast.low)

    def overlaps(self, other: Step) -> bool:
        """Whether no difference is certain."""
        return self.low <= other.high and other.low <= self.high


def steps(data: Data) -> dict[Family, list[Step]]:
    """Family -> its measured step times; a mechanism check has none."""
    timed = filter(None, map(Step.of, data.with_speed()))
    groups = grouped(timed, lambda step: family(step.row))
    return dict(sorted(groups.items(), key=lambda item: -(item[0].n_parameters or 0)))


def pairs(steps_: Sequence[Step], axis: str, first: str | None = None) -> Iterator[tuple]:
    """Pairs of equal work, else alike, that differ in one axis only.

    The first has the value `first` there, or is the faster.
    """
    like = twins([step.row for step in steps_], axis)
    places = {id(step.row): place for place, step in enumerate(steps_)}
    for place, a in enumerate(steps_):
        for row in like(a.row):
            if places[id(row)] <= place:
                continue
            b = steps_[places[id(row)]]
            if first is None:
                yield (a, b) if a.middle <= b.middle else (b, a)
            elif a.row[axis] == first:
                yield a, b
            elif b.row[axis] == first:
                yield b, a


def ratio_words(slow: Step, fast: Step) -> str:
    """`2.41 × [2.35, 2.48]` of medians, with the range that both intervals allow."""
    ratio, low, high = map(words.significant, slow.over(fast))
    return f"{ratio} × [{low}, {high}]"


def remarks(*compared: Step) -> str:
    """What limits a comparison: few repeats, or flags."""
    parts = []
    least = min(step.n for step in compared)
    if least <= FEW:
        parts.append(f"only {least} steps")
    caution = words.caution(*(step.row for step in compared))
    return f" ({'; '.join(filter(None, [*parts, caution]))})" if parts or caution else ""


def manner(row: Row, *left_out: str) -> str:
    """`plain, fp32, LoRA 8`: what a comparison holds fixed."""
    fixed = [row[name] for name in ("trainer", "precision") if name not in left_out]
    return ", ".join([*fixed, *variant(row)])
