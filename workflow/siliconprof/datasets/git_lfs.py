"""What Git LFS leaves in place of a file that it has not downloaded: a short text, the pointer."""

from __future__ import annotations

from pathlib import Path

BEGINS = b"version https://git-lfs.github.com/spec/"


def refuse(data: bytes) -> None:
    """Refuse a pointer.

    Raises:
        ValueError: the content of a file is one.
    """
    if data.startswith(BEGINS):
        raise ValueError("it is a Git LFS pointer, not the file; run `git lfs pull` in its folder")


def refuse_file(file: Path) -> None:
    """Refuse a file that is a pointer.

    Raises:
        ValueError, OSError: it is one, or cannot be read.
    """
    with open(file, "rb") as stream:
        refuse(stream.read(len(BEGINS)))
