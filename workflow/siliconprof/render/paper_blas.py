"""The paper's Figures 5, 6 and 7: products, matrix-vector products and gradients, by its pairs.

A pair is one NVIDIA GPU beside one Apple chip of about its computing power (section 4.4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from siliconprof import words
from siliconprof.render import by_shape, uncertainty
from siliconprof.render.book import Book
from siliconprof.render.by_shape import PRODUCTS, Rate, shape_key, shape_name
from siliconprof.render.data import Data
from siliconprof.render.paper_bars import place, where
from siliconprof.render.tables import Column, Table, Value, missing, published
from siliconprof.render.variants import Row, backend_place

PAIRS = (  # as section 4.4 of the paper compares and names them
    {"rtx-a6000": "RTX A6000", "m2-ultra-76": "M2 Ultra"},
    {"rtx-2080-ti": "RTX 2080 Ti", "m2-max-38": "M2 Max"},
    {"quadro-rtx-4000": "Quadro RTX 4000", "m2-pro-19": "M2 Pro"},
)
PAPER_SHAPE = (8, 2000, 2000, 2000)
FORMATS = ("fp32", "fp16", "bf16")  # a column each; TF32 is another fp32
PICTURE = "the paper shows its values only as a picture"
FOLD_ABOVE = 12


@dataclass(frozen=True)
class Operation:
    """One figure of the paper."""

    figure: str  # its number there
    module: str
    title: str
    statement: str  # how the published statements on it begin
    wanted: Mapping[str, str]  # values of the points that are compared


OPERATIONS = (
    Operation("5", "matmul", "matrix-matrix product", "batched matrix product", {}),
    Operation(
        "6",
        "matvec",
        "matrix-vector product",
        "matrix-vector product",
        {"cache": "warm"},
    ),
    Operation(
        "7",
        "vjp",
        "vector-Jacobian product",
        "vector-Jacobian product",
        {"forward": "without"},
    ),
)


@dataclass(frozen=True)
class Group:
    """The points of one pair of the paper, or of one device that is in none."""

    points: Sequence[Row]
    pair: Mapping[str, str] | None = None  # devices and what they are called


def add(data: Data, book: Book) -> None:
    """The table of each of the three figures, and what was not measured."""
    for operation in OPERATIONS:
        book.heading(
            f"Figure {operation.figure}: {operation.title}",
            anchor=f"paper-figure-{operation.figure}-blas",
        )
        measured_groups = groups(data, operation)
        name = f"paper-figure-{operation.figure}"
        measured = [point for group in measured_groups for point in group.points]
        for line in absent(data, operation, measured_groups):
            book.note(line)
        rows = table(data, operation, measured_groups)
        if rows.rows:
            fold = words.count(len(rows.rows), "line") if len(rows.rows) > FOLD_ABOVE else ""
            book.table(name, name, rows, folded=fold, intervals=uncertainty.origin_text(measured))


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


def groups(data: Data, operation: Operation) -> list[Group]:
    """Pairs of which anything was measured, then every other device of any host by itself."""
    points = of_operation(data, operation)
    result: list[Group] = []
    paired: set[str] = set()
    for pair in PAIRS:
        part = [point for point in points if point["device"] in pair]
        if part:
            paired.update(pair)
            result.append(Group(_chosen(operation, part), pair))
    others: dict[tuple, list[Row]] = {}
    for point in points:
        if point["device"] not in paired:
            others.setdefault(where(point), []).append(point)
    result += [Group(_chosen(operation, part)) for part in others.values()]
    return result


def _chosen(operation: Operation, points: Sequence[Row]) -> list[Row]:
    """The points to compare, each shape once for a device, backend and format.

    Of products the paper's shape alone; where it was not measured, the largest batch's.
    """
    if operation.module == "matmul":
        shapes = {_shape(point) for point in points}
        best = PAPER_SHAPE if PAPER_SHAPE in shapes else max(_common(points) or shapes)
        points = [point for point in points if _shape(point) == best]
    once: dict[tuple, Row] = {}
    for point in points:
        key = (*where(point), point["backend"], point["precision"], shape_key(point))
        before = once.get(key)
        if before is None or (not before.get("burst_mean_s") and point.get("burst_mean_s")):
            once[key] = point
    return list(once.values())


def _shape(point: Row) -> tuple[int, int, int, int]:
    batch, m, k, n = (int(point[name]) for name in ("batch", "m", "k", "n"))
    return (batch, m, k, n)


def _common(points: Sequence[Row]) -> set[tuple[int, int, int, int]]:
    """The shapes that every device, backend and format of the points has."""
    by_way: dict[tuple, set[tuple[int, int, int, int]]] = {}
    for point in points:
        way = (*where(point), point["backend"], point["precision"])
        by_way.setdefault(way, set()).add(_shape(point))
    return set.intersection(*by_way.values())


def absent(data: Data, operation: Operation, measured_groups: Sequence[Group]) -> list[str]:
    """The devices missing from the pairs, one sentence for each reason."""
    by_reason: dict[str, list[str]] = {}
    for pair in PAIRS:
        measured = {
            p["device"] for group in measured_groups if group.pair is pair for p in group.points
        }
        rest = {device: name for device, name in pair.items() if device not in measured}
        reasons = sorted(
            {
                f"{cell['status']}: {cell['reason']}"
                for cell in data.cells
                if cell["module"] == operation.module
                and cell["device"] in rest
                and cell["status"] != "ok"
            }
        )
        if rest:
            why = f" ({'; '.join(reasons)})" if reasons else " on any host here"
            by_reason.setdefault(why, []).append(" / ".join(rest.values()))
    return [
        f"{words.listing(names)}: not measured{why}; {PICTURE}." for why, names in by_reason.items()
    ]


# -- table -------------------------------------------------------------------------------------


def stated(data: Data, operation: Operation) -> list[Row]:
    """The paper's statements with a number on one format against another."""
    return [
        row
        for row in data.published["seed001_statements"]
        if (row["model"] or "").lower().startswith(operation.statement.lower())
    ]


def table(data: Data, operation: Operation, measured_groups: Sequence[Group]) -> Table:
    """Throughputs, format against format and backend against backend; printed statements first."""
    points = [point for group in measured_groups for point in group.points]
    shown_formats = [
        name for name in FORMATS if any(point["precision"] == name for point in points)
    ]
    shown_formats = shown_formats or list(FORMATS[:2])
    ratios = [name for name in FORMATS[1:] if name == "fp16" or name in shown_formats]
    result = Table(
        [
            Column("Shape"),
            Column("Device"),
            Column("Backend"),
            *(
                Column(name, "GFLOP/s", True, "median of synchronised calls, 95 % interval below")
                for name in shown_formats
            ),
            *(
                Column(
                    f"{name} / fp32", "×", True, "by medians; what both 95 % intervals allow below"
                )
                for name in ratios
            ),
            Column(
                "fp16 / fp32, burst",
                "×",
                True,
                "by the mean of launches in a row, as the paper times it",
            ),
            *(
                Column(
                    f"against first, {name}",
                    "×",
                    True,
                    "this line's throughput over that of the first line of its shape, by medians",
                )
                for name in shown_formats
            ),
        ]
    )
    empty = missing("not published")
    for row in stated(data, operation):
        cells = [published(_times(row), row["source"]), *[empty] * (len(ratios) - 1)]
        result.add(
            Value("the paper", sort=""),
            Value(row["statement"], mark="prose"),
            Value(row["model"].partition(", ")[2] or row["model"], mark="prose"),
            *[empty] * len(shown_formats),
            *cells,
            empty,
            *[empty] * len(shown_formats),
        )
    for group in measured_groups:
        for shape in sorted({shape_key(point) for point in group.points}):
            same = [point for point in group.points if shape_key(point) == shape]
            _rows(data, result, same, shown_formats, ratios)
    if points:
        result.notes.append(
            "“Against first” is the throughput of a line over that of the first "
            "line of the same shape in the same pair or device."
        )
    return result


def _times(row: Row) -> str | None:
    """A statement's value as a ratio: 20 to 30 percent are 1.2 to 1.3 times."""
    ends = [row["value_min"], row["value_max"]]
    if row["unit"] == "percent":
        ends = [end and f"{1 + float(end) / 100:g}" for end in ends]
    distinct = list(dict.fromkeys(end for end in ends if end))
    return " to ".join(distinct) or None


def _rows(
    data: Data, result: Table, points: Sequence[Row], shown: Sequence[str], ratios: Sequence[str]
) -> None:
    """A line for each device and backend with one shape; the others are compared with the first."""
    ways: dict[tuple, dict[str, Row]] = {}
    for point in sorted(points, key=lambda p: backend_place(p["backend"])):
        ways.setdefault((*where(point), point["backend"]), {})[point["precision"]] = point
    rates = [
        {name: by_shape.median_rate(PRODUCTS, point) for name, point in formats.items()}
        for formats in ways.values()
    ]
    for formats, own in zip(ways.values(), rates, strict=True):
        any_ = next(iter(formats.values()))
        result.add(
            Value(shape_name(any_), sort=float(shape_key(any_)[0])),
            place(data, any_),
            words.backend_name(any_),
            *(
                by_shape.with_interval(own[name])
                if name in own
                else missing(f"{name} was not measured with this shape, device and backend")
                for name in shown
            ),
            *(_ratio(own.get(name), own.get("fp32")) for name in ratios),
            _ratio(
                _burst(formats.get("fp16")), _burst(formats.get("fp32")), "no burst of both formats"
            ),
            *(
                missing("the first line of its shape")
                if own is rates[0]
                else _ratio(own.get(name), rates[0].get(name), f"not measured on both in {name}")
                for name in shown
            ),
            of=list(formats.values()),
        )


def _burst(point: Row | None) -> Rate | None:
    rate = by_shape.burst_rate(PRODUCTS, point) if point else None
    return rate if rate and rate.middle else None


def _ratio(
    over: Rate | None, under: Rate | None, reason: str = "one of the two was not measured"
) -> Value:
    """How many times as high one throughput is as another, what both intervals allow below."""
    if not (over and under and over.middle and under.middle):
        return missing(reason)
    ratio, below = over.middle / under.middle, ""
    if over.low and over.high and under.low and under.high:
        ends = (over.low / under.high, over.high / under.low)
        below = "–".join(words.significant(end) for end in ends)
    return Value(words.significant(ratio), ratio, below)
