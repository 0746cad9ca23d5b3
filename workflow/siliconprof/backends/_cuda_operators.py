"""The operators of a training step timed inside of it, on a GPU that works beside the host.

Two events around each operator tell how long the device works for it, if the device has work at
all times: else it also waits for the host between them. So now and then, and whenever the device
has caught up, it is made to sleep for as long as the host takes to dispatch the next operators.
What a pair of events takes with nothing between them is measured in the same way and taken off.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from siliconprof.backends._torch_operators import TorchProfiler, watch
from siliconprof.stats import statistics

# Operators that are dispatched while the device sleeps: with two events each, and kernels, far
# fewer launches than its queue takes before one waits (`Kernels.queue_depth`).
AHEAD = 100
SLEEP_S = 5e-3  # the first sleep; longer ones follow where the host takes longer
LONGEST_SLEEP_S = 0.2
LEAD_MARGIN = 1.5  # a sleep, over what the host took to dispatch the last operators
CYCLES_PER_S = 3e9  # of the fastest clock; where one is slower, or idle, a sleep only lasts longer
EMPTY_PAIRS = 20  # pairs of events with nothing between them


class TimedOperator(NamedTuple):
    kind: str
    start: Any
    end: Any


class CudaProfiler(TorchProfiler):
    """Times operators by CUDA events."""

    def __init__(self, cuda: Any) -> None:
        super().__init__("cuda")
        self.cuda = cuda

    @contextmanager
    def time_step(self) -> Iterator[list[tuple[str, float]]]:
        found: list[tuple[str, float]] = []
        seen: list[TimedOperator] = []
        cuda, lead = self.cuda, _Lead(self.cuda)

        def pair() -> tuple[Any, Any]:
            return cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)

        def measure(operator: Any, args: Any, kwargs: Any) -> Any:
            lead.keep(seen[-1].end if seen else None)
            start, end = pair()
            start.record()
            result = operator(*args, **kwargs)
            end.record()
            seen.append(TimedOperator(operator.name(), start, end))
            return result

        lead.sleep()
        empty = [pair() for _ in range(EMPTY_PAIRS)]
        for start, end in empty:
            start.record()
            end.record()
        with watch(measure, self.place):
            yield found
        cuda.synchronize()
        cost_ms = statistics.median([start.elapsed_time(end) for start, end in empty])
        found += [(o.kind, (o.start.elapsed_time(o.end) - cost_ms) / 1e3) for o in seen]


class _Lead:
    """Keeps the host ahead of the device."""

    def __init__(self, cuda: Any) -> None:
        self.cuda, self.sleep_s = cuda, SLEEP_S
        self.dispatched, self.began = 0, time.perf_counter()
        self.first: Any = None  # event after the first operator since the last sleep

    def sleep(self) -> None:
        """Have the device sleep once it has done what it was given."""
        self.cuda._sleep(math.ceil(self.sleep_s * CYCLES_PER_S))
        self.dispatched, self.began, self.first = 0, time.perf_counter(), None

    def keep(self, last: Any) -> None:
        """Have the device sleep if it has caught up with the `last` operator, or soon may."""
        if last is None:
            return
        self.first = self.first or last
        self.dispatched += 1
        spent_s = time.perf_counter() - self.began
        if last.query():  # the device has nothing to do: the operator waited for it, or it waits
            self._lengthen(2 * spent_s)
            self.sleep()
        elif self.dispatched >= AHEAD:
            self._lengthen(LEAD_MARGIN * spent_s)
            if self.first.query():  # it is less than `AHEAD` behind
                self.sleep()
            else:
                self.dispatched, self.began, self.first = 0, time.perf_counter(), None

    def _lengthen(self, seconds: float) -> None:
        self.sleep_s = min(max(self.sleep_s, seconds), LONGEST_SLEEP_S)
