"""The files of a folder that a data set was prepared from, and whether they are unchanged.

Which of a folder's files are read is known only afterwards. So a preparation lists them in
sources.json, beside its output, and each parse of the Snakefile checks those. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from siliconprof import fingerprint
from siliconprof.datasets.dataset_spec import DatasetSpec
from siliconprof.store import documents

FILE = "sources.json"
NEW = "new"  # the state of a data set without a readable sources.json
# A copied file has a new time and the same content, and must prepare nothing again; for a file too
# large to read at every parse, the time decides.
SMALL_BYTES = 64 * 2**20


def read(
    spec: DatasetSpec, files: Iterable[Path], whole_folder: bool, state: str
) -> dict[str, Any]:
    """The content of sources.json: the user's own files that a preparation has read.

    Args:
        files: those in the data set's folder, whether they exist or not.
        whole_folder: whether a new file in the folder would be read too.
        state: from `state`, before the preparation.
    """
    roots: dict[str, dict[str, Any]] = {}
    if spec.source == "folder":
        folder = Path(spec.path or "").expanduser()
        roots[str(folder)] = _root(folder, files, _names(folder) if whole_folder else None)
    tokenizer = Path(spec.tokenizer or "").expanduser()
    if spec.tokenizer and tokenizer.is_dir():
        own = _root(tokenizer, [tokenizer / "tokenizer.json"], None)
        roots.setdefault(str(tokenizer), own)["files"] |= own["files"]
    return {"state": state, "roots": roots}


def _root(folder: Path, files: Iterable[Path], names_sha256: str | None) -> dict[str, Any]:
    """A folder with the facts of files by their names in it."""
    # Libraries name files by absolute paths, with links in the folder's own path resolved.
    places = {file.parent.resolve() / file.name for file in files}
    names = sorted(os.path.relpath(place, folder.resolve()) for place in places)
    return {"names_sha256": names_sha256, "files": {name: _facts(folder / name) for name in names}}


def state(output_dir: Path) -> str:
    """A short text that changes with the files that the data set in a folder was prepared from.

    It is the same at every call while the files are the same.
    """
    try:
        sources = documents.read(output_dir / FILE)
        changed = list(_changes(sources))
        saved_state = str(sources["state"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return NEW
    if not changed:
        return saved_state
    return hashlib.sha256(json.dumps([saved_state, changed]).encode()).hexdigest()[:16]


def changed(output_dir: Path) -> list[str]:
    """Paths of the files that changed since the preparation, and of folders with other names.

    Raises:
        OSError, ValueError, LookupError: sources.json is missing or damaged.
    """
    return [path for path, _ in _changes(documents.read(output_dir / FILE))]


def _changes(sources: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(path, its current state) of everything that differs."""
    for root, recorded in sources["roots"].items():
        folder = Path(root)
        if not folder.is_dir():  # as on another host: what was prepared from it stays valid
            continue
        if recorded["names_sha256"] and recorded["names_sha256"] != (names := _names(folder)):
            yield root, names
        for name, before in recorded["files"].items():
            now = _facts(folder / name, before)
            if now != before:
                yield str(folder / name), now


def _facts(path: Path, before: list[Any] | None = None) -> list[Any] | None:
    """Bytes, time in ns and SHA-256 of a file, None where there is none; `before` if it is as then."""
    try:
        status = path.stat()
        facts: list[Any] = [status.st_size, status.st_mtime_ns, None]
        if before and facts[:2] == before[:2]:
            return before
        if status.st_size <= SMALL_BYTES:
            facts[2] = fingerprint.of_file(path)
    except OSError:
        return None
    return before if before and facts[2] and facts[2] == before[2] else facts


def _names(folder: Path) -> str:
    """SHA-256 of the names of all files below a folder that are not hidden."""
    names = []
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        below = os.path.relpath(where, folder)
        names += [f"{below}/{name}" for name in files if not name.startswith(".")]
    return hashlib.sha256("\n".join(sorted(names)).encode(errors="surrogateescape")).hexdigest()
