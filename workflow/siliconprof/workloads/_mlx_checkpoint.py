"""Gradient checkpointing of an MLX model's layers, as transformers does it in torch.

A layer's call is wrapped in `mx.checkpoint`: of the forward pass only its inputs stay, and the
backward pass computes the rest again. The class is changed for the given layers alone; mlx-lm's
own helper changes it for every model in the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def checkpoint(layers: Iterable[Any], output: Callable[[Any], Any] = lambda result: result) -> None:
    """Checkpoint layers in place; `output` selects what the model needs of a layer's result."""
    classes: dict[type, type] = {}
    for layer in layers:
        kind = type(layer)
        if kind not in classes:
            classes[kind] = _checkpointed(kind, output)
        layer.__class__ = classes[kind]


def _checkpointed(kind: Any, output: Callable[[Any], Any]) -> type:
    import mlx.core as mx

    def call(self: Any, *inputs: Any, **options: Any) -> Any:
        def run(parameters: Any, *inputs: Any) -> Any:
            self.update(parameters)
            return output(kind.__call__(self, *inputs, **options))

        return mx.checkpoint(run)(self.trainable_parameters(), *inputs)

    return type(f"Checkpointed{kind.__name__}", (kind,), {"__call__": call})
