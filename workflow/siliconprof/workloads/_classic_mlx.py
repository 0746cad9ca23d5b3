"""The networks of Daniel 2023 in MLX, from their layers and Keras's weights.

MLX convolves (B, H, W, C) as Keras does, and its LSTM has one bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from siliconprof.workloads import _classic_layers as kinds


class Rows(nn.Module):
    """(B, H, W, C) or (B, H, W) to (B, H W C)."""

    def __call__(self, x: mx.array) -> mx.array:
        """See the class."""
        return x.reshape(x.shape[0], -1)


class OneChannel(nn.Module):
    """(B, H, W) to (B, H, W, 1)."""

    def __call__(self, x: mx.array) -> mx.array:
        """See the class."""
        return x[..., None]


class LastState(nn.Module):
    """(B, T, D) to an LSTM's last state (B, H)."""

    def __init__(self, n_in: int, n_units: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(n_in, n_units)

    def __call__(self, x: mx.array) -> mx.array:
        """See the class."""
        states, _ = self.lstm(x)
        return states[:, -1]


def model(
    layers: Sequence[kinds.Layer], weights: Sequence[Mapping[str, Any]], dropout: float
) -> nn.Sequential:
    """The network, fp32: images (B, 28, 28) to logits (B, 10).

    Args:
        weights: of every layer, in Keras's names and layouts.
    """
    built: list[nn.Module] = []
    if isinstance(layers[0], kinds.Conv2D):
        built.append(OneChannel())
    for layer, arrays in zip(layers, weights, strict=True):
        if isinstance(layer, kinds.Dense):
            # Keras's kernel is (in, out), MLX's weight (out, in).
            linear = nn.Linear(layer.n_in, layer.n_out)
            kernel = arrays["kernel"].T
            linear.update({"weight": mx.array(kernel), "bias": mx.array(arrays["bias"])})
            built += [linear, nn.ReLU()] if layer.relu else [linear]
        elif isinstance(layer, kinds.Conv2D):
            # (H, W, in, out), and (out, H, W, in) in MLX.
            convolution = nn.Conv2d(layer.n_in, layer.n_out, layer.kernel)
            kernel = arrays["kernel"].transpose(3, 0, 1, 2)
            convolution.update({"weight": mx.array(kernel), "bias": mx.array(arrays["bias"])})
            built += [convolution, nn.ReLU()]
        elif isinstance(layer, kinds.LSTM):
            # Gates stand in the same order everywhere: input, forget, cell, output.
            last = LastState(layer.n_in, layer.n_units)
            last.lstm.update(
                {
                    "Wx": mx.array(arrays["kernel"].T),
                    "Wh": mx.array(arrays["recurrent_kernel"].T),
                    "bias": mx.array(arrays["bias"]),
                }
            )
            built.append(last)
        elif isinstance(layer, kinds.MaxPooling2D):
            built.append(nn.MaxPool2d(2))
        elif isinstance(layer, kinds.Dropout):
            built.append(nn.Dropout(dropout))
        else:
            built.append(Rows())
    return nn.Sequential(*built)
