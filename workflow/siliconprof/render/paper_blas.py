"""The paper's Figures 5, 6 and 7: products, matrix-vector products and gradients, by its pairs.

A pair is one NVIDIA GPU beside one Apple chip of about its computing power (section 4.4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from siliconprof import words
from siliconprof.analyse.throughputs import device_of
from siliconprof.render import operations, uncertainty
from siliconprof.render.book import Book
from siliconprof.render.data import Data, grouped
from siliconprof.render.operations import PRODUCTS, Limit, Rate, shape_key, shape_name
from siliconprof.render.tables import Column, Table, Value, missing, spanned, told
from siliconprof.render.variants import Row, backend_place

PAIRS = (  # as section 4.4 of the paper compares and names them
    {"rtx-a6000": "RTX A6000", "m2-ultra-76": "M2 Ultra"},
    {"rtx-2080-ti": "RTX 2080 Ti", "m2-max-38": "M2 Max"},
    {"quadro-rtx-4000": "Quadro RTX 4000", "m2-pro-19": "M2 Pro"},
)
PAPER_SHAPE = (8, 2000, 2000, 2000)
FORMATS = ("fp32", "fp16", "bf16")  # TF32 is another fp32
PICTURE = "the paper shows its values only as a picture"
OF_RATIOS = "by medians; what both 95 % intervals allow below"
OF_BURSTS = "by the mean of launches in a row, as the paper times it"
OF_FIRST = "the first line of this shape and format, in the same pair or device; by medians"
UNMEASURED = "one of the two was not measured"
SAME = "it is the line that others are compared with"


class Operation(NamedTuple):
    """One figure of the paper."""

    figure: str  # its number there
    module: str
    title: str
    wanted: Mapping[str, str]  # values of the points that are compared


OPERATIONS = (
    Operation("5", "matmul", "matrix-matrix product", {}),
    Operation("6", "matvec", "matrix-vector product", {"cache": "warm"}),
    Operation("7", "vjp", "vector-Jacobian product", {"forward": "without"}),
)
Shape = tuple[int, ...]


def add(data: Data, book: Book) -> None:
    """The table of each of the three figures, and what was not measured."""
    for operation in OPERATIONS:
        name = f"paper-figure-{operation.figure}"
        book.heading(f"Figure {operation.figure}: {operation.title}", anchor=f"{name}-blas")
        measured = groups(data, operation)
        for line in absent(data, operation, measured):
            book.note(line)
        intervals = uncertainty.origin_text(point for group in measured for point in group)
        if measured:
            table = Table.of(lines(measured), columns(data), attrgetter("point"))
            book.table(name, name, table, counted="line", intervals=intervals)


def of_operation(data: Data, operation: Operation) -> list[Row]:
    """The measured points of an operation that its table may compare."""
    return [
        point
        for point in data.of_module(operation.module)
        if point["precision"] in FORMATS
        and not point.get("of")
        and words.number(point["flop_per_s"])
        and all(point[name] == value for name, value in operation.wanted.items())
    ]


def groups(data: Data, operation: Operation) -> list[list[Row]]:
    """Points of the pairs of which anything was measured, then of every other device by itself."""
    points = of_operation(data, operation)
    in_pairs = [[point for point in points if point["device"] in pair] for pair in PAIRS]
    paired = [device for pair in PAIRS for device in pair]
    others = grouped((p for p in points if p["device"] not in paired), device_of)
    return [_chosen(operation, group) for group in (*in_pairs, *others.values()) if group]


def _chosen(operation: Operation, points: Sequence[Row]) -> list[Row]:
    """The points to compare, each shape once for a device, backend and format.

    Of products the paper's shape alone; where it was not measured, the largest batch's.
    """
    if operation.module == "matmul":
        shapes = {_shape(point) for point in points}
        best = PAPER_SHAPE if PAPER_SHAPE in shapes else max(_common(points) or shapes)
        points = [point for point in points if _shape(point) == best]
    alike = grouped(points, lambda point: (*_way(point), shape_key(point)))
    return [
        next((point for point in group if point.get("burst_mean_s")), group[0])
        for group in alike.values()
    ]


def _way(point: Row) -> tuple:
    return (*device_of(point), point["backend"], point["precision"])


def _shape(point: Row) -> Shape:
    return tuple(int(point[name]) for name in ("batch", "m", "k", "n"))


def _common(points: Sequence[Row]) -> set[Shape]:
    """The shapes that every device, backend and format of the points has."""
    return set.intersection(*({*map(_shape, way)} for way in grouped(points, _way).values()))


def absent(data: Data, operation: Operation, measured: Sequence[Sequence[Row]]) -> list[str]:
    """The devices missing from the pairs, one sentence for each reason."""
    known = {point["device"] for group in measured for point in group}
    failed = [c for c in data.cells if c["module"] == operation.module and c["status"] != "ok"]
    by_reason: dict[str, list[str]] = {}
    for pair in PAIRS:
        rest = {device: name for device, name in pair.items() if device not in known}
        reasons = {f"{c['status']}: {c['reason']}" for c in failed if c["device"] in rest}
        if rest:
            why = f" ({'; '.join(sorted(reasons))})" if reasons else " on any host here"
            by_reason.setdefault(why, []).append(" / ".join(rest.values()))
    return [
        f"{words.listing(names)}: not measured{why}; {PICTURE}." for why, names in by_reason.items()
    ]


# -- table -------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A point, and those that it is compared with."""

    point: Row
    in_fp32: Row | None  # of the same shape, device and backend
    first: Row | None  # of the first device and backend that has its shape and format


def lines(measured: Sequence[Sequence[Row]]) -> list[Line]:
    """The points of each pair or device by shape, device, backend and number format."""
    result = []
    for group in measured:
        for _, same in sorted(grouped(group, shape_key).items()):
            ways = grouped(same, lambda point: _way(point)[:-1]).values()
            ordered = sorted(ways, key=lambda way: backend_place(way[0]["backend"]))
            points = [p for way in ordered for p in sorted(way, key=_format)]
            in_fp32 = {_way(p)[:-1]: p for p in points if p["precision"] == "fp32"}
            for point in points:
                first = next(p for p in points if p["precision"] == point["precision"])
                result.append(Line(point, in_fp32.get(_way(point)[:-1]), first))
    return result


def _format(point: Row) -> int:
    return FORMATS.index(point["precision"])


def _over(of: Callable[[Limit, Row], Rate | None], under: str, line: Line) -> Value:
    """How many times as high one throughput is as another, what both intervals allow below."""
    other = getattr(line, under)
    if other is line.point:
        return missing(SAME)
    rates = [of(PRODUCTS, row) if row else None for row in (line.point, other)]
    over, by = rates
    if not (over and by and over.middle and by.middle):
        return missing(UNMEASURED)
    ends: tuple[float | None, float | None] = (None, None)
    if over.low and over.high and by.low and by.high:
        ends = (over.low / by.high, over.high / by.low)
    return spanned(over.middle / by.middle, *ends)


def _rate(line: Line) -> Value:
    return operations.with_interval(operations.median_rate(PRODUCTS, line.point))


def columns(data: Data) -> tuple[Column, ...]:
    """Throughput, format against format and backend against backend."""

    def shape(line: Line) -> Value:
        return Value(shape_name(line.point), float(shape_key(line.point)[0]))

    def over(head: str, of: Any, under: str, help: str) -> Column:
        return Column(head, "×", True, help, value=partial(_over, of, under))

    return (
        told("Shape", shape),
        told("Device", lambda line: data.place(line.point)),
        told("Backend", lambda line: words.backend_name(line.point)),
        told("Format", lambda line: line.point["precision"]),
        Column(
            "median", "GFLOP/s", True, "of synchronised calls, 95 % interval below", value=_rate
        ),
        over("over fp32", operations.median_rate, "in_fp32", OF_RATIOS),
        over("burst over fp32", operations.burst_rate, "in_fp32", OF_BURSTS),
        over("over first", operations.median_rate, "first", OF_FIRST),
    )
