"""A campaign: a thousand cells, each as short as a cell can be, from the command to the page.

It takes many minutes, so it is no part of `make test` but of `make test-all`.
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest
from conftest import QUICK, own_project

BACKENDS = ("mlx", "torch-cpu")
WORKLOADS = 500
ARGUMENT_BYTES = 128 * 1024  # of one word of a command on Linux


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.flaky(reruns=0)
def test_a_thousand_cells_reach_the_page(tmp_path: Path) -> None:
    """Each in a process of its own, in the default profile; the same command then does nothing."""
    project = own_project(tmp_path, shared=False)
    product = {"module": "matmul", "search_budget_s": 0}
    project.configure(
        backends=[*BACKENDS],
        precisions=["fp32"],
        timing=QUICK | {"energy_window_s": 0},
        workloads={f"mm{n}": product | {"shapes": [[1, 8, 8, n + 1]]} for n in range(WORKLOADS)},
    )
    project.snakemake("report")
    (experiment,) = (project.path / "results" / "experiments").iterdir()
    assert experiment.stat().st_size > ARGUMENT_BYTES
    with open(project.path / "results/tables/cells.csv", newline="", encoding="utf-8") as stream:
        cells = Counter((row["backend"], row["status"]) for row in csv.DictReader(stream))
    assert cells == {(backend, "ok"): WORKLOADS for backend in BACKENDS}
    page = (project.path / "results" / "report.html").read_text(encoding="utf-8")
    assert all(f"mm{n}" in page for n in range(WORKLOADS))
    assert "Nothing to be done" in project.snakemake("report").stderr
