"""Records whose numbers another method made: in a table of their own, and in no other.

How a number is made decides what it means, so numbers of two methods are never put side by side.
Every stage after `aggregate` compares what lies in its tables; there the one rule is kept: cells
and points of today's method are in cells.csv, points.csv and the rest, all others in
other_methods.csv, which no stage but the page reads. `siliconprof compare`, which reads records,
gives no verdict on a pair of two methods (`comparison.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from siliconprof.analyse import record_rows
from siliconprof.store import record


def is_todays(data: Mapping[str, Any]) -> bool:
    """Whether a record's numbers were made as today's are."""
    return data["method_version"] == record.METHOD_VERSION


def rows(source: str, cell: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines of other_methods.csv: one per point with the columns of both tables, else the cell's.

    Args:
        cell: the line that cells.csv would have.
    """
    points = list(record_rows.point_rows(source, data))
    yield from ({**cell, **point} for point in points or [{"point": None}])
