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


# Appended to the copy's probe: another process takes a core while either cell is first measured.
DISTURBING = """

class Disturbing(Plugin):
    def stop(self, wall_s):
        seen = Path({seen!r})
        with seen.open("a") as stream:
            stream.write("x")
        self.foreign.cores = lambda wall_s: 1.0 if seen.stat().st_size <= 2 else 0.0
        return super().stop(wall_s)


Plugin = Disturbing
"""


def contended(data: dict[str, Any]) -> bool:
    """Whether a record says that other processes disturbed it."""
    return "contended" in {flag["code"] for flag in data["flags"]}


@pytest.mark.slow
def test_a_disturbed_training_is_measured_once_more_and_then_never(checkout: Checkout) -> None:
    """The tables show the second record, and the next run has nothing to do; a product stays."""
    with open(checkout.path / "workflow/siliconprof/probes/interference.py", "a") as module:
        module.write(DISTURBING.format(seen=str(checkout.path.parent / "seen")))
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
