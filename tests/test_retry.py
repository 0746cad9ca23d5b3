"""What other processes disturb is measured once more at the end of a run, within a budget."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import QUICK, Checkout
from siliconprof.store import record

TINY = {
    "host": "desk",
    "backends": ["mlx"],
    "timing": QUICK,
    "workloads": {"one": {"module": "matmul", "shapes": [[1, 8, 8, 8]], "burst": 0}},
}
CELLS = "results/tables/cells.csv"
AGAIN = "1 of 1 cells that other processes disturbed were measured again"


def only_record(checkout: Checkout) -> Path:
    """The file of the one record."""
    (path,) = (checkout.path / "results/records").rglob("*.json")
    return path


def history(checkout: Checkout) -> list[dict[str, Any]]:
    """Every record ever made of the one cell."""
    folder = checkout.path / "results/history/desk"
    return [json.loads(path.read_text()) for path in folder.rglob("*.json")]


@pytest.mark.slow
def test_a_disturbed_cell_is_measured_once_more_and_then_never(checkout: Checkout) -> None:
    checkout.configure(**TINY)
    checkout.snakemake("measured")
    path = only_record(checkout)
    disturbed = json.loads(path.read_text())
    assert "instead_of" not in disturbed["method"] and len(history(checkout)) == 1
    # Three times, since the second record may be disturbed indeed.
    disturbed["flags"] += [{"code": "contended", "detail": "planted"}] * 3
    first = record.write(disturbed, path, checkout.path / "results/history")

    checkout.configure(**TINY, retry_contended_s=600)
    assert "retry" in checkout.snakemake("-n", "measured").stdout
    assert json.loads(path.read_text())["sha256"] == first
    said = checkout.snakemake("measured").stdout
    assert AGAIN in said and re.search(r"^again  mlx · one · fp32 ", said, re.M)
    second = json.loads(path.read_text())
    assert second["method"]["instead_of"] == first
    assert {one["sha256"] for one in history(checkout)} >= {first, second["sha256"]}
    assert "Nothing to be done" in checkout.snakemake("measured").stderr

    # Nor where it is flagged itself, or was worse than the first, which stays.
    second["flags"] = [{"code": "contended", "detail": "planted"}]
    third = record.write(second, path, None)
    assert "again" not in checkout.snakemake("measured").stdout
    assert json.loads(path.read_text())["sha256"] == third
    second["method"]["instead_of"] = first
    record.write(disturbed, path, None)
    second["flags"] = [{"code": "contended", "detail": "planted"}] * 9
    shutil.rmtree(checkout.path / "results/history/desk")
    record.write(second, checkout.path / "worse.json", checkout.path / "results/history")
    assert "again" not in checkout.snakemake("measured").stdout
    assert json.loads(path.read_text())["sha256"] == first


@pytest.mark.slow
@pytest.mark.alone
def test_a_process_that_ends_meanwhile_leaves_no_flag(checkout: Checkout) -> None:
    """The tables show the second record, and the next run has nothing to do."""
    seconds = {"max_iterations": 10**6, "budget_s": 2, "relative_interval": 0}
    checkout.configure(**TINY | {"timing": QUICK | seconds}, retry_contended_s=600)
    said = checkout.path / "said.txt"
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with open(said, "w", encoding="utf-8") as stream:
            command = ("snakemake", "--cores", "2", CELLS)
            run = checkout.begin(*command, stdout=stream, stderr=stream)
            while "mlx · one" not in said.read_text(encoding="utf-8") and run.poll() is None:
                time.sleep(0.05)
            other.kill()
            assert run.wait() == 0
    finally:
        other.kill()
        other.wait()
    text = said.read_text(encoding="utf-8")
    assert re.search(r"^mlx · one · fp32 .* contended", text, re.M), text
    assert f"{AGAIN}, 1 without disturbance" in text, text
    made = json.loads(only_record(checkout).read_text())
    assert "contended" not in {flag["code"] for flag in made["flags"]}
    cells = (checkout.path / CELLS).read_text(encoding="utf-8")
    assert made["started_at"] in cells and "contended" not in cells
    assert "Nothing to be done" in checkout.snakemake(CELLS).stderr
