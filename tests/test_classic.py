"""MLP, CNN and LSTM of Daniel 2023, and the trainer that runs them by epochs."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import (
    NoClock,
    cpu_cell,
    defaults,
    opened,
    record_problems,
    rounding,
)
from measuring import by_hand, session_of
from models import counted_flops, images
from siliconprof import plugins
from siliconprof.datasets import dataset_spec, prepare, synthesis, training_data
from siliconprof.errors import UserError
from siliconprof.session.cell_run import CellRun
from siliconprof.session.resolved_cell import ResolvedCell
from siliconprof.store.cell import Cell
from siliconprof.trainers.epochs import evaluate

NETWORKS = ("mlp", "cnn", "lstm")
BACKENDS = ("torch-cpu", "mlx")
PIXELS = 28 * 28  # the longest sum of an output: the dense layer on a picture
SERIES = {  # kind of step -> where its times are
    "warm-up": "warmup_step_s",
    "split": "step_s",
    "whole": "whole_step_s",
    "partial": "partial_step_s",
}
# Keras's `Model.summary()` of the article's models: Dense has n_in n_out + n_out weights, Conv2D
# 3 3 n_in n_out + n_out, LSTM 4 (n_in n + n n + n).
PARAMETERS = {
    "mlp": (784 * 512 + 512) + (512 * 64 + 64) + (64 * 10 + 10),
    "cnn": 320 + 18_496 + 36_928 + (576 * 64 + 64) + (64 * 10 + 10),
    "lstm": 4 * (28 * 128 + 128 * 128 + 128) + (128 * 10 + 10),
}
SPEC = {"name": "garments", "kind": "images", "source": "builtin"}
COUNTS = {"n_train": 100, "n_validation": 40, "n_test": 50}


def workload(name: str, **more: Any) -> Any:
    """A network with the defaults of its module."""
    return plugins.load("workloads", name)(defaults(name, **{"batch_sizes": [32]} | more))


def garments(n_train: int, n_validation: int, n_test: int) -> training_data.ImageData:
    """The first of the built-in images."""
    counts = {"train": n_train, "validation": n_validation, "test": n_test}
    parts = [synthesis.images(place, n) for place, n in enumerate(counts.values())]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return training_data.ImageData(images, labels, counts, "0" * 64, "garments")


def cell(backend: str, module: str, timing: dict[str, Any] | None = None, **more: Any) -> Cell:
    """A training on this machine's CPU."""
    how = {"trainer": "epochs", "timing": timing or {}}
    return cpu_cell(backend, module, {"batch_sizes": [32]} | more, **how)


def trained(asked: Cell, data: training_data.ImageData) -> CellRun:
    """A session whose training has run; its points pass the record's schema."""
    resolved, session = ResolvedCell(asked), session_of(asked)
    session.scenario = resolved.scenario()
    session._data = data
    resolved.trainer.prepare(session)
    resolved.trainer.run(session)
    assert record_problems(json.loads(json.dumps(session.points)), "points") == []
    return session


# -- the networks --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_are_keras_s(name: str) -> None:
    assert {"mlp": 435_402, "cnn": 93_322, "lstm": 81_674} == PARAMETERS
    assert workload(name).weights.n_parameters() == PARAMETERS[name]
    for backend in BACKENDS:
        stepper = opened(backend).stepper(workload(name), 0)
        seen = stepper.inference.dtypes(images(0, 32))
        assert seen == {
            "trained_parameters": PARAMETERS[name],
            "master_weights": "float32",
            "activations": "float32",
        }


@pytest.mark.parametrize("name", NETWORKS)
def test_operations_are_exact(name: str) -> None:
    """As torch counts what it really computes."""
    ours = workload(name)
    expected, source = ours.flops_per_step()
    assert "exact" in source
    # The counter knows no LSTM, which is decomposed on a device without values.
    counted = counted_flops(ours, images(0, 32), "meta" if name == "lstm" else "cpu")
    if name == "lstm":
        counted += 2 * 32 * 128 * 512  # by the state before the first row, which is no weight's
    assert expected == counted


@pytest.mark.parametrize("name", NETWORKS)
def test_initial_weights_are_drawn_as_keras_draws_them(name: str) -> None:
    """Glorot uniform, biases of 0 but for a forget gate's 1, an orthogonal state."""
    drawn = dict(workload(name).weights.initial(3))
    for weight, array in drawn.items():
        if weight.endswith("/kernel"):
            field = math.prod(array.shape[:-2])
            bound = math.sqrt(6 / (field * (array.shape[-2] + array.shape[-1])))
            assert 0.98 * bound < np.abs(array).max() < bound * (1 + 1e-6), weight
            assert float(array.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
    if name == "lstm":
        recurrent = drawn["0/recurrent_kernel"]  # (128, 512)
        assert np.allclose(recurrent @ recurrent.T, np.eye(128), atol=1e-5)
        gates = drawn["0/bias"].reshape(4, 128)  # input, forget, cell, output
        assert [set(gate) for gate in gates] == [{0.0}, {1.0}, {0.0}, {0.0}]


def forward(name: str, weights: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """Logits as Keras's documentation describes its layers, in float64 numpy."""

    def dense(x: np.ndarray, place: int) -> np.ndarray:
        return x @ weights[f"{place}/kernel"] + weights[f"{place}/bias"]

    def convolution(x: np.ndarray, place: int) -> np.ndarray:
        kernel = weights[f"{place}/kernel"]  # (3, 3, in, out)
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
        found = np.einsum("bxyihw,hwio->bxyo", windows, kernel, optimize=True)
        return np.maximum(found + weights[f"{place}/bias"], 0)

    def pooling(x: np.ndarray) -> np.ndarray:
        side = x.shape[1] // 2
        cut = x[:, : 2 * side, : 2 * side]
        return cut.reshape(len(x), side, 2, side, 2, -1).max(axis=(2, 4))

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    x = images.astype(np.float64)
    if name == "mlp":
        x = np.maximum(dense(x.reshape(len(x), -1), 1), 0)
        return dense(np.maximum(dense(x, 3), 0), 4)
    if name == "cnn":
        x = pooling(convolution(x[..., None], 0))
        x = convolution(pooling(convolution(x, 2)), 4)
        return dense(np.maximum(dense(x.reshape(len(x), -1), 6), 0), 7)
    state = carry = np.zeros((len(x), 128))
    for row in range(28):
        gates = dense(x[:, row], 0) + state @ weights["0/recurrent_kernel"]
        i, f, g, o = np.split(gates, 4, axis=1)
        carry = sigmoid(f) * carry + sigmoid(i) * np.tanh(g)
        state = sigmoid(o) * np.tanh(carry)
    return dense(state, 1)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_keras_s_in_torch_and_mlx(name: str) -> None:
    """Outputs as numpy computes them from the same weights; then losses of training steps."""
    batch, ours = images(5, 32), workload(name, dropout=0.0)
    weights = {
        key: array.astype(np.float64) + (0.05 if key.endswith("bias") else 0)
        for key, array in ours.weights.initial(1)
    }  # biases too: at 0 nothing would show where they are added
    ours.weights.initial = lambda seed: (
        (key, array.astype(np.float32)) for key, array in weights.items()
    )
    expected = forward(name, weights, batch["images"])
    highest = expected.max(axis=1, keepdims=True)
    shares = np.exp(expected - highest) / np.exp(expected - highest).sum(axis=1, keepdims=True)
    first = float(-np.log(shares[np.arange(32), batch["labels"]]).mean())
    losses = {}
    for backend in BACKENDS:
        stepper = opened(backend).stepper(ours, 1)
        outputs = stepper.inference.outputs(batch)
        assert outputs.dtype == np.float32
        np.testing.assert_allclose(
            outputs, expected, atol=rounding(PIXELS) * np.abs(expected).max()
        )
        optimizer = stepper.optimizer
        # A larger eps than Keras's, which turns gradients that are rounding into whole steps.
        if backend == "torch-cpu":
            assert [group["eps"] for group in optimizer.param_groups] == [1e-7]
            optimizer.param_groups[0]["eps"] = 1e-3
        else:
            assert optimizer.eps == 1e-7
            optimizer.eps = 1e-3
        found = [stepper.step(images(5 + step, 32), NoClock())() for step in range(6)]
        assert found[0] == pytest.approx(first, rel=rounding(PIXELS))
        losses[backend] = found
        if (name, backend) == ("lstm", "torch-cpu"):
            second = stepper.model[0].lstm.bias_hh_l0
            assert not second.requires_grad and not second.any()
    assert losses["torch-cpu"] == pytest.approx(losses["mlx"], rel=rounding(PIXELS, steps=6))
    assert len(set(losses["mlx"])) == 6


# -- epochs --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with prepared images in `data`."""
    made = tmp_path_factory.mktemp("classic")
    prepare.prepare(dataset_spec.parse(json.dumps(SPEC | COUNTS)), made / "data")
    return made


@pytest.mark.slow
def test_whole_epochs_are_measured(folder: Path) -> None:
    """By hand, as a rule does it: two epochs of four and of two batches, validated each."""
    asked = cell("torch-cpu", "mlp", batch_sizes=[32, 16], epochs=2)
    made = by_hand(dataclasses.replace(asked, dataset="data"), folder)
    assert made["status"] == "ok", made["reason"]
    assert [p["params"]["batch_size"] for p in made["points"]] == [32, 16]
    for point, steps, rest in zip(made["points"], (4, 7), (4, 4), strict=True):
        size = point["params"]["batch_size"]
        assert 100 - (steps - 1) * size == rest
        times, epoch = point["times"], point["epoch"]
        kinds = point["steps"]["kind"][: 2 * steps]
        partial = [at for at, kind in enumerate(kinds) if kind == "partial"]
        assert partial == [steps - 1, 2 * steps - 1]
        assert kinds[0] == "warm-up" and {"split", "whole"} <= set(kinds)
        for kind, series in SERIES.items():
            assert len(times[series]) == kinds.count(kind), kind
        assert epoch["means"] == "measured"
        assert epoch["steps"] == epoch["measured_steps"] == steps
        assert epoch["measured_validation_steps"] == math.ceil(40 / size)
        spent = {kind: iter(times[series]) for kind, series in SERIES.items()}
        in_order = [next(spent[kind]) for kind in kinds]
        assert epoch["train_s"] == pytest.approx([sum(in_order[:steps]), sum(in_order[steps:])])
        evaluations = point["evaluations"]
        assert [found["step"] for found in evaluations] == [steps, 2 * steps]
        assert epoch["validation_s"] == pytest.approx([found["seconds"] for found in evaluations])
        assert epoch["epoch_s"] == pytest.approx(
            [a + b for a, b in zip(epoch["train_s"], epoch["validation_s"], strict=True)]
        )
        assert point["test"]["samples"] == 50 and point["test"]["trained_steps"] == 2 * steps
        assert point["memory"]["device_peak_bytes"] > 4 * 4 * PARAMETERS["mlp"]


def test_steps_are_extrapolated_to_an_epoch_and_say_so() -> None:
    timing = {"iterations": 3, "max_iterations": 3}
    most = {"max_steps": 14, "max_validation_steps": 2, "max_test_steps": 1}
    asked = cell("mlx", "mlp", timing, batch_sizes=[8], **most)
    (point,) = trained(asked, garments(60, 41, 30)).points
    times, epoch = point["times"], point["epoch"]
    assert epoch["means"] == "extrapolated"
    assert (epoch["steps"], epoch["validation_steps"]) == (8, 6)  # each with a smaller last one
    assert point["steps"]["kind"] == (
        ["warm-up"]
        + ["split", "whole"] * 3
        + ["partial"]
        + ["whole"] * 6
        + ["unsynchronised"] * len(times["unsynchronised_step_s"]) * point["unsynchronised_steps"]
    )
    assert epoch["measured_steps"] == len(times["whole_step_s"]) == 9
    assert epoch["train_s"] == [8 * float(np.median(times["whole_step_s"]))]
    assert epoch["measured_validation_steps"] == 2
    (evaluation,) = point["evaluations"]
    assert evaluation["step"] == 14
    (validation_s,) = epoch["validation_s"]  # from the second of two batches
    assert 0 < validation_s < 6 * evaluation["seconds"]
    assert point["test"]["samples"] == 8


def test_loss_and_accuracy_are_those_of_the_whole_part() -> None:
    """What validation says of untrained batches of any size is what one large batch says."""
    data = garments(40, 50, 20)
    asked = cell("torch-cpu", "mlp")
    found = []
    for size in (16, 50):
        session = CellRun(asked, opened("torch-cpu"), workload("mlp", batch_size=size), print)
        session._data, session.progress = data, lambda *_: None
        stepper = session.backend.stepper(session.workload, 0)
        found.append(evaluate(session, stepper, "validation", None))
    weights = {k: a.astype(np.float64) for k, a in workload("mlp").weights.initial(0)}
    part = next(data.part_batches("validation", 50))
    logits = forward("mlp", weights, part["images"])
    right = float((logits.argmax(axis=1) == part["labels"]).mean())
    logarithms = np.log(np.exp(logits).sum(axis=1))
    loss = float((logarithms - logits[np.arange(50), part["labels"]]).mean())
    for (batch_s, result), n_batches in zip(found, (4, 1), strict=True):
        assert (result["samples"], len(batch_s)) == (50, n_batches)
        assert result["loss"] == pytest.approx(loss, rel=rounding(PIXELS))
        assert result["accuracy"] == right


# -- what is refused -----------------------------------------------------------------------------


def test_what_cannot_be_is_said_in_a_line() -> None:
    with pytest.raises(UserError, match="batch_sizes: 30 makes 2 whole batches of 60 images"):
        trained(cell("mlx", "mlp", batch_sizes=[8, 30]), garments(60, 10, 10))
    half = dataclasses.replace(cell("mlx", "mlp"), precision="bf16")
    status, reason = ResolvedCell(half).refusal() or ("", "")
    assert status == "unsupported" and "fp32" in reason
    near = dataclasses.replace(cell("mlx", "mlp"), scenario="near-capacity")
    status, reason = ResolvedCell(near).refusal() or ("", "")
    assert status == "skipped" and "no memory model" in reason
