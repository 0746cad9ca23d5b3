"""The results of a run: its tables as pandas frames, each read when it is first asked for.

    import siliconprof
    results = siliconprof.load("results")
    results.points.groupby("workload")["step_median_s"].min()

No other file reads a table that a stage has written. Columns are typed as `columns` declares them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from siliconprof.errors import UserError, nearest
from siliconprof.plugins import PACKAGE_DIR
from siliconprof.store import columns, matrix_file, table_files
from siliconprof.store.table_files import KEY

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED = PACKAGE_DIR.parents[1] / "config" / "published"


@dataclass
class Results:
    """The tables in a folder; each is an attribute, such as `results.points`.

    Args:
        tables: the folder, such as results/tables.
    """

    tables: Path
    _frames: dict[str, pd.DataFrame] = field(default_factory=dict, init=False, repr=False)
    _of_ok_cells: dict[str, pd.DataFrame] = field(default_factory=dict, init=False, repr=False)

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

    def of_ok_cells(self, name: str = "points", cells: pd.DataFrame | None = None) -> pd.DataFrame:
        """The lines of a table that are about cells whose status is ok, with the cells' columns.

        A column that both tables have is the line's. Of points it is the cell's where they have no
        value, such as the batch size; in other tables it may mean something else.

        Args:
            cells: the table of cells with more columns; None = as it is in its file.
        """
        if cells is None:
            if name not in self._of_ok_cells:  # the stages of one process ask for it one by one
                self._of_ok_cells[name] = self.of_ok_cells(name, self.frame("cells"))
            return self._of_ok_cells[name].copy(deep=False)
        lines = self.frame(name)
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

    @cached_property
    def hosts(self) -> pd.DataFrame:
        """The hosts of the run, a line each: system, processor, memory, versions, drivers."""
        import pandas as pd

        hosts = matrix_file.read(self.tables.parent / "matrix.json").hosts
        parts = ("label", "os", "cpu", "packages", "blas", "driver")
        return pd.json_normalize([{part: host[part] for part in parts} for host in hosts], sep="_")

    @cached_property
    def published(self) -> pd.DataFrame:
        """The published numbers of all tables in config/published; `table` says which.

        Raises:
            UserError: the package is installed without its checkout.
        """
        import pandas as pd

        frames = {path.stem: table_files.read(path) for path in sorted(PUBLISHED.glob("*.csv"))}
        if not frames:
            raise UserError(
                f"{PUBLISHED}: no published tables; install siliconprof from a checkout"
            )
        return pd.concat(frames, names=["table", None]).reset_index("table").reset_index(drop=True)


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
