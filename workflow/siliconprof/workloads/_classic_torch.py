"""The networks of Daniel 2023 in torch, from their layers and Keras's weights.

torch convolves (B, C, H, W), its own default, so a network's output is flattened as Keras does it,
channels innermost, by a permutation. `torch.nn.LSTM` has two biases where Keras and MLX have one:
the second stays 0, is not trained and does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from siliconprof.workloads import _classic_layers as kinds


class Rows(nn.Module):
    """(B, C, H, W) to (B, H W C), or (B, H, W) to (B, H W)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).flatten(1)


class OneChannel(nn.Module):
    """(B, H, W) to (B, 1, H, W)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return x.unsqueeze(1)


class LastState(nn.Module):
    """(B, T, D) to an LSTM's last state (B, H)."""

    def __init__(self, n_in: int, n_units: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(n_in, n_units, batch_first=True)
        with torch.no_grad():
            self.lstm.bias_hh_l0.zero_()
        self.lstm.bias_hh_l0.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        states, _ = self.lstm(x)
        return states[:, -1]


def model(
    layers: Sequence[kinds.Layer], weights: Sequence[Mapping[str, Any]], dropout: float
) -> nn.Sequential:
    """The network, fp32, on the CPU: images (B, 28, 28) to logits (B, 10).

    Args:
        weights: of every layer, in Keras's names and layouts.
    """
    built: list[nn.Module] = []
    if isinstance(layers[0], kinds.Conv2D):
        built.append(OneChannel())
    for layer, arrays in zip(layers, weights, strict=True):
        values = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if isinstance(layer, kinds.Dense):
            built += _dense(layer, values)
        elif isinstance(layer, kinds.Conv2D):
            built += _convolution(layer, values)
        elif isinstance(layer, kinds.LSTM):
            built.append(_lstm(layer, values))
        elif isinstance(layer, kinds.MaxPooling2D):
            built.append(nn.MaxPool2d(2))
        elif isinstance(layer, kinds.Dropout):
            built.append(nn.Dropout(dropout))
        else:
            built.append(Rows())
    return nn.Sequential(*built)


def _dense(layer: kinds.Dense, values: Mapping[str, torch.Tensor]) -> list[nn.Module]:
    """Keras's kernel is (in, out), torch's weight (out, in)."""
    linear = nn.Linear(layer.n_in, layer.n_out)
    linear.load_state_dict({"weight": values["kernel"].T, "bias": values["bias"]})
    return [linear, nn.ReLU()] if layer.relu else [linear]


def _convolution(layer: kinds.Conv2D, values: Mapping[str, torch.Tensor]) -> list[nn.Module]:
    """Keras's kernel is (H, W, in, out), torch's weight (out, in, H, W)."""
    convolution = nn.Conv2d(layer.n_in, layer.n_out, layer.kernel)
    weight = values["kernel"].permute(3, 2, 0, 1)
    convolution.load_state_dict({"weight": weight, "bias": values["bias"]})
    return [convolution, nn.ReLU()]


def _lstm(layer: kinds.LSTM, values: Mapping[str, torch.Tensor]) -> nn.Module:
    """Gates stand in the same order everywhere: input, forget, cell, output."""
    last = LastState(layer.n_in, layer.n_units)
    with torch.no_grad():
        last.lstm.weight_ih_l0.copy_(values["kernel"].T)
        last.lstm.weight_hh_l0.copy_(values["recurrent_kernel"].T)
        last.lstm.bias_ih_l0.copy_(values["bias"])
    return last
