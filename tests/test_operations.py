"""Operations through the front door: their work, their results, the ceiling."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Checkout, codes, cpu_cell, own_project
from measuring import busy, by_hand
from siliconprof.hosts import caches
from siliconprof.measure import cell_line
from siliconprof.stats import statistics
from siliconprof.store import record as records
from siliconprof.store.cell import Cell
from siliconprof.workloads._operation import WRONG_ABOVE

pytestmark = pytest.mark.slow

MATVEC = {"shapes": [[960, 512], [3, 640, 256]]}
VJP = {"shapes": [[1, 320, 320, 320], [2, 48, 80, 32]]}
SEARCH = {
    "shapes": [[1, 256, 256, 256]],  # the first that the search would try
    "search_budget_s": 1.5,
    "burst_budget_s": 0.05,
}


def cell(backend: str, module: str, own: dict[str, Any], repeats: int = 2, **axes: Any) -> Cell:
    """A cell of an operation."""
    timing = {"iterations": repeats, "max_iterations": repeats, "retries": 0}
    return cpu_cell(backend, module, own, timing=timing, **axes)


def points(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The points of a record without fault, each with a right result."""
    assert record["status"] == "ok", record["reason"]
    assert record["points"]
    precision = record["cell"]["precision"]
    for point in record["points"]:
        assert 0 < point["result_error"] < WRONG_ABOVE[precision]
        assert point["result_error"] > 1e-3 or precision == "fp32"  # bf16 is not fp32 in disguise
        assert all(seconds > 0 for seconds in point["times"]["step_s"])
        assert point["burst_mean_s"] or point["burst_reason"]
    return record["points"]


@pytest.mark.parametrize(("backend", "precision"), [("torch-cpu", "bf16"), ("mlx", "fp32")])
def test_matvec_from_a_warm_and_a_cold_cache(
    project: Checkout, backend: str, precision: str
) -> None:
    width = {"fp32": 4, "bf16": 2}[precision]
    found = points(project.measure(cell(backend, "matvec", MATVEC, precision=precision)))
    shapes = [(1, 960, 512), (3, 640, 256)]
    assert [
        (p["params"]["batch"], p["params"]["m"], p["params"]["k"], p["params"]["cache"])
        for p in found
    ] == [(*s, c) for s in shapes for c in ("warm", "cold")]
    for point in found:
        batch, m, k = (point["params"][name] for name in ("batch", "m", "k"))
        assert point["params"]["n"] == 1
        assert point["flops"] == 2 * batch * m * k
        assert point["bytes"] == width * batch * (m * k + m + k)
        if point["params"]["cache"] == "warm":
            assert "rotation" not in point
            continue
        rotation = point["rotation"]
        assert rotation["buffer_bytes"] == width * batch * m * k
        assert rotation["cache_source"]
        cold_bytes = caches.beyond_bytes(rotation["cache_bytes"])
        assert rotation["buffers"] == cold_bytes // rotation["buffer_bytes"] + 1


@pytest.mark.flaky(reruns=1)  # it compares measured times
@pytest.mark.alone
@pytest.mark.parametrize("backend", ["torch-cpu", "mlx"])
def test_vjp_with_and_without_its_forward_pass(project: Checkout, backend: str) -> None:
    found = {
        (p["params"]["batch"], p["params"]["forward"]): p
        for p in points(project.measure(cell(backend, "vjp", VJP, repeats=20)))
    }
    assert len(found) == 4
    for (batch, forward), point in found.items():
        m, k, n = (point["params"][name] for name in "mkn")
        assert point["flops"] == {"without": 4, "with": 6}[forward] * batch * m * k * n
        moved = 2 * m * k + 2 * k * n + {"without": 1, "with": 2}[forward] * m * n
        assert point["bytes"] == 4 * batch * moved
    # Three products of a size against two.
    fastest = {f: min(found[1, f]["times"]["step_s"]) for f in ("without", "with")}
    assert fastest["with"] > 1.15 * fastest["without"]


def test_a_wrong_result_is_refused(tmp_path: Path) -> None:
    """Each backend with an operator that is off by 1 %: no points, and a reason."""
    wrong = own_project(tmp_path)
    for name, right, planted in (
        ("_torch", "return self.torch.matmul(a, b)", "return self.torch.matmul(a, b) * 1.01"),
        ("_torch", "(a, b), cotangent, retain", "(a, b), 1.01 * cotangent, retain"),
        ("mlx", "self.clock.pending = a @ b\n", "self.clock.pending = 1.01 * (a @ b)\n"),
        ("mlx", "[a, b], [cotangent])", "[a, b], [1.01 * cotangent])"),
    ):
        path = wrong.path / f"workflow/siliconprof/backends/{name}.py"
        text = path.read_text(encoding="utf-8")
        assert text.count(right) == 1
        path.write_text(text.replace(right, planted), encoding="utf-8")
    for asked, what in (
        (cell("mlx", "matvec", MATVEC), "the warm matrix-vector product 1x960x512"),
        (cell("torch-cpu", "vjp", VJP), "the vjp 1x320x320x320 without its forward pass"),
        (cell("mlx", "vjp", VJP), "the vjp 1x320x320x320 without its forward pass"),
    ):
        record = wrong.measure(asked)
        assert record["status"] == "failed"
        assert record["points"] == []
        assert f"{what} is wrong: relative error 1.0" in record["reason"], record["reason"]
        assert "\n" not in record["reason"]


# -- beside others -------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of waiting for a core")
@pytest.mark.parametrize("backend", ["torch-cpu", "mlx"])
def test_a_product_beside_a_busy_process_is_tried_again_and_marked(
    backend: str, tmp_path: Path
) -> None:
    """Both on one core; the terminal holds it against nothing."""
    core = min(os.sched_getaffinity(0))
    own = {"shapes": [[1, 512, 512, 512]], "burst": 0}  # longer than a turn of the scheduler
    timing = {"iterations": 30, "max_iterations": 1000, "budget_s": 0.3, "retry_budget_s": 2}
    asked = cpu_cell(backend, "matmul", own, threads=2, timing=timing | {"retries": 0})
    with busy(core):
        made = by_hand(asked, tmp_path, preexec_fn=lambda: os.sched_setaffinity(0, {core}))
    (point,) = made["points"]
    assert "of the time for a core while other processes used" in point["disturbed"]
    (attempt,) = point["attempts"]
    assert attempt["given_up"].startswith("a thread waited") and attempt["step_s"]
    assert "points_disturbed" in codes(made)
    made_of_it = records.load(tmp_path / "record.json")
    line = cell_line.line_of_record(made_of_it, [made_of_it])
    assert line.endswith("disturbed by other processes"), line


# -- the search for the ceiling ------------------------------------------------------------------


@pytest.mark.flaky(reruns=1)  # it compares measured rates
@pytest.mark.alone
@pytest.mark.parametrize("backend", ["torch-cpu", "mlx"])
def test_the_search_finds_its_best_within_its_budget(project: Checkout, backend: str) -> None:
    record = project.measure(cell(backend, "matmul", SEARCH))
    rates, disturbed = {}, []
    for point in points(record):
        batch, m, k, n = shape = tuple(point["params"][name] for name in ("batch", *"mkn"))
        assert point["flops"] == 2 * batch * m * k * n
        assert point["bytes"] == 4 * batch * (m * k + k * n + m * n)
        rates[shape] = point["flops"] / statistics.median(point["times"]["step_s"])
        if point["disturbed"]:
            disturbed.append(shape)
    said = record["method"]["search"]
    assert said["tried"] == len(rates) == len(record["points"]) >= 3
    sound = {shape: rate for shape, rate in rates.items() if shape not in disturbed}
    assert rates[tuple(said["best"])] == max((sound or rates).values())
    assert said["best_flop_per_s"] == max(sound.values(), default=None)
    assert said["spent_s"] < 1.5 * said["budget_s"]  # what one try costs is a forecast
    assert said["stopped_by"]
