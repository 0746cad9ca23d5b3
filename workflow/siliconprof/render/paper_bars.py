"""Horizontal bars under device names, as the rebuilt figures and tables of the paper share them.

A bar of ours is filled and has the line of its 95 % interval; a published one is hatched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from siliconprof import words
from siliconprof.render import marks, style
from siliconprof.render.data import Data
from siliconprof.render.variants import Row
from siliconprof.store.records import HERE

ROW_IN, NAME_IN = 0.19, 0.2  # of a bar, and of the device's name above its bars
TITLE_IN, REMARK_IN, FOOT_IN, GAP_IN = 0.24, 0.16, 0.42, 0.3
ROWS_PER_PANEL, ROWS_PER_FIGURE = 24, 48
PUBLISHED = "published, not measured here"


class Span(NamedTuple):
    """A value with the ends of its 95 % interval; an end is None where there is none."""

    middle: float
    low: float | None = None
    high: float | None = None

    def text(self, scale: float, unit: str) -> str:
        """`12.3 ms (11.9–12.8)`."""
        value_text = f"{words.significant(self.middle / scale)} {unit}"
        if self.low is None or self.high is None:
            return value_text
        return f"{value_text} ({'–'.join(words.significant(v / scale) for v in self[1:])})"  # type: ignore[operator]


@dataclass(frozen=True)
class Bar:
    """One bar, of one or more parts end to end."""

    label: str
    parts: Sequence[tuple[Span, Mapping[str, Any]]]  # each with how it is drawn
    text: str  # at its end
    hover_text: str  # for the pointer
    of: Any = None  # the row or rows that it shows; None where it is published


Group = tuple[str, Sequence[Bar]]  # a device's name and its bars


@dataclass(frozen=True)
class Panel:
    """Bars under one title; each of its axes has a scale of its own."""

    title: str
    remark: str
    axes: Sequence[Sequence[Group]]
    unit: str  # along the axis
    scale: float = 1.0
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        count = sum(len(bars) for groups in self.axes for _, bars in groups)
        object.__setattr__(self, "rows", count)


def place(data: Data, row: Row) -> str:
    """A row's device, and its host where that is not this one."""
    badge = words.SOURCE_BADGES.get(row["source"])
    return f"{data.device_name(row)} [{badge}: {row['host']}]" if badge else data.device_name(row)


def where(row: Row) -> tuple[str, str, str]:
    """Identifies a device among those of all hosts."""
    return (row["source"], row["host"], row["device"])


def by_kind(rows: Sequence[Row]) -> list[list[Row]]:
    """Accelerators and CPUs apart: on one axis the former would vanish beside the latter."""
    kinds = [[row for row in rows if (row["device_kind"] == "cpu") == cpu] for cpu in (False, True)]
    return [part for part in kinds if part]


def by_place(data: Data, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Device names with their rows, this host's devices first."""
    ordered = sorted(rows, key=lambda row: row["source"] != HERE)
    rows_of: dict[str, list[Row]] = {}
    for row in ordered:
        rows_of.setdefault(place(data, row), []).append(row)
    return rows_of


def figures(panels: Sequence[Panel]) -> list[list[Panel]]:
    """Panels in portions that a page can show."""
    parts: list[list[Panel]] = []
    for panel in panels:
        if parts and sum(p.rows for p in parts[-1]) + panel.rows <= ROWS_PER_FIGURE:
            parts[-1].append(panel)
        else:
            parts.append([panel])
    return parts


def portions(groups: Sequence[Group]) -> list[list[Group]]:
    """Devices in portions that a panel can show."""
    parts: list[list[Group]] = []
    for name, bars in groups:
        if parts and sum(len(b) for _, b in parts[-1]) + len(bars) <= ROWS_PER_PANEL:
            parts[-1].append((name, bars))
        else:
            parts.append([(name, bars)])
    return parts


def _axes_in(groups: Sequence[Group]) -> float:
    return sum(NAME_IN + len(bars) * ROW_IN for _, bars in groups)


def _panel_in(panel: Panel) -> float:
    head = TITLE_IN + (REMARK_IN if panel.remark else 0)
    return head + sum(_axes_in(groups) + FOOT_IN for groups in panel.axes)


def draw(
    panels: Sequence[Panel], entries: Sequence[style.Entry], columns: int, narrow: bool
) -> Any:
    """Panels side by side on a desk, each where most room is left, below each other on a phone.

    Args:
        entries: of the legend.
        columns: of panels, on a desk.
    """
    columns = 1 if narrow else min(columns, len(panels))
    width = style.width_in(narrow)
    panel_width = (width - GAP_IN * (columns - 1)) / columns
    reached = [0.0] * columns  # by each column, in inches
    places: list[tuple[Panel, int, float]] = []
    for panel in panels:
        column = reached.index(min(reached))
        places.append((panel, column, reached[column]))
        reached[column] += _panel_in(panel)
    head = style.legend_height(entries, width) + 0.06
    figure = style.canvas(width, head + max(reached))
    style.legend(figure, entries, 0.0)
    for panel, column, top in places:
        _panel(figure, panel, column * (panel_width + GAP_IN), head + top, panel_width)
    return figure


def _panel(figure: Any, panel: Panel, left: float, top: float, width: float) -> None:
    limit = int(width / style.text_in("x", style.TEXT_PT))
    style.write(
        figure, left, top + 0.12, words.shortened(panel.title, limit), weight="bold", va="center"
    )
    top += TITLE_IN
    if panel.remark:
        limit = int(width / style.text_in("x", style.SMALL_PT))
        style.write(
            figure,
            left,
            top + 0.02,
            words.shortened(panel.remark, limit),
            va="center",
            size=style.SMALL_PT,
            color=style.MUTED,
        )
        top += REMARK_IN
    labels = [bar.label for groups in panel.axes for _, bars in groups for bar in bars]
    beside = min(style.labels_in(labels, narrow=True) + 0.1, width * 0.55)
    for groups in panel.axes:
        high = _axes_in(groups)
        ax = style.axes(figure, left + beside, top, width - beside - 0.04, high)
        ax.set_ylim(high, 0)
        ticks, y = [], 0.0
        for name, bars in groups:
            style.write(
                figure,
                left,
                top + y + 0.11,
                name,
                va="center",
                size=style.SMALL_PT,
                color=style.MUTED,
            )
            y += NAME_IN
            for bar in bars:
                ticks.append((y + ROW_IN / 2, bar.label))
                y += ROW_IN
        ax.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
        ax.tick_params(axis="y", length=0, labelsize=style.SMALL_PT, labelcolor=style.INK)
        ax.spines["left"].set_visible(False)
        ax.grid(axis="x")
        every = [bar for _, bars in groups for bar in bars]
        _bars(ax, panel, [at for at, _ in ticks], every, width - beside - 0.04)
        ax.set_xlabel(panel.unit, size=style.SMALL_PT)
        top += high + FOOT_IN


def _bars(
    ax: Any, panel: Panel, places: Sequence[float], bars: Sequence[Bar], width: float
) -> None:
    longest = max(_end(bar) for bar in bars)
    reach = longest
    for y, bar in zip(places, bars, strict=True):
        start = 0.0
        bar_artists: list[Any] = []  # have the hover text
        annotations: list[Any] = []
        for span, look in bar.parts:
            bar_artists.append(ax.barh(y, span.middle, left=start, height=ROW_IN * 0.66, **look))
            if span.low is not None and span.high is not None:
                ends = [start + span.low, start + span.high]
                annotations += ax.plot(ends, [y, y], color=style.INK, linewidth=0.9)
            start += span.middle
        end = _end(bar)
        annotations.append(
            ax.text(end + longest * 0.025, y, bar.text, va="center", size=style.SMALL_PT)
        )
        marks.tag(bar_artists, bar.of, bar.hover_text)
        if bar.of is not None:
            marks.tag(annotations, bar.of)
        room = style.text_in(bar.text + " ", style.SMALL_PT) / width
        reach = max(reach, (end + longest * 0.025) / (1 - min(room, 0.75)))
    ax.set_xlim(0, reach)
    style.plain_ticks(ax.xaxis, 4, panel.scale)


def _end(bar: Bar) -> float:
    """How far a bar reaches, with its interval."""
    start = far = 0.0
    for span, _ in bar.parts:
        far = max(far, start + max(span.middle, span.high or 0.0))
        start += span.middle
    return far


def filled(face: str) -> dict[str, Any]:
    """How a measured part is drawn."""
    return {"facecolor": face, "edgecolor": style.PAPER, "linewidth": 0.4}


def hatched() -> style.Entry:
    """The legend's entry of published values."""
    from matplotlib.patches import Rectangle

    def sample(ax: Any, x: float, y: float) -> None:
        ax.add_patch(Rectangle((x, y - 0.045), 0.15, 0.09, **style.published("grey")))

    return sample, PUBLISHED
