"""Models of a training are the same in torch and in MLX: loss, and gradient of every tensor."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import pytest
from conftest import opened, rounding
from models import gpt2, lm, noise, tensors, tokens, whisper, words

Found = tuple[float, dict[str, np.ndarray]]


def in_torch(workload: Any, batch: dict[str, np.ndarray]) -> Found:
    """(loss, gradient of each parameter by torch's name)."""
    opened("torch-cpu")
    model = workload.torch.model(5).train()
    loss = workload.torch.loss(model, tensors(batch))
    loss.backward()
    named = getattr(model, "transformer", model).named_parameters()
    return loss.item(), {name: p.grad.numpy() for name, p in named if p.requires_grad}


def in_mlx(workload: Any, batch: dict[str, np.ndarray], theirs: dict[str, Any]) -> tuple[Any, ...]:
    """(loss, gradients by MLX's name, those of torch by MLX's name)."""
    mx = opened("mlx").mx
    from mlx.utils import tree_flatten

    model = workload.mlx.model(5)
    arrays = {name: mx.array(array) for name, array in batch.items()}

    def loss_of(parameters: Any) -> Any:
        model.update(parameters)
        return workload.mlx.loss(model, arrays)

    loss, gradients = mx.value_and_grad(loss_of)(model.trainable_parameters())
    if hasattr(model, "sanitize"):
        theirs = model.sanitize({name: mx.array(value) for name, value in theirs.items()})
    ours = {name: np.array(value) for name, value in tree_flatten(gradients)}
    return loss.item(), ours, {name: np.array(value) for name, value in theirs.items()}


@pytest.mark.parametrize(
    ("workload", "batch"),
    [
        (gpt2(), tokens(11)),
        (whisper(clip_seconds=1), None),
        (whisper(clip_seconds=3), None),
        (lm(), None),
        (lm(gradient_checkpointing=True), None),
    ],
    ids=["gpt2", "whisper", "whisper, 3 s", "transformer_lm", "checkpointed"],
)
def test_a_model_is_the_same_in_torch_and_mlx(workload: Any, batch: Any) -> None:
    if batch is None:
        spoken = hasattr(workload, "clip_seconds")
        batch = noise(workload) if spoken else dict(next(workload.batches(words(), 3)))
    expected_loss, expected = in_torch(workload, batch)
    loss, found, expected = in_mlx(workload, batch, expected)
    assert expected_loss == pytest.approx(math.log(workload.vocab_size), abs=0.3)  # nothing learned
    assert loss == pytest.approx(expected_loss, rel=rounding(workload.vocab_size))
    assert found.keys() == expected.keys()
    assert sum(value.size for value in found.values()) == workload.weights.n_trainable_parameters()
    within = rounding(workload.vocab_size, steps=2)  # forward and backward
    for name, value in found.items():
        scale = np.linalg.norm(expected[name])
        assert scale > 1e-6 or name.endswith("c_attn.bias"), name  # a gradient reaches it
        assert np.linalg.norm(value - expected[name]) <= within * max(scale, 1e-2), name


@pytest.mark.parametrize("workload", [gpt2(lora_rank=4), whisper(clip_seconds=1)])
def test_a_model_that_nobody_else_initialises_is_the_same(
    workload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, parameters and buffers: transformers' own values are all replaced."""
    opened("torch-cpu")
    import torch
    from transformers import initialization

    def values() -> dict[str, Any]:
        torch.manual_seed(0)
        model = workload.torch.model(5)
        return dict(model.named_parameters()) | dict(model.named_buffers())

    own = values()
    monkeypatch.setattr(initialization, "no_init_weights", contextlib.nullcontext)
    theirs = values()
    assert own.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in own.items())
