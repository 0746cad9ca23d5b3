"""Warm-up, phases and adaptive repeats: the loop around every timed thing.

Warm-up runs until the step time settles; measuring runs until the confidence interval of the
median is narrow or the budget is spent. Every raw time is saved. The interval only ends sampling:
fresh processes differ by far more than it, so comparisons rest on them (`compare`). Splitting a
step into phases perturbs it, so training cells interleave split and whole steps, and drift
affects both alike. An operation whose times scatter or drift, or that other processes disturbed, is
measured again after a pause, within a budget, and every attempt is saved.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from siliconprof.backends.base import Clock
from siliconprof.session.thread_time import DisturbanceWatch
from siliconprof.stats import statistics

GPU_WARM_UP_S = 0.5  # once a cell: its clock takes a while to rise
PHASES = ("data_s", "trace_s", "forward_s", "backward_s", "optimizer_s", "other_s")
SETTLE_WINDOW = 3  # steps compared with the steps before them
SETTLE_TOLERANCE = 0.05  # relative change of the median that counts as settled
FIRST_LOOK = 30  # times before the interval is looked at for the first time ...
LOOK_GROWTH = 1.5  # ... and from one look to the next: 30, 45, 68, 102, ...
OVERRUN = 10  # budgets, after which even the least number of iterations is not waited for
FEWEST_REPEATS = 2  # a single one has no interval
NOISY_ABOVE = 0.10  # IQR over median
DRIFTS_ABOVE = 0.05  # |ratio of levels - 1| from which a significant drift or change matters
CHANGE_P_BELOW = 0.001  # lower than usual: times that resemble their neighbours lower Pettitt's p
# Of unsynchronised steps: at least, and at most where no energy is read.
UNSYNCHRONISED_RUNS = (2, 9)
UNSYNCHRONISED_RUN_SHARE = 0.03  # of the budget, that one run lasts about
UNSYNCHRONISED_RUN_STEPS = (2, 1000)  # in one run: at least, where a step is long; at most


@dataclass(frozen=True)
class Plan:
    """How long to warm up and to measure."""

    warmup_iterations: int = 3  # at least
    warmup_budget_s: float = 2.0  # at most, once the least is done
    iterations: int = 10  # at least
    max_iterations: int = 1000
    budget_s: float = 2.0  # stop after this once the least is done
    relative_interval: float = 0.02  # width of the median's 95 % interval that is narrow enough
    retries: int = 1  # of an operation whose times scatter or drift; of a disturbed one, 1 at least
    cool_down_s: float = 0.5  # pause before each
    retry_budget_s: float = 2.0  # of one cell for all of them, pauses included
    energy_window_s: float = 10.0  # unsynchronised steps over which energy is read; 0 = never
    energy_idle_s: float = 5.0  # idle power, before and after, with the context open
    time_limit_s: float = 300.0  # of the whole cell, kept by its supervisor

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Plan:
        """The plan of a cell's `timing` entry."""
        return cls(**values)


def settled(times: list[float]) -> bool:
    """Whether the last steps take as long as those just before them."""
    if len(times) < 2 * SETTLE_WINDOW:
        return False
    before = statistics.median(times[-2 * SETTLE_WINDOW : -SETTLE_WINDOW])
    last = statistics.median(times[-SETTLE_WINDOW:])
    return abs(last - before) <= SETTLE_TOLERANCE * before


def overran(spent_s: float, budget_s: float) -> bool:
    """Whether something took far longer than its budget; never for a budget of 0."""
    return 0 < OVERRUN * budget_s <= spent_s


@dataclass
class StoppingRule:
    """Decides when warm-up is over and when enough has been measured."""

    plan: Plan
    warmup_times: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    stopped_by: str | None = None  # interval, budget, max_iterations or overrun, once it is over
    _next_look: int = FIRST_LOOK
    _started: float | None = None  # at the first call: set-up is not warm-up
    _measuring_since: float | None = None

    def warming_up(self) -> bool:
        """True while another warm-up step is due; the switch to measuring happens here."""
        if self._measuring_since is not None:
            return False
        if self._started is None:
            self._started = time.perf_counter()
        spent, budget_s = time.perf_counter() - self._started, self.plan.warmup_budget_s
        enough = len(self.warmup_times) >= self.plan.warmup_iterations
        is_over = enough and (settled(self.warmup_times) or spent >= budget_s)
        if is_over or (self.warmup_times and overran(spent, budget_s)):
            self._measuring_since = time.perf_counter()
            return False
        return True

    def pause(self, seconds: float) -> None:
        """Leave seconds spent on something else out of the budget."""
        if self._measuring_since is not None:
            self._measuring_since += seconds

    def done(self) -> bool:
        """True when the measurement may end; `stopped_by` then says why."""
        if self._measuring_since is None or not self.times:
            return False
        spent = time.perf_counter() - self._measuring_since
        if len(self.times) < self._least:
            self.stopped_by = "overrun" if self.overruns() else None
        elif len(self.times) >= self.plan.max_iterations:
            self.stopped_by = "max_iterations"
        elif spent >= self.plan.budget_s:
            self.stopped_by = "budget"
        elif self._look_is_due():
            low, high = statistics.block_median_interval(self.times)
            if high - low <= self.plan.relative_interval * statistics.median(self.times):
                self.stopped_by = "interval"
        return self.stopped_by is not None

    @property
    def _least(self) -> int:
        return min(self.plan.iterations, self.plan.max_iterations)

    def overruns(self) -> bool:
        """Whether the least number of repeats, at the pace so far, takes far longer than the budget."""
        if self._measuring_since is None or len(self.times) < FEWEST_REPEATS:
            return False
        spent = time.perf_counter() - self._measuring_since
        least_s = spent * self._least / len(self.times)
        return len(self.times) < self._least and overran(least_s, self.plan.budget_s)

    def _look_is_due(self) -> bool:
        # Looking after every time would cost more than short operations do, and whoever looks often
        # enough sees a narrow interval by chance.
        due = len(self.times) >= self._next_look
        while self._next_look <= len(self.times):
            self._next_look = math.ceil(LOOK_GROWTH * self._next_look)
        return due


class PhaseClock:
    """Attributes the time between edges of a step to its phases.

    Split steps read the clock at every edge, whole ones only around the whole step. Marks
    are turned into seconds after the step, since on CUDA they are events still under way.
    Unsynchronised steps follow one another without a wait, and only their run is timed.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.split = True
        self.waits = True  # whether a step may wait for the device: not while running freely
        self._edges: list[tuple[str, Any]] = []
        self._start: Any = None
        self._wall_start = 0.0
        self.dispatch_s = 0.0  # from a step's start until the host had nothing more to do in it

    def start(self, split: bool) -> None:
        """Begin a step."""
        self.split = split
        self._edges = []
        self.clock.synchronize()
        self._wall_start = time.perf_counter()
        if split:
            self._start = self.clock.mark()

    def start_run(self) -> None:
        """Begin a run of unsynchronised steps."""
        self.split = self.waits = False
        self.clock.synchronize()
        self._wall_start = time.perf_counter()

    def stop_run(self) -> float:
        """Wait for the end of a run's steps; return its seconds."""
        self.clock.synchronize()
        self.waits = True
        return time.perf_counter() - self._wall_start

    def edge(self, phase: str) -> None:
        """End a phase here: the time since the previous edge belongs to it."""
        if self.split:
            self._edges.append((phase, self.clock.mark()))

    @property
    def n_edges(self) -> int:
        """Edges of the step so far."""
        return len(self._edges)

    def phase_at(self, edges: int) -> str:
        """The phase that followed so many edges of the last, split step."""
        return self._edges[edges][0]

    def stop(self) -> tuple[float, dict[str, float]]:
        """End the step: (step seconds, seconds per phase; no phases for a whole step).

        In a split step the phases sum to the step: what lies between the last edge and the
        end is `other_s`.
        """
        if self.split:
            self.edge("other_s")
        self.dispatch_s = time.perf_counter() - self._wall_start
        self.clock.synchronize()
        wall = time.perf_counter() - self._wall_start
        if not self.split:
            return wall, {}
        phases: dict[str, float] = {}
        previous = self._start
        for phase, mark in self._edges:
            elapsed = self.clock.seconds_between(previous, mark)
            phases[phase] = phases.get(phase, 0.0) + elapsed
            previous = mark
        return sum(phases.values()), phases


@dataclass
class StepTimes:
    """Raw times of a training loop: one entry per iteration in every list, in seconds."""

    warmup_step_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)  # split steps: the sum of their phases
    phases: dict[str, list[float]] = field(default_factory=dict)
    whole_step_s: list[float] = field(default_factory=list)
    unsynchronised_step_s: list[float] = field(default_factory=list)  # of each run, over its steps
    dispatch_s: list[float] = field(default_factory=list)  # of each whole step
    compile_step_s: list[float] = field(default_factory=list)  # in which the step was compiled

    def add_split(self, step_s: float, phases: Mapping[str, float]) -> None:
        """Add one split step, in seconds; a new phase is 0 in the steps before."""
        for name in phases:
            self.phases.setdefault(name, [0.0] * len(self.step_s))
        for name, values in self.phases.items():
            values.append(phases.get(name, 0.0))
        self.step_s.append(step_s)


class Repeats(NamedTuple):
    """Seconds of an operation, one entry per call."""

    warmup_s: list[float]
    times_s: list[float]
    stopped_by: str  # see `StoppingRule`
    calls: int = 1  # in a row, whose mean each entry is
    disturbed: str | None = None  # how other processes disturbed them

    @property
    def series(self) -> dict[str, list[float]]:
        """The times by their names in a point."""
        return {"step_s": self.times_s, "warmup_step_s": self.warmup_s}

    @property
    def spent_s(self) -> float:
        """Seconds inside all calls."""
        return self.calls * (sum(self.warmup_s) + sum(self.times_s))


def call_s(operation: Callable[[], Any], clock: Clock) -> float:
    """Seconds of one call, synchronised before and after."""
    clock.synchronize()
    start = time.perf_counter()
    operation()
    clock.synchronize()
    return time.perf_counter() - start


def row_s(launch: Callable[[], Any], clock: Clock, calls: int) -> float:
    """Mean seconds of calls in a row, between two of the clock's marks: no wait is in between.

    Args:
        launch: starts the operation without waiting and returns its result. All results are held
            until the last is there: none is left out, and none is written over another.
    """
    clock.synchronize()
    start = clock.mark()
    results = [launch() for _ in range(calls)]
    end = clock.mark()
    clock.synchronize()
    del results
    return clock.seconds_between(start, end) / calls


def repeat(
    operation: Callable[[], Any],
    clock: Clock,
    plan: Plan,
    on_step: Callable[[str, int], None],
    calls: int | None = None,
) -> Repeats:
    """Time an operation, synchronised before and after each call.

    Args:
        calls: None = one, by the host's clock; else the mean of so many in a row, see `row_s`.
    """

    def time_one() -> float:
        return call_s(operation, clock) if calls is None else row_s(operation, clock, calls)

    pace = StoppingRule(plan)
    while pace.warming_up():
        on_step("warm-up", len(pace.warmup_times))
        pace.warmup_times.append(time_one())
    watch = DisturbanceWatch()
    while not pace.done():
        on_step("measure", len(pace.times))
        pace.times.append(time_one())
    found = pace.warmup_times, pace.times, str(pace.stopped_by)
    return Repeats(*found, calls or 1, watch.disturbed())


def noise(times: Sequence[float]) -> str | None:
    """The flag's text for times that scatter too widely, or None."""
    if len(times) <= 3:
        return None
    share = statistics.iqr(times) / statistics.median(times)
    return f"has an IQR of {share:.0%} of its median" if share > NOISY_ABOVE else None


def order(times: Sequence[float]) -> dict[str, Any]:
    """`drift` and `change_point` of a point: None where there are too few times."""
    return {"drift": statistics.drift(times), "change_point": statistics.change_point(times)}


def drifting(facts: Mapping[str, Any]) -> str | None:
    """The flag's text for a drift that matters, or None.

    Args:
        facts: the result of `order`.
    """
    drift = facts["drift"]
    if not drift or not drift["significant"] or abs(drift["ratio"] - 1) <= DRIFTS_ABOVE:
        return None
    return f"drifts: the second half's median is {drift['ratio'] - 1:+.0%} of the first's"


def wandering(times: Sequence[float]) -> str | None:
    """The flag's text for a level that wanders by twice what a drift may, or None."""
    low, high = statistics.wandering(times) or (1, 1)
    if high / low <= 1 + 2 * DRIFTS_ABOVE:
        return None
    n = statistics.BATCH_MEANS
    return f"drifts: medians of {n} parts lie between {low * 1e3:.3g} and {high * 1e3:.3g} ms"


def changing(facts: Mapping[str, Any]) -> str | None:
    """The flag's text for a change of level that matters, or None; see `drifting`."""
    change = facts["change_point"]
    if not change or change["p"] >= CHANGE_P_BELOW or abs(change["ratio"] - 1) <= DRIFTS_ABOVE:
        return None
    return f"changes by {change['ratio'] - 1:+.0%} after {change['after']} repeats"
