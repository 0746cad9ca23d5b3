"""Atomic writes: a file is written beside its place and renamed once it is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from siliconprof.errors import writing


def temporary_path(path: Path) -> Path:
    """The temporary path at which this process writes `path`, a file or a folder."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def write(path: Path, content: bytes | str) -> None:
    """Write a file, text as UTF-8, so that it is whole or absent, see `opened`.

    Raises:
        CannotWrite: a full disk, a read-only folder; one line.
    """
    with opened(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A stream to a file that will be whole or absent.

    Raises:
        CannotWrite: a full disk, a read-only folder; one line.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_path(path)
        try:
            with open(temporary, "wb") as stream:
                yield stream
            os.replace(temporary, path)
        except BaseException:
            remove(temporary)
            raise


def remove(path: Path) -> None:
    """Remove a file or a whole folder, if that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
