"""The paper's Figures 5, 6 and 7: products, matrix-vector products and gradients, by its pairs.

A pair is one NVIDIA GPU beside one Apple chip of about its computing power (section 4.4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from siliconprof import words
from siliconprof.analyse.throughputs import device_of
from siliconprof.render import operations, uncertainty
from siliconprof.render.book import Book
from siliconprof.render.data import Data, grouped
from siliconprof.render.operations import PRODUCTS, Rate, shape_key, shape_name
from siliconprof.render.tables import Column, Table, Value, missing, published, spanned
from siliconprof.render.variants import Row, backend_place

PAIRS = (  # as section 4.4 of the paper compares and names them
    {"rtx-a6000": "RTX A6000", "m2-ultra-76": "M2 Ultra"},
    {"rtx-2080-ti": "RTX 2080 Ti", "m2-max-38": "M2 Max"},
    {"quadro-rtx-4000": "Quadro RTX 4000", "m2-pro-19": "M2 Pro"},
)
PAPER_SHAPE = (8, 2000, 2000, 2000)
FORMATS = ("fp32", "fp16", "bf16")  # a column each; TF32 is another fp32
PICTURE = "the paper shows its values only as a picture"
NAMES = ("Shape", "Device", "Backend")
BURST = "fp16 / fp32, burst"
OF_RATES = "median of synchronised calls, 95 % interval below"
OF_RATIOS = "by medians; what both 95 % intervals allow below"
OF_FIRST = "this line's throughput over that of the first line of its shape, by medians"
AGAINST_FIRST = (
    "“Against first” is the throughput of a line over that of the first line of the same shape in "
    "the same pair or device."
)
UNMEASURED = "was not measured with this shape, device and backend"


@dataclass(frozen=True)
class Operation:
    """One figure of the paper."""

    figure: str  # its number there
    module: str
    title: str
    statement: str  # how the published statements on it begin
    wanted: Mapping[str, str]  # values of the points that are compared


MATVEC, VJP = "matrix-vector product", "vector-Jacobian product"
OPERATIONS = (
    Operation("5", "matmul", "matrix-matrix product", "batched matrix product", {}),
    Operation("6", "matvec", MATVEC, MATVEC, {"cache": "warm"}),
    Operation("7", "vjp", VJP, VJP, {"forward": "without"}),
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
        lines = table(data, operation, measured)
        if lines.rows:
            book.table(name, name, lines, counted="line", intervals=intervals)


def of_operation(data: Data, operation: Operation) -> list[Row]:
    """The measured points of an operation that its table may compare."""
    return [
        point
        for point in data.of_module(operation.module)
        if point["precision"] in FORMATS
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


def stated(data: Data, operation: Operation) -> list[Row]:
    """The paper's statements with a number on one format against another."""
    return [
        row
        for row in data.published["feng2025_statements"]
        if (row["model"] or "").lower().startswith(operation.statement.lower())
    ]


def table(data: Data, operation: Operation, measured: Sequence[Sequence[Row]]) -> Table:
    """Throughputs, format against format and backend against backend; printed statements first."""
    points = [point for group in measured for point in group]
    formats = [name for name in FORMATS if any(point["precision"] == name for point in points)]
    formats = formats or list(FORMATS[:2])
    ratios = [name for name in FORMATS[1:] if name == "fp16" or name in formats]
    table = Table(
        [
            *map(Column, NAMES),
            *(Column(name, "GFLOP/s", True, OF_RATES) for name in formats),
            *(Column(f"{name} / fp32", "×", True, OF_RATIOS) for name in ratios),
            Column(BURST, "×", True, "by the mean of launches in a row, as the paper times it"),
            *(Column(f"against first, {name}", "×", True, OF_FIRST) for name in formats),
        ],
        notes=[AGAINST_FIRST] if points else [],
    )
    heads = [column.head for column in table.columns]
    for row in stated(data, operation):
        model = row["model"].partition(", ")[2] or row["model"]
        names = (
            Value("the paper", sort=""),
            *(Value(v, mark="prose") for v in (row["statement"], model)),
        )
        cells = dict(zip(NAMES, names, strict=True))
        cells["fp16 / fp32"] = published(_times(row), row["source"])
        table.add(*(cells.get(head, missing("not published")) for head in heads))
    for group in measured:
        for _, same in sorted(grouped(group, shape_key).items()):
            first: dict[str, Rate] = {}
            for by_format in _ways(same):
                cells = _cells(data, by_format, first)
                table.add(*(cells[head] for head in heads), of=list(by_format.values()))
    return table


def _times(row: Row) -> str | None:
    """A statement's value as a ratio: 20 to 30 percent are 1.2 to 1.3 times."""
    ends = [row["value_min"], row["value_max"]]
    if row["unit"] == "percent":
        ends = [end and f"{1 + float(end) / 100:g}" for end in ends]
    return " to ".join(dict.fromkeys(filter(None, ends))) or None


def _ways(points: Sequence[Row]) -> list[dict[str, Row]]:
    """The points of each device and backend by number format."""
    ordered = sorted(points, key=lambda point: backend_place(point["backend"]))
    ways = grouped(ordered, lambda point: _way(point)[:-1])
    return [{point["precision"]: point for point in way} for way in ways.values()]


def _cells(data: Data, by_format: dict[str, Row], first: dict[str, Rate]) -> dict[str, Value]:
    """The line of one shape on one device and backend.

    Args:
        first: rates of the first line of its shape; empty for that line, whose rates fill it.
    """
    some = next(iter(by_format.values()))
    names = (
        Value(shape_name(some), float(shape_key(some)[0])),
        data.place(some),
        words.backend_name(some),
    )
    rates = {name: operations.median_rate(PRODUCTS, point) for name, point in by_format.items()}
    bursts = {name: operations.burst_rate(PRODUCTS, point) for name, point in by_format.items()}
    cells: dict[str, Any] = dict(zip(NAMES, names, strict=True))
    for name in FORMATS:
        own, known = rates.get(name), f"not measured on both in {name}"
        cells[name] = operations.with_interval(own) if own else missing(f"{name} {UNMEASURED}")
        cells[f"{name} / fp32"] = _ratio(own, rates.get("fp32"), "one of the two was not measured")
        cells[f"against first, {name}"] = (
            _ratio(own, first.get(name), known) if first else missing("the first line of its shape")
        )
    cells[BURST] = _ratio(bursts.get("fp16"), bursts.get("fp32"), "no burst of both formats")
    first.update(rates if not first else {})
    return cells


def _ratio(over: Rate | None, under: Rate | None, reason: str) -> Value:
    """How many times as high one throughput is as another, what both intervals allow below."""
    if not (over and under and over.middle and under.middle):
        return missing(reason)
    ends: tuple[float | None, float | None] = (None, None)
    if over.low and over.high and under.low and under.high:
        ends = (over.low / under.high, over.high / under.low)
    return spanned(over.middle / under.middle, *ends)
