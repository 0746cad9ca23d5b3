"""What other processes disturb is measured once more at the end of a run, within a budget."""

from __future__ import annotations

import json
import re
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


# Appended to the copy's probe: another process takes a core while the first cell is measured.
DISTURBING = """

class Disturbing(Plugin):
    def stop(self, wall_s):
        seen = Path({seen!r})
        self.foreign.cores = lambda wall_s: 0.0 if seen.exists() else 1.0
        summary = super().stop(wall_s)
        seen.touch()
        return summary


Plugin = Disturbing
"""


def contended(data: dict[str, Any]) -> bool:
    """Whether a record says that other processes disturbed it."""
    return "contended" in {flag["code"] for flag in data["flags"]}


@pytest.mark.slow
def test_a_disturbed_cell_is_measured_once_more_and_then_never(checkout: Checkout) -> None:
    """The tables show the second record, and the next run has nothing to do."""
    with open(checkout.path / "workflow/siliconprof/probes/interference.py", "a") as module:
        module.write(DISTURBING.format(seen=str(checkout.path.parent / "seen")))
    checkout.configure(**TINY, retry_contended_s=600)
    said = checkout.snakemake(CELLS).stdout
    assert re.search(r"^mlx · one · fp32 ", said, re.M), said
    assert re.search(r"^again  mlx · one · fp32 ", said, re.M), said
    assert f"{AGAIN}, 1 without disturbance" in said, said
    path = only_record(checkout)
    second = json.loads(path.read_text())
    (first,) = (one for one in history(checkout) if "instead_of" not in one["method"])
    assert second["method"]["instead_of"] == first["sha256"]
    assert contended(first) and not contended(second)
    cells = (checkout.path / CELLS).read_text(encoding="utf-8")
    assert second["started_at"] in cells and "contended" not in cells
    assert "Nothing to be done" in checkout.snakemake(CELLS).stderr

    # Nor where it is flagged itself.
    second["flags"] = [{"code": "contended", "detail": "planted"}]
    third = record.write(second, path, None)
    assert "again" not in checkout.snakemake("measured").stdout
    assert json.loads(path.read_text())["sha256"] == third
