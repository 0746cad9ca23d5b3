"""Batched matrix product: a sweep of shapes, and a search for the fastest.

An entry has `shapes`, or a search for the shape with the highest throughput, which is the device's
measured ceiling for the dtype, or both. Operands are always laid out row by row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from siliconprof.declarations import Bytes, Settings
from siliconprof.parameters import Count, Limits, NotNegative, Positive
from siliconprof.session.cell_run import CellRun
from siliconprof.session.timing import Plan
from siliconprof.stats import statistics
from siliconprof.workloads._operation import (
    WIDTH_BYTES,
    BurstParameters,
    ProductWorkload,
    checked,
    product_error,
    values,
)

Shape = tuple[int, int, int, int]  # batch, m, k, n

FIRST_SIDE = 256
TILE = 64
GAIN = 0.02  # less is noise
GIVE_UP_AFTER = 2  # squares in a row that are not faster than the best
UNKNOWN_MEMORY_BYTES = 2**30  # the search's limit where the device's memory is unknown
SETTLED = "no neighbour of the best shape was faster by 2 %"


class Search:
    """The search for the fastest shape; every shape measured, in it or before, is a point of the run."""

    def __init__(self, workload: Plugin, cell_run: CellRun) -> None:
        parameters, memory_bytes = workload.parameters, cell_run.cell.device_memory_bytes
        self.workload, self.cell_run = workload, cell_run
        self.plan = Plan.of(cell_run.cell.timing)
        self.width = WIDTH_BYTES[cell_run.cell.precision]
        self.budget_s = parameters["search_budget_s"]
        self.limit_bytes = UNKNOWN_MEMORY_BYTES
        if memory_bytes:
            self.limit_bytes = int(parameters["search_memory_share"] * memory_bytes)
        self.rates: dict[Shape, float] = {}  # FLOP/s
        self.sound: dict[Shape, float] = {}  # undisturbed ones alone
        self.refused: set[str] = set()

    def run(self) -> dict[str, Any]:
        """Search; return what the record's method says of it."""
        began = time.perf_counter()
        self.ends = began + self.budget_s
        self._grow()
        while self.rates and self._moved():
            pass
        stopped_by = "memory" if "memory" in self.refused else SETTLED
        if "budget" in self.refused:
            stopped_by = f"its budget of {self.budget_s:g} s"
        best = self.best
        return {
            "tried": len(self.rates),
            "best": list(best) if best else None,
            "best_flop_per_s": self.sound.get(best) if best else None,
            "stopped_by": stopped_by,
            "budget_s": self.budget_s,
            "spent_s": time.perf_counter() - began,
            "limit_bytes": self.limit_bytes,
        }

    @property
    def best(self) -> Shape | None:
        """The fastest shape so far, an undisturbed one where there is any."""
        rates = self.sound or self.rates
        return max(rates, key=lambda shape: rates[shape], default=None)

    def _try(self, shape: Shape) -> bool:
        """Measure a shape, unless it was measured or is too large or too slow; whether it has a rate."""
        if shape in self.rates:
            return True
        if self.width * values(shape) > self.limit_bytes:
            self.refused.add("memory")
            return False
        # The first is measured whatever it costs: without it nothing is known.
        if self.rates and time.perf_counter() + self._cost_s(shape) > self.ends:
            self.refused.add("budget")
            return False
        self.measure(shape)
        return True

    def measure(self, shape: Shape) -> None:
        """Add the point of a shape."""
        began, timed_before_s = time.perf_counter(), self.cell_run.timed_s
        point = self.workload.point(self.cell_run, shape)
        self.cell_run.add_point(point)
        spent_s = time.perf_counter() - began - len(point["attempts"]) * self.plan.cool_down_s
        series = (point["times"], *point["attempts"])
        warm_up_s = sum(sum(times.get("warmup_step_s", ())) for times in series)
        self.last, self.timed_s = shape, self.cell_run.timed_s - timed_before_s + warm_up_s
        self.set_up_s = spent_s - self.timed_s
        self.rates[shape] = point["flops"] / statistics.median(point["times"]["step_s"])
        if not point["disturbed"]:
            self.sound[shape] = self.rates[shape]

    def _cost_s(self, shape: Shape) -> float:
        """Seconds that a shape will take: as many products as the last one, or the plan's most."""
        plan, once_s = self.plan, flops(shape) / self.rates[self.last]
        most_s = (
            max(plan.warmup_budget_s, plan.warmup_iterations * once_s)
            + max(plan.budget_s, plan.iterations * once_s)
            + once_s
            + self.workload.parameters["burst_budget_s"]
        )
        timed_s = min(most_s, self.timed_s * flops(shape) / flops(self.last))
        return timed_s + self.set_up_s * max(1.0, values(shape) / values(self.last))

    def _grow(self) -> None:
        side, slower, reference = FIRST_SIDE, 0, 0.0
        while slower < GIVE_UP_AFTER and self._try((1, side, side, side)):
            rate = self.rates[1, side, side, side]
            slower = 0 if rate > (1 + GAIN) * reference else slower + 1
            reference = max(reference, rate)
            side *= 2

    def _moved(self) -> bool:
        """Try the neighbours of the best shape until one is faster; whether one is."""
        best = self.best
        assert best is not None
        for shape in neighbours(best):
            if shape in self.rates or not self._try(shape):
                continue
            if self.rates[shape] > (1 + GAIN) * self.rates[best]:
                return True
        return False


def neighbours(shape: Shape) -> Iterator[Shape]:
    """Shapes whose work is of the same order as that of a shape."""
    batch, m, k, n = shape
    yield batch, tiled(1.5 * m), tiled(1.5 * k), tiled(1.5 * n)
    yield batch, tiled(0.75 * m), tiled(0.75 * k), tiled(0.75 * n)
    yield batch, 2 * m, k, n
    yield batch, m, k, 2 * n
    yield batch, m, 2 * k, n
    yield batch, m, tiled(k / 2), n
    yield 4 * batch, m, k, n
    yield 4 * batch, tiled(m / 2), tiled(k / 2), tiled(n / 2)


def tiled(side: float) -> int:
    """The multiple of a tile's side that is nearest to a length, at least one tile."""
    return TILE * max(1, round(side / TILE))


class Plugin(ProductWorkload):
    """matmul"""

    class Parameters(BurstParameters):
        shapes: Annotated[
            list[Annotated[list[Count], Limits(min_length=4, max_length=4)]],
            "products as [batch, m, k, n]; all are points of one cell",
        ] = []
        search_budget_s: Annotated[
            NotNegative, "seconds of search for the shape with the highest throughput; 0 = none"
        ] = 0
        search_memory_share: Annotated[
            Positive,
            Limits(le=1),
            "share of the device's memory that the search's operands may take",
        ] = 0.25

    @classmethod
    def problems(cls, parameters: Settings, dataset: Settings | None) -> list[str]:
        if parameters.get("shapes") or parameters.get("search_budget_s"):
            return []
        return ["shapes: is missing; expected a list of [batch, m, k, n], or search_budget_s"]

    def memory_bytes(self, precision: str, backend: str, capability: str | None = None) -> Bytes:
        """Operands and result of the largest of the `shapes`; the search keeps within its share."""
        width = WIDTH_BYTES.get(precision, 4)
        return {"operands": width * max(map(values, self.parameters["shapes"]), default=0)}

    def planned_s(self, each_s: float) -> float:
        return super().planned_s(each_s) + self.parameters["search_budget_s"]

    def measure(self, cell_run: CellRun) -> None:
        search = Search(self, cell_run)
        for batch, m, k, n in self.parameters["shapes"]:
            search.measure((batch, m, k, n))
        if self.parameters["search_budget_s"]:
            cell_run.method["search"] = search.run()

    def point(self, cell_run: CellRun, shape: Sequence[int]) -> dict[str, Any]:
        """One shape: checked against float64 on random data, then timed."""
        arrays, cell = cell_run.backend.arrays, cell_run.cell
        batch, m, k, n = shape
        what = f"the product {batch}x{m}x{k}x{n}"
        a = arrays.normal((batch, m, k), cell.seed)
        b = arrays.normal((batch, k, n), cell.seed + 1)
        product = arrays.matmul(a, b)
        errors = [product_error(arrays, product, a, b, first) for first in (True, False)]
        return self.timed_point(
            cell_run,
            what,
            {"batch": batch, "m": m, "k": k, "n": n},
            lambda: arrays.matmul(a, b),
            {
                "flops": flops(shape),
                "flops_source": "2 batch m k n, one multiplication and one addition per term",
                "bytes": WIDTH_BYTES[cell.precision] * values(shape),
                "result_error": max(checked(error, cell.precision, what) for error in errors),
            },
        )


def flops(shape: Sequence[int]) -> float:
    """Operations of one product [batch, m, k, n]: a multiplication and an addition per term."""
    return 2.0 * math.prod(shape)
