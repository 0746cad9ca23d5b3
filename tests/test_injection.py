"""Names that are commands, options, paths or escapes, through every door: nothing is ever run.

A name that becomes a path or a part of a command is refused with its line; a text that a person
may choose freely, or that another host's record brings, is shown and does nothing else.
"""

from __future__ import annotations

import csv
import html
import json
import re
from pathlib import Path
from typing import Any

import conftest
import pytest
import yaml
from conftest import Checkout, copy_project
from siliconprof import fingerprint
from siliconprof.hosts import machine
from siliconprof.store import record
from synthetic_results import base_record, matmul, table, training

COMMANDS = ("x; touch pwned", "$(touch pwned)", "`touch pwned`", "x\ntouch pwned")
STRANGE = ("--version", "a b", "é", "../up", "{x}", "*", "name\n", "\x1b[2Jx", "\u202ex", "")
NASTY = (*COMMANDS, *STRANGE)
MARKUP = "é ../up {x} \x1b[2J \u202e <script>alert(1)</script> & \\input{up} 50% _ # ~ ^ $1"
LABELS = " ".join([*COMMANDS, "--version", MARKUP])
FORMULA = "=cmd|' /C calc'!A0"
FORMULAS = (FORMULA, "+1+1", "-2+3", "@SUM(1)", "\t=1", '=HYPERLINK("x")')
SHOWN = LABELS.replace("\x1b", "").replace("\u202e", "").replace("\n", " ")
PRODUCT = conftest.PRODUCT | {"backends": ["mlx"]}
TINY = conftest.TINY | {"workloads": {"product": PRODUCT}}


def harmless(project: Checkout, said: str) -> None:
    """Nothing was run, nothing lies beside the checkout, no escape reached the terminal."""
    above = project.path.parent
    assert not [p for folder in (above, above.parent) for p in folder.glob("pwned")]
    assert not list(project.path.rglob("pwned"))
    assert not list(above.glob("up*"))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said), ascii(said)
    assert "Traceback" not in said, said


def tried(project: Checkout, *command: str) -> list[str]:
    """A command of ours that may fail, with what it said; both of its streams."""
    done = project.stage(*command, check=False)
    said = done.stdout + done.stderr
    harmless(project, said)
    assert said.strip(), command
    return said.splitlines()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout with spaces and a command in the name of its own folder."""
    copy = copy_project(tmp_path_factory.mktemp("in") / "a $(touch pwned) folder" / "project")
    copy.environment["SILICONPROF_LOCK_FILE"] = str(copy.path.parent / "lock")
    copy.configure(**TINY)
    return copy


# -- names that are refused ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_config_with_such_names_is_refused_name_by_name(checkout: Checkout) -> None:
    """As host, device, workload, data set, label of a cluster; nothing is expanded or stored."""
    nodes = {name: {"device": name, "resources": {"slurm_partition": name}} for name in NASTY}
    own = {
        "host": "x; touch pwned",
        "devices": [*NASTY],
        "workloads": dict.fromkeys(NASTY, PRODUCT),
        "datasets": dict.fromkeys(NASTY, {"source": "builtin", "vocab_size": 300}),
        "cluster": nodes,
    }
    checkout.configure(**TINY | own)
    done = checkout.snakemake("-n", "report", check=False)
    said = done.stdout + done.stderr
    harmless(checkout, said)
    assert done.returncode != 0
    lines = [line for line in said.splitlines() if line.startswith("config: ")]
    for part in ("workloads", "datasets", "cluster"):
        bad = [line for line in lines if line.startswith(f"config: {part}.")]
        bad = [line for line in bad if "; expected at most 64 letters, digits" in line]
        assert len(bad) == len(NASTY), (part, lines)
    assert any(line.startswith("config: host: is 'x; touch pwned'") for line in lines)
    tried(checkout, "pipeline.cli", "doctor")
    made = {path.name for path in (checkout.path / "results").rglob("*.json")}
    assert made <= {fingerprint.CACHE_FILE}  # which the tests themselves put there


def test_such_names_on_the_command_line(checkout: Checkout) -> None:
    """Snakemake's --config, and the arguments of our own commands."""
    checkout.configure(**TINY)
    done = checkout.snakemake("-n", "--config", "host=$(touch pwned); touch pwned", check=False)
    harmless(checkout, done.stdout + done.stderr)
    assert done.returncode != 0 and "host: is " in done.stdout + done.stderr
    name = " ".join(COMMANDS)
    tried(checkout, "pipeline.cli", "pack", "-o", f"{name}.zip", "--host", name)
    tried(checkout, "pipeline.cli", "import", name)
    tried(checkout, "pipeline.cli", "compare", name, name)
    tried(checkout, "pipeline.cli", "predict", "--model", name, "--batch", "1", "--device", name)


# -- texts that may be anything ------------------------------------------------------------------


def put(results: Path, data: dict[str, Any], *folders: str) -> Path:
    """Write a record somewhere, whatever its cell says."""
    path = results.joinpath("records", *folders)
    record.write(data, path, None)
    return path


def hostile(data: dict[str, Any]) -> dict[str, Any]:
    """A record of another host whose every text is an attack; it is valid."""
    data["cell"] |= {"host": "far", "device": "cpu-far"}
    data["environment"] |= dict.fromkeys(("system", "python", "git_commit"), LABELS)
    names = ("framework_version", "device_name", "blas")
    data["environment"]["backend"] = dict.fromkeys(names, LABELS)
    name = LABELS[:64]  # the most that a record takes as one
    data["flags"] = [{"code": name, "detail": LABELS}]
    data["probes"] = {name: {"available": False, "means": LABELS, "reason": LABELS}}
    return data


@pytest.mark.slow
def test_a_run_amid_hostile_texts_does_what_it_should(project: Checkout) -> None:
    """Titles, devices, folders and records: those with a proper name are in the tables, the others
    are named and used in nothing; HTML, SVG and terminal show them as text."""
    path = project.path / "config" / "devices.yaml"
    whole = yaml.safe_load(path.read_text(encoding="utf-8"))
    chip = machine.cpu()["model"]
    vendor = next((name for name in machine.VENDORS if name in chip.lower()), "other")
    entry = whole["devices"]["h200"] | {
        "name": SHOWN,
        "kind": "cpu",
        "vendor": vendor,
        "match": {"names": [chip]},
        "memory_gib": None,
    }
    whole["devices"]["this-cpu"] = entry
    path.write_text(yaml.safe_dump(whole, allow_unicode=True))
    folder = project.path / "texts; touch pwned $(touch pwned) {x}"
    folder.mkdir(exist_ok=True)  # by a first try of this test
    lines = "".join(json.dumps({"text": f"line {i} of a text " * 40}) + "\n" for i in range(50))
    (folder / "train.jsonl").write_text(lines)
    words = {"source": "folder", "path": f"./{folder.name}", "vocab_size": 300, "max_bytes": 20000}
    project.configure(**TINY | {"report": {"title": SHOWN}, "datasets": {"words": words}})
    results = project.path / "results"
    far = hostile(base_record("matmul", "product")) | {"points": matmul()["points"]}
    put(results, far, "far", "cpu-far", "torch-cpu", "product", "auto", "fp32.json")
    for number, formula in enumerate(FORMULAS):
        failed = hostile(training(0.01, workload=f"gpt2-{number}"))
        failed |= {"status": "failed", "reason": formula, "points": []}
        put(results, failed, "far", "cpu-far", "torch-cpu", f"gpt2-{number}", "auto", "fp32.json")
    for name in (*COMMANDS, "{x}", "a b", "--version", "\x1b[2J"):
        put(results, far, "other", name, "torch-cpu", "product", "auto", "fp32.json")
    done = project.snakemake("report", "results/data/words/dataset.json", check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    harmless(project, said)
    cells = table(results, "cells")
    assert {row["host"] for row in cells} == {"desk", "far"}
    assert len([row for row in cells if row["host"] == "far"]) == 1 + len(FORMULAS)
    facts = json.loads((project.path / "results/data/words/dataset.json").read_text())
    assert facts["path"] == "./texts; touch pwned $(touch pwned) {x}"
    assert FORMULA in [row["reason"] for row in cells]
    stored = (results / "tables/cells.csv").read_text(encoding="utf-8")
    assert f",'{FORMULA}" in stored and f",{FORMULA}" not in stored  # no spreadsheet runs it
    page = (results / "report.html").read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
    assert html.escape("<script>alert(1)</script>", quote=False) in page
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", page)
    figures = [*(results / "figures").glob("*.svg"), *(results / "figures").glob("*.csv")]
    assert figures
    for path in figures:
        text = path.read_text(encoding="utf-8")
        assert path.suffix != ".svg" or "<script>alert(1)" not in text, path
        assert "\x1b" not in text, path
        for cell in (one for row in csv.reader(text.splitlines()) for one in row):
            number = path.suffix != ".csv" or re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", cell)
            assert number or not cell.startswith(("=", "+", "-", "@", "\t", "\r")), cell
    for command in ("plan", "doctor", "compare results results"):
        tried(project, "pipeline.cli", *command.split())
    tried(project, "pipeline.cli", "pack", "-o", "$(touch pwned).zip", "--host", "far")


# -- records that are not where they belong ------------------------------------------------------


def misplaced(said: str) -> list[str]:
    """The lines that name one."""
    return [line for line in said.splitlines() if "misplaced record" in line]


@pytest.mark.slow
def test_a_record_at_another_cells_place_is_used_by_nobody(clone: Checkout) -> None:
    """Under this host's label or another's: named in one line, and no reader takes its numbers."""
    results = clone.path / "results"
    good = training(0.01)
    good["cell"] |= {"host": "far"}
    place = ("auto", "fp32.json")
    put(results, good, "far", "cpu-x", "torch-cpu", good["cell"]["workload"], *place)
    wrong = put(results, good, "far", "h200", "torch-cuda", "gpt2-nano-plain", *place)
    own = put(results, training(0.01), "desk", "h200", "torch-cpu", "gpt2-nano-plain", *place)
    lines = misplaced("\n".join(tried(clone, "pipeline.cli", "compare", "results", "results")))
    for path in (wrong, own):
        assert any(path.relative_to(clone.path).as_posix() in line for line in lines)
    assert "far" in "".join(tried(clone, "pipeline.cli", "pack", "-o", "far.zip", "--host", "far"))
    assert not (clone.path / "far.zip").exists()
    clone.snakemake("results/tables/cells.csv")
    (line,) = misplaced((results / "tables/unreadable.csv").read_text(encoding="utf-8"))
    assert "far/h200" in line and "far/cpu-x/torch-cpu" in line
    assert wrong.is_file() and own.is_file()  # records are moved nowhere
    devices = {row["device"] for row in table(results, "cells")}
    assert "cpu-x" in devices and "h200" not in devices
    outside = {row["record"] for row in table(results, "outside")}
    assert own.relative_to(clone.path).as_posix() in outside
