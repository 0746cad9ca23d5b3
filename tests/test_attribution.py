"""Why one training is slower than another: what is said without operators.

Gaps that are taken apart by operators are tested in `test_operators.py`, which trainings are paired
in `test_page_statements.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from siliconprof.analyse import attribution
from siliconprof.compare import explain
from synthetic_results import CPU, GPU, H200, PHASES, make, repeated, table, training


def explained(folder: Path, cells: Sequence[dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
    """Lines of attribution.csv."""
    results = make(folder, cells, devices=(CPU, H200), **more)
    return table(results, "attribution")


def line_of(lines: Sequence[dict[str, Any]], part: str) -> dict[str, Any]:
    """The line of a part of one pair."""
    (found,) = (line for line in lines if line["part"] == part)
    return found


def test_a_gap_without_operators_has_phases_and_no_causes(tmp_path: Path) -> None:
    lines = explained(tmp_path, [training(0.010), training(0.002, **GPU)], last=attribution)
    gap, left = line_of(lines, "gap"), line_of(lines, "unexplained")
    assert gap["seconds"] == pytest.approx(0.008, rel=1e-3)
    assert gap["slow_backend"] == "torch-cpu" and gap["low_s"] < gap["seconds"] < gap["high_s"]
    # Plain arithmetic: phases are medians of split steps, the rest makes up for the difference.
    phases = {line["part"]: line["seconds"] for line in lines if line["kind"] == "phase"}
    assert sum(phases.values()) == pytest.approx(gap["seconds"], rel=1e-12)
    assert phases["backward"] == pytest.approx(PHASES["backward_s"] * 1.02 * 0.008, rel=1e-3)
    assert {line["kind"] for line in lines} == {"gap", "phase", "unexplained"}
    assert left["seconds"] is None and gap["verdict"] == left["verdict"] == "not taken apart"
    assert left["reason"].startswith("the operators of both were not timed")
    told = " ".join(explain.as_text(pd.DataFrame(lines)).split())
    assert "backward" in told and "were not timed" in told


def test_processes_that_differ_widen_the_gap(tmp_path: Path) -> None:
    cells = [training(0.010), training(0.011, backend="mlx")]
    narrow = line_of(explained(tmp_path, cells, last=attribution), "gap")
    assert narrow["verdict"] != "no gap beyond noise"
    cells = [repeated(cell, 0.8, 0.9, 1.1, 1.2) for cell in cells]
    wide = line_of(explained(tmp_path / "again", cells, last=attribution), "gap")
    assert wide["low_s"] < narrow["low_s"] and wide["high_s"] > narrow["high_s"]
    assert wide["verdict"] == "no gap beyond noise"
    assert (narrow["fast_how"], wide["fast_how"]) == ("within one process", "between 5 processes")
