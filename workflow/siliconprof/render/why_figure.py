"""Gaps drawn: for each pair of trainings one bar by phase and one by part of the step, both as long.

Where the operators of a step were not timed, there is the bar by phase alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.patches import Rectangle

from siliconprof import words
from siliconprof.analyse.attribution import CAUSE, PHASE
from siliconprof.analyse.operator_rows import FRAMEWORK, PARTS
from siliconprof.render import marks, style
from siliconprof.render.variants import Row
from siliconprof.render.why_gaps import MS, NAMES, Gap, ends_text, milliseconds

PHASE_STEP = {"forward": 60, "backward": 100, "optimizer": 25, "rest": 12}
BAR_IN, TITLE_IN, FOOT_IN = 0.2, 0.34, 0.4
LABELLED = 0.1  # of the axis: a part so wide holds its number
WHISKERED = 0.005  # of the axis: a part's interval is drawn where it is so wide
WHISKERS = (0.4, 0.53)  # below a bar's middle: those of neighbours apart from each other
ROWS = ("by phase", "by cause")
ENDS = ("low_s", "high_s")
UNKNOWN = style.PAPER  # with a broken line around it


BROKEN: dict[str, Any] = {"edgecolor": style.MUTED, "linewidth": 0.8, "linestyle": (0, (2.5, 1.5))}
WHOLE: dict[str, Any] = {"edgecolor": style.PAPER, "linewidth": 0.4}


def _empty_box(ax: Any, x: float, y: float) -> None:
    """The legend's sample of what is unexplained."""
    ax.add_patch(Rectangle((x, y - 0.045), 0.15, 0.09, facecolor=UNKNOWN, **BROKEN))


def _thin_line(ax: Any, x: float, y: float) -> None:
    """The legend's sample of a part's interval."""
    ax.plot([x, x + 0.15], [y, y], color=style.MUTED, linewidth=1.0)


def draw(gaps: Sequence[Gap], narrow: bool) -> Any:
    """One pair below the other, each on an axis of its own in ms."""
    width = style.width_in(narrow)
    left = max(map(style.text_in, ROWS)) + 0.1
    phases = [p for p in PHASE_STEP if any(_line(g, PHASE, p)["seconds"] for g in gaps)]
    causes = [c for c in PARTS if any(_line(g, CAUSE, c)["seconds"] for g in gaps)]
    coloured = [c for c in causes if c != FRAMEWORK]
    inks = {c: style.ramp(index, len(coloured)) for index, c in enumerate(coloured)}
    if FRAMEWORK in causes:
        inks[FRAMEWORK] = style.MUTED
    entries = [
        *((style.swatch(style.shade("grey", PHASE_STEP[p])), p) for p in phases),
        *((style.swatch(inks[c]), NAMES[c]) for c in causes),
        *([(_empty_box, "unexplained")] if causes else []),
        (style.sample("|", "-", color=style.INK, markersize=6), "gap, by both 95 % intervals"),
        *([(_thin_line, "95 % interval of a part")] if causes else []),
    ]
    head = style.legend_height(entries, width) + 0.02
    titles = [_title(gap, width) for gap in gaps]
    tops = [TITLE_IN + 0.13 * (title.count("\n")) for title in titles]
    bars = [BAR_IN * _high(gap) for gap in gaps]
    figure = style.canvas(width, head + sum(tops) + sum(bars) + len(gaps) * FOOT_IN)
    style.legend(figure, entries, 0.0)
    top = head
    for gap, title, room, height in zip(gaps, titles, tops, bars, strict=True):
        marks.tag(
            style.write(figure, 0, top + room - 0.08, title, va="bottom", linespacing=1.15), gap.of
        )
        top += room
        ax = style.axes(figure, left, top, width - left - 0.12, height)
        _pair(ax, gap, phases, inks)
        top += height + FOOT_IN
    return figure


def _high(gap: Gap) -> float:
    """Bars of a pair, with room for the lines below them."""
    return 2.2 if gap.timed else 1.3


def _title(gap: Gap, width: float) -> str:
    """Who is slower than whom by how much; in lines where it is too long for one."""
    slow, fast = gap.name(gap.slow), gap.name(gap.fast)
    gap_text = f"{milliseconds(gap.gap['seconds'])} a step more, {gap.verdict}"
    one_line = f"{slow} against {fast}: {gap_text}"
    if style.text_in(one_line) <= width:
        return one_line
    first_line = f"{slow} against {fast}:"
    if style.text_in(first_line) <= width:
        return f"{first_line}\n{gap_text}"
    return f"{slow}\nagainst {fast}:\n{gap_text}"


def _line(gap: Gap, kind: str, part: str) -> Row:
    """A part of a gap; of 0 seconds where it is unknown."""
    known = (p for p in gap.parts(kind) if p["part"] == part and p["seconds"] is not None)
    return next(known, {"seconds": 0.0, "low_s": None, "high_s": None})


def _pair(ax: Any, gap: Gap, phases: Sequence[str], inks: Mapping[str, str]) -> None:
    backend, left = gap.slow["backend"], gap.left
    rows = [[(p, _line(gap, PHASE, p), style.shade(backend, PHASE_STEP[p])) for p in phases]]
    if gap.timed:
        causes = [(NAMES[c], _line(gap, CAUSE, c), inks[c]) for c in inks]
        rows.append([*causes, (NAMES[left["part"]], left, UNKNOWN)])
    placed = [
        (y, start, *part)
        for y, row in enumerate(rows)
        for start, part in zip(_starts([line["seconds"] for _, line, _ in row]), row, strict=True)
    ]
    ends = [0.0, gap.gap["high_s"]]
    for _, start, _, line, ink in placed:
        ends += [start + line[end] for end in ("seconds", *(ENDS if _spread(line, ink) else ()))]
    low, high = min(ends), max(ends)
    reach = high - low or 1.0
    for index, part in enumerate(placed):
        _part(ax, gap, *part, reach, WHISKERS[index % len(WHISKERS)])
    line = gap.gap
    hover_text = (
        f"{gap.name(gap.slow)} against {gap.name(gap.fast)}: {milliseconds(line['seconds'])}"
    )
    marks.tag(
        [
            ax.plot([line["low_s"], line["high_s"]], [0.5, 0.5], color=style.INK, linewidth=0.8),
            ax.plot([line["seconds"]], [0.5], "|", color=style.INK, markersize=8),
        ],
        gap.of,
        hover_text,
    )
    ax.axvline(0, color=style.MUTED, linewidth=0.5)
    ax.set_xlim(low - 0.01 * reach * (low < 0), high + 0.02 * reach)
    ax.set_ylim(_high(gap) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), ROWS[: len(rows)])
    ax.tick_params(axis="y", length=0, labelsize=style.SMALL_PT, labelcolor=style.INK)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x")
    style.plain_ticks(ax.xaxis, 6, MS)
    ax.set_xlabel("of the gap / ms a step", size=style.SMALL_PT)


def _spread(line: Row, ink: str) -> float:
    """How wide the interval is that is drawn below a part; what is unexplained has all of them."""
    return 0.0 if ink == UNKNOWN or line["low_s"] is None else line["high_s"] - line["low_s"]


def _starts(lengths: Sequence[float]) -> list[float]:
    """Where each part of a bar begins: longer ones go to the right of 0, shorter ones to the left."""
    ends = {True: 0.0, False: 0.0}
    starts = []
    for length in lengths:
        starts.append(ends[length >= 0])
        ends[length >= 0] += length
    return starts


def _range(line: Row) -> str:
    """`; 3.91 to 5.02 ms` where a part has a range."""
    return "" if line["low_s"] is None else f"; {ends_text(line)} ms"


def _part(
    ax: Any,
    gap: Gap,
    y: int,
    start: float,
    name: str,
    line: Row,
    ink: str,
    reach: float,
    whisker: float,
) -> None:
    """One part of a bar, with its number where there is room and its interval where it is wide."""
    seconds = line["seconds"]
    if not seconds:
        return
    share = seconds / gap.gap["seconds"] if gap.gap["seconds"] else 0.0
    hover_text = (
        f"{gap.name(gap.slow)} against {gap.name(gap.fast)}: {name} {milliseconds(seconds)} "
        f"({words.whole_percent(share)} of the gap{_range(line)})"
    )
    look = BROKEN if ink == UNKNOWN else WHOLE
    drawn = [*ax.barh(y, seconds, left=start, height=0.62, facecolor=ink, **look).patches]
    if _spread(line, ink) > WHISKERED * reach:
        look = {"color": ink, "linewidth": 1.0}
        drawn += ax.plot([start + line[end] for end in ENDS], [y + whisker] * 2, **look)
    marks.tag(drawn, gap.of, hover_text)
    if abs(seconds) >= LABELLED * reach:
        look = {"ha": "center", "va": "center", "size": style.SMALL_PT}
        text = words.significant(seconds / MS)
        ink = style.readable(ink)
        marks.tag(ax.text(start + seconds / 2, y, text, color=ink, **look), gap.of)
