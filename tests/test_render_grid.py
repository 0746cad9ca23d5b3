"""The wide/deep report's section of the page: from records through the real stages to the page's text.

Records are made by hand with round numbers, so that what the page must say can be worked out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product as combinations
from pathlib import Path
from typing import Any

import pytest
from siliconprof.render import wide_deep
from synthetic_results import CPU, SHA, Page, base_record, make, render, training, without_result
from test_ceilings import matmul, product

PEAK = 1e11  # FLOP/s of the fastest product, which is what is expected of a grid
SLOW = 3.0  # times as long as expected every point takes at batch 1
STEPS, WIDE_ENDS, DEEP_ENDS = 100, 30, 50  # where gradient norms fall from 5 to 1


def params(n_layer: int, n_embd: int, batch_size: int = 4, **more: Any) -> dict[str, Any]:
    """Parameters of a point, as the model gives them; sizes need not be exact here."""
    return {
        "n_layer": n_layer,
        "n_embd": n_embd,
        "n_head": 4,
        "head_dim": n_embd // 4,
        "d_ff": 8 * n_embd // 3,
        "seq_len": 64,
        "batch_size": batch_size,
        "vocab_size": 512,
        "n_parameters": 12 * n_layer * n_embd**2,
        "n_trainable_parameters": 12 * n_layer * n_embd**2,
        "samples_per_step": batch_size,
        "tokens_per_step": 64 * batch_size,
    } | more


def grid_point(n_layer: int, n_embd: int, batch_size: int, tool: bool, **more: Any) -> dict:
    """A point: the first sample takes SLOW times what is expected, every other 1.5 times."""
    told = params(n_layer, n_embd, batch_size)
    each = 6.0 * told["n_parameters"] * 64
    seconds = each / PEAK * (SLOW + 1.5 * (batch_size - 1))
    autorange: dict[str, Any] = {"reason": "torch.utils.benchmark times torch alone"}
    if tool:
        autorange = {
            "reason": None,
            "min_run_time_s": 0.01,
            "number_per_run": 2,
            "times_s": [(1.1 if n_layer == 2 else 1.2) * seconds] * 3,
            "shorter_than_one_iteration": seconds > 0.01,
        }
    return {
        "params": told,
        "status": "ok",
        "reason": None,
        "bytes": None,
        "flops": each * batch_size,
        "times": {"step_s": [seconds * (1 + 0.01 * (i - 2)) for i in range(5)]},
        "memory": {"device_peak_bytes": 2**20, "predicted_bytes": 2**20},
        "blocked_autorange": autorange,
    } | more


def lost(status: str, reason: str) -> dict[str, Any]:
    """A point that was not measured."""
    return grid_point(
        4,
        256,
        64,
        True,
        status=status,
        reason=reason,
        times={},
        blocked_autorange={"reason": "not measured"},
        memory={},
    )


def grid(points: Sequence[dict[str, Any]], **axes: Any) -> dict[str, Any]:
    """A cell of such points."""
    workload = axes.pop("workload", "grid-small")
    made = base_record("transformer_grid", workload, **axes)
    made["cell"]["parameters"] = {"gradient_checkpointing": False, "max_gradient_norm": 1.0}
    return made | {"points": list(points)}


def small_grid(tool: bool = True) -> list[dict[str, Any]]:
    """Eight points that were measured and two that were not."""
    found = [grid_point(*shape, tool) for shape in combinations((2, 4), (64, 128), (1, 8))]
    return [*found, lost("oom", "cannot allocate <3 GiB>"), lost("skipped", "predicted 61 GiB")]


def course(losses: Sequence[float | None], norms: Sequence[float], step_s: float) -> dict[str, Any]:
    """What a whole training records of its steps; the eleventh took ten times as long."""
    times = [step_s * (1 + 0.001 * (i % 5)) * (10 if i == 10 else 1) for i in range(len(losses))]
    return {
        "times": {"step_s": [], "unsplit_step_s": times},
        "loss": list(losses),
        "bytes": None,
        "curve": {
            "loss": list(losses),
            "gradient_norm": list(norms),
            "learning_rate": [0.001] * len(losses),
        },
    }


def run(aspect: str, step_s: float, **axes: Any) -> dict[str, Any]:
    """A whole training of the wide or the deep model."""
    wide = aspect == "wide"
    trained = {"trainer": "training_run", "workload": f"lm-{aspect}", **axes}
    made = base_record("transformer_lm", trained.pop("workload"), **trained)
    made["cell"]["parameters"] = {"aspect": aspect, "seq_len": 64, "max_gradient_norm": 1.0}
    made["dataset"] = {"name": "text", "data_sha256": SHA, "vocab_size": 512}
    made["samples"] = [
        {
            "t_s": 0.1 * i,
            "rss_bytes": 2e8 + 1e6 * i,
            "minor_faults": 0,
            "major_faults": 0,
            "device_memory_bytes": None,
        }
        for i in range(9)
    ]
    ends = WIDE_ENDS if wide else DEEP_ENDS
    told = params(4, 128) if wide else params(16, 64)
    final = 3.0 if wide else 2.5
    evaluations = [
        {"step": step, "loss": loss, "perplexity": math.exp(loss), "seconds": 0.1}
        for step, loss in ((0, 6.0), (50, final + 0.1), (100, final + 0.25))
    ]
    point = {
        "params": told,
        "flops": 6.0 * told["n_parameters"] * 256,
        "memory": {"device_peak_bytes": 2**22, "predicted_bytes": 2**22},
        "steps": {
            "kind": ["unsplit"] * STEPS,
            "started_s": [0.01 * i for i in range(STEPS)],
            "minor_faults": [0] * STEPS,
            "major_faults": [0] * STEPS,
        },
        "evaluations": evaluations,
        "outcome": {"diverged": False, "reason": None, "final_loss": final},
        "checkpoints": {
            name: {"path": f"{name}.safetensors", "step": step, "bytes": 2**21, "sha256": SHA}
            for name, step in (("latest", 100), ("best", 50))
        },
    }
    losses = [6.0 - 0.03 * i for i in range(STEPS)]
    norms = [5.0] * ends + [1.0] * (STEPS - ends)
    norms[80] = 500.0  # a lone spike, which is no course
    point |= course(losses, norms, step_s)
    if not wide:
        point["resumed_at"] = [40, 80]
    return made | {"points": [point]}


def sweep(**axes: Any) -> dict[str, Any]:
    """Three learning rates, with and without clipping; the largest diverges unless clipped."""
    made = base_record("optimizer_sweep", "optimizer", **axes)
    made["cell"]["parameters"] = {"learning_rate": 0.001, "betas": [0.9, 0.95]}
    for rate, clip in combinations((0.0001, 0.01, 1.0), (1.0, None)):
        diverged = rate == 1.0 and clip is None
        losses: list[float | None] = [6.0 - 0.05 * i for i in range(20)]
        if diverged:
            losses = [6.0, 9.0, None]
        told = params(2, 64, learning_rate=rate, max_gradient_norm=clip, warmup_steps=5)
        made["points"].append(
            {
                "params": told,
                "flops": 1e9,
                "memory": {},
                "status": "ok",
                "reason": None,
                "outcome": {
                    "diverged": diverged,
                    "reason": "loss not finite" if diverged else None,
                    "final_loss": None if diverged else 4.0 + rate,
                },
            }
            | course(losses, [1.0] * len(losses), 0.01)
        )
    return made


def whole_study(**axes: Any) -> list[dict[str, Any]]:
    """What one host measures of the study, with a product to expect something by."""
    mlx = {"backend": "mlx"} | axes
    return [
        matmul([product((1, 512, 512, 512), PEAK)], **axes),
        training(0.01, **axes),
        grid(small_grid(), **axes),
        grid(small_grid(tool=False), **mlx),
        run("wide", 0.010, **axes),
        run("deep", 0.020, **axes),
        run("wide", 0.030, **mlx),
        without_result(run("deep", 0.1, **mlx), "timeout", "ran past 60 s at step 70"),
        sweep(**axes),
    ]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study on a CPU; torch and MLX."""
    return make(tmp_path_factory.mktemp("study"), whole_study(), devices=(CPU,))


@pytest.fixture(scope="module")
def said(study: Path) -> Page:
    return render(study, drawn=())


def test_expected_against_actual_in_numbers(said: Page) -> None:
    """Batch 1 takes 3 times as long, batch 8 (3 + 7 × 1.5) / 8 = 1.69 times; half of each."""
    ours = "2.34 times as long as expected by our own ceiling, the median of 8 points, from 1.69"
    assert f"{ours} to 3.00" in said.of("grid")
    over = said.tables["table-grid-grid-small"]
    column = over[0].index(next(head for head in over[0] if head.startswith("over expected")))
    told = [line[column].strip()[:4] for line in over[1:]]
    assert told[:4] == ["3.00", "1.69", "3.00", "1.69"]


def test_points_without_a_time_keep_status_and_reason(said: Page) -> None:
    lines = said.tables["table-grid-grid-small"]
    for status, reason in (("oom", "cannot allocate <3 GiB>"), ("skipped", "predicted 61 GiB")):
        found = [line for line in lines if status in line]
        assert len(found) == 2  # of torch and of MLX
        assert all(reason in line for line in found)
        assert all(cell.startswith("–") for line in found for cell in line[-9:-2])
    assert "20 points: 16 ok, 2 oom, 2 skipped" in said.of("grid")


def test_the_tools_timing_stands_beside_ours(said: Page) -> None:
    """1.1 or 1.2 times ours, by layers; a point whose iteration exceeds 0.01 s had too little time."""
    text = said.of("grid")
    short = sum(point["times"]["step_s"][2] > 0.01 for point in small_grid()[:8])
    assert 0 < short < 8
    assert f"in {short} of them min_run_time was shorter than one iteration" in text
    said_so = "ratio 1.15, the median of 8 points, from 1.10 to 1.20; 0 of them within 5 %"
    assert said_so in text
    assert "No timing by blocked_autorange for mlx · fp32: torch.utils.benchmark times" in text


def test_the_fit_finds_what_is_fixed(said: Page) -> None:
    """t(B) = 1.5 + 1.5 B: half of the step at batch 1, a ninth at batch 8, gain 16 / 9."""
    table = "table-scaling-grid-small"
    told = {
        head: {value.strip() for value in said.column(table, head).values()}
        for head in ("fixed, smallest batch", "fixed, largest batch", "gain")
    }
    # The third shape was measured at no batch size.
    assert [found - {"–d"} for found in told.values()] == [{"50"}, {"11"}, {"1.78"}]


def test_wide_against_deep_is_told_with_its_mismatch_and_outcome(said: Page) -> None:
    assert "at least 4 times the layers in the deep one" in said.of("grid")
    models = said.tables["table-wide-deep-models"]
    assert "0.00\u2009%" in models[2][-1]  # 4 × 128² and 16 × 64² are equal
    results = said.tables["table-wide-deep-results"]
    heads = [" ".join(head.split()) for head in results[0]]
    rows = {(line[0].strip(), line[heads.index("Backend")].strip()): line for line in results[1:]}
    wide, deep = rows["lm-wide", "torch-cpu"], rows["lm-deep", "torch-cpu"]
    at = {
        name: next(i for i, head in enumerate(heads) if head.startswith(name))
        for name in (
            "final",
            "evaluation",
            "perplexity",
            "norm",
            "over",
            "unusual",
            "Checkpoints",
            "Resumed",
        )
    }
    assert wide[at["final"]].strip() == "3.000"
    assert wide[at["evaluation"]].split() == ["3.2503.100", "at", "50"]
    assert wide[at["perplexity"]].strip() == f"{math.exp(3.25):.2f}"
    assert [row[at["norm"]].strip() for row in (wide, deep)] == ["30", "50"]
    assert wide[at["over"]].strip() == "3.00"  # 30 ms in MLX
    assert {row[at["unusual"]].strip() for row in rows.values()} == {"1"}
    assert "latest after 100, best after 50" in wide[at["Checkpoints"]]
    assert "after step 40 and 80" in deep[at["Resumed"]]
    assert wide[at["Resumed"]].strip() == "never"


def test_pairs_are_of_one_size_and_of_one_setting() -> None:
    """Two budgets give two pairs; another course of the learning rate is another experiment."""

    def row(n_layer: int, n_embd: int, size: float, **more: Any) -> dict[str, Any]:
        told = {"n_layer": n_layer, "n_embd": n_embd, "n_parameters": size, "decay_steps": 90}
        return told | more

    small = [row(2, 96, 1.0e6), row(8, 48, 1.1e6)]
    large = [row(16, 64, 4.1e6), row(4, 128, 4.0e6)]
    found = wide_deep.pairs([large[0], *small, large[1]])
    assert found == [(small[0], small[1]), (large[1], large[0])]
    assert wide_deep.deeper([*small, *large]) == "at least 4"
    other = {"decay_steps": None}, {"weight_decay": 0.2}, {"method_version": 9}
    assert not [pair for more in other for pair in wide_deep.pairs([small[0], small[1] | more])]
    assert not wide_deep.pairs([row(2, 96, 1.0e6), row(8, 48, 1.3e6)])
    assert not wide_deep.pairs([row(2, 96, math.nan), row(8, 48, math.nan)])  # sizes unknown
    assert wide_deep.deeper(small[:1]) == "several"


def test_divergence_is_an_outcome(said: Page) -> None:
    assert "least final loss 4.000 at learning rate 0.0001" in said.of("grid")
    assert "1 of 6 settings diverged" in said.of("grid")
    lines = said.tables["table-optimizer-optimizer"]
    [lost_one] = [line for line in lines if "diverged" in line]
    assert "loss not finite" in lost_one
    assert "off" in lost_one


def test_whole_trainings_are_in_no_figure_of_phases(said: Page) -> None:
    kinds = ("training-", "steps-", "memory-", "loss-")
    phases = [name for name in said.figures if name.startswith(kinds)]
    assert phases
    assert not [name for name in phases if "lm-" in name or "transformer" in name]
    assert "lm-" not in said.of("training") + str(said.tables["table-memory"])
    assert "lm-wide" in said.of("setting")
    assert "ran past 60 s at step 70" in said.of("quality")
    assert "lm-deep on mlx, fp32: timeout: ran past 60 s at step 70" in said.of("grid")


@pytest.mark.slow
def test_a_study_of_reference_bundles_is_among_the_others(tmp_path: Path) -> None:
    fast = {"host": "box", "device": "rtx-4090", "backend": "torch-cuda", "device_kind": "gpu"}
    reference = [run("wide", 0.01, **fast), run("deep", 0.02, **fast)]
    reference += [matmul([product((1, 512, 512, 512), PEAK)], **fast), grid(small_grid(), **fast)]
    found = render(make(tmp_path, [], reference=reference), drawn=())
    assert "20 points" not in found.of("grid")
    assert "10 points: 8 ok, 1 oom, 1 skipped" in found.of("others")


# -- what a page must survive --------------------------------------------------------------------


@pytest.mark.slow
def test_a_single_point(tmp_path: Path) -> None:
    own = [matmul([product((1, 64, 64, 64), PEAK)]), grid([grid_point(2, 64, 1, True)])]
    text = render(make(tmp_path, own), drawn=()).of("grid")
    assert "3.00 times as long as expected by our own ceiling, the median of 1 point" in text
    assert "No whole training of a model is part of these results." in text
    assert "blocked_autorange over that of our own timing" in text
    assert "never shorter than one iteration" in text


def test_without_points_or_a_ceiling_there_is_no_figure(tmp_path: Path) -> None:
    points = [lost("oom", "no memory"), lost("skipped", "too big")]
    found = render(make(tmp_path / "lost", [grid(points)]), drawn=())
    assert "No point of this grid was measured" in found.of("grid")
    assert "2 points: 1 oom, 1 skipped" in found.of("grid")
    assert not [name for name in found.figures if "grid-small" in name]
    points = [grid_point(2, 64, batch, False) for batch in (1, 2)]
    found = render(make(tmp_path / "alone", [grid(points)]), drawn=())
    assert "Expected against actual time is not drawn" in found.of("grid")
