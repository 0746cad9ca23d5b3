"""Vector-Jacobian product of a batched matrix product: what its backward pass computes.

For C = A B and a cotangent G of C, the gradients by both operands: G Bᵀ and Aᵀ G. Without the
forward pass these are two products of the forward's size, with it three; the paper does not say
which of the two its Figure 7 shows, so both are measured and each point says which it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from siliconprof.declarations import Bytes, Parameter
from siliconprof.parameters import Count, Limits, Several
from siliconprof.session.cell_run import CellRun
from siliconprof.workloads._operation import (
    PRODUCT_POINT,
    WIDTH_BYTES,
    BurstParameters,
    ProductWorkload,
    checked,
    product_error,
)

PASSES = {"without": 2, "with": 3}  # products of 2 batch m k n each


class Plugin(ProductWorkload):
    """vjp"""

    POINT = {**PRODUCT_POINT, "forward": Parameter("string", label="forward pass")}

    class Parameters(BurstParameters):
        shapes: Annotated[
            Several[Annotated[list[Count], Limits(min_length=4, max_length=4)]],
            "products [batch, m, k, n] whose gradients by both operands are computed; all are "
            "points of one cell",
        ]

    @classmethod
    def describe_point(cls, row: Mapping[str, Any]) -> str:
        return f"{super().describe_point(row)} forward"

    def memory_bytes(self, precision: str, backend: str, capability: str | None = None) -> Bytes:
        width = WIDTH_BYTES.get(precision, 4)
        return {"operands": width * max(values(s, "with") for s in self.parameters["shapes"])}

    def n_points(self) -> int:
        return super().n_points() * len(PASSES)

    def measure(self, cell_run: CellRun) -> None:
        for shape in self.parameters["shapes"]:
            for forward in PASSES:
                cell_run.add_point(self.point(cell_run, shape, forward))

    def point(self, cell_run: CellRun, shape: list[int], forward: str) -> dict[str, Any]:
        """One shape: its results checked against float64 on random data, then timed."""
        arrays, cell = cell_run.backend.arrays, cell_run.cell
        batch, m, k, n = shape
        what = f"the vjp {batch}x{m}x{k}x{n} {forward} its forward pass"
        a = arrays.normal((batch, m, k), cell.seed)
        b = arrays.normal((batch, k, n), cell.seed + 1)
        cotangent = arrays.normal((batch, m, n), cell.seed + 2)
        launch = arrays.vjp(a, b, cotangent, forward == "with")
        *product, by_a, by_b = launch()
        checks = [
            (by_a, cotangent, b.swapaxes(-1, -2)),
            (by_b, a.swapaxes(-1, -2), cotangent),
            *((value, a, b) for value in product),
        ]
        errors = [product_error(arrays, *check, first=False) for check in checks]
        return self.timed_point(
            cell_run,
            what,
            {"batch": batch, "m": m, "k": k, "n": n, "forward": forward},
            launch,
            {
                "flops": 2.0 * PASSES[forward] * batch * m * k * n,
                "flops_source": f"{2 * PASSES[forward]} batch m k n: 2 for each gradient"
                + (" and for the product" if forward == "with" else ""),
                "bytes": WIDTH_BYTES[cell.precision] * values(shape, forward),
                "result_error": max(checked(error, cell.precision, what) for error in errors),
            },
        )


def values(shape: list[int], forward: str) -> int:
    """Values that must move at least once: operands, cotangent, gradients, product if computed."""
    batch, m, k, n = shape
    return batch * (2 * (m * k + k * n) + (2 if forward == "with" else 1) * m * n)
