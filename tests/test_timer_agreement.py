"""Our timing loop beside torch.utils.benchmark.Timer: same product, same process, in turn.

Each pair of turns gives a ratio, ours over the Timer's; every second pair begins with the Timer, so
what drifts meets both. Of all pairs the median is held against 0.97 to 1.03.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from conftest import opened
from siliconprof.backends._torch import TorchArrays
from siliconprof.session.timing import Plan, repeat
from siliconprof.stats.statistics import median, median_interval
from threadpoolctl import threadpool_limits

pytestmark = [pytest.mark.alone, pytest.mark.flaky(reruns=1)]  # two timers are compared

LOW, HIGH = 0.97, 1.03
SECONDS = 0.03  # of each turn: many short ones, since what disturbs a host lasts longer than one
PLAN = Plan(warmup_iterations=1, warmup_budget_s=0, iterations=3, budget_s=SECONDS)


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    """Before other processes where that is allowed, and afterwards as many threads as there were.

    Others take a core for milliseconds: of our calls that hits some, of the Timer's blocks of calls
    nearly all; beside five of them both differed by 20 %. SCHED_FIFO (sched(7)) needs Linux and
    root or CAP_SYS_NICE. A second thread, which torch does not know of where MLX has brought
    OpenBLAS into the process, is kept waiting for a core by the first, for minutes.
    """
    import torch

    before = torch.get_num_threads()
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with threadpool_limits(1):
        yield
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    torch.set_num_threads(before)


def agreement(pairs: int, most_pairs: int) -> tuple[float, float, float]:
    """Ours over the Timer's: the median of some pairs, and its 95 % interval.

    Pairs are added while the interval holds an end of the band, as on a busy host.
    """
    import torch
    from torch.utils.benchmark import Timer

    # One thread, because a second one waits for whoever else has its core; some milliseconds a
    # call, so that the Timer's block is one call and both are medians of the same thing.
    path = opened("torch-cpu")
    arrays = path.arrays
    a, b = arrays.normal((1, 640, 640), 0), arrays.normal((1, 640, 640), 1)
    timer = Timer("matmul(a, b)", globals={"matmul": torch.matmul, "a": a, "b": b}, num_threads=1)

    def ours() -> float:
        found = repeat(
            lambda: arrays.eval(arrays.matmul(a, b)), path.clock, PLAN, lambda stage, step: None
        )
        return median(found.times_s)

    def theirs() -> float:
        return float(timer.blocked_autorange(min_run_time=SECONDS).median)

    ours(), theirs()  # both once for nothing: the first calls make buffers and threads
    ratios: list[float] = []
    while len(ratios) < pairs or (len(ratios) < most_pairs and undecided(ratios)):
        if len(ratios) % 2:
            one, other = ours(), theirs()
        else:
            other, one = theirs(), ours()
        ratios.append(one / other)
    return (median(ratios), *median_interval(ratios))


def undecided(ratios: list[float]) -> bool:
    """Whether their interval lies neither inside the band nor outside it."""
    low, high = median_interval(ratios)
    return low < LOW <= high or low <= HIGH < high


def test_our_median_is_that_of_torch_s_own_timer() -> None:
    found = agreement(pairs=25, most_pairs=200)
    assert LOW <= found[0] <= HIGH, found


def test_a_tenth_more_work_is_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: our side multiplies a second, ten times narrower matrix."""
    product = TorchArrays.matmul

    def more(self: Any, a: Any, b: Any) -> Any:
        product(self, a, b[..., : b.shape[-1] // 10])
        return product(self, a, b)

    monkeypatch.setattr(TorchArrays, "matmul", more)
    found = agreement(pairs=15, most_pairs=100)
    assert found[0] > HIGH and found[1] > 1, found
