"""The records of a checkout as a collection: listing them, and those that cannot be read."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError
from siliconprof.store import documents, record, temporary
from siliconprof.store.cell import RECORD

NOTES = "checked.json"  # in the history, see `Notes`
HERE, IMPORTED, REFERENCE = "this host", "another host", "reference"  # whose a record is


class Notes:
    """Results of earlier checks of records, so that a start need not read them all.

    A note is valid for one file on one disk: once copied, written or touched, it is read again.

    Args:
        history: the folder `results/history`.
    """

    def __init__(self, history: Path) -> None:
        self._path = history / NOTES
        self._notes: dict[str, dict[str, Any]] = {}
        self._changed = False
        try:
            content = documents.read(self._path)
            self._notes = {k: v for k, v in content.items() if isinstance(v, dict)}
        except (OSError, ValueError, AttributeError):
            pass  # none, or damaged: everything is read

    def of(self, path: str | Path) -> dict[str, Any] | None:
        """`sha256` and `answers`, if any, as `add` noted them; None when the file must be read."""
        note = self._notes.get(os.fspath(path))
        return note if note is not None and note.get("file") == _signature(path) else None

    def add(self, path: str | Path, sha256: str, answers: str | None = None) -> None:
        """Note that a record is sound, and which cell, code and data it answered for."""
        note = {"file": _signature(path), "sha256": sha256}
        self._notes[os.fspath(path)] = note | ({"answers": answers} if answers else {})
        self._changed = True

    def store(self) -> None:
        """Write what is new.

        Raises:
            CannotWrite: one line.
        """
        if self._changed:
            temporary.write(self._path, json.dumps(self._notes))


def _signature(path: str | Path) -> list[int]:
    """Inode, size and times of a file, which change with its content."""
    stat = os.stat(path)
    return [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def unreadable(
    own: Iterable[str | Path], foreign: Iterable[str | Path], results: Path, dry_run: bool
) -> list[str]:
    """A line for each record that cannot be read.

    Content, hash and place are checked, not the schema: this runs at every start. One of this run's
    hosts that is of another version is not among them: it does not answer for its cell, see
    `pipeline.startup.settle_records`.

    Raises:
        CannotWrite: one line.
    """
    lines = []
    notes = Notes(results / "history")
    for paths, hint in ((own, "; delete it to have its cell measured again"), (foreign, "")):
        for path in map(Path, paths):
            if os.path.exists(path) and notes.of(path) is None:
                try:
                    notes.add(path, record.read(path, check_schema=False, in_place=True)["sha256"])
                except UserError as error:
                    if not (hint and isinstance(error, record.OtherVersion)):
                        lines.append(f"{error}; used in nothing{hint}")
    if not dry_run:
        notes.store()
    return lines


def foreign_records(results: Path, own: Collection[str]) -> Iterator[Path]:
    """Records of hosts that this run does not measure: imported, shared or collected.

    Files that are not named as a record are left out, see `misnamed`: Snakemake could read such a
    name as a pattern, and a shell as a command.

    Args:
        own: labels of this run's hosts.
    """
    folder = results / "records"
    for host in sorted(folder.glob("*")):
        if host.is_dir() and host.name not in own:
            for name in listed(host):
                if RECORD.fullmatch(f"{host.name}/{name}"):
                    yield host / name


def misnamed(results: Path) -> list[Path]:
    """JSON files below `records/` whose path cannot be a record's."""
    folder = results / "records"
    return [folder / name for name in listed(folder) if not RECORD.fullmatch(name)]


def listed(folder: Path) -> list[str]:
    """Names of what ends in `.json` below a folder, relative to it, as `Path.rglob` sorts them.

    There may be ten thousand, and every start lists them: `rglob` takes five times as long.
    """
    found = []
    for parent, folders, files in os.walk(folder):
        found += [f"{parent}/{name}" for name in (*folders, *files) if name.endswith(".json")]
    start = len(f"{folder}/")
    return sorted((name[start:] for name in found), key=lambda name: name.split("/"))
