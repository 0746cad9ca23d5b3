"""Memory bandwidth over the size of the working set, a curve for each backend."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.render import by_shape, chart, hover, style
from siliconprof.render.book import Book
from siliconprof.render.by_shape import GIGA, MEMORY
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.variants import Row

KERNELS = ("copy", "triad", "reduction")


def add(data: Data, book: Book, prefix: str = "") -> None:
    """A figure for each device."""
    points = data.of_module("bandwidth")
    if not points:
        book.note(data.why_none("bandwidth", "memory bandwidth"))
    for device, every in grouped(points, lambda point: point["device"]).items():
        group = [point for point in every if point["bytes_per_s"]]
        if not group:
            book.note(f"No memory bandwidth of {device} is drawn: its records hold no times.")
            continue
        size = data.cache_bytes(group[0])
        upright = f"upright line is its last-level cache, {words.mebibytes(size or 0)}"
        book.figure(
            f"{prefix}bandwidth-{device}",
            "bandwidth",
            partial(draw, data, group),
            device=data.device_name(group[0]),
            cache=f" The {upright if size else 'size of its last-level cache is unknown'}.",
        )


def draw(data: Data, points: Sequence[Row], narrow: bool) -> Any:
    """Bandwidth over working set on two log axes, one panel a kernel, one line a backend."""
    sheets = (data.ceiling_value(p, "memory_bandwidth", "datasheet_value") for p in points)
    sheet, cache = next(filter(None, sheets), None), data.cache_bytes(points[0])
    panels = []
    for kernel in KERNELS:
        part = [point for point in points if point["kernel"] == kernel]
        shown = [mark for line in grouped(part, _line_name).values() for mark in _curve(line)]
        if cache:
            shown += [chart.upright(cache), chart.aside("cache", x=cache)]
        if sheet:
            shown += [
                chart.across(sheet / GIGA, color=style.INK, dashes=(3, 2)),
                chart.aside("data sheet", y=sheet / GIGA, color=style.INK),
            ]
        if part:
            sizes = Scale("working set", log=2, ticks=_size_ticks)
            panels.append(Panel(shown, sizes, Scale("GB/s", log=10), title=kernel))
    lines = {_line_name(point): _sample(point) for point in points}
    legend = [(sample, name) for name, sample in lines.items()]
    return Chart(panels, legend, (3, 1), same_y=True, side_in=0.25).figure(narrow)


def _line_name(point: Row) -> str:
    return f"{words.backend_name(point)} · {point['precision']} · {point['cache']}"


def _look(point: Row) -> dict[str, Any]:
    """Colour of backend and precision; cold is dashed and hollow."""
    ink, cold = style.colour(point), point["cache"] == "cold"
    return {
        "color": ink,
        "dashes": (3, 1.2) if cold else (1, 0),
        "marker": "o",
        "markersize": 3.0,
        "markerfacecolor": style.PAPER if cold else ink,
        "markeredgewidth": 0.8,
    }


def _sample(point: Row) -> Any:
    look = _look(point)

    def draw(ax: Any, x: float, y: float) -> None:
        ax.plot([x, x + 0.15], [y, y], color=look["color"], dashes=look["dashes"])
        ax.plot([x + 0.075], [y], **look | {"dashes": (1, 0)})

    return draw


def _curve(line: Sequence[Row]) -> Iterator[Mark]:
    """The points of a line with their intervals, from small working sets to large ones."""
    points = sorted(line, key=lambda point: point["working_set_bytes"])
    sizes = [point["working_set_bytes"] for point in points]
    for size, point in zip(sizes, points, strict=True):
        _, low, high = by_shape.median_rate(MEMORY, point)
        if low and high:
            yield chart.line([size, size], [low / GIGA, high / GIGA], point)
    rates = [point["bytes_per_s"] for point in points]
    text = (
        f"{points[0]['kernel']}, {_line_name(points[0])}: "
        f"{hover.of_several(rates, 'GB/s', GIGA)}; {_size(sizes[-1])}: "
        f"{words.scaled(rates[-1], 'B/s')}"
    )
    gigas = [rate / GIGA for rate in rates]
    yield chart.line(sizes, gigas, points, text, linewidth=1.1, **_look(points[0]))


def _size_ticks(axis: Any, low: float, high: float) -> None:
    """Powers of two with their unit, as many as fit."""
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    step = math.ceil(len(powers) / style.ticks_in(axis)) or 1
    axis.set_major_locator(style.FixedLocator([2.0**n for n in powers[::step]]))
    axis.set_minor_locator(style.FixedLocator([]))
    axis.set_major_formatter(style.FuncFormatter(lambda value, _: _size(value)))


def _size(size_bytes: float) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:g} {unit}"
    return f"{size_bytes:g} B"
