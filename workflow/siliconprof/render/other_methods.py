"""Records whose numbers an older method made: listed by themselves, compared with nothing."""

from __future__ import annotations

import json

from siliconprof import words
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import HOST, Table, Value, count, number, told
from siliconprof.render.variants import Row
from siliconprof.store import record

TIMES = ("unsplit_step", "step")  # the first that was timed stands for a point
NO_TIME = "no time of a step or call"


def add(data: Data, book: Book) -> None:
    """One table, where there is any such record."""
    if not data.other_methods:
        return
    book.heading("Made by another method", anchor="other-methods")
    cells = {tuple(str(row[name]) for name in ("source", "record")) for row in data.other_methods}
    book.note(
        f"{words.count(len(cells), 'record')} of another method than today's, which is method "
        f"{record.METHOD_VERSION}: their numbers stand here alone, and in no comparison, figure or "
        "other table of this page."
    )
    book.table("other-methods", "other-methods", Table.of(data.other_methods, COLUMNS))


def _timed(row: Row, part: str) -> float | None:
    name = next((name for name in TIMES if row.get(f"{name}_median_s") is not None), TIMES[0])
    return row.get(f"{name}_{part}")


def remarks(row: Row) -> Value:
    """Why a cell was not measured, or its flags."""
    text = row["reason"] or row["flags"] or "no flags"
    return Value(text, title=row["flag_details"] or "", mark="note")


def point(row: Row) -> str:
    """A point's parameters in words; empty for a cell without any."""
    params = row.get("params")
    return ", ".join(f"{k} {v}" for k, v in json.loads(params).items()) if params else ""


def _method(row: Row) -> Value:
    return Value(row["source"], badge=f"method {int(row['method_version'])}")


COLUMNS = (  # one line per point, with the badge of its method
    HOST,
    told("Device", "device"),
    told("Backend", "backend"),
    told("Workload", "workload"),
    told("Precision", "precision"),
    told("Point", point),
    told("Status", "status"),
    told("Reason, or flags", remarks),
    number(
        "median",
        "s",
        lambda row: _timed(row, "median_s"),
        NO_TIME,
        "of the unsplit step, or of one call",
    ),
    count("repeats", lambda row: _timed(row, "n"), NO_TIME),
    told("Made by", _method),
    told("Record", lambda row: Value(row["record"], mark="note"), folds=True),
)
