"""The transformer grid: points that run out of memory, and both ways of timing."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import codes, cpu_cell
from measuring import by_hand
from siliconprof import plugins
from siliconprof.session.resolved_cell import ResolvedCell
from siliconprof.store.cell import Cell
from siliconprof.workloads import transformer_grid

SMALL = {"n_layer": [1, 2], "n_embd": [16], "n_head": [2], "seq_len": [16], "vocab_size": 64}


def cell(backend: str, timing: Mapping[str, Any] | None = None, **parameters: Any) -> Cell:
    """A grid of 1 and 2 layers, each at batches of 1 and 2, on this machine's CPU."""
    own = SMALL | {"batch_size": [1, 2], "min_run_time_s": 0.01} | parameters
    # Two threads wait for each other on a busy host.
    return cpu_cell(backend, "transformer_grid", own, timing=timing or {})


def by_size(made: Mapping[str, Any]) -> dict[tuple[int, int], dict[str, Any]]:
    """The record's points by (n_layer, batch_size)."""
    found = {(p["params"]["n_layer"], p["params"]["batch_size"]): p for p in made["points"]}
    assert len(found) == len(made["points"])
    return found


# -- memory ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="macOS ignores RLIMIT_AS")
@pytest.mark.parametrize(
    ("backend", "mib", "large"), [("torch-cpu", 2048, 80_000), ("mlx", 1024, 8_000)]
)
def test_a_point_out_of_memory_ends_no_other(
    backend: str, mib: int, large: int, tmp_path: Path
) -> None:
    """Torch raises and goes on; MLX dies on its CPU, and the record has the points until then.

    Torch's large batch needs 1.3 GB for its logits alone, MLX's several arrays of 131 MB.
    """
    much: dict[str, Any] = {"n_layer": [1, 2], "n_embd": [16], "vocab_size": 256}
    much["batch_size"] = [2, large]
    limit = (resource.RLIMIT_AS, (mib * 2**20, mib * 2**20))
    made = by_hand(cell(backend, **much), tmp_path, preexec_fn=lambda: resource.setrlimit(*limit))
    points = by_size(made)
    assert points[1, 2]["status"] == "ok" and points[1, 2]["times"]["step_s"]
    assert points[2, 2]["status"] == "ok" and points[2, 2]["times"]["step_s"]
    if backend == "mlx":
        assert (made["status"], len(points)) == ("failed", 2)  # it crashes without a word of memory
        assert "(SIGSEGV)" in made["reason"]
        assert f"batch_size={large}, step 0" in made["reason"]
        return
    assert made["status"] == "ok", made["reason"]
    lost = points[1, large]
    assert (lost["status"], lost["times"]) == ("oom", {})
    assert lost["params"]["tokens_per_step"] == 16 * large and lost["flops"] > 0
    codes = {flag["code"]: flag["detail"] for flag in made["flags"]}
    assert codes["points_missing"].startswith("2 of 4 points: 2 oom")
    assert "DefaultCPUAllocator: can't allocate memory" in lost["reason"]


@pytest.mark.slow
def test_what_the_estimator_says_does_not_fit_is_skipped(tmp_path: Path) -> None:
    """With its figures; the whole cell when nothing fits; `force` tries all the same."""
    asked = cell("mlx", batch_size=[1, 64])
    workload = plugins.load("workloads", "transformer_grid")
    grid = ResolvedCell(asked).workload
    assert isinstance(grid, workload)
    need = {
        (m.n_layer, m.batch_size): sum(m.memory_bytes("fp32", "mlx").values())
        for m in grid.models()
    }
    small, large = need[2, 1], need[1, 64]
    assert 0 < small < large
    budget_gib = (small + large) / 2 / 2**30
    made = by_hand(cell("mlx", batch_size=[1, 64], memory_budget_gib=budget_gib), tmp_path)
    points = by_size(made)
    statuses = {key: p["status"] for key, p in points.items()}
    expected = {(n, size): word for n in (1, 2) for size, word in ((1, "ok"), (64, "skipped"))}
    assert statuses == expected
    assert "the budget is" in points[1, 64]["reason"] and "predicted" in points[1, 64]["reason"]
    assert points[1, 64]["memory"]["predicted_bytes"] == large and points[1, 64]["times"] == {}
    none = by_hand(cell("mlx", memory_budget_gib=1e-6), tmp_path)
    assert none["status"] == "skipped"
    assert none["reason"].startswith("none of 4 points was measured: 4 skipped; predicted")
    forced = by_hand(cell("mlx", memory_budget_gib=1e-6, force=True), tmp_path)
    assert {p["status"] for p in forced["points"]} == {"ok"}


@pytest.mark.slow
def test_a_grid_that_takes_ten_budgets_ends_with_fewer_points(tmp_path: Path) -> None:
    timing = {"budget_s": 1e-6, "iterations": 5, "max_iterations": 9}
    made = by_hand(cell("mlx", timing), tmp_path)
    first, *others = made["points"]
    assert made["status"] == first["status"] == "ok" and len(others) == 3
    assert (first["stopped_by"], len(first["times"]["step_s"])) == ("overrun", 2)
    assert {point["status"] for point in others} == {"skipped"}
    assert "the budget of all 4 is 4e-06 s" in others[0]["reason"]
    assert {"fewer_repeats", "points_missing"} <= codes(made)


def test_the_grid_is_all_combinations_that_are_models() -> None:
    """Head dimensions that are no even number are left out and counted; the plan counts points."""
    grid = ResolvedCell(
        cell("mlx", n_embd=[16, 24], n_head=[1, 2, 8], d_ff=[None, 48], batch_size=[1])
    ).workload
    kept, skipped = grid.settings()
    assert (len(kept), skipped) == (20, 4)  # 24 / 8 is odd, at 2 layers and 2 widths d_ff
    names = {transformer_grid.name_of(model) for model in grid.models()}
    assert len(names) == grid.n_points() == 14  # 8/3 of 16 is 48: the same model twice
    assert all(model.head_dim % 2 == 0 for model in grid.models())
