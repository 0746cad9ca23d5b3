"""Matrix times vector over a sweep of shapes, from a warm cache and from memory.

Every value of the matrix is used once, so the source of the matrix limits the speed. Cold: one copy
of it after another, together more than twice the last-level cache. A single product is (m, k) by
(k,), a matrix-vector product of the library; a batch is (batch, m, k) by (batch, k, 1).
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Annotated, Any

from siliconprof.declarations import Bytes
from siliconprof.hosts import caches
from siliconprof.parameters import Count, Limits, Several
from siliconprof.session.cell_run import CellRun
from siliconprof.workloads._operation import (
    CACHE_PARAMETER,
    PRODUCT_POINT,
    WIDTH_BYTES,
    BurstParameters,
    Caches,
    ProductWorkload,
    checked,
    rotating,
    values,
)

MOST_COPIES = 4096  # more would be so small that launches cost more than memory
CHECKED_VALUES = 2**24  # of the matrix: its float64 copy takes eight times as many bytes


class Plugin(ProductWorkload):
    """matvec"""

    POINT = {**PRODUCT_POINT, "cache": CACHE_PARAMETER}

    class Parameters(BurstParameters):
        shapes: Annotated[
            Several[Annotated[list[Count], Limits(min_length=2, max_length=3)]],
            "matrices as [m, k] or [batch, m, k]; all are points of one cell",
        ]
        caches: Annotated[
            Caches,
            "`warm`: the same matrix every time; `cold`: copies of it in turn, together more than "
            "twice the last-level cache",
        ] = ["warm", "cold"]

    def memory_bytes(self, precision: str, backend: str, capability: str | None = None) -> Bytes:
        """Copies of the largest point; the cache's size counts as unknown until it is measured."""
        width = WIDTH_BYTES.get(precision, 4)
        largest = width * max(values((*batched(shape), 1)) for shape in self.parameters["shapes"])
        if "cold" not in self.parameters["caches"]:
            return {"operands": largest}
        return {"operands": caches.beyond_bytes(None) + 2 * largest}

    def n_points(self) -> int:
        return super().n_points() * len(self.parameters["caches"])

    def measure(self, cell_run: CellRun) -> None:
        for shape in self.parameters["shapes"]:
            for cache in self.parameters["caches"]:
                if point := self.point(cell_run, batched(shape), cache):
                    cell_run.add_point(point)

    def point(
        self, cell_run: CellRun, shape: tuple[int, int, int], cache: str
    ) -> dict[str, Any] | None:
        """One shape, checked, then timed; None, and a flag, where cold ones are too many."""
        arrays, cell = cell_run.backend.arrays, cell_run.cell
        batch, m, k = shape
        what = f"the {cache} matrix-vector product {batch}x{m}x{k}"
        width = WIDTH_BYTES[cell.precision]
        matrix_bytes, buffers = width * batch * m * k, 1
        cache_bytes, source = cell_run.backend.memory.last_level_cache()
        if cache == "cold":  # two at least: one alone would be partly cached
            buffers = max(2, caches.beyond_bytes(cache_bytes) // matrix_bytes + 1)
        if buffers > MOST_COPIES:
            cell_run.flag("not_measured", f"{what} would go round {buffers} matrices")
            return None
        one = batch == 1
        a = arrays.normal((m, k) if one else (batch, m, k), cell.seed)
        x = arrays.normal((k,) if one else (batch, k, 1), cell.seed + 1)
        rows = slice(None, max(1, CHECKED_VALUES // k))
        product = arrays.matmul(a, x)
        arrays.eval(product)
        last = (rows,) if one else (slice(-1, None), rows)
        vector = x if one else x[-1:]
        error = arrays.relative_error(product[last], operator.matmul, a[last], vector)
        matrices = [a, *(arrays.copy(a) for _ in range(buffers - 1))]
        point = self.timed_point(
            cell_run,
            what,
            {"batch": batch, "m": m, "k": k, "n": 1, "cache": cache},
            rotating([partial(arrays.matmul, matrix, x) for matrix in matrices]),
            {
                "flops": 2.0 * batch * m * k,
                "flops_source": "2 batch m k, one multiplication and one addition per term",
                "bytes": width * values((*shape, 1)),
                "result_error": checked(error, cell.precision, what),
            },
        )
        if cache == "warm":
            return point
        rotation = {"buffers": buffers, "buffer_bytes": matrix_bytes}
        return point | {"rotation": rotation | {"cache_bytes": cache_bytes, "cache_source": source}}


def batched(shape: list[int]) -> tuple[int, int, int]:
    """(batch, m, k) of a shape of the config, [m, k] or [batch, m, k]."""
    batch, m, k = shape if len(shape) == 3 else [1, *shape]
    return batch, m, k
