"""Records prove by themselves what they answer for: copied, outdated, and answering again."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import NANO, QUICK, Checkout, own_project
from fuzz_inputs import put
from siliconprof import fingerprint
from siliconprof.cells import config, freshness, matrix
from siliconprof.errors import UserError
from siliconprof.measure import supervise
from siliconprof.pipeline import snakefile
from siliconprof.session.trial import Trial
from siliconprof.store import contents, record
from siliconprof.store.cell import Cell
from siliconprof.store.contents import Record

pytestmark = pytest.mark.slow

TINY: dict[str, Any] = {
    "host": "desk",
    "backends": ["mlx"],
    "timing": QUICK,
    "datasets": {"words": {"source": "builtin", "vocab_size": 300, "max_bytes": 20000}},
    "workloads": {
        "small": {"module": "matmul", "shapes": [[1, 8, 8, 8]]},
        "large": {"module": "matmul", "shapes": [[1, 16, 16, 16]]},
        "launch": {"module": "kernel_launch", "bursts": 10},
        "nano": NANO,
    },
}
TABLES = "results/tables/cells.csv"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Four cells and a data set, measured once; tests work on clones."""
    copy = own_project(tmp_path_factory.mktemp("freshness"))
    copy.configure(**TINY)
    copy.snakemake(TABLES)
    assert {entry["status"] for entry in copy.records().values()} == {"ok"}
    return copy


def clone(measured: Checkout, target: Path, keep_times: bool) -> Checkout:
    """The project copied again, with `results/` and without `.snakemake/`."""
    without = shutil.ignore_patterns("results", ".snakemake")
    shutil.copytree(measured.path, target, ignore=without, copy_function=shutil.copy)
    # Fresh times lie after those of the code, kept ones before.
    how = shutil.copy2 if keep_times else shutil.copy
    shutil.copytree(measured.path / "results", target / "results", copy_function=how)
    return Checkout(target, dict(measured.environment))


@pytest.fixture
def copied(measured: Checkout, tmp_path: Path) -> Checkout:
    """A clone whose results are older than its code."""
    return clone(measured, tmp_path / "clone", keep_times=True)


def file_of(checkout: Checkout, workload: str) -> Path:
    """The record of a workload."""
    (path,) = (checkout.path / "results/records").rglob(f"{workload}/auto/fp32.json")
    return path


def run(checkout: Checkout, *options: str) -> tuple[set[str], str]:
    """Run up to the tables; (workloads that were measured anew, what the run said)."""
    before = checkout.stamps()
    done = checkout.snakemake(*options, TABLES)
    after = checkout.stamps()
    return {key.split("/")[3] for key in after if after[key] != before.get(key)}, done.stderr


@pytest.mark.parametrize("keep_times", [True, False])
def test_a_copied_results_folder_measures_nothing(measured, tmp_path, keep_times):
    project = clone(measured, tmp_path / "clone", keep_times)
    before = {
        path: path.read_bytes()
        for path in (project.path / "results").rglob("*.json")
        if path.parent.name != supervise.CHECKS  # of one run
    }
    anew, said = run(project)
    assert anew == set() and "measured again" not in said
    assert {path: path.read_bytes() for path in before} == before
    done = project.snakemake("-n", TABLES)
    assert "Nothing to be done" in done.stdout + done.stderr
    if keep_times:
        return
    # and from now on Snakemake notices again what it could not without its notes
    project.configure(**put(TINY, ("workloads", "small", "shapes"), [[1, 4, 4, 4]]))
    assert run(project)[0] == {"small"}


def test_what_answers_no_more_is_measured_again_and_kept(measured, tmp_path):
    # with times by which Snakemake alone would take it for valid
    project = clone(measured, tmp_path / "clone", keep_times=False)
    changed = put(TINY, ("workloads", "small", "shapes"), [[1, 4, 4, 4]])
    project.configure(**put(changed, ("workloads", "more"), TINY["workloads"]["small"]))
    module = project.path / "workflow/siliconprof/workloads/kernel_launch.py"
    text = module.read_text()
    module.write_text(text + "\nANOTHER = 1\n")
    path = project.path / "results/hosts/desk.json"
    host = json.loads(path.read_text())
    host["packages"]["mlx-lm"] = "0.0.1"
    path.write_text(json.dumps(host))
    shutil.rmtree(project.path / "results/history")
    old = {
        name: json.loads(file_of(project, name).read_text()) for name in ("small", "launch", "nano")
    }
    # one that was saved later, and stood in its place at no time
    other = old["small"] | {"started_at": "2030-01-01T00:00:00+00:00"}
    other["sha256"] = record.content_sha256(other)
    for entry in (old["small"], other):
        folder = project.path / "results/history" / record.cell_path(entry)
        record.keep_in_history(folder, entry["sha256"], json.dumps(entry))
    expected = [
        "1 cell: measured again: parameters.shapes changed from [[1, 8, 8, 8]] to [[1, 4, 4, 4]]",
        "1 cell: measured again: code changed: workloads.kernel_launch",
        f"1 cell: measured again: mlx-lm changed from {old['nano']['environment']['declared']['packages']['mlx-lm']} to 0.0.1",
    ]
    said = project.snakemake("-n", TABLES).stderr  # which touches nothing
    assert all(line in said for line in expected), said
    assert {name: json.loads(file_of(project, name).read_text()) for name in old} == old
    anew, said = run(project)
    assert anew == {"small", "launch", "nano", "more"}
    assert all(line in said for line in expected), said
    for name, entry in old.items():
        new = record.read(file_of(project, name))
        folder = project.path / "results/history" / record.cell_path(new)
        kept = record.earlier(folder, new["sha256"])[0]
        assert record.read(kept) == entry

    # An edit undone measures nothing: the history has what answers again.
    module.write_text(text)
    project.configure(**TINY)
    host["packages"]["mlx-lm"] = old["nano"]["environment"]["declared"]["packages"]["mlx-lm"]
    path.write_text(json.dumps(host))
    _, said = run(project)
    assert "3 cells: an earlier record answers and is taken from results/history" in said
    for name, entry in old.items():
        assert json.loads(file_of(project, name).read_text()) == entry
    # A record that a person deletes is wanted anew, whatever the history has.
    file_of(project, "small").unlink()
    project.snakemake("measured")
    assert json.loads(file_of(project, "small").read_text())["sha256"] != old["small"]["sha256"]


def test_what_was_retired_and_not_measured_yet_comes_back(measured, tmp_path):
    """A run that an edit made begin, and that was stopped before it measured."""
    project = clone(measured, tmp_path / "clone", keep_times=True)
    module = project.path / "workflow/siliconprof/workloads/kernel_launch.py"
    text = module.read_text()
    entry = file_of(project, "launch").read_bytes()
    module.write_text(text + "\nANOTHER = 1\n")
    project.snakemake("results/data/words/dataset.json")  # needs no record
    assert not list((project.path / "results/records").rglob("launch/auto/fp32.json"))
    module.write_text(text)
    anew, _ = run(project)
    assert anew == {"launch"} and file_of(project, "launch").read_bytes() == entry


def test_wording_moves_and_limits_measure_nothing(measured, tmp_path):
    """What is no part of what is measured: by the front door, with Snakemake's notes in place."""
    project = Checkout(tmp_path / "clone", dict(measured.environment))
    shutil.copytree(measured.path, project.path, ignore=shutil.ignore_patterns("log", "locks"))
    package = project.path / "workflow/siliconprof"
    for name in ("session/timing.py", "workloads/matmul.py", "backends/mlx.py"):
        path = package / name
        path.write_text(ast.unparse(ast.parse(path.read_text())) + "\n# no comment is left\n")
    validation = package / "store/validation.py"
    validation.write_text(validation.read_text() + "\nANOTHER = 1\n")
    moved = package / "stats/order_statistics.py"
    (package / "stats/statistics.py").rename(moved)
    for path in package.rglob("*.py"):
        text = path.read_text()
        path.write_text(
            re.sub(
                r"^from siliconprof\.stats import (.*)\bstatistics\b",
                r"from siliconprof.stats import \1order_statistics as statistics",
                text.replace(
                    "siliconprof.stats.statistics import",
                    "siliconprof.stats.order_statistics import",
                ),
                flags=re.M,
            )
        )
    project.configure(**put(TINY, ("timing", "time_limit_s"), 301))
    anew, said = run(project)
    assert anew == set() and "measured again" not in said, said


def test_a_record_is_held_against_the_data_here(measured, monkeypatch):
    monkeypatch.chdir(measured.path)
    data = record.read(file_of(measured, "nano"))
    cell = Cell(**data["cell"])
    code = fingerprint.Fingerprint(data["code"]["modules"])
    assert code.sha256 == data["code"]["fingerprint"]
    planned = matrix.PlannedCell(
        cell, data["environment"]["declared"], code, Trial(cell), data=[], arrays=[]
    )
    folder, used = "results/data/words", data["dataset"]

    def differences(tokens: dict[str, str], **changed: Any) -> list[str]:
        return freshness.differences(planned, contents.made(Record, data | changed), tokens)

    here = {folder: used["data_sha256"]}
    assert differences(here) == [] == freshness.outdated(planned, data)
    assert differences({}) == [f"its data in {folder} are not prepared here"]
    assert differences({folder: "0" * 64}) == [f"it read other data than {folder} holds"]
    assert differences(here, dataset=None) == ["it does not say which data it read"]
    # a limit is no part of what was measured, but of what was not
    timing = dict(cell.timing) | {"time_limit_s": 1}
    shorter = {"cell": data["cell"] | {"timing": timing}}
    raised = [f"its time limit was raised from 1 to {cell.timing['time_limit_s']:g} s"]
    assert differences(here, **shorter) == [] == differences(here, status="timeout")
    assert differences(here, **shorter, status="timeout") == raised
    # a cell that never came to read them
    assert differences(here, dataset=None, status="oom") == []


def test_another_data_set_under_the_same_name(measured, tmp_path):
    entry = config.resolve(TINY)["datasets"]["words"]
    folder = tmp_path / "words"
    shutil.copytree(measured.path / "results/data/words", folder)
    facts = json.loads((folder / "dataset.json").read_text())
    assert freshness.verify_data(folder, "words", entry) == facts["tokens_sha256"]
    for key, value, why in (
        ("name", "letters", "name changed from letters to words"),
        ("vocab_size", 301, "vocab_size changed from 301 to 300"),
        ("max_bytes", 1000, "max_bytes changed from 1000 to 20000"),
        ("source", "hub", "source changed from hub to builtin"),
        ("path", "a/b", "path changed from a/b to None"),
        ("text_sha256", "0" * 64, "text_sha256 changed"),
        ("tokenizer_sha256", "0" * 64, "tokenizer.json is damaged"),
    ):
        (folder / "dataset.json").write_text(json.dumps(facts | {key: value}))
        with pytest.raises(UserError, match=why):
            freshness.verify_data(folder, "words", entry)
    (folder / "dataset.json").write_text(json.dumps(facts))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="tokenizer.json is missing"):
        freshness.verify_data(folder, "words", entry)


def test_what_forces_measuring() -> None:
    """Then no record is taken over, however the option is spelled or a profile says it."""

    def forces(**changed: Any) -> bool:
        given = {"forceall": False, "forcetargets": False, "forcerun": [], "targets": ["report"]}
        return snakefile.forces_measuring(SimpleNamespace(**{**given, **changed}))

    assert not forces() and not forces(forcetargets=True) and not forces(forcerun=["render"])
    assert forces(forceall=True) and forces(forcerun=["measure"]) and forces(forcerun=["measure_h"])
    assert forces(forcetargets=True, targets=["results/records/a/b/c/d/auto/fp32.json"])
