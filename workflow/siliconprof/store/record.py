"""The record a cell leaves behind, whatever happened to it: written whole or not at all.

A record carries the SHA-256 of its own content, so damage and edits show. Snakemake deletes a
rule's old output before it reruns the job; therefore every record is also kept under
`history/{cell}/{sha256}.json`, which no rule owns.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError, writing
from siliconprof.store import documents, migration, temporary
from siliconprof.store.cell import AXES, canonical_json

SCHEMA_VERSION = 3  # the shape of the record
METHOD_VERSION = 2  # how numbers are made; numbers of two methods are never compared silently
WORDS = ("note",)  # parameters of a point that only say something: no part of its identity
RETIRED = "retired"  # beside it: the record of the cell was taken away by `retire`
ORDER = "order.txt"  # in a cell's folder of the history: hashes, the latest last
STATUSES = ("ok", "oom", "failed", "timeout", "unsupported", "skipped")


class OlderRecord(UserError):
    """A whole record of a schema too old for `migration`: nothing is wrong with it."""


class NewerRecord(UserError):
    """A whole record of a schema or a method of later: a newer checkout reads it."""


def finite(value: Any) -> Any:
    """The same value with None for every number that no reader takes, see `documents`.

    NaN and infinities, which JSON does not have, and what is beyond measure: the perplexity of a
    training that diverged, say.
    """
    if isinstance(value, float):
        return value if abs(value) < documents.HUGE else None  # which no NaN is
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value


def content_sha256(record: Mapping[str, Any]) -> str:
    """Hex SHA-256 of a record's canonical content, its own `sha256` left out."""
    content = {key: value for key, value in record.items() if key != "sha256"}
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def schema_problems(record: Mapping[str, Any]) -> list[str] | None:
    """Mistakes against `workflow/schemas/record.schema.yaml`; None when no checker is installed.

    A bare host that measures one cell by hand needs neither jsonschema nor PyYAML; the record
    is then checked where it is imported.
    """
    try:
        import jsonschema  # noqa: F401
        import yaml  # noqa: F401
    except ImportError:
        return None
    from siliconprof.store import validation

    # An hour has some hundred thousand values of samples, and JSON has no aliases.
    return validation.problems(record, validation.load_schema("record"), most_values=math.inf)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that it is whole or absent, see `temporary.opened`."""
    temporary.write(path, text.encode("utf-8"))


def write(record: dict[str, Any], path: Path, history: Path | None) -> str:
    """Seal and store a record; its SHA-256 comes back.

    Args:
        history: the folder `results/history`, or None to keep no second copy.

    Raises:
        ValueError: the record breaks its schema (a defect of ours, never of the user).
    """
    record["sha256"] = content_sha256(record)
    mistakes = schema_problems(record)
    if mistakes:
        raise ValueError("record breaks its schema: " + "; ".join(mistakes[:5]))
    text = json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n"
    if history is not None:
        keep_in_history(record, text, history)
    write_atomically(path, text)
    if history is not None:
        forget_retired(record, history)
    return record["sha256"]


def read(path: Path, check_schema: bool = True) -> dict[str, Any]:
    """A record, checked as it lies there, then read as one of today's schema.

    Raises:
        UserError: one line naming the file when it is no JSON, was altered, is of a newer
            schema or method than this version knows, or breaks the schema.
    """
    try:
        record = documents.read(path)
    except OSError as error:
        raise UserError(f"{path}: damaged record: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{path}: damaged record: {error}") from None
    if not isinstance(record, dict) or "sha256" not in record:
        raise UserError(f"{path}: damaged record: no `sha256` of its own content")
    cell = record.get("cell")
    if not isinstance(cell, dict) or not all(isinstance(cell.get(axis), str) for axis in AXES):
        raise UserError(f"{path}: damaged record: it does not say of which cell it is")
    if content_sha256(record) != record["sha256"]:
        raise UserError(f"{path}: damaged record: its content does not match its own `sha256`")
    try:
        record = as_today(record)
    except ValueError as error:
        raise UserError(f"{path}: damaged record: {error}") from None
    except UserError as error:
        raise type(error)(f"{path}: {error}") from None
    if check_schema:
        mistakes = schema_problems(record)
        if mistakes:
            raise UserError(f"{path}: damaged record: {mistakes[0]}")
    return record


def as_today(record: dict[str, Any]) -> dict[str, Any]:
    """A record in today's schema, see `migration`; its numbers stay those of its method.

    Raises:
        ValueError: it is not what its schema version says.
        OlderRecord, NewerRecord: of a schema or a method that this version does not know any
            more, or not yet; the line does not say which record.
        UserError: of none that there ever was.
    """
    version, method = record.get("schema_version"), record.get("method_version")
    if not migration.can(version, SCHEMA_VERSION):
        known = ", ".join(map(str, [*migration.STEPS, SCHEMA_VERSION]))
        what = f"record of schema version {version!r}; this version reads {known}"
        if type(version) is int and version < SCHEMA_VERSION:
            raise OlderRecord(what)
        raise _not_older(what, version, SCHEMA_VERSION)
    if type(method) is not int or not 1 <= method <= METHOD_VERSION:
        what = f"record of method version {method!r}; this version knows 1 to {METHOD_VERSION}"
        raise _not_older(what, method, METHOD_VERSION)
    return record if version == SCHEMA_VERSION else migration.migrate(record, SCHEMA_VERSION)


def _not_older(what: str, version: Any, current: int) -> UserError:
    """The error for a version that is of later, or that there never was."""
    if type(version) is int and version > current:
        return NewerRecord(f"{what}; a newer checkout reads it")
    return UserError(what)


def read_in_place(path: Path, check_schema: bool = True) -> dict[str, Any]:
    """A record, checked as by `read`, at the path of its own cell.

    Raises:
        UserError: also where it is the record of another cell: a path is what a record is asked
            for by, and nobody's numbers stand under another's name.
    """
    record = read(path, check_schema)
    own = cell_path(record)
    if "/".join(path.with_suffix("").parts[-len(AXES) :]) != own:
        raise UserError(f"{path}: misplaced record: it is that of the cell {own}")
    return record


def cell_path(record: Mapping[str, Any]) -> str:
    """`host/device/backend/workload/scenario/precision` of the cell that a record is of."""
    return "/".join(record["cell"][axis] for axis in AXES)


def history_folder(record: Mapping[str, Any], history: Path) -> Path:
    """Where all records of the same cell are kept."""
    return history.joinpath(*(record["cell"][axis] for axis in AXES))


def keep_in_history(record: Mapping[str, Any], text: str, history: Path) -> None:
    """Keep a record by its hash, unless it is there already, and note that it is the latest.

    Raises:
        CannotWrite: one line.
    """
    kept = history_folder(record, history) / f"{record['sha256']}.json"
    if kept.exists():
        return
    with writing(kept):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with open(kept.with_name(ORDER), "a", encoding="ascii") as stream:
            stream.write(f"\n{record['sha256']}")  # the line before may have been cut off
            stream.flush()
            os.fsync(stream.fileno())
    write_atomically(kept, text)


def retire(path: Path, record: Mapping[str, Any], history: Path) -> None:
    """Take a record that answers no more out of the way; the history keeps it.

    A note there tells its absence from one that a person wanted, see `retired`.

    Raises:
        CannotWrite: one line.
    """
    with writing(path):
        text = path.read_text(encoding="utf-8")
        keep_in_history(record, text, history)
        kept = history_folder(record, history) / f"{record['sha256']}.json"
        if kept.read_text(encoding="utf-8", errors="replace") != text:  # damaged since
            write_atomically(kept, text)
        (history_folder(record, history) / RETIRED).touch()
        path.unlink()


def restore(path: Path, kept: Path) -> None:
    """Put a record of the history back where it belongs.

    Raises:
        CannotWrite: one line.
    """
    write_atomically(path, kept.read_text(encoding="utf-8"))
    with writing(kept):
        kept.with_name(RETIRED).unlink(missing_ok=True)


def forget_retired(record: Mapping[str, Any], history: Path) -> None:
    """Forget that a record of the cell was retired: a new one is there.

    Raises:
        CannotWrite: one line.
    """
    note = f"{history}/{cell_path(record)}/{RETIRED}"
    if os.path.lexists(note):  # hardly ever, and every start asks for every cell
        with writing(Path(note)):
            Path(note).unlink(missing_ok=True)


def retired(record: Mapping[str, Any], history: Path) -> bool:
    """Whether the record of a cell was retired and is missed; not so once a new one is there."""
    return (history_folder(record, history) / RETIRED).exists()


def earlier(record: Mapping[str, Any], history: Path) -> list[Path]:
    """Other records of the same cell in the history, newest first.

    In the order in which they were kept, since a clock may have been set meanwhile; those that
    came without that order, by the time they say themselves, before them.
    """
    folder = history_folder(record, history)
    others = [path for path in folder.glob("*.json") if path.stem != record["sha256"]]
    try:
        lines = (folder / ORDER).read_text(encoding="ascii", errors="replace").split()
    except OSError:
        lines = []
    place = {sha256: number for number, sha256 in enumerate(lines)}

    def order(path: Path) -> tuple[int, str]:
        return (place[path.stem], "") if path.stem in place else (-1, _started_at(path))

    return sorted(others, key=order, reverse=True)


def _started_at(path: Path) -> str:
    """When a kept record was measured; a copied file's own time says nothing."""
    try:
        return str(documents.read(path)["started_at"])
    except (ValueError, KeyError, TypeError, OSError):
        return ""
