"""Memory bandwidth over the size of the working set, a curve for each backend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.analyse.throughputs import device_of
from siliconprof.render import hover, marks, style
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.variants import Row

GIGA = 1e9
KERNELS = ("copy", "triad", "reduction")
PANEL_IN = 1.55


def add(data: Data, book: Book, prefix: str = "") -> None:
    """A figure for each device."""
    points = data.of_module("bandwidth")
    if not points:
        book.note(data.why_none("bandwidth", "memory bandwidth"))
    for device in dict.fromkeys(point["device"] for point in points):
        group = [p for p in points if p["device"] == device and p["bytes_per_s"]]
        if not group:
            book.note(f"No memory bandwidth of {device} is drawn: its records hold no times.")
            continue
        book.figure(
            f"{prefix}bandwidth-{device}",
            "bandwidth",
            partial(draw, data, group),
            device=data.device_name(group[0]),
            cache=_cache_text(data, group[0]),
        )


def _cache_bytes(data: Data, row: Row) -> float | None:
    return next(
        (
            words.number(line["last_level_cache_bytes"])
            for line in data.ceilings
            if device_of(line) == device_of(row) and line["last_level_cache_bytes"]
        ),
        None,
    )


def _cache_text(data: Data, row: Row) -> str:
    size = _cache_bytes(data, row)
    if size is None:
        return " The size of its last-level cache is unknown."
    return f" The upright line is its last-level cache, {words.mebibytes(size)}."


def draw(data: Data, points: Sequence[Row], narrow: bool) -> Any:
    """Bandwidth over working set on two log axes, one panel a kernel, one line a backend."""
    kernels = [name for name in KERNELS if any(p["kernel"] == name for p in points)]
    width = style.width_in(narrow)
    lines = {(p["backend"], p["precision"], p["cache"]): p for p in points}
    entries = [(_sample(p), _line_name(p)) for p in lines.values()]
    head = style.legend_height(entries, width) + 0.08
    title, foot, left, gap = 0.24, 0.42, 0.4, 0.34
    columns = 1 if narrow else len(kernels)
    rows = -(-len(kernels) // columns)
    figure = style.canvas(width, head + rows * (title + PANEL_IN + foot))
    style.legend(figure, entries, 0.0)
    panel = (width - left - 0.05 - gap * (columns - 1)) / columns
    rates = [end / GIGA for p in points for end in _ends(p) if end]
    sheet = next((v for p in points if (v := _sheet_bandwidth(data, p))), None)
    low = min(rates) / 1.3
    high = max([*rates, *([sheet / GIGA] if sheet else [])]) * 1.3
    sizes = [p["working_set_bytes"] for p in points]
    cache = _cache_bytes(data, points[0])
    for index, kernel in enumerate(kernels):
        row, column = divmod(index, columns)
        x, y = left + column * (panel + gap), head + row * (title + PANEL_IN + foot)
        style.write(figure, x, y + title / 2, kernel, weight="bold", va="center")
        ax = style.axes(figure, x, y + title, panel, PANEL_IN)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xlim(min(sizes) / 1.4, max(sizes) * 1.4)
        ax.set_ylim(low, high)
        ax.grid(axis="y")
        if cache:
            ax.axvline(cache, color=style.MUTED, linewidth=0.7)
            ax.annotate(
                "cache",
                (cache, high),
                (2, 0),
                ha="left",
                va="top",
                textcoords="offset points",
                size=style.SMALL_PT,
                color=style.MUTED,
            )
        if sheet:
            ax.axhline(sheet / GIGA, color=style.INK, linewidth=0.7, dashes=(3, 2))
            ax.annotate(
                "data sheet",
                (min(sizes), sheet / GIGA),
                (0, 2),
                ha="left",
                va="bottom",
                textcoords="offset points",
                size=style.SMALL_PT,
            )
        for name in lines:
            part = [
                p
                for p in points
                if p["kernel"] == kernel and (p["backend"], p["precision"], p["cache"]) == name
            ]
            _curve(ax, sorted(part, key=lambda p: p["working_set_bytes"]))
        _size_ticks(ax, min(sizes), max(sizes), panel)
        style.log_ticks(ax.yaxis, low, high)
        if column:
            ax.set_yticklabels([])
        else:
            ax.set_ylabel("GB/s", size=style.SMALL_PT)
        ax.set_xlabel("working set", size=style.SMALL_PT)
    return figure


def _sheet_bandwidth(data: Data, point: Row) -> float | None:
    line = data.ceiling(point, "memory_bandwidth")
    return words.number(line["datasheet_value"]) if line else None


def _ends(point: Row) -> list[float | None]:
    """The median bandwidth, and the ends of its 95 % interval."""
    amount = words.number(point["bytes"])
    ends = [words.number(point[name]) for name in ("step_high_s", "step_low_s")]
    return [
        words.number(point["bytes_per_s"]),
        *(amount / e if amount and e else None for e in ends),
    ]


def _line_name(point: Row) -> str:
    return f"{words.backend_name(point)} · {point['precision']} · {point['cache']}"


def _look(point: Row) -> dict[str, Any]:
    """Colour of backend and precision; cold is dashed and hollow."""
    cold = point["cache"] == "cold"
    return {
        "color": style.colour(point),
        "dashes": (3, 1.2) if cold else (1, 0),
        "marker": "o",
        "markersize": 3.0,
        "markerfacecolor": style.PAPER if cold else style.colour(point),
        "markeredgewidth": 0.8,
    }


def _sample(point: Row) -> Any:
    look = _look(point)

    def draw(ax: Any, x: float, y: float) -> None:
        ax.plot([x, x + 0.15], [y, y], color=look["color"], dashes=look["dashes"])
        ax.plot([x + 0.075], [y], **{k: v for k, v in look.items() if k != "dashes"})

    return draw


def _curve(ax: Any, points: Sequence[Row]) -> None:
    if not points:
        return
    sizes = [p["working_set_bytes"] for p in points]
    for size, point in zip(sizes, points, strict=True):
        _, low, high = _ends(point)
        if low and high:
            marks.tag(
                ax.plot(
                    [size, size],
                    [low / GIGA, high / GIGA],
                    color=style.colour(points[0]),
                    linewidth=0.9,
                ),
                point,
            )
    rates = [p["bytes_per_s"] for p in points]
    line = ax.plot(sizes, [rate / GIGA for rate in rates], linewidth=1.1, **_look(points[0]))
    marks.tag(
        line,
        points,
        f"{points[0]['kernel']}, {_line_name(points[0])}: "
        f"{hover.of_several(rates, 'GB/s', GIGA)}; {_size(sizes[-1])}: "
        f"{words.scaled(rates[-1], 'B/s')}",
    )


def _size_ticks(ax: Any, low: float, high: float, panel: float) -> None:
    """Powers of two with their unit, as many as fit."""
    first, last = int(math.log2(low)), int(math.log2(high)) + 1
    step = max(1, math.ceil((last - first) / max(panel / 0.55, 1)))
    ticks = [2.0**n for n in range(first, last + 1, step) if low / 1.4 <= 2.0**n <= high * 1.4]
    ax.xaxis.set_major_locator(style.FixedLocator(ticks))
    ax.xaxis.set_minor_locator(style.FixedLocator([]))
    ax.xaxis.set_major_formatter(style.FuncFormatter(lambda value, _: _size(value)))


def _size(size_bytes: float) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:g} {unit}"
    return f"{size_bytes:g} B"
