"""Charts as values: marks on panels with scales. One function lays all of them out.

A figure says what it shows: its panels, the marks on them, what each mark is about, and the
legend. Sizes, margins, labels, ticks, grids, the phone's variant and the tags of the filter are
here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from siliconprof.render import marks, strokes, style

TITLE_IN, GAP_IN, RIGHT_IN = 0.26, 0.3, 0.1
TICKS_IN, NAMED_TICKS_IN = 0.16, 0.42  # below the axes: tick labels, and with the axis's label
VALUES_IN = 0.48  # left of the axes: tick labels and the axis's label
ROW_IN, NARROW_ROW_IN = 0.21, 0.3  # of one category
HALF_ROW = 0.5
PUBLISHED_PT2 = 49.0  # area of a published mark
HOLLOW: dict[str, Any] = {"markerfacecolor": style.PAPER, "markeredgewidth": 0.8}
RING: dict[str, Any] = {"markerfacecolor": "none", "markeredgewidth": 0.8}
LOG_ROOM, LINEAR_ROOM = 1.5, 0.06  # beyond the outermost values: a factor, a share of the range


@dataclass(frozen=True)
class Mark:
    """Something drawn on axes.

    Args:
        draw: of the axes; returns the artists.
        of: the row or rows of results that it shows; None where it is about no cell.
        text: what stands beside the pointer.
        xs, ys: the values that the scales must reach.
    """

    draw: Callable[[Any], Any]
    of: Any = None
    text: str = ""
    xs: Sequence[float] = ()
    ys: Sequence[float] = ()


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
    return Mark(lambda ax: ax.plot([x], [y], marker, markersize=size, **ink), of, text, [x], [y])


def line(xs: Sequence[float], ys: Sequence[float], of: Any, text: str = "", **look: Any) -> Mark:
    """A line through points; an interval is one of two points."""
    ink = _ink(of, {"linewidth": 0.9, **look})
    return Mark(lambda ax: ax.plot(xs, ys, **ink), of, text, xs, ys)


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

    def draw(ax: Any) -> Any:
        return ax.barh(y, end - start, left=start, height=height, **look)

    return Mark(draw, of, text, [start, end], [y])


def across(y: float, of: Any = None, text: str = "", **look: Any) -> Mark:
    """A line at a value, from side to side."""
    look = {"color": style.MUTED, "linewidth": 0.6, **look}
    return Mark(lambda ax: ax.axhline(y, **look), of, text, (), [y])


def upright(x: float, of: Any = None, text: str = "", **look: Any) -> Mark:
    """A line at a value, from top to bottom."""
    look = {"color": style.MUTED, "linewidth": 0.7, **look}
    return Mark(lambda ax: ax.axvline(x, **look), of, text, [x])


def diagonal() -> Mark:
    """Where both sides are equal, from corner to corner of axes with the same scale."""
    look = {"color": style.MUTED, "linewidth": 0.8, "dashes": (3, 2)}
    return Mark(lambda ax: ax.plot([0, 1], [0, 1], transform=ax.transAxes, **look))


def band(low: float, high: float, start: float | None = None) -> Mark:
    """A grey band between two values of y, from a value of x on or over all of them."""
    grey = style.shade("grey", 12)

    def draw(ax: Any) -> Any:
        left, right = ax.get_xlim()
        left = left if start is None else max(left, start)
        box = Rectangle((left, low), right - left, high - low, facecolor=grey, linewidth=0)
        return ax.add_patch(box)

    return Mark(draw, ys=[low, high])


def note(
    x: float,
    y: float,
    text: str,
    of: Any = None,
    shift: tuple[float, float] = (4, 0),
    **look: Any,
) -> Mark:
    """Words beside a place, moved by so many points; they do not widen the scales."""
    look = {"ha": "left", "va": "center", "size": style.SMALL_PT, "color": style.MUTED, **look}
    return Mark(lambda ax: ax.annotate(text, (x, y), shift, textcoords="offset points", **look), of)


def aside(text: str, x: float | None = None, y: float | None = None, **look: Any) -> Mark:
    """Words at the upper end of an upright line, or above the left end of a line across."""
    look = {"ha": "left", "size": style.SMALL_PT, "color": style.MUTED, **look}
    look |= {"va": "bottom" if x is None else "top"}

    def draw(ax: Any) -> Any:
        place = (ax.get_xlim()[0] if x is None else x, ax.get_ylim()[1] if y is None else y)
        shift = (0, 2) if x is None else (2, 0)
        return ax.annotate(text, place, shift, textcoords="offset points", **look)

    return Mark(draw)


def published(x: float, y: float, text: str, marker: str = "o", of: Any = None) -> Mark:
    """A published value: a hatched marker, never filled."""

    def draw(ax: Any) -> Any:  # a hatch needs more room than a dot has
        return ax.scatter([x], [y], PUBLISHED_PT2, marker=marker, **style.published("grey"))

    return Mark(draw, of, text, [x], [y])


def corner(text: str, of: Any = None, x: float = 1.0, y: float = 1.0, **look: Any) -> Mark:
    """Words at a place of the axes, as shares of their width and height."""
    look = {"ha": "right", "va": "top", "size": style.SMALL_PT, "color": style.MUTED, **look}
    return Mark(lambda ax: ax.text(x, y, text, transform=ax.transAxes, **look), of)


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

    def limits(self, values: Iterable[float]) -> tuple[float, float]:
        """Both ends, for the values of the marks."""
        known = [v for v in chain(values, self.reach) if v is not None and (v > 0 or not self.log)]
        least, most = (min(known), max(known)) if known else (1.0, 1.0)
        if self.log:
            low, high = least / LOG_ROOM, most * LOG_ROOM
        elif self.zero:
            low, high = min(0.0, least), most * (1 + LINEAR_ROOM) or 1.0
        else:
            room = max((most - least) * LINEAR_ROOM, abs(most) * 1e-3) or 1.0
            low, high = least - room, most + room
        first, last = self.ends
        return low if first is None else first, high if last is None else last

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
        row_in: height of a category in inches, on a desk and on a phone.
        high: of axes without categories, in inches.
        legend: of this panel alone, below its title.
        quiet: a title in grey, as that of published values.
        finish: draws what no mark can, at the end.
    """

    marks: Sequence[Mark]
    x: Scale = Scale()
    y: Scale = Scale()
    labels: Sequence[str] = ()
    label_rows: Sequence[Any] = ()
    title: str = ""
    of: Any = None
    high: float = 1.55
    row_in: tuple[float, float] = (ROW_IN, NARROW_ROW_IN)
    grid: str = ""
    legend: Sequence[style.Entry] = ()
    quiet: bool = False
    finish: Callable[[Any], None] | None = None

    def height_in(self, narrow: bool) -> float:
        """Of the axes alone."""
        return len(self.labels) * self.row_in[narrow] if self.labels else self.high

    def title_in(self) -> float:
        """Of the title alone."""
        return TITLE_IN + 0.12 * self.title.count("\n") if self.title else 0.0

    def head_in(self, inner: float) -> float:
        """Above axes of a width."""
        legend = style.legend_height(self.legend, inner) + 0.04 if self.legend else 0.0
        return self.title_in() + legend

    def foot_in(self) -> float:
        """Below the axes."""
        return NAMED_TICKS_IN if self.x.label else TICKS_IN

    def left_in(self, narrow: bool) -> float:
        """Beside the axes."""
        return style.labels_in(self.labels, narrow) + 0.1 if self.labels else VALUES_IN

    def limits(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Ends of x and of y."""
        x = self.x.limits(chain.from_iterable(mark.xs for mark in self.marks))
        if self.labels:
            return x, (len(self.labels) - HALF_ROW, -HALF_ROW)
        return x, self.y.limits(chain.from_iterable(mark.ys for mark in self.marks))


EMPTY = Panel((), high=0.0, finish=lambda ax: ax.axis("off"))


@dataclass(frozen=True)
class Chart:
    """A figure: a legend, and panels below it, row by row; `EMPTY` leaves a place free.

    Args:
        columns: panels beside each other, on a desk and on a phone.
        same_y: all panels of a row share categories or scale, which the first alone names.
        same_x: all panels of a column share the scale, which the last alone names.
        side_in: what is kept free at the right of each panel, in inches.
    """

    panels: Sequence[Panel]
    legend: Sequence[style.Entry] = ()
    columns: tuple[int, int] = (1, 1)
    same_y: bool = False
    same_x: bool = False
    side_in: float = RIGHT_IN

    def figure(self, narrow: bool) -> Figure:
        """Lay everything out and draw it."""
        width = style.width_in(narrow)
        columns = min(self.columns[narrow], max(len(self.panels), 1))
        head = style.legend_height(self.legend, width) + 0.06 if self.legend else 0.0
        lefts = [panel.left_in(narrow) for panel in self.panels]
        left = max(lefts, default=0.0)
        beside = 0.06 if self.same_y else left  # left of all columns but the first
        inner = (
            width - left - beside * (columns - 1) - GAP_IN * (columns - 1) * (not self.same_y)
        ) / columns - self.side_in
        lowest = [
            all(below is EMPTY for below in self.panels[index + columns :: columns])
            for index in range(len(self.panels))
        ]
        tops, above = [head], []  # of each row: where it begins, and what is above its axes
        for first in range(0, len(self.panels), columns):
            row = self.panels[first : first + columns]
            named = not self.same_x or any(lowest[first : first + columns])
            above.append(max(panel.head_in(inner) for panel in row))
            foot = max(panel.foot_in() for panel in row) if named else 0.1
            tops.append(tops[-1] + above[-1] + max(p.height_in(narrow) for p in row) + foot)
        figure = style.canvas(width, tops[-1])
        if self.legend:
            style.legend(figure, self.legend, 0.0)
        step = inner + self.side_in + beside + GAP_IN * (not self.same_y)
        shared = self._shared_limits()
        for index, panel in enumerate(self.panels):
            row_index, column = divmod(index, columns)
            x, top = left + column * step, tops[row_index]
            self._title(figure, panel, x - (0 if self.same_y else left), top)
            if panel.legend:
                style.legend(figure, panel.legend, top + panel.title_in(), x - 0.03, inner)
            high = panel.height_in(narrow)
            ax = style.axes(figure, x, top + above[row_index], inner, high)
            named_y, named_x = not column or not self.same_y, lowest[index] or not self.same_x
            _draw(ax, panel, shared(panel), narrow, named_y, named_x)
        return figure

    def _title(self, figure: Figure, panel: Panel, x: float, top: float) -> None:
        if not panel.title:
            return
        ink = {"color": style.MUTED} if panel.quiet else {}
        written = style.write(
            figure, x, top + panel.title_in() / 2, panel.title, weight="bold", va="center", **ink
        )
        if panel.of is not None:
            marks.tag(written, panel.of)

    def _shared_limits(self) -> Callable[[Panel], tuple]:
        """Limits of a panel: those of all where they share a side."""
        own = {id(panel): panel.limits() for panel in self.panels}
        xs, ys = ([own[id(p)][side] for p in self.panels if p.marks] for side in (0, 1))

        def limits(panel: Panel) -> tuple:
            x, y = own[id(panel)]
            if self.same_x:
                x = (min(low for low, _ in xs), max(high for _, high in xs))
            if self.same_y and not panel.labels:
                y = (min(low for low, _ in ys), max(high for _, high in ys))
            return x, y

        return limits


def _draw(ax: Any, panel: Panel, limits: tuple, narrow: bool, named_y: bool, named_x: bool) -> None:
    """One panel on its axes."""
    panel.x.shape(ax, "x", limits[0])
    panel.y.shape(ax, "y", limits[1])
    for mark in panel.marks:
        marks.tag(mark.draw(ax), mark.of, mark.text)
    panel.x.mark(ax, "x", limits[0])
    if panel.labels:
        ax.set_yticks(
            range(len(panel.labels)), list(panel.labels) if named_y else [""] * len(panel.labels)
        )
        size = style.SMALL_PT if narrow else style.TEXT_PT
        ink = style.MUTED if panel.quiet else style.INK
        ax.tick_params(axis="y", length=0, labelsize=size, labelcolor=ink)
        ax.spines["left"].set_visible(False)
        if panel.label_rows:
            marks.tag_labels(ax.yaxis, panel.label_rows)
    else:
        panel.y.mark(ax, "y", limits[1])
        if named_y:
            ax.set_ylabel(panel.y.label, size=style.SMALL_PT)
        else:
            ax.set_yticklabels([])
    if named_x:
        ax.set_xlabel(panel.x.label, size=style.SMALL_PT)
    else:
        ax.tick_params(labelbottom=False)
    ax.grid(axis=panel.grid or ("x" if panel.labels else "y"))
    if panel.finish:
        panel.finish(ax)
