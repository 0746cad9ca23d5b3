"""The records of a checkout as a collection: listing them, finding damage, setting it aside."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from siliconprof import closure
from siliconprof.errors import UserError, writing
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


def damaged(paths: Iterable[str | Path], notes: Notes) -> dict[Path, UserError]:
    """Existing records that cannot be used, and why.

    Content, hash and place are checked, not the schema: this runs at every start. A record of another
    version is not damaged: it does not answer for its cell, see `settle_records`.
    """
    errors = {}
    for name in paths:
        if os.path.exists(name) and notes.of(name) is None:
            path = Path(name)
            try:
                notes.add(path, record.read(path, check_schema=False, in_place=True)["sha256"])
            except record.OtherVersion:
                continue
            except UserError as error:
                errors[path] = error
    return errors


def set_aside(path: Path, root: Path, to: Path, dry_run: bool = False) -> Path:
    """Move a file to where no stage reads; its new path.

    Args:
        root: the folder that it lies below.
        to: the folder in which it gets the same place, its name with the content's hash.

    Raises:
        CannotWrite: one line.
    """
    target = to / path.relative_to(root)
    target = target.with_name(f"{path.stem}.{closure.sha256(path)[:12]}{path.suffix}")
    if not dry_run:
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
    return target


def set_damaged_aside(paths: Iterable[str | Path], results: Path, dry_run: bool) -> None:
    """Move damaged records to `results/damaged/`, where no stage reads, and stop.

    Raises:
        UserError: there were some; one line each says where it is now and how to go on.
    """
    lines = []
    notes = Notes(results / "history")
    errors = damaged(paths, notes)
    if not dry_run:
        notes.store()
    for path, error in errors.items():
        target = set_aside(path, results / "records", results / "damaged", dry_run)
        lines.append(
            f"{error}; {'would be ' * dry_run}set aside as {target}: run the same command again "
            "to measure the cell anew, or restore a record from results/history/"
        )
    if lines:
        raise UserError("\n".join(lines))


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
