"""Charts as values: marks on panels with scales. One function lays all of them out.

A figure says what it shows: its panels, the marks on them, what each mark is about, and the
legend. Sizes, margins, labels, ticks, grids and the tags of the filter are here alone, and so is
the look of what other processes disturbed: it is hollow, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import isfinite
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from siliconprof import words
from siliconprof.analyse.equal_work import DISTURBED, flagged
from siliconprof.render import marks, strokes, style

TITLE_IN, TITLE_GAP_IN, GAP_IN, RIGHT_IN = 0.26, 0.07, 0.3, 0.1
REMARK_IN = 0.16
TICKS_IN, NAMED_TICKS_IN = 0.22, 0.42  # below the axes: tick labels, and with the axis's label
VALUES_IN = 0.52  # left of the axes: tick labels and the axis's label
ROW_IN = 0.21  # of one category
HALF_ROW = 0.5
LABELS_SHARE = 0.6  # of a column's width, that the labels in it may take
PUBLISHED_PT2 = 49.0  # area of a published mark
HOLLOW: dict[str, Any] = {"markerfacecolor": style.PAPER, "markeredgewidth": 0.8}
RING: dict[str, Any] = {"markerfacecolor": "none", "markeredgewidth": 0.8}
DISTURBED_MEANS = "disturbed by other processes"
HATCHED: style.Entry = (style.swatch("none", style.PUBLISHED_HATCH), "published, not measured here")
LOG_ROOM, LINEAR_ROOM = 1.5, 0.06  # beyond the outermost values: a factor, a share of the range


@dataclass(frozen=True)
class Mark:
    """Something drawn on axes.

    Args:
        draw: of the axes; returns the artists.
        of: the row or rows of results that it shows; None where it is about no cell.
        text: what stands beside the pointer.
        xs, ys: the values that the scales must reach.
        beside_in: what it needs at the right of its x, in inches; a scale to the right has it.
    """

    draw: Callable[[Any], Any]
    of: Any = None
    text: str = ""
    xs: Sequence[float] = ()
    ys: Sequence[float] = ()
    beside_in: float = 0.0

    @property
    def disturbed(self) -> bool:
        """Whether other processes used the processor while all that it shows was measured."""
        rows = [self.of] if isinstance(self.of, Mapping) else list(self.of or ())
        return bool(self.text and rows) and all(flagged(row, DISTURBED) for row in rows)

    def onto(self, ax: Any) -> None:
        """Draw it; the page's filter and pointer find it."""
        artists, text = self.draw(ax), self.text
        if self.disturbed:
            text += f"; {DISTURBED_MEANS}"
            for artist in marks.flat(artists):
                _hollow(artist)
        marks.tag(artists, self.of, text)


def _hollow(artist: Any) -> None:
    """Empty a marker or a bar; a line stays as it is."""
    if isinstance(artist, Rectangle):
        artist.set(edgecolor=artist.get_facecolor(), facecolor=style.PAPER, linewidth=0.8)
    elif isinstance(artist, Line2D) and artist.get_marker() not in ("None", "x", None):
        edge = {"markeredgecolor": artist.get_color(), "markeredgewidth": 0.8}
        artist.set(markerfacecolor=style.PAPER, **edge)


def _ink(of: Any, look: Mapping[str, Any]) -> dict[str, Any]:
    """The look with a colour: that of the row, unless it names one."""
    if "color" in look:
        return dict(look)
    first = of if isinstance(of, Mapping) else next(iter(of or ()), None)
    return {"color": style.colour(first) if first else style.MUTED, **look}


def dot(
    x: float, y: float, of: Any, text: str = "", marker: str = "o", size: float = 3.4, **look: Any
) -> Mark:
    """A marker."""
    ink = _ink(of, look)
    look = {"marker": marker, "linestyle": "none", "markersize": size, **ink}
    return Mark(lambda ax: style.line(ax, [x], [y], **look), of, text, [x], [y])


def line(xs: Sequence[float], ys: Sequence[float], of: Any, text: str = "", **look: Any) -> Mark:
    """A line through points; an interval is one of two points."""
    ink = _ink(of, {"linewidth": 0.9, **look})
    return Mark(lambda ax: style.line(ax, xs, ys, **ink), of, text, xs, ys)


def cross(x: float, y: float, of: Any, text: str = "", **look: Any) -> Mark:
    """Where the line of a training that diverged ends, or the edge beyond which it does."""
    ink = _ink(of, {"markersize": 4.5, "markeredgewidth": 1.0, "clip_on": False, **look})

    def draw(ax: Any) -> Any:
        low, high = ax.get_ylim()
        return ax.plot([x], [min(max(y, low), high)], "x", **ink)

    return Mark(draw, of, text)


def dots(
    xs: Sequence[float],
    ys: Sequence[float],
    of: Any,
    text: str = "",
    size: float = 1.8,
    **look: Any,
) -> Mark:
    """Many small dots as one path."""
    ink = _ink(of, look)

    def draw(ax: Any) -> Any:
        return strokes.dots(ax, xs, ys, size, ax.get_xscale() == "log", **ink)

    return Mark(draw, of, text, xs, ys)


def bar(
    y: float, start: float, end: float, of: Any, text: str = "", height: float = 0.6, **look: Any
) -> Mark:
    """A bar to the right, from one value to another; `color` fills it."""
    if "facecolor" not in look:
        look = {**look, "facecolor": _ink(of, look)["color"]}
        look.pop("color", None)
    look = {"linewidth": 0, **look}

    def draw(ax: Any) -> Any:  # many times quicker than a bar of matplotlib's
        return ax.add_artist(Rectangle((start, y - height / 2), end - start, height, **look))

    return Mark(draw, of, text, [start, end], [y])


def across(y: float, **look: Any) -> Mark:
    """A line at a value, from side to side."""
    look = {"color": style.MUTED, "linewidth": 0.6, **look}
    return Mark(lambda ax: ax.axhline(y, **look), ys=[y])


def upright(x: float, of: Any = None, text: str = "", **look: Any) -> Mark:
    """A line at a value, from top to bottom."""
    look = {"color": style.MUTED, "linewidth": 0.7, **look}
    return Mark(lambda ax: ax.axvline(x, **look), of, text, [x])


def diagonal() -> Mark:
    """Where both sides are equal, from corner to corner of axes with the same scale."""
    look = {"color": style.MUTED, "linewidth": 0.8, "dashes": (3, 2)}
    return Mark(lambda ax: ax.plot([0, 1], [0, 1], transform=ax.transAxes, **look))


def note(
    x: float,
    y: float,
    text: str,
    of: Any = None,
    shift: tuple[float, float] = (4, 0),
    hover: str = "",
    **look: Any,
) -> Mark:
    """Words beside a place, moved by so many points; they do not widen the scales."""
    look = {"ha": "left", "va": "center", "size": style.SMALL_PT, "color": style.MUTED, **look}

    def draw(ax: Any) -> Any:
        return ax.annotate(text, (x, y), shift, textcoords="offset points", **look)

    return Mark(draw, of, hover)


def beside(x: float, y: float, text: str, of: Any = None, **look: Any) -> Mark:
    """Words at the right of a value, for which the scale makes room."""
    room = max(style.text_in(line, style.SMALL_PT) for line in text.split("\n")) + 0.1
    return replace(note(x, y, text, of, **look), xs=[x], beside_in=room)


def aside(text: str, x: float | None = None, y: float | None = None, **look: Any) -> Mark:
    """Words at the upper end of an upright line, or above the left end of a line across."""
    look = {"ha": "left", "size": style.SMALL_PT, "color": style.MUTED, **look}
    look |= {"va": "bottom" if x is None else "top"}

    def draw(ax: Any) -> Any:
        place = (ax.get_xlim()[0] if x is None else x, ax.get_ylim()[1] if y is None else y)
        shift = (0, 2) if x is None else (2, 0)
        return ax.annotate(text, place, shift, textcoords="offset points", **look)

    return Mark(draw)


def published(x: float, y: float, text: str) -> Mark:
    """A published value: a hatched marker, never filled."""

    def draw(ax: Any) -> Any:  # a hatch needs more room than a dot has
        return ax.scatter([x], [y], PUBLISHED_PT2, marker="o", **style.published("grey"))

    return Mark(draw, None, text, [x], [y])


def corner(text: str, x: float = 1.0, y: float = 1.0, **look: Any) -> Mark:
    """Words at a place of the axes, as shares of their width and height."""
    look = {"ha": "right", "va": "top", "size": style.SMALL_PT, "color": style.MUTED, **look}
    return Mark(lambda ax: ax.text(x, y, text, transform=ax.transAxes, **look))


@dataclass(frozen=True)
class Scale:
    """How values become places along one side.

    Args:
        label: the quantity and its unit, as `step time / ms`.
        log: base of a logarithmic scale; 0 is linear.
        ends: where it begins and ends; None is told by the values of the marks.
        reach: values that it must reach whatever the marks show.
        zero: whether a linear scale begins at 0.
        most: ticks of a linear scale.
        unit: what the tick labels are over.
        ticks: of axes and both ends, in place of the usual ticks.
    """

    label: str = ""
    log: int = 0
    ends: tuple[float | None, float | None] = (None, None)
    reach: Sequence[float] = ()
    zero: bool = False
    most: int = 5
    unit: float = 1.0
    ticks: Callable[[Any, float, float], None] | None = None

    def limits(
        self, values: Iterable[float], beside: Iterable[tuple[float, float]] = ()
    ) -> tuple[float, float]:
        """Both ends, for the values of the marks.

        Args:
            beside: values, with the share of the axes that is needed at their right.
        """
        known = [v for v in chain(values, self.reach) if isfinite(v) and (v > 0 or not self.log)]
        least, most = (min(known), max(known)) if known else (1.0, 1.0)
        if self.log:
            low, high = least / LOG_ROOM, most * LOG_ROOM
        elif self.zero:
            low, high = min(0.0, least), most * (1 + LINEAR_ROOM) or 1.0
        else:
            room = max((most - least) * LINEAR_ROOM, abs(most) * 1e-3) or 1.0
            low, high = least - room, most + room
        first, last = self.ends
        low = low if first is None else first
        for value, share in beside:
            rest = max(1 - share, 0.3)
            needed = low * (value / low) ** (1 / rest) if self.log else low + (value - low) / rest
            high = max(high, needed)
        return low, high if last is None else last

    def shape(self, ax: Any, side: str, limits: tuple[float, float]) -> None:
        """Set kind and ends of an axis, before anything is drawn."""
        if self.log:
            getattr(ax, f"set_{side}scale")("log", base=self.log)
        getattr(ax, f"set_{side}lim")(*limits)

    def mark(self, ax: Any, side: str, limits: tuple[float, float]) -> None:
        """Set the ticks of an axis."""
        axis = getattr(ax, f"{side}axis")
        if self.ticks:
            self.ticks(axis, *limits)
        elif self.log:
            style.log_ticks(axis, *limits, self.unit)
        else:
            style.plain_ticks(axis, self.most, self.unit)


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Args:
        labels: of categories, one below the other: the first is y = 0, the second y = 1; without
            any, y is a scale.
        label_rows: the rows that each label is about.
        row_in: height of a category in inches.
        high: of axes without categories, in inches.
        legend: of this panel alone, below its title.
        quiet: a title in grey, as that of published values.
        side_in: what is kept free at its right, in inches.
        finish: draws what no mark can, at the end.
        remark: a second title, small and grey.
        headings: categories that are names of those below them, from the panel's left edge on.
    """

    marks: Sequence[Mark]
    x: Scale = Scale()
    y: Scale = Scale()
    labels: Sequence[str] = ()
    label_rows: Sequence[Any] = ()
    title: str = ""
    of: Any = None
    high: float = 1.55
    row_in: float = ROW_IN
    grid: str = ""
    legend: Sequence[style.Entry] = ()
    quiet: bool = False
    side_in: float = RIGHT_IN
    finish: Callable[[Any], None] | None = None
    remark: str = ""
    headings: Mapping[int, str] = field(default_factory=dict)

    def height_in(self) -> float:
        """Of the axes alone."""
        return len(self.labels) * self.row_in if self.labels else self.high

    def title_in(self) -> float:
        """Of the title alone."""
        if not self.title:
            return 0.0
        return TITLE_IN + 0.12 * self.title.count("\n") + (REMARK_IN if self.remark else 0.0)

    def head_in(self, inner: float) -> float:
        """Above axes of a width."""
        legend = style.legend_height(self.legend, inner) + 0.04 if self.legend else 0.0
        return self.title_in() + legend

    def foot_in(self) -> float:
        """Below the axes."""
        return NAMED_TICKS_IN if self.x.label else TICKS_IN

    def left_in(self, small: bool) -> float:
        """Beside the axes."""
        return 1.05 * style.labels_in(self.labels, small) + 0.1 if self.labels else VALUES_IN

    def limits(self, inner: float) -> tuple[tuple[float, float], tuple[float, float]]:
        """Ends of x and of y, of axes of a width."""
        beside = ((mark.xs[0], mark.beside_in / inner) for mark in self.marks if mark.beside_in)
        x = self.x.limits(chain.from_iterable(mark.xs for mark in self.marks), beside)
        if self.labels:
            return x, (len(self.labels) - HALF_ROW, -HALF_ROW)
        return x, self.y.limits(chain.from_iterable(mark.ys for mark in self.marks))


@dataclass(frozen=True)
class Chart:
    """A figure, or a part of one: a legend, and panels below it, row by row.

    An axis of x is named once where the panel below has the same.

    Args:
        columns: panels beside each other.
        same_y: all panels of a row share categories or scale, which the first alone names.
        same_x: all panels of a column share the scale, which the last alone shows.
        side_in: what is kept free at the right of each panel at least, in inches.
        heading: above everything but the legend, in grey where `quiet`.
    """

    panels: Sequence[Panel]
    legend: Sequence[style.Entry] = ()
    columns: int = 1
    same_y: bool = False
    same_x: bool = False
    side_in: float = RIGHT_IN
    heading: str = ""
    quiet: bool = False

    def figure(self) -> Figure:
        """Lay everything out and draw it."""
        return stacked([self])

    @property
    def entries(self) -> Sequence[style.Entry]:
        """Of the legend: its own, and what is hollow in any panel."""
        drawn = chain.from_iterable(panel.marks for panel in self.panels)
        hollow = style.sample("o", color=style.MUTED, markersize=3.4, **HOLLOW)
        more = [(hollow, f"hollow: {DISTURBED_MEANS}")] if any(m.disturbed for m in drawn) else []
        return [*self.legend, *more]

    def layout(self) -> Layout:
        """Where everything is."""
        width = style.WIDTH_IN
        columns = min(self.columns, max(len(self.panels), 1))
        left = max((panel.left_in(self._small) for panel in self.panels), default=0.0)
        left = min(left, LABELS_SHARE * width / (1 if self.same_y else columns))
        gap = 0.06 if self.same_y else left + GAP_IN  # between columns
        sides = [
            max([self.side_in, *(panel.side_in for panel in self.panels[column::columns])])
            for column in range(columns)
        ]
        inner = (width - left - gap * (columns - 1) - sum(sides)) / columns
        entries = self.entries
        head = style.legend_height(entries, width) + 0.06 if entries else 0.0
        tops, above = [head + TITLE_IN * bool(self.heading)], []
        for first in range(0, len(self.panels), columns):
            row = range(first, min(first + columns, len(self.panels)))
            panels = [self.panels[index] for index in row]
            above.append(max(panel.head_in(inner) for panel in panels))
            foot = max(self._foot_in(index, columns) for index in row)
            tops.append(tops[-1] + above[-1] + max(p.height_in() for p in panels) + foot)
        lefts = [left + column * (inner + gap) + sum(sides[:column]) for column in range(columns)]
        return Layout(lefts, tops, above, inner)

    @property
    def _small(self) -> bool:
        """Whether what stands beside the axes is small: where columns leave less room."""
        return self.columns > 1 and not self.same_y

    def _names_x(self, index: int, columns: int) -> bool:
        """Whether a panel names its axis of x: the last of those that have the same."""
        below = self.panels[index + columns :: columns]
        return not below or below[0].x.label != self.panels[index].x.label

    def _foot_in(self, index: int, columns: int) -> float:
        """Below the axes of a panel."""
        if self._names_x(index, columns):
            return self.panels[index].foot_in()
        return 0.1 if self.same_x else TICKS_IN

    def draw(self, figure: Figure, top: float, at: Layout) -> None:
        """Draw it on a figure that is large enough."""
        if entries := self.entries:
            style.legend(figure, entries, top)
        columns = len(at.lefts)
        if self.heading:
            ink = style.MUTED if self.quiet else style.INK
            y = top + at.tops[0] - TITLE_IN / 2
            style.write(figure, 0, y, self.heading, weight="bold", va="center", color=ink)
        shared = self._shared_limits(at.inner)
        for index, panel in enumerate(self.panels):
            row, column = divmod(index, columns)
            x, y = at.lefts[column], top + at.tops[row]
            beside_others = self.same_y and columns > 1
            axes_top = y + at.above[row]
            legend_top = axes_top - panel.head_in(at.inner) + panel.title_in()
            title_x = x - (0 if beside_others else at.lefts[0])
            _title(figure, panel, title_x, legend_top - TITLE_GAP_IN, at.inner)
            if panel.legend:
                style.legend(figure, panel.legend, legend_top, x - 0.03, at.inner)
            ax = style.axes(figure, x, axes_top, at.inner, panel.height_in())
            named = self._names_x(index, columns)
            named_y = not column or not self.same_y
            ticks_x = named or not self.same_x
            _draw(ax, panel, shared(panel), at, self._small, named_y, named, ticks_x)

    def _shared_limits(self, inner: float) -> Callable[[Panel], tuple]:
        """Limits of a panel: those of all where they share a side."""
        own = {id(panel): panel.limits(inner) for panel in self.panels}
        xs, ys = ([own[id(p)][side] for p in self.panels if p.marks] for side in (0, 1))

        def limits(panel: Panel) -> tuple:
            x, y = own[id(panel)]
            if self.same_x:
                x = (min(low for low, _ in xs), max(high for _, high in xs))
            if self.same_y and not panel.labels:
                y = (min(low for low, _ in ys), max(high for _, high in ys))
            return x, y

        return limits


class Layout(NamedTuple):
    """Where the panels of a chart are, in inches.

    Args:
        lefts: of the axes of each column.
        tops: of each row, and where the last ends.
        above: what is above the axes of each row.
        inner: width of all axes.
    """

    lefts: list[float]
    tops: list[float]
    above: list[float]
    inner: float


def stacked(charts: Sequence[Chart]) -> Figure:
    """Charts below each other in one figure."""
    layouts = [chart.layout() for chart in charts]
    heights = [at.tops[-1] for at in layouts]
    figure = style.canvas(style.WIDTH_IN, sum(heights))
    for index, (chart, at) in enumerate(zip(charts, layouts, strict=True)):
        chart.draw(figure, sum(heights[:index]), at)
    return figure


def _title(figure: Figure, panel: Panel, x: float, bottom: float, wide: float) -> None:
    """A panel's title, small where it is longer than its axes."""
    if not panel.title:
        return
    longest = max(map(style.text_in, panel.title.split("\n")))
    look = {
        "size": style.TEXT_PT if longest < wide else style.SMALL_PT,
        "color": style.MUTED if panel.quiet else style.INK,
    }
    above = bottom - (REMARK_IN if panel.remark else 0)
    written = [style.write(figure, x, above, panel.title, weight="bold", va="bottom", **look)]
    if panel.remark:
        small = {"size": style.SMALL_PT, "color": style.MUTED, "va": "bottom"}
        written.append(style.write(figure, x, bottom, panel.remark, **small))
    if panel.of is not None:
        marks.tag(written, panel.of)


def from_zero(axis: Any, low: float, high: float) -> None:
    """Ticks of a linear scale from 0 on; what stands below is no value."""
    style.plain_ticks(axis)
    ticks = axis.get_major_locator().tick_values(0, high)
    axis.set_ticks([tick for tick in ticks if 0 <= tick <= high])


def powers(axis: Any, low: float, high: float) -> None:
    """Ticks of a logarithmic scale as powers of ten."""
    style.log_ticks(axis, low, high)
    written = style.FuncFormatter(lambda v, _: words.scientific(v).replace("1.0 × ", ""))
    axis.set_major_formatter(written)


def _draw(
    ax: Any,
    panel: Panel,
    limits: tuple,
    at: Layout,
    small: bool,
    named_y: bool,
    named_x: bool,
    ticks_x: bool,
) -> None:
    """One panel on its axes."""
    panel.x.shape(ax, "x", limits[0])
    panel.y.shape(ax, "y", limits[1])
    for mark in panel.marks:
        mark.onto(ax)
    panel.x.mark(ax, "x", limits[0])
    if panel.labels:
        size = style.SMALL_PT if small else style.TEXT_PT
        names = [style.fitting(name, at.lefts[0], size) if named_y else "" for name in panel.labels]
        ax.set_yticks(range(len(names)), names)
        ink = style.MUTED if panel.quiet else style.INK
        ax.tick_params(axis="y", length=0, labelsize=size, labelcolor=ink)
        ax.spines["left"].set_visible(False)
        if panel.label_rows:
            marks.tag_labels(ax.yaxis, panel.label_rows)
        look = {"va": "center", "size": style.SMALL_PT, "color": style.MUTED}
        for y, name in panel.headings.items():
            short = style.fitting(name, at.lefts[0] + at.inner, style.SMALL_PT)
            ax.text(-at.lefts[0] / at.inner, y, short, transform=ax.get_yaxis_transform(), **look)
    else:
        panel.y.mark(ax, "y", limits[1])
        if named_y:
            ax.set_ylabel(panel.y.label, size=style.SMALL_PT)
        else:
            ax.set_yticklabels([])
    if named_x:
        ax.set_xlabel(panel.x.label, size=style.SMALL_PT)
    if not ticks_x:
        ax.tick_params(labelbottom=False)
    ax.grid(axis=panel.grid or ("x" if panel.labels else "y"))
    if panel.finish:
        panel.finish(ax)
