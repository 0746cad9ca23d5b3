"""The records of cells that were measured again: a table, and steps over time on the study page."""

from __future__ import annotations

from pathlib import Path

import siliconprof
from synthetic_results import make, matmul, render, training
from test_compare import process, put


def test_the_study_shows_what_was_measured_again_and_nothing_else(tmp_path: Path) -> None:
    once = render(make(tmp_path / "once", [training(0.1), matmul()]))
    assert 'id="figure-history"' not in once.html
    for factor, at_s in ((1.0, 0), (0.5, 60)):
        put(tmp_path / "twice" / "results", process(training(0.1), factor, at_s))
    results = make(tmp_path / "twice", [process(training(0.1), 0.5, 60), matmul()])
    lines = siliconprof.load(results).history
    assert len(lines) == 2 and lines["step_s"].iloc[0] == 2 * lines["step_s"].iloc[1]
    assert 'id="figure-history"' in render(results).html
