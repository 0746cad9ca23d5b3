"""Golden results: tables of frozen records and of their page, and what a dry run of each config would measure.

`tests/golden/update.py` makes the expected tables anew where a change is meant, and says what changes.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from conftest import Checkout
from golden import update

HERE = Path(__file__).parent / "golden"
pytestmark = pytest.mark.slow
SUBMIT = ("--workflow-profile", "profiles/slurm")


@pytest.mark.parametrize("name", update.NAMES)
def test_the_tables_of_the_frozen_records_are_equal(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Every table, verdicts of all claims among them, to 1e-9."""
    expected = update.unpack(HERE / "tables" / f"{name}.tar.xz", tmp_path / "expected")
    if name == "default":  # which other tests look at too
        tables = request.getfixturevalue("golden_run") / "results/tables"
    else:
        tables = update.make_tables(name, tmp_path / "run")
    assert update.differences(expected, tables) == []


def cells(project: Checkout, *arguments: str) -> list[str]:
    """The records that a dry run would measure, without host and device."""
    done = project.snakemake("report", "-n", "--quiet", "progress", *arguments)
    made = re.findall(r"^ +output: results/records/\S+?/\S+?/(\S+)\.json$", done.stdout, re.M)
    return sorted(made)


@pytest.mark.parametrize("name", ["config", "paper", "grid", "classic"])
def test_a_dry_run_lists_the_same_cells(name: str, checkout: Checkout) -> None:
    """On a host without a GPU."""
    expected = (HERE / "cells" / f"{name}.txt").read_text(encoding="utf-8").split()
    whole = ("--configfile", f"config/{name}.yaml", "--replace-workflow-config")
    assert cells(checkout, *whole) == expected


def test_a_dry_run_through_slurm_lists_the_same_cells(checkout: Checkout) -> None:
    """Those of the default run, on the nodes of a label that have been looked at."""
    default = checkout.path / "config" / "config.yaml"
    config = yaml.safe_load(default.read_text(encoding="utf-8"))
    hall = {"device": "cpu", "resources": {"slurm_partition": "main"}}
    checkout.configure(**config | {"host": "desk", "cluster": {"hall": hall}})
    host = "results/hosts/hall.json"
    arguments = ("--registry", "config/devices.yaml", "--output", host)
    checkout.stage("hosts.host_file", "--label", "hall", *arguments)
    checkout.snakemake(host, "--touch", "--force", *SUBMIT)
    expected = (HERE / "cells" / "config.txt").read_text(encoding="utf-8").split()
    assert cells(checkout, *SUBMIT) == expected
