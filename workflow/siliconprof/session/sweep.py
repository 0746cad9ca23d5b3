"""A point of a sweep: taken over where it is finished, measured else, and never the cell's end.

What a point raises is that point's status: `oom` with the allocator's own words, `failed` with
any others. What kills the process is put to the point by the supervisor (`journal`).
"""

from __future__ import annotations

import gc
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from siliconprof.backends.base import Unsupported
from siliconprof.errors import UserError, in_one_line
from siliconprof.session import exhaustion
from siliconprof.store.journal import nothing

if TYPE_CHECKING:
    from siliconprof.session.session import Session

# Of a cell none of whose points is ok, the first of these that any has.
WORST_FIRST = ("failed", "oom", "skipped")
SHOWN = 2  # reasons in a cell's own; each point has its own in full
LONGEST = 160  # characters of each


def point(
    session: Session, name: str, known: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]
) -> dict[str, Any]:
    """A point of the sweep, for the record as well: from the journal, or measured now.

    Args:
        name: unlike that of any other point; everything that the cell sweeps is in it.
        known: what is known of the point beforehand, `params` above all.
        measure: gives the rest of it; what it held is freed when it has returned or raised.

    Raises:
        Unsupported, UserError: these are about the whole cell.
    """
    found = session.journal.find(name)
    if found is None:
        session.progress(name, 0, always=True)
        session.journal.begin(name, known)
        began_s = time.perf_counter() - session.zero
        try:
            found = {**nothing(), **known, **measure(), "status": "ok", "reason": None}
            session.windows.append((found, began_s, time.perf_counter() - session.zero))
        except (Unsupported, UserError):
            raise
        except Exception as error:
            traceback.print_exc()
            status = "oom" if exhaustion.raised(error) else "failed"
            found = {**nothing(), **known, "status": status, "reason": in_one_line(error)}
        free(session)
        session.journal.add(name, found)
    session.add_point(found)
    return found


def free(session: Session) -> None:
    """Give back what nobody holds any more; models are full of cycles."""
    gc.collect()
    session.backend.release_memory()


def skip(session: Session, name: str, known: Mapping[str, Any], reason: str) -> None:
    """Add a point that is not tried, and why; it is asked about again next time."""
    left_out = {**nothing(), **known, "status": "skipped", "reason": reason}
    session.journal.note_skipped(name, left_out)
    session.add_point(left_out)


def status_of(point: Mapping[str, Any]) -> str:
    """A point's status; one that says nothing is ok."""
    return str(point.get("status") or "ok")


def status(points: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """(status, reason) of a cell that came to its end: ok when it has any point that is ok."""
    counts = Counter(map(status_of, points))
    if counts["ok"] or not points:
        return "ok", None
    word = next(word for word in WORST_FIRST if counts[word])
    return word, f"none of {len(points)} points was measured: {_said(points)}"


def flag(session: Session) -> None:
    """Flag a cell some of whose points are missing."""
    missing = [point for point in session.points if status_of(point) != "ok"]
    if missing and len(missing) < len(session.points):
        session.flag(
            "points_missing", f"{len(missing)} of {len(session.points)} points: {_said(missing)}"
        )


def _said(points: Sequence[Mapping[str, Any]]) -> str:
    """How many of each status, and their reasons, each once and no more than a few."""
    counts = Counter(map(status_of, points))
    words = [f"{counts[word]} {word}" for word in WORST_FIRST if counts[word]]
    reasons = list(dict.fromkeys(str(point["reason"])[:LONGEST] for point in points))
    others = len(reasons) - SHOWN
    more = [f"and {others} other reason{'s' * (others > 1)}"] if others > 0 else []
    return "; ".join([", ".join(words), *reasons[:SHOWN], *more])
