"""Where a training step's time goes: its operators, each timed inside real steps.

The first watched step lists the operators, with their modules and operands; later ones time them.
Watched steps alternate with unwatched ones, so that drift affects both alike. What an unwatched
step's phase takes beyond the sum of its operators is the framework's time: Python, autograd's walk
through the graph, views, and whatever the timing missed. Watched steps are slower and in no median.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from siliconprof.backends._step import Operator
from siliconprof.backends.base import Profiler, Unsupported
from siliconprof.session.cell_run import CellRun
from siliconprof.session.timing import PhaseClock, Plan

RARER = 1.2  # a step is watched once there are so many times as many others, and one more
# Steps of each kind of a training that is watched by itself.
FEWEST_WATCHED_STEPS, MOST_WATCHED_STEPS = 5, 12
BUDGET_SHARE = 0.2  # of the cell's budget, for them once there are the fewest
DIFFERS = "a step's operators are not those of the step before"
NONE_YET = "the training ended before a step's operators were timed"


class Operators:
    """Lists the operators of a training step, and times them in some later steps.

    Args:
        method: of the run; the kernels that were used are added to it.
    """

    def __init__(self, profiler: Profiler, clock: PhaseClock, method: dict[str, Any]) -> None:
        self.profiler, self.clock, self.method = profiler, clock, method
        self._listed: list[Operator] | None = None
        self._times: list[list[float]] = []  # of each operator, by step
        # Why no step, or no further step, is watched.
        self._reason = refusal(lambda: profiler.describe_step(clock))
        self._next = 1  # how many other steps there are then
        self._watching = ExitStack()
        self._collected: Any = None

    def due(self, unwatched: int, overruns: bool = False) -> bool:
        """Whether the next step is to be watched.

        Args:
            unwatched: steps that were timed in the usual way so far.
            overruns: whether the training is about to end early: its operators are timed once before.
        """
        is_due = not self._times if overruns else unwatched >= self._next
        return self._reason is None and is_due

    def begin(self, unwatched: int) -> None:
        """Watch the step that begins, which is split."""
        profiler, describes = self.profiler, self._listed is None
        watch = profiler.describe_step(self.clock) if describes else profiler.time_step()
        self._collected = self._watching.enter_context(watch)
        self._next = math.ceil(RARER * unwatched) + 1

    def stop(self) -> None:
        """Watch no more; the clock has stopped."""
        self._watching.close()

    def end(self) -> None:
        """Stop, and keep what was seen."""
        self.stop()
        if self._listed is None:
            self._listed = self._collected
            self.method["kernels"] = self.profiler.implementations(self._collected)
            self._reason = refusal(self.profiler.time_step)
        elif [kind for kind, _ in self._collected] == [operator.kind for operator in self._listed]:
            self._times.append([seconds for _, seconds in self._collected])
        else:
            self._reason = DIFFERS

    def of_point(self, unwatched: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The point's `operators`; empty where the profiler cannot list them.

        Args:
            unwatched: of the steps between, where they are not the point's own: `phases`, seconds of each,
                and `whole_step_s`, seconds of those that are not split.
        """
        if self._listed is None:
            return {}
        places: dict[Operator, list[int]] = {}
        for place, operator in enumerate(self._listed):
            places.setdefault(operator, []).append(place)
        times = [] if self._reason else self._times
        rows = [
            {
                **operator._asdict(),
                "count": len(own),
                "seconds": [round(sum(step[place] for place in own), 9) for step in times],
            }
            for operator, own in places.items()
        ]
        reason = self._reason or (None if times else NONE_YET)
        return {
            "operators": {"rows": rows, "reason": reason, **(reason is None and unwatched or {})}
        }


def refusal(ask: Callable[[], Any]) -> str | None:
    """The reason why a backend refuses a request, or None."""
    try:
        ask()
    except Unsupported as error:
        return str(error)
    return None


def watch_step(cell_run: CellRun, step: Callable[[], Any], clock: PhaseClock) -> dict[str, Any]:
    """Watch operators in extra steps, for a training whose own are few or timed whole only.

    Its own steps ran earlier, when the machine may have been faster or slower: whole steps among the
    extra ones tell by how much. It comes before `memory_limit.peak_of_step`, after whose step glibc's
    malloc gives less memory back, so that steps have fewer page faults.

    Args:
        step: one more training step, with its edges on the clock.
    """
    watched = Operators(cell_run.backend.profiler, clock, cell_run.method)
    phases, whole_step_s = dict[str, list[float]](), list[float]()
    budget_s = BUDGET_SHARE * Plan.of(cell_run.cell.timing).budget_s
    others, spent_s, described_s = 1, 0.0, 0.0

    def is_due() -> bool:
        return others <= 1 + FEWEST_WATCHED_STEPS or (
            others <= 1 + MOST_WATCHED_STEPS and spent_s < budget_s
        )

    while watched.due(10 * MOST_WATCHED_STEPS) and is_due():
        cell_run.progress("operators of a step", others)
        clock.start(split=True)
        watched.begin(others)
        step()
        watched_s, _ = clock.stop()
        watched.end()
        clock.start(split=True)
        step()
        split_s, of_step_s = clock.stop()
        clock.start(split=False)
        step()
        whole_s, _ = clock.stop()
        if others == 1:  # described, not timed, and what follows finds caches and memory cold
            described_s = watched_s + split_s + whole_s
        else:
            for phase, seconds in of_step_s.items():
                phases.setdefault(phase, []).append(seconds)
            whole_step_s.append(whole_s)
            spent_s += watched_s + split_s + whole_s
        others += 1
    cell_run.timed(described_s + spent_s)
    return watched.of_point({"phases": phases, "whole_step_s": whole_step_s} if phases else None)
