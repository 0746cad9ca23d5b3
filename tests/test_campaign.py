"""Fifty cells, each as short as a cell can be, from the command to the page.

Of what depends on their number, Snakemake's jobs, one page of all and an experiment too long for a
command are shown here; time and memory at a thousand cells are measured by benchmarks/render.py.
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest
from conftest import QUICK, own_project

BACKENDS = ("mlx", "torch-cpu")
WORKLOADS = 25
ARGUMENT_BYTES = 128 * 1024  # of one word of a command on Linux
# Data sets that no cell reads make the experiment longer than that.
UNREAD = {"source": "folder", "path": "/none/" + "x" * 400, "vocab_size": 300}


@pytest.mark.campaign
def test_fifty_cells_reach_the_page(tmp_path: Path) -> None:
    """Each in a process of its own, in the default profile; the same command then does nothing."""
    project = own_project(tmp_path, shared=False)
    product = {"module": "matmul", "search_budget_s": 0}
    project.configure(
        backends=[*BACKENDS],
        precisions=["fp32"],
        timing=QUICK | {"energy_window_s": 0},
        datasets={f"unread{n}": UNREAD for n in range(400)},
        workloads={f"mm{n}": product | {"shapes": [[1, 8, 8, n + 1]]} for n in range(WORKLOADS)},
    )
    project.snakemake("report")
    experiment = project.path / "results" / "experiment.json"
    assert experiment.stat().st_size > ARGUMENT_BYTES
    with open(project.path / "results/tables/cells.csv", newline="", encoding="utf-8") as stream:
        cells = Counter((row["backend"], row["status"]) for row in csv.DictReader(stream))
    assert cells == {(backend, "ok"): WORKLOADS for backend in BACKENDS}
    page = (project.path / "results" / "report.html").read_text(encoding="utf-8")
    assert all(f"mm{n}" in page for n in range(WORKLOADS))
    assert "Nothing to be done" in project.snakemake("report").stderr
