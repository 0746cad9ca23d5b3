"""The layers of Daniel 2023 in torch, with Keras's weights.

torch convolves (B, C, H, W), its own default, so a network's output is flattened as Keras does it,
channels innermost, by a permutation. `torch.nn.LSTM` has two biases where Keras and MLX have one:
the second stays 0, is not trained and does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from siliconprof.workloads._classic_layers import LSTM, SIDE, Conv2D, Dense


class Rows(nn.Module):
    """(B, C, H, W) to (B, H W C), or (B, H, W) to (B, H W)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).flatten(1)


rows = Rows()
one_channel = nn.Unflatten(1, (1, SIDE))  # (B, H, W) to (B, 1, H, W)


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


def tensors(**arrays: Any) -> dict[str, torch.Tensor]:
    """numpy's arrays as tensors."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def dense(layer: Dense, arrays: Mapping[str, Any]) -> nn.Module:
    """Keras's kernel is (in, out), torch's weight (out, in)."""
    linear = nn.Linear(layer.n_in, layer.n_out)
    linear.load_state_dict(tensors(weight=arrays["kernel"].T, bias=arrays["bias"]))
    return linear


def convolution(layer: Conv2D, arrays: Mapping[str, Any]) -> nn.Module:
    """Keras's kernel is (H, W, in, out), torch's weight (out, in, H, W)."""
    convolution = nn.Conv2d(layer.n_in, layer.n_out, layer.kernel)
    weight = arrays["kernel"].transpose(3, 2, 0, 1)
    convolution.load_state_dict(tensors(weight=weight, bias=arrays["bias"]))
    return convolution


def lstm(layer: LSTM, arrays: Mapping[str, Any]) -> nn.Module:
    """Gates stand in the same order everywhere: input, forget, cell, output."""
    last = LastState(layer.n_in, layer.n_units)
    own = {"weight_ih_l0": arrays["kernel"].T, "weight_hh_l0": arrays["recurrent_kernel"].T}
    last.lstm.load_state_dict(tensors(**own, bias_ih_l0=arrays["bias"]), strict=False)
    return last


MAKERS = {Dense: dense, Conv2D: convolution, LSTM: lstm}
