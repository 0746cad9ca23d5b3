"""A cell's temporary files, above all the code that libraries compile.

They are kept out of the system's temporary folder, which belongs to all users and may be mounted
noexec. MLX would find there, by its name alone, a kernel that another user or a killed process has
left (mlx/backend/cpu/compiled.cpp). Each cell has a folder of its own below `results/scratch`.
Compiled code is passed on between the cells of a run: a cell takes that folder for itself and gives
it back if it ends well, so that what crashes one cell does not reach another.
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
    """Let the cells started by this process share what they compile, until it ends."""
    folder = results.absolute() / SCRATCH_FOLDER / f"{CODE}-{secrets.token_hex(4)}"
    os.environ[CODE_VARIABLE] = str(folder)
    atexit.register(temporary.remove, folder)


def tidy(results: Path) -> None:
    """Remove what killed processes have left, a day later."""
    for path in (results / SCRATCH_FOLDER).glob("*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > LEFT_AFTER_S:
                temporary.remove(path)


@contextmanager
def cell_folder(parent: Path) -> Iterator[Path]:
    """A folder below `parent` that is removed with the cell.

    Where that path has a shell metacharacter, a private folder of the system's takes its place, since
    MLX and torch call compilers with it.

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
    """Make the cell's code folder: the run's shared one, unless a compiled step is to be timed."""
    if not compiles and (shared := os.environ.get(CODE_VARIABLE)):
        with suppress(OSError):  # not there
            os.rename(shared, own)
    own.mkdir(exist_ok=True)


def give_back(own: Path, compiles: bool) -> None:
    """Leave the code folder to the run's next cell."""
    if not compiles and (shared := os.environ.get(CODE_VARIABLE)):
        with suppress(OSError):  # on another disk
            os.rename(own, shared)
