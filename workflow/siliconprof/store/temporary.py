"""Atomic writes: a file is written beside its place and renamed once it is whole.

Its temporary name, `.{name}.{host}-{pid}.tmp`, identifies the writer, so that the file of a killed
process differs from one that is being written at this moment, on this host or on another that
shares the folder.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from siliconprof.errors import writing
from siliconprof.lifetime import exists


def _owner() -> str:
    """This host's name, safe in a file name."""
    return re.sub(r"[^A-Za-z0-9]", "-", socket.gethostname())[:64]


def beside(path: Path) -> Path:
    """The temporary path at which this process writes `path`, a file or a folder."""
    return path.with_name(f".{path.name}.{_owner()}-{os.getpid()}.tmp")


def write(path: Path, content: bytes | str) -> None:
    """Write a file, text as UTF-8, so that it is whole or absent, see `opened`.

    Raises:
        CannotWrite: a full disk, a read-only folder; one line.
    """
    with opened(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A stream to a file that will be whole or absent, also after a power cut.

    The folder is synced as well: without that, a file that other files refer to may be missing
    after a crash. (Linux, `fsync(2)`: syncing a file does not sync the entry in its folder.)

    Raises:
        CannotWrite: a full disk, a read-only folder; one line.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = beside(path)
        try:
            with open(temporary, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except BaseException:
            remove(temporary)
            raise
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            with suppress(OSError):  # a file system that cannot sync a folder
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace_files(folder: Path, staged: Path) -> None:
    """Put the files of a folder in the place of those of another, at no moment without either."""
    folder.mkdir(parents=True, exist_ok=True)
    new = {path.name for path in staged.iterdir()}
    for name in sorted(new):
        os.replace(staged / name, folder / name)
    for path in folder.iterdir():
        if path.name not in new and not path.name.startswith("."):  # Snakemake's own
            remove(path)


def sweep(folder: Path) -> None:
    """Remove the temporary files below a folder that dead processes of this host left."""
    ours = re.compile(rf"\..*\.{re.escape(_owner())}-(\d+)\.tmp")
    folders = [os.fspath(folder)]
    while folders:  # `os.walk` takes twice as long, and the history has a folder for each cell
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                found = ours.fullmatch(entry.name)
                if found and not exists(int(found[1])):
                    remove(Path(entry.path))
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)


def remove(path: Path) -> None:
    """Remove a file or a whole folder, if that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
