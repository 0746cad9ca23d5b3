"""What Git LFS leaves in place of a file that it has not downloaded: a short text, the pointer."""

from __future__ import annotations

from pathlib import Path

BEGINS = b"version https://git-lfs.github.com/spec/"


def refuse(file: Path) -> None:
    """Refuse a file that is a pointer.

    Raises:
        ValueError, OSError: it is one, or cannot be read.
    """
    with open(file, "rb") as stream:
        if stream.read(len(BEGINS)) == BEGINS:
            raise ValueError(
                "it is a Git LFS pointer, not the file; run `git lfs pull` in its folder"
            )
