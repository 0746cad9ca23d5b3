"""The tidy tables as CSV files: how every stage writes and reads them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from siliconprof.errors import UserError, printable
from siliconprof.store import columns, temporary
from siliconprof.store.cell import AXES, Cell

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
Block = tuple[Row, Mapping[str, Sequence[Any]]]  # what lines share; columns of the rest
KEY = ("source", *AXES)  # the columns that name a cell
CHUNK = 20_000  # lines of a long table that are read at a time
RESULTS = "results"  # the table that lies beside the folder of all others


def write(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write one table; where there are no lines, its declared columns.

    Raises:
        CannotWrite: one line.
    """
    names = dict.fromkeys(name for line in lines for name in line)
    _write(path, {name: [_shown(line.get(name)) for line in lines] for name in names})


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """Write one table: its declared columns in their order, empty where the frame lacks them.

    Raises:
        CannotWrite: one line.
    """
    import pandas as pd

    values = {}
    for name, declared in columns.own(path.stem).items():
        if name in frame or not declared.optional:
            column = frame.get(name, pd.Series(None, frame.index, object))
            whole = column.astype("Int64") if declared.type == "integer" else column
            values[name] = [_shown(value) for value in _plain(whole)]
    _write(path, values)


def write_blocks(path: Path, blocks: Iterable[Block]) -> None:
    """Write a long table, whose lines are never all there as dictionaries.

    Args:
        blocks: a column that a block lacks has no values there. The columns of the rest are equally
            long, and hold numbers or words of a fixed list.

    Raises:
        CannotWrite: one line.
    """
    values: dict[str, list[Any]] = {}
    length = 0
    for shared, rest in blocks:
        more = len(next(iter(rest.values()), ()))
        if not more:
            continue
        for name in (*shared, *rest):
            if name not in values:
                values[name] = [None] * length
        for name, column in values.items():
            column += rest[name] if name in rest else [_shown(shared.get(name))] * more
        length += more
    _write(path, values)


def _write(path: Path, values: Mapping[str, list[Any]]) -> None:
    names = [name for name, of in columns.of(path.stem).items() if not of.optional]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(values or names)
    writer.writerows(zip(*map(_alike, values.values()), strict=True))
    temporary.write(path, stream.getvalue())


def _alike(column: list[Any]) -> list[Any]:
    """A column whose numbers are all floats unless all of it are whole numbers; no NaN."""
    kinds = set(map(type, column))
    are_numbers = all(issubclass(kind, Real) and kind is not bool for kind in kinds - {NoneType})
    if are_numbers and not all(issubclass(kind, Integral) for kind in kinds):
        return [None if value is None or value != value else float(value) for value in column]
    return [None if value != value else value for value in column]


def _shown(value: Any) -> Any:
    """A value as pages and terminals may show it: values from tables are not checked again."""
    return printable(value) if isinstance(value, str) and not value.isprintable() else value


def key_of(source: str, cell: Cell) -> Row:
    """The columns that name a cell."""
    return {"source": source} | {axis: getattr(cell, axis) for axis in AXES}


def path(tables: Path, name: str) -> Path:
    """The file of a table: in the folder of tables, but for the one that readers open first."""
    return (tables.parent if name == RESULTS else tables) / f"{name}.csv"


def read(path: Path, **equal: str) -> pd.DataFrame:
    """One table, its columns of the types that `columns` declares; missing values are missing.

    Text is text, whatever it looks like. Whole numbers are floats where some are missing, so that
    they can be drawn.

    Args:
        equal: columns and values: all other lines are dropped as they are read, of a long table.

    Raises:
        UserError: the file is missing or not a table.
    """
    import pandas as pd

    declared = columns.of(path.stem)
    text = {name: "object" for name, column in declared.items() if column.type == "text"}
    how: Any = {"dtype": text, "keep_default_na": False, "na_values": [""]}
    try:
        if equal:
            wanted, parts = pd.Series(equal), pd.read_csv(path, chunksize=CHUNK, **how)
            frame = pd.concat([part[part[[*equal]].eq(wanted).all(axis=1)] for part in parts])
        else:
            frame = pd.read_csv(path, **how)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; `snakemake --cores 1 report` makes it") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: not a table ({' '.join(str(error).split())})") from None
    for name, column in declared.items():
        if column.type == "boolean" and name in frame.columns:
            with suppress(TypeError, ValueError):  # what another version wrote may be no boolean
                frame[name] = frame[name].astype("boolean")
    if columns.of_cells(path.stem):
        absent = [name for name in KEY if name not in frame.columns]
        if absent:
            raise UserError(f"{path}: no column {', '.join(absent)}")
    return frame


def rows(frame: pd.DataFrame) -> list[Row]:
    """A frame as dictionaries; missing values are None."""
    names = [str(name) for name in frame.columns]
    values = [_plain(column) for _, column in frame.items()]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def _plain(column: pd.Series) -> list[Any]:
    """Its values as Python's own; missing ones are None."""
    pairs = zip(column.tolist(), column.isna().tolist(), strict=True)
    return [None if is_missing else value for value, is_missing in pairs]
