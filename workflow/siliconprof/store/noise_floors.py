"""The noise floors of hosts as other stages read them; `compare.noise_floor` measures them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError, in_one_line
from siliconprof.stats import inference
from siliconprof.store import contents, documents
from siliconprof.store.cell import AXES
from siliconprof.store.record import METHOD_VERSION

VERSION = 1
LEAST_VALUES = inference.LEAST_PROCESSES  # fewer say little of a spread
NAMES = ("cell", "device", "backend", "point", "metric", "group")


class Figure(contents.Part):
    """What the processes of one run yielded for one point of a cell, in one metric."""

    cell: str  # its path
    device: str
    backend: str
    point: str  # its parameters as canonical JSON
    metric: str
    group: str  # of code and versions
    values: Sequence[float]  # one per process
    method_version: int = 2  # that of figures which do not say it

    def __post_init__(self) -> None:
        if any(not isinstance(value, str) for name, value in vars(self).items() if name in NAMES):
            raise ValueError("a name is not text")
        if any(float(value) != value for value in self.values):
            raise ValueError("a figure is not a number")


@dataclass(frozen=True)
class Floor:
    """The noise floor of one host, measured by A/A runs."""

    path: Path
    host: str
    figures: Sequence[Figure]  # of today's method, in the order of the runs

    def deviation(
        self, cell: Mapping[str, Any], point: str, metric: str
    ) -> tuple[inference.Estimate, str] | None:
        """(deviation of one process's logarithm, its source); None when none was measured.

        The point's own spread where it was measured, else the widest that any point of the same
        device and backend has in this metric. For records of today's method only.

        Args:
            cell: its axes, of the record or of a row of a table.
        """
        spreads = self.spreads(cell["device"], cell["backend"], metric)
        own = spreads.get(("/".join(cell[axis] for axis in AXES), point))
        estimate = own or max(spreads.values(), key=lambda spread: spread.error, default=None)
        if estimate is None:
            return None
        whose = "this point" if own else f"the noisiest of {len(spreads)} points"
        share = math.expm1(estimate.error)
        return estimate, f"A/A processes of {whose} differ by {share:.1%} on {self.host}"

    def spreads(
        self, device: str, backend: str, metric: str
    ) -> dict[tuple[str, str], inference.Estimate]:
        """(cell, point) -> deviation of one process, of the code and versions last measured."""
        newest: dict[tuple[str, str], str] = {}
        logs: dict[tuple[str, str, str], list[float]] = {}
        for figure in self.figures:
            if (figure.device, figure.backend, figure.metric) != (device, backend, metric):
                continue
            where = figure.cell, figure.point
            newest[where] = figure.group
            values = logs.setdefault((*where, figure.group), [])
            values += [math.log(value) for value in figure.values if value > 0]
        latest = {where: logs[(*where, group)] for where, group in newest.items()}
        return {w: inference.spread(v) for w, v in latest.items() if len(v) >= LEAST_VALUES}


def floor_path(results: Path, host: str) -> Path:
    """The path of a host's noise floor."""
    return results / "noise-floor" / f"{host}.json"


def read(path: Path) -> Floor:
    """A noise floor.

    Raises:
        UserError: the file is missing, damaged or of another version.
    """
    try:
        document = documents.read(path)
        version = document["floor_version"]
        if version != VERSION:
            raise UserError(
                f"{path}: noise floor of version {version!r}; this version reads {VERSION}"
            )
        figures = [contents.made(Figure, one) for run in document["runs"] for one in run["figures"]]
        todays = [figure for figure in figures if figure.method_version == METHOD_VERSION]
        return Floor(path, document["host"], todays)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: damaged noise floor: {in_one_line(error)}; delete it and run `siliconprof noise-floor`"
        ) from None


def by_host(paths: Iterable[Path]) -> dict[str, Floor]:
    """Host -> its noise floor.

    Raises:
        UserError: see `read`.
    """
    return {floor.host: floor for floor in map(read, paths)}
