"""Batched matrix product: a sweep of shapes, those of a training step, a search for the fastest.

An entry has one or more of: `shapes`; `of`, the products in the step of a training workload of the
same config, read from the step itself (`step_shapes`); and a search for the shape with the highest
throughput, which is the device's measured ceiling for the dtype. Operands are always laid out row
by row, whatever layout they have in a training step.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from siliconprof import plugins
from siliconprof.declarations import Parameter
from siliconprof.session import step_shapes
from siliconprof.session.timing import Plan
from siliconprof.stats import statistics
from siliconprof.workloads._operation import (
    BURST_PARAMETERS,
    PRODUCT_POINT,
    WIDTH_BYTES,
    OperationWorkload,
    checked,
    product_text,
    shapes_parameter,
)

Shape = tuple[int, int, int, int]  # batch, m, k, n

FIRST_SIDE = 256
TILE = 64
GAIN = 0.02  # less is noise
GIVE_UP_AFTER = 2  # squares in a row that were not faster than the best
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


if TYPE_CHECKING:
    from siliconprof.session.session import Session

# Rows and columns that are checked: float64 on a CPU would take minutes for all of a large product.
CHECKED_ROWS, CHECKED_COLUMNS = 64, 1024
UNKNOWN_MEMORY_BYTES = 2**30  # that a search may use where the device's memory is unknown


class Plugin(OperationWorkload):
    """matmul"""

    POINT = {
        **PRODUCT_POINT,
        "of": Parameter("string", label="taken from a step of", identifies=False),
        "count": Parameter("integer", label="times in that step", identifies=False),
    }
    PARAMETERS = {
        "shapes": {
            **shapes_parameter(4, 4, "products as [batch, m, k, n]; all are points of one cell"),
            "minItems": 0,
            "default": [],
        },
        "of": {
            "type": ["string", "null"],
            "default": None,
            "description": "name of a workload of this config that trains: the products of its own "
            "step are points too, each with its count per step",
        },
        "max_shapes": {
            "type": "integer",
            "minimum": 1,
            "default": 16,
            "description": "with `of`: largest number of shapes measured, those with the most "
            "operations; the record has their share of the step's operations",
        },
        "search_budget_s": {
            "type": "number",
            "minimum": 0,
            "default": 0,
            "description": "seconds of search for the shape with the highest throughput; 0 = none",
        },
        "search_memory_share": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "default": 0.25,
            "description": "share of the device's memory that the search's operands may take",
        },
        **BURST_PARAMETERS,
    }

    @classmethod
    def problems(
        cls, parameters: Mapping[str, Any], dataset: Mapping[str, Any] | None
    ) -> list[str]:
        """See `Workload.problems`."""
        if any(parameters.get(key) for key in ("shapes", "of", "search_budget_s")):
            return []
        return ["shapes: is missing; expected a list of [batch, m, k, n], `of` or search_budget_s"]

    @classmethod
    def describe_point(cls, row: Mapping[str, Any]) -> str:
        """See `Workload.describe_point`."""
        return product_text(row) + (f", as in {row['of']}" if row.get("of") else "")

    @property
    def trained(self) -> Any:
        """The workload whose step has the products; None without `of`."""
        of = self.parameters.get("of_workload")
        return plugins.load("workloads", of["module"])(of["parameters"]) if of else None

    def packages(self, framework: str) -> tuple[str, ...]:
        """See `Workload.packages`: the step is traced in torch, whatever measures its products."""
        traced_in = step_shapes.TRACED_IN
        return (traced_in, *self.trained.packages(traced_in)) if self.trained else ()

    def imports(self, framework: str) -> list[tuple[str, Callable[[], Any]]]:
        """See `Workload.imports`: what the trace needs, where this process makes it."""
        here = self.trained and framework == step_shapes.TRACED_IN
        return self.trained.imports(framework) if here else []

    def memory_bytes(
        self, precision: str, backend: str, capability: str | None = None
    ) -> dict[str, int]:
        """See `Workload.memory_bytes`: operands and result of the largest of the `shapes`.

        The step's are known once it is traced, and the search keeps within its share.
        """
        width = WIDTH_BYTES.get(precision, 4)
        return {"operands": width * max(map(values, self.parameters["shapes"]), default=0)}

    def measure(self, session: Session) -> None:
        """See `KernelWorkload.measure`."""
        step = self.of_step(session) if self.parameters["of"] else []  # first: it may be refused
        for shape in self.parameters["shapes"]:
            session.add_point(self.point(session, shape))
        for product in step:
            origin = {"of": self.parameters["of"], "count": product["count"]}
            session.add_point(self.point(session, product["shape"], origin))
        if self.parameters["search_budget_s"]:
            self.search(session)

    def of_step(self, session: Session) -> list[dict[str, Any]]:
        """The products of the named workload's step that will be measured.

        Raises:
            Unsupported: the step cannot be traced here.
        """
        name = self.parameters["of"]
        session.progress(f"trace a step of {name}", 0, always=True)
        step = step_shapes.of(self.parameters["of_workload"], session.backend.framework)
        all_products = step["products"]
        measured = all_products[: self.parameters["max_shapes"]]

        def work(products: list[dict[str, Any]]) -> float:
            return sum(p["count"] * step_shapes.flops(p["shape"]) for p in products)

        session.method["step_shapes"] = {
            "of": name,
            "how": "forward and backward traced in torch on tensors without values; attention's "
            "inner products included, causal masking not subtracted, convolutions left out",
            "products_per_step": sum(p["count"] for p in all_products),
            "shapes_per_step": len(all_products),
            "shapes_measured": len(measured),
            "product_flops": work(all_products),
            "measured_share": work(measured) / work(all_products),
            "product_flops_over_flops_per_step": work(all_products) / step["step_flops"],
        }
        return measured

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
            point = self.point(session, list(shape))
            session.add_point(point)
            flop_per_s = point["flops"] / statistics.median(point["times"]["step_s"])
            pauses_s = len(point["attempts"]) * plan.cool_down_s
            timed_s = session.timed_s - timed_before_s
            set_up_s = time.perf_counter() - began - timed_s - pauses_s
            last.update(rate=flop_per_s, set_up_s=set_up_s, bytes=n_bytes(shape))
            return flop_per_s

        def cost_s(shape: Shape) -> float:
            once_s = step_shapes.flops(shape) / last["rate"]
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

    def point(
        self, session: Session, shape: list[int], origin: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """One shape: checked against float64 on random data, then timed.

        Args:
            origin: `of`, the workload whose step has the product, and its `count` there.
        """
        backend, cell = session.backend, session.cell
        batch, m, k, n = shape
        what = f"the product {batch}x{m}x{k}x{n}"
        a = backend.normal((batch, m, k), cell.seed)
        b = backend.normal((batch, k, n), cell.seed + 1)
        errors = results_errors(backend, backend.matmul(a, b), a, b)
        return self.timed_point(
            session,
            what,
            {"batch": batch, "m": m, "k": k, "n": n} | dict(origin or {}),
            lambda: backend.matmul(a, b),
            {
                "flops": step_shapes.flops(shape),
                "flops_source": "2 batch m k n, one multiplication and one addition per term",
                "bytes": WIDTH_BYTES[cell.precision] * values(shape),
                "result_error": max(checked(error, cell.precision, what) for error in errors),
            },
        )


def results_errors(backend: Any, product: Any, a: Any, b: Any) -> list[float]:
    """Relative errors of a product's first corner (first batch) and last corner (last batch)."""
    backend.evaluate(product)
    errors = []
    for one, rows, columns in (
        (slice(None, 1), slice(None, CHECKED_ROWS), slice(None, CHECKED_COLUMNS)),
        (slice(-1, None), slice(-CHECKED_ROWS, None), slice(-CHECKED_COLUMNS, None)),
    ):
        errors.append(
            backend.relative_error(
                product[one, rows, columns], operator.matmul, a[one, rows], b[one, :, columns]
            )
        )
    return errors


def values(shape: Any) -> int:
    """Values that must move at least once: both operands and the result."""
    batch, m, k, n = shape
    return batch * (m * k + k * n + m * n)
