"""Keras's layers as Daniel 2023 uses them: their weights, their work, their initial values.

Weights have Keras's names, layouts and initial values: Glorot uniform kernels, orthogonal recurrent
kernels, biases 0, and 1 for an LSTM's forget gate (keras.io/api/layers and /initializers). numpy
draws them. Shapes are given without the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

SIDE, CLASSES = 28, 10  # of the images
KERNEL = 3  # pixels on a side that a convolution sees


class Layer(NamedTuple):
    """A layer of a network.

    Args:
        kind: flatten (channels innermost), dropout, pooling (2 × 2, a rest is dropped), dense,
            convolution or lstm.
        weights: Keras's name of each -> (shape in Keras's layout, name of its initializer).
        multiply_adds: of one sample forward: (of the layer's input, of its own state).
        relu: whether a ReLU follows.
    """

    kind: str
    weights: Mapping[str, tuple[tuple[int, ...], str]] = {}
    multiply_adds: tuple[int, int] = (0, 0)
    relu: bool = False


FLATTEN, DROPOUT, MAX_POOLING = Layer("flatten"), Layer("dropout"), Layer("pooling")


def dense(n_in: int, n_out: int, relu: bool = True) -> Layer:
    """n_in to n_out values, with a bias."""
    weights = {"kernel": ((n_in, n_out), "glorot"), "bias": ((n_out,), "zeros")}
    return Layer("dense", weights, (n_in * n_out, 0), relu)


def convolution(side: int, n_in: int, n_out: int) -> Layer:
    """3 × 3 convolution of (side, side, n_in) to (side - 2, side - 2, n_out), no padding; ReLU."""
    kernel = (KERNEL, KERNEL, n_in, n_out)
    weights = {"kernel": (kernel, "glorot"), "bias": ((n_out,), "zeros")}
    multiply_adds = (side - KERNEL + 1) ** 2 * math.prod(kernel)
    return Layer("convolution", weights, (multiply_adds, 0), relu=True)


def lstm(n_steps: int, n_in: int, n_units: int) -> Layer:
    """n_steps rows of n_in values to the last state, n_units values; gates i, f, g, o.

    The first row's state of zeros counts as any other.
    """
    gates = 4 * n_units
    weights = {
        "kernel": ((n_in, gates), "glorot"),
        "recurrent_kernel": ((n_units, gates), "orthogonal"),
        "bias": ((gates,), "unit_forget"),
    }
    return Layer("lstm", weights, (n_steps * n_in * gates, n_steps * n_units * gates))


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
