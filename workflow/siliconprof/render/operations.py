"""Products, matrix-vector products and vjps by shape, backend and precision.

Products are timed in two ways, a matrix-vector product uses each value once, and a vjp is what a
backward pass computes.
"""

from __future__ import annotations

from functools import partial

from siliconprof.render import by_shape
from siliconprof.render.book import Book
from siliconprof.render.by_shape import MEMORY, PRODUCTS, Limit, Operation, Rate, Way
from siliconprof.render.data import Data
from siliconprof.render.variants import Row


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
    """Matrix products."""
    _add(data, book, prefix, MATMUL)


def add(data: Data, book: Book, prefix: str = "") -> None:
    """Matrix-vector products and vjps."""
    for operation in (MATVEC, VJP):
        _add(data, book, prefix, operation)


def _add(data: Data, book: Book, prefix: str, operation: Operation) -> None:
    points = data.of_module(operation.module)
    if not points:
        book.note(data.why_none(operation.module, operation.what))
    by_shape.add(data, book, prefix, operation, points)
