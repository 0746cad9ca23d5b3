"""Products, matrix-vector products and vjps over a sweep of shapes: one figure and table for each.

An operation is held against what limits it: a product, timed in two ways, and a vjp, which is what
a backward pass computes, against the fastest product; a matrix-vector product, which uses every
value once, against the memory's bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from siliconprof import words
from siliconprof.analyse.throughputs import device_of
from siliconprof.render import chart, hover, style
from siliconprof.render.book import Book, parts
from siliconprof.render.chart import RING, Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import (
    Value,
    missing,
    spanned,
)
from siliconprof.render.variants import PRECISION_ORDER, Row

GIGA = 1e9
SHAPES_PER_FIGURE = 24
UNTIMED = "nothing was timed"


class Rate(NamedTuple):
    """A throughput with the ends of its 95 % interval, per second; None where there is none."""

    middle: float | None
    low: float | None = None
    high: float | None = None


class Limit(NamedTuple):
    """What bounds an operation."""

    unit: str
    amount: str  # the column of the work
    rate: str  # the column of the throughput
    ceiling: str  # the line of ceilings.csv
    label: str  # in a figure's legend
    sheet: str  # what the data sheet's line is called
    share: str  # how a share of it is called

    @property
    def per_second(self) -> str:
        """The unit without its prefix."""
        return self.unit.removeprefix("G")


FASTEST, BANDWIDTH = "fastest product measured here", "memory bandwidth measured here"
PRODUCTS = Limit("GFLOP/s", "flops", "flop_per_s", "matmul", FASTEST, "peak", "of peak")
MEMORY = Limit(
    "GB/s", "bytes", "bytes_per_s", "memory_bandwidth", BANDWIDTH, "bandwidth", "of data sheet"
)


class Way(NamedTuple):
    """One way in which a shape was measured."""

    name: str
    filled: bool
    rate: Callable[[Row], Rate]


class Operation(NamedTuple):
    """What was measured at many shapes.

    Args:
        apart: a parameter beside the shape that tells points apart, such as `cache`.
        with_own: whether our own ceiling of each backend is drawn.
    """

    module: str
    what: str
    limit: Limit
    ways: Sequence[Way]
    apart: str = ""
    with_own: bool = True


def shape_key(point: Row) -> tuple:
    """Shapes in order of their work."""
    batch, m, k, n = (int(point[name]) for name in ("batch", "m", "k", "n"))
    return (batch * m * k * n, batch, m, k, n)


def shape_name(point: Row) -> str:
    """`8 × 128³`; of a matrix-vector product the matrix alone."""
    if point["module"] != "matvec":
        return words.shape(point)
    batch, m, k = (int(point[name]) for name in ("batch", "m", "k"))
    matrix = f"{m}²" if m == k else f"{m} × {k}"
    if batch == 1:
        return matrix
    return f"{batch} × {matrix if m == k else f'({matrix})'}"


def median_rate(limit: Limit, point: Row) -> Rate:
    """From the median of single calls."""
    amount, low, high = (
        words.number(point[name]) for name in (limit.amount, "step_low_s", "step_high_s")
    )
    middle = words.number(point[limit.rate])
    if not (middle and amount and low and high):
        return Rate(middle)
    return Rate(middle, amount / high, amount / low)


def burst_rate(limit: Limit, point: Row) -> Rate:
    """From the mean of launches in a row."""
    amount, seconds = words.number(point[limit.amount]), words.number(point["burst_mean_s"])
    return Rate(amount / seconds if amount and seconds else None)


def _add(data: Data, book: Book, operation: Operation) -> None:
    """Figures for each device and workload, and a table of all points."""
    points = data.of_module(operation.module)
    if not points:
        book.note(data.why_none(operation.module, operation.what))

    def place(point: Row) -> tuple:
        return device_of(point), point["workload"]

    # a record may lack the times of a point
    timed = [p for p in points if any(rate for way in operation.ways for rate in way.rate(p))]
    for (_, workload), group in grouped(timed, place).items():
        shapes = sorted(set(map(shape_key, group)))
        name = f"{operation.module}-{workload}-{data.slug_of(group[0])}"
        for part_name, part in parts(name, shapes, SHAPES_PER_FIGURE):
            book.figure(
                part_name,
                operation.module,
                partial(draw, data, [p for p in group if shape_key(p) in part], operation),
                workload=workload,
                device=data.place(group[0]),
            )


# -- figure ------------------------------------------------------------------------------------


def draw(data: Data, points: Sequence[Row], operation: Operation) -> Any:
    """Shapes from small to large downwards, throughput on a log axis, one panel a precision."""
    limit, ways = operation.limit, operation.ways
    backends = list(dict.fromkeys(point["backend"] for point in points))
    rows = grouped(sorted(points, key=shape_key), shape_key)
    places = {shape: y for y, shape in enumerate(rows)}
    owns: dict[tuple[str, str], float] = {}
    for point in points if operation.with_own else ():
        if value := data.ceiling_value(point, limit.ceiling):
            owns[point["precision"], point["backend"]] = value
    precisions = grouped(points, lambda point: point["precision"])
    by_precision = {name: precisions[name] for name in PRECISION_ORDER if name in precisions}
    sheets = {
        name: data.ceiling_value(group[0], limit.ceiling, "datasheet_value")
        for name, group in by_precision.items()
    }
    rates = [rate for p in points for way in ways for rate in way.rate(p) if rate]
    reach = [v / GIGA for v in (*rates, *owns.values(), *sheets.values()) if v]

    def panel(precision: str, group: Sequence[Row]) -> Panel:
        shown = [
            chart.across(y - 0.5, color=style.RULE, linewidth=0.4) for y in range(1, len(rows))
        ]
        ceilings = {b: owns[precision, b] for b in backends if (precision, b) in owns}
        for backend, value in ceilings.items():
            ink, whose = style.shade(backend), f"{backend} {precision}"
            if limit is MEMORY:
                ink, whose = style.MUTED, "by any backend"
            text = f"{limit.label}, {whose}: {hover.rate(value, limit.per_second)}"
            limited = [p for p in group if p["backend"] == backend]
            shown.append(
                chart.upright(value / GIGA, limited, text, color=ink, linewidth=0.9, dashes=(1, 1))
            )
        for point in group:
            apart = (backends.index(point["backend"]) + 0.5) / len(backends) - 0.5
            shown += _marks(places[shape_key(point)] + 0.62 * apart, point, operation)
        if sheet := sheets[precision]:
            at = sheet / GIGA
            shown.append(chart.upright(at, color=style.INK, dashes=(3, 2)))
            look = {"ha": "right", "va": "bottom", "color": style.INK}
            shown.append(chart.note(at, -0.5, f"{limit.sheet} ", shift=(0, 1), **look))
        return Panel(
            shown,
            Scale(limit.unit, log=10, reach=reach),
            labels=[shape_name(group[0]) for group in rows.values()],
            label_rows=list(rows.values()),
            title=precision,
            row_in=row_in,
        )

    row_in = 0.12 + 0.1 * len(backends)
    legend = [*style.backends(points, 3.2), *((_sample(way), way.name) for way in ways)]
    if owns:
        legend.append((style.sample(None, "-", color=style.MUTED, dashes=(1, 1)), limit.label))
    panels = [panel(*item) for item in by_precision.items()]
    return Chart(panels, legend, 4, same_y=True).figure()


def _sample(way: Way) -> Any:
    size, face = (3.2, {}) if way.filled else (4.2, RING)
    return style.sample("o", color=style.MUTED, markersize=size, **face)


def _marks(y: float, point: Row, operation: Operation) -> Iterator[Mark]:
    """A dot for each way in which a point was measured, with its interval; filled ones on top."""
    ink = style.shade(point["backend"])
    for way in reversed(operation.ways):
        rate = way.rate(point)
        if not rate.middle:
            continue
        if rate.low and rate.high:
            yield chart.line([rate.low / GIGA, rate.high / GIGA], [y, y], point, color=ink)
        what = hover.interval_name(point, "step")
        unit = operation.limit.per_second
        text = (
            f"{shape_name(point)}, {words.backend_name(point)} {point['precision']}: "
            f"{way.name.split(',')[0]} {hover.rate(rate.middle, unit, rate.low, rate.high, what)}"
        )
        look: dict[str, Any] = {"size": 3.2}
        if not way.filled:  # its face hides an interval shorter than itself
            look = {"size": 4.6} | RING | ({"markerfacecolor": style.PAPER} if rate.low else {})
        yield chart.dot(rate.middle / GIGA, y, point, text, color=ink, **look)


def with_interval(rate: Rate) -> Value:
    """A throughput in 10⁹ a second, its interval below."""
    if rate.middle is None:
        return missing(UNTIMED)
    return spanned(rate.middle, rate.low, rate.high, GIGA)


def _where(name: str, value: str, limit: Limit, point: Row) -> Rate:
    """The median of points measured in one way."""
    return median_rate(limit, point) if point[name] == value else Rate(None)


MATMUL = Operation(
    "matmul",
    "matrix product",
    PRODUCTS,
    (
        Way("adaptive median, 95 % interval", True, partial(median_rate, PRODUCTS)),
        Way("mean of a burst", False, partial(burst_rate, PRODUCTS)),
    ),
    with_own=False,
)
MATVEC = Operation(
    "matvec",
    "matrix-vector product",
    MEMORY,
    (
        Way("matrix left in the cache (warm)", True, partial(_where, "cache", "warm", MEMORY)),
        Way("matrix read from memory (cold)", False, partial(_where, "cache", "cold", MEMORY)),
    ),
    "cache",
)
VJP = Operation(
    "vjp",
    "vjp",
    PRODUCTS,
    (
        Way("gradients alone", True, partial(_where, "forward", "without", PRODUCTS)),
        Way("with the forward pass", False, partial(_where, "forward", "with", PRODUCTS)),
    ),
    "forward",
)


def add_products(data: Data, book: Book) -> None:
    """Matrix products."""
    _add(data, book, MATMUL)


def add(data: Data, book: Book) -> None:
    """Matrix-vector products and vjps."""
    for operation in (MATVEC, VJP):
        _add(data, book, operation)
