"""Operators and bytes of one training step of `transformer_lm`.

On a GPU operators are counted where the step runs, since its kernels fuse what a CPU's do one by
one. For a CPU, and for records without that count, `launches` is a formula of what a dispatch mode
counts on the real step (torch 2.13, CPU) and of what MLX 0.32 has in the graph of one (CPU); views,
which move nothing, are left out. `tests/test_operators.py` compares it with a step's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

TENSORS_PER_LAYER, TENSORS_BESIDE = 7, 3  # weights: two norms, qkv, output, gate, up, down
ADAMW_PASSES = 7  # reads weight, gradient and both moments, writes all but the gradient
EAGER_TRAFFIC = 5.0  # see `least_bytes`
SHAPE = ("n_layer", "n_embd", "d_ff", "seq_len", "vocab_size", "n_parameters", "batch_size")


class Part(NamedTuple):
    """Operators of forward and backward pass, by the way in which a precision trains."""

    layer: int
    beside: int  # embedding, rotations, last norm, head, loss
    again: int  # of a layer that is computed again


class Operators(NamedTuple):
    """Operators of a step that launch work."""

    parts: Mapping[str, Part]  # `full`, `pure` 16 bit, `amp`: with the casts that these need
    update: tuple[int, int]  # the optimizer: of each weight tensor, and beside them
    clip: tuple[int, int]  # clipping, likewise


def way(precision: str) -> str:
    """How a precision trains: `full` fp32 or tf32, `pure` 16 bit, or `amp`."""
    if precision.startswith("amp-"):
        return "amp"
    return "pure" if precision in ("fp16", "bf16") else "full"


IN_TORCH = {"full": Part(98, 40, 34), "pure": Part(117, 49, 40), "amp": Part(118, 46, 44)}
IN_MLX = {"full": Part(233, 75, 66), "pure": Part(301, 105, 74), "amp": Part(259, 87, 74)}
# What torch does to all weights in one call and what one by one, see
# torch.utils._foreach_utils._get_foreach_kernels_supported_devices and its callers. One call for all
# is a launch or more on CUDA, so there this is too few; of MLX, which on a CPU spells out norms,
# rotations and attention, each of which is one on a GPU, it is too many there.
OF_BACKEND: Mapping[str, Operators] = {
    "torch-cpu": Operators(IN_TORCH, update=(9, 0), clip=(0, 8)),
    "torch-mps": Operators(IN_TORCH, update=(9, 0), clip=(2, 6)),
    "torch-cuda": Operators(IN_TORCH, update=(0, 9), clip=(0, 8)),
    "mlx": Operators(IN_MLX, update=(12, 0), clip=(4, 4)),
}


def launches(
    backend: str, n_layer: int, precision: str, checkpointing: bool, clipped: bool = True
) -> int | None:
    """Operators of one step that launch work; None for a backend whose step nobody has counted."""
    operators = OF_BACKEND.get(backend)
    if operators is None:
        return None
    part = operators.parts[way(precision)]
    tensors = TENSORS_PER_LAYER * n_layer + TENSORS_BESIDE
    total = (part.layer + part.again * checkpointing) * n_layer + part.beside
    for (each, beside), applies in ((operators.update, True), (operators.clip, clipped)):
        total += (each * tensors + beside) * applies
    return total


class Bytes(NamedTuple):
    """What a step moves at least, and what it works on."""

    fixed: float  # whatever the batch: weights, gradients, optimizer
    activations: float
    working_set: float  # weights, gradients, moments, kept activations


def least_bytes(step: Mapping[str, Any]) -> Bytes:
    """Bytes that a step must move at least, if every value went through memory only once per use.

    - Weights that are multiplied with are read in the forward and again in the backward pass, in
      the dtype that computes; the embedding is looked up instead. Under AMP each is read in fp32
      and written in 16 bit once besides; checkpointed layers are read a third time.
    - Gradients of all parameters, the embedding's too, are written once and read once for the norm
      that they are clipped by.
    - AdamW reads weight, gradient and both moments of every parameter and writes all but the
      gradient: 7 values.
    - What the backward pass needs of the forward pass is written and read once. Per token and
      layer: inputs and results of two norms (4 n_embd), q, k, v and what attention gives
      (4 n_embd), gate, up and their product (3 d_ff); and the last norm's two and the logits.
      Checkpointed, a layer's input once more.

    Everything else is left out: gradients of activations, and what operators hand to each other.
    Where each operator reads and writes memory of its own, all of them together moved 2.7 to 4.9
    times this on shapes from 0.17 to 7.4 million parameters (operands and results of torch's
    operators, added up): `EAGER_TRAFFIC`.

    Args:
        step: its `SHAPE`, precision and gradient_checkpointing.
    """
    layers, d, ff, seq_len, vocab, n, batch_size = (float(step[name]) for name in SHAPE)
    amp, checkpointing = way(step["precision"]) == "amp", step["gradient_checkpointing"] is True
    master = 2 if way(step["precision"]) == "pure" else 4
    width = 2 if amp else master
    multiplied, tokens = n - vocab * d, batch_size * seq_len
    weights = 2 * multiplied * width + (multiplied * (4 + 2) if amp else 0.0)
    if checkpointing:
        weights += (multiplied - vocab * d) * width
    fixed = weights + n * master * (2 + ADAMW_PASSES)
    kept = tokens * (layers * ((9 if checkpointing else 8) * d + 3 * ff) + 2 * d + vocab) * width
    return Bytes(fixed, 2 * kept, 4 * n * master + kept)
