"""Published claims: every comparison with every verdict, from small tables over the real stage.

Each case alters what was measured and nothing else; the claim stays. The shipped claims file is
read as it is, and broken ones are refused line by line.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, Checkout
from siliconprof.analyse.published_values import Published
from siliconprof.claims import claims_file, judge
from siliconprof.claims import consistency as claim_consistency
from siliconprof.claims.consistency import CONSISTENT, INCONSISTENT
from siliconprof.claims.quantities import QUANTITIES
from siliconprof.claims.verdicts import VERDICTS
from siliconprof.errors import UserError
from siliconprof.hosts import registry
from siliconprof.render import claims as claims_section
from siliconprof.render.book import Book
from siliconprof.stats import training_course
from siliconprof.store import columns, noise_floors, table_files
from siliconprof.store.records import HERE, REFERENCE
from synthetic_results import CPU, Page, host_file, load, make_page, of_the_paper, training
from synthetic_results import make as make_results

YES, NO, OPEN, ABSENT = VERDICTS
Tables = dict[str, list[dict[str, Any]]]
M4 = {"device": "m4-10", "backend": "torch-mps", "source": REFERENCE, "host": "mac"}
RTX = {"device": "rtx-4090", "backend": "torch-cuda", "source": REFERENCE, "host": "tower"}
DESK: dict[str, Any] = {}  # the processor of this host


def cell(module: str, workload: str, **more: Any) -> dict[str, Any]:
    """A cell of cells.csv, as far as claims read it."""
    row = {
        "source": HERE,
        "host": "desk",
        "device": "cpu-x",
        "backend": "torch-cpu",
        "workload": workload,
        "scenario": "auto",
        "precision": "fp32",
        "module": module,
        "trainer": None,
        "device_kind": "cpu",
        "status": "ok",
        "reason": None,
        "seed": 0,
        "data_sha256": "ab",
        "method_version": 4,
        "gradient_checkpointing": False,
    } | more
    if row["device"] in ("m4-10", "rtx-4090", "m2-max-30"):
        row["device_kind"] = "gpu"
    names = ("source", "host", "device", "backend", "workload")
    return row | {"record": "/".join(str(row[name]) for name in names)}


def point(of: Mapping[str, Any], step_s: float | None = None, **more: Any) -> dict[str, Any]:
    """A point of points.csv; its steps lie within 1 %."""
    names = (
        "source",
        "host",
        "device",
        "backend",
        "workload",
        "scenario",
        "precision",
        "module",
        "trainer",
    )
    timed = {}
    if step_s:
        timed = {
            "unsplit_step_median_s": step_s,
            "unsplit_step_low_s": 0.995 * step_s,
            "unsplit_step_high_s": 1.005 * step_s,
        }
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
    for name in columns.tables():
        table_files.write(folder / f"{name}.csv", given.get(name, []))
    (folder / "claims.yaml").write_text(yaml.safe_dump({"claims": list(entries)}))
    matrix = {"experiment": {}, "host": host_file([CPU]), "cells": [], "not_measured": []}
    (folder / "matrix.json").write_text(json.dumps(matrix))
    assert (
        judge.main(
            [
                "--matrix",
                str(folder / "matrix.json"),
                "--tables",
                str(folder),
                "--registry",
                str(ROOT / "config/devices.yaml"),
                "--claims",
                str(folder / "claims.yaml"),
                "--published",
                str(ROOT / "config/published"),
                "--output-dir",
                str(folder),
                *more,
            ]
        )
        == 0
    )
    return table_files.rows(table_files.read(folder / "claims.csv"))


def claim(kind: str, **compare: Any) -> dict[str, Any]:
    """An entry of the claims file."""
    entry = {"id": kind, "text": f"A {kind}", "source": "wide/deep report, Conclusions"}
    return entry | {"compare": {"kind": kind} | compare}


# -- every kind, every verdict -------------------------------------------------------------------

ON_BOTH = {"workloads": ["transformer_lm"], "quantity": "step_speed", "cases": "typical"}
PAIR = {
    "a": {"device": "rtx-4090", "like": {"device_kind": "gpu"}},
    "b": {"device": "m4-10", "like": {"device_kind": "cpu"}},
}
TWENTY = claim(
    "ratio",
    **ON_BOTH,
    **PAIR,
    expect="about",
    value=20,
    tolerance=0.5,
    tolerance_reason="wide, for the noise that is assumed",
)
FASTER = claim("direction", **ON_BOTH, **PAIR, expect="more")
MORE_STEPS = claim(
    "difference",
    workloads=["transformer_lm"],
    quantity="norm_elevated_until",
    a={"model": "deep"},
    b={"model": "wide"},
    cases="typical",
    expect="more",
)
WORSE = claim(
    "range",
    workloads=["transformer_grid"],
    quantity="over_datasheet",
    of={"device": "m4-10"},
    cases="all",
    expect="more",
    value=1,
)
GROWS = claim(
    "trend",
    workloads=["transformer_grid"],
    quantity="throughput",
    of={},
    along="batch_size",
    cases="typical",
    expect="more",
)
OFTEN = claim(
    "share",
    workloads=["transformer_grid"],
    quantity="iteration_over_min_run_time",
    of={},
    expect="at_least",
    value=0.5,
)
MOST = claim(
    "largest",
    workloads=["mlp", "lstm"],
    quantity="epoch_speed",
    batch_sizes=[32],
    a={"device": "m2-max-30"},
    b={"device": "cpu"},
    largest="lstm",
)
BOTH = claim(
    "finding",
    workloads=["transformer_grid"],
    quantity="bound",
    of={},
    cases="typical",
    words=["both"],
)


def two_devices(fast_s: float, slow_s: float | None) -> Tables:
    """The same training on both devices of the wide/deep report; without seconds the second was not run."""
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
        (
            of,
            [
                point(
                    of,
                    s,
                    batch_size=b,
                    tokens_per_s=64 * b / s,
                    flops=1e12,
                    autorange_median_s=s,
                    autorange_min_run_time_s=minimum_s,
                    **shape,
                )
                for b, s in seconds.items()
            ],
        )
    )


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
        (BOTH, finding("inconclusive", "inconclusive"), OPEN, "is undecided"),
        (BOTH, finding(), ABSENT, "no transformer_grid cell"),
    ],
)
def test_every_comparison_has_every_verdict(
    tmp_path: Path, entry: dict[str, Any], given: Tables, verdict: str, says: str
) -> None:
    (row,) = judged(tmp_path, [entry], given)
    assert (row["verdict"], says in row["reason"]) == (verdict, True), row
    measured = row["measured_value"] is not None or row["measured_word"] is not None
    assert measured == (verdict != ABSENT)
    assert bool(row["measured_records"]) == measured


# -- every quantity, every verdict ---------------------------------------------------------------


def sized(size: str, module: str = "gpt2", **more: Any) -> dict[str, Any]:
    """A cell on an M4; its size names the verdict that it is made for."""
    own = {"trainer": "hf", "size": size, "rss_at_start_bytes": 1e8} | M4 | more
    return cell(module, f"{module}-{size}-{more.get('precision', 'fp32')}", **own)


def courses(of: Mapping[str, Any], **series: Sequence[float]) -> dict[str, list[dict[str, Any]]]:
    """Samples over time, or page faults of steps, of a cell without warm-up."""
    own = {name: of[name] for name in claims_key()}
    n = max(map(len, series.values()))
    steps = [
        own
        | {
            "point": 0,
            "iteration": i,
            "kind": "unsplit",
            "started_s": float(i),
            "minor_faults": (series.get("faults") or [0] * n)[i],
            "major_faults": 0,
        }
        for i in range(n)
    ]
    columns = ("rss_bytes", "device_memory_bytes")
    samples = [
        own | {"t_s": float(i)} | {c: series[c][i] for c in columns if c in series}
        for i in range(n)
    ]
    return {"training_steps": steps, "samples": samples}


def ramp(end: float, wobble: float = 0.0) -> list[float]:
    """30 values above 1e8 that go from 1e7 to so many times that."""
    noisy = [wobble * (-1) ** (i // 2) for i in range(30)]
    return [1e8 + 1e7 * (1 + (end - 1) * i / 29 + noisy[i]) for i in range(30)]


def together(*given: Tables) -> Tables:
    """All rows of several tables."""
    names = {name for one in given for name in one}
    return {name: [row for one in given for row in one.get(name, [])] for name in names}


def grown(
    column: str, size: str, end: float, wobble: float = 0.0, n_parameters: float = 1e6, **where: Any
) -> Tables:
    of = sized(size, **where)
    values = ramp(end, wobble)
    if column == "device_memory_bytes":
        values = [value - 1e8 for value in values]
    row = point(of, 0.01, n_parameters=n_parameters)
    return tables((of, [row]), **courses(of, **{column: values}))


def faulted(size: str, counts: Sequence[float], **more: Any) -> Tables:
    of = sized(size)
    return tables((of, [point(of, 0.01, **more)]), **courses(of, faults=counts))


def simple(size: str, *steps_s: float | None, module: str = "gpt2", **more: Any) -> Tables:
    """A cell for each time of a step, of the same size."""
    parts = []
    for index, seconds in enumerate(steps_s):
        of = sized(size, module, host=f"mac-{index}")
        each = {name: v[index] if isinstance(v, list) else v for name, v in more.items()}
        parts.append((of, [point(of, seconds, **each)]))
    return tables(*parts)


def energetic(size: str, scope: str, *joules: float | None) -> Tables:
    found = []
    for index, value in enumerate(joules):
        of = sized(size, host=f"mac-{index}")
        key = {name: of[name] for name in claims_key()} | {"point": 0, "name": "meter"}
        line = {
            "scope": scope,
            "energy_per_sample_j": value,
            "energy_j": value,
            "window_s": 1.0,
            "reason": None if value else "root only",
        }
        found.append(tables((of, [point(of, 0.01)]), energy=[key | line]))
    return together(*found)


def launched(size: str, cold_s: float | None, wait_s: float | None, spread: float = 1.01) -> Tables:
    of = sized(size, "kernel_launch")
    cold = (
        {}
        if cold_s is None
        else {
            "cold_median_s": cold_s,
            "cold_low_s": cold_s / spread,
            "cold_high_s": cold_s * spread,
            "cold_n": 10,
        }
    )
    wait = {} if wait_s is None else {"launch_and_wait_median_s": wait_s}
    return tables((of, [point(of, None, launch="dispatch", **cold, **wait)]))


def told(size: str, *answers: Any, probe: str = "clocks", **of_cell: Any) -> Tables:
    found = []
    for index, answer in enumerate(answers):
        of = sized(size, host=f"mac-{index}", **of_cell)
        key = {name: of[name] for name in claims_key()}
        line = key | {"probe": probe, "throttled": answer, "power_capped": False}
        found.append(tables((of, []), probes=[line]))
    return together(*found)


def celled(size: str, column: str, *values: Any) -> Tables:
    parts = [(sized(size, host=f"mac-{i}", **{column: v}), []) for i, v in enumerate(values)]
    return tables(*parts)


def halves(size: str, fp16_s: float, fp32_s: float | None) -> Tables:
    """An operation in both formats."""
    parts = []
    for precision, seconds in (("fp16", fp16_s), ("fp32", fp32_s)):
        if seconds:
            of = sized(size, "matmul", precision=precision)
            shape = {"batch": len(size), "m": 2000, "k": 2000, "n": 2000, "batch_size": None}
            parts.append((of, [point(of, seconds, flop_per_s=1e9 / seconds, **shape)]))
    return tables(*parts)


def against_products(size: str, flop_per_s: float, product: float | None) -> Tables:
    backend = f"torch-mps-{size}"
    of = sized(size, backend=backend)
    parts = [(of, [point(of, 0.01, flop_per_s=flop_per_s)])]
    if product:
        other = sized(size, "matmul", backend=backend)
        parts.append((other, [point(other, 0.01, flop_per_s=product, m=64, k=64, n=64)]))
    return tables(*parts)


def from_memory(size: str, bytes_per_s: float, cache: str = "cold") -> Tables:
    backend = f"torch-mps-{size}"
    of, other = (sized(size, module, backend=backend) for module in ("matvec", "matmul"))
    row = point(of, 0.01, flop_per_s=1e9, bytes_per_s=bytes_per_s, cache=cache, m=64, k=64)
    line = {name: of[name] for name in claims_key()} | {
        "quantity": "memory_bandwidth",
        "value": 1e10,
    }
    return tables((of, [row]), (other, [point(other, 0.01, flop_per_s=1e12)]), ceilings=[line])


# quantity -> kind, what is expected, the tables of each verdict in the order of VERDICTS.
FLIPS: dict[str, tuple[dict[str, Any], Sequence[Tables]]] = {
    "rss_growth": (
        {"expect": "more", "value": 1.02},
        [
            grown("rss_bytes", YES, 2),
            grown("rss_bytes", NO, 0.5),
            grown("rss_bytes", OPEN, 1.05, 0.3),
            faulted(ABSENT, []),
        ],
    ),
    "device_memory_growth": (
        {"expect": "at_most", "value": 1.02},
        [
            grown("device_memory_bytes", YES, 1),
            grown("device_memory_bytes", NO, 2),
            grown("device_memory_bytes", OPEN, 1.05, 0.3),
            grown("rss_bytes", ABSENT, 2),
        ],
    ),
    "rss_growth_rate": (
        {"expect": "more", "value": 0},
        [
            grown("rss_bytes", YES, 2),
            grown("rss_bytes", NO, 0.5),
            grown("rss_bytes", OPEN, 1.05, 0.3),
            faulted(ABSENT, []),
        ],
    ),
    "rss_over_theory": (
        {"expect": "less", "value": 10},
        [
            grown("rss_bytes", YES, 2),
            grown("rss_bytes", NO, 9),
            together(
                grown("rss_bytes", OPEN, 2),
                grown("rss_bytes", OPEN, 2, n_parameters=1e3, host="other"),
            ),
            faulted(ABSENT, []),
        ],
    ),
    "memory_over_theory": (
        {"expect": "about", "value": 1.25, "tolerance": 0.25},
        [
            simple(YES, 0.1, device_peak_bytes=20e6, n_parameters=1e6),
            simple(NO, 0.1, device_peak_bytes=60e6, n_parameters=1e6),
            simple(OPEN, 0.1, 0.1, device_peak_bytes=[20e6, 60e6], n_parameters=1e6),
            simple(ABSENT, 0.1, n_parameters=1e6),
        ],
    ),
    "parameters": (
        {"expect": "about", "value": 774, "tolerance": 0.01},
        [
            simple(YES, 0.1, n_parameters=774e6),
            simple(NO, 0.1, n_parameters=124e6),
            simple(OPEN, 0.1, 0.1, n_parameters=[774e6, 124e6]),
            simple(ABSENT, 0.1),
        ],
    ),
    "faults_per_step": (
        {"expect": "more", "value": 0},
        [
            faulted(YES, [7.0] * 20),
            faulted(NO, [0.0] * 20),
            faulted(OPEN, [0.0, 0.0, 9.0] * 4),
            simple(ABSENT, 0.1),
        ],
    ),
    "fault_traffic": (
        {"expect": "at_least", "value": 0.5},
        [  # an M4's data sheet: 120 GB/s
            faulted(YES, [], minor_faulted_bytes_per_step=1e9, major_faulted_bytes_per_step=0),
            faulted(NO, [], minor_faulted_bytes_per_step=0, major_faulted_bytes_per_step=0),
            faulted(OPEN, [], minor_faulted_bytes_per_step=6.1e8, major_faulted_bytes_per_step=0),
            faulted(ABSENT, []),
        ],
    ),
    "step_spread": (
        {"expect": "more", "value": 0.1},
        [
            simple(
                size, 1.0, unsplit_step_n=n, unsplit_step_q25_s=1.0, unsplit_step_q75_s=1 + spread
            )
            for size, n, spread in (
                (YES, 99, 0.3),
                (NO, 99, 0.03),
                (OPEN, 99, 0.11),
                (ABSENT, 3, 1),
            )
        ],
    ),
    "energy_per_sample": (
        {"expect": "less", "value": 100},
        [
            energetic(YES, "gpu", 20.0),
            energetic(NO, "gpu", 300.0),
            energetic(OPEN, "gpu", 99.0),
            energetic(ABSENT, "gpu", None),
        ],
    ),
    "host_power": (
        {"expect": "about", "value": 70, "tolerance": 0.25},
        [
            energetic(YES, "cpu-package", 70.0),
            energetic(NO, "cpu-package", 200.0),
            energetic(OPEN, "cpu-package", 70.0, 200.0),
            energetic(ABSENT, "gpu", 70.0),
        ],
    ),
    "cold_launch": (
        {"expect": "less", "value": 1e-3},
        [
            launched(YES, 1e-4, None),
            launched(NO, 1e-2, None),
            launched(OPEN, 1e-3, None),
            launched(ABSENT, None, 1e-4),
        ],
    ),
    "followup_launch": (
        {"expect": "less", "value": 1e-3},
        [
            launched(YES, None, 1e-4),
            launched(NO, None, 1e-2),
            launched(OPEN, None, 1e-3),
            launched(ABSENT, 1e-4, None),
        ],
    ),
    "cold_over_followup": (
        {"expect": "more", "value": 1},
        [
            launched(YES, 1e-3, 1e-4),
            launched(NO, 1e-5, 1e-4),
            launched(OPEN, 1e-4, 1e-4),
            launched(ABSENT, 1e-4, None),
        ],
    ),
    "heat": (
        {"words": ["throttled"]},
        [
            told(YES, True, True),
            told(NO, False, False),
            told(OPEN, True, False),
            told(ABSENT, None),
        ],
    ),
    "scenario": (
        {"words": ["fits"]},
        [
            celled(size, "scenario_derived", *values)
            for size, values in (
                (YES, ["fits"]),
                (NO, ["offload"]),
                (OPEN, ["fits", "offload"]),
                (ABSENT, [None]),
            )
        ],
    ),
    "support": (
        {"words": ["unsupported"]},
        [
            celled(size, "status", *values)
            for size, values in (
                (YES, ["unsupported", "unsupported"]),
                (NO, ["ok"]),
                (OPEN, ["ok", "unsupported"]),
            )
        ]
        + [tables()],
    ),
    "sample_speed": (
        {"expect": "more", "value": 100},
        [
            simple(YES, 0.01, samples_per_s=400.0),
            simple(NO, 0.01, samples_per_s=4.0),
            simple(OPEN, 0.01, samples_per_s=101.0),
            simple(ABSENT, 0.01),
        ],
    ),
    "fp16_gain": (
        {"expect": "about", "value": 2, "tolerance": 0.5},
        [
            halves(YES, 0.1, 0.2),
            halves(NO, 0.2, 0.1),
            halves(OPEN, 0.1, 0.14),
            halves(ABSENT, 0.1, None),
        ],
    ),
    "of_products": (
        {"expect": "at_least", "value": 0.5},
        [
            against_products(YES, 9e11, 1e12),
            against_products(NO, 1e11, 1e12),
            against_products(OPEN, 5e11, 1e12),
            against_products(ABSENT, 9e11, None),
        ],
    ),
    "memory_bound": (
        {"expect": "more", "value": 1},
        [
            from_memory(YES, 9e9),
            from_memory(NO, 1e6),
            from_memory(OPEN, 1e7),
            from_memory(ABSENT, 9e9, "warm"),
        ],
    ),
}


@pytest.mark.parametrize("quantity", FLIPS)
def test_every_quantity_has_every_verdict(tmp_path: Path, quantity: str) -> None:
    """The same claim on four sets of cells, told apart by their size alone."""
    expects, given = FLIPS[quantity]
    kind = "finding" if "words" in expects else "range"
    modules = ["gpt2", "kernel_launch", "matmul", "matvec"]
    if quantity == "of_products":
        modules = ["gpt2"]  # not the products themselves
    entries = []
    for verdict in VERDICTS:
        of = {"device": "m4-10", "size": verdict}
        if quantity == "fp16_gain":
            of["precision"] = "fp16"
        entry = claim(kind, workloads=modules, quantity=quantity, of=of, cases="typical", **expects)
        if "tolerance" in expects:
            entry["compare"]["tolerance_reason"] = "a test"
        entries.append(entry | {"id": verdict.replace(" ", "-")})
    rows = judged(tmp_path, entries, together(*given))
    assert [(row["verdict"], bool(row["reason"])) for row in rows] == [
        (verdict, True) for verdict in VERDICTS
    ], [row["reason"] for row in rows]
    assert [row["measured_records"] is None for row in rows] == [False, False, False, True]


def test_every_quantity_is_tried_and_used() -> None:
    """Those of trainings and grids are tried with the kinds above; none is for show."""
    with_the_kinds = {
        *("epoch_speed", "step_speed", "throughput", "flop_rate", "over_datasheet", "bound"),
        *("epoch_by_peak", "iteration_over_min_run_time", "peak_memory", "steady_loss"),
        *("least_loss", "convergence_step", "norm_elevated_until", "unusual_share", "fixed_share"),
    }
    shipped = yaml.safe_load((ROOT / "config/claims.yaml").read_text(encoding="utf-8"))["claims"]
    used = {entry["compare"]["quantity"] for entry in shipped if "compare" in entry}
    assert set(FLIPS) <= used
    assert used <= set(QUANTITIES)
    assert set(QUANTITIES) == {*FLIPS, *with_the_kinds}


# -- what stands on a side -----------------------------------------------------------------------


def on(device: Mapping[str, Any], seconds: float, **more: Any) -> Tables:
    """A training of 4 samples a step on a device."""
    of = cell("gpt2", "gpt2", trainer="plain", size="large", **device)
    samples = more.pop("batch_size", 4)
    row = point(
        of,
        seconds,
        n_parameters=1e6,
        batch_size=samples,
        samples_per_step=samples,
        samples_per_s=samples / seconds,
        **more,
    )
    return tables((of, [row]))


ULTRA = {
    "device": "m2-ultra-76",
    "backend": "mlx",
    "source": REFERENCE,
    "host": "studio",
    "device_kind": "gpu",
}
A6000 = {
    "device": "rtx-a6000",
    "backend": "torch-cuda",
    "source": REFERENCE,
    "host": "rack",
    "device_kind": "gpu",
}
PRO = ULTRA | {"device": "m2-pro-19", "host": "mini"}
FASTER_THAN = {"workloads": ["gpt2"], "quantity": "sample_speed", "cases": "all", "expect": "more"}


def test_two_backends_are_compared_on_one_device_alone(tmp_path: Path) -> None:
    """MLX on one Mac is never held against MPS on another."""
    entry = claim(
        "direction",
        **FASTER_THAN,
        devices=["m2-ultra-76"],
        a={"backend": "mlx"},
        b={"backend": "torch-mps"},
    )
    mps = ULTRA | {"backend": "torch-mps"}
    (row,) = judged(tmp_path / "one", [entry], together(on(ULTRA, 0.01), on(mps, 0.02)))
    assert row["verdict"] == YES and row["measured_value"] == pytest.approx(2)
    elsewhere = mps | {"device": "m2-max-38", "host": "book"}
    (row,) = judged(tmp_path / "two", [entry], together(on(ULTRA, 0.01), on(elsewhere, 0.02)))
    assert row["verdict"] == ABSENT
    assert "of Apple M2 Ultra, 76 GPU cores by torch-mps is part of these" in row["reason"]


def test_batches_may_differ_only_where_it_is_asked_for(tmp_path: Path) -> None:
    """Per sample: 8 samples in 0.02 s against 4 in 0.02 s are twice as fast."""
    given = together(on(ULTRA, 0.02, batch_size=8), on(A6000, 0.02))
    pair = {"pairs": [["m2-ultra-76", "rtx-a6000"]], "a": {}, "b": {}}
    same = claim("direction", **FASTER_THAN, **pair)
    free = same | {"id": "free", "compare": same["compare"] | {"any_batch": True}}
    rows = judged(tmp_path, [same, free], given)
    assert [row["verdict"] for row in rows] == [ABSENT, YES]
    assert rows[1]["measured_value"] == pytest.approx(2)


def test_price_decides_who_is_compared(tmp_path: Path) -> None:
    """An M2 Ultra costs about what an RTX A6000 does; an M2 Pro less than half of it."""
    sides = {"a": {"like": {"vendor": "nvidia"}}, "b": {"like": {"vendor": "apple"}}}
    entry = claim(
        "ratio",
        **FASTER_THAN | {"expect": "about"},
        **sides,
        similar_price=1.5,
        value=3.5,
        tolerance=0.3,
        tolerance_reason="a test",
        pairs=[["rtx-a6000", "m2-ultra-76"]],
    )
    given = together(on(A6000, 0.01), on(ULTRA, 0.035), on(PRO, 0.5))
    (row,) = judged(tmp_path / "ultra", [entry], given)
    assert row["verdict"] == YES and row["analogue_says"] is None
    other = entry | {"compare": entry["compare"] | {"pairs": [["rtx-a6000", "m2-pro-19"]]}}
    (row,) = judged(tmp_path / "pro", [other], given)
    assert (row["verdict"], row["analogue_says"]) == (ABSENT, "agrees")
    assert "no two devices have prices within 1.5 times" in row["reason"]


def test_near_capacity_is_held_against_room_to_spare(tmp_path: Path) -> None:
    """Another batch and another model are no obstacle where the claim says what must agree."""
    parts = []
    for scenario, counts in (("near-capacity", [90.0] * 12), ("fits", [5.0] * 12)):
        of = sized(scenario, scenario_applied=scenario)
        row = point(of, 0.01, batch_size=len(scenario), n_parameters=len(scenario))
        parts.append(tables((of, [row]), **courses(of, faults=counts)))
    entry = claim(
        "difference",
        workloads=["gpt2"],
        quantity="faults_per_step",
        devices=["m4-10"],
        a={"scenario_applied": "near-capacity"},
        b={"scenario_applied": "fits"},
        same=["module", "precision"],
        cases="typical",
        expect="more",
    )
    (row,) = judged(tmp_path, [entry], together(*parts))
    assert (row["verdict"], row["measured_value"]) == (YES, 85)


def test_a_printed_number_of_each_device_is_the_measure(tmp_path: Path) -> None:
    """Table 6: 0.9080 ms cold on an M2 Max; the unit is the column's."""
    of = cell("kernel_launch", "launch", **ULTRA | {"device": "m2-max-38"})
    times = {"cold_median_s": 0.908e-3, "cold_low_s": 0.9e-3, "cold_high_s": 0.91e-3, "cold_n": 10}
    entry = claim(
        "range",
        workloads=["kernel_launch"],
        quantity="cold_launch",
        of={},
        value=1,
        devices=["m2-max-38"],
        cases="all",
        expect="about",
        tolerance=0.1,
        tolerance_reason="a test",
        over_printed={"table": "table6_kernel_launch", "column": "cold_launch_ms"},
    )
    (row,) = judged(tmp_path, [entry], tables((of, [point(of, None, **times)])))
    assert row["verdict"] == YES and row["measured_value"] == pytest.approx(1)
    assert row["unit"] == "times the printed" and row["analogue_says"] is None


def test_other_sizes_are_analogues_of_the_papers(tmp_path: Path) -> None:
    """A small model of this host stands beside a claim about large ones, and decides nothing."""
    entry = claim(
        "range",
        workloads=["gpt2"],
        quantity="parameters",
        cases="all",
        expect="less",
        value=800,
        of={"size": ["large", "xl"], "like": {"size": None}},
    )
    nano = cell("gpt2", "gpt2-nano", size="nano")
    (row,) = judged(tmp_path / "small", [entry], tables((nano, [point(nano, 1, n_parameters=2e5)])))
    assert (row["verdict"], row["analogue_says"]) == (ABSENT, "agrees")
    assert "no gpt2 cell with size large or xl is part of these results" in row["reason"]
    large = cell("gpt2", "gpt2-large", size="large")
    (row,) = judged(
        tmp_path / "large", [entry], tables((large, [point(large, 1, n_parameters=7e8)]))
    )
    assert (row["verdict"], row["analogue_says"]) == (YES, None)


def test_times_of_a_mechanism_check_count_for_nothing(tmp_path: Path) -> None:
    entry = claim(
        "range",
        workloads=["gpt2"],
        quantity="sample_speed",
        cases="all",
        expect="more",
        value=1,
        of={},
    )
    of = cell("gpt2", "gpt2", flags="noisy;offload_on_cpu")
    (row,) = judged(tmp_path, [entry], tables((of, [point(of, 0.01, samples_per_s=400.0)])))
    assert row["verdict"] == ABSENT and "a mechanism check" in row["reason"]


def whole_paper() -> Tables:
    """Everything that config/paper.yaml measures, on all seven devices; the values mean nothing."""
    macs = {"m2-ultra-76": 192, "m2-max-38": 64, "m2-pro-19": 32}
    cards = ("rtx-4090", "rtx-a6000", "rtx-2080-ti", "quadro-rtx-4000")
    parts: list[Tables] = []

    def add(module: str, device: str, backend: str, **more: Any) -> None:
        scenario = more.get("scenario_applied", "fits")
        batch = more.pop("batch_size", 4)
        name = f"{module}-{more.get('size')}-{more.get('trainer')}-{batch}-{scenario}"
        of = cell(
            module,
            name,
            device=device,
            backend=backend,
            source=REFERENCE,
            host=f"host-of-{device}",
            rss_at_start_bytes=1e8,
            batch_size=batch,
            **{"device_kind": "gpu", "scenario_applied": scenario, "scenario_derived": scenario}
            | more,
        )
        row = point(
            of,
            0.01,
            batch_size=batch,
            n_parameters=1e9,
            samples_per_s=batch / 0.01,
            flop_per_s=1e12,
            device_peak_bytes=2e10,
            unsplit_step_n=30,
            unsplit_step_q25_s=0.009,
            unsplit_step_q75_s=0.011,
            minor_faulted_bytes_per_step=4096,
            major_faulted_bytes_per_step=0,
        )
        key = {column: of[column] for column in claims_key()}
        meter = {"point": 0, "name": "meter", "scope": "gpu", "energy_per_sample_j": 20.0}
        heat = {"probe": "clocks", "throttled": False}
        found = courses(of, rss_bytes=ramp(2), faults=[3.0] * 30)
        for sample in found["samples"]:
            sample["device_memory_bytes"] = 1e9
        parts.append(tables((of, [row]), energy=[key | meter], probes=[key | heat], **found))

    def add_operations(device: str, backend: str) -> None:
        for module in ("matmul", "matvec", "vjp"):
            for precision in ("fp32", "fp16"):
                of = cell(
                    module,
                    module,
                    device=device,
                    backend=backend,
                    source=REFERENCE,
                    host=f"host-of-{device}",
                    precision=precision,
                    device_kind="gpu",
                )
                shapes = [{"batch": b, "m": m, "k": m, "n": m} for b, m in ((1, 500), (8, 2000))]
                points = [point(of, 0.01, flop_per_s=1e12, batch_size=None, **s) for s in shapes]
                parts.append(tables((of, points)))
        of = cell(
            "kernel_launch",
            "launch",
            device=device,
            backend=backend,
            source=REFERENCE,
            host=f"host-of-{device}",
            device_kind="gpu",
        )
        row = point(
            of,
            None,
            launch="empty kernel",
            batch_size=None,
            cold_median_s=1e-3,
            cold_low_s=9e-4,
            cold_high_s=1.1e-3,
            launch_and_wait_median_s=1e-4,
        )
        parts.append(tables((of, [row])))

    for device in (*macs, *cards):
        backends = ("torch-mps", "mlx") if device in macs else ("torch-cuda",)
        small = device in ("rtx-2080-ti", "quadro-rtx-4000")
        room = {"scenario_applied": "offload"} if small else {}
        xl = {"scenario_applied": "offload"} if device in cards else {}
        for backend in backends:
            add_operations(device, backend)
            for batch in (2, 4, 8):
                add("gpt2", device, backend, size="large", trainer="plain", batch_size=batch)
            add("cnn", device, backend, trainer="epochs", network="cnn")
            if backend != "mlx":
                add("gpt2", device, backend, size="large", trainer="hf", batch_size=16)
                add("gpt2", device, backend, size="xl", trainer="hf", batch_size=16, **xl)
                add("whisper", device, backend, size="medium", trainer="hf", **room)
        if device in ("rtx-4090", "m2-max-38"):
            how = "offload" if device == "rtx-4090" else "near-capacity"
            size, batch = ("medium", 4) if device == "rtx-4090" else ("large", 32)
            add(
                "whisper",
                device,
                backends[0],
                size=size,
                trainer="hf",
                batch_size=batch,
                scenario_applied=how,
            )
    return together(*parts)


def test_every_claim_of_the_paper_is_answered_by_its_own_experiment(tmp_path: Path) -> None:
    """With all its devices measured none is left for want of a cell but what has to be here."""
    shipped = yaml.safe_load((ROOT / "config/claims.yaml").read_text(encoding="utf-8"))["claims"]
    asked = [entry for entry in shipped if entry["id"].startswith(("paper-", "summary-"))]
    left = {
        row["id"]: row["reason"]
        for row in judged(tmp_path, asked, whole_paper())
        if row["verdict"] == ABSENT and row["kind"]
    }
    here = {
        "paper-host-70-w",
        "paper-no-amp-on-apple",
        "paper-gpt2-lighter-than-whisper",
        "paper-runtime-memory-slightly-larger",
        "paper-matvec-bandwidth-bound",
        "paper-parameters-whisper-medium",
        "paper-parameters-whisper-large",
        "paper-parameters-gpt2-large",
        "paper-parameters-gpt2-xl",
    }
    assert set(left) == here, {name: why for name, why in left.items() if name not in here}


# -- the sources' own numbers --------------------------------------------------------------------


REGISTRY = registry.load(ROOT / "config/devices.yaml")


@functools.cache
def consistency(published: Path = ROOT / "config/published") -> dict[str, tuple[str, str]]:
    """Claim id -> what the printed numbers say of it, of the shipped claims."""
    devices = REGISTRY
    tables_ = Published(published, devices)
    listed = claims_file.load(ROOT / "config/claims.yaml", devices, tables_)
    found = claim_consistency.answers(listed, tables_, "claims.yaml")
    return {name: (answer.word, answer.reason) for name, answer in found.items()}


def test_the_sources_disagree_with_themselves_where_they_do() -> None:
    found = consistency()
    for name, word, says in (
        ("paper-theoretical-memory", INCONSISTENT, "12.016 over 769 × 0.015625 = 1"),
        ("paper-theoretical-memory", INCONSISTENT, "12.016 over 769 × 0.0149012 = 1.05"),
        (
            "paper-scenario-3-whisper-large",
            INCONSISTENT,
            "scenario 2 in Feng et al. 2025 (transcription 1)",
        ),
        (
            "paper-scenario-2-gpt2-xl",
            INCONSISTENT,
            "scenario 3 in Feng et al. 2025 (transcription 2)",
        ),
        ("paper-optimized-kernels-30-40", INCONSISTENT, "3.239 over 2.710 = 1.2;"),
        ("paper-scenario-1-nvidia-faster", INCONSISTENT, "2.710/8 over 2.771/8 = 0.978"),
        ("paper-a6000-slightly-below-ultra", CONSISTENT, "2.771 over 2.710 = 1.02"),
        ("paper-energy-similar-to-4090", CONSISTENT, "114.86 over 108.58 = 1.06"),
        ("paper-energy-much-better-than-a6000", CONSISTENT, "114.86 over 212.39 = 0.541"),
        ("paper-energy-superior", INCONSISTENT, "2 of 4 agree"),
        ("paper-cold-slower", CONSISTENT, "7 of 7 agree"),
        ("paper-3x-4x-slower-at-similar-price", INCONSISTENT, "0 of 2 agree"),
        ("summary-throttling", INCONSISTENT, "thermal-related issues"),
        ("paper-gpt2-lighter-than-whisper", INCONSISTENT, "12.094 over 12.016"),
        ("paper-no-amp-on-apple", "", "no AMP value of an Apple chip"),
        ("paper-lower-raw-compute", CONSISTENT, "7 over 83"),
        ("paper-unified-less-latency-and-energy", INCONSISTENT, "0 of 12 agree"),
        ("paper-sizes-as-large-as-possible", INCONSISTENT, "NVIDIA GeForce RTX 4090: 4 over 4 = 1"),
        (
            "paper-same-batch-size",
            INCONSISTENT,
            "batch size 8 and 4 and 2 in Feng et al. 2025, Table 4",
        ),
        (
            "paper-mlx-faster-than-mps",
            CONSISTENT,
            "M2 Max: mlx against torch-mps: 2.924 over 3.645",
        ),
        ("paper-memory-costs-more-with-nvidia", CONSISTENT, "10 of 12 agree"),
        ("wide-deep-report-20x-expected", CONSISTENT, "82.6 over 4.26 = 19.4"),
        ("wide-deep-report-consistent-20x", INCONSISTENT, "deep model B"),
        ("daniel2023-theoretically-15-percent", CONSISTENT, "10.7 over 9.3 = 1.15"),
        ("daniel2023-mlp-no-gain-from-gpu", INCONSISTENT, "any type of model"),
    ):
        assert found[name][0] == word and says in found[name][1], (name, found[name])
    assert all(reason for _, reason in found.values())


@pytest.mark.parametrize(
    ("table", "old", "new", "name", "was", "says"),
    [
        ("table4_pass_time", "2.710", "3.910", "paper-mlx-faster-than-mps", CONSISTENT, "3.910"),
        (
            "table4_pass_time",
            "2.771",
            "0.400",
            "paper-scenario-1-nvidia-faster",
            INCONSISTENT,
            "6 of 6",
        ),
        (
            "table4_pass_time",
            "2.771",
            "0.790",
            "paper-3x-4x-slower-at-similar-price",
            INCONSISTENT,
            "3.43",
        ),
        ("table5_energy", "108.58", "58.58", "paper-energy-similar-to-4090", CONSISTENT, "58.58"),
        (
            "table6_kernel_launch",
            "0.0225,0.0036",
            "0.0025,0.0036",
            "paper-cold-slower",
            CONSISTENT,
            "6 of 7",
        ),
        (
            "table2_workloads",
            "GPT2-large,774,12.094",
            "GPT2-large,774,11.000",
            "paper-gpt2-lighter-than-whisper",
            INCONSISTENT,
            "24.344",
        ),
        (
            "table1_devices",
            "27,6599",
            "27,9599",
            "paper-3x-4x-slower-at-similar-price",
            INCONSISTENT,
            None,
        ),
        (
            "table3_configurations",
            "3,Whisper-large",
            "2,Whisper-large",
            "paper-scenario-3-whisper-large",
            INCONSISTENT,
            "scenario 2",
        ),
        (
            "wide_deep_report_speedups",
            "deep model B,,16x for the deep model B,16,16",
            "deep model B,,16x for the deep model B,19,19",
            "wide-deep-report-consistent-20x",
            INCONSISTENT,
            "19",
        ),
    ],
)
def test_consistency_follows_the_published_row(
    tmp_path: Path, table: str, old: str, new: str, name: str, was: str, says: str | None
) -> None:
    """One number of a table is altered in a copy; what it says of a statement turns."""
    folder = tmp_path / "published"
    shutil.copytree(ROOT / "config/published", folder)
    path = folder / f"{table}.csv"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    assert consistency()[name][0] == was
    if says is None:  # no two devices of similar price are left to compare
        with pytest.raises(UserError, match="no two rows belong together"):
            consistency(folder)
        return
    word, reason = consistency(folder)[name]
    # Two checks of GPT-2 against Whisper: the altered one turns, the other stays.
    expected = was if "GPT2-large" in old else {CONSISTENT: INCONSISTENT}.get(was, CONSISTENT)
    assert word == expected and says in reason, reason


def test_two_statements_can_hold_or_not(tmp_path: Path) -> None:
    """Their expectations are compared, and neither is called right."""
    less = GROWS | {
        "id": "shrinks",
        "compare": GROWS["compare"] | {"expect": "less"},
        "consistency": [{"kind": "claim", "id": "trend"}],
    }
    more = GROWS | {"id": "again", "consistency": [{"kind": "claim", "id": "trend"}]}
    rows = judged(tmp_path, [GROWS, less, more], grid({1: 0.01, 8: 0.02}))
    assert [row["consistency"] for row in rows] == [None, INCONSISTENT, CONSISTENT]
    assert [row["verdict"] for row in rows] == [YES, NO, YES]
    assert "states above 1, this one below 1" in rows[1]["consistency_reason"]


# -- whose cells decide --------------------------------------------------------------------------


def test_an_analogue_changes_no_verdict(tmp_path: Path) -> None:
    """Two other devices that do what is claimed of named ones stand beside it."""
    parts = []
    h200 = {
        "device": "h200",
        "backend": "torch-cuda",
        "device_kind": "gpu",
        "source": REFERENCE,
        "host": "lab",
    }
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
        "cell": "desk/cpu-x/torch-cpu/grid/auto/fp32",
        "device": "cpu-x",
        "backend": "torch-cpu",
        "point": "{}",
        "metric": "unsplit_step_s",
        "group": "g",
        "values": [1.0, 1.01, 0.99] * 4,
        "records": [],
    }
    run = {"added_at": "2026-01-01", "source": "x", "figures": [figure]}
    floor = tmp_path / "desk.json"
    floor.write_text(
        json.dumps({"floor_version": noise_floors.VERSION, "host": "desk", "runs": [run]})
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
    entry = claim(
        "direction",
        workloads=["mlp", "lstm"],
        quantity="epoch_speed",
        batch_sizes=[32, 128],
        a={"device": "m2-max-30"},
        b={"device": "cpu"},
        cases="all",
        expect="more",
    )
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

PRINTED = {"table": "table4_pass_time", "column": "pass_time_s"}
PUBLISHED = {"table": "daniel2023_speedups", "statement": "M2 Max is always faster than the M1"}


def test_a_published_row_gives_devices_workloads_and_value(tmp_path: Path) -> None:
    """The number is read from config/published, where the page's tables read it too."""
    entry = claim(
        "ratio",
        workloads=["mlp", "cnn", "lstm"],
        quantity="epoch_speed",
        a={},
        b={},
        cases="all",
        expect="about",
        tolerance=0.1,
        tolerance_reason="one run",
    )
    statement = "faster up to 1.77 times for MLP with a batch size of 1024"
    del entry["source"]
    entry["published"] = {"table": "daniel2023_speedups", "statement": statement}
    (row,) = judged(tmp_path, [entry], tables())
    assert row["published_devices"] == "m2-max-30;p100-pcie-16gb"
    assert (row["published_value"], row["published_unit"]) == ("1.77", "times")
    assert (
        row["claimed_low"] == pytest.approx(1.77 / 1.1) and "Daniel 2023, Results" in row["source"]
    )


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"id": "Bad Id"}, "claims.0.id: is 'Bad Id'; expected text that matches"),
        ({"verdict": "reproduced"}, "claims.0.verdict: unknown key"),
        ({"untestable": "why"}, "expected either compare or untestable"),
        ({"published": PUBLISHED}, "expected either source or published"),
        ({"compare": {"kind": "trends"}}, "kind: is 'trends'"),
        ({"compare": {"along": None}}, "claims.0.compare.along: is missing"),
        ({"compare": {"a": {}}}, "claims.0.compare.a: unknown key; expected one of: kind"),
        ({"compare": {"expect": "at_most"}}, "compare.expect: is 'at_most'; expected one of: more"),
        ({"compare": {"quantity": "througput"}}, "did you mean 'throughput'?"),
        ({"compare": {"workloads": ["transformer_gird"]}}, "did you mean 'transformer_grid'?"),
        ({"compare": {"of": {"device": "m4-100"}}}, "no device 'm4-100'; did you mean 'm4-10'?"),
        ({"compare": {"of": {"vendor": "appel"}}}, "did you mean 'apple'?"),
        ({"compare": {"tolerance": 0.1}}, "compare.tolerance_reason: is missing"),
        ({"source": None, "published": PUBLISHED | {"statement": "x"}}, "no row of"),
        ({"source": None, "published": PUBLISHED | {"table": "x"}}, "x.csv: cannot be read"),
        (
            {"source": None, "published": PUBLISHED | {"table": "table1_devices"}},
            "table1_devices.csv has no statements",
        ),
        ({"compare": {"devices": ["m4-100"]}}, "trend.compare.devices: no device 'm4-100'"),
        (
            {
                "consistency": [
                    {"kind": "ratio", "a": PRINTED | {"table": "table9"}, "expect": "more"}
                ]
            },
            "trend.consistency.0.table: ",
        ),
        (
            {
                "consistency": [
                    {"kind": "ratio", "a": PRINTED | {"column": "pas"}, "expect": "more"}
                ]
            },
            "trend.consistency.0.pas: table4_pass_time has no such column",
        ),
        (
            {
                "consistency": [
                    {"kind": "ratio", "a": PRINTED | {"where": {"device": "m9"}}, "expect": "more"}
                ]
            },
            "trend.consistency.0.where: no row of table4_pass_time has device m9",
        ),
        ({"consistency": [{"kind": "ratio", "a": PRINTED}]}, "consistency.0.expect: is missing"),
        ({"consistency": [{"kind": "claim", "id": "x"}]}, "consistency.0.id: no claim 'x'"),
        (
            {"consistency": [{"kind": "ratios"}]},
            "claims.0.consistency.0.kind: is 'ratios'; expected",
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
    bad = GROWS | {"compare": GROWS["compare"] | {"quantity": "x", "of": {"device": "y"}}}
    with pytest.raises(UserError) as error:
        judged(tmp_path, [bad, GROWS], tables())
    assert len(str(error.value).splitlines()) == 3  # a quantity, a device, an id used twice


def test_the_shipped_claims_name_every_printed_statement() -> None:
    """No statement of a published table is without its claim."""
    listed = yaml.safe_load((ROOT / "config/claims.yaml").read_text(encoding="utf-8"))["claims"]
    named = {
        (c["published"]["table"], c["published"]["statement"]) for c in listed if "published" in c
    }
    for name in ("feng2025_statements", "wide_deep_report_speedups", "daniel2023_speedups"):
        rows = table_files.rows(table_files.read(ROOT / f"config/published/{name}.csv"))
        assert {(name, row["statement"]) for row in rows} <= named


# -- the stage and the page ----------------------------------------------------------------------


def test_stage_and_page_survive_empty_tables(tmp_path: Path) -> None:
    """Nothing was measured: every shipped claim is there, and none is decided."""
    results = make_results(tmp_path, [])
    rows = table_files.rows(table_files.read(results / "tables/claims.csv"))
    assert len(rows) > 110 and {row["verdict"] for row in rows} == {ABSENT}
    assert all(row["reason"] for row in rows)
    make_page(results)
    shown = Page((results / "study.html").read_text(encoding="utf-8"))
    assert f"Of {len(rows)} claims: 0 reproduced, 0 contradicted, 0 inconclusive" in "".join(
        shown.text["claims"]
    )


def test_page_shows_verdicts_with_their_reasons(tmp_path: Path) -> None:
    results = make_results(tmp_path, [])
    given = grid({1: 0.01, 8: 0.02})
    for name, rows in given.items():
        if rows:
            table_files.write(tmp_path / f"{name}.csv", rows)
    lines = judged(tmp_path / "small", [GROWS, TWENTY, BOTH], given)
    assert [line["verdict"] for line in lines] == [YES, ABSENT, ABSENT]
    shutil.copy(tmp_path / "small/claims.csv", results / "tables/claims.csv")
    make_page(results)
    shown = Page((results / "study.html").read_text(encoding="utf-8"))
    assert '<details class="more"><summary>more</summary>' in shown.html
    assert "Of 3 claims: 1 reproduced, 0 contradicted, 0 inconclusive, 2 not testable" in "".join(
        shown.text["claims"]
    )
    table = (results / "figures/table-claims.md").read_text(encoding="utf-8")
    assert (
        "| reproduced |" in table
        and "grid on cpu-x (torch-cpu), 2 layers" in table
        and "above 1 ×" in table
    )


def whisper(device: str, backend: str, step_s: float, joules: float, **more: Any) -> dict[str, Any]:
    """The paper's Whisper-medium at batch 4, on one of its devices."""
    made = of_the_paper(
        "whisper",
        "medium",
        4,
        device=device,
        backend=backend,
        joules=joules,
        host=f"host-of-{device}",
        **more,
    )
    scale = step_s / 0.4
    times = made["points"][0]["times"]
    times |= {name: [scale * value for value in values] for name, values in times.items()}
    return made


def test_the_papers_devices_decide_its_claims(tmp_path: Path) -> None:
    """Records of all four devices of Table 5, over the real aggregation; one device short, none."""
    made = [
        whisper("rtx-4090", "torch-cuda", 0.4, 108.58),
        whisper("rtx-a6000", "torch-cuda", 0.6, 212.39),
        whisper("m2-ultra-76", "torch-mps", 1.5, 114.86),
        whisper("m2-max-38", "torch-mps", 3.0, 129.30),
    ]
    results = make_results(tmp_path / "all", [], reference=made)
    rows = {
        row["id"]: row for row in table_files.rows(table_files.read(results / "tables/claims.csv"))
    }
    for name, verdict in (
        ("paper-energy-superior", OPEN),  # by 6 % against the RTX 4090, within noise
        ("paper-energy-much-better-than-a6000", OPEN),
        ("paper-scenario-1-whisper-medium", YES),
        ("paper-parameters-whisper-medium", ABSENT),  # no device named, and none of them is here
        ("paper-near-capacity-slower", ABSENT),
        ("paper-table5", YES),  # joules of one of an iteration's 4 samples
    ):
        assert rows[name]["verdict"] == verdict, rows[name]
    assert rows["paper-parameters-whisper-medium"]["analogue_says"] == "agrees"
    # M2 Pro trains GPT2-large alone, so that the answer on all SoCs is one in part.
    partly = rows["paper-scenario-1-nvidia-faster"]
    assert partly["verdict"] == ABSENT and "Apple M2 Pro, 19 GPU cores was not" in partly["reason"]
    assert partly["measured_value"] == pytest.approx(0.4)  # of an M2 Ultra against an RTX A6000
    costly = [*made[:2], whisper("m2-ultra-76", "torch-mps", 1.5, 900.0), made[3]]
    results = make_results(tmp_path / "costly", [], reference=costly)
    rows = {
        row["id"]: row for row in table_files.rows(table_files.read(results / "tables/claims.csv"))
    }
    assert rows["paper-energy-superior"]["verdict"] == NO
    dear = rows["paper-table5"]
    assert dear["verdict"] == OPEN and "3 agree, 1 are against it" in dear["reason"], dear
    short = make_results(tmp_path / "short", [], reference=made[:3])
    rows = {
        row["id"]: row for row in table_files.rows(table_files.read(short / "tables/claims.csv"))
    }
    assert rows["paper-energy-similar-to-4090"]["verdict"] == ABSENT
    assert (
        "Apple M2 Max, 38 GPU cores was not measured"
        in rows["paper-energy-similar-to-4090"]["reason"]
    )


def test_section_marks_what_is_no_verdict_and_knows_its_cells(tmp_path: Path) -> None:
    """Two backends of this host: analogues of MLX against MPS, shown with their cells."""
    results = make_results(tmp_path, [training(0.010), training(0.030, backend="mlx")])
    book = Book(results / "figures")
    book.section("claims")
    claims_section.add(load(results), book)
    note, counts, *_ = book.sections[-1].blocks
    assert "Not counted among them: by the sources' own numbers" in note.text
    heads = [(column.head, column.unit) for column in counts.table.columns]
    assert heads[-2:] == [("consistent", "no verdict"), ("inconsistent", "no verdict")]
    assert [value.text for value in counts.rows[-1]][:2] == ["all", note.text.split()[1]]
    text = (results / "figures/table-claims.csv").read_text(encoding="utf-8")
    lines = list(csv.DictReader(io.StringIO(text)))
    (at,) = [
        i
        for i, line in enumerate(lines)
        if "The MLX framework has a better" in line["Claim and source"]
    ]
    assert lines[at]["Verdict"] == ABSENT
    assert lines[at]["Analogue (no verdict)"].startswith("disagrees")
    own = lines[at]["Sources' own numbers (no verdict)"]
    assert own.startswith("consistent: time of a pass, MLX over MPS")
    facets, numbers = book.facets.listed(), book.sections[-1].blocks[-1].of[at].split()
    backends = {facets["backend"][facets["cells"][int(number)][1]][0] for number in numbers}
    assert backends == {"torch-cpu", "mlx"}
    wrong = (results / "figures/table-claims-inconsistent.md").read_text(encoding="utf-8")
    assert "30%-40%" in wrong and "3.239 over 2.710 = 1.2" in wrong
    assert "read as training with MLX against MPS" in wrong  # what is our reading stands beside it


@pytest.mark.slow
def test_rule_judges_again_when_the_claims_change(checkout: Checkout) -> None:
    """Claims, schema and code are inputs of the rule, and the page waits for it."""
    text = checkout.snakemake("-n", "-p", "results/report.html").stdout
    blocks = {
        name: part
        for part in text.split("\n\n")
        for name in ("claims", "draw")
        if f"rule {name}:" in part
    }
    for name in (
        "config/claims.yaml",
        "claims.schema.yaml",
        "siliconprof/claims/cases.py",
        "config/published/daniel2023_speedups.csv",
        "results/tables/curves.csv",
    ):
        assert name in blocks["claims"]
    assert "results/tables/claims.csv" in blocks["draw"]
