"""What a stage leaves out because it can neither be computed nor drawn, and the record to blame.

A record can be valid and yet be more than a table or a figure can take. It must not hold up what
all others say: the stage is done again without it, and whoever reads the results is told.
"""

from __future__ import annotations

import errno
import json
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from siliconprof.errors import UserError, in_one_line, printable
from siliconprof.plugins import PACKAGE_DIR
from siliconprof.store import documents, table_files, temporary
from siliconprof.store.results import Results

FILE = "left-out.json"  # beside the page: what it leaves out; an empty list where it is whole
MOST = 5  # records that one part is done without; it is left out itself where more are to blame
OF_NAMES = (errno.ENAMETOOLONG, errno.EINVAL)  # what a system says of a name, not of a disk
Cell = Mapping[str, Any]
Result = TypeVar("Result")


@dataclass(frozen=True)
class LeftOut:
    """One thing that is missing."""

    part: str  # a stage, or a section of the page
    record: str  # the path of the record that is left out; empty where no single one is to blame
    error: str  # in one line, with the line of our code

    def __str__(self) -> str:
        what = f"{self.record} is left out" if self.record else "left out"
        return f"{self.part}: {what}: {self.error}"


def passed_on(error: Exception) -> bool:
    """Whether no record is to blame: a person mends it, or another run has more room."""
    if isinstance(error, OSError):
        return error.errno not in OF_NAMES
    return isinstance(error, UserError | MemoryError)


def explained(error: BaseException) -> str:
    """An error in one line, with the innermost line of our own code."""
    ours = [
        f"{Path(frame.filename).relative_to(PACKAGE_DIR).as_posix()}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(PACKAGE_DIR)
    ]
    return f"{printable(in_one_line(error))} ({ours[-1]})" if ours else in_one_line(error)


def culprits(
    cells: Sequence[Cell], attempt: Callable[[Sequence[Cell]], Exception | None]
) -> list[tuple[Cell, Exception]] | None:
    """The cells without which an attempt succeeds, each with its error; None where none are.

    Args:
        attempt: of these cells alone; the error, or None. The last one was the successful one.
    """
    rest = list(cells)
    blamed: list[tuple[Cell, Exception]] = []
    if attempt([]) is not None:
        return None
    while (error := attempt(rest)) is not None:
        if len(blamed) == MOST:
            return None
        low, high = 0, len(rest)  # so many of the first pass, so many fail
        while high - low > 1:
            middle = (low + high) // 2
            failed = attempt(rest[:middle])
            low, high, error = (low, middle, failed) if failed else (middle, high, error)
        blamed.append((rest.pop(high - 1), error))
    return blamed


def worked(
    part: str, tables: Path, work: Callable[[Results], Result], read: Results | None = None
) -> tuple[Result, list[LeftOut]]:
    """What some work on the results comes to, and what it had to leave out.

    Args:
        tables: folder of the tables.
        read: the same tables, as far as others have read them.

    Raises:
        Exception: whatever the work raises where no record is to blame.
    """
    done: list[Result] = []
    try:
        return work(read or Results(tables)), []
    except Exception as error:
        if passed_on(error):
            raise
        cells = Results(tables).rows("cells")
        every = {table_files.key(cell) for cell in cells}

        def attempt(some: Sequence[Cell]) -> Exception | None:
            try:
                rest = every - {table_files.key(cell) for cell in some}
                done.append(work(Results(tables, without=rest)))
            except Exception as problem:
                if passed_on(problem):
                    raise
                return problem
            return None

        blamed = culprits(cells, attempt)
        if blamed is None:
            raise error from None
    return done[-1], [LeftOut(part, cell["record"], explained(why)) for cell, why in blamed]


def guarded(
    stage: str,
    write_: Callable[[Results, Namespace], None],
    arguments: Namespace,
    read: Results | None = None,
) -> None:
    """Run a stage that reads tables; what it leaves out is a table too, and is said.

    Args:
        arguments: the stage's own; `tables` and `output_dir` are folders among them.
        read: see `worked`.

    Raises:
        Exception: see `worked`.
    """
    _, lines = worked(stage, arguments.tables, lambda results: write_(results, arguments), read)
    note(stage, arguments.output_dir, lines)


def note(stage: str, output: Path, lines: Sequence[LeftOut]) -> None:
    """Write down what a stage has left out, and say it.

    Raises:
        CannotWrite: one line.
    """
    for line in lines:
        print(line, file=sys.stderr)
    table = output / f"{table_files.LEFT_OUT}_{stage}.csv"
    table_files.write(table, [asdict(line) for line in lines])


def of_tables(tables: Path) -> list[LeftOut]:
    """What the stages have left out of the tables in a folder."""
    return [
        LeftOut(**{name: value or "" for name, value in row.items()})
        for row in table_files.rows(Results(tables).left_out)
    ]


def write(path: Path, lines: Sequence[LeftOut]) -> None:
    """Write what the page leaves out.

    Raises:
        CannotWrite: one line.
    """
    text = json.dumps([asdict(line) for line in lines], indent=1, ensure_ascii=False)
    temporary.write(path, f"{text}\n")


def read(path: Path) -> list[LeftOut]:
    """What the page leaves out; nothing where there is no page."""
    try:
        return [LeftOut(**line) for line in documents.read(path)]
    except (OSError, ValueError, TypeError):
        return []
