"""Axes, ticks, marks and legends that all drawers share.

A mark is an artist that the page's pointer and filter find: `mark` attaches rows and hover texts to
it, and `svg` writes them into the drawing. In every drawer, disturbed values are hollow and published
ones hatched or open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from math import ceil
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from siliconprof import formatting
from siliconprof.analyse.frames import holds, records
from siliconprof.render import style

WIDTH_IN = 7.0
ROW_IN = 0.2  # of one category
TITLE_IN, TICKS_IN, LABEL_IN, GAP_IN = 0.24, 0.2, 0.2, 0.1
TITLE_LINE_IN = 0.16  # of a second line of a title
LEGEND_ROW_IN = 0.17
DISTURBED_MEANS = "disturbed by other processes"
PUBLISHED_MEANS = "published, not measured here"
MOST_LABEL_IN = 0.5 * WIDTH_IN
_NUMBERS = count()
Dot = tuple[float, float, Mapping[str, Any], str]  # x, y, its row, what stands beside the pointer


def text(value: Any) -> str:
    """A name as it stands beside an axis; what is missing is empty."""
    return "" if value is None or value != value else str(value)


def is_true(row: Mapping[str, Any], name: str) -> bool:
    """Whether a column of the row is True."""
    return row.get(name) is not None and row[name] == True  # noqa: E712  # numpy's and pandas' too


def panels(frame: pd.DataFrame, column: str) -> list[tuple[str, pd.DataFrame]]:
    """Parts of a frame, in the order in which their names first come."""
    if not column:
        return [("", frame)]
    return [(str(name), part) for name, part in frame.groupby(column, sort=False)]


def measured(row: Mapping[str, Any], column: str, unit: str) -> str:
    """`12.3 ms ± 4 %` of a row, its interval in `{column}_low` and `_high`."""
    value = row[column]
    low, high = row.get(f"{column}_low"), row.get(f"{column}_high")
    shown = f"{formatting.significant(value)}{formatting.NARROW}{unit}".rstrip()
    if low is None or high is None or low != low or high != high or not value:
        return shown
    return f"{shown} ± {formatting.whole_percent(abs((high - low) / 2 / value))}"


def mark(artist: Any, *told: tuple[Mapping[str, Any], str]) -> None:
    """Attach rows and their hover texts to an artist, and give it the look of the first row.

    Several rows are the markers of one line, in order.
    """
    (row, _), *_ = told
    has_marker = isinstance(artist, Line2D) and artist.get_marker() not in ("", "None")
    if is_true(row, "published"):
        if isinstance(artist, Rectangle):
            artist.set(facecolor="none", edgecolor=style.MUTED, hatch=style.HATCH, linewidth=0.5)
        elif has_marker:
            artist.set(markerfacecolor="none", markeredgecolor=style.MUTED, marker="d")
        elif isinstance(artist, Line2D):
            artist.set(color=style.MUTED, linestyle=":")
    elif is_true(row, "disturbed"):
        if isinstance(artist, Rectangle):
            artist.set(facecolor=style.PAPER, edgecolor=artist.get_facecolor(), linewidth=0.8)
        elif has_marker:
            artist.set(markerfacecolor=style.PAPER, markeredgewidth=0.8)
    artist.set_gid(f"mark-{next(_NUMBERS)}")  # by which `svg` finds its element
    artist.marks = [(row, _remarks(row, hover)) for row, hover in told]


def _remarks(row: Mapping[str, Any], hover: str) -> str:
    parts = [hover, text(row.get("hover"))]
    if is_true(row, "published"):
        parts.append(PUBLISHED_MEANS)
    elif is_true(row, "disturbed"):
        parts.append(DISTURBED_MEANS)
    return "; ".join(filter(None, parts))


def add_dots(
    ax: Axes, told: Iterable[Dot], size: float, shapes: Mapping[str, str], hue: str = ""
) -> None:
    """Add markers of rows in their own colour or a `hue`, one artist for all that look alike.

    On a logarithmic axis all values must be above 0.
    """
    alike: dict[tuple[Any, ...], list[Dot]] = {}
    for one in told:
        *_, row, _ = one
        shape = shapes.get(text(row.get("place")), "o")
        kind = is_true(row, "published"), is_true(row, "disturbed")
        alike.setdefault((hue or style.colour(row), shape, kind), []).append(one)
    for (color, shape, _), dots in alike.items():
        xs, ys, rows, hovers = zip(*dots, strict=True)
        line = add_line(ax, xs, ys, color=color, marker=shape, markersize=size, linestyle="none")
        mark(line, *zip(rows, hovers, strict=True))


def add_line(ax: Axes, xs: Sequence[float], ys: Sequence[float], **look: Any) -> Line2D:
    """Add a line or markers to axes with fixed ends; `plot` would autoscale each time."""
    line = Line2D(xs, ys, **look)
    ax.add_artist(line)
    return line


def limits(values: Iterable[Any], log: bool, zero: bool = False) -> tuple[float, float]:
    """Both ends of an axis for some values, with room beyond the outermost."""
    arrays = [np.ravel(np.asarray(each, dtype=float)) for each in values]
    known = np.concatenate(arrays) if arrays else np.ones(1)
    known = known[np.isfinite(known) & ((known > 0) | (not log))]
    least, most = (known.min(), known.max()) if len(known) else (1.0, 1.0)
    if log:
        return least / 1.4, most * 1.4
    if zero:
        room = max(most, -least, 1e-30) * 0.06
        return min(0.0, least - room if least < 0 else 0.0), max(most, 0.0) + room
    room = max((most - least) * 0.06, abs(most) * 1e-3, 1e-30)
    return least - room, most + room


def scale(axis: Any, log: bool, label: str, ends: tuple[float, float] | None = None) -> None:
    """Ends, kind and ticks of an axis, as plain numbers, and its label."""
    side = axis.axis_name
    if log:
        getattr(axis.axes, f"set_{side}scale")("log")
    if ends:
        getattr(axis.axes, f"set_{side}lim")(*ends)
    low, high = axis.get_view_interval()
    if log and high / low > 8:
        decades = np.log10(high / low)
        subs = (1, 2, 5) if decades < 2 else (1, 3) if decades < 4 else (1,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    else:
        axis.set_major_locator(MaxNLocator(4 if side == "y" else 5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_minor_locator(NullLocator())  # they are not drawn, and cost more than all else here
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axis.set_label_text(label)


def tick(value: float) -> str:
    """A number beside an axis."""
    shown = formatting.significant(value, 3)
    return shown.rstrip("0").rstrip(".") if 0 < abs(value) < 100 and "." in shown else shown


def categories(ax: Axes, labels: Sequence[str], headings: Sequence[int] = ()) -> None:
    """One line a category, the first on top; some of them are bold headings of those below."""
    room = ax.get_position().x0 * WIDTH_IN
    limit = int(room / style.text_in("x"))
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.set_yticks(range(len(labels)), [formatting.shortened(label, limit) for label in labels])
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0, labelcolor=style.INK, labelsize=style.TEXT_PT)
    for place in headings:
        label = ax.get_yticklabels()[place]
        label.set(fontweight="bold", color=style.MUTED)


Entry = tuple[Any, str]  # of a legend: what is drawn, and what it means


def legend_rows(entries: Sequence[Entry]) -> tuple[int, int]:
    """(columns, rows) of a legend across the figure."""
    if not entries:
        return 1, 0
    each = style.widest_in([name for _, name in entries], style.SMALL_PT) + 0.45
    columns = max(1, min(len(entries), int(WIDTH_IN / each)))
    return columns, ceil(len(entries) / columns)


def layout(
    heights_in: Sequence[float],
    labels: Sequence[str],
    titles: Sequence[str],
    entries: Sequence[Entry],
    columns: int = 1,
) -> tuple[Figure, list[Axes]]:
    """Make a figure with a legend on top and axes below, `columns` in a row.

    Args:
        heights_in: of each pair of axes.
        labels: of categories; without any there is room for numbers.
        titles: of each pair of axes.
    """
    left = min(style.widest_in(labels) + 0.12, MOST_LABEL_IN) if labels else 0.6
    right = 0.5 if labels else 0.1
    legend_columns, n_legend = legend_rows(entries)
    limit = int((WIDTH_IN / columns - 0.1) / style.text_in("x") * 0.92)
    titles = ["\n".join(wrap(title, limit, max_lines=2, placeholder="…")) for title in titles]
    deepest = max((title.count("\n") for title in titles), default=0)
    head = TITLE_IN + deepest * TITLE_LINE_IN if any(titles) else 0.06
    foot = TICKS_IN + LABEL_IN
    tall = [max(heights_in[i : i + columns]) for i in range(0, len(heights_in), columns)] or [
        ROW_IN
    ]
    above, between = n_legend * LEGEND_ROW_IN + head, foot + GAP_IN + head
    whole = above + sum(tall) + (len(tall) - 1) * between + foot
    drawing = Figure(figsize=(WIDTH_IN, whole))
    width = WIDTH_IN / columns - left - right
    room = {"left": left / WIDTH_IN, "right": 1 - right / WIDTH_IN}
    room |= {"top": 1 - above / whole, "bottom": foot / whole}
    room |= {"wspace": (left + right) / width, "hspace": between * len(tall) / sum(tall)}
    grid = {"height_ratios": tall, **room}
    every = drawing.subplots(len(tall), columns, squeeze=False, gridspec_kw=grid).ravel()
    axes, surplus = every[: len(titles)], every[len(titles) :]
    for ax in surplus:
        ax.remove()
    for ax, title in zip(axes, titles, strict=True):
        # From the left edge of its labels, where these leave little room.
        at = (-72 * (left if labels else 0.4), 4)
        look: Any = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom"}
        ax.annotate(title, (0, 1), at, fontweight="bold", **look)
    if entries:
        handles, names = zip(*entries, strict=True)
        drawing.legend(handles, names, bbox_to_anchor=(0, 1), ncols=legend_columns)
    return drawing, [*axes]


def swatch(face: str, hatch: str = "") -> Patch:
    """A filled box of a legend."""
    return Patch(facecolor=face, hatch=hatch or None, edgecolor=style.MUTED if hatch else "none")


def dot(color: str, marker: str = "o", hollow: bool = False) -> Line2D:
    """A marker of a legend."""
    face = style.PAPER if hollow else color
    return Line2D(
        [], [], color=color, marker=marker, linestyle="none", markersize=4, markerfacecolor=face
    )


def stroke(color: str, dashes: str | tuple = "-") -> Line2D:
    """A line of a legend."""
    return Line2D([], [], color=color, linestyle=dashes, linewidth=1.2)


def kinds(frame: pd.DataFrame) -> list[Entry]:
    """Legend entries for the colours of backends and precisions."""
    own = frame[~holds(frame, "published")] if "backend" in frame else frame.iloc[:0]
    if "precision" not in own:
        own = own.assign(precision="")
    each = own.dropna(subset=["backend"]).drop_duplicates(["backend", "precision"])
    rows = sorted(records(each[["backend", "precision"]]), key=str)
    return [
        (dot(style.colour(row)), f"{row['backend']} {text(row['precision'])}".strip())
        for row in rows
    ]


def devices(frame: pd.DataFrame) -> dict[str, str]:
    """The marker of each device; all are dots where there is only one."""
    names = list(dict.fromkeys(frame.get("place", pd.Series(dtype=object)).dropna()))
    marks = style.DEVICE_MARKS
    return {name: marks[i % len(marks)] for i, name in enumerate(names)}


def device_entries(frame: pd.DataFrame) -> list[Entry]:
    """Legend entries for the markers, if there are several devices."""
    found = devices(frame)
    return [(dot(style.MUTED, shape), name) for name, shape in found.items()] * (len(found) > 1)


def looks(frame: pd.DataFrame) -> list[Entry]:
    """Legend entries for hollow and hatched marks, if there are any."""
    entries: list[Entry] = []
    if (holds(frame, "disturbed") & ~holds(frame, "published")).any():
        entries.append((dot(style.MUTED, "o", True), f"hollow: {DISTURBED_MEANS}"))
    if holds(frame, "published").any():
        entries.append((swatch("none", style.HATCH), PUBLISHED_MEANS))
    return entries
