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
        """A table by its name, such as `points`.

        Args:
            equal: columns and values: those lines of it alone, which their reader keeps.

        Raises:
            UserError: the file is missing or not a table.
        """
        if equal:
            return table_files.read(table_files.path(self.tables, name), **equal)
        if name not in self._frames:
            self._frames[name] = table_files.read(table_files.path(self.tables, name))
        return self._frames[name]

    def of_ok_cells(
        self,
        name: str = "points",
        cells: pd.DataFrame | None = None,
        disturbed: bool = False,
    ) -> pd.DataFrame:
        """The lines of a table that are about cells whose status is ok, with the cells' columns.

        A column that both tables have is the line's. Of points it is the cell's where they have no
        value, such as the batch size; in other tables it may mean something else.

        Args:
            cells: the table of cells with more columns; None = as it is in its file.
            disturbed: with operations that other processes disturbed, from which nothing follows.
        """
        lines, cells = self.frame(name), self.frame("cells") if cells is None else cells
        if name == columns.POINTS and not disturbed:
            lines = lines[lines["point_disturbed"].isna()]
        ok = cells[cells["status"] == "ok"]
        joined = lines.merge(ok, on=list(KEY), suffixes=("", "_of_cell"))
        for column in lines.columns.intersection(ok.columns).difference(list(KEY)):
            of_cell = joined.pop(f"{column}_of_cell")
            if name == columns.POINTS:
                joined[column] = joined[column].combine_first(of_cell)
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
