"""Do we measure what torch.utils.benchmark.Timer measures? `python benchmarks/torch_timer.py`

The same products of the same matrices in one process, timed in turn: by the loop that every cell
uses (`timing.repeat`, the median of calls that are each waited for) and by torch's own Timer (the
median of `blocked_autorange`, whose blocks hold as many calls as it thinks it needs). Each pair of
turns gives a ratio, ours over the Timer's; every second pair begins with the Timer, so what drifts
meets both. Of all pairs the median is held against 0.97 to 1.03; outside it is printed as missed.

Both have the same number of threads: the Timer's own default is one. On a GPU the Timer's blocks
are waited for once, our calls each, which costs some microseconds a call: its shapes take long
enough for that not to matter. So do the CPU's: a call of our loop costs about a microsecond more.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from shared import ratio
from siliconprof import plugins
from siliconprof.session.timing import Plan, repeat
from siliconprof.stats import statistics

LOW, HIGH = 0.97, 1.03
DTYPES = ("fp32", "bf16")
Shape = tuple[int, int, int, int]  # batch, m, k, n
SHAPES: dict[str, Sequence[Shape]] = {
    "torch-cpu": (
        (1, 512, 512, 512), (1, 1024, 1024, 1024), (8, 256, 256, 256), (8, 500, 500, 500),
        (1, 512, 768, 3072),
    ),
    "torch-cuda": (
        (1, 8192, 8192, 8192), (8, 4096, 4096, 4096), (16, 4096, 4096, 2048),
        (1, 16384, 8192, 4096), (1, 8192, 16384, 8192),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Agreement:
    """One product, timed both ways."""

    backend: str
    shape: Shape
    precision: str
    threads: int
    pairs: int
    calls_in_a_block: int  # of the Timer, the most
    ours_s: float  # median over the pairs of each one's median, seconds
    timer_s: float
    ratio: float  # median of the pairs' ratios, ours over the Timer's
    low: float  # and its 95 % interval
    high: float

    @property
    def holds(self) -> bool:
        """Whether the two agree."""
        return LOW <= self.ratio <= HIGH


def agreement(
    backend: str,
    shape: Shape,
    precision: str,
    threads: int,
    pairs: int,
    seconds: float,
    most_pairs: int = 0,
) -> Agreement:
    """Time one product both ways, in turn.

    Args:
        threads: of the CPU, for both.
        seconds: that each turn of either side takes about.
        most_pairs: up to so many, pairs are added while the interval holds an end of the band, as
            on a host that others use at the same time.
    """
    import torch
    from torch.utils.benchmark import Timer

    path = plugins.load("backends", backend)()
    path.open(path.device_kind, 0, threads, precision)
    batch, m, k, n = shape
    a, b = path.normal((batch, m, k), 0), path.normal((batch, k, n), 1)
    names = {"matmul": torch.matmul, "a": a, "b": b}
    timer = Timer("matmul(a, b)", globals=names, num_threads=threads)
    plan = Plan(warmup_iterations=1, warmup_budget_s=0, iterations=3, budget_s=seconds)
    blocks = []

    def ours() -> float:
        found = repeat(
            lambda: path.evaluate(path.matmul(a, b)), path, plan, lambda stage, step: None
        )
        return statistics.median(found.times_s)

    def theirs() -> float:
        measured = timer.blocked_autorange(min_run_time=seconds)
        blocks.append(measured.number_per_run)
        return measured.median

    ours(), theirs()  # both once for nothing: the first calls make buffers and threads
    times: dict[bool, list[float]] = {True: [], False: []}  # ours, and the Timer's
    found = 1.0, 0.0, float("inf")
    for index in range(max(pairs, most_pairs)):
        # Where neither inside the band nor outside it, the interval is undecided.
        if index >= pairs and not (found[1] < LOW <= found[2] or found[1] <= HIGH < found[2]):
            break
        for is_ours in (True, False) if index % 2 else (False, True):
            times[is_ours].append(ours() if is_ours else theirs())
        found = ratio(times[True], times[False])
    medians = [statistics.median(times[side]) for side in (True, False)]
    tried = len(times[True])
    return Agreement(backend, shape, precision, threads, tried, max(blocks), *medians, *found)


@contextlib.contextmanager
def first_in_line() -> Iterator[bool]:
    """Have this thread, and those it starts, run before every other process; whether it is allowed.

    Others take a core for milliseconds: of our calls that hits some, of the Timer's blocks of calls
    nearly all. SCHED_FIFO (sched(7)) needs Linux and root or CAP_SYS_NICE.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except (AttributeError, OSError):
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def line(found: Agreement) -> str:
    """For a person."""
    batch, m, k, n = found.shape
    verdict = "agrees" if found.holds else f"missed: {found.ratio:.3f}"
    return (
        f"{found.backend:11} {f'{batch} x {m} x {k} x {n}':24} {found.precision:5} "
        f"{found.ours_s * 1e3:10.3f} {found.timer_s * 1e3:10.3f} {found.calls_in_a_block:6} "
        f"{found.ratio:7.3f} [{found.low:.3f}, {found.high:.3f}]  {verdict}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Time every shape and dtype where they can be; 1 when any is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--first",
        action="store_true",
        help="run before other processes, which wait (root on Linux)",
    )
    arguments = parser.parse_args(argv)
    found = []
    with contextlib.ExitStack() as stack:
        if arguments.first and not stack.enter_context(first_in_line()):
            print("--first: not permitted here; others may take the cores meanwhile")
        print(
            f"{'backend':11} {'product':24} {'dtype':5} {'ours / ms':>10} {'Timer / ms':>10} "
            f"{'block':>6} {'ratio':>7}  95 % interval"
        )
        for backend, shapes in SHAPES.items():
            works, why = plugins.load("backends", backend)().available()
            if not works:
                print(f"{backend:11} not here: {why}")
                continue
            settings = (arguments.threads, arguments.pairs, arguments.seconds)
            for precision, shape in product(DTYPES, shapes):
                found.append(agreement(backend, shape, precision, *settings))
                print(line(found[-1]), flush=True)
    print(
        f"{sum(one.holds for one in found)} of {len(found)} within {LOW} to "
        f"{HIGH}; {arguments.pairs} pairs each, {arguments.threads} threads"
    )
    return int(not all(one.holds for one in found))


if __name__ == "__main__":
    sys.exit(main())
