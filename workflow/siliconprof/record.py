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

from siliconprof.cell import AXES, canonical_json
from siliconprof.errors import UserError

SCHEMA_VERSION = 2  # the shape of the record
METHOD_VERSION = 2  # how numbers are made; numbers of two methods are never compared silently
STATUSES = ("ok", "oom", "failed", "timeout", "unsupported", "skipped")


class OlderRecord(UserError):
    """A whole record of an earlier schema: nothing is wrong with it, this version reads others."""


def finite(value: Any) -> Any:
    """The same value with None for every NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
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
    from siliconprof import validation

    return validation.problems(record, validation.load_schema("record"))


def write_atomically(path: Path, text: str) -> None:
    """Write a text file under a temporary name, then rename it: whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


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
    return record["sha256"]


def read(path: Path, check_schema: bool = True) -> dict[str, Any]:
    """A record, checked.

    Raises:
        UserError: one line naming the file when it is no JSON, was altered, is of a newer
            schema than this version reads, or breaks the schema.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{path}: damaged record: {error}") from None
    if not isinstance(record, dict) or "sha256" not in record:
        raise UserError(f"{path}: damaged record: no `sha256` of its own content")
    try:
        sha256 = content_sha256(record)
    except (ValueError, RecursionError) as error:  # NaN, infinity, depth
        raise UserError(f"{path}: damaged record: {error}") from None
    if sha256 != record["sha256"]:
        raise UserError(f"{path}: damaged record: its content does not match its own `sha256`")
    version = record.get("schema_version")
    if version != SCHEMA_VERSION:
        older = isinstance(version, int) and version < SCHEMA_VERSION
        raise (OlderRecord if older else UserError)(
            f"{path}: record of schema version {version}; this version reads {SCHEMA_VERSION}"
        )
    if check_schema:
        mistakes = schema_problems(record)
        if mistakes:
            raise UserError(f"{path}: damaged record: {mistakes[0]}")
    return record


def history_folder(record: Mapping[str, Any], history: Path) -> Path:
    """Where all records of the same cell are kept."""
    return history.joinpath(*(record["cell"][axis] for axis in AXES))


def keep_in_history(record: Mapping[str, Any], text: str, history: Path) -> None:
    """Keep a record by its hash, unless it is there already."""
    kept = history_folder(record, history) / f"{record['sha256']}.json"
    if not kept.exists():
        write_atomically(kept, text)


def earlier(record: Mapping[str, Any], history: Path) -> list[Path]:
    """Other records of the same cell in the history, newest first."""
    folder = history_folder(record, history)
    others = [path for path in folder.glob("*.json") if path.stem != record["sha256"]]
    return sorted(others, key=_started_at, reverse=True)


def _started_at(path: Path) -> str:
    """When a kept record was measured; a copied file's own time says nothing."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["started_at"])
    except (ValueError, KeyError, TypeError, OSError):
        return ""
