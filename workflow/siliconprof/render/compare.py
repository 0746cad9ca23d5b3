"""Comparing step times: a median, its interval, a ratio of two, and the words for them.

Many comparisons are one sentence: which side, how often, and how far apart at least and at most. One
that was measured while other processes used the processor counts only where there is no other.

Every interval here is made from the 95 % intervals of the two sides, see `uncertainty`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from siliconprof import words
from siliconprof.render.blocks import Finding
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import Value, spanned
from siliconprof.render.variants import Family, Row, family, twins, variant

NO_STEP = "no unsplit step was timed"
UNSPLIT = "unsplit: median, 95 % interval"
MOST_GROUPS = 2  # in a headline
EQUAL = "equal training"
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


@dataclass
class Line:
    """One comparison in words; a doubtful one never becomes a headline before a sound one."""

    text: str
    doubtful: bool = False


def told(title: str, lines: Sequence[Line], anchor: str) -> Finding | None:
    """A finding whose headline is the first sound line, the others behind it."""
    if not lines:
        return None
    first = next((line for line in lines if not line.doubtful), lines[0])
    return Finding(title, first.text, [line.text for line in lines if line is not first], anchor)


def compared(text: str, *steps_: Step) -> Line:
    """A line with what limits it."""
    doubtful = any("contended" in (step.row["flags"] or "") for step in steps_)
    return Line(f"{text}{remarks(*steps_)}.", doubtful)


def manner(row: Row, *left_out: str) -> str:
    """`plain, fp32, LoRA 8`: what a comparison holds fixed."""
    fixed = [row[name] for name in ("trainer", "precision") if name not in left_out]
    return ", ".join([*fixed, *variant(row)])


# -- many comparisons ------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """Two step times of equal work."""

    one: Step
    other: Step
    names: tuple[str, str]  # of the one and of the other
    where: str  # what both share, `gpt2-nano, plain, fp32`
    line: Line  # the same in a sentence of its own

    @property
    def slow_and_fast(self) -> tuple[str, str]:
        """Names, the slower first."""
        return self.names if self.one.middle > self.other.middle else self.names[::-1]

    @property
    def ratio(self) -> float:
        """Of the slower over the faster."""
        low, high = sorted((self.one.middle, self.other.middle))
        return high / low

    @property
    def ratio_text(self) -> str:
        """`2.54 × [1.92, 2.70] (gpt2-nano, plain, fp32)`."""
        fast, slow = sorted((self.one, self.other), key=lambda step: step.middle)
        return f"{ratio_words(slow, fast)} ({self.where})"


def headline(
    title: str, groups: Sequence[tuple[str, Sequence[Comparison]]], anchor: str
) -> Finding | None:
    """A headline over the first groups, every single comparison behind it.

    Args:
        groups: what the sentence of a group begins with, and its comparisons.
    """
    lines = [comparison.line for _, group in groups for comparison in group]
    if len(lines) < 2:
        return told(title, lines, anchor)
    heads = []
    for prefix, group in groups[:MOST_GROUPS]:
        sound = [comparison for comparison in group if not comparison.line.doubtful] or list(group)
        if len(sound) == 1:
            heads.append(sound[0].line.text)
            lines.remove(sound[0].line)
        else:
            heads.append(f"{prefix}{_sentence(sound)}{_left_out(len(group) - len(sound))}.")
    return Finding(title, " ".join(heads), [line.text for line in lines], anchor)


def _sentence(comparisons: Sequence[Comparison]) -> str:
    """`torch-cpu is 2.54 × [1.92, 2.70] (…) to 3.32 × […] (…) faster than mlx in all 3 …`."""
    apart = [one for one in comparisons if not one.one.overlaps(one.other)]
    even = len(comparisons) - len(apart)
    directions = grouped(apart, lambda comparison: comparison.slow_and_fast)
    total = words.count(len(comparisons), EQUAL)
    ordered = sorted(directions.items(), key=lambda item: -len(item[1]))
    parts: list[str] = []
    for (slow, fast), group in ordered:
        group.sort(key=lambda comparison: comparison.ratio)
        span = " to ".join(
            dict.fromkeys(comparison.ratio_text for comparison in (group[0], group[-1]))
        )
        many = f"{len(group)} of {total}" if not parts else str(len(group))
        if len(group) == len(comparisons):
            many = f"both {EQUAL}s" if len(comparisons) == 2 else f"all {total}"
        parts.append(f"{fast} is {span} faster than {slow} in {many}")
    if even:
        many = f"{even} of {total}" if not parts else str(even)
        many = f"any of {total}" if even == len(comparisons) else many
        parts.append(f"no difference beyond noise in {many}")
    noisy = sum(
        bool(words.caution(comparison.one.row, comparison.other.row)) for comparison in comparisons
    )
    sentence = "; ".join(parts)
    many = "all" if noisy == len(comparisons) else f"{noisy} of {len(comparisons)}"
    return f"{sentence} ({many} flagged noisy)" if noisy else sentence


def _left_out(n: int) -> str:
    """How many comparisons are left out because they are doubtful and others are not."""
    return f"; {n} more flagged contended {'is' if n == 1 else 'are'} left out" if n else ""
