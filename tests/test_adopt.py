"""`siliconprof adopt`: a copied results folder counts again, as far as it is what it would be."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import QUICK, Checkout, copy_project
from siliconprof import adopt, config, freshness, matrix, record
from siliconprof.cell import Cell
from siliconprof.errors import UserError

pytestmark = pytest.mark.slow

TINY: dict[str, Any] = {
    "host": "desk",
    "backends": ["mlx"],
    "timing": QUICK,
    "datasets": {"words": {"source": "builtin", "vocab_size": 300, "max_bytes": 20000}},
    "workloads": {
        "small": {"module": "matmul", "shapes": [[1, 8, 8, 8]]},
        "large": {"module": "matmul", "shapes": [[1, 16, 16, 16]]},
        "launch": {"module": "kernel_launch", "repeats": 10},
        "nano": {
            "module": "gpt2",
            "trainer": "plain",
            "size": "nano",
            "batch_size": 2,
            "seq_len": 16,
            "dataset": "words",
        },
    },
}
TABLES = "results/tables/cells.csv"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Four cells and a data set, measured once; tests work on clones."""
    copy = copy_project(tmp_path_factory.mktemp("adopt") / "project")
    copy.environment["SILICONPROF_LOCK_FILE"] = str(copy.path.parent / "lock")
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


def wanted(checkout: Checkout, *options: str) -> dict[str, int]:
    """Rule -> number of jobs that a run would have now."""
    said = checkout.snakemake("-n", *options, "--", TABLES).stdout
    return {rule: int(number) for rule, number in re.findall(r"^(\w+) +(\d+)$", said, re.M)}


def file_of(checkout: Checkout, workload: str) -> Path:
    """The record of a workload."""
    (path,) = (checkout.path / "results/records").rglob(f"{workload}/auto/fp32.json")
    return path


@pytest.mark.parametrize("keep_times", [True, False])
def test_a_copied_results_folder_is_adopted_whole(measured, tmp_path, keep_times):
    project = clone(measured, tmp_path / "clone", keep_times)
    if keep_times:
        assert wanted(project)["measure"] == 4  # what adopt is for
    before = {path: path.read_bytes() for path in (project.path / "results").rglob("*.json")}
    done = project.stage("adopt")
    assert done.stdout.splitlines() == ["adopted 4 of 4 records and 1 of 1 data sets"]
    assert {path: path.read_bytes() for path in before} == before
    assert not {"measure", "prepare"} & set(wanted(project))
    # and from now on Snakemake notices again what it could not without its metadata
    changed = json.loads(json.dumps(TINY))
    changed["workloads"]["small"]["shapes"] = [[1, 4, 4, 4]]
    project.configure(**changed)
    assert wanted(project)["measure"] == 1


def test_what_does_not_agree_is_measured_again_and_kept(measured, tmp_path):
    # with times by which Snakemake alone would take it for valid
    project = clone(measured, tmp_path / "clone", keep_times=False)
    changed = json.loads(json.dumps(TINY))
    changed["workloads"]["small"]["shapes"] = [[1, 4, 4, 4]]
    changed["workloads"]["more"] = TINY["workloads"]["small"]
    project.configure(**changed)
    module = project.path / "workflow/siliconprof/workloads/kernel_launch.py"
    module.write_text(module.read_text() + "\n# another line\n")
    path = project.path / "results/hosts/desk.json"
    host = json.loads(path.read_text())
    host["packages"]["mlx-lm"] = "0.0.1"
    path.write_text(json.dumps(host))
    shutil.rmtree(project.path / "results/history")
    old = {name: json.loads(file_of(project, name).read_text()) for name in
           ("small", "launch", "nano")}  # fmt: skip
    done = project.stage("adopt", check=False)
    assert done.returncode == 1, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first == "adopted 1 of 4 records and 1 of 1 data sets"
    refused = {line.split("/")[5]: line for line in lines if line.startswith("not adopted: ")}
    assert set(refused) == set(old)
    assert "parameters.shapes changed from" in refused["small"]
    assert "code changed: workloads/kernel_launch.py" in refused["launch"]
    assert "packages.mlx-lm changed from" in refused["nano"]
    assert "cells without a record: 1" in lines
    for name, entry in old.items():
        assert json.loads(file_of(project, name).read_text()) == entry  # left where it was
    assert wanted(project)["measure"] == 4
    files = {name: file_of(project, name) for name in ("small", "launch")}  # the quick ones
    project.snakemake("--", *(str(path.relative_to(project.path)) for path in files.values()))
    for name, path in files.items():
        new, entry = record.read(path), old[name]
        assert new["sha256"] != entry["sha256"]
        (kept,) = record.earlier(new, project.path / "results/history")
        assert record.read(kept) == entry


def test_data_are_verified_and_so_is_what_was_trained_on_them(copied):
    folder = copied.path / "results/data/words"
    tokens = folder / "tokens.npy"
    content = bytearray(tokens.read_bytes())
    content[-1] ^= 1
    tokens.write_bytes(bytes(content))
    done = copied.stage("adopt", check=False)
    first, *lines = done.stdout.splitlines()
    assert (done.returncode, first) == (1, "adopted 3 of 4 records and 0 of 1 data sets")
    assert lines[0].startswith("not adopted: results/data/words: ")
    assert "tokens.npy is damaged" in lines[0]
    assert "/nano/" in lines[1] and "were not adopted" in lines[1]
    assert wanted(copied).items() >= {"measure": 1, "prepare": 1}.items()


def test_a_record_is_held_against_the_data_here(measured, monkeypatch):
    monkeypatch.chdir(measured.path)  # code is hashed by relative path
    data = json.loads(file_of(measured, "nano").read_text())
    planned = matrix.PlannedCell(
        Cell(**data["cell"]), data["environment"]["declared"], list(data["code"]), [], []
    )
    folder, used = "results/data/words", data["dataset"]
    here = {folder: used["data_sha256"]}
    adopt.verify_record(data, planned, here)
    with pytest.raises(UserError, match=f"its data in {folder} are not prepared here"):
        adopt.verify_record(data, planned, {})
    with pytest.raises(UserError, match=f"it read other data than {folder} holds"):
        adopt.verify_record(data, planned, {folder: "0" * 64})
    with pytest.raises(UserError, match="it does not say which data it read"):
        adopt.verify_record(data | {"dataset": None}, planned, here)
    # a cell that never came to read them
    adopt.verify_record(data | {"dataset": None, "status": "oom"}, planned, here)


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


def test_a_damaged_record_is_named_and_set_aside(copied):
    path = file_of(copied, "small")
    content = path.read_text().replace('"seed": 0', '"seed": 1')
    path.write_text(content)
    done = copied.stage("adopt", check=False)
    assert done.returncode == 1
    first, line, *_ = done.stdout.splitlines()
    assert first.startswith("adopted 3 of 4 records")
    assert "small/auto/fp32.json: damaged record: its content does not match" in line
    (aside,) = (copied.path / "results/damaged").rglob("*.json")
    assert aside.read_text() == content and not path.exists()
    assert wanted(copied)["measure"] == 1
    # Snakemake now has metadata for the others; a record that was swapped since is found out
    path = file_of(copied, "large")
    data = json.loads(path.read_text())
    data["environment"]["declared"]["python"] = "2.7"
    record.write(data, path, None)
    assert wanted(copied)["measure"] == 1
    done = copied.stage("adopt", check=False)
    assert done.stdout.startswith("adopted 2 of 3 records")
    assert "python changed from 2.7" in done.stdout
    assert wanted(copied)["measure"] == 2


def test_another_config_is_taken_as_snakemake_takes_it(copied):
    more = json.loads(json.dumps(TINY))
    more["workloads"] = {"more": TINY["workloads"]["small"], "small": TINY["workloads"]["small"]}
    (copied.path / "more.yaml").write_text(json.dumps(more))
    done = copied.stage("adopt", "--configfile", "more.yaml")
    assert done.stdout.splitlines()[:2] == [
        "adopted 1 of 1 records and 1 of 1 data sets",
        "cells without a record: 1",
    ]
    assert wanted(copied, "--configfile", "more.yaml")["measure"] == 1


def test_what_a_person_can_mend_is_said_in_lines(copied, tmp_path):
    path = copied.path / "results/hosts/desk.json"
    host = json.loads(path.read_text()) | {"fingerprint": "0" * 64, "hostname": "elsewhere"}
    path.write_text(json.dumps(host))
    done = copied.stage("adopt", check=False)
    assert done.returncode == 2 and "was made on another machine" in done.stderr
    (tmp_path / "empty").mkdir()
    environment = {"PYTHONPATH": str(copied.path / "workflow")}
    empty = Checkout(tmp_path / "empty")
    done = empty.stage("adopt", check=False, env=environment)
    assert done.returncode == 2
    assert done.stderr == "no Snakefile in the current folder: run this in a checkout\n"


def test_a_refusal_of_snakemake_is_told(copied):
    (copied.path / "Snakefile").write_text("rule nothing:\n    output: 'x'\n")
    done = copied.stage("adopt", check=False)
    assert done.returncode == 2
    assert "snakemake --touch failed: " in done.stderr and "Traceback" not in done.stderr
