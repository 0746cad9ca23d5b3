"""Many comparisons in one sentence: which side, how often, and how far apart at least and at most.

A comparison measured while other processes used the processor counts only where there is no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from siliconprof import words
from siliconprof.render.blocks import Finding
from siliconprof.render.compare import Line, Step, ratio_words, told

MOST_GROUPS = 2  # in a headline
WORK = "equal training"


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


def finding(
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
    directions: dict[tuple[str, str], list[Comparison]] = {}
    even = 0
    for comparison in comparisons:
        if comparison.one.overlaps(comparison.other):
            even += 1
        else:
            directions.setdefault(comparison.slow_and_fast, []).append(comparison)
    total = words.count(len(comparisons), WORK)
    ordered = sorted(directions.items(), key=lambda item: -len(item[1]))
    parts: list[str] = []
    for (slow, fast), group in ordered:
        group.sort(key=lambda comparison: comparison.ratio)
        span = " to ".join(
            dict.fromkeys(comparison.ratio_text for comparison in (group[0], group[-1]))
        )
        many = f"{len(group)} of {total}" if not parts else str(len(group))
        if len(group) == len(comparisons):
            many = f"both {WORK}s" if len(comparisons) == 2 else f"all {total}"
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
