"""One side of a comparison: the records of a folder or bundle, as cells with their processes.

`history/` has every record ever made of a cell. Records of the same cell, code and versions form a
group of processes; the newest group that meets the conditions is compared.
"""

from __future__ import annotations

import fnmatch
import hashlib
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError
from siliconprof.remote.bundle_check import read_bundle
from siliconprof.stats import statistics
from siliconprof.store import contents, record
from siliconprof.store.cell import AXES, Cell, canonical_json
from siliconprof.store.contents import WHOLE, Point, Record
from siliconprof.store.validation import nearest

Figures = list[tuple[str, float]]  # (start time, figure) of each process
BESIDE = ("warmup_step_s", "forward_only_s", "free_running_step_s", "handed_over_s")
ENVIRONMENT = ("system", "packages", "declared", "python", "power_source")
OTHER_KEYS = ("commit", "python")  # that a condition may name besides axes and packages


@dataclass(frozen=True)
class Measured:
    """One cell of a side: its records of the same code and versions, in the order of time."""

    newest: Record  # whatever its status
    records: Sequence[Record]

    @property
    def processes(self) -> list[Record]:
        """The records that hold figures."""
        return [data for data in self.records if data.status == "ok"]

    @property
    def cell(self) -> Cell:
        """The measured cell."""
        return self.newest.cell

    @property
    def path(self) -> str:
        """`host/device/backend/…`"""
        return self.cell.path

    @property
    def group(self) -> str:
        """Hex SHA-256 of what the records of a group have in common."""
        return hashlib.sha256(_group(self.newest).encode()).hexdigest()

    def figures(self, memory: bool = False) -> dict[tuple[str, str], Figures]:
        """(point, metric) -> (start time, figure) of every process, see `point_figures`.

        The point is its parameters as canonical JSON.
        """
        figures = defaultdict[tuple[str, str], Figures](list)
        for data in self.processes:
            for point in data.points:
                for metric, value in point_figures(point, memory).items():
                    figures[point.name, metric].append((data.started_at, value))
        return figures

    def flags(self, code: str) -> int:
        """How many of the processes have a flag."""
        return sum(code in data.codes for data in self.processes)

    @property
    def device(self) -> tuple[str, str]:
        """Label of the host and id of the device."""
        return self.cell.host, self.cell.device

    @property
    def machine(self) -> tuple[str, str | None]:
        """Label and node: figures of one machine can be pairs."""
        return self.cell.host, self.newest.environment.node


@dataclass(frozen=True)
class ResultSet:
    """One side of a comparison."""

    source: Path
    conditions: Mapping[str, str]
    cells: Sequence[Measured]
    left_out: Sequence[str] = field(default_factory=list)  # one line each

    def values(self, axis: str) -> list[str]:
        """The values of an axis in these cells, sorted."""
        return sorted({getattr(measured.cell, axis) for measured in self.cells})

    def describe(self) -> dict[str, Any]:
        """The source, conditions, hosts, versions and counts of this side."""
        newest = [measured.newest for measured in self.cells]
        versions = {
            f"{name} {data.environment.packages[name]}"
            for data in newest
            for name in ("torch", "mlx")
            if data.environment.packages.get(name) and data.cell.backend.startswith(name)
        }
        commits = {str(data.environment.git_commit) for data in newest}
        return {
            "source": str(self.source),
            "conditions": dict(self.conditions),
            "hosts": self.values("host"),
            "versions": sorted(versions),
            "commits": sorted(commits),
            "cells": len(self.cells),
            "processes": sum(len(measured.processes) for measured in self.cells),
        }


def point_figures(point: Point, memory: bool = False) -> dict[str, float]:
    """Metric -> one process's figure of a point; for every metric, less is better.

    The metrics are the whole step of a training, the synchronised call of a kernel, or all times of
    a kernel's launch: medians in seconds. `device_peak_bytes` is in bytes, where it was counted.
    """
    times = point.times
    whole = next((name for name in WHOLE if times.get(name)), None)
    names = [whole] if whole else [name for name in times if name not in BESIDE]
    figures = {name: statistics.median(times[name]) for name in names if times[name]}
    peak = point.memory.device_peak_bytes
    if memory and peak is not None:
        figures["device_peak_bytes"] = float(peak)
    return figures


# -- reading -----------------------------------------------------------------------------------


def results_folder(source: Path) -> Path:
    """The folder that holds `records/` or `history/`; in a checkout it is `results/`.

    Raises:
        UserError: there is none, or it has two sides.
    """
    for folder in (source / "results", source):
        if (folder / "records").is_dir() or (folder / "history").is_dir():
            return folder
    if not source.exists():
        raise UserError(f"{source}: no such file or folder")
    if sides(source):
        raise UserError(f"{source}: has two sides; name one of {source / 'a'} and {source / 'b'}")
    raise UserError(
        f"{source}: no records in it; expected a checkout's results/, a folder of "
        "`siliconprof replicate`, or a bundle of `siliconprof pack`"
    )


def sides(source: Path) -> tuple[Path, Path] | None:
    """Both sides of a folder of `siliconprof replicate --against`, None for any other folder."""
    folders = source / "a", source / "b"
    return folders if all((side / "records").is_dir() for side in folders) else None


def _stored(source: Path, left_out: list[str]) -> Iterator[tuple[bool, Record]]:
    """(whether it is current, record) of a folder, without records that this version cannot read.

    Raises:
        UserError: records are damaged, one line for each.
    """
    folder = results_folder(source)
    damaged = []
    checked: set[str] = set()  # a record and its copy in the history: the schema takes longest
    for part, depth in (("records", len(AXES) - 1), ("history", len(AXES))):
        for path in sorted((folder / part).glob("*/" * depth + "*.json")):
            try:
                data = record.read(path, check_schema=False)
                problems = [] if data["sha256"] in checked else record.schema_problems(data)
                if problems:
                    raise UserError(f"{path}: damaged record: {problems[0]}")
            except record.OtherVersion as error:
                left_out.append(str(error))
            except UserError as error:
                damaged.append(str(error))
            else:
                checked.add(data["sha256"])
                own = record.cell_path(data)
                place = path.with_suffix("") if part == "records" else path.parent
                if place.relative_to(folder / part).as_posix() == own:
                    yield part == "records", contents.made(Record, data)
                else:
                    left_out.append(f"{path}: misplaced record: it is that of the cell {own}")
    if damaged:
        raise UserError("\n".join(damaged))


def load(source: Path, conditions: Mapping[str, str], patterns: Sequence[str] = ()) -> ResultSet:
    """One side of a comparison.

    Args:
        conditions: key -> value that records must have, see `value_of`.
        patterns: a cell's path must match one of them; none = every cell.

    Raises:
        UserError: there is no such folder or bundle, records are damaged, or none meets the
            conditions.
    """
    left_out: list[str] = []
    packed = source.is_file()
    if packed and not zipfile.is_zipfile(source):
        raise UserError(f"{source}: neither a folder nor a bundle (a zip)")
    if packed:
        stored = [(True, data) for data in read_bundle(source).records.values()]
    else:
        stored = list(_stored(source, left_out))
    current = {data.sha256 for is_current, data in stored if is_current}
    # by hash: a record and its copy in the history
    everything = list({data.sha256: data for _, data in stored}.values())
    if not everything:
        lines = left_out[:3] or [f"{source}: no records in it"]
        raise UserError("\n".join(lines))
    chosen = _chosen(source, everything, conditions)
    if patterns:
        chosen = [
            data
            for data in chosen
            if any(fnmatch.fnmatchcase(data.cell.path, pattern) for pattern in patterns)
        ]
        if not chosen:
            raise UserError(f"{source}: no cell matches {' or '.join(patterns)}")
    return ResultSet(source, conditions, _grouped(chosen, current), left_out)


# -- choosing ----------------------------------------------------------------------------------


def value_of(data: Record, key: str) -> str | None:
    """A record's value for a key: an axis, `commit`, `python`, or the name of a package."""
    if key in AXES:
        return str(getattr(data.cell, key))
    if key in OTHER_KEYS:
        return data.environment.git_commit if key == "commit" else data.environment.python
    return data.environment.packages.get(key)


def _meets(data: Record, key: str, expected: str) -> bool:
    """Whether values are equal, without a local version (2.13.0+cpu) or the rest of a commit."""
    value = value_of(data, key)
    if value is None:
        return False
    commit = key == "commit" and len(expected) >= 7 and value.startswith(expected)
    return value == expected or value.split("+")[0] == expected or commit


def _chosen(source: Path, records: Sequence[Record], conditions: Mapping[str, str]) -> list[Record]:
    """The records that meet all conditions.

    Raises:
        UserError: a condition's key is unknown, or no record meets a condition.
    """
    packages = {name for data in records for name in data.environment.packages}
    keys = [*AXES, *OTHER_KEYS, *sorted(packages)]
    for key, expected in conditions.items():
        if key not in keys:
            raise UserError(
                f"{source}: unknown key '{key}'{nearest(key, keys)}; expected one of: "
                f"{', '.join(keys)}"
            )
        matching = [data for data in records if _meets(data, key, expected)]
        if not matching:
            values = sorted({str(value_of(data, key)) for data in records})
            raise UserError(
                f"{source}: no record has {key}={expected}; there are: {', '.join(values)}"
            )
        records = matching
    return list(records)


def _group(data: Record) -> str:
    """A text that is equal for records of one group of processes."""
    versions = {key: getattr(data.environment, key) for key in ENVIRONMENT}
    return canonical_json([vars(data.cell), data.code.fingerprint, versions])


def _grouped(records: Sequence[Record], current: set[str]) -> list[Measured]:
    """The group that counts of each cell: that of `records/` if there is one, else the newest."""
    in_order = sorted(records, key=lambda data: (data.cell.path, data.started_at, data.sha256))
    measured = []
    for _, cell in groupby(in_order, key=lambda data: data.cell.path):
        of_cell = list(cell)
        newest = next((data for data in of_cell if data.sha256 in current), of_cell[-1])
        same = _group(newest)
        group = [data for data in of_cell if _group(data) == same]
        measured.append(Measured(newest, group))
    return measured
