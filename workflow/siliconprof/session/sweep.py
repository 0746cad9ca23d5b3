"""A point of a sweep, in which an exception does not end the cell.

It becomes the point's status: `oom` with the allocator's own message, `failed` with any other. If the
process is killed, the record has the points until then.
"""

from __future__ import annotations

import copy
import gc
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from siliconprof.backends.base import Unsupported
from siliconprof.errors import UserError, in_one_line
from siliconprof.session import oom
from siliconprof.session.cell_run import CellRun
from siliconprof.session.timing import Plan, overran

# The status of a cell none of whose points is ok: the first of these that any point has.
WORST_FIRST = ("failed", "oom", "skipped")
# A point without measured values, with the keys that the record's schema requires.
EMPTY_POINT: dict[str, Any] = {
    "params": {},
    "times": {},
    "flops": None,
    "bytes": None,
    "memory": {},
}
SHOWN_REASONS = 2  # reasons in a cell's own; each point has its own in full
LONGEST_NAME = 160  # characters of each


def point(
    cell_run: CellRun,
    name: str,
    initial: Mapping[str, Any],
    measure: Callable[[], Mapping[str, Any]],
) -> dict[str, Any]:
    """Measure a point of the sweep and add it to the record.

    Args:
        name: of the point, for the progress.
        initial: the parts of the point that are known beforehand, `params` above all.
        measure: returns the rest; its memory is freed when it has returned or raised.

    Raises:
        Unsupported, UserError: these are about the whole cell.
    """
    cell_run.progress(name, 0, always=True)
    began_s = time.perf_counter() - cell_run.zero
    empty = copy.deepcopy(EMPTY_POINT)
    try:
        measured = {**empty, **initial, **measure(), "status": "ok", "reason": None}
        cell_run.windows.append((measured, began_s, time.perf_counter() - cell_run.zero))
    except (Unsupported, UserError):
        raise
    except Exception as error:
        traceback.print_exc()
        status = "oom" if oom.raised(error) else "failed"
        measured = {**empty, **initial, "status": status, "reason": in_one_line(error)}
    free(cell_run)
    cell_run.add_point(measured)
    return measured


def free(cell_run: CellRun) -> None:
    """Free unreferenced memory; models are full of reference cycles."""
    gc.collect()
    cell_run.backend.memory.empty_cache()


def skip(cell_run: CellRun, initial: Mapping[str, Any], reason: str) -> None:
    """Add a point that is not tried, with the reason."""
    skipped = {**copy.deepcopy(EMPTY_POINT), **initial, "status": "skipped", "reason": reason}
    cell_run.add_point(skipped)


def overrun(cell_run: CellRun, n_points: int) -> str | None:
    """Why the next point of a sweep is not tried: those before it took far longer than all should."""
    plan, spent_s = Plan.of(cell_run.cell.timing), time.perf_counter() - cell_run.zero
    budget_s = n_points * (plan.warmup_budget_s + plan.budget_s)
    if not cell_run.points or not overran(spent_s, budget_s):
        return None
    return (
        f"the points before it took {spent_s:.0f} s, the budget of all {n_points} is {budget_s:.3g} s: "
        "raise budget_s, or measure when nothing else runs"
    )


def status_of(point: Mapping[str, Any]) -> str:
    """A point's status; ok where it has none."""
    return str(point.get("status") or "ok")


def status(points: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """(status, reason) of a cell that came to its end: ok when any of its points is ok."""
    counts = Counter(map(status_of, points))
    if counts["ok"] or not points:
        return "ok", None
    worst = next(worst for worst in WORST_FIRST if counts[worst])
    return worst, f"none of {len(points)} points was measured: {_summary(points)}"


def flag(cell_run: CellRun) -> None:
    """Flag a cell some of whose points are missing."""
    missing = [point for point in cell_run.points if status_of(point) != "ok"]
    if missing and len(missing) < len(cell_run.points):
        cell_run.flag(
            "points_missing",
            f"{len(missing)} of {len(cell_run.points)} points: {_summary(missing)}",
        )


def _summary(points: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(map(status_of, points))
    counted = [f"{counts[status]} {status}" for status in WORST_FIRST if counts[status]]
    reasons = list(dict.fromkeys(str(point["reason"])[:LONGEST_NAME] for point in points))
    others = len(reasons) - SHOWN_REASONS
    more = [f"and {others} other reason{'s' * (others > 1)}"] if others > 0 else []
    return "; ".join([", ".join(counted), *reasons[:SHOWN_REASONS], *more])
