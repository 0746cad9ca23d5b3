"""Kernels of known work, sized so that one call lasts some milliseconds; `self_checks` times them.

A product is bound by arithmetic, a sum over a long vector by memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from siliconprof.backends.base import Backend
from siliconprof.session.timing import call_s

CALL_S, AIM_S = 2e-3, 3e-3  # at least, and as sizes aim at
SLOW_S = 40e-3  # from which a sum gets fewer values
GROWN_S = 30e-3  # up to which a call grows whose double does not take about twice as long
STRAIGHT = (1.9, 2.1)
LOOKS, FEWEST_LOOKS, LOOK_S = 5, 3, 20e-3  # at how long a call lasts; the third ends them
VECTOR_BYTES, MOST_VECTOR_BYTES = 2**26, 2**32 - 2**20  # Metal's arrays end at 4 GiB
VECTOR_COLUMNS = 2**12
SMALLEST_SIDE, MOST_SIDE = 2**8, 2**12  # of the products
PRODUCTS = 2**6  # of one side, before a larger side is tried


class ReferenceKernel(NamedTuple):
    """A kernel and its work."""

    launch: Callable[[], Any]
    read: Callable[[Any], Any]  # fetches a value of the result to the host
    flops: int
    bytes: int  # read


class ReferenceKernels:
    """One long random vector, and two kernels on parts of it."""

    def __init__(self, backend: Backend, seed: int, most_bytes: int) -> None:
        self.arrays, self.clock, self.seed = backend.arrays, backend.clock, seed
        self.most_bytes = min(most_bytes, MOST_VECTOR_BYTES)
        self.lengthen(VECTOR_BYTES)

    def lengthen(self, n_bytes: int) -> None:
        """Make the vector this many bytes long, as far as allowed, in the cell's product dtype.

        Its values are the products of two short random vectors: drawing all of them would take
        longer than all the rest.
        """
        arrays = self.arrays
        self.vector: Any = None
        one = arrays.normal((1, 1), self.seed)
        row = arrays.matmul(one, arrays.normal((1, VECTOR_COLUMNS), self.seed + 1))
        arrays.eval(row)
        self.width = int(row.itemsize)
        rows = min(n_bytes, self.most_bytes) // (VECTOR_COLUMNS * self.width)
        column = arrays.matmul(arrays.normal((rows, 1), self.seed + 2), one)
        self.vector = (column * row).reshape(-1)
        self.length = rows * VECTOR_COLUMNS
        arrays.eval(self.vector)

    def _part(self, begin: int, *shape: int) -> Any:
        part = self.vector[begin : begin + math.prod(shape)].reshape(shape)
        self.arrays.eval(part)
        return part

    def sum(self, n: int) -> ReferenceKernel:
        """The sum of n values."""
        part = self._part(0, n)
        return ReferenceKernel(lambda: part.sum(), lambda total: total.item(), n, n * self.width)

    def products(self, side: int, n: int) -> ReferenceKernel:
        """n products of two square matrices of that side, added up, in one call.

        The operands have shapes (side, n·side) and (n·side, side), laid out so that n does not
        change the distance between neighbours.
        """
        a = self._part(0, n * side, side).T
        b = self._part(n * side**2, n * side, side)
        return ReferenceKernel(
            lambda: self.arrays.matmul(a, b),
            lambda product: product[0][0].item(),
            2 * n * side**3,
            2 * n * side**2 * self.width,
        )

    def call_s(self, work: ReferenceKernel) -> float:
        """Seconds of one call, exactly as operations are timed."""
        return call_s(lambda: self.arrays.eval(work.launch()), self.clock)

    def marked_s(self, work: ReferenceKernel, launches: int) -> tuple[float, float]:
        """Seconds of launches in a row by the backend's marks, and by the host's clock around them.

        The second includes the wait; without any launch it shows how long the wait takes.
        """
        clock = self.clock
        clock.synchronize()
        began = time.perf_counter()
        begin = clock.mark()
        for _ in range(launches):
            self.arrays.eval(work.launch())
        end = clock.mark()
        clock.synchronize()
        wall_s = time.perf_counter() - began
        return clock.seconds_between(begin, end), wall_s

    def finished(self, work: ReferenceKernel) -> tuple[float, float]:
        """(seconds of one timed call, seconds from its end until a value of its result is read)."""
        results: list[Any] = []

        def operation() -> None:
            results.append(work.launch())
            self.arrays.eval(results[0])

        timed_s = call_s(operation, self.clock)
        began = time.perf_counter()
        work.read(results[0])
        return timed_s, time.perf_counter() - began

    def lasts_s(self, *works: ReferenceKernel) -> list[float]:
        """Seconds of a call of each, in turn, also where the timed call does not wait."""
        rounds: list[list[float]] = []
        while len(rounds) < (LOOKS if sum(map(sum, rounds[1:])) < LOOK_S else FEWEST_LOOKS) + 1:
            rounds.append([sum(self.finished(work)) for work in works])
        # the first compiles, loads and touches memory
        return [min(durations_s) for durations_s in zip(*rounds[1:], strict=True)]

    def fit_sum(self) -> tuple[int, float]:
        """(how many values to sum in one call, its seconds); the vector has twice as many.

        Short calls are not proportional to their work where a cache holds part of the values, or threads
        wake up: more values are taken until the time is, by calls in turn like those that are judged later.
        """
        while True:
            n = self.length // 2
            [lasts] = self.lasts_s(self.sum(n))
            grown_bytes = (self.length + VECTOR_COLUMNS) * self.width
            if lasts >= CALL_S or grown_bytes > self.most_bytes:
                break
            self.lengthen(self.length * self.width * min(8, max(2, int(CALL_S / lasts))))
        if lasts >= SLOW_S:
            fewer = max(int(n * AIM_S / lasts), VECTOR_COLUMNS)
            return fewer, lasts * fewer / n
        while 2 * lasts <= GROWN_S:
            lasts, double = self.lasts_s(self.sum(n), self.sum(2 * n))
            if STRAIGHT[0] <= double / lasts <= STRAIGHT[1]:
                break
            self.lengthen(4 * n * self.width)
            if self.length < 4 * n:
                break
            n, lasts = 2 * n, double
        return min(n, self.length // 2), lasts

    def fit_products(self) -> tuple[int, int, float]:
        """(side, how many products to add up in one call, its seconds).

        As in `fit_sum`, caches distort short calls: larger matrices move less for each operation.
        """
        side, n, lasts = self._long_products()
        while 2 * lasts <= GROWN_S:
            lasts, double = self.lasts_s(self.products(side, n), self.products(side, 2 * n))
            room = self.room(2 * side) if side < MOST_SIDE else 0
            if STRAIGHT[0] <= double / lasts <= STRAIGHT[1] or not room:
                break
            side, n = 2 * side, min(max(n // 8, 1), room)
            [lasts] = self.lasts_s(self.products(side, n))
        return side, n, lasts

    def _long_products(self) -> tuple[int, int, float]:
        """(side, number of products, seconds) of a call that lasts long enough."""
        side, n = SMALLEST_SIDE, 1
        while True:
            [lasts] = self.lasts_s(self.products(side, n))
            if lasts >= CALL_S:
                return side, n, lasts
            needed = math.ceil(n * AIM_S / lasts)
            here, larger = self.room(side), self.room(2 * side) if side < MOST_SIDE else 0
            if needed <= min(here, PRODUCTS):
                n = needed
            elif larger:
                side, n = 2 * side, min(max(needed // 8, 1), larger)
            elif n < here:
                n = min(needed, here)
            else:
                return side, n, lasts

    def room(self, side: int) -> int:
        """How many products of that side the vector has operands for, twice over."""
        return self.length // (4 * side**2)
