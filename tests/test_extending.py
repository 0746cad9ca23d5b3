"""The examples of docs/extending.md: installed in a fresh checkout as they stand, run to the page."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import ROOT, Checkout, copy_project
from siliconprof.hosts import machine

GUIDE = ROOT / "docs" / "extending.md"
# A block of code, and before it the file that it is, or is a part of.
BLOCK = re.compile(r"^(?:`([^`\n]+)`(, appended)?:\n\n)?```(\w+)\n(.*?)^```$", re.M | re.S)
CPU_OF_THE_GUIDE = "AMD Ryzen 9 9950X 16-Core Processor"
CONFIG = "config/extended.yaml"


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout with every example of the guide, and what its command leaves."""
    folder = tmp_path_factory.mktemp("extended")
    checkout = copy_project(folder / "project").share_imports()
    checkout.environment["SILICONPROF_LOCK_FILE"] = str(folder / "host.lock")
    for name, appended, language, text in BLOCK.findall(GUIDE.read_text(encoding="utf-8")):
        if language == "diff":
            checkout.run("git", "apply", "-", input=text)
        elif name:
            path = checkout.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            old = path.read_text(encoding="utf-8") if appended else ""
            path.write_text(old + text, encoding="utf-8")
    registry = checkout.path / "config/devices.yaml"
    this_cpu = machine.cpu()["model"]  # the guide's reader has another
    registry.write_text(registry.read_text().replace(CPU_OF_THE_GUIDE, this_cpu))
    checkout.snakemake("report", "--configfile", CONFIG, "--replace-workflow-config")
    return checkout


def page(checkout: Checkout) -> str:
    return (checkout.path / "results/report.html").read_text(encoding="utf-8")


def table(checkout: Checkout, name: str) -> list[dict[str, str]]:
    """The rows of a default table, as its file has them."""
    path = checkout.path / "results/figures" / f"declared-{name}.csv"
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


@pytest.mark.slow
def test_every_cell_of_the_guide_is_measured(extended: Checkout) -> None:
    records = extended.records()
    wanted = yaml.safe_load((extended.path / CONFIG).read_text())
    cells = {(r["cell"]["workload"], r["cell"]["backend"]): r["status"] for r in records.values()}
    assert cells == {(w, b): "ok" for w in wanted["workloads"] for b in wanted["backends"]}


@pytest.mark.slow
def test_the_workload_has_its_table_with_every_quantity(extended: Checkout) -> None:
    """The contract of every workload without figures of its own, through the real command."""
    lines = table(extended, "softmax")
    assert {"rows", "columns", "step_ms", "bytes_per_s", "rows_per_s"} <= lines[0].keys()
    points = [
        (point["params"]["rows"], point["params"]["columns"], point["quantities"]["rows_per_s"])
        for record in extended.records().values()
        if record["cell"]["workload"] == "softmax"
        for point in record["points"]
    ]
    assert len(points) == 9  # three shapes on three backends
    found = [[float(line[name]) for name in ("rows", "columns", "rows_per_s")] for line in lines]
    assert np.allclose(sorted(found), sorted(points), rtol=1e-9)
    assert "Softmax over rows" not in page(extended)
    assert ", softmax." in page(extended)


@pytest.mark.slow
def test_the_plugins_keep_the_contract_of_their_kind(extended: Checkout) -> None:
    """As the guide says to check them."""
    shutil.copytree(ROOT / "tests", extended.path / "tests", dirs_exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0"]
    names = "softmax or context_switches"
    extended.run(*command, "tests/test_plugins.py", "-k", names, env={"PYTHONPATH": "workflow"})


@pytest.mark.slow
def test_the_exhibit_has_its_figure(extended: Checkout) -> None:
    assert 'id="softmax"' in page(extended)
    assert (extended.path / "results/figures/softmax.svg").stat().st_size > 1000


@pytest.mark.slow
def test_the_probe_has_its_table(extended: Checkout) -> None:
    assert len(table(extended, "probe-context_switches")) == 6
    assert "Involuntary context switches" in page(extended)
    for record in extended.records().values():
        assert record["probes"]["context_switches"]["available"]
    assert ", probe-context_switches." in page(extended)


@pytest.mark.slow
def test_the_device_and_the_backend_are_on_the_page(extended: Checkout) -> None:
    (host,) = {record["cell"]["host"] for record in extended.records().values()}
    facts = json.loads((extended.path / f"results/hosts/{host}.json").read_text())
    cpu = next(device for device in facts["devices"] if device["kind"] == "cpu")
    assert cpu["id"] == "desk-cpu"
    assert "torch-plain" in cpu["backends"]
    assert "Ryzen 9 9950X of the desk" in page(extended)
    for record in extended.records().values():
        if record["cell"]["backend"] == "torch-plain":
            assert "torch_plain" in " ".join(record["code"]["modules"])


@pytest.mark.slow
def test_the_data_set_is_trained_on(extended: Checkout) -> None:
    trained = [r for r in extended.records().values() if r["cell"]["workload"] == "gpt2-nano"]
    assert {record["dataset"]["name"] for record in trained} == {"reviews"}
    assert Path(extended.path / "results/data/reviews/tokens.npy").is_file()
