"""The examples of docs/extending.md: installed in a fresh checkout as they stand, run to the page."""

from __future__ import annotations

import re
import shutil
import sys

import numpy as np
import pytest
import yaml
from conftest import ROOT, Checkout, copy_project
from siliconprof.hosts import machine
from synthetic_results import shown_table

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


@pytest.mark.campaign
def test_every_example_of_the_guide_reaches_the_page(extended: Checkout) -> None:
    """Workload, backend, device and data set in the records; tables, figure and names on the page."""
    records = extended.records()
    wanted = yaml.safe_load((extended.path / CONFIG).read_text())
    cells = {(r["cell"]["workload"], r["cell"]["backend"]): r for r in records.values()}
    assert cells.keys() == {(w, b) for w in wanted["workloads"] for b in wanted["backends"]}
    page = (extended.path / "results/report.html").read_text(encoding="utf-8")
    for (workload, backend), record in cells.items():
        assert record["status"] == "ok", record["reason"]
        assert record["cell"]["device"] == "desk-cpu"
        assert record["probes"]["context_switches"]["available"]
        plain = "torch_plain" in " ".join(record["code"]["modules"])
        assert plain == (backend == "torch-plain")
        if workload == "gpt2-nano":
            assert record["dataset"]["name"] == "reviews"
    results = extended.path / "results"
    lines = shown_table(results, "declared-softmax")
    points = [
        (point["params"]["rows"], point["params"]["columns"], point["quantities"]["rows_per_s"])
        for (workload, _), record in cells.items()
        for point in (record["points"] if workload == "softmax" else ())
    ]
    assert len(points) == 9  # three shapes on three backends
    assert {"step_ms", "bytes_per_s"} <= lines[0].keys()
    found = [[float(line[name]) for name in ("rows", "columns", "rows_per_s")] for line in lines]
    assert np.allclose(sorted(found), sorted(points), rtol=1e-9)
    assert len(shown_table(results, "declared-probe-context_switches")) == 6
    assert (results / "figures/softmax.svg").stat().st_size > 1000
    for shown in ('id="softmax"', "Involuntary context switches", "Ryzen 9 9950X of the desk"):
        assert shown in page


@pytest.mark.campaign
def test_the_plugins_keep_the_contract_of_their_kind(extended: Checkout) -> None:
    """As the guide says to check them."""
    shutil.copytree(ROOT / "tests", extended.path / "tests", dirs_exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0"]
    names = "softmax or context_switches"
    extended.run(*command, "tests/test_plugins.py", "-k", names, env={"PYTHONPATH": "workflow"})
