"""What the intervals of the page are: between the processes of a cell, or within the one it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from siliconprof.analyse.record_rows import BETWEEN, WITHIN
from siliconprof.analyse.throughputs import interval_text
from siliconprof.render.tables import Value, missing, told

HELP = "between the processes that measured it, or within the one that did"


def origin(point: Mapping[str, Any]) -> str | None:
    """What a point's intervals are; None where it has none."""
    return point.get("interval")


def value(point: Mapping[str, Any]) -> Value:
    """A table's cell: what the row's intervals are."""
    return Value(interval_text(point)) if origin(point) else missing("nothing was timed")


COLUMN = told("95 % interval", value, HELP, folds=True)


def origin_text(points: Iterable[Mapping[str, Any]]) -> str:
    """What intervals of several points are, to be put after “95 % interval”."""
    origins = {name for point in points if (name := origin(point))}
    if origins == {BETWEEN, WITHIN}:
        return f"{BETWEEN} where a cell has several, {WITHIN} elsewhere"
    return BETWEEN if origins == {BETWEEN} else WITHIN
