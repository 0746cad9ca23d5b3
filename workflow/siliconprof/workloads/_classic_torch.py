"""The layers of Daniel 2023 in torch, from Keras's weights.

torch convolves (B, C, H, W), its own default, so a network's output is flattened as Keras does it,
channels innermost, by a permutation. `torch.nn.LSTM` has two biases where Keras and MLX have one:
the second stays 0, is not trained and does not count.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Rows(nn.Module):
    """(B, C, H, W) to (B, H W C), or (B, H, W) to (B, H W)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).flatten(1)


rows = Rows()
one_channel = nn.Unflatten(1, (1, -1))  # (B, H, W) to (B, 1, H, W)


class LastState(nn.Module):
    """(B, T, D) to an LSTM's last state (B, H)."""

    def __init__(self, n_in: int, n_units: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(n_in, n_units, batch_first=True)
        with torch.no_grad():
            self.lstm.bias_hh_l0.zero_()
        self.lstm.bias_hh_l0.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(x)
        return states[:, -1]


def filled(module: nn.Module, **arrays: Any) -> nn.Module:
    """A module with numpy's arrays as its weights; others stay as they are."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    module.load_state_dict(tensors, strict=False)
    return module


def dense(kernel: Any, bias: Any) -> nn.Module:
    """Keras's kernel is (in, out), torch's weight (out, in)."""
    return filled(nn.Linear(*kernel.shape), weight=kernel.T, bias=bias)


def convolution(kernel: Any, bias: Any) -> nn.Module:
    """Keras's kernel is (H, W, in, out), torch's weight (out, in, H, W)."""
    side, _, n_in, n_out = kernel.shape
    return filled(nn.Conv2d(n_in, n_out, side), weight=kernel.transpose(3, 2, 0, 1), bias=bias)


def lstm(kernel: Any, recurrent_kernel: Any, bias: Any) -> nn.Module:
    """Gates stand in the same order everywhere: input, forget, cell, output."""
    last = LastState(len(kernel), len(recurrent_kernel))
    weights = {"weight_ih_l0": kernel.T, "weight_hh_l0": recurrent_kernel.T, "bias_ih_l0": bias}
    filled(last.lstm, **weights)
    return last
