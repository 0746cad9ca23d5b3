"""The tidy tables as CSV files: how every stage writes and reads them."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof.errors import UserError, printable
from siliconprof.store import columns, temporary
from siliconprof.store.cell import AXES, Cell

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
Tables = Path | Mapping[str, Path]  # their folder, or each one's file by its name
Block = tuple[Row, Mapping[str, Sequence[Any]]]  # values that all lines share; columns
KEY = ("source", *AXES)  # the columns that name a cell
ROWS_AT_A_TIME = 20_000  # lines of a long table that are read at a time
FORMULA = tuple("=+@\t\r-")  # first characters of a text that a spreadsheet takes for a formula
RESULTS_TABLE = "results"  # the table that lies beside the folder of all others


def write(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write one table; where there are no lines, its declared columns.

    Raises:
        CannotWrite: one line.
    """
    names = dict.fromkeys(name for line in lines for name in line)
    known = ([v if v == v else None for v in map(line.get, names)] for line in lines)  # no NaN
    _write(path, names, known)


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """Write one table: its declared columns in their order, empty where the frame lacks them.

    Raises:
        CannotWrite: one line.
    """
    declared = columns.declared_columns(path.stem).items()
    frame = frame.reindex(columns=[n for n, of in declared if n in frame or not of.optional])
    whole = [name for name, of in declared if of.type == "integer" and name in frame]
    write(path, rows(frame.astype(dict.fromkeys(whole, "Int64"))))


def write_blocks(path: Path, blocks: Iterable[Block]) -> None:
    """Write a long table by columns, without a dictionary for each line.

    Args:
        blocks: columns that a block lacks are empty there; its columns have equal lengths.

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
            column += rest[name] if name in rest else [shared.get(name)] * more
        length += more
    _write(path, values, zip(*values.values(), strict=True))


def _write(path: Path, names: Collection[str], lines: Iterable[Iterable[Any]]) -> None:
    """Control characters are escaped here, so that no reader of a table has to."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    declared = columns.columns_of_table(path.stem).items()
    writer.writerow(names if len(names) else [name for name, of in declared if not of.optional])
    texts = [place for place, name in enumerate(names) if name not in KEY]
    writer.writerows(_without_formulas(line, texts) for line in lines)
    temporary.write(path, printable(stream.getvalue()))


def _without_formulas(line: Iterable[Any], places: Sequence[int]) -> list[Any]:
    values = list(line)
    for place in places:
        if type(values[place]) is str:
            values[place] = harmless(values[place])
    return values


def harmless(value: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would take for a formula; `read` drops it."""
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def key_of(source: str, cell: Cell) -> Row:
    """The columns that name a cell."""
    return {"source": source} | {axis: getattr(cell, axis) for axis in AXES}


def together(tables: Tables, more: Tables) -> Tables:
    """The files of both, for a stage that reads what it writes; a folder already has all."""
    if isinstance(tables, Path) or isinstance(more, Path):
        return tables
    return {**tables, **more}


def path(tables: Tables, name: str) -> Path:
    """The file of a table; results.csv lies beside the folder of all others.

    Raises:
        UserError: it is not among the files.
    """
    if isinstance(tables, Path):
        return (tables.parent if name == RESULTS_TABLE else tables) / f"{name}.csv"
    if name not in tables:
        raise UserError(f"{name}.csv: not among the tables that this stage was given")
    return tables[name]


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

    types = {"text": "object", "boolean": "boolean"}
    declared = columns.columns_of_table(path.stem).items()
    typed = {name: types[column.type] for name, column in declared if column.type in types}
    how: Any = {"dtype": typed, "keep_default_na": False, "na_values": [""]}
    try:
        if equal:
            wanted, parts = pd.Series(equal), pd.read_csv(path, chunksize=ROWS_AT_A_TIME, **how)
            frame = pd.concat([part[part[[*equal]].eq(wanted).all(axis=1)] for part in parts])
        else:
            frame = pd.read_csv(path, **how)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; `snakemake --cores 1 report` makes it") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: not a table ({' '.join(str(error).split())})") from None
    for name in typed.keys() & {*frame} - {*KEY}:
        if typed[name] == "object":
            frame[name] = frame[name].str.replace(rf"^'(?=[{''.join(FORMULA)}])", "", regex=True)
    return frame


def rows(frame: pd.DataFrame) -> list[Row]:
    """A frame as dictionaries; missing values are None."""
    found: list[Any] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return found
