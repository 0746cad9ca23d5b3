"""Which files of a folder a data set was prepared from, and whether they are still the same.

A folder may hold a million clips of which a few hundred are read, and which ones is known only
afterwards. So a preparation writes down what it read, in sources.json beside what it made, and
each parse of the Snakefile looks at those files alone. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from siliconprof import closure
from siliconprof.datasets.dataset_spec import DatasetSpec
from siliconprof.store import documents

FILE = "sources.json"
NEW = "new"  # the state of a data set of which nothing is written down
# A copy has new times and the same content, and prepares nothing again; of a file that is too
# large to be read at every parse the time decides.
SMALL_BYTES = 64 * 2**20


def read(
    spec: DatasetSpec, files: Iterable[Path], whole_folder: bool, state: str
) -> dict[str, Any]:
    """The content of sources.json: what a preparation has read of a person's own files.

    Args:
        files: those it read of the data set's folder, there or not.
        whole_folder: a file that comes to the folder would be read as well.
        state: as `state` gave it before.
    """
    roots: dict[str, dict[str, Any]] = {}
    if spec.source == "folder":
        folder = Path(spec.path or "").expanduser()
        roots[str(folder)] = {
            "names_sha256": _names(folder) if whole_folder else None,
            "files": {name: _facts(folder / name) for name in _below(folder, files)},
        }
    given = Path(spec.tokenizer or "").expanduser()
    if spec.tokenizer and given.is_dir():
        root = roots.setdefault(str(given), {"names_sha256": None, "files": {}})
        root["files"]["tokenizer.json"] = _facts(given / "tokenizer.json")
    return {"state": state, "roots": roots}


def state(output_dir: Path) -> str:
    """A word that changes with the files that the data set in a folder was prepared from.

    It stays what it was while they are the same, whenever it is asked.
    """
    try:
        kept = documents.read(output_dir / FILE)
        changed = list(_changes(kept))
        before = str(kept["state"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return NEW
    if not changed:
        return before
    return hashlib.sha256(json.dumps([before, changed]).encode()).hexdigest()[:16]


def changed(output_dir: Path) -> list[str]:
    """Files, or the folder whose names changed, that are not what the data were prepared from.

    Raises:
        OSError, ValueError, LookupError: sources.json is missing or damaged.
    """
    kept = documents.read(output_dir / FILE)
    return [path for path, _ in _changes(kept)]


def _changes(kept: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(path, what is there now) of all that differs.

    A folder that is gone, on a disk that was taken away or another host, is not looked into: what
    was prepared from it stands.
    """
    for root, seen in kept["roots"].items():
        folder = Path(root)
        if not folder.is_dir():
            continue
        if seen["names_sha256"] and seen["names_sha256"] != (names := _names(folder)):
            yield root, names
        for name, then in seen["files"].items():
            now = _status(folder / name)
            if not _same(folder / name, then, now):
                yield str(folder / name), now


def _same(path: Path, then: dict[str, Any] | None, now: dict[str, int] | None) -> bool:
    if then is None or now is None:
        return then is None and now is None
    if then["bytes"] != now["bytes"]:
        return False
    if then["mtime_ns"] == now["mtime_ns"]:
        return True
    return then["sha256"] is not None and then["sha256"] == _sha256(path, now)


def _status(path: Path) -> dict[str, int] | None:
    """Size and time of the last change; None where no file is."""
    try:
        found = path.stat()
    except OSError:
        return None
    return {"bytes": found.st_size, "mtime_ns": found.st_mtime_ns}


def _facts(path: Path) -> dict[str, Any] | None:
    now = _status(path)
    return None if now is None else now | {"sha256": _sha256(path, now)}


def _sha256(path: Path, now: dict[str, int]) -> str | None:
    """Of a file that is not too large."""
    try:
        return closure.sha256(path) if now["bytes"] <= SMALL_BYTES else None
    except OSError:
        return None


def _below(folder: Path, files: Iterable[Path]) -> list[str]:
    """Names relative to a folder, absolute where a file lies elsewhere; sorted.

    Libraries name files by absolute paths, with links in the folder's own path resolved.
    """
    names = set()
    for file in files:
        path = file.absolute()
        for root in (folder.absolute(), folder.resolve()):
            if path.is_relative_to(root):
                path = path.relative_to(root)
                break
        names.add(path.as_posix())
    return sorted(names)


def _names(folder: Path) -> str:
    """SHA-256 of the names of all files below a folder that are not hidden."""
    names = []
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        below = os.path.relpath(where, folder)
        names += [f"{below}/{name}" for name in files if not name.startswith(".")]
    return hashlib.sha256("\n".join(sorted(names)).encode(errors="surrogateescape")).hexdigest()
