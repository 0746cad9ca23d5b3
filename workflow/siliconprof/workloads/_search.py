"""Which shape multiplies fastest: the search for a device's ceiling.

First squares that double in size until growing no longer helps; then the best shape's neighbours
(a little larger and smaller, tall, wide, deep, in batches), moving to the first that is faster and
beginning again there. Sides are multiples of 64, which tiles divide. It ends when no neighbour is
faster, or earlier at its budget of time or of memory. Every shape tried is a measured point.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Shape = tuple[int, int, int, int]  # batch, m, k, n

FIRST_SIDE = 256
TILE = 64
GAIN = 0.02  # less is noise
GIVE_UP_AFTER = 2  # squares in a row that were not faster than the best
SETTLED = "no neighbour of the best shape was faster by 2 %"


@dataclass
class Search:
    """The search and what it found.

    Args:
        rate: measures a shape; its FLOP/s.
        cost_s: the most seconds that measuring a shape can take, by what is known so far.
        n_bytes: memory that a shape takes.
    """

    rate: Callable[[Shape], float]
    cost_s: Callable[[Shape], float]
    n_bytes: Callable[[Shape], int]
    budget_s: float
    limit_bytes: int
    rates: dict[Shape, float] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    def run(self) -> str:
        """Search; why it ended."""
        self._ends = time.perf_counter() + self.budget_s
        self._grow()
        while self.rates and self._moved():
            pass
        if "budget" in self.refused:
            return f"its budget of {self.budget_s:g} s"
        return "memory" if "memory" in self.refused else SETTLED

    @property
    def best(self) -> Shape | None:
        """The fastest shape so far."""
        return max(self.rates, key=lambda shape: self.rates[shape], default=None)

    def _try(self, shape: Shape) -> bool:
        """Measure a shape unless it is too large or too slow; whether it was measured."""
        if self.n_bytes(shape) > self.limit_bytes:
            self.refused.add("memory")
            return False
        # The first is measured whatever it costs: without it nothing is known.
        if self.rates and time.perf_counter() + self.cost_s(shape) > self._ends:
            self.refused.add("budget")
            return False
        self.rates[shape] = self.rate(shape)
        return True

    def _grow(self) -> None:
        side, slower, reference = FIRST_SIDE, 0, 0.0
        while slower < GIVE_UP_AFTER and self._try((1, side, side, side)):
            rate = self.rates[1, side, side, side]
            slower = 0 if rate > (1 + GAIN) * reference else slower + 1
            reference = max(reference, rate)
            side *= 2

    def _moved(self) -> bool:
        """Try the neighbours of the best shape; whether one is faster."""
        best = self.best
        assert best is not None
        for shape in neighbours(best):
            if shape in self.rates or not self._try(shape):
                continue
            if self.rates[shape] > (1 + GAIN) * self.rates[best]:
                return True
        return False


def neighbours(shape: Shape) -> Iterator[Shape]:
    """Shapes of the same order of work as one."""
    batch, m, k, n = shape
    yield batch, tiled(1.5 * m), tiled(1.5 * k), tiled(1.5 * n)
    yield batch, tiled(0.75 * m), tiled(0.75 * k), tiled(0.75 * n)
    yield batch, 2 * m, k, n
    yield batch, m, k, 2 * n
    yield batch, m, 2 * k, n
    yield batch, m, tiled(k / 2), n
    yield 4 * batch, m, k, n
    yield 4 * batch, tiled(m / 2), tiled(k / 2), tiled(n / 2)


def tiled(side: float) -> int:
    """The multiple of a tile's side that is nearest to a length, at least one tile."""
    return TILE * max(1, round(side / TILE))
