"""Expected against actual time, and what bounds a grid: from records over the real stages.

Also the columns and tables of whole trainings and sweeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import siliconprof
from siliconprof import plugins
from siliconprof.analyse import aggregate, expected
from siliconprof.session import quality
from siliconprof.stats import line_fit
from synthetic_cells import bandwidth, fastest, grid, network, sweep, whole_training
from synthetic_results import (
    CPU,
    GPU,
    H200,
    base_record,
    kernel_launch,
    make,
    repeated,
    table,
)

PEAK = 67e12  # of an H200 in fp32, outside tensor cores, by the registry
PRODUCTS, MEMORY = 1e12, 1e11  # FLOP/s and bytes/s that were measured
SMALL = {"n_layer": 2, "n_embd": 64, "n_head": 4, "d_ff": 168}
LARGE = {"n_layer": 2, "n_embd": 2048, "n_head": 16, "d_ff": 5464}


def point(
    shape: Mapping[str, int], batch_size: int, seconds: float | None, **more: Any
) -> dict[str, Any]:
    """A point of a grid, as `transformer_grid` leaves it; without seconds it was not measured."""
    seq_len, vocab_size, d = 64, 512, shape["n_embd"]
    layer = 4 * d * d + 3 * d * shape["d_ff"] + 2 * d
    n_parameters = shape["n_layer"] * layer + 2 * vocab_size * d + d
    tokens = batch_size * seq_len
    sizes = {"seq_len": seq_len, "batch_size": batch_size, "vocab_size": vocab_size}
    counts = {"tokens_per_step": tokens, "samples_per_step": batch_size}
    counts |= {"n_parameters": n_parameters, "head_dim": d // shape["n_head"]}
    flops = (6 * (n_parameters - vocab_size * d) + 12 * shape["n_layer"] * d * seq_len) * tokens
    times = {} if seconds is None else {"step_s": [seconds * (0.99 + 0.01 * i) for i in range(3)]}
    return {
        "params": dict(shape) | sizes | counts,
        "times": times,
        "flops": float(flops),
        "bytes": None,
        "memory": {"predicted_bytes": 20 * n_parameters},
    } | more


def beside(launch_s: float | None = 2e-6, memory: float | None = MEMORY, **axes: Any) -> list[Any]:
    """The cells that ceilings are made of."""
    cells = [fastest(PRODUCTS, **axes)]
    if memory:
        cells.append(bandwidth(memory, 4 * memory, **axes))
    if launch_s:
        launches = kernel_launch(**axes)
        launches["points"][0]["times"]["amortised_s"] = [launch_s] * 9
        cells.append(launches)
    return cells


analysed, grid = partial(make, last=expected), partial(grid, workload="grid")


def scaled(results: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(lines of scaling.csv for the model shapes, the backend's one)."""
    lines = table(results, "scaling")
    shapes, (backend,) = (
        [line for line in lines if line["about"] == about] for about in ("model shape", "backend")
    )
    return shapes, backend


# -- expected against actual ---------------------------------------------------------------------


def test_expected_is_operations_over_peak_and_over_the_measured_ceiling(tmp_path: Path) -> None:
    on_gpu = point(SMALL, 4, 5e-3)
    cells = [*beside(**GPU), grid([on_gpu], **GPU), grid([point(SMALL, 4, 2e-3)])]
    results = analysed(tmp_path, cells, devices=(CPU, H200))
    gpu, cpu = table(results, "expected")
    flops = on_gpu["flops"]
    assert gpu["expected_datasheet_s"] == pytest.approx(flops / PEAK)
    assert "H200" in gpu["expected_datasheet_source"]
    assert gpu["expected_ceiling_s"] == pytest.approx(flops / PRODUCTS, rel=0.01)
    assert gpu["expected_ceiling_how"] == "torch-cuda, matmul-small: 1×512×512×512, fp32"
    assert gpu["actual_s"] == pytest.approx(5e-3)
    assert gpu["actual_over_datasheet"] == pytest.approx(5e-3 * PEAK / flops)
    assert gpu["actual_over_ceiling"] == pytest.approx(5e-3 / gpu["expected_ceiling_s"])
    assert gpu["tokens_per_s"] == pytest.approx(4 * 64 / 5e-3)
    # A CPU's data sheet has no peak, and nobody multiplied on it: None, each with its reason.
    assert cpu["expected_datasheet_s"] is cpu["expected_ceiling_s"] is None
    assert cpu["actual_over_datasheet"] is cpu["actual_over_ceiling"] is None
    assert "not in the registry" in cpu["expected_datasheet_reason"]
    assert cpu["expected_ceiling_reason"]


# -- verdicts ------------------------------------------------------------------------------------


def steps(shape: Mapping[str, int], fixed_s: float, per_sample_s: float) -> list[dict[str, Any]]:
    """A shape at three batch sizes, on a straight line."""
    return [point(shape, b, fixed_s + per_sample_s * b) for b in (1, 4, 16)]


LAUNCHES = 397  # of two layers in torch on a CPU, see the last tests
FEW = LAUNCHES * 2e-6
# Of the large shape: what its step moves at least, all but what the cache of 32 MiB holds.
MOVED_S = 3.8e9 / MEMORY
UNSURE = [
    point(SMALL, batch, 0, times={"step_s": [seconds * factor for factor in (0.75, 1.0, 1.3)]})
    for batch, seconds in ((1, 1.5 * FEW), (2, 2.2 * FEW))
]
TWO_SHAPES = [*UNSURE, *steps(SMALL | {"n_layer": 3}, FEW / 50, FEW)]
BOTH = [*steps(SMALL, 1.5 * FEW, 1e-5), *steps(LARGE, 1.5 * MOVED_S, 1e-2)]
DOUBTFUL = {"launch_s": 5e-7, "memory": MEMORY / 3}
VERDICTS: list[tuple[list[Any], dict[str, Any] | None, str, str]] = [
    # points, what is known of launches and memory, the verdict, a part of its words
    (steps(SMALL, 1.5 * FEW, 1e-5), {}, "launch-bound", "Launch-bound in 1 of 1"),
    # The same steps, and launches that cost next to nothing.
    (steps(SMALL, 1.5 * FEW, 1e-5), {"launch_s": 1e-8}, "neither", "Launch-bound in 0 of 1"),
    # A quarter of the cost, and bytes cannot explain the rest; then a memory that can.
    (steps(SMALL, 1.5 * FEW, 1e-5), {"launch_s": 5e-7}, "launch-bound", "1 of 1"),
    (steps(SMALL, 1.5 * FEW, 1e-5), DOUBTFUL, "inconclusive", "undecided in 1"),
    # The same launches, in steps that grow with the batch.
    (steps(SMALL, FEW / 50, FEW), {}, "neither", "not grow with the batch"),
    # Two batch sizes so close that the line's fixed part may be a tenth or all of the step.
    (UNSURE, {}, "inconclusive", "undecided in 1"),
    # One shape says no, the other nothing.
    (TWO_SHAPES, {}, "inconclusive", "Launch-bound in 0 of 2 model shapes, undecided in 1"),
    # Launches dearer than the step: they say nothing.
    (steps(SMALL, 1.5 * FEW, 1e-5), {"launch_s": 2e-5}, "inconclusive", "undecided in 1"),
    (steps(SMALL, 1.5 * FEW, 1e-5), {"launch_s": None}, "inconclusive", "no kernel_launch"),
    ([point(SMALL, 4, 1.5 * FEW)], {}, "inconclusive", "one batch size only, 4"),
    (steps(LARGE, 1.5 * MOVED_S, 1e-2), {}, "memory-bound", "Memory-bound in 1 of 1"),
    # The same steps on a memory a hundred times as fast.
    (steps(LARGE, 1.5 * MOVED_S, 1e-2), {"memory": 100 * MEMORY}, "neither", "0 of 1"),
    # Four times as fast: too little to be sure, too much to deny it.
    (steps(LARGE, 1.5 * MOVED_S, 1e-2), {"memory": 4 * MEMORY}, "inconclusive", "undecided in 1"),
    (steps(LARGE, 1.5 * MOVED_S, 1e-2), {"memory": None}, "inconclusive", "no bandwidth"),
    # A memory so slow that the step could not have been: the estimate says nothing.
    (steps(LARGE, 1.5 * MOVED_S, 1e-2), {"memory": MEMORY / 10}, "inconclusive", "0 of 1"),
    (BOTH, {}, "both", "Launch-bound in 1 of 2"),
    (steps(SMALL, 1.5 * FEW, 1e-5), None, "inconclusive", "no kernel_launch"),
]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The backend's line of each of those, which are devices of one host."""
    cells, devices = [], []
    for index, (points, known, *_) in enumerate(VERDICTS):
        device = {"device": f"cpu-{index}"}
        devices.append(CPU | {"id": device["device"]})
        cells += [grid(points, **device), *([] if known is None else beside(**known, **device))]
    results = analysed(tmp_path_factory.mktemp("verdicts"), cells, devices=devices)
    lines = [line for line in table(results, "scaling") if line["about"] == "backend"]
    return {line["device"]: line for line in lines}


@pytest.mark.parametrize("index", range(len(VERDICTS)))
def test_verdict_follows_the_numbers(verdicts: dict[str, dict[str, Any]], index: int) -> None:
    _, _, verdict, says = VERDICTS[index]
    line = verdicts[f"cpu-{index}"]
    assert (line["verdict"], says in line["says"]) == (verdict, True), line["says"]
    assert "33%" in line["how"]


def test_points_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    results = analysed(tmp_path, [*beside(), grid([point(SMALL, 4, 2e-3)])])
    hows = [line["how"] for line in table(results, "checks") if line["workload"] == "grid"]
    assert set(hows) == {"2 layers of width 64, batch 4"}
    flags: list[tuple[str, str]] = []
    made = point(SMALL, 4, 1.0, forward_only_over_forward=2.0)
    made["params"] |= {"n_trainable_parameters": 7, "audio_s_per_step": 30.0}
    made["times"] |= {"unsplit_step_s": [0.5] * 3, "forward_s": [0.2] * 3}
    session = SimpleNamespace(
        points=[made],
        flag=lambda code, detail: flags.append((code, detail)),
        workload=plugins.load("workloads", "transformer_grid"),
    )
    quality.split_flags(session)  # type: ignore[arg-type]
    which = "(n_layer=2 n_embd=64 n_head=4 d_ff=168 seq_len=64 batch_size=4)"
    assert flags == [
        ("split_differs", f"the sum of the phases {which} differs from the whole step by +100.0%"),
        (
            "forward_differs",
            f"a forward pass by itself {which} takes 2.00 times as long as inside a step",
        ),
    ]


def test_steps_off_the_line_decide_nothing(tmp_path: Path) -> None:
    crooked = [point(SMALL, b, s) for b, s in ((1, 1e-3), (2, 4e-3), (4, 1e-3), (8, 5e-3))]
    (shape,), backend = scaled(analysed(tmp_path, [*beside(), grid(crooked)]))
    assert shape["residual"] > 0.25 and "off a straight line" in shape["fit_reason"]
    assert shape["fixed_share_smallest"] is None and backend["verdict"] == "inconclusive"


def test_line_over_batch_sizes_and_what_explains_it(tmp_path: Path) -> None:
    results = analysed(
        tmp_path, [*beside(), grid([*steps(SMALL, 2e-3, 1e-4), *steps(LARGE, 0.1, 0.02)])]
    )
    (small, large), backend = scaled(results)
    assert small["fixed_s"] == pytest.approx(2e-3) and small["per_sample_s"] == pytest.approx(1e-4)
    assert small["residual"] == pytest.approx(0, abs=1e-9) and small["batch_sizes"] == "1;4;16"
    assert small["fixed_share_smallest"] == pytest.approx(2 / 2.1)
    assert small["fixed_share_largest"] == pytest.approx(2 / 3.6)
    assert small["throughput_gain"] == pytest.approx(16 * 2.1 / 3.6)
    assert small["launch_s"] == pytest.approx(LAUNCHES * 2e-6)
    assert small["launch_share_largest"] == pytest.approx(small["launch_s"] / 3.6e-3)
    # The small model and all that it keeps fit the cache, so memory need not move a byte of it.
    assert small["from_memory_share_smallest"] == 0 == small["memory_share_smallest"]
    moved, n = large["least_bytes_smallest"], large["n_parameters"]
    weights = 4 * (2 * (n - 512 * 2048) + (2 + 7) * n)
    kept = 4 * 64 * (2 * (8 * 2048 + 3 * 5464) + 2 * 2048 + 512)
    assert moved == pytest.approx(weights + 2 * kept)
    through = 1 - 2**25 / (16 * n + kept)
    assert large["memory_s_smallest"] == pytest.approx(through * moved / (1.1 * MEMORY), rel=0.002)
    assert backend["largest_model_parameters"] == n
    assert backend["flop_per_s_largest_model"] == pytest.approx(large["best_flop_per_s"])


def test_the_processes_of_a_cell_widen_the_line(tmp_path: Path) -> None:
    cell = grid(steps(SMALL, 2e-3, 1e-3))
    (one,), _ = scaled(analysed(tmp_path / "one", [*beside(), cell]))
    several = repeated(cell, 0.8, 1.25)
    (between,), _ = scaled(analysed(tmp_path / "several", [*beside(), several]))
    assert between["fixed_s"] == pytest.approx(one["fixed_s"])
    width, own_width = (s["fixed_high_s"] - s["fixed_low_s"] for s in (between, one))
    assert width > 4 * own_width


def test_error_of_the_line_is_that_of_repeated_draws() -> None:
    """The spread of fits through noisy steps is what one fit says of itself."""
    import numpy as np

    batches, noise = [1.0, 2.0, 4.0, 8.0], 0.05
    true = [2.0 + 0.5 * b for b in batches]
    draws = np.random.Generator(np.random.PCG64(0)).normal(1, noise, (2000, 4)) * true
    lines = [line_fit.fit(batches, list(times), [noise * t for t in true]) for times in draws]
    told = line_fit.fit(batches, true, [noise * t for t in true])
    assert told is not None
    fixed = [line.fixed_s for line in lines if line]
    assert np.std(fixed) == pytest.approx(told.fixed_error_s, rel=0.1)
    share = told.fixed_share(2)
    shares = [line.fixed_share(2).value for line in lines if line]
    assert np.mean((share.low <= np.array(shares)) & (np.array(shares) <= share.high)) > 0.92


# -- everything survives -------------------------------------------------------------------------


def test_points_without_times_keep_their_status_and_reason(tmp_path: Path) -> None:
    killed = point(LARGE, 64, None, status="oom", reason="killed: out of memory")
    skipped = point(LARGE, 512, None, status="skipped", reason="predicted 90 GiB of 16 GiB")
    results = analysed(tmp_path, [*beside(), grid([killed, skipped])])
    assert table(results, "expected") == []
    (shape,), backend = scaled(results)
    assert (shape["points_ok"], shape["points_oom"], shape["points_skipped"]) == (0, 1, 1)
    assert backend["verdict"] == "inconclusive"
    assert "Of 2 points 1 ran out of memory, 1 skipped" in backend["says"]
    rows = [p for p in table(results, "points") if p["module"] == "transformer_grid"]
    assert [(p["point_status"], p["point_reason"]) for p in rows] == [
        ("oom", "killed: out of memory"),
        ("skipped", "predicted 90 GiB of 16 GiB"),
    ]
    assert rows[0]["step_median_s"] is None and rows[0]["predicted_peak_bytes"] > 0
    lines = siliconprof.load(results).rows("results")
    assert [line["status"] for line in lines if line["workload"] == "grid"] == ["oom", "skipped"]


def test_failed_cell_is_no_part_of_it(tmp_path: Path) -> None:
    failed = grid(steps(SMALL, 2e-3, 1e-4)) | {"status": "timeout", "reason": "after 60 s"}
    results = analysed(tmp_path, [*beside(), failed])
    assert table(results, "expected") == table(results, "scaling") == []


# -- the tables of whole trainings and sweeps ----------------------------------------------------


def of_cell(results: Path, name: str, workload: str) -> list[dict[str, Any]]:
    """Lines of a table about one cell."""
    return [line for line in table(results, name) if line["workload"] == workload]


def test_whole_trainings_in_tables(tmp_path: Path) -> None:
    whole, swept = whole_training("wide", 0.01), sweep()
    settings = {"learning_rate": 0.01, "betas": [0.9, 0.95], "weight_decay": 0.1}
    whole["cell"]["parameters"] |= settings | {"decay_steps": 90}
    swept["cell"]["parameters"] = {"sweep": {"learning_rate": [1e-4, 1e-2, 1.0]}}
    (point,) = whole["points"]
    point["loss"][99] = point["curve"]["loss"][99] = None
    reason = "loss not finite at step 99"
    point["outcome"] = {"diverged": True, "reason": reason, "final_loss": None}
    point["texts"] = [{"temperature": 0.8, "prompt": "a,", "text": 'two\nlines, "quoted"'}]
    point["evaluations"][-1] = {"step": 100, "loss": None, "accuracy": 0.5, "seconds": 0.2}
    results = analysed(tmp_path, [whole, swept], last=aggregate)
    curve = of_cell(results, "curves", "lm-wide")
    assert len(curve) == 100 and curve[99]["loss"] is None and curve[3]["loss"] == point["loss"][3]
    seconds = point["times"]["unsplit_step_s"][3]
    assert curve[3]["tokens_per_s"] == pytest.approx(point["params"]["tokens_per_step"] / seconds)
    assert [line["step"] for line in curve if line["unusual"]] == [10]
    first, _, last = of_cell(results, "evaluations", "lm-wide")
    assert (first["step"], first["perplexity"]) == (0, pytest.approx(403.43, abs=0.01))
    assert (last["loss"], last["accuracy"]) == (None, 0.5)
    (text,) = of_cell(results, "texts", "lm-wide")
    assert text | point["texts"][0] == text
    (row,) = of_cell(results, "points", "lm-wide")
    assert (row["diverged"], row["outcome_reason"], row["point_status"]) == (True, reason, "ok")
    assert (row["n_layer"], row["beta2"], row["weight_decay"]) == (4, 0.95, 0.1)
    assert (row["decay_steps"], row["predicted_peak_bytes"]) == (90, 2**22)
    rates = [row["learning_rate"] for row in of_cell(results, "points", "optimizer")]
    assert rates == [1e-4, 1e-4, 1e-2, 1e-2, 1.0, 1.0]
    (cell,) = of_cell(results, "cells", "optimizer")
    assert cell["learning_rate"] is None  # a list of them is none


def test_solved_sizes_are_those_of_the_model_that_was_trained(tmp_path: Path) -> None:
    plugin = plugins.load("workloads", "transformer_lm")
    asked = {"parameter_budget": 500_000, "aspect": "deep", "n_head": 4}
    asked |= {"seq_len": 64, "batch_size": 8, "vocab_size": 512}
    model = plugin(asked)
    trained = {
        "params": {"batch_size": 8, "n_parameters": model.n_parameters()},
        "times": {"unsplit_step_s": [0.1]},
        "flops": 1e9,
        "bytes": None,
        "memory": {},
    }
    cells = []
    for name, more in (("deep", {}), ("of-another-version", {"n_head": 997})):
        axes = {"trainer": "training_run", "parameters": model.parameters | more}
        cells.append(base_record("transformer_lm", name, **axes) | {"points": [trained]})
    results = analysed(tmp_path, cells)
    (row,) = of_cell(results, "points", "deep")
    n_layer, d, ff = row["n_layer"], row["n_embd"], row["d_ff"]
    assert n_layer != plugin.PARAMETERS["n_layer"]["default"] and row["head_dim"] == d / 4
    assert n_layer * (4 * d * d + 3 * d * ff + 2 * d) + 2 * 512 * d + d == row["n_parameters"]
    (row,) = of_cell(results, "points", "of-another-version")
    assert row["n_layer"] is row["n_embd"] is row["vocab_size"] is None


def test_a_quiet_run_has_no_unusual_steps(tmp_path: Path) -> None:
    """Steps that hardly differ: the one that is 2 % slower is far out by quartiles alone."""
    made = whole_training("wide", 0.01)
    (quiet,) = made["points"]
    quiet["times"]["unsplit_step_s"] = times = [0.01] * 99 + [0.0102]
    partly = quiet | {"times": {"unsplit_step_s": times[:30]}}  # not every step's time is known
    results = analysed(tmp_path, [made | {"points": [quiet, partly]}], last=aggregate)
    lines = table(results, "curves")
    assert [line["unusual"] for line in lines] == [False] * 100 + [None] * 100
    assert lines[100]["step_s"] is None and lines[100]["tokens_per_s"] is None


def test_epochs_in_points_are_medians(tmp_path: Path) -> None:
    classic = network("mlp", {32: 0.04})
    epochs = {"train_s": [4.0, 5.0, 9.0], "validation_s": [1.0] * 3, "epoch_s": [5.0, 6.0, 10.0]}
    classic["points"][0]["epoch"] |= epochs
    results = analysed(tmp_path, [classic], last=aggregate)
    (row,) = of_cell(results, "points", "mlp")
    assert (row["epoch_s"], row["epoch_train_s"], row["epoch_means"]) == (6.0, 5.0, "measured")
    assert (row["network"], row["test_accuracy"], row["test_samples"]) == ("mlp", 0.75, 400)
