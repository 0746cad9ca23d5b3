"""Whisper's weights: their names and shapes in transformers, and the positions that are fixed."""

from __future__ import annotations

import math
from typing import Any

KERNEL = 3  # frames that each of the two convolutions sees
POSITIONS = "encoder.embed_positions.weight"  # fixed


def weight_shapes(
    d_model: int, n_layer: int, n_mels: int, source_len: int, target_positions: int, vocab_size: int
) -> dict[str, tuple[int, ...]]:
    """Name in transformers' state -> shape; encoder and decoder have `n_layer` layers each.

    The output head shares the token embedding and has no weights of its own.
    """
    d, d_ff = d_model, 4 * d_model
    shapes: dict[str, tuple[int, ...]] = {}

    def norm(name: str) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (d,)

    def linear(name: str, outputs: int, *inputs: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, *inputs), (outputs,)

    def attention(name: str) -> None:
        for projection in ("q_proj", "v_proj", "out_proj"):
            linear(f"{name}.{projection}", d, d)
        shapes[f"{name}.k_proj.weight"] = (d, d)  # a bias of all keys would change nothing
        norm(f"{name}_layer_norm")

    def feed_forward(layer: str) -> None:
        linear(f"{layer}.fc1", d_ff, d)
        linear(f"{layer}.fc2", d, d_ff)
        norm(f"{layer}.final_layer_norm")

    linear("encoder.conv1", d, n_mels, KERNEL)
    linear("encoder.conv2", d, d, KERNEL)
    shapes[POSITIONS] = (source_len, d)
    for index in range(n_layer):
        attention(f"encoder.layers.{index}.self_attn")
        feed_forward(f"encoder.layers.{index}")
    norm("encoder.layer_norm")
    shapes["decoder.embed_tokens.weight"] = (vocab_size, d)
    shapes["decoder.embed_positions.weight"] = (target_positions, d)
    for index in range(n_layer):
        attention(f"decoder.layers.{index}.self_attn")
        attention(f"decoder.layers.{index}.encoder_attn")
        feed_forward(f"decoder.layers.{index}")
    norm("decoder.layer_norm")
    return shapes


def sinusoids(length: int, channels: int) -> Any:
    """The encoder's positions, float32 (length, channels): sines, then cosines.

    Wavelengths from 2 pi to 20,000 pi in a geometric row (Vaswani et al. 2017, arXiv:1706.03762,
    section 3.5, with the channels in Whisper's order); computed in float64.
    """
    import numpy as np

    half = channels // 2
    rates = np.exp(-math.log(10000) / (half - 1) * np.arange(half))
    angles = np.arange(length)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
