"""Matrix-vector products and vjps: what uses each value once, and what a backward pass computes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from siliconprof.render import by_shape
from siliconprof.render.book import Book
from siliconprof.render.by_shape import MEMORY, PRODUCTS, Limit, Mark, Rate
from siliconprof.render.data import Data
from siliconprof.render.variants import Row


def _where(name: str, value: str, limit: Limit, point: Row) -> Rate:
    """The median of points measured in one way."""
    return by_shape.median_rate(limit, point) if point[name] == value else Rate(None)


MATVEC_MARKS = (
    Mark("matrix left in the cache (warm)", True, partial(_where, "cache", "warm", MEMORY)),
    Mark("matrix read from memory (cold)", False, partial(_where, "cache", "cold", MEMORY)),
)
VJP_MARKS = (
    Mark("gradients alone", True, partial(_where, "forward", "without", PRODUCTS)),
    Mark("with the forward pass", False, partial(_where, "forward", "with", PRODUCTS)),
)


def add(data: Data, book: Book, prefix: str = "") -> None:
    """Both operations, a figure for each device and workload and a table each."""
    _operation(data, book, prefix, "matvec", "matrix-vector product", MEMORY, MATVEC_MARKS, "cache")
    _operation(data, book, prefix, "vjp", "vjp", PRODUCTS, VJP_MARKS, "forward")


def _operation(
    data: Data,
    book: Book,
    prefix: str,
    module: str,
    what: str,
    limit: Limit,
    marks: Sequence[Mark],
    apart: str,
) -> None:
    points = data.of_module(module)
    if not points:
        book.note(data.why_none(module, what))
        return
    groups: dict[tuple[str, str], list[Row]] = {}
    for point in points:
        if by_shape.is_timed(point, marks):
            groups.setdefault((point["device"], point["workload"]), []).append(point)
    for (device, workload), group in groups.items():
        for index, part in enumerate(by_shape.parts(group)):
            chosen = [point for point in group if by_shape.shape_key(point) in part]
            book.figure(
                f"{prefix}{module}-{workload}-{device}" + (f"-{index + 1}" if index else ""),
                module,
                partial(by_shape.draw, data, chosen, part, limit, marks, True),
                workload=workload,
                device=data.device_name(group[0]),
            )
    book.table(f"{prefix}{module}", module, by_shape.table(data, points, limit, apart))
