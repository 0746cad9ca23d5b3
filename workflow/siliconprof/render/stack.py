"""The drawing of the stack that was measured, after the paper's Figure 1.

Five layers, from what is trained to what it runs on. A line joins two boxes where at least one
cell was measured through both, in the colour of its backend; it is grey where every cell that
would pass through both is unsupported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path

from siliconprof import plugins, words
from siliconprof.analyse import throughputs
from siliconprof.render import marks, style
from siliconprof.render.book import Book
from siliconprof.render.data import Data, grouped
from siliconprof.render.variants import Row, backend_place
from siliconprof.store.records import HERE
from siliconprof.workloads.base import KernelWorkload

FAMILY_ORDER = ("GPT-2", "Whisper", "Transformers", "MLP, CNN, LSTM")  # then others, operations
LAYERS = ("Workload", "Trainer", "Framework", "Backend", "Device")
TRAINERS = {
    None: "no trainer",
    "plain": "plain loop",
    "hf": "Hugging Face Trainer",
    "epochs": "epoch loop",
    "training_run": "whole training",
}
DEEPSPEED = "DeepSpeed"
FRAMEWORKS = {"torch": "torch", "mlx": "MLX"}
LIBRARY_OF = {"torch-cuda": "CUDA", "torch-mps": "MPS"}  # of a GPU, by backend
MLX_LIBRARY = {"apple": "Metal", "nvidia": "CUDA"}  # and of MLX on it, by the GPU's vendor
MOST_BOXES = 5  # of a layer; more are put together
SOFTWARE, DEVICE = 2, 4  # first layer that is put together, and the last one
JOINED = {2: "versions", 3: "libraries", DEVICE: "devices"}
OK, UNSUPPORTED = "ok", "unsupported"
BOX_IN, GAP_IN, LINE_IN = 0.36, 0.4, 0.08  # a box's height, between layers, between its lines
SIDE_IN, TOP_IN = 0.06, 0.03
BOLD = 1.22  # wider than plain text
DASHED = (0, (2, 2))


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


# -- boxes and lines --------------------------------------------------------------------------


class Box(NamedTuple):
    """One box: its layer and its two lines of text."""

    layer: int
    title: str
    below: str = ""
    badge: str = ""  # of another host or a reference


@dataclass
class Stack:
    """Boxes of every layer with their cells, and the cells of each pair of neighbours."""

    layers: list[dict[Box, list[Row]]] = field(default_factory=lambda: [{} for _ in LAYERS])
    pairs: dict[tuple[Box, Box], list[Row]] = field(default_factory=dict)


def build(data: Data) -> Stack:
    """Every cell's way through the layers; boxes put together where there are too many."""
    # the versions that measured cells name, for those that do not; the first of a host's
    versions = {
        (row["source"], row["host"], framework_of(row["backend"])): str(row["framework_version"])
        for row in reversed(data.cells)
        if row.get("framework_version")
    }
    ways = [(row, way(data, row, versions)) for row in data.cells]
    joined = [_joined(ways, layer) for layer in range(len(LAYERS))]
    stack = Stack()
    for row, boxes in ways:
        placed = [names.get(box, box) for names, box in zip(joined, boxes, strict=True)]
        for layer, box in enumerate(placed):
            stack.layers[layer].setdefault(box, []).append(row)
        for pair in pairwise(placed):
            stack.pairs.setdefault(pair, []).append(row)
    return stack


def way(data: Data, row: Row, versions: dict[tuple, str]) -> list[Box]:
    """The five boxes of one cell."""
    backend, kind = row["backend"], family_of(row)
    trainer = DEEPSPEED if row.get("offloads") else TRAINERS.get(row["trainer"], row["trainer"])
    framework = framework_of(backend)
    version = row.get("framework_version") or versions.get((row["source"], row["host"], framework))
    own = data.host["devices"] if row["source"] == HERE else []
    listed = [data.device(row) or {}, *(one for one in own if one["id"] == row["device"])]
    vendor = next((one["vendor"] for one in listed if one.get("vendor")), "")
    memory = words.number(row.get("device_memory_bytes"))
    name = re.sub(r"^(NVIDIA) GeForce ", r"\1 ", data.device_name(row)).replace(" GPU cores", "")
    size = words.mebibytes(memory) if memory else "memory unknown"
    badge = words.SOURCE_BADGES.get(row["source"], "")
    return [
        Box(0, kind),
        Box(1, str(trainer)),
        Box(2, framework, str(version) if version else "version not recorded"),
        Box(3, backend, _library(row, vendor)),
        Box(DEVICE, name, f"{size} · {row['host']}", badge),
    ]


def family_of(row: Row) -> str:
    """What a cell's workload belongs to; its module where the plug-in is not here."""
    workload = throughputs.workload_of(row)
    return str(row["module"]) if workload is None else str(workload.family)


def framework_of(backend: str) -> str:
    """What a backend computes with; its own name where the plug-in is not here."""
    if backend not in plugins.names("backends"):
        return str(backend)
    framework = plugins.load("backends", backend).framework
    return FRAMEWORKS.get(framework, framework)


def _library(row: Row, vendor: str) -> str:
    """What a backend multiplies with: on a CPU the BLAS that was mapped, on a GPU its interface."""
    if row["device_kind"] == "cpu":
        return f"CPU, {row['blas']}" if row.get("blas") else "CPU, BLAS not recorded"
    return LIBRARY_OF.get(row["backend"]) or MLX_LIBRARY.get(vendor, "GPU")


def _joined(ways: Sequence[tuple[Row, list[Box]]], layer: int) -> dict[Box, Box]:
    """Box -> the one that stands for it, where a layer has more than can be told apart.

    Devices are put together by vendor, software by its name; this host's stay apart from others'.
    Equal devices of one host are one box from the start, which says how many they are.
    """
    counts = {
        box: len({row["device"] for row, _ in through}) if layer == DEVICE else 1
        for box, through in grouped(ways, lambda way: way[1][layer]).items()
    }
    several = {box: box._replace(title=f"{n} × {box.title}") for box, n in counts.items() if n > 1}
    if len(counts) <= MOST_BOXES or layer < SOFTWARE:
        return several

    def kind(box: Box) -> tuple[str, str]:
        """The first word of a device, `NVIDIA`, `Apple`; all of a software's name."""
        name = re.split(r"[\s,]", box.title, maxsplit=1)[0] if layer == DEVICE else box.title
        return name, box.badge

    for (title, badge), group in grouped(counts, kind).items():
        if len(group) > 1:
            of_each = (box.title if layer == DEVICE else box.below for box in group)
            names = list(dict.fromkeys(of_each))
            more = f", and {len(names) - 2} more" if len(names) > 2 else ""
            below = ", ".join(names[:2]) + more
            title_of_all = f"{title}: {sum(counts[box] for box in group)} {JOINED[layer]}"
            several |= dict.fromkeys(group, Box(layer, title_of_all, below, badge))
    return several


def line_of(rows: Sequence[Row]) -> str | None:
    """How a pair is joined: `ok`, `unsupported`, or None, where nothing was measured."""
    statuses = {row["status"] for row in rows}
    if OK in statuses:
        return OK
    return UNSUPPORTED if UNSUPPORTED in statuses else None


def backends_of(stack: Stack) -> list[str]:
    """Backends with a measured cell, in the page's order."""
    backends = {
        row["backend"] for rows in stack.layers[0].values() for row in rows if row["status"] == OK
    }
    return sorted(backends, key=backend_place)


def strands(stack: Stack, backends: Sequence[str]) -> list[tuple[Box, Box, str | None, list[Row]]]:
    """(upper box, lower box, backend or None where all is unsupported, its cells) of every line."""
    lines: list[tuple[Box, Box, str | None, list[Row]]] = []
    for (upper, lower), rows in stack.pairs.items():
        kind = line_of(rows)
        if kind == UNSUPPORTED:
            lines.append((upper, lower, None, [r for r in rows if r["status"] == UNSUPPORTED]))
        for name in backends if kind == OK else ():
            own = [row for row in rows if row["backend"] == name and row["status"] == OK]
            if own:
                lines.append((upper, lower, name, own))
    return lines


def line_text(upper: Box, lower: Box, backend: str | None, rows: Sequence[Row]) -> str:
    """What is shown beside the pointer on a line."""
    between = f"{upper.title} to {lower.title}"
    if backend is None:
        reasons = sorted({str(row["reason"]) for row in rows})
        return f"{between}: {words.count(len(rows), 'cell')} unsupported ({'; '.join(reasons)})"
    return f"{between}, {backend}: {words.count(len(rows), 'cell')} measured"


def ordered(stack: Stack) -> list[list[Box]]:
    """Boxes of each layer from left to right: under what they are joined with, on the mean."""

    def family_place(box: Box) -> tuple[bool, int, str]:
        known = box.title in FAMILY_ORDER
        place = FAMILY_ORDER.index(box.title) if known else len(FAMILY_ORDER)
        return (box.title == KernelWorkload.family, place, box.title)

    layers = [sorted(stack.layers[0], key=family_place)]
    for boxes in stack.layers[1:]:

        def mean(box: Box, above: Sequence[Box] = layers[-1]) -> float:
            ends = [above.index(upper) for upper, lower in stack.pairs if lower == box]
            return sum(ends) / len(ends)

        layers.append(sorted(boxes, key=mean))
    return layers


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


def _box_width(box: Box, rows: Sequence[Row], most: float) -> float:
    title = style.text_in(box.title, style.TEXT_PT) * BOLD
    below = style.text_in(box.below or _counted(rows), style.SMALL_PT)
    return min(max(title, below) + 2 * 0.06, most)


def _counted(rows: Sequence[Row]) -> str:
    measured = sum(row["status"] == OK for row in rows)
    return f"{measured} of {words.count(len(rows), 'cell')}"


def layout(stack: Stack) -> tuple[dict[Box, Place], list[float], float]:
    """(places of all boxes, top of each layer, height of all), boxes wrapped at the width."""
    left = 0.7
    room = style.WIDTH_IN - left
    places: dict[Box, Place] = {}
    tops, top = [], TOP_IN
    for boxes in ordered(stack):
        tops.append(top)
        rows: list[dict[Box, float]] = [{}]
        for box in boxes:
            needed = _box_width(box, stack.layers[box.layer][box], room)
            if rows[-1] and sum(rows[-1].values()) + SIDE_IN * len(rows[-1]) + needed > room:
                rows.append({})
            rows[-1][box] = needed
        for widths in rows:
            gap = (room - sum(widths.values())) / (len(widths) + 1)
            x = left + gap
            for box, width in widths.items():
                places[box] = Place(x, top, width)
                x += width + gap
            top += BOX_IN + LINE_IN
        top += GAP_IN - LINE_IN
    return places, tops, top - GAP_IN + TOP_IN


def draw(stack: Stack) -> Any:
    """Layers from workloads down to devices, with the lines of the cells behind the boxes."""
    places, tops, high = layout(stack)
    width = style.WIDTH_IN
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
        ax.text(
            0,
            top + BOX_IN / 2,
            name,
            size=style.SMALL_PT,
            weight="bold",
            color=style.MUTED,
            va="center",
        )
    _lines(ax, stack, places, backends)
    for boxes in stack.layers:
        for box, rows in boxes.items():
            _box(ax, box, rows, places[box])
    return figure


def _lines(ax: Any, stack: Stack, places: dict[Box, Place], backends: Sequence[str]) -> None:
    """Curves from box to box; those of one box leave it in the order of their ends."""
    lines = strands(stack, backends)
    ports: dict[tuple[int, int], float] = {}  # a line and its side -> where that leaves its box
    for side in (0, 1):
        own, far = ([line[:2][end] for line in lines] for end in (side, 1 - side))
        for box in dict.fromkeys(own):
            indices = [index for index, one in enumerate(own) if one == box]
            indices.sort(key=lambda i: (places[far[i]].middle, str(lines[i][2])))
            room = min(places[box].width - 0.12, 0.11 * (len(indices) - 1))
            for order, index in enumerate(indices):
                share = order / (len(indices) - 1) - 0.5 if len(indices) > 1 else 0.0
                ports[index, side] = places[box].middle + share * room
    for index, (upper, lower, backend, rows) in enumerate(lines):
        x0, x1 = ports[index, 0], ports[index, 1]
        y0, y1 = places[upper].top + BOX_IN, places[lower].top
        bend = (y1 - y0) / 2
        corners = [(x0, y0), (x0, y0 + bend), (x1, y1 - bend), (x1, y1)]
        look: dict[str, Any] = {"edgecolor": style.FAINT, "linewidth": 0.9, "linestyle": DASHED}
        if backend is not None:
            look = {"edgecolor": style.shade(backend), "linewidth": 1.3}
        path = Path(corners, [Path.MOVETO, *[Path.CURVE4] * 3])
        line = ax.add_patch(PathPatch(path, facecolor="none", **look))
        marks.tag(line, rows, line_text(upper, lower, backend, rows))


def _fitting(text: str, room: float, size: float) -> str:
    """The text, cut where it is wider than the room."""
    most = int(room / style.text_in("x", size))
    return text if len(text) <= most else text[: max(most - 1, 1)].rstrip(" ,(") + "…"


def _box(ax: Any, box: Box, rows: Sequence[Row], place: Place) -> None:
    """A frame with its two lines; the badge stands on the frame's lower edge."""
    measured = any(row["status"] == OK for row in rows)
    frame = FancyBboxPatch(
        (place.left + 0.03, place.top + 0.03),
        place.width - 0.06,
        BOX_IN - 0.06,
        boxstyle="round,pad=0.03,rounding_size=0.05",
        facecolor=style.PAPER,
        edgecolor=style.shade("other") if box.badge else style.MUTED if measured else style.FAINT,
        linewidth=1.1 if box.badge else 0.7,
        linestyle="-" if measured else DASHED,
    )
    ax.add_patch(frame)
    room, small = place.width - 0.06, style.SMALL_PT
    title = _fitting(box.title, room / BOLD, style.TEXT_PT)
    bold = {
        "size": style.TEXT_PT,
        "weight": "bold",
        "color": style.INK if measured else style.MUTED,
    }
    below = _fitting(box.below or _counted(rows), room, small)
    written = [(0.125, title, bold), (0.255, below, {"size": small, "color": style.MUTED})]
    if box.badge:
        under = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.6}
        look = {
            "size": small - 0.7,
            "style": "italic",
            "color": style.shade("other"),
            "bbox": under,
        }
        written.append((BOX_IN, box.badge, look))
    texts = [
        ax.text(place.middle, place.top + down, line, ha="center", va="center", **look)
        for down, line, look in written
    ]
    text = ", ".join(filter(None, (box.title, box.below, box.badge)))
    devices = list(dict.fromkeys(str(row["device"]) for row in rows))
    listed = f" ({', '.join(devices)})" if box.layer == DEVICE and len(devices) > 1 else ""
    marks.tag([frame, *texts], rows, f"{text}{listed}: {_counted(rows)} measured")
