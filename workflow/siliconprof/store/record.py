"""The record of a cell, whatever its status: written whole or not at all.

A record contains the SHA-256 of its own content, so damage and edits show. Snakemake deletes a
rule's old output before it reruns the job; therefore every record is also saved under
`history/{cell}/{sha256}.json`, which no rule owns.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof import declarations, plugins
from siliconprof.errors import UserError, in_one_line, writing
from siliconprof.store import documents, temporary
from siliconprof.store.cell import AXES, canonical_sha256

if TYPE_CHECKING:
    from siliconprof.store.contents import Record

SCHEMA_VERSION = 5  # the shape of the record
METHOD_VERSION = 2  # how numbers are made; numbers of two methods are never compared silently
ORDER = "order.txt"  # in a cell's folder of the history: hashes, the latest last
SHORTEST_S = 1e-12  # of a time; a sum of differences of clock readings is a multiple of more
ACCEPT_EMULATED = "SILICONPROF_ACCEPT_EMULATED"  # set by tests alone


class OtherVersion(UserError):
    """A sound record of another schema or method than today's: it answers for no cell."""


def finite(value: Any) -> Any:
    """The same value with None for every number that `documents` refuses.

    These are NaN and infinities, which JSON does not have, and numbers from `documents.HUGE` on,
    such as the perplexity of a training that diverged.
    """
    if isinstance(value, float):
        return value if abs(value) < documents.HUGE else None  # which no NaN is
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value


def content_sha256(record: Mapping[str, Any]) -> str:
    """Hex SHA-256 of a record's canonical content without its `sha256`."""
    content = {key: value for key, value in record.items() if key != "sha256"}
    return canonical_sha256(content)


def can_check() -> bool:
    """Whether this Python can check schemas; a bare host measures and packs without."""
    return all(find_spec(name) for name in ("jsonschema", "yaml"))


def schema_problems(record: Mapping[str, Any]) -> list[str] | None:
    """Violations of `workflow/schemas/record.schema.yaml`; None when no checker is installed.

    A bare host that measures one cell by hand needs neither jsonschema nor PyYAML; the record
    is then checked where it is imported.
    """
    if not can_check():
        return None
    from siliconprof.store import validation

    mistakes = []
    if not validation.is_sound(record, "record"):
        # An hour has some hundred thousand values of samples, and JSON has no aliases.
        schema = validation.load_schema("record")
        mistakes = validation.problems(record, schema, most_values=math.inf)
    return mistakes or [*_parameter_problems(record["cell"]), *_point_problems(record)]


def _parameter_problems(cell: Mapping[str, Any]) -> list[str]:
    """What a cell's workload was told, against the types that its plug-in declares.

    A workload that is not among the plug-ins here declares nothing, and what this checkout's does
    not know is another version's. Neither makes a record unsound.
    """
    from siliconprof.store import validation

    module, parameters = cell["module"], cell["parameters"]
    if validation.is_sound(parameters, module, _parameter_types):
        return []
    return validation.problems(parameters, _parameter_types(module), "cell.parameters.")


@cache
def _parameter_types(module: str) -> Mapping[str, Any]:
    """A schema of the parameters of cells of a workload, see `cells.matrix`."""
    from siliconprof.store import validation

    known = module in plugins.names("workloads")
    own = plugins.load("workloads", module).PARAMETERS if known else {}
    return {
        "properties": {
            **validation.types_alone({"properties": own})["properties"],
            "capture": {"type": "string"},
        },
        "patternProperties": {"^dataset_": {"type": ["integer", "string", "null"]}},
    }


def _point_problems(record: Mapping[str, Any]) -> Iterator[str]:
    """What no schema expresses: types that the workload declares, times that no clock gives."""
    if record["status"] == "ok" and not record["points"]:
        yield "status: ok, and there is no point"
    for index, point in enumerate(record["points"]):
        for line in declarations.problems(record["cell"]["module"], point["params"]):
            yield f"points.{index}.params.{line}"
        for name, values in point["times"].items():
            least = min((value for value in values if value), default=1.0)
            if least < SHORTEST_S:
                yield (
                    f"points.{index}.times.{name}: has {least!r}; expected seconds, 0 or at least "
                    f"{SHORTEST_S:g}, a clock's nanosecond shared by a thousand launches"
                )


def write(record: dict[str, Any], path: Path, history: Path | None) -> str:
    """Seal and store a record; returns its SHA-256.

    Args:
        history: the folder `results/history`, or None to save no second copy.

    Raises:
        ValueError: the record violates its schema, which is a defect of this program.
        CannotWrite: one line.
    """
    record["sha256"] = content_sha256(record)
    problems = schema_problems(record)
    if problems:
        raise ValueError("record breaks its schema: " + "; ".join(problems[:5]))
    text = json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n"
    if history is not None:
        keep_in_history(history / cell_path(record), record["sha256"], text)
    temporary.write(path, text)
    return record["sha256"]


def read(path: Path, check_schema: bool = True, in_place: bool = False) -> dict[str, Any]:
    """A record, its file checked.

    Args:
        in_place: its path must be that of its own cell: another one's numbers must not stand there.

    Raises:
        OtherVersion: it is of another schema or method; one line naming the file.
        UserError: the same when it is not JSON, was altered, violates the schema, or is misplaced.
    """
    try:
        record = documents.read(path)
        if not isinstance(record, dict) or "sha256" not in record:
            raise ValueError("no `sha256` of its own content")
        cell = record.get("cell")
        if not isinstance(cell, dict) or not all(isinstance(cell.get(axis), str) for axis in AXES):
            raise ValueError("no `cell` with all its axes")
        if content_sha256(record) != record["sha256"]:
            raise ValueError("its content does not match its own `sha256`")
        refuse_other_versions(record)
        if check_schema and (problems := schema_problems(record)):
            raise ValueError(problems[0])
    except OSError as error:
        raise UserError(f"{path}: damaged record: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{path}: damaged record: {error}") from None
    except UserError as error:
        raise type(error)(f"{path}: {error}") from None
    own = cell_path(record)
    if in_place and "/".join(path.with_suffix("").parts[-len(AXES) :]) != own:
        raise UserError(f"{path}: misplaced record: it is that of the cell {own}")
    return record


def refuse_other_versions(record: Mapping[str, Any]) -> None:
    """See that a record's shape and numbers are made as today's; the lines do not name it.

    Raises:
        OtherVersion: they are not.
        UserError: its device is simulated.
    """
    if record.get("emulated") and not os.environ.get(ACCEPT_EMULATED):
        raise UserError(f"record of a device that is {record['emulated']}: no measurement")
    for kind, current in (("schema", SCHEMA_VERSION), ("method", METHOD_VERSION)):
        version = record.get(f"{kind}_version")
        if version != current:
            raise OtherVersion(
                f"record of {kind} version {version!r}; this version reads {current}"
            )


def load(path: Path, check_schema: bool = True, in_place: bool = False) -> Record:
    """A record, checked as by `read`, with its types.

    Raises:
        UserError: see there; or it is not what a record is, which only its schema would have told.
    """
    from siliconprof.store import contents  # 30 ms, and who writes a record needs no types

    document = read(path, check_schema, in_place)
    try:
        return contents.made(contents.Record, document)
    except (TypeError, AttributeError) as error:
        raise UserError(f"{path}: damaged record: {in_one_line(error)}") from None


def cell_path(record: Mapping[str, Any]) -> str:
    """`host/device/backend/workload/scenario/precision` of a record's cell."""
    return "/".join(record["cell"][axis] for axis in AXES)


def keep_in_history(folder: Path, sha256: str, text: str) -> None:
    """Save a record under its hash, unless it is there already, and note that it is the latest.

    Args:
        folder: the history's, of all records of the same cell: `history / cell.path`.

    Raises:
        CannotWrite: one line.
    """
    copy = folder / f"{sha256}.json"
    if copy.exists():
        return
    _note_latest(folder, sha256)
    temporary.write(copy, text)


def _note_latest(folder: Path, sha256: str) -> None:
    with writing(folder / ORDER):
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / ORDER, "a", encoding="ascii") as stream:
            stream.write(f"\n{sha256}")  # the line before may have been cut off
            stream.flush()
            os.fsync(stream.fileno())


def restore(path: Path, copy: Path) -> None:
    """Put a record of the history back at its cell's path; it is the latest from now on.

    Raises:
        CannotWrite: one line.
    """
    _note_latest(copy.parent, copy.stem)
    temporary.write(path, copy.read_text(encoding="utf-8"))


def earlier(folder: Path, sha256: str = "") -> list[Path]:
    """The records of a cell in the history but for this one, newest first.

    In the order in which they were saved or given back, since a clock may have been set meanwhile;
    those that are not in that order count as older, sorted by their own `started_at`.
    """
    others = [path for path in folder.glob("*.json") if path.stem != sha256]
    try:
        lines = (folder / ORDER).read_text(encoding="ascii", errors="replace").split()
    except OSError:
        lines = []
    place = {line: number for number, line in enumerate(lines)}

    def order(path: Path) -> tuple[int, str]:
        return (place[path.stem], "") if path.stem in place else (-1, _started_at(path))

    return sorted(others, key=order, reverse=True)


def _started_at(path: Path) -> str:
    """When a saved record was measured; a copied file's own time does not show it."""
    try:
        return str(documents.read(path)["started_at"])
    except (ValueError, KeyError, TypeError, OSError):
        return ""
