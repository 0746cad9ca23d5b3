"""Products, matrix-vector products and vjps by shape, backend and precision.

Products are timed in two ways, a matrix-vector product uses each value once, and a vjp is what a
backward pass computes. The products that training steps are made of have a table of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from siliconprof import words
from siliconprof.render import by_shape, tables
from siliconprof.render.book import Book
from siliconprof.render.by_shape import MEMORY, PRODUCTS, Limit, Operation, Rate, Way
from siliconprof.render.compare import Step
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import Column, Table, count, number, told
from siliconprof.render.variants import Row

UNKNOWN_STEP = "this training was not measured with this device, backend and precision"
OF_STEP = "of the unsplit step that this run measured with the same device, backend and precision"


def interval(point: Row) -> Rate:
    """Median throughput in FLOP/s and the ends of its 95 % interval."""
    return by_shape.median_rate(PRODUCTS, point)


def _where(name: str, value: str, limit: Limit, point: Row) -> Rate:
    """The median of points measured in one way."""
    return by_shape.median_rate(limit, point) if point[name] == value else Rate(None)


MATMUL = Operation(
    "matmul",
    "matrix product",
    PRODUCTS,
    (
        Way("adaptive median, 95 % interval", True, interval),
        Way("mean of a burst", False, partial(by_shape.burst_rate, PRODUCTS)),
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


def add_products(data: Data, book: Book, prefix: str = "") -> None:
    """Matrix products; those of trainings have a table of their own."""
    of_trainings = grouped(data.of_module("matmul"), lambda point: bool(point["of"]))
    if not of_trainings:
        book.note(data.why_none("matmul", MATMUL.what))
    by_shape.add(data, book, prefix, MATMUL, of_trainings.get(False, []))
    if True in of_trainings:
        table = shapes_table(data, of_trainings[True])
        book.table(f"{prefix}training-shapes", "training-shapes", table)


def add(data: Data, book: Book, prefix: str = "") -> None:
    """Matrix-vector products and vjps."""
    for operation in (MATVEC, VJP):
        points = data.of_module(operation.module)
        if not points:
            book.note(data.why_none(operation.module, operation.what))
        by_shape.add(data, book, prefix, operation, points)


def shapes_table(data: Data, points: Sequence[Row]) -> Table:
    """The products of training steps: how often a step has each, how fast it is, and its part."""

    def place(row: Row, workload: str) -> tuple:
        names = ("source", "host", "device", "backend", "precision")
        return (workload, *(row[name] for name in names))

    steps = {
        place(row, row["workload"]): step.middle
        for row in data.training()
        if (step := Step.of(row))
    }

    def together(point: Row) -> float | None:
        seconds, times = words.number(point["step_median_s"]), words.number(point["count"])
        return seconds * times if seconds and times else None

    def of_step(point: Row) -> float | None:
        seconds, step = together(point), steps.get(place(point, point["of"]))
        return seconds / step if seconds and step else None

    columns = [
        told("Taken from", "of"),
        Column("Shape", value=by_shape.shape),
        *tables.PLACE,
        count("in a step", "count", "not counted", unit="times"),
        number("median", "ms", "step_median_s", by_shape.UNTIMED, "of one product, synchronised"),
        number("in a step", "ms", together, by_shape.UNTIMED, "median × times"),
        number("of the step", "%", of_step, UNKNOWN_STEP, OF_STEP),
        by_shape.rate_column(PRODUCTS, "95 % interval below"),
        *by_shape.share_columns(data, PRODUCTS),
    ]
    return Table.of(sorted(points, key=lambda p: (p["of"], by_shape.shape_key(p))), columns)
