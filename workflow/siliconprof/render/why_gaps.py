"""Gaps between trainings as the page shows them: the lines of attribution.csv by pair, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from siliconprof import words
from siliconprof.analyse.attribution import CAUSE, GAP, LEFT, NO_GAP
from siliconprof.analyse.operator_rows import BLOCKED, FRAMEWORK, OPTIMIZER, PARTS
from siliconprof.render.data import Data, grouped, sides
from siliconprof.render.traces import point_key
from siliconprof.render.variants import Family, Row, family, precision, variant

MS = 1e-3
NAMES = {
    **{part: part for part in PARTS},
    LEFT: "unexplained",
    "products": "matrix products",
    OPTIMIZER: "the optimizer",
    BLOCKED: "being blocked",
    FRAMEWORK: "the framework and the rest",
}
WORTH_A_WORD = 0.02  # of a gap
WIDE = 0.1  # of a part: an interval so much wider is given with it
MOST_SHOWN = 4  # pairs of a family that have a sentence and a bar


@dataclass(frozen=True)
class Gap:
    """Two trainings of equal work, the lines of their gap, and what both are called."""

    fast: Row  # points
    slow: Row
    lines: Sequence[Row]
    several_devices: bool = False  # whether devices are named

    @property
    def of(self) -> list[Row]:
        """Both sides, for the page's filter."""
        return [self.slow, self.fast]

    @property
    def family(self) -> Family:
        """What both trained."""
        return family(self.fast)

    @property
    def gap(self) -> Row:
        """The line of the gap itself."""
        return next(line for line in self.lines if line["kind"] == GAP)

    @property
    def left(self) -> Row:
        """The line of what no cause explains."""
        return next(line for line in self.lines if line["kind"] == LEFT)

    def parts(self, kind: str) -> list[Row]:
        """Its phases or its causes."""
        return [line for line in self.lines if line["kind"] == kind]

    @property
    def timed(self) -> bool:
        """Whether the operators of both sides were timed, so that it has causes."""
        return bool(self.parts(CAUSE))

    @property
    def verdict(self) -> str:
        """How much is explained."""
        return str(self.gap["verdict"])

    @property
    def apart(self) -> set[str]:
        """The axes in which both sides differ."""
        axes = ("host", "device", "backend", "trainer", "precision")
        axes_apart = {axis for axis in axes if self.fast[axis] != self.slow[axis]}
        return axes_apart | ({"variant"} if variant(self.fast) != variant(self.slow) else set())

    @property
    def telling(self) -> tuple:
        """Sort key: another device or backend first, all else alike; then any, then the rest.

        Nothing that other processes disturbed, and no gap within noise, before anything sound.
        """
        contended = any("contended" in (row["flags"] or "") for row in self.of)
        path = self.apart & {"host", "device", "backend"}
        plain = all(r["trainer"] == "plain" and r["precision"] == "fp32" for r in self.of)
        rank = 3 - bool(path)
        if path and path == self.apart:
            rank = 0 if plain else 1
        return (self.verdict == NO_GAP, contended, rank, -(self.gap["seconds"] or 0.0))

    def name(self, row: Row) -> str:
        """`mlx · plain · fp32`, with device and host where there are several."""
        where = [row["host"]] if "host" in self.apart or words.whose(row) else []
        where += [row["device"]] if self.several_devices or "device" in self.apart else []
        parts = [*where, words.backend_name(row), row["trainer"], precision(row), *variant(row)]
        return " · ".join(parts)

    @property
    def ratio(self) -> float:
        """How many times as long the slower one takes."""
        return float(self.gap["slow_s"] / self.gap["fast_s"])


def read(data: Data) -> list[Gap]:
    """Gaps between measured trainings, family by family, the most telling first."""
    points = {point_key(point): point for point in data.training()}
    several = len({point["device"] for point in points.values()}) > 1
    gaps = []
    for lines in grouped(data.attribution, lambda line: line["pair"]).values():
        fast, slow = (points.get(point_key(side)) for side in sides(lines[0]))
        if fast and slow:
            gaps.append(Gap(fast, slow, lines, several))
    return sorted(gaps, key=lambda gap: (gap.family.order, gap.telling))


def by_family(gaps: Iterable[Gap]) -> dict[tuple[Family, Any], list[Gap]]:
    """(family, what else sets its work apart) -> its gaps, in their order."""
    return grouped(gaps, lambda gap: (gap.family, int(gap.fast.get("lora_rank") or 0) or None))


def milliseconds(seconds: float) -> str:
    """`47.3 ms`, negative ones with a minus."""
    return f"{words.significant(seconds / MS)}{words.THIN}ms"


def ends_text(line: Row, sign: int = 1) -> str:
    """`10.1 to 11.0`, of ms; with a sign of -1 of what the slower side spends less."""
    ends = sorted(sign * line[end] / MS for end in ("low_s", "high_s"))
    return " to ".join(map(words.significant, ends))


def share(part: Row) -> str:
    """`19 %` of the gap."""
    return words.whole_percent(part["share"]) if part["share"] is not None else ""


def sentence(gap: Gap) -> str:
    """A gap and its causes in words with numbers; a gap within noise has none."""
    line = gap.gap
    more = milliseconds(line["seconds"])
    allow = f"both 95 % intervals allow {ends_text(line)} ms"
    if gap.verdict == NO_GAP:
        return (
            f"{gap.name(gap.slow)} takes {more} more a step than {gap.name(gap.fast)} ({allow}): no "
            "difference beyond noise, so there is nothing to explain."
        )
    head = (
        f"{gap.name(gap.fast)} is {words.significant(gap.ratio)} × faster than "
        f"{gap.name(gap.slow)}, which takes {more} more a step ({allow})"
    )
    if not gap.timed:
        return f"{head}; {gap.left['reason']}."
    longer, shorter = _causes(gap)
    texts = [
        f"{words.listing(parts)}{suffix}"
        for parts, suffix in ((longer, ""), (shorter, " less by the slower side"))
        if parts
    ] or ["no cause has 2 % of it"]
    return f"{head}: {'; '.join(texts)}; {_left(gap)}."


def _causes(gap: Gap) -> tuple[list[str], list[str]]:
    """Causes worth a word, the largest first: what the slower side spends more, and less."""
    worth = sorted(
        (line for line in gap.parts(CAUSE) if abs(line["share"] or 0.0) >= WORTH_A_WORD),
        key=lambda line: -abs(line["seconds"]),
    )
    longer, shorter = [], []
    for line in worth:
        name, seconds = NAMES[line["part"]], line["seconds"]
        wide = line["high_s"] - line["low_s"] > WIDE * abs(seconds)
        if seconds > 0:
            ends = f"; {ends_text(line)}" if wide else ""
            longer.append(f"{milliseconds(seconds)} ({share(line)}{ends}) in {name}")
        else:
            ends = f" ({ends_text(line, -1)})" if wide else ""
            shorter.append(f"{milliseconds(-seconds)}{ends} in {name}")
    return longer, shorter


def _left(gap: Gap) -> str:
    """What the parts leave of the gap, and of either side."""
    left = gap.left
    size = f"{milliseconds(abs(left['seconds']))} ({words.whole_percent(abs(left['share']))})"
    less = left["seconds"] < 0
    sums = f"give {size} more than there is" if less else f"leave {size} unexplained"
    of_sides = ", ".join(
        f"{milliseconds(left[f'{side}_s'])} of the step of {gap.name(row)}"
        for side, row in (("slow", gap.slow), ("fast", gap.fast))
    )
    return f"the parts {sums}; they leave {of_sides}"
