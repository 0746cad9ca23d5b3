"""The layers of Daniel 2023 in MLX, with Keras's weights.

MLX convolves (B, H, W, C) as Keras does, and its LSTM has one bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from siliconprof.workloads._classic_layers import LSTM, Conv2D, Dense


def rows(x: mx.array) -> mx.array:
    """(B, H, W, C) or (B, H, W) to (B, H W C)."""
    return x.reshape(x.shape[0], -1)


def one_channel(x: mx.array) -> mx.array:
    """(B, H, W) to (B, H, W, 1)."""
    return x[..., None]


class LastState(nn.Module):
    """(B, T, D) to an LSTM's last state (B, H)."""

    def __init__(self, n_in: int, n_units: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(n_in, n_units)

    def __call__(self, x: mx.array) -> mx.array:
        states, _ = self.lstm(x)
        return states[:, -1]


def filled(module: nn.Module, **arrays: Any) -> nn.Module:
    """A module with numpy's arrays as its weights."""
    module.update({name: mx.array(array) for name, array in arrays.items()})
    return module


def dense(layer: Dense, arrays: Mapping[str, Any]) -> nn.Module:
    """Keras's kernel is (in, out), MLX's weight (out, in)."""
    linear = nn.Linear(layer.n_in, layer.n_out)
    return filled(linear, weight=arrays["kernel"].T, bias=arrays["bias"])


def convolution(layer: Conv2D, arrays: Mapping[str, Any]) -> nn.Module:
    """Keras's kernel is (H, W, in, out), MLX's weight (out, H, W, in)."""
    convolution = nn.Conv2d(layer.n_in, layer.n_out, layer.kernel)
    weight = arrays["kernel"].transpose(3, 0, 1, 2)
    return filled(convolution, weight=weight, bias=arrays["bias"])


def lstm(layer: LSTM, arrays: Mapping[str, Any]) -> nn.Module:
    """Gates stand in the same order everywhere: input, forget, cell, output."""
    last = LastState(layer.n_in, layer.n_units)
    own = {"Wx": arrays["kernel"].T, "Wh": arrays["recurrent_kernel"].T}
    filled(last.lstm, **own, bias=arrays["bias"])
    return last


MAKERS = {Dense: dense, Conv2D: convolution, LSTM: lstm}
