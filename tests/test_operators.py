"""What a training step is made of: torch's operators, whose they are, and gaps taken apart by them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from conftest import defaults, opened, record_problems
from measuring import Training, watched
from siliconprof import plugins
from siliconprof.analyse import attribution, step_work
from siliconprof.analyse.attribution import EXPLAINED, OVER, PERHAPS, UNEXPLAINED
from siliconprof.analyse.operator_rows import BLOCKED, FRAMEWORK, WAITING, group
from siliconprof.backends import _torch_operators, torch_mps
from siliconprof.backends.base import Clock
from siliconprof.compare import explain
from siliconprof.errors import UserError
from siliconprof.pipeline import cli
from siliconprof.session.timing import PhaseClock
from synthetic_results import CPU, PHASES, flagged, make, repeated, table, training

TOKENS = {"batch_size": 2, "seq_len": 32}
# A model that a workload trains: its parameters here, operations over its formula's, at least and most.
MODELS: Mapping[str, tuple[dict[str, Any], float, float]] = {
    "gpt2": (TOKENS | {"size": "nano"}, 0.98, 1.02),
    # No gradient by the input of the first layer.
    "gpt2 lora": (TOKENS | {"size": "nano", "lora_rank": 4}, 0.94, 1.02),
    "transformer_lm": (TOKENS | {"n_layer": 2, "n_embd": 64, "n_head": 4}, 0.95, 1.05),
    "whisper": ({"size": "nano", "batch_size": 2}, 1.0, 1.05),
    # MLX's gradients of a convolution are convolutions of what it pads.
    "cnn": ({"batch_size": 8, "batch_sizes": [8]}, 0.99, 1.2),
    "lstm": ({"batch_size": 8, "batch_sizes": [8]}, 0.96, 1.08),
    "mlp": ({"batch_size": 8, "batch_sizes": [8]}, 0.79, 1.02),
}


def trained(model: str, name: str = "torch-cpu") -> tuple[Any, PhaseClock, Any]:
    """(a stepper on one thread, a clock, a batch) of a real training."""
    module = model.split()[0]
    data = {"dataset_vocab_size": 512, "dataset_clip_seconds": 2, "dataset_n_mels": 80}
    parameters = defaults(module, **data, **MODELS[model][0])
    workload = plugins.load("workloads", module)(parameters)
    made = Training(workload, parameters, name, "fp32", 1)
    return made.stepper, made.clock, made.batch


def looked_at(model: str, name: str = "torch-cpu") -> tuple[dict[str, Any], Any]:
    """(`operators` of a real training's point, the workload)."""
    stepper, clock, batch = trained(model, name)
    stepper.step(batch, clock)  # AdamW makes its moments
    found = watched(stepper.backend, lambda: stepper.step(batch, clock), clock)
    point = {"params": {}, "times": {}, "flops": None, "bytes": None, "memory": {}}
    assert record_problems([{**point, "operators": found}], "points") == []
    assert len(found["whole_step_s"]) == len(found["phases"]["forward_s"])
    return found, stepper.workload


@pytest.mark.parametrize("backend", ["torch-cpu", "mlx"])
@pytest.mark.parametrize("model", MODELS)
def test_a_steps_operators_do_the_work_of_the_models_formula(model: str, backend: str) -> None:
    found, workload = looked_at(model, backend)
    work = sum(row["count"] * (row["flops"] or 0) for row in found["rows"])
    _, low, high = MODELS[model]
    assert low <= work / workload.flops_per_step()[0] <= high
    if model == "transformer_lm":  # whose operators a formula counts where no record does
        counted = sum(row["count"] for row in found["rows"])
        formula = step_work.launches(backend, workload.n_layer, "fp32", False)
        assert formula == pytest.approx(counted, rel=0.25)  # versions fuse otherwise
    assert found["reason"] is None
    assert all(row["role"] for row in found["rows"]) == (backend != "mlx")
    assert {"forward_s", "backward_s", "optimizer_s"} <= set(found["phases"])
    for phase, times in found["phases"].items():
        timed = [row["seconds"] for row in found["rows"] if row["phase"] == phase]
        # Of the watched steps the first is described, the others are timed; what follows it is left out.
        assert all(len(seconds) == len(times) >= 2 for seconds in timed)
    longest = max(max(row["seconds"]) for row in found["rows"])
    assert 0 < longest < 60


def test_scores_that_attention_computes_again_are_no_work() -> None:
    """Two products forwards and four backwards; a fused kernel does one of them twice."""
    backend = opened("torch-cpu")
    torch, shape = backend.torch, (2, 3, 40, 16)
    inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]

    def step() -> Any:
        out = torch.nn.functional.scaled_dot_product_attention(*inputs)
        return torch.autograd.grad(out.sum(), inputs)

    operators = backend.profiler.describe_call(step)
    assert "attention" in backend.profiler.implementations(operators)["attention"]
    product = 2 * 2 * 3 * 40 * 40 * 16
    assert backend.profiler.total_flops((o.kind, o.flops, 1) for o in operators) == 6 * product


def test_products_of_operators_that_a_cpu_lacks_are_counted() -> None:
    """cuDNN's and MPS's LSTM, and MPS's linear layer, by their signatures."""
    import torch

    def made(*shape: int) -> Any:
        return torch.empty(shape, device="meta")

    aten, values, hidden, output = torch.ops.aten, made(5, 3, 7), made(1, 3, 4), made(5, 3, 4)
    weights = [made(16, 7), made(16, 4), made(16), made(16)]
    once = 2 * 15 * (16 * 7 + 16 * 4)
    flat = (values, weights, 4, made(208), hidden, hidden)
    states = ([hidden, hidden], weights)
    for operator, args, expected in (
        (aten._cudnn_rnn, flat, once),
        (aten._cudnn_rnn_backward, flat, 2 * once),
        (aten._lstm_mps, (values, *states), once),
        (aten.lstm_mps_backward, (output, *[hidden] * 4, values, output, *states), 2 * once),
        (aten.linear, (values, made(9, 7), made(9)), 2 * 15 * 7 * 9),
        (aten.linear_backward, (values, made(5, 3, 9), made(9, 7), [False, True, True]), 1890),
    ):
        assert _torch_operators._flops(operator.default, args, {}, None) == expected, operator
    for kind, of in (("_lstm_mps", "recurrent layers"), ("linear_backward", "products")):
        assert group(f"aten::{kind}", "backward_s") == of


def test_an_operator_is_that_of_the_module_which_called_for_it() -> None:
    found, _ = looked_at("gpt2")
    of: dict[tuple[str, str], set[str]] = {}
    for row in found["rows"]:
        of.setdefault((row["phase"], row["role"]), set()).add(row["kind"])
    assert "aten::mm" in of["forward_s", "lm_head"] and "aten::mm" in of["backward_s", "lm_head"]
    attention = "transformer.h.*.attn"
    for phase in ("forward_s", "backward_s"):
        assert any("attention" in kind for kind in of[phase, attention]), of[phase, attention]
    assert {role for phase, role in of if phase == "optimizer_s"} == {"optimizer"}
    outside = {phase for phase, role in of if role.startswith("outside")}
    assert outside == {"data_s", "backward_s"}  # the batch's copy, the gradient by the loss itself
    (weight,) = (r for r in found["rows"] if r["phase"] == "forward_s" and r["role"] == "lm_head")
    assert weight["inputs"].startswith("float32[64, 64] float32[64, 512]")
    assert weight["flops"] == 2 * 64 * 64 * 512
    assert any("nll_loss" in kind for kind in of["forward_s", "GPT2LMHeadModel"])
    adapted, _ = looked_at("gpt2 lora")
    roles = {row["role"] for row in adapted["rows"]}
    assert {"lm_head", "GPT2LMHeadModel", "transformer.h.*.attn.c_attn.lora_A.default"} <= roles
    assert weight["bytes"] == 4 * (64 * 64 + 64 * 512 + 64 * 512)


def test_a_step_that_mlx_runs_one_by_one_trains_as_any_other() -> None:
    """Loss and weights of a watched step are those of the step in its place."""
    import numpy as np
    from mlx.utils import tree_flatten

    def after_three_steps(one_by_one: bool) -> list[Any]:
        stepper, clock, batch = trained("gpt2", "mlx")
        backend = stepper.backend
        clock.start(split=True)
        with backend.profiler.describe_step(clock) if one_by_one else nullcontext():
            stepper.step(batch, clock)
        with backend.profiler.time_step() if one_by_one else nullcontext() as found:
            loss = stepper.step(batch, clock)
        assert not one_by_one or found
        stepper.step(batch, clock)
        return [loss(), *(np.array(value) for _, value in tree_flatten(stepper.parameters))]

    for own, usual in zip(after_three_steps(True), after_three_steps(False), strict=True):
        assert np.allclose(own, usual, rtol=1e-6, atol=1e-7)


def test_mlx_operators_whose_loops_depend_on_the_layout_are_kinds_of_their_own() -> None:
    """A weight's gradient is transposed, its moment is not; heads are put side by side by a copy."""
    found, _ = looked_at("gpt2", "mlx")
    shapes: dict[str, set[int]] = {}  # kind -> dimensions of what it is given
    for row in found["rows"]:
        shapes.setdefault(f"{row['kind']} {row['phase']}", set()).add(row["inputs"].count(","))
    assert shapes["Add, unlike strides optimizer_s"] == {2}  # of two matrices
    assert shapes["Reshape, copied forward_s"] == {3}
    assert {"Add optimizer_s", "Reshape forward_s"} < shapes.keys()
    assert not any("unlike strides forward_s" in name for name in shapes)


def test_copies_of_operators_that_are_timed_are_in_no_peak() -> None:
    """On MPS a training's peak is that of its own steps; resetting it forgets those too."""
    key = "allocated_bytes.all.peak"
    stats = {key: 7}
    accelerator = SimpleNamespace(
        memory_stats=lambda: stats, reset_peak_memory_stats=lambda: stats.update({key: 3})
    )
    memory = torch_mps.MpsMemory(SimpleNamespace(accelerator=accelerator), "mps")
    with _torch_operators.MpsProfiler(Clock(), memory).time_step():
        stats[key] = 9
    assert memory.peak_bytes() == 7
    memory.reset_peak()
    assert memory.peak_bytes() == 3


# -- gaps ------------------------------------------------------------------------------------------

PHASE_OF = {"aten::mm": "forward_s", "aten::mul.Tensor": "forward_s", "aten::sqrt": "optimizer_s"}


def composed(seconds: Mapping[str, float], phases: Mapping[str, float]) -> dict[str, Any]:
    """`operators` of a point: seconds of each kind, and of the phases of the steps between."""
    common = {"role": "h.*", "inputs": "float32[4]", "flops": None, "bytes": 32, "count": 2}
    rows = [
        common | {"kind": kind, "phase": PHASE_OF[kind], "seconds": [second] * 3}
        for kind, second in seconds.items()
    ]
    return {"phases": {name: [s] * 3 for name, s in phases.items()}, "rows": rows, "reason": None}


def pair(
    slow_forward_s: float = 8.5e-3,
    elementwise_s: float = 5e-3,
    used_ms: Sequence[float] = (),
    name: str = "gpt2-nano",
    samples: int = 4,
) -> list[dict[str, Any]]:
    """A training of 4 ms by one trainer, of 10 ms by another, and operators of both.

    Args:
        elementwise_s: of the slower one, as are the following.
        used_ms: of each step: on a core, waiting for one, all threads.
    """
    fast, slow = (
        training(seconds, workload=f"{name}-{trainer}", trainer=trainer, samples=samples)
        for seconds, trainer in ((0.004, "plain"), (0.010, "hf"))
    )
    fast["points"][0]["operators"] = composed(
        {"aten::mm": 1e-3, "aten::mul.Tensor": 1e-3, "aten::sqrt": 1e-3},
        {"forward_s": 2.5e-3, "optimizer_s": 1.5e-3},
    )
    slow["points"][0]["operators"] = composed(
        {"aten::mm": 1e-3, "aten::mul.Tensor": elementwise_s, "aten::sqrt": 1e-3},
        {"forward_s": slow_forward_s, "optimizer_s": 1.5e-3},
    )
    steps = slow["points"][0]["steps"]
    names = ("cpu_s", "waiting_s", "all_threads_cpu_s")
    for series, ms in zip(names, used_ms, strict=bool(used_ms)):
        steps[series] = [1e-3 * ms] * len(steps["kind"])
    return [fast, slow]


def gap(folder: Path, cells: Sequence[dict[str, Any]]) -> tuple[Path, list[dict[str, Any]]]:
    """Results of such pairs, and their lines of attribution.csv."""
    results = make(folder, cells, devices=(CPU,), last=attribution)
    return results, table(results, "attribution")


def test_a_gap_is_explained_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = training(0.003, workload="gpt2-nano-compiled", trainer="plain")
    compiled["cell"]["parameters"]["compile"] = True
    results, lines = gap(tmp_path, [*pair(), compiled])
    where = ["--results", str(results)]
    assert cli.dispatch(["explain", "hf", "plain", *where]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= explain.WIDTH
    head, table, bases = text.split("\n\n")
    assert head.startswith("gpt2-nano-hf/torch-cpu/fp32 takes 5.997 ms more a step")
    assert re.search(r": \d+%\sexplained$", head) and "timed inside of steps" in bases
    assert [line.split("  ")[0] for line in table.splitlines()][1:] == [
        line["part"] for line in lines if line["kind"] in ("cause", "unexplained")
    ]
    assert cli.dispatch(["explain", "hf", "plain/cpu-x", *where]) == 0
    assert capsys.readouterr().out == text
    with pytest.raises(UserError, match="gpt2-nano-compiled: it was measured, but its step is not"):
        cli.dispatch(["explain", "hf", "gpt2-nano-compiled", *where])


def test_a_gap_of_a_disturbed_training_has_no_causes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fast, slow = pair()
    results, lines = gap(tmp_path, [fast, flagged(slow, contended="others had the cores")])
    assert {line["kind"] for line in lines} == {"gap", "phase", "unexplained"}
    whole, left = line_of(lines, "gap"), line_of(lines, "unexplained")
    assert whole["verdict"] == left["verdict"] == "disturbed" and left["seconds"] is None
    assert cli.dispatch(["explain", "hf", "plain", "--results", str(results)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    (record,) = results.glob("records/**/gpt2-nano-hf/**/*.json")
    assert f"to measure again: snakemake --cores 1 report --forcerun {record.as_posix()}" in told


def test_operators_of_another_moment_are_as_long_as_the_trainings_own_steps(tmp_path: Path) -> None:
    """Whole steps beside them tell how much slower the machine was when they were timed."""

    def results_of(slower: float) -> Path:
        fast, slow = pair()
        beside = slow["points"][0]["operators"]
        for values in (*beside["phases"].values(), *(row["seconds"] for row in beside["rows"])):
            values[:] = [slower * one for one in values]
        own_s = slow["points"][0]["times"]["whole_step_s"]
        beside["whole_step_s"] = [slower * one for one in own_s]
        return gap(tmp_path / str(slower), [fast, slow])[0]

    both = results_of(2.0), results_of(1.0)
    for name in ("operators", "step_parts"):
        slower, usual = (
            [row["seconds"] for row in table(results, name) if row["workload"] == "gpt2-nano-hf"]
            for results in both
        )
        assert slower == pytest.approx(usual)


# How a pair is, what its causes take in ms, and the verdict.
GAPS: list[tuple[dict[str, Any], Mapping[str, float], str]] = [
    # The slower step's parts add up to 45 % and 145 % of it.
    ({"slow_forward_s": 3e-3}, {}, UNEXPLAINED),
    ({"slow_forward_s": 13e-3}, {}, OVER),
    # Phases of the slower side last 7 ms beyond its operators, which take 3 ms as on the other:
    # its thread is blocked or waiting for the rest of 10 ms.
    ({"used_ms": (4, 2, 5)}, {BLOCKED: 3, WAITING: 1, FRAMEWORK: 2}, EXPLAINED),
    # Nobody sleeps for sure where other threads are at work, or where nobody was asked.
    ({"used_ms": (4, 0, 12)}, {FRAMEWORK: 6}, PERHAPS),
    ({"used_ms": ()}, {FRAMEWORK: 6}, PERHAPS),
]


def test_a_gap_is_explained_as_far_as_its_parts_are_known(tmp_path: Path) -> None:
    cells = []
    for index, (how, _, _) in enumerate(GAPS):  # of as many batch sizes, so each pair stands alone
        rest = {"elementwise_s": 1e-3} if "used_ms" in how else {}
        cells += pair(**rest | how, name=f"gap-{index}", samples=4 + index)
    _, lines = gap(tmp_path, cells)
    for index, (how, expected_ms, verdict) in enumerate(GAPS):
        own = [line for line in lines if line["slow_workload"] == f"gap-{index}-hf"]
        took = {line["part"]: line for line in own if line["kind"] == "cause"}
        whole, left = line_of(own, "gap"), line_of(own, "unexplained")
        assert whole["verdict"] == verdict, how
        total = left["seconds"] + sum(line["seconds"] for line in took.values())
        assert total == pytest.approx(whole["seconds"], rel=1e-9)
        if not expected_ms:
            continue
        assert set(took) & {BLOCKED, WAITING} == set(expected_ms) & {BLOCKED, WAITING}
        for part, ms in expected_ms.items():
            assert 1e3 * took[part]["seconds"] == pytest.approx(ms, abs=0.02), part
        assert ("is not known" in took[FRAMEWORK]["slow_how"]) == (not how["used_ms"])


def line_of(lines: Sequence[dict[str, Any]], part: str) -> dict[str, Any]:
    """The line of a part of one pair."""
    (found,) = (line for line in lines if line["part"] == part)
    return found


def test_a_gap_without_operators_has_phases_and_no_causes(tmp_path: Path) -> None:
    _, lines = gap(tmp_path, [training(0.010), training(0.002, backend="mlx")])
    whole, left = line_of(lines, "gap"), line_of(lines, "unexplained")
    assert whole["seconds"] == pytest.approx(0.008, rel=1e-3)
    assert whole["slow_backend"] == "torch-cpu" and whole["low_s"] < 0.008 < whole["high_s"]
    # Plain arithmetic: phases are medians of split steps, the rest makes up for the difference.
    phases = {line["part"]: line["seconds"] for line in lines if line["kind"] == "phase"}
    assert sum(phases.values()) == pytest.approx(whole["seconds"], rel=1e-12)
    assert phases["backward"] == pytest.approx(PHASES["backward_s"] * 1.02 * 0.008, rel=1e-3)
    assert {line["kind"] for line in lines} == {"gap", "phase", "unexplained"}
    assert left["seconds"] is None and whole["verdict"] == left["verdict"] == "not taken apart"
    told = " ".join(explain.as_text(pd.DataFrame(lines)).split())
    assert "backward" in told and "the operators of both were not timed" in told


def test_processes_that_differ_widen_the_gap(tmp_path: Path) -> None:
    cells = [training(0.010), training(0.011, backend="mlx")]
    narrow = line_of(gap(tmp_path, cells)[1], "gap")
    assert narrow["verdict"] != "no gap beyond noise"
    cells = [repeated(cell, 0.8, 0.9, 1.1, 1.2) for cell in cells]
    wide = line_of(gap(tmp_path / "again", cells)[1], "gap")
    assert wide["low_s"] < narrow["low_s"] and wide["high_s"] > narrow["high_s"]
    assert wide["verdict"] == "no gap beyond noise"
    assert (narrow["fast_how"], wide["fast_how"]) == ("within one process", "between 5 processes")
