"""Planted faults are caught: nobody waits, the arithmetic, the clock or a result is wrong, drift.

Where a fault is planted, it is planted in the measuring process of a real cell, which is started
by the real command; what is looked at is the record that it leaves.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import codes, cpu_cell
from measuring import by_hand
from siliconprof.backends.base import Backend
from siliconprof.lifetime import PIPELINE_VARIABLE
from siliconprof.measure import scratch
from siliconprof.session import cell_run, measurement, self_checks, timing
from siliconprof.session.cell_run import CellRun
from siliconprof.session.resolved_cell import ResolvedCell
from siliconprof.session.timing import Repeats
from siliconprof.stats import statistics
from siliconprof.store.cell import Cell

BACKENDS = ("torch-cpu", "mlx")
CHECKS = {"clock", "sleep", "twice_the_work", "synchronisation", "marks", "precision", "drift"}
CHECKS |= {"work"}


def product(backend: str, **more: Any) -> Cell:
    """A cell of a small product, on one thread."""
    own = {"shapes": [[1, 32, 32, 32]], "burst": 0}
    return cpu_cell(backend, "matmul", own, **{"workload": "product"} | more)


# Of a cell that makes all checks itself; others take over what an earlier one of this process found.
ALONE = {PIPELINE_VARIABLE: ""}


def measure(folder: Path, cell: Cell, fault: str = "", **environment: str) -> dict[str, Any]:
    """The record of a cell that is measured in a folder.

    Args:
        fault: Python code that a measuring process of its own runs before anything else.
    """
    planted = folder / "planted"
    if fault:
        planted.mkdir(parents=True, exist_ok=True)
        (planted / "sitecustomize.py").write_text(fault, encoding="utf-8")
    return by_hand(cell, folder, search=[planted] if fault else [], **environment)


# -- no fault ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_normal_cell_passes_its_checks(backend: str, tmp_path: Path) -> None:
    """Everything that was checked is in the record, with its figures, and is ok.

    Another process that takes a core for a while makes the check of proportionality fail and that
    of the marks impossible, as it must, and so does a cache that guests share; the cell gets eight
    chances to be left alone.
    """
    for attempt in range(8):
        made = measure(tmp_path / str(attempt), product(backend), **ALONE)
        checks = made["checks"]
        verdicts = [checks[name]["verdict"] for name in self_checks.KERNEL_CHECKS]
        if self_checks.worst_verdict(verdicts) == "ok":
            break
    assert checks.keys() == CHECKS
    told = {name: (check["verdict"], check["reason"]) for name, check in checks.items()}
    assert told.pop("drift")[0] == "not checked"  # two repeats have no order
    assert set(told.values()) == {("ok", None)}, told
    assert not codes(made) & {
        "clock",
        "not_proportional",
        "not_synchronised",
        "marks_differ",
        "drift",
    }
    kernels = checks["twice_the_work"]["kernels"]
    assert [kernel["kernel"] for kernel in kernels] == ["product", "sum"]
    for kernel in kernels:
        assert 1.85 <= kernel["ratio"] <= 2.15
        low, high = (statistics.quantile(kernel[name], 0.25) for name in ("once_s", "twice_s"))
        assert kernel["ratio"] == high / low
        assert min(kernel["once_s"]) > 1e-4  # work, and not the launching of it
    assert 0.9 <= checks["marks"]["ratio"] <= 1.0
    assert min(checks["marks"]["wall_s"]) > 2e-3
    assert min(checks["synchronisation"]["waited_shares"].values()) > 0.8
    assert checks["precision"]["product_error"] < 1e-5


@pytest.mark.slow
def test_cells_of_a_run_share_what_was_checked_and_did_not_fail(tmp_path: Path) -> None:
    """Those that are alike alone, in one run alone, for a while, and never a failure."""
    run = str(os.getpid())

    def made(workload: str, fault: str = "", run: str = run, threads: int = 1) -> dict[str, Any]:
        cell = product("mlx", workload=workload, threads=threads)
        own = {PIPELINE_VARIABLE: run, scratch.CODE_VARIABLE: str(tmp_path / "code")}
        checks = measure(tmp_path, cell, fault, **own)["checks"]
        whose = {checks[name].get("taken_from") for name in CHECKS - {"precision", "drift", "work"}}
        assert len(whose) == 1
        return checks["synchronisation"]

    assert made("broken", NOBODY_WAITS)["verdict"] == "failed"
    for _ in range(5):  # a busy host may fail a check, and then nothing is shared
        assert "taken_from" not in made("first")
        if kept := list(tmp_path.glob("code/siliconprof-checks-*.json")):
            break
    second = made("second")
    assert second["taken_from"] == "cpu-x/mlx/first/auto/fp32" and second["age_s"] > 0
    assert "taken_from" not in made("third", threads=2)
    assert "taken_from" not in made("fourth", run="")
    note = json.loads(kept[0].read_text(encoding="utf-8"))
    kept[0].write_text(json.dumps(note | {"at_s": note["at_s"] - self_checks.SHARED_FOR_S}))
    assert "taken_from" not in made("later")


# -- planted faults ----------------------------------------------------------------------------

MLX = "from siliconprof.backends.mlx import MlxArrays, MlxClock\n"
NO_WAIT = MLX + "MlxClock.synchronize = lambda self: None\n"
NOBODY_EVALUATES = NO_WAIT + "MlxArrays.eval = lambda self, value: None\n"
NOBODY_WAITS = NO_WAIT + "MlxArrays.eval = lambda self, value: self.mx.async_eval(value)\n"
UNSYNCHRONISED = {"not_synchronised", "not_proportional"}


NO_WAIT_AT_MARKS = MLX + (
    "import time\n"
    "MlxArrays.eval = lambda self, value: self.mx.async_eval(value)\n"
    "MlxClock.mark = lambda self: time.perf_counter()\n"
)
FAST_MARKS = MLX + "MlxClock.seconds_between = lambda self, a, b: 1.2 * (b - a)\n"
CLOCK = "import time\nreal = time.perf_counter\ntime.perf_counter = lambda: {} * real()\n"
SHARES = "waited_shares"
# A fault, the check that fails, its figure of so much at least and at most, flags.
FAULTS: dict[str, tuple[str, str, str, float, float, set[str]]] = {
    # Twice the work takes no longer, and the result is not there: both are said.
    "nobody evaluates": (NOBODY_EVALUATES, "synchronisation", SHARES, 0, 0.5, UNSYNCHRONISED),
    "nobody waits": (NOBODY_WAITS, "synchronisation", SHARES, 0, 0.5, UNSYNCHRONISED),
    # Where phases are timed by marks of the backend's own; synchronising waits all the same.
    "no wait at marks": (NO_WAIT_AT_MARKS, "marks", "ratio", 0, 0.5, {"marks_differ"}),
    "fast marks": (FAST_MARKS, "marks", "ratio", 1.1, 1.6, {"marks_differ"}),
    # A sleep of 20 ms is measured as 10 or as 40.
    "slow clock": (CLOCK.format(0.5), "sleep", "measured_s", 0.006, 0.014, {"clock"}),
    "fast clock": (CLOCK.format(2.0), "sleep", "measured_s", 0.024, 0.056, {"clock"}),
}


@pytest.mark.flaky(reruns=1)  # checks are of measured times
@pytest.mark.alone
@pytest.mark.parametrize(
    ("fault", "check", "figure", "least", "most", "flags"), FAULTS.values(), ids=FAULTS
)
def test_a_wrong_clock_and_a_wait_left_out_are_caught(
    fault: str, check: str, figure: str, least: float, most: float, flags: set[str], tmp_path: Path
) -> None:
    made = measure(tmp_path, product("mlx"), fault, **ALONE)
    failed = {name for name, one in made["checks"].items() if one["verdict"] == "failed"}
    assert check in failed and ("twice_the_work" in failed or check != "synchronisation")
    assert "synchronisation" not in failed or check != "marks"
    found = made["checks"][check][figure]
    assert least <= (min(found.values()) if figure == SHARES else found) < most
    assert flags <= codes(made) and made["points"]  # flagged, never hidden


@pytest.mark.slow
def test_another_precision_than_the_one_claimed_is_caught(tmp_path: Path) -> None:
    """A product in bf16 under the name fp32: wrong where its operator is checked, else no fp32."""
    narrow = "    a, b = a.astype(self.mx.bfloat16), b.astype(self.mx.bfloat16)\n"
    lines = (
        "right = MlxArrays.matmul\n"
        "def matmul(self, a, b):\n"
        "    wide = right(self, a, b)\n"
        "{condition}"
        f"{narrow}"
        "    self.clock.pending = (a @ b).astype(self.dtype)\n"
        "    return self.clock.pending\n"
        "MlxArrays.matmul = matmul\n"
    )
    made = measure(tmp_path / "all", product("mlx"), MLX + lines.format(condition=""))
    assert made["status"] == "failed"
    assert "against float64" in made["reason"]
    unseen = "    if a.ndim > 2:\n        return wide\n"  # not by the operator's own check
    made = measure(tmp_path / "unseen", product("mlx"), MLX + lines.format(condition=unseen))
    assert made["status"] == "failed"
    assert "asked for fp32, but the arithmetic was bf16" in made["reason"]
    assert made["checks"]["precision"]["verdict"] == "failed"
    assert made["checks"]["precision"]["effective"] == "bf16"


WIDE = {
    "mlx": MLX
    + """
def matmul(self, a, b):
    with self.mx.stream(self.mx.cpu):
        product = a.astype(self.mx.float64) @ b.astype(self.mx.float64)
        self.clock.pending = product.astype(self.dtype)
    return self.clock.pending
MlxArrays.matmul = matmul
""",
    "torch-cpu": """
from siliconprof.backends._torch import TorchArrays
TorchArrays.matmul = lambda self, a, b: (a.double() @ b.double()).to(a.dtype)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_products_of_wider_operands_than_claimed_are_caught(backend: str, tmp_path: Path) -> None:
    """Their results are better than fp32's, so no error shows it."""
    made = measure(tmp_path, product(backend), WIDE[backend])
    assert made["status"] == "failed"
    assert "asked for fp32, but the arithmetic was fp32 products of float64" in made["reason"]


TWICE = """
from siliconprof.workloads import matmul
right = matmul.flops
matmul.flops = lambda shape: 2 * right(shape)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_work_that_is_counted_twice_is_caught(backend: str, tmp_path: Path) -> None:
    made = measure(tmp_path, product(backend), TWICE)
    assert made["checks"]["work"]["verdict"] == "failed"
    (detail,) = (flag["detail"] for flag in made["flags"] if flag["code"] == "work_differs")
    said, counted = map(float, re.findall(r"[\d.]+e\+\d+", detail)[:2])
    assert said == pytest.approx(2 * counted, rel=1e-3)


# Weights of one layer get no gradient, or none does.
NO_GRADIENT = {
    "mlx": """
from siliconprof.backends._mlx_stepper import MlxStepper
import mlx.core as mx
from mlx.utils import tree_map_with_path
right = MlxStepper.__init__
def init(self, backend, workload, seed):
    right(self, backend, workload, seed)
    taken = self.optimizer.apply_gradients
    def apply(gradients, parameters):
        new = taken(gradients, parameters)
        keep = lambda name, old, made: old if {left!r} in name else made
        return tree_map_with_path(keep, parameters, new)
    self.optimizer.apply_gradients = apply
MlxStepper.__init__ = init
""",
    "torch-cpu": """
from siliconprof.backends._torch_stepper import TorchStepper
right = TorchStepper.__init__
def init(self, backend, workload, seed):
    right(self, backend, workload, seed)
    for name, weight in self.trained.items():
        if {left!r} in name:
            weight.register_hook(lambda gradient: gradient.zero_())
TorchStepper.__init__ = init
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_that_does_not_train_is_caught(backend: str, words: Path, tmp_path: Path) -> None:
    """Where no weight changes there is no record of a speed; where some do not, they are named."""
    own = {"size": "nano", "batch_size": 2, "seq_len": 16, "dataset_vocab_size": 300}
    cell = cpu_cell(backend, "gpt2", own, trainer="plain", dataset=str(words))
    fault = NO_GRADIENT[backend]
    made = measure(tmp_path / "none", cell, fault.format(left=""))
    assert made["status"] == "failed" and "changes none of the weights" in made["reason"]
    made = measure(tmp_path / "some", cell, fault.format(left="ln_f"))
    assert made["status"] == "ok" and made["checks"]["trained"]["verdict"] == "failed"
    (detail,) = (flag["detail"] for flag in made["flags"] if flag["code"] == "weights_unchanged")
    assert "ln_f.bias" in detail and "ln_f.weight" in detail and "wte" not in detail


REPEATS = {"warmup_iterations": 1, "warmup_budget_s": 0, "iterations": 40, "max_iterations": 40,
           "budget_s": 0, "retries": 1, "cool_down_s": 0.05, "retry_budget_s": 5}  # fmt: skip


@pytest.mark.flaky(reruns=1)  # it looks for a drift of times
@pytest.mark.alone
def test_a_planted_drift_is_measured_again_and_flagged(tmp_path: Path) -> None:
    """Every call takes a little longer than the one before it; both attempts are in the record."""
    fault = MLX + (
        "import itertools, time\n"
        "right, calls = MlxArrays.eval, itertools.count()\n"
        "def evaluate(self, value):\n"
        "    if value.ndim == 3:\n"  # the operation, and not the checks before it
        "        time.sleep(0.002 + 0.0002 * next(calls))\n"
        "    right(self, value)\n"
        "MlxArrays.eval = evaluate\n"
    )
    made = measure(tmp_path, product("mlx", timing=REPEATS), fault)
    (point,) = made["points"]
    assert "drift" in codes(made)
    assert made["checks"]["drift"]["verdict"] == "failed"
    assert point["drift"]["significant"]
    assert point["drift"]["ratio"] > 1.05
    (attempt,) = point["attempts"]
    assert len(attempt["step_s"]) == len(point["times"]["step_s"]) == 40
    assert "IQR" in attempt["given_up"] or "drifts" in attempt["given_up"]
    timed_s = sum(attempt["step_s"]) + sum(point["times"]["step_s"])  # and no warm-up
    assert made["accounting"]["timed_s"] == pytest.approx(timed_s)


# -- attempts --------------------------------------------------------------------------------------


STEADY = [1.0, 1.01] * 10
SCATTERED = [1.0, 1.3] * 10
SCATTERED_FAST = [0.5, 0.7] * 10
DRIFTING = [1 + 0.01 * i for i in range(20)]


@pytest.mark.parametrize(
    ("series", "plan", "reasons"),
    [
        ([STEADY], {}, []),  # no retry without a reason
        ([DRIFTING, STEADY], {"retries": 3}, ["drifts"]),
        ([SCATTERED, SCATTERED_FAST], {}, ["IQR"]),  # the last attempt stands
        ([SCATTERED], {"retries": 0}, []),
        # A budget ends them by how long the last attempt took.
        ([SCATTERED, SCATTERED, STEADY], {"retries": 5, "retry_budget_s": 50}, ["IQR", "IQR"]),
        ([SCATTERED, SCATTERED], {"retries": 5, "retry_budget_s": 40}, ["IQR"]),
    ],
)
def test_what_scatters_or_drifts_is_measured_again_within_limits(
    series: list[list[float]],
    plan: dict[str, Any],
    reasons: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts = iter(series)
    whole = {"cool_down_s": 0.0, "retry_budget_s": 1000.0, "retries": 1} | plan
    once: Any = lambda *_: Repeats([], next(attempts), "budget")  # noqa: E731
    monkeypatch.setattr(cell_run, "repeat", once)
    nobody: Any = None
    found = CellRun(product("mlx", timing=whole), Backend(), nobody, nobody).repeat("", nobody)
    assert found["times"]["step_s"] == series[-1] and not list(attempts)
    given_up = [attempt["given_up"] for attempt in found["attempts"]]
    assert [next(why for why in ("IQR", "drifts") if why in said) for said in given_up] == reasons


def test_a_host_that_wakes_up_late_has_no_broken_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy host is no broken clock: a second clock tells them apart."""
    real = timing.time.sleep
    monkeypatch.setattr(timing.time, "sleep", lambda s: real(s + 0.06))
    session = measurement.opened_session(ResolvedCell(product("mlx")), lambda message: None)
    sleep = self_checks.clock_checks(session)["sleep"]
    assert sleep["measured_s"] > 0.07
    assert sleep["verdict"] == "ok", sleep
