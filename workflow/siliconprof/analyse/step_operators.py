"""How many operators one training step of GPT-2 or Whisper launches, by formula.

Counted as `step_work` counts `transformer_lm`: in torch 2.13 with transformers 5.23 what a dispatch
mode sees on the second step, in MLX 0.32 what the graph of a step holds, both on a CPU and without
views; the optimizer counts as in `step_work`. The Trainer drives the same operators.
`tests/test_attribution.py` counts again and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from siliconprof.analyse import step_work
from siliconprof.analyse.equal_work import checkpointed
from siliconprof.workloads import gpt2, whisper


class Tensors(NamedTuple):
    """Trained weight tensors of a model."""

    layer: int
    beside: int


class Part(NamedTuple):
    """Operators of forward and backward pass, by the way in which a precision trains."""

    layer: int  # of Whisper one layer of the encoder and one of the decoder
    beside: int
    again: int  # of a layer that is computed again
    again_beside: int = 0


class Model(NamedTuple):
    """What one model asks of torch and of MLX."""

    tensors: Tensors
    torch: Mapping[str, Part]  # way of `step_work.way` -> operators
    mlx: Mapping[str, Part]

    def part(self, backend: str, precision: str) -> Part:
        """Forward and backward pass on a backend, which is named after its framework."""
        ways: Mapping[str, Part] = getattr(self, backend.partition("-")[0])
        return ways[step_work.way(precision)]


MODELS = {
    "gpt2": Model(
        Tensors(12, 4),
        {"full": Part(34, 26, 15), "pure": Part(34, 28, 15), "amp": Part(56, 32, 25)},
        {"full": Part(264, 105, 44), "pure": Part(332, 131, 48), "amp": Part(296, 119, 48)},
    ),
    "gpt2 with LoRA": Model(
        Tensors(2, 0),
        {"full": Part(46, 20, 19, 5), "pure": Part(46, 22, 19, 5), "amp": Part(66, 23, 32, 7)},
        {"full": Part(140, 30, 47), "pure": Part(158, 34, 51), "amp": Part(164, 38, 51)},
    ),
    "whisper": Model(
        Tensors(39, 10),
        {"full": Part(76, 31, 42), "pure": Part(76, 32, 42), "amp": Part(161, 47, 82)},
        {"full": Part(766, 250, 102), "pure": Part(981, 310, 112), "amp": Part(864, 281, 112)},
    ),
}


def n_layer(row: Mapping[str, Any]) -> int | None:
    """Layers of a training's model, of Whisper those of the encoder; None where nobody tells."""
    if row.get("n_layer"):
        return int(row["n_layer"])
    size = str(row.get("size"))
    if row["module"] == "gpt2" and size in gpt2.SIZES:
        return gpt2.SIZES[size][0]
    if row["module"] == "whisper" and size in whisper.SIZES:
        return whisper.SIZES[size][1]
    return None


def launches(row: Mapping[str, Any]) -> tuple[int | None, str]:
    """(operators of one step that launch work, how they were counted or why not).

    Args:
        row: a training's point with `size`, `lora_rank` and `gradient_checkpointing` of its cell.
    """
    layers, module, backend = n_layer(row), row["module"], row["backend"]
    again = checkpointed(row)
    if module == "transformer_lm" and layers:
        clipped = row.get("max_gradient_norm") is not None
        return step_work.launches(backend, layers, row["precision"], again, clipped)
    model = MODELS.get(f"{module} with LoRA" if row.get("lora_rank") else module)
    operators = step_work.OF_BACKEND.get(backend)
    if model is None or layers is None or operators is None:
        return None, f"nobody has counted the operators of a step of {module} on {backend}"
    part = model.part(backend, row["precision"])
    total = part.layer * layers + part.beside
    total += (part.again * layers + part.again_beside) * again
    return total + update(model, layers, operators), operators.how


def update(model: Model, layers: int, operators: step_work.Operators) -> int:
    """Operators of the optimizer alone."""
    each, beside = operators.update
    return each * (model.tensors.layer * layers + model.tensors.beside) + beside
