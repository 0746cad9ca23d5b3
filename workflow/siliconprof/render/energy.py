"""Energy of training, source by source: what it counts, how well, idle power beside it."""

from __future__ import annotations

from typing import Any

from siliconprof import words
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Of, Table, count, number, told
from siliconprof.render.traces import key
from siliconprof.render.training import NAMES
from siliconprof.render.variants import Row, has_no_speed

NO_IDLE = "idle power was not measured"
CHECK_ONLY = "a mechanism check's energy per step says nothing"
NO_HOST = "the paper's assumption is for the host of an NVIDIA GPU"


def add(data: Data, book: Book) -> None:
    """The table of what was measured; or why nothing was."""
    points = {key(p): p for kind in data.families().values() for p in kind[0]}
    # what a source counted, beside the training that it counted for
    rows = [points[key(row)] | row for row in data.energy if key(row) in points]
    measured = [row for row in rows if words.number(row.get("energy_per_step_j")) is not None]
    if measured:
        place = {name: index for index, name in enumerate(points)}
        measured.sort(key=lambda row: place[key(row)])
        book.table("energy", "energy", Table.of(measured, COLUMNS), counted="line")
    else:
        reasons = dict.fromkeys(str(row["reason"]) for row in rows if row["reason"])
        why = "; ".join(reasons) or "no training cell of these results reads any"
        book.note(f"No energy was measured: {why}.")


def _why(row: Row) -> str:
    return CHECK_ONLY if has_no_speed(row) else row.get("reason") or NO_IDLE


def _joules(
    head: str, unit: str, column: str, help: str = "", why: Of = _why, **more: Any
) -> Column:
    """An energy of a cell, unless the cell says nothing of speed and so nothing of this either."""

    def joules(row: Row) -> Any:
        return None if has_no_speed(row) else row.get(column)

    return number(head, unit, joules, why, help, digits=4, **more)


QUALITY = "counter: counted by hardware; model: estimated by firmware; integral: power over time"
ASSUMED = "the paper adds 70 W for the host of an NVIDIA GPU: an assumption, measured nowhere"
IDLE = "context open, nothing running"
WITH_HOST, PER_STEP = "with 70 W assumed", "energy_per_step"
COLUMNS = (  # a line for each cell and source; the paper's assumption has a column of its own
    *NAMES,
    told("Source", "name"),
    told("Scope", "scope", "what the energy was spent in"),
    told("Quality", "quality", QUALITY),
    _joules("energy", "J per step", "energy_per_step_j", "the window's energy over its steps"),
    _joules("energy", "J per sample", "energy_per_sample_j"),
    number("idle before", "W", "idle_before_w", _why, IDLE),
    number("idle after", "W", "idle_after_w", _why, IDLE),
    _joules("above idle", "J per step", "net_energy_per_step_j", "idle power × time subtracted"),
    _joules(
        WITH_HOST, "J per step", f"{PER_STEP}_plus_assumed_host_j", ASSUMED, NO_HOST, folds=True
    ),
    number("window", "s", "window_s", "not recorded"),
    count("steps", "energy_steps", "not recorded"),
)
