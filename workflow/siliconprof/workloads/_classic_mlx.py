"""The layers of Daniel 2023 in MLX, from Keras's weights.

MLX convolves (B, H, W, C) as Keras does, and its LSTM has one bias.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn


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


def dense(kernel: Any, bias: Any) -> nn.Module:
    """Keras's kernel is (in, out), MLX's weight (out, in)."""
    return filled(nn.Linear(*kernel.shape), weight=kernel.T, bias=bias)


def convolution(kernel: Any, bias: Any) -> nn.Module:
    """Keras's kernel is (H, W, in, out), MLX's weight (out, H, W, in)."""
    side, _, n_in, n_out = kernel.shape
    return filled(nn.Conv2d(n_in, n_out, side), weight=kernel.transpose(3, 0, 1, 2), bias=bias)


def lstm(kernel: Any, recurrent_kernel: Any, bias: Any) -> nn.Module:
    """Gates stand in the same order everywhere: input, forget, cell, output."""
    last = LastState(len(kernel), len(recurrent_kernel))
    filled(last.lstm, Wx=kernel.T, Wh=recurrent_kernel.T, bias=bias)
    return last
