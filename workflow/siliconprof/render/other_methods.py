"""Records whose numbers an older method made: listed by themselves, compared with nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from siliconprof import words
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, integer, quantity
from siliconprof.render.variants import Row
from siliconprof.store import record

FOLD_ABOVE = 60  # rows that a table shows without being opened
NAMES = ("unsplit_step", "step")  # the first that was timed stands for a point


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
    fold = len(data.other_methods) > FOLD_ABOVE
    book.table(
        "other-methods",
        "other-methods",
        table(data.other_methods),
        folded=words.count(len(data.other_methods), "row") if fold else "",
    )


def table(rows: Sequence[Row]) -> Table:
    """One line per point, with the badge of its method."""
    result = Table(
        [
            Column("Host"),
            Column("Device"),
            Column("Backend"),
            Column("Workload"),
            Column("Precision"),
            Column("Point"),
            Column("Status"),
            Column("Reason, or flags"),
            Column("median", "s", True, "of the unsplit step, or of one call"),
            Column("repeats", "", True),
            Column("Made by"),
            Column("Record", folds=True),
        ]
    )
    for row in rows:
        name = next((name for name in NAMES if row.get(f"{name}_median_s") is not None), NAMES[0])
        why = "no time of a step or call"
        result.add(
            Value(row["host"], sort=row["host"], badge=words.SOURCE_BADGES.get(row["source"], "")),
            row["device"],
            row["backend"],
            row["workload"],
            row["precision"],
            point(row),
            row["status"],
            Value(
                row["reason"] or row["flags"] or "no flags",
                title=row["flag_details"] or "",
                mark="note",
            ),
            quantity(row.get(f"{name}_median_s"), why),
            integer(row.get(f"{name}_n"), why),
            Value(row["source"], badge=f"method {int(row['method_version'])}"),
            Value(row["record"], mark="note"),
            of=row,
        )
    return result


def point(row: Mapping[str, Any]) -> str:
    """A point's parameters in words; empty for a cell without any."""
    params = row.get("params")
    return ", ".join(f"{k} {v}" for k, v in json.loads(params).items()) if params else ""
