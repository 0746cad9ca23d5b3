"""Whole trainings through the front door: killed ones go on, settings count, what is kept is whole."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from conftest import Checkout, NoClock, cpu_cell, own_project, rounding
from measuring import session_of
from siliconprof import plugins
from siliconprof.measure import fork_server
from siliconprof.stats import training_course
from siliconprof.store.cell import Cell

CPU_BACKENDS = ("torch-cpu", "mlx")
VOCABULARY = 300
TINY = {"n_layer": 2, "n_embd": 32, "n_head": 2, "seq_len": 32, "batch_size": 4}
RUN = TINY | {
    "steps": 60,
    "evaluate_every": 20,
    "evaluation_batches_limit": 2,
    "checkpoint_every": 2,  # writing them takes long enough for a kill in between
    "learning_rate": 0.01,
    "warmup_steps": 5,
    "decay_steps": 60,
    "sample_tokens": 6,
}
DATA = "results/data/words"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, words: Path) -> Checkout:
    """A copy of the project with a text data set, prepared."""
    copy = own_project(tmp_path_factory.mktemp("run"))
    shutil.copytree(words, copy.path / DATA)
    return copy


def cell(
    backend: str, module: str = "transformer_lm", name: str = "run", **parameters: Any
) -> Cell:
    """A cell on this machine's CPU."""
    return cpu_cell(
        backend,
        module,
        parameters | {"dataset_vocab_size": VOCABULARY},
        workload=name,
        trainer="training_run" if module == "transformer_lm" else None,
        seed=3,
        dataset=DATA,
        timing={"energy_window_s": 0},
    )


def measured(project: Checkout, asked: Cell, name: str, status: str = "ok") -> dict[str, Any]:
    """The record that `python -m siliconprof.measure` leaves of a cell, checkpoints below `{name}/`."""
    record = project.measure(asked, f"{name}.json", "--results", name)
    assert record["status"] == status, record["reason"]
    return record


def kill_in_the_middle(project: Checkout, asked: Cell, name: str, whom: str) -> int:
    """Start a measurement, kill it once a checkpoint is there; the steps that it is of.

    Args:
        whom: the supervisor, with which its child dies, or that child, the worker, alone.
    """
    folder = project.path / name / "checkpoints" / asked.path
    own = {k: v for k, v in project.environment.items() if k != fork_server.SERVER_VARIABLE}
    fresh = dataclasses.replace(project, environment=own)  # the processes are looked at
    words = ("--cell", asked.to_json(), "--output", f"{name}.json", "--results", name)
    with fresh.begin("siliconprof.measure", *words) as process:
        until = time.monotonic() + 300
        while (
            not any(folder.glob("*/course.json"))
            and process.poll() is None
            and time.monotonic() < until
        ):
            time.sleep(0.002)
        (child,) = psutil.Process(process.pid).children()
        os.kill(child.pid if whom == "worker" else process.pid, signal.SIGKILL)
        child.wait(60)
    record = project.path / f"{name}.json"
    assert record.exists() == (whom == "worker")
    if whom == "worker":
        assert json.loads(record.read_text(encoding="utf-8"))["status"] != "ok"
    (course,) = folder.glob("*/course.json")
    told = json.loads(course.read_text(encoding="utf-8"))
    return int(told["checkpoint"]["step"])


@pytest.fixture(scope="module")
def unbroken(project: Checkout) -> dict[str, dict[str, Any]]:
    """The record of a run that nobody disturbs, by backend."""
    return {name: measured(project, cell(name, **RUN), f"unbroken-{name}") for name in CPU_BACKENDS}


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "whom"), [("torch-cpu", "supervisor"), ("mlx", "worker")])
def test_a_killed_run_goes_on_with_the_losses_of_an_unbroken_one(
    project: Checkout, unbroken: dict[str, dict[str, Any]], backend: str, whom: str
) -> None:
    """kill -9 after a checkpoint: the whole curve is in the record, equal to the last bit."""
    asked, name = cell(backend, **RUN), f"killed-{backend}"
    kept = kill_in_the_middle(project, asked, name, whom)
    assert 0 < kept < RUN["steps"]
    (point,) = measured(project, asked, name)["points"]
    (whole,) = unbroken[backend]["points"]
    assert point["resumed_at"] == [kept]
    assert whole["resumed_at"] == []
    assert point["curve"] == whole["curve"]
    assert len(set(point["curve"]["loss"])) == RUN["steps"]
    for found in (point, whole):
        assert found["loss"][: RUN["steps"]] == found["curve"]["loss"]
        free_steps = len(found["times"]["unsynchronised_step_s"]) * found["unsynchronised_steps"]
        assert found["steps"]["kind"] == (
            ["whole"] * RUN["steps"] + ["unsynchronised"] * free_steps
        )
        assert len(found["times"]["whole_step_s"]) == RUN["steps"]
        assert found["times"]["step_s"] == []
        began = found["steps"]["started_s"]
        assert began == sorted(began)
        assert [e["step"] for e in found["evaluations"]] == [0, 20, 40, 60]
    assert point["steps"]["started_s"][kept - 1] < 0 < point["steps"]["started_s"][kept]
    assert [e["loss"] for e in point["evaluations"]] == [e["loss"] for e in whole["evaluations"]]
    assert point["texts"] == whole["texts"]
    assert point["outcome"] == whole["outcome"]
    if backend == "mlx":  # whoever asks once more wants other numbers
        (afresh,) = measured(project, asked, name)["points"]
        assert afresh["resumed_at"] == []
        assert afresh["curve"] == whole["curve"]
        assert not set(afresh["times"]["whole_step_s"]) & set(point["times"]["whole_step_s"])


@pytest.mark.slow
def test_a_run_learns_and_is_the_same_in_both_frameworks(
    project: Checkout, unbroken: dict[str, dict[str, Any]]
) -> None:
    """Losses fall from ln V; evaluation, norms, rates and the likeliest text agree."""
    ours, theirs = (unbroken[name]["points"][0] for name in CPU_BACKENDS)
    within = rounding(VOCABULARY, steps=RUN["steps"])
    assert ours["curve"]["loss"] == pytest.approx(theirs["curve"]["loss"], rel=within)
    first = [record["points"][0]["curve"]["gradient_norm"][0] for record in unbroken.values()]
    assert first[0] == pytest.approx(first[1], rel=rounding(VOCABULARY))
    assert ours["curve"]["learning_rate"] == theirs["curve"]["learning_rate"]
    first, last = ours["evaluations"][0], ours["evaluations"][-1]
    assert first["loss"] == pytest.approx(math.log(VOCABULARY), abs=0.1)
    assert last["loss"] < first["loss"] - 0.5
    assert last["perplexity"] == pytest.approx(math.exp(last["loss"]))
    assert ours["outcome"]["diverged"] is False
    assert ours["outcome"]["final_loss"] == pytest.approx(np.mean(ours["curve"]["loss"][-6:]))
    assert [text["temperature"] for text in ours["texts"]] == [0, 0.8]
    assert ours["texts"][0] == theirs["texts"][0]
    assert all(text["prompt"] and text["text"] for text in ours["texts"])
    for record in unbroken.values():
        assert record["precision"]["effective"] == "fp32"


# -- in this process -----------------------------------------------------------------------------


def run(asked: Cell, data: Any, checkpoints: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(point, method) of a run in this process."""
    made = session_of(asked)
    made._data, made.checkpoints = data, checkpoints
    plugins.load("trainers", "training_run")().run(made)
    return made.points[0], made.method


@pytest.fixture
def data(project: Checkout, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The prepared tokens, and the project as the current folder."""
    from siliconprof.datasets import training_data

    monkeypatch.chdir(project.path)
    return training_data.load(Path(DATA))


def test_only_a_whole_checkpoint_is_used(data: Any, tmp_path: Path) -> None:
    """Half a file: the run starts afresh and says why."""
    short = RUN | {"steps": 4, "checkpoint_every": 2, "evaluate_every": 4, "sample_tokens": 1}
    first, method = run(cell("mlx", **short), data, checkpoints=tmp_path)
    assert "checkpoints" not in method
    again, _ = run(cell("mlx", **short), data, checkpoints=tmp_path)
    assert again["resumed_at"] == [4]  # nothing was left to do
    assert again["curve"] == first["curve"]
    path = tmp_path / first["checkpoints"]["latest"]["path"]
    path.write_bytes(path.read_bytes()[:100])
    point, method = run(cell("mlx", **short), data, checkpoints=tmp_path)
    assert point["resumed_at"] == [] and point["curve"] == first["curve"]
    assert "no checkpoint that can be read" in method["checkpoints"]


def stepper(backend: str, precision: str = "fp32", **parameters: Any) -> Any:
    """A stepper of the tiny model."""
    asked = json.loads(cell(backend, **(TINY | parameters)).to_json()) | {"precision": precision}
    made = session_of(Cell(**asked))
    return made.backend.stepper(made.workload, 3)


def batch(step: int) -> dict[str, np.ndarray]:
    """Random tokens as inputs and, one later, labels; both (4, 32)."""
    drawn = np.random.default_rng(step).integers(0, VOCABULARY, (4, 33), dtype=np.int32)
    return {"input_ids": drawn[:, :-1].copy(), "labels": drawn[:, 1:].copy()}


def trained(made: Any, steps: range) -> list[tuple[float, float]]:
    """(loss, gradient norm) of steps."""
    return [(made.step(batch(s), NoClock())(), made.gradient_norm()) for s in steps]


# Clipped so far that AdamW's eps counts. Where it does not, it turns a gradient of almost nothing,
# which is rounding, into a whole step, and one such element took the weights 0.008 apart.
CLIPPED_AT = 1e-5
SCHEDULED = {
    "learning_rate": 0.02, "warmup_steps": 2, "decay_steps": 4,
    "weight_decay": 0.2, "betas": [0.8, 0.9], "max_gradient_norm": CLIPPED_AT,
}  # fmt: skip
# Two steps up, then half a cosine over four from the peak to a tenth of it, then constant.
COSINE = 0.009 * math.sqrt(0.5)
RATES = [0.01, 0.02, 0.02, 0.011 + COSINE, 0.011, 0.011 - COSINE, 0.002, 0.002]


def in_float64() -> tuple[list[float], list[float], dict[str, np.ndarray]]:
    """(losses, norms, weights) of eight steps by torch's own AdamW and clipping."""
    import torch

    workload = plugins.load("workloads", "transformer_lm")(
        TINY | SCHEDULED | {"dataset_vocab_size": VOCABULARY}
    )
    model = workload.torch.model(3).double()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.8, 0.9), weight_decay=0.2)
    losses, norms = [], []
    for step, rate in enumerate(RATES):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss = workload.torch.loss(
            model, {name: torch.from_numpy(a).long() for name, a in batch(step).items()}
        )
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIPPED_AT)))
        losses.append(float(loss.detach()))
        optimizer.step()
    return losses, norms, {name: w.detach().numpy() for name, w in model.named_parameters()}


def test_schedule_and_clipping_are_those_of_float64(tmp_path: Path) -> None:
    """Both frameworks against AdamW, the rates of warm-up and cosine, and clipping in float64."""
    from safetensors.numpy import load_file

    losses, norms, weights = in_float64()
    # The longest sum is the softmax's. Without the weight decay, or with a rate of another step, a
    # beta of 0.95 or clipping 10 % elsewhere, some weights are 0.01 apart or more.
    rounded = rounding(VOCABULARY, steps=len(RATES))
    for backend in CPU_BACKENDS:
        made = stepper(backend, **SCHEDULED)
        found = trained(made, range(len(RATES)))
        assert [loss for loss, _ in found] == pytest.approx(losses, rel=rounded), backend
        assert [norm for _, norm in found] == pytest.approx(norms, rel=rounded), backend
        path = tmp_path / f"{backend}.safetensors"
        made.save(path)
        kept = load_file(path)
        for name, expected in weights.items():
            apart = np.linalg.norm(kept[name] - expected) / np.linalg.norm(expected)
            assert apart < rounded, (backend, name)
    unclipped = stepper("mlx", **(SCHEDULED | {"max_gradient_norm": None}))
    assert unclipped.gradient_norm() is None
    assert trained(unclipped, range(1)) == [(pytest.approx(losses[0], rel=rounded), None)]


# -- the sweep -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_a_setting_that_diverges_is_an_outcome(project: Checkout, backend: str) -> None:
    """An absurd learning rate is recorded as what it does, and the cell is ok."""
    sweep = {"betas": [[0.9, 0.95], [0.8, 0.9]], "learning_rate": [0.003, 1e4]}
    settings = TINY | {"steps": 30, "sweep": sweep, "max_gradient_norm": None}
    record = measured(project, cell(backend, "optimizer_sweep", "sweep", **settings), backend)
    points = {(p["params"]["learning_rate"], p["params"]["beta1"]): p for p in record["points"]}
    assert points.keys() == {(0.003, 0.9), (0.003, 0.8), (1e4, 0.9), (1e4, 0.8)}
    for (rate, _), point in points.items():
        curve = point["curve"]
        assert point["outcome"]["diverged"] == (rate == 1e4)
        assert bool(point["outcome"]["reason"]) == (rate == 1e4)
        assert len(curve["loss"]) == len(curve["gradient_norm"]) == len(curve["learning_rate"])
        assert len(point["times"]["whole_step_s"]) == len(curve["loss"])
        if rate == 0.003:
            assert len(curve["loss"]) == 30
            assert point["outcome"]["final_loss"] < curve["loss"][0] - 0.3
    firsts = {point["curve"]["loss"][0] for point in points.values()}
    assert len(firsts) == 1  # the same weights and data
    assert points[0.003, 0.9]["curve"]["loss"] != points[0.003, 0.8]["curve"]["loss"]


def test_what_diverged_is_told_by_its_losses() -> None:
    """Not a number, or an end above the beginning; a training that learns has neither."""
    falls = [5.0 - 0.1 * step for step in range(20)]
    rises = [5.0, *falls[:17], 6.0, 7.0]
    for losses, diverged in ((falls, False), ([*falls, math.nan], True), (rises, True)):
        assert training_course.outcome(losses)["diverged"] is diverged
