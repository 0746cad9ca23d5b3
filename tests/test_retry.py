"""A disturbed training of the answer is measured once more, within a budget and once its host is idle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import NANO, PRODUCT, TABLE, TINY, Checkout, codes
from siliconprof.store import record

CONFIG = TINY | {"backends": ["mlx"], "workloads": {"another": PRODUCT, "one": NANO}}


def records(checkout: Checkout, folder: str, workload: str) -> list[Path]:
    """The files of a workload's records in a folder of the results."""
    return [*(checkout.path / "results" / folder).glob(f"desk/*/mlx/{workload}/**/*.json")]


# Appended to the copy's probe: another process takes a core while the first {cells} are measured, and
# has ended by then or has not.
DISTURBING = """

class Disturbing(Plugin):
    def stop(self, wall_s):
        seen = Path({seen!r})
        with seen.open("a") as stream:
            stream.write("x")
        self.foreign.cores = lambda wall_s: 1.0 if seen.stat().st_size <= {cells} else 0.0
        return super().stop(wall_s)


Plugin = Disturbing
ForeignLoad.cores = lambda self, wall_s: {now}
"""


def disturb(clone: Checkout, cells: int, now: float) -> None:
    """Have another process disturb the first cells of a copy of the project."""
    with open(clone.path / "workflow/siliconprof/probes/interference.py", "a") as module:
        seen = str(clone.path.parent / "seen")
        module.write(DISTURBING.format(seen=seen, cells=cells, now=now))


def contended(data: dict[str, Any]) -> bool:
    """Whether a record is flagged as disturbed by other processes."""
    return "contended" in codes(data)


@pytest.mark.slow
def test_a_disturbed_training_is_measured_once_more(clone: Checkout) -> None:
    """The tables show the second record, and the next run has nothing to do; a product stays."""
    disturb(clone, cells=2, now=0.0)
    clone.configure(**CONFIG, remeasure_contended_s=600)
    clone.snakemake(TABLE)
    (product,) = records(clone, "history", "another")
    assert contended(json.loads(product.read_text()))
    (path,) = records(clone, "records", "one")
    second = record.read(path)
    made = [json.loads(one.read_text()) for one in records(clone, "history", "one")]
    (first,) = (one for one in made if "instead_of" not in one["method"])
    assert second["method"]["instead_of"] == first["sha256"] and len(made) == 2
    assert contended(first) and not contended(second)
    assert second["started_at"] in (clone.path / TABLE).read_text(encoding="utf-8")
    assert "Nothing to be done" in clone.snakemake(TABLE).stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("now", "budget_s", "tries"), [(0.0, 600, 2), (1.0, 600, 1), (0.0, 0.001, 1)]
)
def test_the_less_disturbed_record_stays(
    clone: Checkout, now: float, budget_s: float, tries: int
) -> None:
    """Here the first, since the second is disturbed as much; on a busy host, or beyond the budget,
    there is none."""
    disturb(clone, cells=99, now=now)
    clone.configure(**CONFIG | {"workloads": {"one": NANO}}, remeasure_contended_s=budget_s)
    clone.snakemake("measured")
    (path,) = records(clone, "records", "one")
    stands = record.read(path)
    assert contended(stands) and "instead_of" not in stands["method"]
    assert len(records(clone, "history", "one")) == tries
