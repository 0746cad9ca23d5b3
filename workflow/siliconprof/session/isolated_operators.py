"""A step's distinct operators, each timed alone: the process of `--measure` of `siliconprof predict`.

    python -m siliconprof.session.isolated_operators SECONDS < JOBS > RESULTS

For each training, which does not run, the result has its operators and how often a step calls each. The
first training has most of the seconds, counted from the start of the process; the others share the rest.
An operator is called `FEWEST_CALLS` times after a warm-up call, and more often while its share of the
time lasts; once the time is up, a single time. Memory holds the operands of one operator, and twice the
last-level cache.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from siliconprof import plugins
from siliconprof.backends._isolated import Call
from siliconprof.errors import UserError, stage
from siliconprof.hosts import caches, machine
from siliconprof.session import inventory
from siliconprof.stats import statistics

FEWEST_CALLS, MOST_CALLS = 3, 50  # calls that are timed
FIRST_SHARE = 0.7  # of the time, for the first training
NO_TIME = "the others took all the time"
QUARTILES = (0.25, 0.5, 0.75)


def timed(calls: Sequence[Call], until: float) -> list[dict[str, Any]]:
    """Rows as in a record; `seconds` is the median of one call, `low_s` and `high_s` its quartiles.

    Args:
        until: on the clock of `perf_counter`; after it each operator is timed once.

    Raises:
        UserError: this host has no memory for the largest operator.
    """
    counts = Counter((call.alike, call.operator.phase) for call in calls)
    of_all = Counter(call.alike for call in calls)
    distinct = {call.alike: call for call in calls}
    require_memory(max(call.operator.bytes for call in distinct.values()))
    found: dict[Any, list[float]] = {}
    moving = sorted(distinct, key=lambda one: -of_all[one] * distinct[one].operator.bytes)
    for left, alike in zip(range(len(moving), 0, -1), moving, strict=True):
        seconds, start = distinct[alike].alone(), perf_counter()
        share_s = max(until - start, 0.0) / left
        times = [seconds()]  # the warm-up, which counts if there is no time for more
        while len(times) <= MOST_CALLS and (now := perf_counter()) < until:
            if len(times) > FEWEST_CALLS and now > start + share_s:
                break
            times.append(seconds())
        times = times[1:] or times
        found[alike] = [statistics.quantile(times, share) for share in QUARTILES]
    first = {(call.alike, call.operator.phase): call.operator for call in reversed(calls)}
    return [
        {
            **first[key]._asdict(),
            "count": count,
            **dict(zip(("low_s", "seconds", "high_s"), found[key[0]], strict=True)),
        }
        for key, count in counts.items()
    ]


def require_memory(operator_bytes: int) -> None:
    """Refuse an operator that this host has no memory for.

    Raises:
        UserError: one line.
    """
    need = operator_bytes + caches.beyond_bytes(caches.last_level_bytes()[0])
    room, _ = machine.by_psutil(lambda psutil: psutil.virtual_memory().available)
    has = "are available"
    if room is None:  # what is free is not known: then all that there is
        room, has = machine.cpu()["memory_bytes"], "is all its memory"
    if room is not None and need > room:
        raise UserError(
            f"to time the largest operator of its step alone takes {need / 1e9:.3g} GB; "
            f"{room / 1e9:.3g} GB {has}: a smaller batch, or a host with more memory"
        )


def answer(job: Mapping[str, Any], until: float) -> dict[str, Any]:
    """`rows` of a training's step, or `reason` why there are none; see `timed`."""
    plugin = plugins.load("workloads", job["module"])
    parameters = plugin.defaults() | job["parameters"]
    workload = plugin(parameters)
    try:
        calls = inventory.calls(
            workload, parameters, job["backend"], job["precision"], job["threads"]
        )
        return {"rows": timed(calls, until), "reason": None}
    except UserError as error:
        return {"rows": [], "reason": str(error)}


def main(argv: Sequence[str] | None = None) -> int:
    """Answer the jobs on standard input within the seconds that the only argument gives."""
    start = perf_counter()
    (within_s,) = map(float, sys.argv[1:] if argv is None else argv)
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    sys.stdout = sys.stderr  # for what libraries say
    own, *others = json.load(sys.stdin)
    found = [answer(own, start + within_s * (FIRST_SHARE if others else 1.0))]
    for left, job in zip(range(len(others), 0, -1), others, strict=True):
        now = perf_counter()
        until = now + (start + within_s - now) / left
        found.append(answer(job, until) if now < until else {"rows": [], "reason": NO_TIME})
    json.dump(found, results)
    results.close()
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
