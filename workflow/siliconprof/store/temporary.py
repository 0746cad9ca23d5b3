"""Files under the names that they have while they are written, and what dead processes left.

A file is written beside its place as `.{name}.{host}-{pid}.tmp` and renamed once it is whole. The
name says whose it is, so that a file of a process that was killed can be told from one that is
being written at this moment, here or on another host that shares the folder.

What stages make from records, and prepared data, cannot tell by themselves whether they are whole:
a table cut off after a line is a table. Those are sealed: `.seals/{name}` beside them says their
size and hash, and `damaged` compares.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from siliconprof.errors import writing
from siliconprof.lifetime import exists

SCRATCH = "siliconprof-scratch"
SEALS = ".seals"
HASHED_BYTES = 2**26  # what is larger is known by its size alone: it is looked at at every start


def _owner() -> str:
    """This host's name as it may stand in a file's."""
    return re.sub(r"[^A-Za-z0-9]", "-", socket.gethostname())[:64]


def beside(path: Path) -> Path:
    """The name under which this process writes what becomes `path`, a file or a folder."""
    return path.with_name(f".{path.name}.{_owner()}-{os.getpid()}.tmp")


def write(path: Path, content: bytes, sealed: bool = False) -> None:
    """Write a file so that it is whole or absent, see `opened`.

    Raises:
        CannotWrite: a full disk, a read-only folder; one line.
    """
    with opened(path, sealed) as stream:
        stream.write(content)


@contextmanager
def opened(path: Path, sealed: bool = False) -> Iterator[BinaryIO]:
    """A stream to a file that will be whole or absent, also after a power cut.

    The folder is synced as well: without that a file whose writer has ended, and of which other
    files speak, may be gone again. (Linux, `fsync(2)`: syncing a file does not sync the entry
    in its folder.)

    Args:
        sealed: whether `damaged` shall be able to tell.

    Raises:
        CannotWrite: a full disk, a read-only folder; one line.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in _left_by_the_dead(path):
            remove(left)
        temporary = beside(path)
        try:
            with open(temporary, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            if sealed:  # before: a file that is older than its seal is only made again
                write(_seal_path(path), _seal(temporary).encode("ascii"))
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def _seal_path(path: Path) -> Path:
    return path.parent / SEALS / path.name


def _seal(path: Path) -> str:
    """Size and SHA-256 of a file, `-` for that of a large one."""
    size = path.stat().st_size
    if size > HASHED_BYTES:
        return f"{size} -\n"
    with open(path, "rb") as stream:
        return f"{size} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n"


def sealed(path: Path) -> bool:
    """Whether a file was written with a seal; what a person has put beside it was not."""
    return _seal_path(path).is_file()


def damaged(path: Path) -> bool:
    """Whether a sealed file is not as it was written.

    False of one that is gone, has no seal or cannot be read: whoever wants it says so.
    """
    try:
        return _seal_path(path).read_text(encoding="ascii", errors="replace") != _seal(path)
    except OSError:
        return False


def sync_folder(folder: Path) -> None:
    """Have a folder's entries on disk, where its file system can do that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _left_by_the_dead(path: Path) -> Iterator[Path]:
    """What processes of this host that are dead were writing into a path."""
    mine = f".{path.name}.{_owner()}-"
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            number = entry.name.removeprefix(mine).removesuffix(".tmp")
            ours = entry.name == f"{mine}{number}.tmp" and number.isdecimal()
            if ours and not exists(int(number)):
                yield Path(entry.path)


def sweep(folder: Path) -> list[Path]:
    """Remove what processes of this host that are dead were writing below a folder; which it was.

    What cannot be removed stays: it is in nobody's way.
    """
    ours = re.compile(rf"\..*\.{re.escape(_owner())}-(\d+)\.tmp")
    swept, folders = [], [os.fspath(folder)]
    while folders:  # `os.walk` takes twice as long, and the history has a folder for each cell
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                found = ours.fullmatch(entry.name)
                if found and not exists(int(found[1])):
                    swept.append(Path(entry.path))
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    for path in swept:
        remove(path)
    return swept


def remove(path: Path) -> None:
    """Remove a file or a whole folder, if that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for what nobody needs afterwards; those of dead processes go first."""
    parent = Path(tempfile.gettempdir())
    mine = f"{SCRATCH}.{_owner()}-"
    for path in parent.glob(f"{mine}*"):
        number = path.name.removeprefix(mine).split(".")[0]
        if number.isdecimal() and not exists(int(number)):
            remove(path)
    with tempfile.TemporaryDirectory(prefix=f"{mine}{os.getpid()}.") as folder:
        yield Path(folder)
