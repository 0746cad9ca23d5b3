"""The main job: the default run, end to end, made once; every number in it holds together."""

from __future__ import annotations

import csv
import json
import math
import re
import zipfile
from html import unescape
from pathlib import Path

import pytest
from conftest import ROOT, Checkout
from siliconprof import plugins, words
from siliconprof.hosts import remedies
from siliconprof.pipeline import cli

pytestmark = pytest.mark.slow


def rows(run: Checkout, table: str) -> list[dict[str, str]]:
    with open(run.path / f"results/tables/{table}.csv", newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def precisions(run: Checkout) -> tuple[str, ...]:
    """Those that every model of the default run is trained in on this processor."""
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


def test_every_cell_has_a_record_and_the_promised_ones_are_ok(default_run):
    written = json.loads((default_run.path / "results/matrix.json").read_text())
    records = default_run.records()
    assert {f"results/records/{key}.json" for key in records} == {
        cell["record"] for cell in written["cells"]
    }
    statuses = {key: record["status"] for key, record in records.items()}
    emulated = {"skipped"} if len(precisions(default_run)) == 1 else set()
    assert set(statuses.values()) == {"ok", "unsupported"} | emulated, statuses
    trained = training(default_run)
    for model in ("gpt2-nano", "gpt2-tiny", "whisper-nano"):
        for precision in precisions(default_run):
            for backend in ("torch-cpu", "mlx"):
                assert (backend, f"{model}-plain", precision) in trained
            hf = ("torch-cpu", f"{model}-hf", precision)
            assert (hf in trained) == (precision == "fp32" or model == "gpt2-tiny")
    for workload in ("gpt2-tiny-lora-plain", "gpt2-nano-near-capacity"):
        assert ("torch-cpu", workload, "fp32") in trained
        assert ("mlx", workload, "fp32") in trained
    assert ("torch-cpu", "gpt2-tiny-lora-hf", "fp32") in trained
    assert ("torch-cpu", "gpt2-tiny-offload", "fp32") in trained
    for record in records.values():
        if record["cell"]["module"] == "kernel_launch" and record["status"] == "ok":
            point = record["points"][0]
            assert point["cold"]["failed"] == []
            for name in ("cold_s", "import_s", "context_s", "other_kernel_s"):
                # After an import that took long, forks of the next processes begin with it done.
                forked = name == "import_s" and "cold_launch" in record["method"]
                assert (3 if forked else 10) <= len(point["times"][name]) <= 10


def test_ceilings_of_both_backends_and_nothing_above_them_by_far(default_run):
    """What everything is held against; twice a ceiling would be no noise any more."""
    ceilings = {
        (row["backend"], row["precision"], row["quantity"]): row
        for row in rows(default_run, "ceilings")
    }
    for backend in ("torch-cpu", "mlx"):
        for precision in ("fp32", "bf16"):
            best = ceilings[backend, precision, "matmul"]
            assert float(best["value"]) > 1e8 and best["unit"] == "FLOP/s", best
            record = json.loads((default_run.path / best["record"]).read_text())
            assert record["cell"]["module"] == "matmul" and record["status"] == "ok"
        for quantity in ("cold", "launch_and_wait", "amortised", "enqueue"):
            assert 0 < float(ceilings[backend, "fp32", quantity]["value"]) < 1
    assert 0 < float(ceilings["torch-cpu", "fp32", "page_fault"]["value"]) < 1e-3
    checks = rows(default_run, "checks")
    assert len(checks) > 30 and {row["verdict"] for row in checks} >= {"ok"}
    for row in checks:
        assert row["verdict"] == "ok" or row["reason"], row


def test_both_other_studies_have_what_they_promise(default_run):
    """The wide/deep report's grid and pair, Daniel 2023's networks: every point measured."""
    trained = training(default_run)
    records = {
        (r["cell"]["backend"], r["cell"]["workload"]): r for r in default_run.records().values()
    }
    for backend in ("torch-cpu", "mlx"):
        points = records[backend, "transformer-grid"]["points"]
        assert len(points) >= 12 and {point["status"] for point in points} == {"ok"}
        for name in ("mlp", "cnn", "lstm"):
            assert len(trained[backend, name, "fp32"]["points"]) == 2
        better = [point["test"]["accuracy"] for point in trained[backend, "mlp", "fp32"]["points"]]
        assert min(better) > 0.5  # of ten classes
    for name in ("lm-wide", "lm-deep"):
        (ours,), (theirs,) = (trained[b, name, "fp32"]["points"] for b in ("torch-cpu", "mlx"))
        for a, b in zip(ours["curve"]["loss"][:20], theirs["curve"]["loss"][:20], strict=True):
            assert math.isclose(a, b, rel_tol=1e-4)
        first, *_, last = ours["evaluations"]
        assert last["loss"] < first["loss"] - 0.5
    assert len(rows(default_run, "expected")) >= 24
    claims = rows(default_run, "claims")
    assert len(claims) > 30 and all(row["verdict"] and row["reason"] for row in claims)


def test_losses_of_equal_data_agree_between_frameworks_and_trainers(default_run):
    for model in ("gpt2-nano", "gpt2-tiny", "gpt2-tiny-lora", "whisper-nano"):
        fp32 = 3e-5 if model == "whisper-nano" else 1e-5  # OpenBLAS sums in another order
        for precision, tolerance in (("fp32", fp32), ("amp-bf16", 5e-3)):
            if precision != "fp32" and (
                model.endswith("lora") or precision not in precisions(default_run)
            ):
                continue
            names = {f"{model}-plain", f"{model}-hf"}
            series = [
                record
                for (_, workload, asked), record in training(default_run).items()
                if workload in names and asked == precision
            ]
            assert len(series) == (3 if precision == "fp32" or model == "gpt2-tiny" else 2)
            assert len({record["dataset"]["data_sha256"] for record in series}) == 1
            first, *others = [record["points"][0]["loss"][:10] for record in series]
            for other in others:
                assert len(other) == 10
                for a, b in zip(first, other, strict=True):
                    assert math.isclose(a, b, rel_tol=tolerance), (model, precision, a, b)
            if not model.endswith("lora"):  # adapters on random weights learn slowly
                assert first[-1] < first[0]
    trained = training(default_run)
    plain = trained["torch-cpu", "gpt2-tiny-plain", "fp32"]["points"][0]["loss"]
    offloaded = trained["torch-cpu", "gpt2-tiny-offload", "fp32"]
    assert offloaded["scenario"]["applied"] == "offload"
    for a, b in zip(plain[:12], offloaded["points"][0]["loss"][:12], strict=True):
        assert math.isclose(a, b, rel_tol=1e-5)
    assert {flag["code"] for flag in offloaded["flags"]} >= {"offload_on_cpu"}


def test_phases_sum_to_the_step_and_nothing_is_lost_on_the_way_to_the_tables(default_run):
    raw = 0
    for key, record in default_run.records().items():
        for point in record["points"]:
            times = point["times"]
            raw += sum(map(len, times.values())) + len(point.get("loss", []))
            if record["cell"]["trainer"] in ("plain", "hf", "epochs"):
                phases = [
                    values
                    for name, values in times.items()
                    if name
                    in ("data_s", "trace_s", "forward_s", "backward_s", "optimizer_s", "other_s")
                ]
                assert len(phases) >= 5, key
                for step, parts in zip(times["step_s"], zip(*phases, strict=True), strict=True):
                    assert math.isclose(step, sum(parts), rel_tol=1e-9), key
            if record["cell"]["trainer"] in ("plain", "hf"):
                assert len(times["unsplit_step_s"]) == len(times["step_s"]) >= 3, key
    assert raw == len(rows(default_run, "steps"))
    assert len(rows(default_run, "cells")) == len(default_run.records())
    assert all(row["reason"] for row in rows(default_run, "cells") if row["status"] != "ok")
    samples = rows(default_run, "samples")
    assert {float(row["rss_bytes"]) > 1e6 for row in samples} == {True}


def test_precision_threads_and_environment_are_proved_not_assumed(default_run):
    written = json.loads((default_run.path / "results/matrix.json").read_text())
    host = written["host"]
    for key, record in default_run.records().items():
        if record["status"] != "ok":
            continue
        assert record["precision"]["effective"] == record["cell"]["precision"], key
        assert 0 < record["precision"]["evidence"]["product_error"] < 0.02, key
        backend = record["environment"]["backend"]
        if record["cell"]["backend"] == "torch-cpu":
            assert backend["threads"] == host["cpu"]["usable_cores"], key
        declared = record["environment"]["declared"]
        framework = backend["framework"]
        assert declared["packages"][framework] == host["packages"][framework], key
        assert declared["blas"] == host["blas"][framework], key


def test_the_terminal_tells_each_cell_s_numbers_and_the_page_s_answer(default_run):
    _, made, said = json.loads((default_run.path.parent / "outcome").read_text(encoding="utf-8"))
    assert "input: " not in said and "reason: " not in said
    records = default_run.records()
    lines = re.findall(r"^(\S+) · (\S+) ·(?: \S+ ·)* (\S+) +(.*)$", made, re.M)
    assert len(lines) == len(records)
    assert re.match(
        rf"{len(lines)} cells on \S+, {len(lines)} of them without a record: about", made
    )
    told = {tuple(axes): text for *axes, text in lines}
    assert told.keys() == {
        (r["cell"]["backend"], r["cell"]["workload"], r["cell"]["precision"])
        for r in records.values()
    }
    assert re.match(r"[\d.]+ m?s +[\d.]+ samples/s", told["torch-cpu", "gpt2-nano-plain", "fp32"])
    assert re.match(r"[\d.]+ (m|µ)s +[\d.]+ [GM]FLOP/s +\(", told["torch-cpu", "vjp", "fp32"])
    assert "supports only torch" in told["mlx", "gpt2-nano-hf", "fp32"]
    # In the answer's order, the largest model first; the second backend is held against the first.
    assert lines[0][:3] == ("torch-cpu", "gpt2-tiny-plain", "fp32")
    compared = r"  (\d+\.\d x (faster|slower) than|as fast as) torch-cpu$"
    assert re.search(compared, told["mlx", "gpt2-tiny-plain", "fp32"])
    assert max(map(len, re.findall(r"^\S+ · \S+ ·.*$", made, re.M))) <= 110
    head, *rest = (default_run.path / "results/summary.txt").read_text().splitlines()
    assert made.endswith("\n".join([head, *rest, "report: results/report.html\n"]))
    assert head.split()[0] == "training" and len(rest) <= 11
    tiny = [
        float(row["unsplit_step_median_s"])
        for row in rows(default_run, "points")
        if row["workload"] in ("gpt2-tiny-plain", "gpt2-tiny-hf") and row["unsplit_step_median_s"]
    ]
    (line,) = (line for line in rest if line.startswith("gpt2-tiny "))
    assert f" {words.duration(min(tiny)).replace(words.THIN, ' ')} " in line


def test_every_plugin_that_works_here_is_measured(default_run):
    measured = [r for r in default_run.records().values() if r["status"] == "ok"]
    modules = {record["cell"]["module"] for record in measured}
    assert modules == {*plugins.names("workloads")} - {"copy"}  # nothing to copy on a CPU
    assert {r["cell"]["trainer"] for r in measured} - {None} == {*plugins.names("trainers")}
    assert {row["probe"] for row in rows(default_run, "probes")} == {*plugins.names("probes")}


def test_snakemake_s_own_report_works_beside_ours(default_run, tmp_path):
    default_run.snakemake("report", "--report", str(tmp_path / "provenance.zip"))
    with zipfile.ZipFile(tmp_path / "provenance.zip") as opened:
        content = {Path(name): opened.read(name) for name in opened.namelist()}
    html = content.pop(Path("provenance/report.html")).decode()
    assert html.rstrip().endswith("</html>") and not re.search(r'(src|href)="http', html)
    decoder = json.JSONDecoder()
    shown, categories = (
        decoder.raw_decode(html, re.search(rf"^\s*var {name} = (?=\{{)", html, re.M).end())[0]
        for name in ("results", "categories")
    )
    folder = default_run.path / "results/figures"
    files = [*folder.glob("*.svg"), *folder.glob("*.csv")]
    assert len(files) > 40
    page = unescape((default_run.path / "results/report.html").read_text(encoding="utf-8"))
    for category in categories:
        assert f"<h2>{category[3:]}</h2>" in page, category
    assert {path for kinds in categories.values() for kind in kinds.values() for path in kind} == (
        set(shown)
    )
    for path in files:
        entry = shown[f"results/figures/{path.name}"]
        kind = entry["labels"]["number"].split()[0]
        assert kind == "Figure" or path.suffix == ".csv", path
        assert re.match(rf"<p>{kind} \d+\. \S", entry["caption"]), path
        assert entry["labels"]["shows"]
        assert content.pop("provenance" / Path(entry["data_uri"])) == path.read_bytes()
    assert content == {}


def test_the_commands_and_links_of_the_documentation_exist():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    assert texts[ROOT / "README.md"].count("\n") <= 130
    commands = [
        line.split()
        for text in texts.values()
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        for line in block.splitlines()
    ]
    verbs = {words[1] for words in commands if words[:1] == ["siliconprof"]}
    assert {"doctor", "plan", "pack", "import"} <= verbs <= set(cli.VERBS)
    for verb in set(cli.VERBS) - {"run"}:  # which has no parser of its own
        with pytest.raises(SystemExit, match="^0$"):
            cli.dispatch([verb, "--help"])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {words[1] for words in commands if words[:1] == ["make"]}
    assert targets and all(
        re.search(rf"^[\w ]*\b{target}\b[\w ]*:", makefile, re.M) for target in targets
    )
    for page, text in texts.items():
        links = re.findall(r"\]\((?!http)([^)#]+)", text)
        assert [link for link in links if not (page.parent / link).exists()] == [], page
    listed = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    assert [page.name for page in pages[1:] if f"({page.name})" not in listed] == ["README.md"]
