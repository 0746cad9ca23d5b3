"""The results of a run: its tables as pandas frames, each read when it is first asked for.

    import siliconprof
    results = siliconprof.load("results")
    results.points.groupby("workload")["step_median_s"].min()

No other file reads a table that a stage has written. Columns are typed as `columns` declares them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from siliconprof.errors import UserError, nearest
from siliconprof.store import columns, table_files
from siliconprof.store.table_files import KEY, Tables

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class Results:
    """The tables in a folder; each is an attribute, such as `results.points`.

    Args:
        tables: the folder, such as results/tables, or each table's file by its name.
    """

    tables: Tables
    _frames: dict[str, pd.DataFrame] = field(default_factory=dict, init=False, repr=False)

    def frame(self, name: str, **equal: str) -> pd.DataFrame:
        """A table by its name, such as `points`, with every column that it may have.

        Args:
            equal: column=value: read only these lines of a long table, and do not cache them.

        Raises:
            UserError: the file is missing or not a table.
        """
        if equal:
            return table_files.read(table_files.path(self.tables, name), **equal)
        if name not in self._frames:
            frame = table_files.read(table_files.path(self.tables, name))
            absent = {
                key: of.type
                for key, of in columns.columns_of_table(name).items()
                if key not in frame
            }
            types = {key: object if type_ == "text" else float for key, type_ in absent.items()}
            self._frames[name] = frame.reindex(columns=[*frame, *absent]).astype(types)
        return self._frames[name]

    def of_ok_cells(self, cells: pd.DataFrame | None = None) -> pd.DataFrame:
        """The points of cells whose status is ok, with the columns of their cells.

        Of a column in both tables the point's value is kept, or the cell's where the point has none.
        Do not rely on operations that other processes disturbed, see `point_disturbed`.

        Args:
            cells: the table of cells with more columns; default: cells.csv.
        """
        points, cells = self.frame(columns.POINTS), self.frame("cells") if cells is None else cells
        ok = cells[cells["status"] == "ok"]
        joined = points.merge(ok, on=list(KEY), suffixes=("", "_of_cell"))
        for column in points.columns.intersection(ok.columns).difference(list(KEY)):
            joined[column] = joined[column].combine_first(joined.pop(f"{column}_of_cell"))
        return joined

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name not in columns.tables():
            raise AttributeError(f"no table {name}{nearest(name, dir(self))}")
        return self.frame(name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *columns.tables()})


def load(folder: str | Path = "results") -> Results:
    """The results of a run.

    Raises:
        UserError: the folder has no results; one line.
    """
    tables = Path(folder) / "tables"
    if not (tables / "cells.csv").is_file():
        raise UserError(
            f"{folder}: no folder of results, which has tables/cells.csv; "
            "`snakemake --cores 1 report` makes it"
        )
    return Results(tables)
