"""Records prove by themselves what they answer for: copied, outdated, and answering again."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, Checkout
from fuzz_inputs import put
from siliconprof import fingerprint
from siliconprof.cells import config, freshness, matrix
from siliconprof.errors import UserError
from siliconprof.session.trial import Trial
from siliconprof.store import model, record
from siliconprof.store.cell import Cell
from siliconprof.store.contents import Record

pytestmark = pytest.mark.slow

TABLES = "results/tables/cells.csv"


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
    clone: Checkout,
) -> None:
    shutil.rmtree(clone.path / ".snakemake")
    assert run(clone) == set()
    assert "Nothing to be done" in clone.snakemake("-n", TABLES).stdout
    clone.configure(**put(TINY, ("workloads", "product", "shapes"), [[1, 4, 4, 4]]))
    plan = json.loads(clone.stage("pipeline.cli", "plan", "--json").stdout)
    why = "parameters.shapes changed from [[1, 16, 16, 16]] to [[1, 4, 4, 4]]"
    assert [entry["why"] for entry in plan["cells"] if entry["due"]] == [why]
    assert run(clone) == set()
    file_of(clone, "product").unlink()
    assert run(clone) == {"product"}


def test_what_answers_no_more_is_measured_again_and_an_edit_undone_gives_it_back(
    clone: Checkout,
) -> None:
    changed = put(TINY, ("workloads", "product", "shapes"), [[1, 4, 4, 4]])
    clone.configure(**put(changed, ("workloads", "more"), TINY["workloads"]["product"]))
    module = clone.path / "workflow/siliconprof/workloads/kernel_launch.py"
    text = module.read_text()
    module.write_text(text + "\nANOTHER = 1\n")
    path = clone.path / "results/hosts/desk.json"
    was = path.read_text()
    host = json.loads(was)
    host["packages"]["mlx-lm"] = "0.0.1"
    path.write_text(json.dumps(host))
    old = {name: file_of(clone, name).read_bytes() for name in ("product", "launch", "nano-2")}
    listed = clone.snakemake("-n", TABLES, "--quiet", "progress").stdout
    assert listed.count("output: results/records/desk/") == 4
    assert {name: file_of(clone, name).read_bytes() for name in old} == old
    assert run(clone) == {"product", "launch", "nano-2", "more"}
    for entry in map(json.loads, old.values()):
        folder = clone.path / "results/history" / record.cell_path(entry)
        (kept,) = record.earlier(folder, clone.stamps()[record.cell_path(entry)][0])
        assert record.read(kept) == entry

    module.write_text(text)
    clone.configure(**TINY)
    path.write_text(was)
    said = clone.snakemake(TABLES).stdout
    assert said.count("given back") == 3, said
    assert {name: file_of(clone, name).read_bytes() for name in old} == old
    # What a person wants anew is measured, whatever the history has.
    file_of(clone, "product").unlink()
    assert run(clone) == {"product"}
    assert file_of(clone, "product").read_bytes() != old["product"]


def test_comments_supervision_and_limits_measure_nothing(clone: Checkout) -> None:
    """What is no part of what is measured: by the front door, with Snakemake's notes in place."""
    package = clone.path / "workflow/siliconprof"
    for name in ("session/timing.py", "workloads/matmul.py", "backends/mlx.py"):
        path = package / name
        path.write_text(ast.unparse(ast.parse(path.read_text())) + "\n# no comment is left\n")
    validation = package / "store/validation.py"
    validation.write_text(validation.read_text() + "\nANOTHER = 1\n")
    clone.configure(**put(TINY, ("timing", "time_limit_s"), 301))
    assert run(clone) == set()


def test_a_record_is_held_against_the_data_here(tiny, monkeypatch):
    monkeypatch.chdir(tiny.path)
    data = record.read(file_of(tiny, "nano-2"))
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


def test_another_data_set_under_the_same_name(tiny, tmp_path):
    entry = config.resolve(TINY)["datasets"]["words"]
    folder = tmp_path / "words"
    shutil.copytree(tiny.path / "results/data/words", folder)
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
