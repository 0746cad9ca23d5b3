"""The main job, end to end: every number of a run holds together.

Of a tiny run always, and of the default run where there is time for it.
"""

from __future__ import annotations

import json
import math
import re
import zipfile
from pathlib import Path

import pytest
from conftest import Checkout, csv_rows
from siliconprof import plugins
from siliconprof.hosts import remedies
from siliconprof.session import timing

WHOLE = [pytest.mark.campaign, pytest.mark.alone]


@pytest.fixture(params=["tiny", pytest.param("default_run", marks=WHOLE)])
def run(request: pytest.FixtureRequest) -> Checkout:
    """A run that has ended; nobody may change it."""
    return request.getfixturevalue(request.param)


def rows(run: Checkout, table: str) -> list[dict[str, str]]:
    return csv_rows(run.path / f"results/tables/{table}.csv")


def precisions(run: Checkout) -> tuple[str, ...]:
    """Those that torch trains every model of the default run in on this processor."""
    written = json.loads((run.path / "results/matrix.json").read_text())
    emulated = remedies.emulation(written["host"]["cpu"], "bf16")
    return ("fp32",) if emulated else ("fp32", "amp-bf16")


def training(run: Checkout) -> dict[tuple[str, ...], dict]:
    """(backend, workload, precision) -> record of every training cell that is ok."""
    return {
        (r["cell"]["backend"], r["cell"]["workload"], r["cell"]["precision"]): r
        for r in run.records().values()
        if r["cell"]["trainer"] and r["status"] == "ok"
    }


@pytest.mark.slow
def test_every_cell_has_a_record(run):
    written = json.loads((run.path / "results/matrix.json").read_text())
    records = run.records()
    assert {f"results/records/{key}.json" for key in records} == {
        cell["record"] for cell in written["cells"]
    }
    statuses = {key: record["status"] for key, record in records.items()}
    assert set(statuses.values()) <= {"ok", "unsupported", "skipped"}, statuses
    skipped = {tuple(key.split("/")[2::3]) for key in records if statuses[key] == "skipped"}
    emulating = {"mlx", "torch-cpu"} if len(precisions(run)) == 1 else {"mlx"}
    assert skipped <= {(backend, "amp-bf16") for backend in emulating}


@pytest.mark.campaign
@pytest.mark.alone
def test_the_promised_cells_are_ok(default_run):
    trained = training(default_run)
    for model in ("gpt2-nano", "gpt2-tiny", "whisper-nano"):
        for precision in precisions(default_run):
            assert ("torch-cpu", f"{model}-plain", precision) in trained
            of_mlx = precision == "fp32" or model == "gpt2-nano"
            assert (("mlx", f"{model}-plain", precision) in trained) == of_mlx
            hf = ("torch-cpu", f"{model}-hf", precision)
            assert (hf in trained) == (precision == "fp32" or model == "gpt2-tiny")
    others = ("gpt2-tiny-lora-plain", "gpt2-nano-near-capacity", "mlp", "cnn", "lstm", "lm-wide")
    for name in others:
        assert ("torch-cpu", name, "fp32") in trained
        assert ("mlx", name, "fp32") in trained
    assert ("torch-cpu", "gpt2-tiny-lora-hf", "fp32") in trained
    assert ("torch-cpu", "gpt2-tiny-offload", "fp32") in trained
    for record in default_run.records().values():
        if record["cell"]["module"] == "kernel_launch" and record["status"] == "ok":
            point = record["points"][0]
            assert point["cold"]["failed"] == []
            for name in ("cold_s", "import_s", "context_s", "other_kernel_s"):
                forked = name == "import_s" and "cold_launch" in record["method"]
                assert len(point["times"][name]) == (1 if forked else 10)
    of_grids = [
        point
        for record in default_run.records().values()
        if record["cell"]["module"] == "transformer_grid"
        for point in record["points"]
    ]
    untried = [point["reason"] for point in of_grids if point["status"] != "ok"]
    assert all("the points before it took" in reason for reason in untried), untried  # a slow host
    assert len(of_grids) >= 24
    assert len(rows(default_run, "expected")) >= len(of_grids) - len(untried) > 0
    assert {row["device"] for row in rows(default_run, "ceilings") if row["source"] == "reference"}
    claims = rows(default_run, "claims")
    assert len(claims) > 30 and all(row["verdict"] and row["reason"] for row in claims)


@pytest.mark.slow
def test_phases_sum_to_the_step_and_nothing_is_lost_on_the_way_to_the_tables(run):
    raw = 0
    for key, record in run.records().items():
        for point in record["points"]:
            times = point["times"]
            raw += sum(map(len, times.values())) + len(point.get("loss", []))
            if record["cell"]["trainer"] in ("plain", "hf", "epochs"):
                phases = [times[name] for name in timing.PHASES if name in times]
                assert len(phases) >= 5, key
                for step, parts in zip(times["step_s"], zip(*phases, strict=True), strict=True):
                    assert math.isclose(step, sum(parts), rel_tol=1e-9), key
            if record["cell"]["trainer"] in ("plain", "hf"):
                assert len(times["whole_step_s"]) == len(times["step_s"]) >= 2, key
    steps, cells = (
        [row for row in rows(run, name) if row["source"] != "reference"]
        for name in ("steps", "cells")
    )
    assert raw == len(steps)
    assert len(cells) == len(run.records())
    assert all(row["reason"] for row in rows(run, "cells") if row["status"] != "ok")
    samples = rows(run, "samples")
    assert {float(row["rss_bytes"]) > 1e6 for row in samples} == {True}


@pytest.mark.slow
def test_precision_threads_and_environment_are_proved_not_assumed(run):
    written = json.loads((run.path / "results/matrix.json").read_text())
    host = written["host"]
    for key, record in run.records().items():
        if record["status"] != "ok":
            continue
        assert record["precision"]["effective"] == record["cell"]["precision"], key
        assert 0 < record["precision"]["evidence"]["product_error"] < 0.02, key
        backend = record["environment"]["backend"]
        if record["cell"]["backend"] == "torch-cpu":
            assert backend["threads"] == host["cpu"]["threads"], key
        declared = record["environment"]["declared"]
        framework = backend["framework"]
        assert declared["packages"][framework] == host["packages"][framework], key
        assert declared["blas"] == host["blas"][framework], key


@pytest.mark.slow
def test_the_terminal_tells_each_cell_s_numbers_and_the_page_s_answer(run):
    said = (run.path.parent / "output.txt").read_text(encoding="utf-8")
    assert "input: " not in said and "reason: " not in said
    records = run.records()
    lines = re.findall(r"^(\S+) · (\S+) ·(?: \S+ ·)* (\S+) +(.*)$", said, re.M)
    assert len(lines) == len(records)
    assert re.search(rf"^{len(lines)} cells to measure on \S+: (about|under)", said, re.M)
    told = {tuple(axes): text for *axes, text in lines}
    assert told.keys() == {
        (r["cell"]["backend"], r["cell"]["workload"], r["cell"]["precision"])
        for r in records.values()
    }
    time = r"[\d.]+ (m|µ)?s (± +\d+ %|range of \d) "
    trained, product = rf"{time} +[\d.\s]+ samples/s", rf"{time} +[\d.]+ [GMk]FLOP/s"
    compared = r".*  (\d+\.\d x (faster|slower) than|as fast as) torch-cpu$"
    for key, text in (
        (("mlx", "nano-2", "fp32"), trained),
        (("torch-cpu", "gpt2-nano-plain", "fp32"), trained),
        (("mlx", "product", "fp32"), product),
        (("torch-cpu", "vjp", "fp32"), rf"{product} +(\(|\d of \d points disturbed)"),
        (("mlx", "gpt2-nano-hf", "fp32"), ".*needs torch"),
        (("mlx", "gpt2-tiny-plain", "fp32"), compared),  # the second backend against the first
    ):
        assert key not in told or re.match(text, told[key]), told[key]
    assert max(map(len, re.findall(r"^\S+ · \S+ ·.*$", said, re.M))) <= 110
    head, *rest = (run.path / "results/summary.txt").read_text().splitlines()
    assert "\n".join([head, *rest, "report: results/report.html\n"]) in said
    assert head.split()[0] == "training" and len(rest) <= 11


@pytest.mark.campaign
@pytest.mark.alone
def test_every_plugin_that_works_here_is_measured(default_run):
    measured = [r for r in default_run.records().values() if r["status"] == "ok"]
    modules = {record["cell"]["module"] for record in measured}
    # Nothing to copy on a CPU, and nobody's own model.
    assert modules == {*plugins.names("workloads")} - {"copy", "causal_lm"}
    assert {r["cell"]["trainer"] for r in measured} - {None} == {*plugins.names("trainers")}
    assert {row["probe"] for row in rows(default_run, "probes")} == {*plugins.names("probes")}


@pytest.mark.slow
def test_snakemake_s_own_report_works_beside_ours(clone, tmp_path):
    """It opens without a network, and has every figure and table of the page with its caption."""
    clone.snakemake("report", "--report", str(tmp_path / "provenance.zip"))
    with zipfile.ZipFile(tmp_path / "provenance.zip") as opened:
        content = {Path(name): opened.read(name) for name in opened.namelist()}
    html = content.pop(Path("provenance/report.html")).decode()
    assert html.rstrip().endswith("</html>") and not re.search(r'(src|href)="http', html)
    begin = re.search(r"^\s*var results = (?=\{)", html, re.M).end()
    shown, _ = json.JSONDecoder().raw_decode(html, begin)
    folder = clone.path / "results/figures"
    files = [*folder.glob("*.svg"), *folder.glob("*.csv")]
    assert len(files) > 20
    for path in files:
        entry = shown[f"results/figures/{path.name}"]
        assert entry["labels"] == {"exhibit": path.stem} and path.stem in entry["caption"]
        assert content.pop("provenance" / Path(entry["data_uri"])) == path.read_bytes()
    assert content == {}
