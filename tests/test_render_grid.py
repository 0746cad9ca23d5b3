"""The wide/deep report's section of the page: from records through the real stages to the page's text.

Records are made by hand with round numbers, so that what the page must say can be worked out.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from siliconprof.render import wide_deep
from synthetic_cells import (
    PEAK,
    fastest,
    grid,
    grid_point,
    lost,
    product,
    products,
    small_grid,
    whole_study,
    whole_training,
)
from synthetic_results import CPU, Page, make, render


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


def test_points_without_a_time_keep_their_status(said: Page) -> None:
    assert "20 points: 16 ok, 2 oom, 2 skipped" in said.of("grid")


def test_the_fit_finds_what_is_fixed(said: Page) -> None:
    """t(B) = 1.5 + 1.5 B: half of the step at batch 1, a ninth at batch 8, gain 16 / 9."""
    lines = said.lines("table-scaling-grid-small")
    # The third shape was measured at no batch size.
    for head, value in (("smallest batch%", "50"), ("largest batch%", "11")):
        assert {line[f"fixed, {head}"] for line in lines} == {value, "–d"}
    assert {line["gain×"] for line in lines} == {"1.78", "–d"}


def test_wide_against_deep_is_told_with_its_mismatch_and_outcome(said: Page) -> None:
    assert "at least 4 times the layers in the deep one" in said.of("grid")
    deep_model = said.lines("table-wide-deep-models")[1]
    assert "0.00 %" in deep_model["operations10⁹ a step"]  # 4 × 128² and 16 × 64² are equal
    results = said.lines("table-wide-deep-results")
    rows = {(line["Model"], line["Backend"]): line for line in results}
    wide, deep = rows["lm-wide", "torch-cpu"], rows["lm-deep", "torch-cpu"]
    assert wide["final lossnat"] == "3.000"
    assert wide["evaluation lossnat"] == "3.2503.100 at 50"
    assert wide["perplexity"] == f"{math.exp(3.25):.2f}"
    assert [row["norm elevated untilstep"] for row in (wide, deep)] == ["30", "50"]
    assert wide["over slowest×"] == "3.00"  # 30 ms in MLX
    assert {row["unusual steps"] for row in results} == {"1"}
    assert "latest after 100, best after 50" in wide["Checkpoints"]
    assert "after step 40 and 80" in deep["Resumed"] and wide["Resumed"] == "never"


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
    other = {"decay_steps": None}, {"weight_decay": 0.2}
    assert not [pair for more in other for pair in wide_deep.pairs([small[0], small[1] | more])]
    assert not wide_deep.pairs([row(2, 96, 1.0e6), row(8, 48, 1.3e6)])
    assert not wide_deep.pairs([row(2, 96, math.nan), row(8, 48, math.nan)])  # sizes unknown
    assert wide_deep.deeper(small[:1]) == "several"


def test_divergence_is_an_outcome(said: Page) -> None:
    assert "least final loss 4.000 at learning rate 0.0001" in said.of("grid")
    assert "1 of 6 settings diverged" in said.of("grid")


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
def test_a_study_of_reference_bundles_is_drawn_like_our_own(tmp_path: Path) -> None:
    fast = {"host": "box", "device": "rtx-4090", "backend": "torch-cuda", "device_kind": "gpu"}
    reference = [whole_training("wide", 0.01, **fast), whole_training("deep", 0.02, **fast)]
    reference += [fastest(PEAK, **fast), grid(small_grid(), **fast)]
    found = render(make(tmp_path, [], reference=reference), drawn=())
    assert "10 points: 8 ok, 1 oom, 1 skipped" in found.of("grid")
    assert "[reference: box]" in found.of("grid")


@pytest.mark.slow
def test_a_single_point(tmp_path: Path) -> None:
    own = [products([product((1, 64, 64, 64), PEAK)]), grid([grid_point(2, 64, 1, True)])]
    text = render(make(tmp_path, own), drawn=()).of("grid")
    assert "3.00 times as long as expected by our own ceiling, the median of 1 point" in text
    assert "No whole training of a model is part of these results." in text


def test_without_points_or_a_ceiling_there_is_no_figure(tmp_path: Path) -> None:
    points = [lost("oom", "no memory"), lost("skipped", "too big")]
    found = render(make(tmp_path / "lost", [grid(points)]), drawn=())
    assert "No point of this grid was measured" in found.of("grid")
    assert "2 points: 1 oom, 1 skipped" in found.of("grid")
    assert not [name for name in found.figures if "grid-small" in name]
    points = [grid_point(2, 64, batch, False) for batch in (1, 2)]
    found = render(make(tmp_path / "alone", [grid(points)]), drawn=())
    assert "Expected against actual time is not drawn" in found.of("grid")
