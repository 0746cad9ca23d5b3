"""What a data set is made from and into, and whether the files that it was made from are unchanged.

Which of a folder's files are read is known only afterwards. So a preparation lists them in
sources.json, beside its output, and each parse of the Snakefile checks those.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof.datasets.dataset_spec import DatasetSpec
from siliconprof.store import documents

if TYPE_CHECKING:
    import numpy as np

SOURCES_FILE = "sources.json"
NEW = "new"  # the state of a data set without a readable sources.json


@dataclass
class Origin:
    """Where the data came from."""

    revision: str | None = None  # the hub's commit, None where unknown
    synthetic: bool = False
    files: list[Path] = field(default_factory=list)  # of a folder: those read where they exist
    whole_folder: bool = False  # whether a new file in the folder would be read too
    # Names of what a known download holds besides.
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Material:
    """What a data set becomes."""

    origin: Origin
    arrays: Mapping[str, np.ndarray]
    facts: Mapping[str, Any]  # what its kind adds to dataset.json
    tokenizer: bytes | None = None  # tokenizer.json of data with tokens


def read(spec: DatasetSpec, origin: Origin, state: str) -> dict[str, Any]:
    """The content of sources.json: the user's own files that a preparation has read.

    Args:
        state: from `state`, before the preparation.
    """
    roots: dict[Path, set[Path]] = {}
    if spec.source == "folder":
        root = Path(spec.path or "").expanduser()
        # Libraries name files by absolute paths, with links in the folder's own path resolved.
        places = {file.parent.resolve() / file.name for file in origin.files}
        names = {Path(os.path.relpath(place, root.resolve())) for place in places}
        # A file that comes or goes changes the time of its folder.
        folders = (
            {folder for name in names for folder in name.parents} if origin.whole_folder else set()
        )
        roots[root] = names | folders
    tokenizer = Path(spec.tokenizer or "").expanduser()
    if spec.tokenizer and tokenizer.is_dir():
        roots.setdefault(tokenizer, set()).add(Path("tokenizer.json"))
    listed = {
        str(root): {str(name): _facts(root / name) for name in sorted(names)}
        for root, names in roots.items()
    }
    return {"state": state, "roots": listed}


def state(output_dir: Path) -> str:
    """A short text that changes with the files that the data set in a folder was prepared from.

    It is the same at every call while the files are the same.
    """
    try:
        sources = documents.read(output_dir / SOURCES_FILE)
        changed, saved_state = list(changes(sources)), str(sources["state"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return NEW
    if not changed:
        return saved_state
    return hashlib.sha256(json.dumps([saved_state, changed]).encode()).hexdigest()[:16]


def changes(sources: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(path, its current state) of everything that differs from sources.json."""
    for root, files in sources["roots"].items():
        if Path(root).is_dir():  # not on another host: what was prepared there stays valid
            for name, before in files.items():
                if (now := _facts(Path(root) / name)) != before:
                    yield str(Path(root) / name), now


def _facts(path: Path) -> list[int] | None:
    """Bytes and time in ns of a file or folder, None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]
