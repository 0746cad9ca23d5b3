"""Two kernels whose work can be doubled, for the checks of `truth`, and how they are timed.

A product is bound by arithmetic and a sum over a long vector by memory; all of the work is one
call, for what is handed over and not waited for takes the same time whatever its size.

They must leave no trace in what is measured after them. On a CPU arrays are malloc's: glibc moves
the size from which it maps blocks one by one, and with it the page faults of a training, when a
block between that size and 32 MiB is freed (mallopt(3), M_MMAP_THRESHOLD). So all operands are
views of one vector larger than that, and results are small.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from siliconprof.backends.base import Backend
from siliconprof.session.timing import call_s

CALL_S, AIM_S = 2e-3, 3e-3  # a call lasts the first at least; sizes aim at the second
SLOW_S = 40e-3  # a sum that takes longer gets fewer values
LOOKS, FEWEST_LOOKS, LOOK_S = 5, 3, 20e-3  # at how long a call lasts; the third ends them
PROPORTIONAL = (1.8, 2.2)  # times as long for twice the work
LAUNCH_S = 1e-4  # more than handing work over takes, and less than the work that is fitted
ROUNDS, SLOW_ROUNDS, ROUNDS_S = 5, 2, 0.06  # of one attempt; the second where they take the third
MOST_ROUNDS, MOST_ROUNDS_S = 50, 0.4  # of an attempt that shows no proportion
VECTOR_BYTES, MOST_VECTOR_BYTES = 2**26, 2**32 - 2**20  # Metal's arrays end at 4 GiB
COLUMNS = 2**12
SIDE, MOST_SIDE = 2**8, 2**12  # of the products
PRODUCTS = 2**6  # of one side, before a larger side is tried


class Work(NamedTuple):
    """A kernel with so much work."""

    launch: Callable[[], Any]
    read: Callable[[Any], Any]  # fetches a value of the result to the host
    flops: int
    bytes: int  # read


class Workshop:
    """One long random vector, and the two kernels that take what they need of it."""

    def __init__(self, backend: Backend, seed: int, most_bytes: int) -> None:
        self.backend, self.seed = backend, seed
        self.most_bytes = min(most_bytes, MOST_VECTOR_BYTES)
        self.lengthen(VECTOR_BYTES)

    def lengthen(self, n_bytes: int) -> None:
        """A vector of so many bytes, as far as allowed, in the dtype of the cell's products.

        Its values are the products of two short random ones: drawing them all would take longer
        than all the rest.
        """
        backend = self.backend
        self.vector: Any = None
        one = backend.normal((1, 1), self.seed)
        row = backend.matmul(one, backend.normal((1, COLUMNS), self.seed + 1))
        backend.evaluate(row)
        self.width = int(row.itemsize)
        rows = min(n_bytes, self.most_bytes) // (COLUMNS * self.width)
        column = backend.matmul(backend.normal((rows, 1), self.seed + 2), one)
        self.vector = (column * row).reshape(-1)
        self.length = rows * COLUMNS
        backend.evaluate(self.vector)

    def _part(self, begin: int, *shape: int) -> Any:
        part = self.vector[begin : begin + math.prod(shape)].reshape(shape)
        self.backend.evaluate(part)
        return part

    def sum(self, n: int) -> Work:
        """The sum of n values."""
        part = self._part(0, n)
        return Work(lambda: part.sum(), lambda total: total.item(), n, n * self.width)

    def products(self, side: int, n: int) -> Work:
        """n products of two matrices of that side, added up, in one call.

        Both operands lie so that more of them changes no distance between neighbours.
        """
        a = self._part(0, n * side, side).T
        b = self._part(n * side**2, n * side, side)
        return Work(
            lambda: self.backend.matmul(a, b),
            lambda product: product[0][0].item(),
            2 * n * side**3,
            2 * n * side**2 * self.width,
        )

    # -- timing them -----------------------------------------------------------------------------

    def call_s(self, work: Work) -> float:
        """Seconds of one call, exactly as operations are timed."""
        return call_s(lambda: self.backend.evaluate(work.launch()), self.backend)

    def marked_s(self, work: Work) -> float:
        """Seconds of one call between two of the backend's marks, as phases are timed."""
        backend = self.backend
        backend.synchronize()
        begin = backend.mark()
        backend.evaluate(work.launch())
        end = backend.mark()
        backend.synchronize()
        return backend.seconds_between(begin, end)

    def finished(self, work: Work) -> tuple[float, float]:
        """Seconds of one timed call, and after it until a value of its result was read."""
        results: list[Any] = []

        def operation() -> None:
            results.append(work.launch())
            self.backend.evaluate(results[0])

        timed_s = call_s(operation, self.backend)
        began = time.perf_counter()
        work.read(results[0])
        return timed_s, time.perf_counter() - began

    def lasts_s(self, work: Work) -> float:
        """How long a call really takes, also where nobody waits for its end."""
        sum(self.finished(work))  # compiles, loads and touches memory
        found: list[float] = []
        while len(found) < (LOOKS if sum(found) < LOOK_S else FEWEST_LOOKS):
            found.append(sum(self.finished(work)))
        return min(found)

    # -- how much work ---------------------------------------------------------------------------

    def fit_sum(self) -> tuple[int, float]:
        """(how many values to sum in one call, its seconds); twice as many are there too."""
        while True:
            n = self.length // 2
            lasts = self.lasts_s(self.sum(n))
            if lasts >= CALL_S or not self.can_grow():
                return (n if lasts < SLOW_S else max(int(n * AIM_S / lasts), COLUMNS)), lasts
            self.lengthen(self.length * self.width * min(8, max(2, int(CALL_S / lasts))))

    def fit_products(self) -> tuple[int, int, float]:
        """(side, how many products to add up in one call, its seconds)."""
        side, n = SIDE, 1
        while True:
            lasts = self.lasts_s(self.products(side, n))
            if lasts >= CALL_S:
                return side, n, lasts
            wanted = math.ceil(n * AIM_S / lasts)
            here, larger = self.room(side), self.room(2 * side) if side < MOST_SIDE else 0
            if wanted <= min(here, PRODUCTS):
                n = wanted
            elif larger:
                side, n = 2 * side, min(max(wanted // 8, 1), larger)
            elif n < here:
                n = min(wanted, here)
            else:
                return side, n, lasts

    def can_grow(self) -> bool:
        """Whether a longer vector is allowed."""
        return (self.length + COLUMNS) * self.width <= self.most_bytes

    def room(self, side: int) -> int:
        """How many products of that side the vector has operands for, twice over."""
        return self.length // (4 * side**2)


def proportional(attempt: Mapping[str, Any]) -> bool:
    """Whether twice the work took about twice as long, and the work longer than its launch.

    Ratios of the few microseconds of launches are of any size now and then.
    """
    ratio = attempt["ratio"] or 0
    return PROPORTIONAL[0] <= ratio <= PROPORTIONAL[1] and min(attempt["once_s"]) >= LAUNCH_S


def rounds(time_one: Callable[[Work], float], once: Work, twice: Work) -> dict[str, Any]:
    """Raw seconds of both in turn, and the ratio of the least ones.

    Five of each, and two of slow ones. What disturbs a call only makes it longer: where the least
    are not proportional yet, more follow for a while.
    """
    once_s: list[float] = []
    twice_s: list[float] = []
    found: dict[str, Any] = {"flops": once.flops, "bytes": once.bytes}
    found |= {"once_s": once_s, "twice_s": twice_s}
    while len(once_s) < MOST_ROUNDS and sum(once_s) + sum(twice_s) < MOST_ROUNDS_S:
        once_s.append(time_one(once))
        twice_s.append(time_one(twice))
        found["ratio"] = min(twice_s) / min(once_s) if min(once_s) > 0 else None
        slow = sum(once_s) + sum(twice_s) > ROUNDS_S
        if len(once_s) >= (SLOW_ROUNDS if slow else ROUNDS) and proportional(found):
            break
    return found
