"""Batched matrix product over a sweep of shapes: the paper's method and an adaptive median.

The paper warms up with 10 launches, then launches 100 times in a row and divides (seed 001,
section 4.4). That mean lies beside our own median of separately synchronised products.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from siliconprof.timing import Plan, repeat
from siliconprof.workloads.base import KernelWorkload

if TYPE_CHECKING:
    from siliconprof.session import Session

CHECKED_ROWS = (
    64  # of the first product; float64 on a CPU would take minutes for all of a large one
)
WRONG_ABOVE = {"fp32": 1e-4, "tf32": 5e-3, "fp16": 5e-3, "bf16": 3e-2}  # relative RMS error


class Plugin(KernelWorkload):
    """matmul"""

    frameworks = ("torch", "mlx")
    PARAMETERS = {
        "shapes": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "array",
                "minItems": 4,
                "maxItems": 4,
                "items": {"type": "integer", "minimum": 1},
            },
            "description": "products as [batch, m, k, n]; all are points of one cell",
        },
        "burst_warmup": {
            "type": "integer",
            "minimum": 0,
            "default": 10,
            "description": "launches before the burst, the paper's 10",
        },
        "burst": {
            "type": "integer",
            "minimum": 0,
            "default": 100,
            "description": "launches in a row whose mean is taken, the paper's 100; 0 = none",
        },
        "burst_budget_s": {
            "type": "number",
            "minimum": 0,
            "default": 3.0,
            "description": "seconds that a burst may be expected to take; else it is not run",
        },
    }
    REQUIRED = ("shapes",)

    def supports(self, framework: str, precision: str) -> str | None:
        """See `Workload.supports`."""
        if precision.startswith("amp-"):
            return (
                "mixed precision is a way to train; a product has one dtype: ask for fp16 or bf16"
            )
        return super().supports(framework, precision)

    def memory_bytes(self, precision: str, backend: str) -> dict[str, int]:
        """See `Workload.memory_bytes`: the largest point's operands and result."""
        width = 2 if precision in ("fp16", "bf16") else 4
        largest = max(b * (m * k + k * n + m * n) for b, m, k, n in self.parameters["shapes"])
        return {"operands": largest * width}

    def measure(self, session: Session) -> None:
        """See `KernelWorkload.measure`."""
        for shape in self.parameters["shapes"]:
            session.add_point(self.point(session, shape))

    def point(self, session: Session, shape: list[int]) -> dict[str, Any]:
        """One shape: checked against float64 on random data, then timed."""
        backend, cell = session.backend, session.cell
        batch, m, k, n = shape
        a = backend.normal((batch, m, k), cell.seed)
        b = backend.normal((batch, k, n), cell.seed + 1)
        product = backend.matmul(a[:1], b[:1])
        backend.evaluate(product)
        error = backend.product_error(a[:1, :CHECKED_ROWS], b[:1], product[:, :CHECKED_ROWS])
        if not error < WRONG_ABOVE[cell.precision]:
            raise ArithmeticError(
                f"the product {shape} is wrong: relative error {error:.2e} against float64"
            )
        del product
        backend.reset_peak_memory()
        label = "x".join(map(str, shape))

        def operation() -> None:
            backend.evaluate(backend.matmul(a, b))

        warmup, times, stopped_by = repeat(
            operation, backend, Plan.of(cell.timing), session.stepping(f"matmul {label}")
        )
        point = {
            "params": {"batch": batch, "m": m, "k": k, "n": n},
            "times": {"step_s": times, "warmup_step_s": warmup},
            "stopped_by": stopped_by,
            "flops": 2.0 * batch * m * k * n,
            "flops_source": "2 batch m k n, one multiplication and one addition per term",
            "bytes": self._bytes(shape, cell.precision),
            "result_error": error,
            "memory": session.memory(),
        }

        def launch() -> None:
            backend.dispatch(backend.matmul(a, b))

        return point | self.burst(session, launch, min(times))

    def burst(self, session: Session, launch: Any, fastest_s: float) -> dict[str, Any]:
        """The paper's method: the mean of launches in a row, synchronised once."""
        count, warm = self.parameters["burst"], self.parameters["burst_warmup"]
        expected_s = fastest_s * (count + warm)
        if not count or expected_s > self.parameters["burst_budget_s"]:
            reason = (
                "switched off"
                if not count
                else f"{count + warm} launches would take about {expected_s:.1f} s, "
                f"the budget is {self.parameters['burst_budget_s']} s"
            )
            return {"burst_mean_s": None, "burst_reason": reason}
        began = time.perf_counter()
        for _ in range(warm):
            launch()
        session.backend.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            launch()
        session.backend.synchronize()
        end = time.perf_counter()
        session.timed(end - began)
        elapsed = end - start
        return {"burst_mean_s": elapsed / count, "burst_count": count, "burst_warmup": warm}

    @staticmethod
    def _bytes(shape: list[int], precision: str) -> int:
        """Bytes that must move at least once: both operands and the result."""
        batch, m, k, n = shape
        return batch * (m * k + k * n + m * n) * (2 if precision in ("fp16", "bf16") else 4)
