"""What can explain published gaps: bounds from small published files, through the stage."""

from __future__ import annotations

import csv
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from siliconprof.analyse import published_gaps
from siliconprof.memory.memory_model import VOCAB_SIZE
from siliconprof.session import inventory
from siliconprof.store import table_files
from siliconprof.workloads import gpt2
from synthetic_results import run
from test_step_formulas import dispatched_by_torch, evaluated_by_mlx

REGISTRY = ROOT / "config/devices.yaml"
PASSES, LAUNCHES = "table4_pass_time", "table6_kernel_launch"
ULTRA = {"device": "m2-ultra-76", "backend": "torch-mps", "batch_size": "8"}
A6000 = {"device": "rtx-a6000", "backend": "torch-cuda", "batch_size": "8"}
CARD = A6000 | {"pass_time_s": "2.771"}
PEAK = {"m2-ultra-76": 27.2e12, "rtx-a6000": 38.7e12, "m2-pro-19": 6.8e12}  # as in the registry
BANDWIDTH = {"m2-ultra-76": 800e9, "rtx-a6000": 768e9, "m2-pro-19": 200e9}


@pytest.fixture
def printed(tmp_path: Path) -> Path:
    """The shipped published tables, to be edited."""
    shutil.copytree(ROOT / "config/published", tmp_path / "published")
    return tmp_path


def edit(folder: Path, name: str, rows: list[dict[str, str]]) -> None:
    """Put rows in place of a published table's; what they lack is as in its first row."""
    path = folder / f"published/{name}.csv"
    with open(path, encoding="utf-8", newline="") as stream:
        first = next(csv.DictReader(stream))
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(first))
        writer.writeheader()
        writer.writerows([first | row for row in rows])


def analysed(folder: Path) -> list[dict[str, Any]]:
    """What the stage writes."""
    options = {"published": folder / "published", "registry": REGISTRY, "output-dir": folder}
    run(published_gaps, **options)
    return table_files.rows(table_files.read(folder / "published_gaps.csv"))


def by_cause(rows: list[dict[str, Any]], update: bool = True) -> dict[str, dict[str, Any]]:
    """Cause -> its line, of one gap."""
    phase = published_gaps.PHASES[update]
    found = [r for r in rows if r["published_in"] == "Table 4" and r["phase"] == phase]
    lines = {row["cause"]: row for row in found}
    assert len(lines) == len(found)
    return lines


def test_bounds_of_the_shipped_tables_hold_together(printed: Path) -> None:
    """At most is no less than at least; parts add up; what exceeds its gap says so."""
    rows = analysed(printed)
    table4 = [row for row in rows if row["published_in"] == "Table 4"]
    assert len(table4) == 11 * 2 * 4
    for i in range(0, len(table4), 4):
        *single, together = table4[i : i + 4]
        for row in table4[i : i + 4]:
            assert row["least_share"] <= row["most_share"]
            whole, none = row["most_share"] >= 1, row["most_share"] <= 0
            assert (row["can_be"] == "all of it", row["can_be"] == "nothing") == (whole, none)
            assert row["reason"] is None
        assert together["most_share"] <= sum(row["most_share"] for row in single) + 1e-9
        assert together["least_share"] >= sum(row["least_share"] for row in single) - 1e-9
        assert ("something else" in together["conclusion"]) == (together["most_share"] < 1)


@pytest.mark.parametrize("seed", range(4))
def test_a_planted_division_lies_within_the_bounds(printed: Path, seed: int) -> None:
    """Passes made of known times at one share of both data sheets, and the cost of launches."""
    draw = random.Random(seed)
    fast = draw.choice([A6000 | {"backend": "torch-mps"}, ULTRA])
    slow = ULTRA | {"device": "m2-pro-19", "batch_size": draw.choice(["2", "8"])}
    share, share_of_memory = draw.uniform(0.2, 0.9), draw.uniform(0.2, 0.9)
    operations, activations, weights = draw.uniform(1e12, 5e12), draw.uniform(5e10, 2e11), 4e10
    cost_s = {"m2-pro-19": 2.6e-4, "m2-ultra-76": 1.5e-4, "rtx-a6000": 6.4e-6}
    times, truth = [], {"launches": 0.0, "products": 0.0, "bandwidth": 0.0}
    for side, sign in ((slow, 1), (fast, -1)):
        device, batch = side["device"], int(side["batch_size"])
        own = {
            "launches": draw.uniform(0, 5000) * cost_s[device] / batch,
            "products": operations / (share * PEAK[device]),
            "bandwidth": (activations + weights / batch) / (share_of_memory * BANDWIDTH[device]),
        }
        rest_s = draw.uniform(0, 0.3)
        times.append(side | {"pass_time_s": repr(batch * (sum(own.values()) + rest_s))})
        truth = {cause: truth[cause] + sign * own[cause] for cause in truth}
    edit(printed, PASSES, times)
    launches = {d: {"followup_launch_ms": repr(1e3 * cost)} for d, cost in cost_s.items()}
    edit(printed, LAUNCHES, [{"device": d} | launch for d, launch in launches.items()])
    lines = by_cause(analysed(printed))
    sign = 1 if lines["all three"]["slow_device"] == "m2-pro-19" else -1
    for cause, seconds in {**truth, "all three": sum(truth.values())}.items():
        row = lines[cause]
        ends = (row["least_s_per_sample"], row["most_s_per_sample"])
        assert ends[0] - 1e-9 <= sign * seconds <= ends[1] + 1e-9, cause


@pytest.mark.parametrize(
    ("side", "reason"),
    [
        ({"pass_time_s": ""}, "prints no pass_time_s of M2 Ultra"),
        ({"batch_size": ""}, None),  # shares nothing with the other row: no pair
        ({"precision": "bf16"}, "nobody has counted the operators of GPT2-large in bf16"),
    ],
)
def test_what_nobody_printed_is_a_reason(
    printed: Path, side: dict[str, str], reason: str | None
) -> None:
    edit(printed, PASSES, [ULTRA | {"pass_time_s": "3.239"} | side, CARD])
    rows = [row for row in analysed(printed) if row["published_in"] == "Table 4"]
    if reason is None:
        assert rows == []
        return
    for row in rows:
        assert (row["most_share"] is None) == (row["reason"] is not None)
        assert row["basis"] is None or row["reason"] is None
    together = by_cause(rows)["all three"]
    assert reason in together["reason"] and together["conclusion"] is None


@pytest.mark.parametrize("backend", ["torch-cpu", "mlx"])
def test_operators_of_a_pass_are_those_of_a_real_step(backend: str, tmp_path: Path) -> None:
    shape = {"size": "nano", "batch_size": 2, "seq_len": 16, "dataset_vocab_size": VOCAB_SIZE}
    workload = gpt2.Plugin(gpt2.Plugin.defaults() | shape)
    step = inventory.Training(workload, workload.parameters, backend, "fp32", 1)
    step.clock.split = False
    step.step()
    if backend == "mlx":
        found = evaluated_by_mlx(step.step, tmp_path / "graph.dot")
    else:
        found = dispatched_by_torch(step.step)
    row = {"workload": "GPT2-nano", "precision": "fp32", "backend": backend}
    whole = published_gaps.operators(row, updates=True)
    assert whole == pytest.approx(found.total(), rel=0.03), found  # a version may fuse one more
