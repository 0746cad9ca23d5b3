"""Batched matrix product: a sweep of shapes, and a search for the fastest.

An entry has `shapes`, or a search for the shape with the highest throughput, which is the device's
measured ceiling for the dtype, or both. Operands are always laid out row by row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from siliconprof.declarations import Bytes, Settings, number
from siliconprof.session.timing import Plan
from siliconprof.stats import statistics
from siliconprof.workloads._operation import (
    BURST_PARAMETERS,
    WIDTH_BYTES,
    ProductWorkload,
    checked,
    product_error,
    shapes_parameter,
)

if TYPE_CHECKING:
    from siliconprof.session.session import Session

Shape = tuple[int, int, int, int]  # batch, m, k, n

FIRST_SIDE = 256
TILE = 64
GAIN = 0.02  # less is noise
GIVE_UP_AFTER = 2  # squares in a row that were not faster than the best
UNKNOWN_MEMORY_BYTES = 2**30  # that a search may use where the device's memory is unknown
SETTLED = "no neighbour of the best shape was faster by 2 %"


@dataclass
class Search:
    """The search for the fastest shape, and its results.

    Args:
        rate: measures a shape and returns its FLOP/s.
        cost_s: the most seconds that measuring a shape can take, by the measurements so far.
        n_bytes: bytes of memory that a shape takes.
    """

    rate: Callable[[Shape], float]
    cost_s: Callable[[Shape], float]
    n_bytes: Callable[[Shape], int]
    budget_s: float
    limit_bytes: int
    rates: dict[Shape, float] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    def run(self) -> str:
        """Search; return why it ended."""
        self._ends = time.perf_counter() + self.budget_s
        self._grow()
        while self.rates and self._moved():
            pass
        if "budget" in self.refused:
            return f"its budget of {self.budget_s:g} s"
        return "memory" if "memory" in self.refused else SETTLED

    @property
    def best(self) -> Shape | None:
        """The fastest shape so far."""
        return max(self.rates, key=lambda shape: self.rates[shape], default=None)

    def _try(self, shape: Shape) -> bool:
        """Measure a shape unless it is too large or too slow; return whether it was measured."""
        if self.n_bytes(shape) > self.limit_bytes:
            self.refused.add("memory")
            return False
        # The first is measured whatever it costs: without it nothing is known.
        if self.rates and time.perf_counter() + self.cost_s(shape) > self._ends:
            self.refused.add("budget")
            return False
        self.rates[shape] = self.rate(shape)
        return True

    def _grow(self) -> None:
        side, slower, reference = FIRST_SIDE, 0, 0.0
        while slower < GIVE_UP_AFTER and self._try((1, side, side, side)):
            rate = self.rates[1, side, side, side]
            slower = 0 if rate > (1 + GAIN) * reference else slower + 1
            reference = max(reference, rate)
            side *= 2

    def _moved(self) -> bool:
        """Try the neighbours of the best shape; return whether one is faster."""
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

    PARAMETERS = {
        "shapes": {
            **shapes_parameter(4, 4, "products as [batch, m, k, n]; all are points of one cell"),
            "minItems": 0,
            "default": [],
        },
        "search_budget_s": number(
            0, "seconds of search for the shape with the highest throughput; 0 = none", minimum=0
        ),
        "search_memory_share": number(
            0.25,
            "share of the device's memory that the search's operands may take",
            exclusiveMinimum=0,
            maximum=1,
        ),
        **BURST_PARAMETERS,
    }

    @classmethod
    def problems(cls, parameters: Settings, dataset: Settings | None) -> list[str]:
        if parameters.get("shapes") or parameters.get("search_budget_s"):
            return []
        return ["shapes: is missing; expected a list of [batch, m, k, n], or search_budget_s"]

    def memory_bytes(self, precision: str, backend: str, capability: str | None = None) -> Bytes:
        """See `Workload.memory_bytes`: operands and result of the largest of the `shapes`.

        The search keeps within its share.
        """
        width = WIDTH_BYTES.get(precision, 4)
        return {"operands": width * max(map(values, self.parameters["shapes"]), default=0)}

    def measure(self, session: Session) -> None:
        for shape in self.parameters["shapes"]:
            session.add_point(self.point(session, shape))
        if self.parameters["search_budget_s"]:
            self.search(session)

    def search(self, session: Session) -> None:
        """Search for the fastest shape; every shape measured is a point."""
        width = WIDTH_BYTES[session.cell.precision]
        plan = Plan.of(session.cell.timing)
        share = self.parameters["search_memory_share"]
        memory_bytes = session.cell.device_memory_bytes
        last: dict[str, float] = {}  # of the shape tried last: FLOP/s, set-up seconds, bytes

        def n_bytes(shape: Shape) -> int:
            return width * values(shape)

        def rate(shape: Shape) -> float:
            began, timed_before_s = time.perf_counter(), session.timed_s
            point = self.point(session, shape)
            session.add_point(point)
            flop_per_s = point["flops"] / statistics.median(point["times"]["step_s"])
            spent_s = session.timed_s - timed_before_s + len(point["attempts"]) * plan.cool_down_s
            for times in (point["times"], *point["attempts"]):
                spent_s += sum(times["warmup_step_s"])
            set_up_s = time.perf_counter() - began - spent_s
            last.update(rate=flop_per_s, set_up_s=set_up_s, bytes=n_bytes(shape))
            return flop_per_s

        def cost_s(shape: Shape) -> float:
            once_s = flops(shape) / last["rate"]
            attempt_s = (
                max(plan.warmup_budget_s, plan.warmup_iterations * once_s)
                + max(plan.budget_s, plan.iterations * once_s)
                + once_s
            )
            again_s = plan.retries * (plan.cool_down_s + attempt_s)
            return (
                attempt_s
                + min(again_s, max(0.0, plan.retry_budget_s - session.retried_s))
                + self.parameters["burst_budget_s"]
                + last["set_up_s"] * max(1.0, n_bytes(shape) / last["bytes"])
            )

        search = Search(
            rate,
            cost_s,
            n_bytes,
            self.parameters["search_budget_s"],
            int(share * memory_bytes) if memory_bytes else UNKNOWN_MEMORY_BYTES,
        )
        began = time.perf_counter()
        stopped_by = search.run()
        best = search.best
        session.method["search"] = {
            "tried": len(search.rates),
            "best": list(best) if best else None,
            "best_flop_per_s": search.rates[best] if best else None,
            "stopped_by": stopped_by,
            "budget_s": search.budget_s,
            "spent_s": time.perf_counter() - began,
            "limit_bytes": search.limit_bytes,
        }

    def point(self, session: Session, shape: Sequence[int]) -> dict[str, Any]:
        """One shape: checked against float64 on random data, then timed."""
        backend, cell = session.backend, session.cell
        batch, m, k, n = shape
        what = f"the product {batch}x{m}x{k}x{n}"
        a = backend.normal((batch, m, k), cell.seed)
        b = backend.normal((batch, k, n), cell.seed + 1)
        product = backend.matmul(a, b)
        errors = [product_error(backend, product, a, b, first) for first in (True, False)]
        return self.timed_point(
            session,
            what,
            {"batch": batch, "m": m, "k": k, "n": n},
            lambda: backend.matmul(a, b),
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


def values(shape: Any) -> int:
    """Values that must move at least once: both operands and the result."""
    batch, m, k, n = shape
    return batch * (m * k + k * n + m * n)
