"""The operators of a training step that is traced and not computed, each timed by itself.

A step's operators repeat: some 250 are distinct, whatever the depth. Whether an operand comes from
a cache decides how long an operator takes, so two calls are alike only if the same operands are cold:
those since whose last use more bytes were moved than the last-level cache holds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

from siliconprof.backends._step import Operator
from siliconprof.hosts import caches, machine

SMALL_BYTES = 2**16  # of an operand: smaller ones count as cached
ALIGNED = 64  # elements
# glibc gives larger blocks back to the system, to begin with (mallopt(3), M_MMAP_THRESHOLD).
MAPPED_BYTES = 2**17
VALUE = 0.05  # of floats; integers are 1, so that they are valid indices


class Call(NamedTuple):
    """An operator of a step that was traced."""

    operator: Operator
    alike: Hashable  # equal for calls that do the same on operands laid out and cached alike
    # Allocates operands; returns a function that runs the operator once and returns its seconds.
    alone: Callable[[], Callable[[], float]]


def give_memory_back() -> None:
    """Return free memory to the system, so that the pages of the next result fault."""
    if not machine.is_mac():
        ctypes.CDLL(None).malloc_trim(0)


class Reuse:
    """Predicts which operands a step's operators find in the last-level cache, by the bytes moved since."""

    def __init__(self) -> None:
        self.cache_bytes = caches.beyond_bytes(caches.last_level_bytes()[0]) // 2
        self._moved_bytes = 0
        self._last: dict[Hashable, int] = {}

    def cold(self, arrays: Iterable[Hashable]) -> tuple[bool, ...]:
        """Whether each operand comes from memory."""
        oldest = self._moved_bytes - self.cache_bytes
        return tuple(self._last.get(name, -1) < max(oldest, 0) for name in arrays)

    def used(self, arrays: Iterable[Hashable], moved_bytes: int) -> None:
        """Note that an operator has read or written these arrays."""
        self._moved_bytes += moved_bytes
        self._last |= dict.fromkeys(arrays, self._moved_bytes)


class ColdMemory:
    """A large flat array whose regions are used in turn, so that each comes from memory.

    Args:
        make: allocates an array of so many elements.
        width: bytes of an element.
    """

    def __init__(self, make: Callable[[int], Any], width: int) -> None:
        beyond_bytes = caches.beyond_bytes(caches.last_level_bytes()[0])
        self._make, self._least = make, beyond_bytes // width  # elements that no cache holds
        self._flat, self._n, self._next = None, 0, 0

    def region(self, n: int) -> tuple[Any, int]:
        """The array, and where its next `n` elements begin."""
        if self._n < self._least + n:
            self._n, self._next = self._least + n, 0
            self._flat = None  # given back before there is a larger one
            self._flat = self._make(self._n)
        start = self._next if self._next + n <= self._n else 0
        self._next = start + n + -n % ALIGNED
        return self._flat, start
