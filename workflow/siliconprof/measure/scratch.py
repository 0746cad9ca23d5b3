"""Where a cell's process puts what it makes for a moment: code that libraries compile above all.

Nothing of that lies in the system's folder for temporary files, which belongs to all users and may
be mounted noexec. MLX would find there, by its name alone, the kernel that another user or a process
that was killed has left (mlx/backend/cpu/compiled.cpp). Each cell has a folder of its own below
`results/scratch`. Compiled code goes from a run's cells to the next ones: a cell takes that folder
for itself and gives it back once it has ended well, so what kills a cell is not met by another one.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from siliconprof.errors import writing
from siliconprof.store import temporary

SCRATCH_FOLDER = "scratch"  # of the results
CODE = "code"  # of a cell's own folder
PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+=-]+")
LEFT_AFTER_S = 86400
CODE_VARIABLE = "SILICONPROF_CODE_FOLDER"  # what the cells of this run have compiled


def run_folder(results: Path) -> None:
    """Have the cells that this process starts hand on what they compile, until it ends."""
    folder = results.absolute() / SCRATCH_FOLDER / f"{CODE}-{secrets.token_hex(4)}"
    os.environ[CODE_VARIABLE] = str(folder)
    atexit.register(temporary.remove, folder)


def tidy(results: Path) -> None:
    """Remove what processes that were killed have left, a day later."""
    for path in (results / SCRATCH_FOLDER).glob("*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > LEFT_AFTER_S:
                temporary.remove(path)


@contextmanager
def cell_folder(parent: Path) -> Iterator[Path]:
    """A folder below `parent` that goes with the cell.

    Where that has a sign of the shell in its path it is a private one of the system's, since MLX and
    torch call compilers with it.

    Raises:
        CannotWrite: it cannot be made.
    """
    if not PLAIN_PATH.fullmatch(str(parent.absolute())):
        parent = Path(tempfile.gettempdir())
    with writing(parent):
        parent.mkdir(parents=True, exist_ok=True)
        own = tempfile.TemporaryDirectory(
            prefix=".cell-", dir=parent.absolute(), ignore_cleanup_errors=True
        )
    with own as name:
        yield Path(name)


def take(own: Path, compiles: bool) -> None:
    """Make the cell's folder of code: that of the run, if any, unless it is to start from nothing."""
    if not compiles and (shared := os.environ.get(CODE_VARIABLE)):
        with suppress(OSError):  # not there
            os.rename(shared, own)
    own.mkdir(exist_ok=True)


def give_back(own: Path, compiles: bool) -> None:
    """Leave the folder to the run's next cell."""
    if not compiles and (shared := os.environ.get(CODE_VARIABLE)):
        with suppress(OSError):  # on another disk
            os.rename(own, shared)
