"""What stands on the page, as values: a query, how it is drawn, which of its columns are printed.

An exhibit is a query below `@exhibit` in a file of `exhibits/{section}/`; its title, its caption and
what it needs stand under its id in `report/captions.yaml`. Nothing else lists it. The page has files by name, and the
exhibits of each in their order.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from siliconprof import plugins
from siliconprof.analyse.frames import Frames
from siliconprof.render.drawers import Drawer

SECTIONS = ("answer", "paper", "studies", "beyond", "trust")  # of the page, in order
ANSWER = SECTIONS[0]
MOST_ROWS, MOST_PANELS = 60, 12  # of a figure; its file has all


@dataclass(frozen=True)
class Text:
    """A column of words.

    Args:
        below: a column shown in small print under it; `badge`: one shown as a label after it.
        folds: if all rows agree, the value is named below the table instead.
        prose: words wrap.
        code: in a font of fixed width.
    """

    column: str
    title: str
    below: str = ""
    badge: str = ""
    folds: bool = False
    prose: bool = False
    code: bool = False
    help: str = ""
    unit: str = ""

    @property
    def columns(self) -> list[str]:
        """Those of the frame that it shows."""
        return [self.column, *filter(None, (self.below, self.badge))]


@dataclass(frozen=True)
class Num:
    """A column of numbers, with half the width of its 95 % interval where that is known.

    The interval is in `{column}_low` and `_high`; the number of values, which may be too few for an
    interval, in `{column}_n`; why a number is missing in `{column}_why` or, for the row, in `why_not`.

    Args:
        scale: values are divided by it.
        percent: a share is shown in per cent; `integer`: a whole number as it is.
        published: all numbers were printed by others; for a row, its column `published` says so.
        computed: all numbers were computed from printed ones; for a row, `{column}_computed` says so.
        best: `max` or `min` of the column is bold.
        below: a column of small print under it.
    """

    column: str
    title: str
    unit: str = ""
    scale: float = 1.0
    digits: int = 3
    percent: bool = False
    integer: bool = False
    published: bool = False
    computed: bool = False
    best: str = ""
    below: str = ""
    folds: bool = False
    help: str = ""

    @property
    def columns(self) -> list[str]:
        """Those of the frame that it shows."""
        ends = (f"{self.column}_low", f"{self.column}_high", f"{self.column}_n")
        return [self.column, *ends, *filter(None, [self.below])]


Rows = Callable[[Frames], pd.DataFrame]
Column = Text | Num
Columns = Sequence[Column]


@dataclass(frozen=True)
class Exhibit:
    """A figure, a table, or both, of one query.

    Args:
        rows: the query. Rows stand on the page in its order.
        figure: how they are drawn; none of them is left out but for `most`.
        table: the columns that are printed, or what makes them of the frame.
        each: a table for every value of this column; `table` is then called with its rows.
        folded: the line under which the table is folded away, such as `All cells`.
        facts: rows are shown as names and values: the columns `name` and `value`.
        sentences: a list of sentences, in the column `sentence`, under titles in `name`.
        shows: workloads and probes of which this is the exhibit; others get a default table.
    """

    id: str
    rows: Rows
    figure: Drawer | None = None
    table: Columns | Callable[[pd.DataFrame], Columns] = ()
    each: str = ""
    folded: str = ""
    facts: bool = False
    sentences: bool = False
    shows: Sequence[str] = ()


def exhibit(id_: str, **parts: Any) -> Callable[[Rows], Exhibit]:
    """Decorator that makes an `Exhibit` of a query; `parts` are its fields."""
    return lambda rows: Exhibit(id_, rows, **parts)


PLACE_TEXTS: tuple[Column, ...] = (
    Text("device_label", "Device", badge="whose", folds=True),
    Text("backend_label", "Backend"),
    Text("precision", "Precision", folds=True),
)


def fitting(drawer: Drawer, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first panels and categories, as many as a figure has room for.

    Only columns that are drawn are kept: a frame of points has some 400.
    """
    seen = [*drawer.columns(frame), "device", "place", "hover", getattr(drawer, "dashed", "")]
    seen += getattr(drawer, "roofs", None) or ()
    frame = frame[[name for name in dict.fromkeys(seen) if name in frame]]
    panel, group, row = (getattr(drawer, name, "") for name in ("panel", "group", "row"))
    if panel:
        frame = frame[frame[panel].isin(frame[panel].drop_duplicates().head(MOST_PANELS))]
    if not row:
        return frame
    keys = [name for name in (panel, group, row) if name]
    return frame.merge(frame[keys].drop_duplicates().head(MOST_ROWS), on=keys)


def modules() -> Iterator[tuple[str, str]]:
    """(section, dotted module) of all exhibits, in the page's order."""
    for section in SECTIONS:
        kind = f"render.exhibits.{section}"
        yield from ((section, plugins.module_name(kind, name)) for name in plugins.names(kind))


def load(module: str) -> list[Exhibit]:
    """The exhibits of a module, in their order."""
    every = vars(importlib.import_module(module)).values()
    return [value for value in every if isinstance(value, Exhibit)]
