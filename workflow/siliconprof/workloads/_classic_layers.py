"""Keras's layers as Daniel 2023 uses them: their weights, their work, their initial values.

Weights have Keras's names, layouts and initial values: Glorot uniform kernels, orthogonal recurrent
kernels, biases 0, and 1 for an LSTM's forget gate (keras.io/api/layers and /initializers). numpy
draws them. Shapes are given without the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import numpy as np

SIDE, CLASSES = 28, 10  # of the images


@dataclass(frozen=True)
class Layer:
    """A layer of a network."""

    def weights(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Keras's name of each weight -> (shape in Keras's layout, name of its initializer)."""
        return {}

    def multiply_adds(self) -> tuple[int, int]:
        """Multiply-adds of one sample forward: (of the layer's input, of its own state)."""
        return 0, 0


@dataclass(frozen=True)
class Flatten(Layer):
    """(H, W, C) or (H, W) to a row, channels innermost."""


@dataclass(frozen=True)
class Dropout(Layer):
    """In training a share of the values becomes 0, and the others are scaled up to compensate."""


@dataclass(frozen=True)
class MaxPooling2D(Layer):
    """The largest of every 2 × 2; a row or column that is left over is dropped."""


@dataclass(frozen=True)
class Dense(Layer):
    """n_in to n_out values, with a bias; with or without ReLU."""

    n_in: int
    n_out: int
    relu: bool = True

    def weights(self) -> dict[str, tuple[tuple[int, ...], str]]:
        return {"kernel": ((self.n_in, self.n_out), "glorot"), "bias": ((self.n_out,), "zeros")}

    def multiply_adds(self) -> tuple[int, int]:
        return self.n_in * self.n_out, 0


@dataclass(frozen=True)
class Conv2D(Layer):
    """3 × 3 convolution of (side, side, n_in) to (side - 2, side - 2, n_out), no padding; ReLU."""

    side: int
    n_in: int
    n_out: int
    kernel: ClassVar[int] = 3

    def weights(self) -> dict[str, tuple[tuple[int, ...], str]]:
        shape = (self.kernel, self.kernel, self.n_in, self.n_out)
        return {"kernel": (shape, "glorot"), "bias": ((self.n_out,), "zeros")}

    def multiply_adds(self) -> tuple[int, int]:
        positions = (self.side - self.kernel + 1) ** 2
        return positions * self.kernel**2 * self.n_in * self.n_out, 0


@dataclass(frozen=True)
class LSTM(Layer):
    """n_steps rows of n_in values to the last state, n_units values; gates i, f, g, o."""

    n_steps: int
    n_in: int
    n_units: int

    def weights(self) -> dict[str, tuple[tuple[int, ...], str]]:
        gates = 4 * self.n_units
        return {
            "kernel": ((self.n_in, gates), "glorot"),
            "recurrent_kernel": ((self.n_units, gates), "orthogonal"),
            "bias": ((gates,), "unit_forget"),
        }

    def multiply_adds(self) -> tuple[int, int]:
        """The first row's state of zeros counts as any other."""
        gates = 4 * self.n_units
        return self.n_steps * self.n_in * gates, self.n_steps * self.n_units * gates


def drawn(shape: tuple[int, ...], how: str, generator: Any) -> np.ndarray:
    """A weight's initial values, float32; constant ones draw nothing from the generator."""
    import numpy as np

    if how == "glorot":  # kernels are (…, n_in, n_out), and fans count the positions before
        field = math.prod(shape[:-2])
        bound = math.sqrt(6 / (field * (shape[-2] + shape[-1])))
        return generator.uniform(-bound, bound, shape).astype(np.float32)
    if how == "orthogonal":
        rows, columns = shape
        q, r = np.linalg.qr(generator.standard_normal((max(shape), min(shape))))
        q = q * np.sign(np.diag(r))  # else not uniform over all rotations
        return (q.T if rows < columns else q).astype(np.float32)
    values = np.zeros(shape, np.float32)
    if how == "unit_forget":
        values[shape[0] // 4 : shape[0] // 2] = 1
    return values
