"""The journal of a cell's finished points, so that a killed measurement need not repeat them.

A line of the file is one event, as JSON: a point was begun, or was finished, with its content; or
a record was written of the whole cell. A point counts for the key under which it was measured:
the SHA-256 over code, environment, method and everything of the cell but the lists that it sweeps
(`Workload.swept`), so that a grown sweep takes over the points that it shares with the smaller one
and measures the others. A cell that has its record already is measured anew.

A point whose process died is closed by the supervisor, which starts another process for the rest.
Used as

    for name, settings in sweep:
        point = session.journal.find(name)
        if point is None:
            session.journal.begin(name, {"params": settings})
            point = measured(settings)
            session.journal.add(name, point)
        session.add_point(point)
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from siliconprof import closure
from siliconprof.errors import UserError, cannot_write
from siliconprof.store import documents, record
from siliconprof.store.cell import Cell, canonical_sha256

FILE = "journal.jsonl"
# Of the environment: what may differ from one run of the same measurement to the next.
VOLATILE = ("git_commit", "load_average_1min", "node", "scheduler_job")

Point = dict[str, Any]


def empty_point() -> Point:
    """A point without measured values, with the keys that the record's schema requires."""
    return {"params": {}, "times": {}, "flops": None, "bytes": None, "memory": {}}


class Journal:
    """The points of one cell, in a file or, without one, in memory only.

    Args:
        path: of the file; it need not be there yet.
        key: under which points count.
    """

    def __init__(self, path: Path | None = None, key: str = "") -> None:
        self.path, self.key = path, key
        self._points: dict[str, Point] = {}
        if path is not None:
            for event in self._own_events():
                if event["event"] == "point":
                    self._points[event["name"]] = event["point"]
        self._earlier = list(self._points.values())
        # Process ids are reused: an earlier event with a known id is of another process.
        self._before = 0 if path is None else sum(1 for _ in _events(path))

    def find(self, name: str) -> Point | None:
        """A finished point, whatever its status; None when it must be measured.

        Raises:
            CannotWrite: one line.
        """
        point = self._points.get(name)
        if point is not None:
            self._note("used", name)
        return point

    def has_taken_over(self, point: Mapping[str, Any]) -> bool:
        """Whether a point that `find` returned was measured by an earlier process."""
        return any(point is earlier for earlier in self._earlier)

    def begin(self, name: str, initial: Mapping[str, Any] | None = None) -> None:
        """Note that a point is being measured, so that it gets the status if this process dies.

        Args:
            initial: the parts of the point that are known beforehand, `params` above all.

        Raises:
            CannotWrite: one line.
        """
        self._note("begun", name, point={**empty_point(), **(initial or {})})

    def add(self, name: str, point: Mapping[str, Any]) -> None:
        """Save a finished point; it is on disk when this returns.

        Raises:
            CannotWrite: one line.
        """
        self._points[name] = dict(point)
        self._note("point", name, point=point)

    def note_skipped(self, name: str, point: Mapping[str, Any]) -> None:
        """Note a point that was not tried, for the record of a process that does not end well."""
        self._note("skipped", name, point=point)

    def used_by(self, pids: Sequence[int]) -> list[Point]:
        """The points that some processes measured, closed, skipped or took over, each once."""
        points: dict[str, Point] = {}
        measured = dict(self._points)
        for event in self._own_events(self._before):
            if event["event"] in ("point", "skipped"):
                measured[event["name"]] = event["point"]
            mine = event["event"] in ("point", "skipped", "used") and event["pid"] in pids
            if mine and event["name"] in measured:  # unless the line of the point is damaged
                points[event["name"]] = measured[event["name"]]
        return list(points.values())

    def taken_over_by(self, pids: Sequence[int]) -> int:
        """How many points some processes took over that none of them had measured."""
        events = list(self._own_events(self._before))
        own = {e["name"] for e in events if e["event"] == "point" and e["pid"] in pids}
        return len({e["name"] for e in events if e["event"] == "used" and e["pid"] in pids} - own)

    def _own_events(self, after: int = 0) -> Iterator[dict[str, Any]]:
        if self.path is not None:
            events = islice(_events(self.path), after, None)
            yield from (event for event in events if event["key"] == self.key)

    def begun_by(self, pid: int) -> tuple[str, Point] | None:
        """(name, initial point) of what a process began and did not finish, or None."""
        begun = None
        for event in self._own_events(self._before):
            if event["event"] == "begun" and event["pid"] == pid:
                begun = event["name"], event["point"]
            elif event["event"] == "point" and begun and event["name"] == begun[0]:
                begun = None
        return begun

    def close(self, cell: Cell, complete: bool) -> None:
        """End a measurement whose record has been written; an empty folder is removed.

        Args:
            complete: the record has every point of the cell.

        Raises:
            CannotWrite: one line.
        """
        if self.path is None:
            return
        try:
            os.removedirs(self.path.parent)
        except OSError:  # it holds something
            if complete:
                self._write({"event": "record", "cell": _cell_sha256(cell)})

    def _note(self, event: str, name: str, **content: Any) -> None:
        self._write({"event": event, "name": name, "pid": os.getpid(), **content})

    def _write(self, event: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        # NaN stays NaN, so that a value that diverged differs from a missing one.
        line = json.dumps({"key": self.key, **event}) + "\n"
        try:
            with open(self.path, "ab+") as stream:
                end = stream.seek(0, os.SEEK_END)
                if end:
                    stream.seek(end - 1)
                    if stream.read(1) != b"\n":  # the last line was cut off
                        line = "\n" + line
                stream.write(line.encode())
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from None


def key_of(
    cell: Cell,
    swept: Sequence[str],
    code: str,
    environment: Mapping[str, Any],
    declared: Mapping[str, Any],
) -> str:
    """The key of a cell's points: hex SHA-256.

    Args:
        swept: the workload's parameters whose entries are points, each with a name of its own.
        code: the fingerprint of its method code.
        environment: the result of `environment.capture`.
        declared: versions that the pipeline declared.
    """
    identity = json.loads(cell.identity_json())
    for name in swept:
        identity["parameters"].pop(name, None)
    data = Path(cell.dataset or "", "dataset.json")
    stable = {name: value for name, value in environment.items() if name not in VOLATILE}
    # Another node of a cluster must not finish what one began: a record is of one machine.
    stable["node"] = environment["node"] if "scheduler_job" in environment else None
    content = {
        "asked": identity,
        "code": code,
        "environment": stable,
        "declared": dict(declared),
        "method": [record.SCHEMA_VERSION, record.METHOD_VERSION],
        "data": closure.sha256(data) if cell.dataset and data.is_file() else None,
    }
    return canonical_sha256(content)


def opened(folder: Path, cell: Cell, key: str) -> Journal:
    """The journal in a cell's folder, for a measurement that begins now.

    If its last event is that a record of the same cell was written, the folder is emptied: the
    cell is measured anew.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        last = _last_event(folder)
        if last and last["event"] == "record" and last["key"] == key:
            if last["cell"] == _cell_sha256(cell):
                for path in [p for p in folder.iterdir() if p.name != FILE]:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                (folder / FILE).unlink()  # last: it marks the rest as of a finished cell
        if not os.access(folder, os.W_OK):
            read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
            reason = errno.EROFS if read_only else errno.EACCES
            raise OSError(reason, os.strerror(reason))
    except OSError as error:
        raise UserError(f"{folder}: cannot write: {error.strerror or error}; see --keep") from None
    return Journal(folder / FILE, key)


def end(folder: Path, cell: Cell) -> None:
    """Note that a record was written of the latest measurement in a cell's folder.

    Raises:
        CannotWrite: one line.
    """
    last = _last_event(folder)
    if last and last["event"] != "record":
        Journal(folder / FILE, last["key"])._write({"event": "record", "cell": _cell_sha256(cell)})


def _cell_sha256(cell: Cell) -> str:
    """Hex SHA-256 of a cell with the lists that it sweeps."""
    return canonical_sha256(vars(cell))


def _last_event(folder: Path) -> dict[str, Any] | None:
    return next(iter(deque(_events(folder / FILE), maxlen=1)), None)


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a journal; a line that is cut off or not an event is left out."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            event = documents.parsed(line, constants=True)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            fields = _FIELDS.get(event["event"], ())
            if fields and all(isinstance(event.get(name), _TYPES[name]) for name in fields):
                yield event


_TYPES: dict[str, type] = {"key": str, "name": str, "cell": str, "pid": int, "point": dict}
_FIELDS = {
    "begun": {"key", "name", "pid", "point"},
    "point": {"key", "name", "pid", "point"},
    "skipped": {"key", "name", "pid", "point"},
    "used": {"key", "name", "pid"},
    "record": {"key", "cell"},
}
