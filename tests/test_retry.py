"""A disturbed training of the answer is measured once more at the end of a run, within a budget."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import NANO, PRODUCT, TINY, Checkout
from siliconprof.store import record

CONFIG = TINY | {"backends": ["mlx"], "workloads": {"product": PRODUCT, "one": NANO}}
CELLS = "results/tables/cells.csv"
AGAIN = "1 of 1 disturbed trainings were measured again"


def records(checkout: Checkout, folder: str, workload: str) -> list[Path]:
    """The files of a workload's records in a folder of the results."""
    return [*(checkout.path / "results" / folder).glob(f"desk/*/mlx/{workload}/**/*.json")]


# Appended to the copy's probe: another process takes a core while the first {cells} are measured.
DISTURBING = """

class Disturbing(Plugin):
    def stop(self, wall_s):
        seen = Path({seen!r})
        with seen.open("a") as stream:
            stream.write("x")
        self.foreign.cores = lambda wall_s: 1.0 if seen.stat().st_size <= {cells} else 0.0
        return super().stop(wall_s)


Plugin = Disturbing
"""


def disturb(checkout: Checkout, cells: int) -> None:
    """Have another process disturb the first cells of a copy of the project."""
    with open(checkout.path / "workflow/siliconprof/probes/interference.py", "a") as module:
        module.write(DISTURBING.format(seen=str(checkout.path.parent / "seen"), cells=cells))


def contended(data: dict[str, Any]) -> bool:
    """Whether a record says that other processes disturbed it."""
    return "contended" in {flag["code"] for flag in data["flags"]}


@pytest.mark.slow
def test_a_disturbed_training_is_measured_once_more_and_then_never(checkout: Checkout) -> None:
    """The tables show the second record, and the next run has nothing to do; a product stays."""
    disturb(checkout, cells=2)
    checkout.configure(**CONFIG, retry_contended_s=600)
    said = checkout.snakemake(CELLS).stdout
    assert re.search(r"^mlx · one · fp32 ", said, re.M), said
    assert re.search(r"^again  mlx · one · fp32 ", said, re.M), said
    assert f"{AGAIN}, 1 without disturbance" in said, said
    (product,) = records(checkout, "history", "product")
    assert contended(json.loads(product.read_text()))
    (path,) = records(checkout, "records", "one")
    second = json.loads(path.read_text())
    made = [json.loads(one.read_text()) for one in records(checkout, "history", "one")]
    (first,) = (one for one in made if "instead_of" not in one["method"])
    assert second["method"]["instead_of"] == first["sha256"]
    assert contended(first) and not contended(second)
    assert second["started_at"] in (checkout.path / CELLS).read_text(encoding="utf-8")
    assert "Nothing to be done" in checkout.snakemake(CELLS).stderr

    # Nor where it is flagged itself.
    second["flags"] = [{"code": "contended", "detail": "planted"}]
    third = record.write(second, path, None)
    assert "\nagain " not in checkout.snakemake("measured").stdout
    assert json.loads(path.read_text())["sha256"] == third


@pytest.mark.slow
def test_the_others_are_left_where_the_first_is_disturbed_as_well(checkout: Checkout) -> None:
    disturb(checkout, cells=99)
    trainings = {"one": NANO, "two": NANO}
    checkout.configure(**CONFIG | {"workloads": trainings}, retry_contended_s=600)
    said = checkout.snakemake(CELLS).stdout
    assert "1 of 2 disturbed trainings were measured again, 0 without disturbance" in said, said
    assert "the others were left, since this host is still busy" in said, said
