"""Times are real: the statistics, the pace of warm-up and repeats, and what a phase contains.

The clock and the device are simulated where a test is about logic, so nothing here depends on
how busy this machine is; one test measures real threads.
"""

from __future__ import annotations

import math
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psutil
import pytest
from measuring import busy
from siliconprof import formatting, plugins
from siliconprof.session import quality, thread_time, timing
from siliconprof.session.cell_run import CellRun
from siliconprof.session.timing import PhaseClock, Plan
from siliconprof.stats import statistics


class Clock:
    """A clock that moves only when it is told to."""

    def __init__(self) -> None:
        # `Pace` has taken hold of the real clock when its class was made; starting here, the two
        # agree to within the milliseconds that a test takes.
        self.now_s = time.perf_counter()

    def __call__(self) -> float:
        return self.now_s

    def spend(self, seconds: float) -> None:
        """Let time go by."""
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that `timing` reads."""
    fake = Clock()
    monkeypatch.setattr(timing.time, "perf_counter", fake)
    return fake


class Device:
    """Works off a queue while the host goes on, as a GPU does.

    `launch` costs the host 1 µs and the device what it says; only `synchronize` waits.
    """

    LAUNCH_S = 1e-6

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.done_at_s = clock.now_s
        self.marks = 0

    def launch(self, seconds: float) -> None:
        """Hand over work that keeps the device busy for so long."""
        self.clock.spend(self.LAUNCH_S)
        self.done_at_s = max(self.done_at_s, self.clock.now_s) + seconds

    def synchronize(self) -> None:
        """Wait for the queue to empty."""
        self.clock.now_s = max(self.clock.now_s, self.done_at_s)

    def mark(self) -> float:
        """The host's clock, after waiting: how MPS and MLX are read."""
        self.marks += 1
        self.synchronize()
        return self.clock.now_s

    def seconds_between(self, start: float, end: float) -> float:
        """Seconds between two marks."""
        return end - start


class EventDevice(Device):
    """Marks are events in the queue, which cannot be read before they have happened: CUDA."""

    def mark(self) -> float:
        """When the device will reach this point of the queue."""
        self.marks += 1
        return max(self.done_at_s, self.clock.now_s)

    def seconds_between(self, start: float, end: float) -> float:
        """Seconds on the device's own clock, 1 ppm fast; refused while it is still under way."""
        if end > self.clock.now_s:
            raise RuntimeError("both events must have completed")
        return (end - start) * (1 + 1e-6)


# -- flags ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("whole_step_s", "differs", "flagged"),
    [(0.020, 0.051, True), (0.020, -0.051, True), (0.020, 0.049, False), (0.0199, 0.5, False)],
)
def test_phases_that_do_not_sum_to_the_step_are_flagged(
    whole_step_s: float, differs: float, flagged: bool
) -> None:
    """By more than 5 % either way, in medians, and from 20 ms on: shorter steps cost too much."""
    cell: Any = None
    workload = plugins.load("workloads", "gpt2")
    session = CellRun(cell, cell, workload, lambda _: None)
    split_s = whole_step_s * (1 + differs)
    session.points = [
        {
            "params": {"batch_size": 8},
            "times": {
                "step_s": [split_s, split_s, 9.0],
                "whole_step_s": [whole_step_s, whole_step_s, 9.0],
            },
        },
        {"times": {"step_s": [1.0]}},  # of a kernel: there is no whole step
    ]
    quality.split_flags(session)
    said = [flag["detail"] for flag in session.flags if flag["code"] == "split_differs"]
    text = f"the sum of the phases (batch_size=8) differs from the whole step by {differs:+.1%}"
    assert said == [text] * flagged
    assert len(session.flags) == flagged


# -- statistics --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [6, 9, 22, 25, 100, 999, 1000, 1001, 2000])
def test_median_interval_is_the_narrowest_exact_one(size: int) -> None:
    """The order statistics are those of the exact binomial, also where floats would underflow."""
    low, high = statistics.median_interval(range(size))
    rank, below = int(low), 0
    for k in range(rank + 1):  # P(fewer than rank + 1 values lie below the median)
        below += math.comb(size, k)
    one_more = below + math.comb(size, rank + 1)
    assert high == size - 1 - low
    assert below * 100 <= 3 * 2**size < one_more * 100  # 3 % on either side


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_of_too_few_values_the_median_interval_is_the_range(size: int) -> None:
    assert statistics.median_interval(range(size)) == (0, size - 1)


def test_an_interval_of_blocks_covers_94_percent_and_no_narrower_one_does() -> None:
    """Simulated: each draw resembles the one before it; the true median is 0."""
    runs, source, missed, correlation = 100_000, np.random.default_rng(3), 0.003, 0.4
    value = source.standard_normal(runs)
    below = (value < 0).astype(int)
    for size in range(2, 41):
        new = source.standard_normal(runs)
        value = correlation * value + math.sqrt(1 - correlation**2) * new
        below += value < 0
        middle = np.minimum(below, size - below)

        def covered(rank: int, middle: Any = middle) -> float:
            return float((middle > rank).mean())

        values = [float(i) for i in range(size)]
        random.Random(size).shuffle(values)
        low, high = statistics.block_median_interval(values)
        assert high == size - 1 - low
        if size < formatting.FEWEST_OF_INTERVAL:
            assert low == 0 and covered(0) < 0.94
        else:
            assert covered(int(low)) >= 0.94 - missed, size
            assert covered(int(low) + 1) < 0.94 + missed, size


def test_neighbours_that_resemble_each_other_widen_the_interval() -> None:
    source = random.Random(5)
    runs, size, rho = 400, 300, 0.6
    covered = {statistics.median_interval: 0, statistics.block_median_interval: 0}
    for _ in range(runs):
        value, values = 0.0, []
        for _ in range(size + 50):
            value = rho * value + source.gauss(0, 1)
            values.append(value)
        for interval in covered:
            low, high = interval(values[50:])
            covered[interval] += low <= 0 <= high
    assert covered[statistics.median_interval] < 0.85 * runs
    # 92 % in the long run; three standard errors below it.
    assert covered[statistics.block_median_interval] >= 0.88 * runs


# -- warm-up and repeats -----------------------------------------------------------------------


def run(clock: Clock, steps: Sequence[float] | Callable[[int], float], **plan: Any) -> Any:
    """(warm-up times, times, what ended them) of an operation whose n-th call takes so long."""
    calls = iter(range(10**6))
    duration = steps.__getitem__ if isinstance(steps, Sequence) else steps
    device = Device(clock)
    told: list[str] = []
    found = timing.repeat(
        lambda: device.launch(duration(next(calls))),
        device,
        Plan(**plan),
        lambda stage, step: told.append(f"{stage} {step}"),
    )
    assert told == [f"warm-up {i}" for i in range(len(found[0]))] + [
        f"measure {i}" for i in range(len(found[1]))
    ]
    return found[:3]


def test_warm_up_lasts_until_the_step_time_settles(clock: Clock) -> None:
    slow = [1.0, 0.8, 0.6, 0.4, 0.3, 0.25, 0.22]
    warmup, times, _ = run(
        clock, lambda n: slow[n] if n < len(slow) else 0.2, warmup_budget_s=100, iterations=5
    )
    assert len(slow) < len(warmup) <= len(slow) + 2 * timing.SETTLE_WINDOW
    assert warmup[: len(slow)] == pytest.approx(slow, abs=1e-5)
    assert times == pytest.approx([0.2] * len(times), abs=1e-5)


def test_measuring_stops_when_the_interval_is_narrow(clock: Clock) -> None:
    for least, ended in ((8, 30), (50, 50)):
        _, times, stopped_by = run(clock, lambda n: 0.01, iterations=least, budget_s=1000)
        assert (len(times), stopped_by) == (ended, "interval")


def test_measuring_goes_on_while_the_interval_is_wide(clock: Clock) -> None:
    source = random.Random(1)
    _, times, stopped_by = run(
        clock,
        lambda n: source.uniform(0.9, 1.1),
        warmup_budget_s=0,
        iterations=5,
        budget_s=10**6,
        relative_interval=0.02,
    )
    looks = [30, 45, 68, 102, 153, 230, 345, 518, 777]
    narrow = []
    for count in looks:
        low, high = statistics.block_median_interval(times[:count])
        narrow.append(high - low <= 0.02 * statistics.median(times[:count]))
    assert stopped_by == "interval"
    assert len(times) == looks[narrow.index(True)] > looks[0]


def test_what_takes_ten_budgets_ends_before_its_least_number(clock: Clock) -> None:
    """With one warm-up and two repeats at least; a budget of 0 asks for the least number alone."""
    plan = {"warmup_iterations": 3, "iterations": 6, "warmup_budget_s": 0.2, "budget_s": 0.7}
    warmup, times, stopped_by = run(clock, lambda n: 4.0, **plan)
    assert (len(warmup), len(times), stopped_by) == (1, 2, "overrun")
    warmup, times, stopped_by = run(clock, lambda n: 1.2, **plan)  # six would take 7.2 s
    assert (len(warmup), len(times), stopped_by) == (2, 2, "overrun")
    warmup, times, stopped_by = run(clock, lambda n: 0.6, **plan)
    assert (len(warmup), len(times), stopped_by) == (3, 6, "budget")
    warmup, times, stopped_by = run(
        clock, lambda n: 4.0, **plan | {"warmup_budget_s": 0, "budget_s": 0}
    )
    assert (len(warmup), len(times), stopped_by) == (3, 6, "budget")


# -- phases ------------------------------------------------------------------------------------

STEP = {"data_s": 0.001, "forward_s": 0.2, "other_s": 0.02, "backward_s": 0.4, "optimizer_s": 0.03}


def timed_step(device: Device, split: bool) -> tuple[float, dict[str, float]]:
    """One step of `STEP` on a device, as the trainers time it."""
    phases = PhaseClock(device)
    phases.start(split)
    for phase, seconds in STEP.items():
        device.launch(seconds)
        phases.edge(phase)
    device.launch(0.01)  # belongs to no phase
    return phases.stop()


@pytest.mark.parametrize("kind", [Device, EventDevice])
def test_a_step_waits_for_its_work_and_phases_hold_what_was_handed_over_in_them(
    clock: Clock, kind: type[Device]
) -> None:
    """No step pays for the one before."""
    device = kind(clock)
    device.launch(50.0)
    step_s, phases = timed_step(device, split=True)
    assert phases == pytest.approx(STEP | {"other_s": 0.03}, abs=1e-5)  # two stretches
    assert sum(phases.values()) == step_s == pytest.approx(0.661, abs=1e-4)
    device.launch(50.0)
    device.marks = 0
    step_s, phases = timed_step(device, split=False)
    assert phases == {}
    assert device.marks == 0  # looking would be what a whole step is there to avoid
    assert step_s == pytest.approx(0.661, abs=1e-4)


@pytest.mark.parametrize("kind", [Device, EventDevice])
def test_unsynchronised_steps_overlap_with_their_launches(clock: Clock, kind: type[Device]) -> None:
    """A run lasts until its last step is done; launches cost only where the device is faster."""
    for launch_s, device_s, step_s in ((0.003, 0.01, 0.01), (0.01, 0.003, 0.01)):
        device = kind(clock)
        device.launch(50.0)  # is waited for outside of the run
        phases = PhaseClock(device)
        phases.start_run()
        for _ in range(1000):
            assert not phases.split and not phases.waits
            clock.spend(launch_s)
            device.launch(device_s)
            phases.edge("forward_s")
        assert device.marks == 0
        assert phases.stop_run() / 1000 == pytest.approx(step_s, rel=0.01)
        assert phases.waits


# -- where wall time goes ------------------------------------------------------------------------


def burn(seconds: float) -> None:
    """Be on a core for so long, by the thread's own clock."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.flaky(reruns=1)  # it compares measured times
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of waiting for a core")
def test_a_thread_that_shares_its_core_waits_for_it() -> None:
    core = min(os.sched_getaffinity(0))

    def stolen() -> float:  # by the hypervisor, from whoever had the core
        return psutil.cpu_times(percpu=True)[core].steal

    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
        with busy(core):
            stolen_s = -stolen()
            start, began = thread_time.read(threading.get_ident()), time.perf_counter()
            burn(0.3)
            wall_s = time.perf_counter() - began
            used = thread_time.between(start, thread_time.read(threading.get_ident()))
            stolen_s += stolen()
    finally:
        os.sched_setaffinity(0, before)
    assert used["waiting_s"] > 0.1
    told_s = used["cpu_s"] + used["waiting_s"]
    assert told_s / 1.1 < wall_s < (told_s + stolen_s) * 1.1
