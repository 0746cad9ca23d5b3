"""Files as a person has them: which of a folder count, and which are not what their names say.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePath
from typing import Any

from siliconprof import formatting
from siliconprof.errors import UserError, in_one_line
from siliconprof.store import documents

# What systems, archives and editors put into any folder, beside names that begin with a dot.
ADDED = {
    *("thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "__pycache__", "@eadir"),
    *("#recycle", "$recycle.bin", "system volume information", "lost+found"),
}
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
GZIP = b"\x1f\x8b"
TEXT_SUFFIXES = {".txt", ".csv", ".tsv", ".json", ".jsonl", ".ndjson"}
# How files begin that are no text in UTF-8 -> what they are.
COMPRESSED_FORMATS = {
    GZIP: "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\3\4": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!": "rar",
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"%PDF-": "PDF",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
ZEROS = (
    "it holds zero bytes, as binary data, UTF-16 and files that were cut off do; unpack it, convert "
    "it to UTF-8 or copy it again"
)
END_BYTES = 65536  # of a file of any size, what is looked at from either end
# Of a file in parts: x-00001-of-00003.y, or 0000.parquet and so on, as the hub converts data sets.
PART = re.compile(r"(.*?)(\d+)-of-(\d+)(.*)", re.DOTALL)
CONVERTED_PART = re.compile(r"(\d{4})\.parquet")


def is_added(path: PurePath) -> bool:
    """Whether a path in a folder is hidden, or was added by a system, an archive or an editor."""
    return any(
        name.startswith((".", "~$")) or name.endswith("~") or name.lower() in ADDED
        for name in path.parts
        if name != ".."
    )


def listed(folder: Path, suffix: str = "") -> tuple[list[Path], list[str]]:
    """(the files of a folder in the order of their names, what else it holds, counted).

    Args:
        suffix: of the files that count; others count as something else.
    """
    files, others = [], Counter[str]()
    for path in sorted(folder.iterdir()):
        if is_added(PurePath(path.name)):
            continue
        if path.is_file() and path.name.lower().endswith(suffix):
            files.append(path)
        else:
            is_link = path.is_symlink() and not path.exists()
            kind = "dead link" if is_link else "folder" if path.is_dir() else "other file"
            others[kind] += 1
    return files, [f"{formatting.count(n, kind)} in {folder.name}" for kind, n in others.items()]


def dead_links(root: Path) -> list[str]:
    """The names of the links below a folder that lead nowhere."""
    return [
        path.relative_to(root).as_posix()
        for folder, _, names in os.walk(root)
        for path in (Path(folder) / name for name in sorted(names))
        if path.is_symlink() and not path.exists() and not is_added(path.relative_to(root))
    ]


def missing_parts(files: Iterable[Path]) -> str | None:
    """What is missing of files that are parts of one by their names; None where nothing is."""
    numbers: dict[tuple[Path, str], set[str]] = defaultdict(set)
    for file in files:
        if part := PART.fullmatch(file.name):
            begins, number, total, ends = part.groups()
            numbers[file.parent / f"{begins}*-of-{total}{ends}", total].add(number)
        elif part := CONVERTED_PART.fullmatch(file.name):
            numbers[file.parent / "*.parquet", ""].add(part[1])
    for (pattern, total), found in numbers.items():
        if len(found) < (int(total) if total else 1 + int(max(found))):
            numbers_found = formatting.listing(sorted(found), 5)
            return f"of {pattern} there is only {numbers_found}; copy or download the others too"
    return None


def refuse(file: Path, as_text: bool = False) -> None:
    """Refuse a file that is empty or a pointer of Git LFS, and where text is expected, no text.

    Raises:
        OSError, ValueError: it is one, or cannot be read; the message says how to fix it.
    """
    with open(file, "rb") as stream:
        ends = stream.read(END_BYTES)
        stream.seek(max(stream.tell(), stream.seek(0, os.SEEK_END) - END_BYTES))
        ends += stream.read()
    if not ends:
        raise ValueError("it is empty; copy or download it again")
    if ends.startswith(LFS_POINTER):
        raise ValueError("it is a Git LFS pointer, not the file; run `git lfs pull` in its folder")
    if as_text:
        if kind := next(
            (kind for begin, kind in COMPRESSED_FORMATS.items() if ends.startswith(begin)), None
        ):
            raise ValueError(f"it is {kind}, not text in UTF-8; unpack or convert it")
        if b"\0" in ends:
            raise ValueError(ZEROS)


def lines(file: Path) -> Iterator[str]:
    r"""The lines of a text in UTF-8 as they are, but for a byte order mark and other ends than \n.

    Raises:
        OSError, ValueError: it cannot be read, or is no text.
    """
    refuse(file, as_text=True)
    with open(file, encoding="utf-8-sig") as stream:
        for line in stream:
            if "\0" in line:
                raise ValueError(ZEROS)
            yield line


def read_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file, which may begin with a byte order mark.

    Raises:
        OSError, ValueError: it cannot be read, or holds something else.
    """
    text = "".join(lines(file))
    try:
        value = documents.parsed(text)
    except ValueError as error:
        raise ValueError(f"{in_one_line(error)}; copy or download it again") from None
    if not isinstance(value, dict):
        raise ValueError(f"it holds {type(value).__name__}, expected an object of JSON")
    return value


@contextlib.contextmanager
def reading(file: Path, error: Callable[[str], UserError]) -> Iterator[None]:
    """Turn what is wrong with a file into an error of one line that names it."""
    try:
        yield
    except UnicodeDecodeError:
        why = "it is not text in UTF-8; unpack it, or convert it to UTF-8"
        raise error(f"cannot read {file}: {why}") from None
    except (OSError, ValueError) as wrong:
        why = str(wrong) if type(wrong) is ValueError else in_one_line(wrong)
        raise error(f"cannot read {file}: {why}") from None
