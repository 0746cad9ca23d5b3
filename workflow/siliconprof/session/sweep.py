"""A point of a sweep: an exception in it ends no cell.

It becomes the point's status: `oom` with the allocator's own message, `failed` with any other. Where
the process is killed, the record has the points until then.
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
from siliconprof.session import exhaustion
from siliconprof.session.session import Session
from siliconprof.session.timing import Plan, overran

# The status of a cell none of whose points is ok: the first of these that any point has.
WORST_FIRST = ("failed", "oom", "skipped")
# A point without measured values, with the keys that the record's schema requires.
EMPTY: dict[str, Any] = {"params": {}, "times": {}, "flops": None, "bytes": None, "memory": {}}
SHOWN = 2  # reasons in a cell's own; each point has its own in full
LONGEST = 160  # characters of each


def point(
    session: Session,
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
    session.progress(name, 0, always=True)
    began_s = time.perf_counter() - session.zero
    empty = copy.deepcopy(EMPTY)
    try:
        measured = {**empty, **initial, **measure(), "status": "ok", "reason": None}
        session.windows.append((measured, began_s, time.perf_counter() - session.zero))
    except (Unsupported, UserError):
        raise
    except Exception as error:
        traceback.print_exc()
        status = "oom" if exhaustion.raised(error) else "failed"
        measured = {**empty, **initial, "status": status, "reason": in_one_line(error)}
    free(session)
    session.add_point(measured)
    return measured


def free(session: Session) -> None:
    """Free unreferenced memory; models are full of reference cycles."""
    gc.collect()
    session.backend.release_memory()


def skip(session: Session, initial: Mapping[str, Any], reason: str) -> None:
    """Add a point that is not tried, with the reason."""
    skipped = {**copy.deepcopy(EMPTY), **initial, "status": "skipped", "reason": reason}
    session.add_point(skipped)


def overrun(session: Session, n_points: int) -> str | None:
    """Why the next point of a sweep is not tried: those before it took far longer than all should."""
    plan, spent_s = Plan.of(session.cell.timing), time.perf_counter() - session.zero
    budget_s = n_points * (plan.warmup_budget_s + plan.budget_s)
    if not session.points or not overran(spent_s, budget_s):
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


def flag(session: Session) -> None:
    """Flag a cell some of whose points are missing."""
    missing = [point for point in session.points if status_of(point) != "ok"]
    if missing and len(missing) < len(session.points):
        session.flag(
            "points_missing", f"{len(missing)} of {len(session.points)} points: {_summary(missing)}"
        )


def _summary(points: Sequence[Mapping[str, Any]]) -> str:
    """How many points have each status, and their first few distinct reasons."""
    counts = Counter(map(status_of, points))
    counted = [f"{counts[status]} {status}" for status in WORST_FIRST if counts[status]]
    reasons = list(dict.fromkeys(str(point["reason"])[:LONGEST] for point in points))
    others = len(reasons) - SHOWN
    more = [f"and {others} other reason{'s' * (others > 1)}"] if others > 0 else []
    return "; ".join([", ".join(counted), *reasons[:SHOWN], *more])
