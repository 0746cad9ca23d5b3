"""Random integers for the built-in data, the same on every host and with every NumPy.

They come from PCG64's own stream, which NumPy keeps (NEP 19), and from integer arithmetic. What
NumPy's `Generator` makes of that stream may change.
"""

from __future__ import annotations

import math

import numpy as np


class Draws:
    """One stream of random integers.

    Seeds that differ only in zeros at their end give the same stream.
    """

    def __init__(self, *seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def between(self, low: int, high: int, *shape: int) -> np.ndarray:
        """int64 of a shape, from low to high, both included."""
        raw = self._bits.random_raw(math.prod(shape)) >> np.uint64(32)
        return low + (raw % np.uint64(high - low + 1)).astype(np.int64).reshape(shape)
