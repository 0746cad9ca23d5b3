"""A bundle made under another label: as shipped reference data, and imported by hand."""

from __future__ import annotations

import csv

import pytest
from conftest import QUICK, Checkout, copy_project

pytestmark = pytest.mark.slow

PRODUCT = {"module": "matmul", "backends": ["mlx"], "shapes": [[1, 16, 16, 16]]}


def sources(project: Checkout) -> dict[tuple[str, str], str]:
    """(host, workload) -> where the row of cells.csv says it comes from."""
    with open(project.path / "results/tables/cells.csv", newline="") as stream:
        return {(row["host"], row["workload"]): row["source"] for row in csv.DictReader(stream)}


def test_reference_and_imported_records_are_shown_as_such_and_own_nothing(tmp_path):
    server = copy_project(tmp_path / "server")
    desk = copy_project(tmp_path / "desk")
    for project, host in ((server, "server"), (desk, "desk")):
        project.environment["SILICONPROF_LOCK_FILE"] = str(tmp_path / "lock")
        project.configure(host=host, timing=QUICK, workloads={f"product-{host}": PRODUCT})
    server.snakemake("results/tables/cells.csv")
    server.stage("pipeline.cli", "pack", "--output", str(desk.path / "config/measured/server.zip"))
    desk.snakemake("report")
    own, reference = ("desk", "product-desk"), ("server", "product-server")
    assert sources(desk) == {own: "this host", reference: "reference"}
    assert not (desk.path / "results/records/server").exists()
    page = (desk.path / "results/report.html").read_text()
    assert "product-server" in page and "reference" in page
    assert "Nothing to be done" in desk.snakemake("report").stderr

    # The same bundle imported: now another host's records, byte for byte, and leaf inputs.
    bundle = tmp_path / "server.zip"
    (desk.path / "config/measured/server.zip").rename(bundle)
    (desk.path / "results/hosts/server.json").unlink(missing_ok=True)
    desk.stage("pipeline.cli", "import", str(bundle))
    (imported,) = (desk.path / "results/records/server").rglob("*.json")
    (measured,) = (server.path / "results/records/server").rglob("*.json")
    before = (imported.read_bytes(), imported.stat().st_mtime_ns)
    assert before[0] == measured.read_bytes()
    stamps = desk.stamps()
    desk.snakemake("results/tables/cells.csv")
    assert sources(desk) == {own: "this host", reference: "another host"}
    assert (imported.read_bytes(), imported.stat().st_mtime_ns) == before
    assert desk.stamps() == stamps
