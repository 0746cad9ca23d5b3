"""What intervals are: between the processes of a cell where it has several, else within its one."""

from __future__ import annotations

import math
import re
import statistics
from pathlib import Path

import pytest
import siliconprof
from conftest import ROOT, TINY, Checkout
from scipy import stats
from siliconprof.measure import supervise
from siliconprof.session.timing import PHASES
from synthetic_results import make, matmul, render, repeated, shown_table, training

FACTORS = (0.80, 0.95, 1.0, 1.05, 1.2, 1.1)  # of further processes


def between(medians: list[float]) -> list[float]:
    """Geometric mean and 95 % interval of processes' medians, by scipy."""
    logs = [math.log(median) for median in medians]
    middle = statistics.fmean(logs)
    ends = stats.t.interval(0.95, len(logs) - 1, middle, stats.sem(logs))
    return [math.exp(value) for value in (middle, *ends)]


def test_a_further_process_that_fails_is_a_flag_and_no_repeat() -> None:
    report, again = matmul(), matmul() | {"flags": [{"code": "contended", "detail": "another"}]}
    failed = {"status": "failed", "reason": "killed by signal 11"}
    for further in (again, failed, failed):
        supervise.repeat(report, further)
    assert [flag["code"] for flag in report["flags"]] == ["contended", "repeat_failed"]
    for one, other in zip(report["points"], again["points"], strict=True):
        assert one["repeats"] == [{"times": other["times"]}]


@pytest.mark.slow
def test_the_page_says_what_its_intervals_are(tmp_path: Path) -> None:
    """4 % are more than a series varies, and less than processes do."""
    own = [training(0.010), training(0.0104, backend="mlx"), matmul()]
    results = make(tmp_path / "one", own)
    assert "between processes" not in render(results).of("answer")
    (line,) = shown_table(results, "fastest")
    assert line["against"].startswith("1.04 × faster than mlx")
    several = [repeated(cell, *FACTORS) for cell in (own[0], own[2])]
    results = make(tmp_path / "several", [several[0], own[1], several[1]])
    assert "between processes" in render(results).of("answer")
    (line,) = shown_table(results, "fastest")
    ends = [float(line[f"whole_step_ms_{end}"]) for end in ("low", "high")]
    assert ends == pytest.approx(between([10 * factor for factor in (1.0, *FACTORS)])[1:], rel=0.01)
    assert line["against"].startswith("no faster beyond noise than mlx")


@pytest.mark.slow
def test_a_cell_is_measured_in_as_many_processes_as_asked_for(clone: Checkout) -> None:
    training = TINY["workloads"]["nano-2"] | {"timing": {"iterations": 8, "max_iterations": 8}}
    workloads = {"product": TINY["workloads"]["product"], "training": training}
    experiment = TINY | {"workloads": workloads}
    clone.configure(**experiment, repeats=3)
    clone.snakemake("results/tables/points.csv")
    points = {key.split("/")[3]: record["points"][0] for key, record in clone.records().items()}
    point, trained = points["product"], points["training"]
    processes = [point["times"]["step_s"], *(r["times"]["step_s"] for r in point["repeats"])]
    assert len(processes) == 3 and all(len(times) > 1 for times in processes)
    assert len({tuple(times) for times in processes}) == 3
    tables = siliconprof.load(clone.path / "results")
    (line,) = tables.points[tables.points["workload"] == "product"].to_dict("records")
    found = [line[f"step_{part}_s"] for part in ("median", "low", "high")]
    assert found == pytest.approx(between([statistics.median(times) for times in processes]))
    assert (line["processes"], line["interval"]) == (3, "between processes")
    # A step's parts and operators are the mean of the processes', each of which has its own.
    phases = [
        sum(statistics.median(one["times"].get(phase) or [0.0]) for phase in PHASES)
        for one in (trained, *trained["repeats"])
    ]
    for frame in (tables.step_parts, tables.operators):
        assert frame["seconds"].sum() == pytest.approx(statistics.fmean(phases))
    clone.configure(**experiment, repeats=2)
    due = clone.snakemake("-n", "results/tables/points.csv").stdout
    assert re.search(r"^measure +2$", due, re.M)
    careful = ("--configfile", str(ROOT / "config/careful.yaml"))
    plan = clone.snakemake("-n", "-p", "report", *careful, "--quiet", "progress").stdout
    assert '"repeats":5' in plan
