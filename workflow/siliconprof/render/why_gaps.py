"""Gaps between trainings as the page shows them: the lines of attribution.csv by pair, in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from siliconprof import words
from siliconprof.analyse.attribution import CAUSE, GAP, LEFT, NO_GAP, OVER, PHASE, UNEXPLAINED
from siliconprof.analyse.attribution_costs import (
    CLOCKS,
    COARSER,
    LAUNCHES,
    MEMORY,
    OFFLOAD,
    PAGE_FAULTS,
    PRODUCTS,
    SWAP,
)
from siliconprof.analyse.operator_rows import BLOCKED, FRAMEWORK, OPTIMIZER, PARTS
from siliconprof.render.data import Data, sides
from siliconprof.render.traces import point_key
from siliconprof.render.variants import Family, Row, family, precision, variant

MS = 1e-3
NAMES = {
    PRODUCTS: "matrix products",
    MEMORY: "memory traffic",
    LAUNCHES: "kernel launches",
    PAGE_FAULTS: "page faults",
    SWAP: "swap",
    OFFLOAD: "offload traffic",
    CLOCKS: "clocks",
    LEFT: "unexplained",
    **{part: part for part in PARTS if part != PRODUCTS},
    OPTIMIZER: "the optimizer",
    BLOCKED: "being blocked",
    FRAMEWORK: "the framework and the rest",
}
WORTH_A_WORD = 0.02  # of a gap
WIDE = 0.1  # of an estimate: a range so much wider is given with it
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
        """Whether its causes are parts of the steps of both sides, not estimates."""
        return any(line["part"] == FRAMEWORK for line in self.parts(CAUSE))

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
        where = [row["host"]] if "host" in self.apart else []
        where += [row["device"]] if self.several_devices or "device" in self.apart else []
        parts = [*where, words.backend_name(row), row["trainer"], precision(row), *variant(row)]
        return " · ".join(parts)

    @property
    def ratio(self) -> float:
        """How many times as long the slower one takes."""
        return float(self.gap["slow_s"] / self.gap["fast_s"])


def read(data: Data, everyone: bool = False) -> list[Gap]:
    """Gaps between measured trainings, family by family, the most telling first.

    Args:
        everyone: those with other hosts' cells, and only those, else this data's own.
    """
    points = {point_key(point): point for point in data.training()}
    grouped: dict[Any, list[Row]] = {}
    for line in data.attribution:
        grouped.setdefault(line["pair"], []).append(line)
    several = len({point["device"] for point in points.values()}) > 1
    gaps = []
    for lines in grouped.values():
        fast, slow = (points.get(point_key(side)) for side in sides(lines[0]))
        if fast and slow:
            own = {fast["source"], slow["source"]} == {"this host"}
            if not everyone or not own:
                gaps.append(Gap(fast, slow, lines, several))
    return sorted(gaps, key=lambda gap: (gap.family.order, gap.telling))


def by_family(gaps: Iterable[Gap]) -> dict[tuple[Family, Any, bool], list[Gap]]:
    """(family, what else sets its work apart, whether timed) -> its gaps, in their order."""
    grouped: dict[tuple[Family, Any, bool], list[Gap]] = {}
    for gap in gaps:
        rank = gap.fast.get("lora_rank")
        grouped.setdefault((gap.family, int(rank) if rank else None, gap.timed), []).append(gap)
    return grouped


def milliseconds(seconds: float) -> str:
    """`47.3 ms`, negative ones with a minus."""
    return f"{words.significant(seconds / MS)}{words.THIN}ms"


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
    longer, shorter = _causes(gap)
    texts = [
        f"{words.listing(parts)}{suffix}"
        for parts, suffix in ((longer, ""), (shorter, " less by the slower side"))
        if parts
    ] or [f"no cause has 2 % of it{_blind(gap)}"]
    return f"{head}: {'; '.join(texts)}; {_left(gap)}{_untimed(gap)}."


def ends_text(line: Row) -> str:
    """`10.1 to 11.0`, of ms."""
    return " to ".join(words.significant(line[end] / MS) for end in ("low_s", "high_s"))


def _blind(gap: Gap) -> str:
    """Why no estimate could tell both sides apart, where that is so."""
    if gap.apart == {"trainer"} and not gap.timed:
        return " (estimates depend on device, backend, precision and model, not on the trainer)"
    return ""


def _untimed(gap: Gap) -> str:
    """What makes a range wide: products of which only a least time is known."""
    for line in gap.parts(CAUSE):
        coarse = (line["fast_how"] or "").startswith(COARSER)
        if line["part"] == PRODUCTS and coarse and line["high_s"] is not None:
            return ", as products of this step were not timed in these formats on both sides"
    return ""


def _causes(gap: Gap) -> tuple[list[str], list[str]]:
    """Causes worth a word, the largest first: what the slower side spends more, and less."""
    estimated = [line for line in gap.parts(CAUSE) if line["seconds"] is not None]
    worth = sorted(
        (line for line in estimated if abs(line["share"] or 0.0) >= WORTH_A_WORD),
        key=lambda line: -abs(line["seconds"]),
    )
    longer = [
        f"{_up_to(line)}{milliseconds(line['seconds'])} ({share(line)}{_range(line)}) in "
        f"{NAMES[line['part']]}"
        for line in worth
        if line["seconds"] > 0
    ]
    shorter = [
        f"{milliseconds(-line['seconds'])}{_range_of_less(line)} in {NAMES[line['part']]}"
        for line in worth
        if line["seconds"] < 0
    ]
    return longer, shorter


def _up_to(line: Row) -> str:
    """`up to ` an estimate that may be far less and hardly more."""
    low, high, seconds = line["low_s"], line["high_s"], line["seconds"]
    if low is None or high is None:
        return ""
    return "up to " if low < 0.5 * seconds and high < 1.1 * seconds else ""


def _range(line: Row) -> str:
    """`; −3.10 to 4.30` where an estimate may be far off in a way that `up to` does not say."""
    if line["low_s"] is None or line["high_s"] is None or _up_to(line):
        return ""
    wide = line["high_s"] - line["low_s"] > WIDE * abs(line["seconds"])
    return f"; {ends_text(line)}" if wide else ""


def _range_of_less(line: Row) -> str:
    """The same of what the slower side spends less."""
    less = {"seconds": -line["seconds"], "low_s": None, "high_s": None}
    if line["low_s"] is not None and line["high_s"] is not None:
        less |= {"low_s": -line["high_s"], "high_s": -line["low_s"]}
    text = _range(less)
    return f" ({text.removeprefix('; ')})" if text else ""


def _left(gap: Gap) -> str:
    """What is left, whether that is most of it, and what the ranges allow."""
    left = gap.left
    if gap.timed:
        size = f"{milliseconds(abs(left['seconds']))} ({words.whole_percent(abs(left['share']))})"
        less = left["seconds"] < 0
        sums = f"give {size} more than there is" if less else f"leave {size} unexplained"
        of_sides = ", ".join(
            f"{milliseconds(left[f'{side}_s'])} of the step of {gap.name(row)}"
            for side, row in (("slow", gap.slow), ("fast", gap.fast))
        )
        return f"the parts {sums}; they leave {of_sides}"
    ends = f" (with every range at its worst {ends_text(left)})"
    if left["seconds"] < 0:
        text = (
            f"the estimates give {milliseconds(-left['seconds'])} "
            f"({words.whole_percent(-left['share'])}) more than there is{ends}"
        )
        return text if gap.verdict == OVER else f"{text}, within their ranges"
    if left["share"] > 1.01:
        return f"{milliseconds(left['seconds'])}, more than the gap itself, unexplained{ends}"
    mostly = ", most of it," if gap.verdict == UNEXPLAINED else ""
    return f"{milliseconds(left['seconds'])} ({share(left)}){mostly} unexplained{ends}"


def by_phase(gap: Gap) -> str:
    """Where in the step a gap lies; empty for one within noise."""
    if gap.verdict == NO_GAP:
        return ""
    parts = [
        f"{line['part']} {words.significant(line['seconds'] / MS)}"
        for line in gap.parts(PHASE)
        if line["seconds"] is not None
    ]
    return f" By phase, in ms: {', '.join(parts)}."


def lacking(gaps: Sequence[Gap]) -> list[str]:
    """What was not available, in how many gaps, and why."""
    reasons: dict[tuple[str, str], int] = {}
    for gap in gaps:
        for line in gap.parts(CAUSE):
            if line["seconds"] is None:
                name = (NAMES[line["part"]], str(line["reason"]))
                reasons[name] = reasons.get(name, 0) + 1
    return [
        f"{name[0].upper()}{name[1:]}, in {n} of {words.count(len(gaps), 'pair')}: {why}."
        for (name, why), n in reasons.items()
    ]


def flagged_inputs(gaps: Iterable[Gap]) -> list[str]:
    """Cells that the estimates rest on and that are flagged: `bandwidth flagged noisy`."""
    methods = [
        how
        for gap in gaps
        for line in gap.parts(CAUSE)
        for how in (line["fast_how"], line["slow_how"])
        if how
    ]
    names = (name for how in methods for name in re.findall(r"\(([^()]* flagged [^()]*)\)", how))
    return list(dict.fromkeys(names))
