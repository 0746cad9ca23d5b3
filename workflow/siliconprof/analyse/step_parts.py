"""The parts of a training's step, with their intervals, as lines of step_parts.csv.

Of what phases last beyond their operators, the time use of the measuring thread tells some:

- Blocked counts where no thread of the process was on a core: what a step's blocked time exceeds
  the time that its other threads had on cores, at most what phases last beyond their operators. A
  thread that waits for others inside of an operator is blocked too, so where several threads are at
  work a sleep stays in the framework's part.
- Waiting for a core counts as far as it exceeds the time that the thread was blocked while others
  worked: what it waits for then may cost nothing. It comes out of what phases last beyond their
  operators, since a median leaves out what strikes an operator in few of the steps. What does not
  fit in there comes out of the operators in proportion to their time, as a scheduler takes the core
  from whatever runs.
- A GPU works beside the host. What phases last beyond its operators the GPU waits, for the host or
  between two kernels; the host's own times are no parts of the step. Where dispatching a step takes
  nearly as long as the step, that is what bounds it.
- Operators that outlast their phase when they are timed one by one, as MLX's do, whose graph reuses
  memory of which each of them needs its own, are shortened to it in proportion: no part of a step
  takes longer than the phase it is in. A GPU's are timed on the device, and stay.
- The operators of a whole training are timed after it, when the machine may be faster or slower: whole
  steps between those tell by how much, and all parts are as much longer or shorter.
- Time in the kernel falls into operators, which touch new memory, as well as between them: nothing
  tells how much, and it is no part of its own.

Intervals are percentile bootstraps (Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
chapter 13) over whole steps: the operators of one step are fast together and slow together. Where a
cell has several processes, each has its own parts; their mean counts, with Student's t between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from siliconprof.analyse import record_rows
from siliconprof.analyse.operator_rows import (
    BLOCKED,
    FRAMEWORK,
    PARTS,
    WAITING,
    group,
    slowdown,
    timed_phases,
)
from siliconprof.stats import inference, statistics
from siliconprof.store.contents import Point
from siliconprof.store.point import OfProcess, Series
from siliconprof.store.table_files import Row

DRAWS = 200
# Seeds: of the steps whose operators are timed, and of those between.
WATCHED, BETWEEN_OPERATORS = 0, 1
INTERVAL_QUANTILES = (0.025, 0.975)
TIMED_INSIDE = "its operators, timed inside of steps"
BEYOND_OPERATORS = "what phases last beyond their operators"
DEVICE_WAITS = (
    "what phases last beyond its operators: the device waits, for the host or between them"
)
MOST_OF_A_STEP = 0.9  # of a step
TELLING = 0.02  # from which it is said that operators outlast their phases
UNTOLD = "what of it is blocked or waits for a core is not known"
BLOCKED_BEYOND = "what the measuring thread is blocked beyond the time of other threads on cores"
WAITS_FOR_CORE = "what the measuring thread waits for a core"


class TimeUse(NamedTuple):
    """Seconds of a whole step."""

    blocked: np.ndarray  # the measuring thread; see `medians`
    waiting: np.ndarray
    others: float  # mean of the other threads on cores: the kernel counts some of it in ticks


class BlockedTime(NamedTuple):
    """Seconds of a step in which the measuring thread surely did nothing."""

    blocked: np.ndarray  # beyond operators
    waiting: np.ndarray  # for a core, beyond operators
    waiting_inside: np.ndarray  # of operators


class StepParts(NamedTuple):
    """What a step is made of in one process."""

    seconds: Mapping[str, np.ndarray]  # of `PARTS`, in that order; see `medians`
    hows: Mapping[str, str]  # how each is known


def parts_of_point(point: Point, device_kind: str = "cpu") -> Iterator[Row]:
    """Lines of step_parts.csv: what a step of a training whose operators are timed is made of.

    The parts sum to the medians of the phases, as the lines of operators.csv do; see `slowdown`.
    """
    found = [parts for one in point.processes if (parts := parts_of_process(one, device_kind))]
    hows = {part: how for parts in reversed(found) for part, how in parts.hows.items()}
    for part in sorted(hows, key=PARTS.index):
        first, *further = (parts.seconds.get(part, np.zeros(1 + DRAWS)) for parts in found)
        middle, (low, high) = first[0], np.quantile(first[1:], INTERVAL_QUANTILES)
        if further:
            of_processes = [first[0], *(seconds[0] for seconds in further)]
            middle, low, high = inference.mean_and_interval(of_processes)
        yield {
            "part": part,
            "seconds": middle,
            "low_s": min(low, middle),
            "high_s": max(high, middle),
            "how": hows[part],
        }


def parts_of_process(process: OfProcess, device_kind: str) -> StepParts | None:
    """The parts of a step in one process; None where its operators are not timed."""
    phases, times = timed_phases(process), slowdown(process)
    if process.operators is None or not phases:
        return None
    timed = [operator for operator in process.operators.rows if operator.seconds]
    # (operators, 1 + DRAWS)
    seconds = times * medians([operator.seconds for operator in timed], WATCHED)
    own = np.array([group(operator.kind, operator.phase) for operator in timed])
    of_phase = np.array([operator.phase for operator in timed])
    on_gpu, alone_s = device_kind != "cpu", seconds[:, 0].sum()
    beyond = np.zeros(1 + DRAWS)
    for phase, of_steps in phases.items():
        phase_s, inside = times * medians(of_steps, BETWEEN_OPERATORS), of_phase == phase
        if not on_gpu and inside.any():
            seconds[inside] *= np.minimum(phase_s / seconds[inside].sum(axis=0), 1.0)
        beyond += phase_s - seconds[inside].sum(axis=0)
    operators = seconds.sum(axis=0)
    use = None if on_gpu else time_use(process)
    lost = (
        blocked_and_waiting(beyond, operators, use)
        if use
        else BlockedTime(*[np.zeros_like(beyond)] * 3)
    )
    at_work = 1 - lost.waiting_inside / operators
    values = {part: at_work * seconds[own == part].sum(axis=0) for part in PARTS if part in own}
    lost_s = {BLOCKED: lost.blocked, WAITING: lost.waiting + lost.waiting_inside}
    values |= {part: spent_s for part, spent_s in lost_s.items() if spent_s[0] > 0}
    values[FRAMEWORK] = beyond - lost.blocked - lost.waiting
    of_rest = (
        _how_on_gpu(process, operators[0])
        if on_gpu
        else BEYOND_OPERATORS
        if use
        else f"{BEYOND_OPERATORS}; {UNTOLD}"
    )
    longer = alone_s / operators[0] - 1
    of_operators = (
        f"{TIMED_INSIDE}, one by one {longer:.0%} longer" if longer > TELLING else TIMED_INSIDE
    )
    hows = {FRAMEWORK: of_rest, BLOCKED: BLOCKED_BEYOND, WAITING: WAITS_FOR_CORE}
    return StepParts(values, {part: hows.get(part, of_operators) for part in values})


def medians(values: np.ndarray | Series | Sequence[Series], seed: int) -> np.ndarray:
    """(..., steps) -> (..., 1 + DRAWS): medians of all steps, then of steps drawn from them."""
    steps = np.asarray(values)
    n = steps.shape[-1]
    drawn = steps[..., np.random.default_rng(seed).integers(n, size=(DRAWS, n))]
    middle = np.median(steps, axis=-1, keepdims=True)
    return np.concatenate([middle, np.median(drawn, axis=-1)], axis=-1)


def time_use(process: OfProcess) -> TimeUse | None:
    """How a step's threads use its time; None where the system does not report it."""
    walls = process.series("whole_step_s")
    used = [
        record_rows.whole_step_column(process, name)
        for name in ("cpu_s", "waiting_s", "all_threads_cpu_s")
    ]
    if not walls or any(len(values) != len(walls) for values in used):
        return None
    cpu, waiting, all_threads = map(np.array, used)
    blocked = np.maximum(medians(np.array(walls) - cpu - waiting, BETWEEN_OPERATORS), 0.0)
    others = max(float(np.mean(all_threads - cpu)), 0.0)
    return TimeUse(blocked, medians(waiting, BETWEEN_OPERATORS), others)


def blocked_and_waiting(beyond: np.ndarray, operators: np.ndarray, use: TimeUse) -> BlockedTime:
    """The seconds of a step that are certainly blocked or waiting for a core, see the module.

    Args:
        beyond: what phases last beyond their operators.
        operators: what these take.
    """
    room = np.maximum(beyond, 0.0)
    blocked = np.clip(use.blocked - use.others, 0.0, room)
    for_others = np.minimum(use.blocked, use.others)
    waiting = np.clip(use.waiting - for_others, 0.0, room - blocked + operators)
    of_beyond = np.minimum(waiting, room - blocked)
    return BlockedTime(blocked, of_beyond, waiting - of_beyond)


def _how_on_gpu(process: OfProcess, operators_s: float) -> str:
    """How the rest of a GPU's step is explained, and whether dispatching bounds the step."""
    dispatch_s, steps_s = process.series("dispatch_s"), process.series("whole_step_s")
    if not dispatch_s:
        return DEVICE_WAITS
    taken_s, step_s = statistics.median(dispatch_s), statistics.median(steps_s)
    mostly_s = MOST_OF_A_STEP * step_s
    bound = "; launch-bound" if operators_s < mostly_s <= taken_s else ""
    return f"{DEVICE_WAITS}; the host hands a step over in {1e3 * taken_s:.3g} of {1e3 * step_s:.3g} ms{bound}"
