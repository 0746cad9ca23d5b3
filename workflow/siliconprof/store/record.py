"""The record of a cell, whatever its status: written whole or not at all.

A record contains the SHA-256 of its own content, so damage and edits show. Snakemake deletes a
rule's old output before it reruns the job; therefore every record is also saved under
`history/{cell}/{sha256}.json`, which no rule owns.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError
from siliconprof.store import documents, model, temporary
from siliconprof.store.cell import AXES, RECORD, canonical_sha256
from siliconprof.store.contents import Record

RECORD_SCHEMA_VERSION = 6  # the shape of the record
METHOD_VERSION = 2  # of how numbers are made; records of another version are refused
ACCEPT_SIMULATED = "SILICONPROF_ACCEPT_SIMULATED"  # set by tests alone
HERE, IMPORTED_SOURCE, REFERENCE = "this host", "another host", "reference"  # whose a record is


def content_sha256(record: Mapping[str, Any]) -> str:
    """Hex SHA-256 of a record's canonical content without its `sha256`."""
    content = {key: value for key, value in record.items() if key != "sha256"}
    return canonical_sha256(content)


def typed(record: Mapping[str, Any]) -> Record:
    """The record in a JSON document.

    Raises:
        UserError: it is no record; a line for each mistake.
    """
    return model.checked(Record, record, "")


def write(record: dict[str, Any], path: Path | None, history: Path | None) -> Record:
    """Seal, check and store a record; return it typed.

    Args:
        path: of its cell; None where another record stands there.
        history: the folder `results/history`, or None to save no second copy.

    Raises:
        UserError: it is no record, which is a defect of this program.
        CannotWrite: one line.
    """
    record["sha256"] = content_sha256(record)
    whole = typed(record)
    text = json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n"
    killed: list[Path] = []  # temporary files of this cell's killed processes
    if history is not None:
        folder = history / cell_path(record)
        keep_in_history(folder, record["sha256"], text)
        killed += folder.glob(".*.tmp")
    if path is not None:
        temporary.write(path, text)
        killed += path.parent.glob(f".{path.name}.*.tmp")
    for left in killed:
        temporary.remove(left)
    return whole


def read(path: Path, in_place: bool = False) -> dict[str, Any]:
    """A record as a JSON document: its hash and its path are checked, its types are not.

    Args:
        in_place: its path must be that of its own cell: another one's numbers must not stand there.

    Raises:
        UserError: it is not JSON, was altered, is misplaced, or of another schema or method; one
            line naming the file.
    """
    try:
        record = documents.read(path)
        own = cell_path(record)
        if content_sha256(record) != record["sha256"]:
            raise ValueError("its content does not match its own `sha256`")
        refuse_other_versions(record)
    except OSError as error:
        raise UserError(f"{path}: damaged record: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{path}: damaged record: {error}") from None
    except (LookupError, TypeError):
        raise UserError(f"{path}: damaged record: no `sha256`, or no `cell`") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if in_place and "/".join(path.with_suffix("").parts[-len(AXES) :]) != own:
        raise UserError(f"{path}: misplaced record: it is that of the cell {own}")
    return record


def refuse_other_versions(record: Mapping[str, Any]) -> None:
    """Check that a record has this version's schema and method; messages do not name its file.

    Raises:
        UserError: they are not, or its device is simulated.
    """
    if record.get("simulated") and not os.environ.get(ACCEPT_SIMULATED):
        raise UserError(f"record of a device that is {record['simulated']}: no measurement")
    for kind, current in (("schema", RECORD_SCHEMA_VERSION), ("method", METHOD_VERSION)):
        version = record.get(f"{kind}_version")
        if version != current:
            raise UserError(f"record of {kind} version {version!r}; this version reads {current}")


def load(path: Path, in_place: bool = False) -> Record:
    """A record, checked and typed.

    Raises:
        UserError: see `read`; or it is no record, by its first mistake.
    """
    document = read(path, in_place)
    try:
        return typed(document)
    except UserError as error:
        raise UserError(f"{path}: damaged record: {str(error).splitlines()[0]}") from None


def cell_path(record: Mapping[str, Any]) -> str:
    """`host/device/backend/workload/scenario/precision` of a record's cell."""
    return "/".join(record["cell"][axis] for axis in AXES)


def keep_in_history(folder: Path, sha256: str, text: str) -> None:
    """Save a record under its hash, unless it is there already.

    Args:
        folder: the history's, of all records of the same cell: `history / cell.path`.

    Raises:
        CannotWrite: one line.
    """
    if not (copy := folder / f"{sha256}.json").exists():
        temporary.write(copy, text)


def earlier(folder: Path, sha256: str = "") -> list[Path]:
    """The other records of a cell in the history, the last saved first."""
    others = (path for path in folder.glob("*.json") if path.stem != sha256)
    return sorted(others, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def foreign_records(results: Path, own: Collection[str]) -> Iterator[Path]:
    """Records of hosts that this run does not measure: imported, shared or collected.

    Files that are not named as a record are left out: Snakemake could read such a name as a
    pattern, and a shell as a command.

    Args:
        own: labels of this run's hosts.
    """
    folder = results / "records"
    for host in sorted(folder.glob("*")):
        for path in sorted(host.rglob("*.json")) if host.name not in own else ():
            if RECORD.fullmatch(path.relative_to(folder).as_posix()):
                yield path
