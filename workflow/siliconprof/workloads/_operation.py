"""Workloads that time single operations: parameters, the check of results, both methods.

The paper warms up with 10 launches, then launches 100 times in a row and divides (Feng et al. 2025,
section 4.4). The record has that mean beside our own median of separately synchronised calls.
"""

from __future__ import annotations

import itertools
import operator
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Literal

from siliconprof.backends.base import Arrays, Unsupported
from siliconprof.declarations import Parameter, Quantity
from siliconprof.parameters import EachOnce, NotNegative, Several, Whole
from siliconprof.session.cell_run import CellRun
from siliconprof.workloads.base import LATER_MODULES, KernelWorkload

WIDTH_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
# Relative root mean square error against float64 above which a result is wrong, not imprecise.
WRONG_ABOVE = {"fp32": 1e-4, "tf32": 5e-3, "fp16": 5e-3, "bf16": 3e-2}
BURST_WARMUP = 10  # launches before the burst, the paper's 10
PRODUCT_POINT: Mapping[str, Parameter] = {
    name: Parameter("integer", label=name) for name in ("batch", "m", "k", "n")
}
# Rows and columns that are checked: float64 on a CPU would take minutes for all of a large product.
CHECKED_ROWS, CHECKED_COLUMNS = 64, 1024
Caches = Annotated[Several[Literal["warm", "cold"]], EachOnce]
CACHE_PARAMETER = Parameter("string", label="cache")


class BurstParameters(KernelWorkload.Parameters):
    """Settings of the paper's method."""

    burst: Annotated[
        Whole,
        "launches in a row whose mean is taken, the paper's 100; 0 = none",
    ] = 100
    burst_budget_s: Annotated[
        NotNegative, "seconds; a burst that is expected to take longer is not run"
    ] = 3.0


class OperationWorkload(KernelWorkload):
    """Operations on arrays, each timed alone (median) and, with `burst`, as the paper does (mean)."""

    refuses = dict.fromkeys(
        ("amp-fp16", "amp-bf16"),
        "mixed precision is a way to train; an operation has one dtype: ask for fp16 or bf16",
    )
    QUANTITIES = {
        **KernelWorkload.QUANTITIES,
        "burst_mean_s": Quantity("mean of a burst", "s", "lower"),
        "result_error": Quantity("error against float64", "", "lower"),
    }

    def imports(self, framework: str) -> list[tuple[str, Callable[[], Any]]]:
        """Modules that would else be imported within the first point, for seconds that a search counts."""
        names = LATER_MODULES.get(framework, ())
        return [(name, partial(import_module, name)) for name in names]

    def timed_point(
        self,
        cell_run: CellRun,
        what: str,
        params: Mapping[str, Any],
        launch: Callable[[], Any],
        work: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The point of one operation whose result has been checked.

        Args:
            what: its name, for the live display.
            launch: starts the operation, which may be lazy, and returns its result without waiting.
            work: `flops`, `flops_source`, `bytes` and `result_error`.
        """
        backend = cell_run.backend
        observed = called(cell_run, launch)
        backend.memory.reset_peak()
        measured = cell_run.repeat(what, lambda: backend.arrays.eval(launch()))
        point = {"params": dict(params)} | measured | dict(work)
        point |= {"observed": observed, "memory": cell_run.memory()}
        if "burst" not in self.parameters:
            return point
        fastest_s = min(measured["times"]["step_s"])
        return together(point, self.burst(cell_run, dispatched(backend.arrays, launch), fastest_s))

    def burst(
        self, cell_run: CellRun, launch: Callable[[], Any], fastest_s: float
    ) -> dict[str, Any]:
        """The paper's method: the mean of launches in a row, synchronised once."""
        count, warm = self.parameters["burst"], BURST_WARMUP
        expected_s, budget_s = fastest_s * (count + warm), self.parameters["burst_budget_s"]
        if not count:
            return {"burst_mean_s": None, "burst_reason": "switched off"}
        if expected_s > budget_s:
            reason = f"{count + warm} launches would take about {expected_s:.1f} s, the budget is "
            return {"burst_mean_s": None, "burst_reason": f"{reason}{budget_s} s"}

        def once() -> dict[str, Any]:
            for _ in range(warm):
                launch()
            cell_run.backend.clock.synchronize()
            start = time.perf_counter()
            for _ in range(count):
                launch()
            cell_run.backend.clock.synchronize()
            return {"burst_mean_s": (time.perf_counter() - start) / count}

        return cell_run.undisturbed(once) | {"burst_count": count, "burst_warmup": warm}


def called(cell_run: CellRun, launch: Callable[[], Any]) -> dict[str, Any]:
    """What a call really hands to the device: `operands`, dtypes, and `flops`; or the `reason`.

    Operands are those of the products among its operators, of all operators where it has none.
    """
    try:
        operators = cell_run.backend.profiler.describe_call(launch)
    except Unsupported as error:
        return {"operands": [], "flops": None, "reason": str(error)}
    products = [operator for operator in operators if operator.flops]
    inputs = " ".join(operator.inputs for operator in products or operators)
    flops = cell_run.backend.profiler.total_flops((one.kind, one.flops, 1) for one in operators)
    operands = sorted({dtype for dtype in re.findall(r"(\w*float\w*)\[", inputs)})
    return {"operands": operands, "flops": flops, "reason": None}


def together(point: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A point merged with further timings: disturbed where either is, with all attempts."""
    disturbed = point["disturbed"] or more.get("disturbed")
    attempts = [*point["attempts"], *more.get("attempts", ())]
    return {**point, **more, "disturbed": disturbed, "attempts": attempts}


class ProductWorkload(OperationWorkload):
    """Products of matrices, named by their shape and what else tells one point from another."""

    POINT = PRODUCT_POINT

    @classmethod
    def describe_point(cls, row: Mapping[str, Any]) -> str:
        """`8×64×128×32, cold` of batch, m, k, n and the rest."""
        shape = "×".join(f"{row[name]:g}" for name in PRODUCT_POINT)
        rest = [p.text(row[name]) for name, p in cls.POINT.items() if name not in PRODUCT_POINT]
        return ", ".join([shape, *rest])


def checked(error: float, precision: str, what: str) -> float:
    """The relative error of a result; raises ArithmeticError where it is too large."""
    if not error < WRONG_ABOVE[precision]:
        raise ArithmeticError(f"{what} is wrong: relative error {error:.2e} against float64")
    return error


def dispatched(arrays: Arrays, launch: Callable[[], Any]) -> Callable[[], Any]:
    """A launcher that also starts a lazy framework's work; it returns the result without waiting."""

    def start() -> Any:
        result = launch()
        arrays.async_eval(result)
        return result

    return start


def product_error(arrays: Arrays, result: Any, left: Any, right: Any, first: bool) -> float:
    """Relative error against float64 of a result's first or last corner, where edges are."""
    one = slice(None, 1) if first else slice(-1, None)
    rows, columns = (
        slice(None, most) if first else slice(-most, None)
        for most in (CHECKED_ROWS, CHECKED_COLUMNS)
    )
    arrays.eval(result)
    corner = result[one, rows, columns]
    return arrays.relative_error(corner, operator.matmul, left[one, rows], right[one, :, columns])


def values(shape: Sequence[int]) -> int:
    """Values that a product [batch, m, k, n] must move at least once: both operands and the result."""
    batch, m, k, n = shape
    return batch * (m * k + k * n + m * n)


def rotating(launches: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """One launcher that calls several in turn, each on its own arrays."""
    turn = itertools.cycle(launches)
    return lambda: next(turn)()
