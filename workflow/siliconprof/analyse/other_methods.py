"""Records whose numbers another method made: in a table of their own, and in no other.

How a number is made decides what it means, so numbers of two methods are never put side by side.
Every stage after `aggregate` compares what lies in its tables; there the one rule is kept: cells
and points of today's method are in cells.csv, points.csv and the rest, all others in
other_methods.csv, which no stage but the page reads. `siliconprof compare`, which reads records,
gives no verdict on a pair of two methods (`comparison.py`).
"""

from __future__ import annotations

from siliconprof.analyse import record_rows
from siliconprof.store import record
from siliconprof.store.contents import Record
from siliconprof.store.table_files import Row


def is_todays(data: Record) -> bool:
    """Whether a record's numbers were made as today's are."""
    return data.method_version == record.METHOD_VERSION


def rows(cell: Row, data: Record) -> list[Row]:
    """Lines of other_methods.csv: one per point with the columns of both tables, else the cell's.

    Args:
        cell: the line that cells.csv would have.
    """
    return [cell | point for point in record_rows.point_rows(data)] or [cell | {"point": None}]
