"""Records prove by themselves what they answer for: copied, outdated, and answering again."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import NANO, QUICK, Checkout, own_project
from fuzz_inputs import put
from siliconprof import fingerprint
from siliconprof.cells import config, freshness, matrix
from siliconprof.errors import UserError
from siliconprof.session.trial import Trial
from siliconprof.store import model, record
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


@pytest.fixture
def copied(measured: Checkout, tmp_path: Path) -> Checkout:
    """The project copied with its results and, but for logs, with Snakemake's notes."""
    ignore = shutil.ignore_patterns("log", "locks")
    shutil.copytree(measured.path, tmp_path / "copy", ignore=ignore)
    return Checkout(tmp_path / "copy", dict(measured.environment))


def file_of(checkout: Checkout, workload: str) -> Path:
    """The record of a workload."""
    (path,) = (checkout.path / "results/records").rglob(f"{workload}/auto/fp32.json")
    return path


def run(checkout: Checkout, *options: str) -> set[str]:
    """Run up to the tables; workloads whose record is another one then."""
    before = checkout.stamps()
    checkout.snakemake("measured", TABLES, *options)
    after = checkout.stamps()
    return {key.split("/")[3] for key in after if after[key] != before.get(key)}


def test_without_snakemakes_notes_records_stand_and_the_plan_says_which_answer_no_more(
    copied: Checkout,
) -> None:
    shutil.rmtree(copied.path / ".snakemake")
    assert run(copied) == set()
    assert "Nothing to be done" in copied.snakemake("-n", TABLES).stdout
    copied.configure(**put(TINY, ("workloads", "small", "shapes"), [[1, 4, 4, 4]]))
    plan = json.loads(copied.stage("pipeline.cli", "plan", "--json").stdout)
    why = "parameters.shapes changed from [[1, 8, 8, 8]] to [[1, 4, 4, 4]]"
    assert [entry["why"] for entry in plan["cells"] if entry["due"]] == [why]
    assert run(copied) == set()
    file_of(copied, "small").unlink()
    assert run(copied) == {"small"}


def test_what_answers_no_more_is_measured_again_and_an_edit_undone_gives_it_back(
    copied: Checkout,
) -> None:
    changed = put(TINY, ("workloads", "small", "shapes"), [[1, 4, 4, 4]])
    copied.configure(**put(changed, ("workloads", "more"), TINY["workloads"]["small"]))
    module = copied.path / "workflow/siliconprof/workloads/kernel_launch.py"
    text = module.read_text()
    module.write_text(text + "\nANOTHER = 1\n")
    path = copied.path / "results/hosts/desk.json"
    was = path.read_text()
    host = json.loads(was)
    host["packages"]["mlx-lm"] = "0.0.1"
    path.write_text(json.dumps(host))
    old = {name: file_of(copied, name).read_bytes() for name in ("small", "launch", "nano")}
    listed = copied.snakemake("-n", TABLES, "--quiet", "progress").stdout
    assert listed.count("output: results/records/desk/") == 4
    assert {name: file_of(copied, name).read_bytes() for name in old} == old
    assert run(copied) == {"small", "launch", "nano", "more"}
    for entry in map(json.loads, old.values()):
        folder = copied.path / "results/history" / record.cell_path(entry)
        (kept,) = record.earlier(folder, copied.stamps()[record.cell_path(entry)][0])
        assert record.read(kept) == entry

    module.write_text(text)
    copied.configure(**TINY)
    path.write_text(was)
    said = copied.snakemake(TABLES).stdout
    assert said.count("given back") == 3, said
    assert {name: file_of(copied, name).read_bytes() for name in old} == old
    # What a person wants anew is measured, whatever the history has.
    file_of(copied, "small").unlink()
    assert run(copied) == {"small"}
    assert file_of(copied, "small").read_bytes() != old["small"]
    assert run(copied, "--forcerun", "measure") == TINY["workloads"].keys()


def test_comments_supervision_and_limits_measure_nothing(copied: Checkout) -> None:
    """What is no part of what is measured: by the front door, with Snakemake's notes in place."""
    package = copied.path / "workflow/siliconprof"
    for name in ("session/timing.py", "workloads/matmul.py", "backends/mlx.py"):
        path = package / name
        path.write_text(ast.unparse(ast.parse(path.read_text())) + "\n# no comment is left\n")
    validation = package / "store/validation.py"
    validation.write_text(validation.read_text() + "\nANOTHER = 1\n")
    copied.configure(**put(TINY, ("timing", "time_limit_s"), 301))
    assert run(copied) == set()


def test_a_record_is_held_against_the_data_here(measured, monkeypatch):
    monkeypatch.chdir(measured.path)
    data = record.read(file_of(measured, "nano"))
    cell = Cell(**data["cell"])
    code = fingerprint.Fingerprint(data["code"]["modules"])
    assert code.sha256 == data["code"]["fingerprint"]
    declared = data["environment"]["declared"]
    planned = matrix.PlannedCell(cell, "results", declared, code, Trial(cell), data=[])
    folder, used = "results/data/words", data["dataset"]

    def differences(tokens: dict[str, str], **changed: Any) -> list[str]:
        return freshness.differences(planned, model.made(Record, data | changed), tokens)

    here = {folder: used["data_sha256"]}
    assert differences(here) == []
    assert differences({}) == [f"its data in {folder} are not prepared here"]
    assert differences({folder: "0" * 64}) == [f"it read other data than {folder} holds"]
    assert differences(here, dataset=None) == ["it does not say which data it read"]
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
    ):
        (folder / "dataset.json").write_text(json.dumps(facts | {key: value}))
        with pytest.raises(UserError, match=why):
            freshness.verify_data(folder, "words", entry)
