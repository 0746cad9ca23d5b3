"""The records of cells that were measured again: a table, and steps over time on the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import siliconprof
from siliconprof.store import record
from synthetic_results import make, matmul, render, training


def test_the_page_shows_what_was_measured_again_and_nothing_else(tmp_path: Path) -> None:
    once = render(make(tmp_path / "once", [training(0.1), matmul()]))
    assert "history" not in once.markup and "history" in once.ids  # says what it would need
    old = training(0.2) | {"started_at": "2026-03-01T12:00:00+00:00"}
    new = training(0.1) | {"started_at": "2026-03-02T12:00:00+00:00"}
    folder = tmp_path / "twice" / "results" / "history" / record.cell_path(old)
    old["sha256"] = record.content_sha256(old)
    record.keep_in_history(folder, old["sha256"], json.dumps(old))
    results = make(tmp_path / "twice", [new, matmul()])
    lines = siliconprof.load(results).history
    assert len(lines) == 2 and lines["step_s"].iloc[0] == pytest.approx(2 * lines["step_s"].iloc[1])
    said = [text for text in render(results).hover("history") if "days" in text]
    assert ["200" in text or "100" in text for text in said] == [True] * 2
