"""A step's distinct operators, each timed alone: the process that `--measure` of `siliconprof predict` starts.

    python -m siliconprof.session.alone < JOBS > RESULTS

Of each training, none of which runs, the operators with how often a step calls them. An operator is
called at least `FEWEST` times after a first one, and more often as long as its part of the budget
lasts. Beside it stands no more memory than it works on and twice the last-level cache.
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
from siliconprof.backends._alone import Call
from siliconprof.errors import UserError, stage
from siliconprof.hosts import caches, machine
from siliconprof.session import inventory
from siliconprof.stats import statistics

FEWEST, MOST = 3, 50  # calls that are timed
QUARTILES = (0.25, 0.5, 0.75)


def timed(calls: Sequence[Call], budget_s: float) -> list[dict[str, Any]]:
    """Rows as a record has them, whose `seconds` are of one call, with quartiles `low_s` and `high_s`.

    Raises:
        UserError: this host has no memory for the largest operator.
    """
    counts = Counter((call.alike, call.operator.phase) for call in calls)
    distinct = {call.alike: call for call in calls}
    require_memory(max(call.operator.bytes for call in distinct.values()))
    found: dict[Any, list[float]] = {}
    end = perf_counter() + budget_s
    for left, (alike, call) in zip(range(len(distinct), 0, -1), distinct.items(), strict=True):
        seconds, start = call.alone(), perf_counter()
        own_s = max(end - start, 0.0) / left
        seconds()
        times = [seconds()]
        while len(times) < FEWEST or (len(times) < MOST and perf_counter() < start + own_s):
            times.append(seconds())
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


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """`rows` of a training's step, or `reason` why there are none."""
    plugin = plugins.load("workloads", job["module"])
    parameters = plugin.defaults() | job["parameters"]
    workload = plugin(parameters)
    try:
        calls = inventory.calls(
            workload, parameters, job["backend"], job["precision"], job["threads"]
        )
        return {"rows": timed(calls, job["budget_s"]), "reason": None}
    except UserError as error:
        return {"rows": [], "reason": str(error)}


def main(argv: Sequence[str] | None = None) -> int:
    """Answer what standard input asks."""
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    sys.stdout = sys.stderr  # for what libraries say
    json.dump([answer(job) for job in json.load(sys.stdin)], results)
    results.close()
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
