"""What each device does at most by its own measurement.

With its memory bandwidth over the size of the working set, a curve for each backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.analyse.throughputs import device_of, place
from siliconprof.render import chart, hover, operations, style
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.operations import GIGA, MEMORY
from siliconprof.render.tables import Column, Table, Value, missing, quantity, told
from siliconprof.render.variants import Row

OF_FORMAT = ("matmul", "memory_bandwidth", "cache_bandwidth")
Lines = dict[str, Row]  # lines of csv of one place by their quantity


def add(data: Data, book: Book) -> None:
    """The ceilings and the bandwidth curves."""
    if not data.ceilings:
        book.note("No ceilings: no cell is part of these results.")
        return
    book.table("ceilings", "ceilings", ceilings_table(data))
    _bandwidth(data, book)


def caution(data: Data, line: Row) -> str:
    """`noisy` where the cell that a line of csv is from is flagged so; see `words.caution`."""
    cells = (cell for cell in data.cells if cell["record"] == line["record"])
    return words.caution(*cells).removeprefix("flagged ")


def _behind(data: Data, lines: Lines) -> list[Row]:
    """The cells that lines of ceilings are from; where nothing was measured, all of their place."""
    records = {line["record"] for line in lines.values()}
    where = {place(line) for line in lines.values()}
    cells = [cell for cell in data.cells if cell["record"] in records]
    return cells or [cell for cell in data.cells if place(cell) in where]


def _figure(line: Row) -> Value:
    """A ceiling with the point that it is from."""
    value = quantity(line["value"], str(line["reason"]), GIGA)
    if value.reason:
        return value
    n = words.number(line["n"])
    counted = f", n = {n:.0f}" if n else ""
    title = f"{line['workload']}{counted}: {line['record']}"
    return replace(value, below=line["how"], title=title, badge=line["caution"])


def _share(line: Row) -> Value:
    """The share of the data sheet's figure, which stands below."""
    sheet = words.number(line["datasheet_value"])
    if sheet is None:
        return missing(str(line["datasheet_reason"]))
    share = quantity(line["share"], str(line["reason"]), 0.01)
    note = f" ({line['datasheet_note']})" if line["datasheet_note"] else ""
    title = f"{line['datasheet_source']}{note}"
    return replace(share, below=words.significant(sheet / GIGA, 4), title=title)


def _error(line: Row) -> Value:
    """Half of its 95 % interval as a share, with what that is."""
    return quantity(line["error"], str(line["reason"]), 0.01, 2, title=line["interval"])


def _burst(line: Row) -> Value:
    return quantity(line["burst_value"], line["reason"] or "no burst was timed", GIGA)


PLACE = (
    told("Device", lambda lines: lines[OF_FORMAT[0]]["device"], folds=True),
    told("Backend", lambda lines: words.backend_name(lines[OF_FORMAT[0]])),
)


def ceilings_table(data: Data) -> Table:
    """One line for each device, backend and number format."""

    def column(
        head: str, unit: str, value: Callable[[Row], Value], of: str, help: str, below: str
    ) -> Column:
        return Column(head, unit, True, help, below, value=lambda lines: value(lines[of]))

    product, memory, cache = OF_FORMAT
    sheet = "the median over the peak, which stands below"
    sheet_memory = "memory over its bandwidth, which stands below"
    best = "best working set that fits the last-level cache"
    far = "far beyond the last-level cache; kernel below"
    columns = [
        *PLACE,
        told("Precision", lambda lines: lines[product]["precision"]),
        column("fastest product", "GFLOP/s", _figure, product, "median; its shape below", "shape"),
        column("burst mean", "GFLOP/s", _burst, product, "of the same shape", "range"),
        column("of data sheet", "%", _share, product, sheet, "GFLOP/s"),
        column("memory", "GB/s", _figure, memory, far, "kernel"),
        column("of data sheet", "%", _share, memory, sheet_memory, "GB/s"),
        column("cache", "GB/s", _figure, cache, best, "kernel"),
    ]
    for name, of in (("± product", product), ("± memory", memory)):
        differ = "half of its 95 % interval"
        columns.append(replace(column(name, "%", _error, of, differ, "range"), folds=True))
    lines = (
        line | {"caution": caution(data, line)}
        for line in data.ceilings
        if line["quantity"] in OF_FORMAT
    )
    groups = grouped(lines, lambda line: (*place(line), line["precision"]))
    rows = [{line["quantity"]: line for line in group} for group in groups.values()]
    return Table.of(rows, columns, partial(_behind, data))


KERNELS = ("copy", "triad", "reduction")


def _bandwidth(data: Data, book: Book) -> None:
    """A figure for each device."""
    points = data.of_module("bandwidth")
    if not points:
        book.note(data.why_none("bandwidth", "memory bandwidth"))
    for every in grouped(points, device_of).values():
        group = [point for point in every if point["bytes_per_s"]]
        device = data.slug_of(every[0])
        if not group:
            book.note(f"No memory bandwidth of {device} is drawn: its records hold no times.")
            continue
        size = data.cache_bytes(group[0])
        upright = f"upright line is its last-level cache, {words.mebibytes(size or 0)}"
        book.figure(
            f"bandwidth-{device}",
            "bandwidth",
            partial(draw, data, group),
            device=data.place(group[0]),
            cache=f" The {upright if size else 'size of its last-level cache is unknown'}.",
        )


def draw(data: Data, points: Sequence[Row]) -> Any:
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
    return Chart(panels, legend, 3, same_y=True, side_in=0.25).figure()


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


def _sample(point: Row) -> style.Sample:
    look = _look(point)

    line = style.sample(None, "-", color=look["color"], dashes=look.pop("dashes"))
    marker = style.sample(**look)
    return lambda x, y: [*line(x, y), *marker(x, y)]


def _curve(line: Sequence[Row]) -> Iterator[Mark]:
    """The points of a line with their intervals, from small working sets to large ones."""
    points = sorted(line, key=lambda point: point["working_set_bytes"])
    sizes = [point["working_set_bytes"] for point in points]
    for size, point in zip(sizes, points, strict=True):
        _, low, high = operations.median_rate(MEMORY, point)
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
