"""The drawing of the stack that was measured, after the paper's Figure 1; see `stack_boxes`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from siliconprof import words
from siliconprof.render import marks, style
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.stack_boxes import (
    DEVICE,
    LAYERS,
    OK,
    UNSUPPORTED,
    Box,
    Stack,
    backends_of,
    build,
    line_of,
    line_text,
    ordered,
    strands,
)
from siliconprof.render.variants import Row
from siliconprof.store.records import HERE

BOX_IN, GAP_IN, LINE_IN = 0.36, 0.4, 0.08  # a box's height, between layers, between its lines
SIDE_IN, TOP_IN = 0.06, 0.03
BOLD = 1.22  # wider than plain text


def add(data: Data, book: Book) -> None:
    """The drawing of all cells, this host's and others'; one line where there is none."""
    if not data.cells:
        book.note("No stack is drawn: the experiment has no cell, here or on another host.")
        return
    built = build(data)
    elsewhere = any(row["source"] != HERE for row in data.cells)
    unmeasured = [pair for pair, rows in built.pairs.items() if line_of(rows) == UNSUPPORTED]
    book.figure(
        "stack",
        "stack",
        partial(draw, built),
        grey=" Grey, dashed: every cell that would go there is unsupported." if unmeasured else "",
        elsewhere=" Framed in violet: devices of other hosts." if elsewhere else "",
    )


# -- figure ------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where a box stands, in inches from the upper left corner."""

    left: float
    top: float
    width: float

    @property
    def middle(self) -> float:
        """Of its width."""
        return self.left + self.width / 2


def _box_width(box: Box, rows: Sequence[Row], most: float, narrow: bool) -> float:
    title = style.text_in(box.title, style.TEXT_PT) * BOLD
    below = style.text_in(_below(box, narrow) or _counted(rows), style.SMALL_PT)
    return min(max(title, below) + 2 * 0.06, most)


def _below(box: Box, narrow: bool) -> str:
    """The second line; on a phone without what stands in brackets, such as a library's file."""
    return re.sub(r" \([^)]*\)", "", box.below) if narrow else box.below


def _counted(rows: Sequence[Row]) -> str:
    measured = sum(row["status"] == OK for row in rows)
    return f"{measured} of {words.count(len(rows), 'cell')}"


def layout(stack: Stack, narrow: bool) -> tuple[dict[Box, Place], list[float], float]:
    """(places of all boxes, top of each layer, height of all), boxes wrapped at the width."""
    width = style.width_in(narrow)
    left = 0.0 if narrow else 0.7
    places: dict[Box, Place] = {}
    tops, top = [], TOP_IN + (0.2 if narrow else 0.0)
    for boxes in ordered(stack):
        tops.append(top)
        rows: list[list[tuple[Box, float]]] = [[]]
        for box in boxes:
            needed = _box_width(box, stack.layers[box.layer][box], width - left, narrow)
            used = sum(w + SIDE_IN for _, w in rows[-1])
            if rows[-1] and used + needed > width - left:
                rows.append([])
            rows[-1].append((box, needed))
        for line in rows:
            spare = width - left - sum(w for _, w in line)
            gap = spare / (len(line) + 1)
            x = left + gap
            for box, needed in line:
                places[box] = Place(x, top, needed)
                x += needed + gap
            top += BOX_IN + LINE_IN
        top += GAP_IN - LINE_IN
    return places, tops, top - GAP_IN + TOP_IN


def draw(stack: Stack, narrow: bool) -> Any:
    """Layers from workloads down to devices, with the lines of the cells behind the boxes."""
    places, tops, high = layout(stack, narrow)
    width = style.width_in(narrow)
    backends = backends_of(stack)
    entries = [
        (style.sample(None, "-", color=style.shade(name), linewidth=1.4), name) for name in backends
    ]
    if any(line_of(rows) == UNSUPPORTED for rows in stack.pairs.values()):
        entries.append((style.sample(None, "-", color=style.FAINT, dashes=(2, 2)), "unsupported"))
    head = style.legend_height(entries, width) + 0.12 if entries else 0.0
    figure = style.canvas(width, head + high + 0.04)
    if entries:
        style.legend(figure, entries, 0.0)
    ax = style.axes(figure, 0, head, width, high + 0.04)
    ax.set_xlim(0, width)
    ax.set_ylim(high + 0.04, 0)
    ax.axis("off")
    for name, top in zip(LAYERS, tops, strict=True):
        at = top - 0.11 if narrow else top + BOX_IN / 2
        ax.text(0, at, name, size=style.SMALL_PT, weight="bold", color=style.MUTED, va="center")
    _lines(ax, stack, places, backends)
    for boxes in stack.layers:
        for box, rows in boxes.items():
            _box(ax, box, rows, places[box], narrow)
    return figure


def _lines(ax: Any, stack: Stack, places: dict[Box, Place], backends: Sequence[str]) -> None:
    """Curves from box to box; those of one box leave it in the order of their ends."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    lines = strands(stack, backends)
    ports: dict[tuple[int, bool], float] = {}
    for is_upper in (True, False):
        by_box: dict[Box, list[int]] = {}
        far: list[float] = []  # where each line ends on its other side
        for index, (upper, lower, _, _) in enumerate(lines):
            by_box.setdefault(upper if is_upper else lower, []).append(index)
            far.append(places[lower if is_upper else upper].middle)
        for box, indices in by_box.items():
            indices.sort(key=lambda i: (far[i], str(lines[i][2])))
            place = places[box]
            room = min(place.width - 0.12, 0.11 * (len(indices) - 1))
            for order, index in enumerate(indices):
                share = order / (len(indices) - 1) - 0.5 if len(indices) > 1 else 0.0
                ports[index, is_upper] = place.middle + share * room
    for index, (upper, lower, backend, rows) in enumerate(lines):
        x0, x1 = ports[index, True], ports[index, False]
        y0, y1 = places[upper].top + BOX_IN, places[lower].top
        bend = (y1 - y0) / 2
        path = Path(
            [(x0, y0), (x0, y0 + bend), (x1, y1 - bend), (x1, y1)],
            [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4],
        )
        look: dict[str, Any] = {
            "edgecolor": style.FAINT,
            "linewidth": 0.9,
            "linestyle": (0, (2, 2)),
        }
        if backend is not None:
            look = {"edgecolor": style.shade(backend), "linewidth": 1.3}
        line = PathPatch(path, facecolor="none", **look)
        ax.add_patch(line)
        marks.tag(line, rows, line_text(upper, lower, backend, rows))


def _fitting(text: str, room: float, size: float) -> str:
    """The text, cut where it is wider than the room."""
    most = int(room / style.text_in("x", size))
    return text if len(text) <= most else text[: max(most - 1, 1)].rstrip(" ,(") + "…"


def _box(ax: Any, box: Box, rows: Sequence[Row], place: Place, narrow: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    measured = any(row["status"] == OK for row in rows)
    edge = style.shade("other") if box.badge else style.MUTED if measured else style.FAINT
    ink = style.INK if measured else style.MUTED
    frame = FancyBboxPatch(
        (place.left + 0.03, place.top + 0.03),
        place.width - 0.06,
        BOX_IN - 0.06,
        boxstyle="round,pad=0.03,rounding_size=0.05",
        facecolor=style.PAPER,
        edgecolor=edge,
        linewidth=1.1 if box.badge else 0.7,
        linestyle="-" if measured else (0, (2, 2)),
    )
    ax.add_patch(frame)
    below = _below(box, narrow) or _counted(rows)
    room = place.width - 0.06
    title = _fitting(box.title, room / BOLD, style.TEXT_PT)
    texts = [
        ax.text(
            place.middle,
            place.top + 0.125,
            title,
            ha="center",
            va="center",
            size=style.TEXT_PT,
            weight="bold",
            color=ink,
        ),
        ax.text(
            place.middle,
            place.top + 0.255,
            _fitting(below, room, style.SMALL_PT),
            ha="center",
            va="center",
            size=style.SMALL_PT,
            color=style.MUTED,
        ),
    ]
    if box.badge:  # on the frame's lower edge
        texts.append(
            ax.text(
                place.middle,
                place.top + BOX_IN,
                box.badge,
                ha="center",
                va="center",
                size=style.SMALL_PT - 0.7,
                style="italic",
                color=style.shade("other"),
                bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.6},
            )
        )
    text = ", ".join(filter(None, (box.title, box.below, box.badge)))
    devices = list(dict.fromkeys(str(row["device"]) for row in rows))
    listed = f" ({', '.join(devices)})" if box.layer == DEVICE and len(devices) > 1 else ""
    marks.tag([frame, *texts], rows, f"{text}{listed}: {_counted(rows)} measured")
