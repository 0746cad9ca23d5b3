"""A device that is simulated: its time line, its memory, its speed. No framework is known here.

Results are computed at once, on the CPU; only time is simulated. The device works through a queue on
a time line of its own. The host's clocks, as this process reads them, leave out what computing a
result really took and go on to the queue's end where the host waits. So a time that was read
without waiting is too short, as on a real device, and what is added up is exact.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

LAUNCH_S = 4e-6  # of the host, to hand a kernel over
KERNEL_S = 2e-6  # of the device, however little a kernel does

_real = {name: getattr(time, name) for name in ("perf_counter", "monotonic", "time")}


@dataclass(frozen=True)
class Card:
    """The facts of a device, as its driver gives them, and its rates in units a second.

    They are those of the data sheet, made so small that a CPU computes the work of a simulated second
    in less: rates by `SLOWER`, sizes by `SMALLER`.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    l2_bytes: int
    bytes_rate: float
    flop_rates: dict[str, float]  # fp32, tf32, 16 bit
    link_rate: float  # bytes from and to the host
    context_bytes: int = 2**23


SLOWER, SMALLER = 20_000, 64
# NVIDIA H200 data sheet: 4.8 TB/s; 67, 495 and 989 TFLOP/s, dense. Sizes as a real card's driver told.
H200 = Card(
    name="NVIDIA H200",
    capability=(9, 0),
    multiprocessors=132,
    memory_bytes=150_109_880_320 // SMALLER,
    l2_bytes=60 * 2**20 // SMALLER,
    bytes_rate=4.8e12 / SLOWER,
    flop_rates={"fp32": 67e12 / SLOWER, "tf32": 495e12 / SLOWER, "half": 989e12 / SLOWER},
    link_rate=64e9 / SLOWER,
)


# -- time ------------------------------------------------------------------------------------------


class Timeline:
    """The host's clock and the queue of one device, both in seconds of the host's clock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._hidden = 0.0  # real seconds that the host's clock leaves out; negative after waits
        self._since: float | None = None  # while a result is computed, the clock stands still
        self.end = 0.0  # of the queue
        self.when_waited: list[Callable[[], Any]] = []  # what the queue has done by then
        self.busy_s = 0.0

    def now(self) -> float:
        """The host's clock."""
        since = self._since
        return (_real["perf_counter"]() if since is None else since) - self._hidden

    def patch(self) -> None:
        """Have Python's clocks tell the host's time from now on."""
        import timeit

        for name, real in _real.items():
            setattr(time, name, lambda real=real: self._shifted(real))
        gettime = time.clock_gettime
        time.clock_gettime = lambda which: self._shifted(lambda: gettime(which))
        timeit.default_timer = time.perf_counter

    def _shifted(self, real: Callable[[], float]) -> float:
        since = self._since
        standing = 0.0 if since is None else _real["perf_counter"]() - since
        return real() - standing - self._hidden

    @contextmanager
    def computing(self) -> Iterator[None]:
        """What happens in here takes the host `LAUNCH_S`, whatever it really takes."""
        with self.lock:
            if self._since is not None:
                yield
                return
            self._since = _real["perf_counter"]()
            try:
                yield
            finally:
                took = _real["perf_counter"]() - self._since
                self._hidden += took - LAUNCH_S
                self._since = None

    def launch(self, duration_s: float) -> None:
        """Queue work of that length."""
        self.end = max(self.now(), self.end) + duration_s
        self.busy_s += duration_s

    def wait(self) -> None:
        """The host waits for the queue's end."""
        with self.lock:
            self._hidden -= max(self.end - self.now(), 0.0)
            while self.when_waited:
                self.when_waited.pop(0)()


# -- memory ----------------------------------------------------------------------------------------

ROUND, PIECE = 512, 2**21  # bytes of an array, and those that the driver gives at least


class OutOfMemory(Exception):
    """The device cannot give so much."""


class Memory:
    """A framework's caching allocator: what it has got from the driver it keeps for reuse.

    Args:
        total_bytes: of the device, all but what its context takes.
    """

    def __init__(self, total_bytes: float) -> None:
        self.limit_bytes = self.total_bytes = total_bytes
        self.lock = threading.RLock()
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0

    def allocate(self, n_bytes: int) -> Block:
        """A block of at least so many bytes.

        Raises:
            OutOfMemory: there is none.
        """
        size = max(-(-n_bytes // ROUND) * ROUND, ROUND)
        with self.lock:
            needed = max(self.reserved, -(-(self.allocated + size) // PIECE) * PIECE)
            if needed > min(self.limit_bytes, self.total_bytes):
                raise OutOfMemory(n_bytes)
            self.reserved = needed
            self.peak_reserved = max(self.peak_reserved, needed)
            self.allocated += size
            self.peak_allocated = max(self.peak_allocated, self.allocated)
        return Block(self, size)

    def empty_cache(self) -> None:
        """Give the driver back what no array needs."""
        self.reserved = -(-self.allocated // PIECE) * PIECE

    def reset_peak(self) -> None:
        """Start new peaks."""
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved


class Block:
    """Memory of an array; it goes back when nothing refers to it any more."""

    def __init__(self, memory: Memory, size: int) -> None:
        self.memory, self.size = memory, size

    def __del__(self) -> None:
        with self.memory.lock:
            self.memory.allocated -= self.size
