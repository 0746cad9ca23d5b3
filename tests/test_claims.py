"""Published claims: every comparison with every verdict, from small tables over the real stage.

Each case alters what was measured and nothing else; the claim stays. The shipped claims file is
read as it is, and broken ones are refused line by line.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, Checkout
from siliconprof import claims, noise_floor, table_files, training_course
from siliconprof.claim_verdicts import VERDICTS
from siliconprof.errors import UserError
from siliconprof.record_rows import HERE, REFERENCE
from test_render import CPU, Page, arguments, host_file, page
from test_render import make as make_page

YES, NO, OPEN, ABSENT = VERDICTS
Tables = dict[str, list[dict[str, Any]]]
M4 = {"device": "m4-10", "backend": "torch-mps", "source": REFERENCE, "host": "mac"}
RTX = {"device": "rtx-4090", "backend": "torch-cuda", "source": REFERENCE, "host": "tower"}
DESK: dict[str, Any] = {}  # the processor of this host


def cell(module: str, workload: str, **more: Any) -> dict[str, Any]:
    """A cell of cells.csv, as far as claims read it."""
    row = {
        "source": HERE, "host": "desk", "device": "cpu-x", "backend": "torch-cpu",
        "workload": workload, "scenario": "auto", "precision": "fp32", "module": module,
        "trainer": None, "device_kind": "cpu", "status": "ok", "reason": None, "seed": 0,
        "data_sha256": "ab", "method_version": 4, "gradient_checkpointing": False,
    } | more  # fmt: skip
    if row["device"] in ("m4-10", "rtx-4090", "m2-max-30"):
        row["device_kind"] = "gpu"
    names = ("source", "host", "device", "backend", "workload")
    return row | {"record": "/".join(str(row[name]) for name in names)}


def point(of: Mapping[str, Any], step_s: float | None = None, **more: Any) -> dict[str, Any]:
    """A point of points.csv; its steps lie within 1 %."""
    names = ("source", "host", "device", "backend", "workload", "scenario", "precision", "module",
             "trainer")  # fmt: skip
    timed = {}
    if step_s:
        timed = {"unsplit_step_median_s": step_s, "unsplit_step_low_s": 0.995 * step_s,
                 "unsplit_step_high_s": 1.005 * step_s}  # fmt: skip
    row = {name: of[name] for name in names} | {"point": 0, "params": "{}", "point_status": "ok"}
    return row | {"batch_size": 4} | timed | more


def tables(*parts: tuple[dict[str, Any], Sequence[dict[str, Any]]], **more: Any) -> Tables:
    """Tables of cells with their points, numbered."""
    found: Tables = {"cells": [], "points": [], "scaling": [], "curves": [], "evaluations": []}
    for of, points in parts:
        found["cells"].append(of)
        found["points"] += [row | {"point": index} for index, row in enumerate(points)]
    return found | more


def judged(
    folder: Path, entries: Sequence[Mapping[str, Any]], given: Tables, *more: str
) -> list[dict[str, Any]]:
    """What the stage writes of some claims."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = ["source", "host", "device", "backend", "workload", "scenario", "precision", "point",
               "step", "about"]  # fmt: skip
    for name in claims.TABLES:
        table_files.write(folder / f"{name}.csv", given.get(name, []), columns)
    (folder / "claims.yaml").write_text(yaml.safe_dump({"claims": list(entries)}))
    (folder / "matrix.json").write_text(json.dumps({"host": host_file([CPU])}))
    assert claims.main(
        ["--matrix", str(folder / "matrix.json"), "--tables", str(folder), "--registry",
         str(ROOT / "config/devices.yaml"), "--claims", str(folder / "claims.yaml"),
         "--published", str(ROOT / "config/published"), "--output-dir", str(folder), *more]
    ) == 0  # fmt: skip
    return table_files.rows(table_files.read(folder / "claims.csv"))


def claim(kind: str, **compare: Any) -> dict[str, Any]:
    """An entry of the claims file."""
    entry = {"id": kind, "text": f"A {kind}", "source": "seed 003, Conclusions"}
    return entry | {"compare": {"kind": kind} | compare}


# -- every kind, every verdict -------------------------------------------------------------------

ON_BOTH = {"workloads": ["transformer_lm"], "quantity": "step_speed", "cases": "typical"}
PAIR = {
    "a": {"device": "rtx-4090", "like": {"device_kind": "gpu"}},
    "b": {"device": "m4-10", "like": {"device_kind": "cpu"}},
}
TWENTY = claim("ratio", **ON_BOTH, **PAIR, expect="about", value=20, tolerance=0.5,
               tolerance_reason="wide, for the noise that is assumed")  # fmt: skip
FASTER = claim("direction", **ON_BOTH, **PAIR, expect="more")
MORE_STEPS = claim("difference", workloads=["transformer_lm"], quantity="norm_elevated_until",
                   a={"model": "deep"}, b={"model": "wide"}, cases="typical", expect="more")  # fmt: skip
WORSE = claim("range", workloads=["transformer_grid"], quantity="over_datasheet",
              of={"device": "m4-10"}, cases="all", expect="more", value=1)  # fmt: skip
GROWS = claim("trend", workloads=["transformer_grid"], quantity="throughput", of={},
              along="batch_size", cases="typical", expect="more")  # fmt: skip
OFTEN = claim("share", workloads=["transformer_grid"], quantity="iteration_over_min_run_time",
              of={}, expect="at_least", value=0.5)  # fmt: skip
MOST = claim("largest", workloads=["mlp", "lstm"], quantity="epoch_speed", batch_sizes=[32],
             a={"device": "m2-max-30"}, b={"device_kind": "cpu"}, same_host=True, largest="lstm")  # fmt: skip
BOTH = claim("finding", workloads=["transformer_grid"], quantity="bound", of={}, cases="typical",
             words=["both"], unclear=["inconclusive"])  # fmt: skip


def two_devices(fast_s: float, slow_s: float | None) -> Tables:
    """The same training on both devices of seed 003; without seconds the second was not run."""
    parts = []
    for where, seconds in ((RTX, fast_s), (M4, slow_s)):
        if seconds:
            of = cell("transformer_lm", "lm", trainer="training_run", **where)
            parts.append((of, [point(of, seconds, n_parameters=1e6)]))
    return tables(*parts)


def norms(deep_until: int, wide_until: int, noise: float = 0.0, steps: int = 100) -> Tables:
    """Two trainings whose gradient norm is thrice its later level up to a step."""
    parts, curves = [], []
    for model, until, layers, width in (("deep", deep_until, 8, 48), ("wide", wide_until, 2, 96)):
        of = cell("transformer_lm", f"lm-{model}", trainer="training_run")
        row = point(of, 0.01, n_layer=layers, n_embd=width, n_parameters=5e5, training_steps=steps)
        parts.append((of, [row]))
        key = {name: row[name] for name in row if name in (*claims_key(), "point")}
        for step in range(steps):
            level = 3.0 if step < until else 1.0
            wobble = noise * (1 if step % 2 else -1)
            curves.append(key | {"step": step, "gradient_norm": level + wobble, "loss": 5.0})
    return tables(*parts, curves=curves)


def claims_key() -> Sequence[str]:
    return ("source", "host", "device", "backend", "workload", "scenario", "precision")


def grid(seconds: Mapping[int, float], minimum_s: float | None = 0.2, **where: Any) -> Tables:
    """A grid: batch size -> seconds of an iteration."""
    of = cell("transformer_grid", "grid", **where)
    shape = {"n_layer": 2, "n_embd": 64, "n_head": 4, "d_ff": 168, "seq_len": 64, "vocab_size": 512}
    return tables(
        (of, [point(of, s, batch_size=b, tokens_per_s=64 * b / s, flops=1e12,
                    autorange_median_s=s, autorange_min_run_time_s=minimum_s, **shape)
              for b, s in seconds.items()])
    )  # fmt: skip


def networks(mlp: float, lstm: float, batch_size: int = 32) -> Tables:
    """How many times as fast an M2 Max trains as its own processor."""
    parts = []
    mac = {"source": REFERENCE, "host": "mac"}
    for module, times in (("mlp", mlp), ("lstm", lstm)):
        for device, seconds in (("m2-max-30", 1.0), ("cpu-mac", times)):
            of = cell(module, module, trainer="epochs", device=device, **mac)
            row = point(of, seconds / 100, epoch_s=seconds, batch_size=batch_size, network=module)
            parts.append((of, [row]))
    return tables(*parts)


def finding(*words: str) -> Tables:
    """A grid of which the analysis came to these words, backend by backend."""
    parts, lines = [], []
    for index, word in enumerate(words):
        of = cell("transformer_grid", "grid", backend=("torch-cpu", "mlx")[index])
        parts.append((of, []))
        lines.append(
            {name: of[name] for name in claims_key()} | {"about": "backend", "verdict": word}
        )
    return tables(*parts, scaling=lines)


SLOW_PEAK_S = 1e12 / 4.26e12  # of 1e12 operations, if an M4 had this peak; see the test


@pytest.mark.parametrize(
    ("entry", "given", "verdict", "says"),
    [
        (TWENTY, two_devices(0.01, 0.20), YES, "20 [15.6, 25.7]"),
        (TWENTY, two_devices(0.01, 0.06), NO, "claimed 13.3 to 30"),
        (TWENTY, two_devices(0.01, 0.29), OPEN, "noise: the interval overlaps the bound"),
        (TWENTY, two_devices(0.01, None), ABSENT, "Apple M4, 10 GPU cores was not measured"),
        (FASTER, two_devices(0.01, 0.02), YES, "claimed above 1"),
        (FASTER, two_devices(0.02, 0.01), NO, "claimed above 1"),
        (FASTER, two_devices(0.01, 0.0101), OPEN, "overlaps the bound"),
        (FASTER, two_devices(0.01, None), ABSENT, "was not measured"),
        (MORE_STEPS, norms(40, 15), YES, "25 [25, 25]"),
        (MORE_STEPS, norms(15, 40), NO, "-25 [-25, -25]"),
        (MORE_STEPS, norms(0, 0), OPEN, "nothing to compare: both are 0"),
        (MORE_STEPS, norms(8, 2, steps=9), ABSENT, "too few steps"),
        (WORSE, grid({1: 10.0}, **M4), YES, "claimed above 1"),
        (WORSE, grid({1: 0.01}, **M4), NO, "claimed above 1"),
        (WORSE, grid({1: SLOW_PEAK_S}, **M4), OPEN, "overlaps the bound"),
        (WORSE, grid({1: 10.0}), ABSENT, "Apple M4, 10 GPU cores was not measured"),
        (GROWS, grid({1: 0.01, 8: 0.02}), YES, "batch_size 1 to 8"),
        (GROWS, grid({1: 0.01, 8: 0.2}), NO, "claimed above 1"),
        (GROWS, grid({1: 0.01, 8: 0.08}), OPEN, "overlaps the bound"),
        (GROWS, tables(), ABSENT, "no transformer_grid cell is part of these results"),
        (OFTEN, grid({1: 0.1, 8: 0.9}), YES, "2 points, from 0.5 to 4.5 times: 0.5"),
        (OFTEN, grid({1: 0.01, 8: 0.1}), NO, "0 [0, 0], claimed at least 0.5"),
        (OFTEN, grid({1: 0.01, 8: 0.2}), OPEN, "[0, 0.5]"),
        (OFTEN, grid({1: 0.01}, None), ABSENT, "blocked_autorange timed nothing"),
        (MOST, networks(1.2, 6.8), YES, "claimed largest: lstm"),
        (MOST, networks(6.8, 1.2), NO, "claimed largest: lstm"),
        (MOST, networks(6.5, 6.8), OPEN, "overlap of intervals"),
        (MOST, networks(1.2, 6.8, 64), ABSENT, "no cell of mlp or lstm has batch 32"),
        (BOTH, finding("both", "both"), YES, "claimed both"),
        (BOTH, finding("launch-bound", "neither"), NO, "launch-bound"),
        (BOTH, finding("inconclusive", "inconclusive"), OPEN, "decides nothing"),
        (BOTH, finding(), ABSENT, "no transformer_grid cell"),
    ],
)  # fmt: skip
def test_every_comparison_has_every_verdict(
    tmp_path: Path, entry: dict[str, Any], given: Tables, verdict: str, says: str
) -> None:
    (row,) = judged(tmp_path, [entry], given)
    assert (row["verdict"], says in row["reason"]) == (verdict, True), row
    measured = row["measured_value"] is not None or row["measured_word"] is not None
    assert measured == (verdict != ABSENT)
    assert bool(row["measured_records"]) == measured


# -- whose cells decide --------------------------------------------------------------------------


def test_an_analogue_changes_no_verdict(tmp_path: Path) -> None:
    """Two other devices that do what is claimed of named ones stand beside it."""
    parts = []
    h200 = {"device": "h200", "backend": "torch-cuda", "device_kind": "gpu", "source": REFERENCE,
            "host": "lab"}  # fmt: skip
    for where, seconds in ((h200, 0.01), (DESK, 0.20)):
        of = cell("transformer_lm", "lm", trainer="training_run", **where)
        parts.append((of, [point(of, seconds, n_parameters=1e6)]))
    (row,) = judged(tmp_path / "near", [TWENTY], tables(*parts))
    assert row["verdict"] == ABSENT and row["measured_value"] is None
    assert "NVIDIA GeForce RTX 4090 and Apple M4, 10 GPU cores were not measured" in row["reason"]
    assert row["analogue_says"] == "agrees"
    assert row["analogue_value"] == pytest.approx(20)
    assert row["analogue_devices"] == "h200 (torch-cuda, lab, reference); cpu-x (torch-cpu)"
    # The named pair decides as soon as it is there, and is no analogue of itself.
    (row,) = judged(tmp_path / "there", [TWENTY], two_devices(0.01, 0.20))
    assert row["verdict"] == YES and row["analogue_says"] is None


def test_a_claim_without_devices_is_decided_here(tmp_path: Path) -> None:
    """Another host's grid that shrinks is an analogue of this host's that grows."""
    given, other = grid({1: 0.01, 8: 0.02}), grid({1: 0.01, 8: 0.2}, host="far", source="imported")
    for name in ("cells", "points"):
        given[name] += other[name]
    (row,) = judged(tmp_path, [GROWS], given)
    assert (row["verdict"], row["analogue_says"]) == (YES, "disagrees")
    assert row["measured_value"] == pytest.approx(4)
    assert row["analogue_value"] == pytest.approx(0.4)


def test_noise_of_the_host_decides(tmp_path: Path) -> None:
    """A fifth more throughput: open by the allowance, decided by a quiet host's noise floor."""
    given = grid({1: 0.01, 8: 0.0667})
    (assumed,) = judged(tmp_path / "assumed", [GROWS], given)
    figure = {
        "cell": "desk/cpu-x/torch-cpu/grid/auto/fp32", "device": "cpu-x", "backend": "torch-cpu",
        "point": "{}", "metric": "unsplit_step_s", "group": "g", "values": [1.0, 1.01, 0.99] * 4,
        "records": [],
    }  # fmt: skip
    run = {"added_at": "2026-01-01", "source": "x", "figures": [figure]}
    floor = tmp_path / "desk.json"
    floor.write_text(
        json.dumps({"floor_version": noise_floor.VERSION, "host": "desk", "runs": [run]})
    )
    (known,) = judged(tmp_path / "known", [GROWS], given, "--noise-floors", str(floor))
    assert (assumed["verdict"], known["verdict"]) == (OPEN, YES)
    assert "assumed" in assumed["measured_basis"] and "differ by 0.9%" in known["measured_basis"]


def test_one_case_contradicts_always_and_not_typically(tmp_path: Path) -> None:
    """Two model shapes of which one grows with the batch and one shrinks."""
    given, other = grid({1: 0.01, 8: 0.02}), grid({1: 0.01, 8: 0.2}, backend="mlx")
    for name in ("cells", "points"):
        given[name] += other[name]
    always = GROWS | {"id": "always", "compare": GROWS["compare"] | {"cases": "all"}}
    strict, loose = judged(tmp_path, [always, GROWS], given)
    assert strict["verdict"] == NO and "1 of 2 cases against it" in strict["reason"]
    assert loose["verdict"] == OPEN and "cases differ beyond noise" in loose["reason"]
    assert (loose["measured_cases_agree"], loose["measured_cases_against"]) == (1, 1)


def test_half_an_answer_is_none(tmp_path: Path) -> None:
    """Agreement at one of two batch sizes reproduces nothing; a counterexample stays one."""
    entry = claim("direction", workloads=["mlp", "lstm"], quantity="epoch_speed",
                  batch_sizes=[32, 128], a={"device": "m2-max-30"}, b={"device_kind": "cpu"},
                  same_host=True, cases="all", expect="more")  # fmt: skip
    (half,) = judged(tmp_path / "half", [entry], networks(3, 3))
    assert half["verdict"] == ABSENT
    assert "not measured on both sides: mlp with batch 128; lstm with batch 128" in half["reason"]
    (against,) = judged(tmp_path / "against", [entry], networks(3, 0.2))
    assert against["verdict"] == NO


def test_failed_cells_say_why(tmp_path: Path) -> None:
    failed = cell("transformer_grid", "grid", status="oom", reason="killed at 3 GiB")
    (row,) = judged(tmp_path, [GROWS], tables((failed, [])))
    assert row["reason"] == "transformer_grid: oom: killed at 3 GiB"


# -- courses -------------------------------------------------------------------------------------


def test_a_loss_that_still_falls_says_nothing_of_where_it_ends() -> None:
    falling = training_course.settled_loss([6.0, 5.0, 4.0, 3.5])
    resting = training_course.settled_loss([6.0, 4.0, 3.5, 3.49])
    assert falling and resting
    assert falling.low == 0 and "still fell by 20%" in falling.remark
    assert (resting.low, resting.high) == pytest.approx((3.48, 3.5)) and not resting.remark
    assert training_course.settled_loss([5.0, 5.1, 5.2]) is None


def test_convergence_is_where_the_loss_comes_near_its_end() -> None:
    losses = [max(1.0, 6.0 - 0.1 * step) for step in range(200)]
    found = training_course.converged_at(losses)
    assert found and found.middle == pytest.approx(49, abs=3) and not found.remark
    falling = training_course.converged_at([6.0 - 0.02 * step for step in range(200)])
    assert falling and falling.high == float("inf") and "still fell" in falling.remark


# -- the claims file -----------------------------------------------------------------------------

PUBLISHED = {"table": "seed004_speedups", "statement": "M2 Max is always faster than the M1"}


def test_a_published_row_gives_devices_workloads_and_value(tmp_path: Path) -> None:
    """The number is read from config/published, where the page's tables read it too."""
    entry = claim("ratio", workloads=["mlp", "cnn", "lstm"], quantity="epoch_speed", a={}, b={},
                  cases="all", expect="about", tolerance=0.1, tolerance_reason="one run")  # fmt: skip
    statement = "faster up to 1.77 times for MLP with a batch size of 1024"
    del entry["source"]
    entry["published"] = {"table": "seed004_speedups", "statement": statement}
    (row,) = judged(tmp_path, [entry], tables())
    assert row["published_devices"] == "m2-max-30;p100-pcie-16gb"
    assert (row["published_value"], row["published_unit"]) == ("1.77", "times")
    assert row["claimed_low"] == pytest.approx(1.77 / 1.1) and "seed 004, Results" in row["source"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"id": "Bad Id"}, "claims.0.id: is 'Bad Id'; expected text that matches"),
        ({"verdict": "reproduced"}, "claims.0.verdict: unknown key"),
        ({"untestable": "why"}, "trend: expected either compare or untestable"),
        ({"published": PUBLISHED}, "trend: expected either source or published"),
        ({"compare": {"kind": "trends"}}, "kind: is 'trends'"),
        ({"compare": {"along": None}}, "trend.compare.along: is missing; a trend needs it"),
        ({"compare": {"a": {}}}, "trend.compare.a: a trend has no such key"),
        ({"compare": {"expect": "about"}}, "trend.compare.expect: is 'about'; a trend expects"),
        ({"compare": {"quantity": "througput"}}, "did you mean 'throughput'?"),
        ({"compare": {"workloads": ["transformer_gird"]}}, "did you mean 'transformer_grid'?"),
        ({"compare": {"of": {"device": "m4-100"}}}, "no device 'm4-100' in the registry"),
        ({"compare": {"of": {"vendor": "appel"}}}, "did you mean 'apple'?"),
        ({"compare": {"tolerance": 0.1}}, "a tolerance and its reason go together"),
        ({"source": None, "published": PUBLISHED | {"statement": "x"}}, "no row of"),
        ({"source": None, "published": PUBLISHED | {"table": "x"}}, "x.csv cannot be read"),
        (
            {"source": None, "published": PUBLISHED | {"table": "table1_devices"}},
            "is no table of statements",
        ),
    ],
)
def test_a_bad_claims_file_gets_a_line_for_each_mistake(
    tmp_path: Path, change: dict[str, Any], line: str
) -> None:
    compare = GROWS["compare"] | change.pop("compare", {})
    entry = GROWS | change | {"compare": {k: v for k, v in compare.items() if v is not None}}
    entry = {key: value for key, value in entry.items() if value is not None}
    with pytest.raises(UserError) as error:
        judged(tmp_path, [entry], tables())
    lines = str(error.value).splitlines()
    assert len(lines) == 1 and line in lines[0], lines
    assert lines[0].startswith(str(tmp_path / "claims.yaml"))


def test_all_mistakes_are_said_at_once(tmp_path: Path) -> None:
    bad = GROWS | {"compare": GROWS["compare"] | {"quantity": "x", "expect": "about"}}
    with pytest.raises(UserError) as error:
        judged(tmp_path, [bad, GROWS], tables())
    assert len(str(error.value).splitlines()) == 3  # a quantity, an expectation, an id used twice


def test_the_shipped_claims_name_every_printed_statement() -> None:
    """No statement of either seed's table is without its claim."""
    listed = yaml.safe_load((ROOT / "config/claims.yaml").read_text(encoding="utf-8"))["claims"]
    named = {(c["published"]["table"], c["published"]["statement"]) for c in listed
             if "published" in c}  # fmt: skip
    for name in ("seed003_speedups", "seed004_speedups"):
        rows = table_files.rows(table_files.read(ROOT / f"config/published/{name}.csv"))
        assert {(name, row["statement"]) for row in rows} <= named


# -- the stage and the page ----------------------------------------------------------------------


def test_stage_and_page_survive_empty_tables(tmp_path: Path) -> None:
    """Nothing was measured: every shipped claim is there, and none is decided."""
    results = make_page(tmp_path, [])
    rows = table_files.rows(table_files.read(results / "tables/claims.csv"))
    assert len(rows) > 35 and {row["verdict"] for row in rows} == {ABSENT}
    assert all(row["reason"] for row in rows)
    assert page.main(arguments(results)) == 0
    shown = Page((results / "report.html").read_text(encoding="utf-8"))
    assert f"Of {len(rows)} claims: 0 reproduced, 0 contradicted, 0 inconclusive" in "".join(
        shown.text["claims"]
    )


def test_page_shows_verdicts_with_their_reasons(tmp_path: Path) -> None:
    results = make_page(tmp_path, [])
    given = grid({1: 0.01, 8: 0.02})
    for name, rows in given.items():
        if rows:
            table_files.write(tmp_path / f"{name}.csv", rows)
    lines = judged(tmp_path / "small", [GROWS, TWENTY, BOTH], given)
    assert [line["verdict"] for line in lines] == [YES, ABSENT, ABSENT]
    shutil.copy(tmp_path / "small/claims.csv", results / "tables/claims.csv")
    assert page.main(arguments(results)) == 0
    shown = Page((results / "report.html").read_text(encoding="utf-8"))
    assert "Of 3 claims: 1 reproduced, 0 contradicted, 0 inconclusive, 2 not testable" in "".join(
        shown.text["claims"]
    )
    table = (results / "figures/table-claims.md").read_text(encoding="utf-8")
    assert (
        "| reproduced |" in table
        and "grid on cpu-x (torch-cpu), 2 layers" in table
        and "above 1 ×" in table
    )


def test_rule_judges_again_when_the_claims_change(checkout: Checkout) -> None:
    """Claims, schema and code are inputs of the rule, and the page waits for it."""
    text = checkout.snakemake("-n", "-p", "results/report.html").stdout
    blocks = {name: part for part in text.split("\n\n") for name in ("claims", "render")
              if f"rule {name}:" in part}  # fmt: skip
    for name in ("config/claims.yaml", "claims.schema.yaml", "siliconprof/claim_cases.py",
                 "config/published/seed004_speedups.csv", "results/tables/curves.csv"):  # fmt: skip
        assert name in blocks["claims"]
    assert "results/tables/claims.csv" in blocks["render"]
