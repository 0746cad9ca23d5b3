"""A host's noise floor: by how much processes of one and the same cell differ on it.

    siliconprof noise-floor [--cells PATTERN ...] [-n 12]    measure some cells so often, and keep
    siliconprof noise-floor --from FOLDER                    take processes that are there already

Kept in `results/noise-floor/{host}.json`, where `siliconprof compare` reads it: with it a ratio
of single processes has an error, if a wide one. Every call adds a run, so that what differs from
day to day comes in as well.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from siliconprof import documents, inference, replicate
from siliconprof.errors import UserError, in_one_line, stage
from siliconprof.record import METHOD_VERSION, write_atomically
from siliconprof.result_sets import Measured, load

VERSION = 1
LEAST_VALUES = inference.LEAST_PROCESSES  # fewer say little of a spread
PROCESSES = 12
METHOD_OF_OLD_FLOORS = 2  # before a figure said which method made it
KEYS = ("cell", "device", "backend", "point", "metric", "group", "values")


@dataclass(frozen=True)
class Floor:
    """What A/A runs on one host have shown."""

    path: Path
    host: str
    figures: Sequence[Mapping[str, Any]]  # of today's method, in the order of the runs

    def deviation(
        self, measured: Measured, point: str, metric: str
    ) -> tuple[inference.Estimate, str] | None:
        """(error of one process of a point, where that is from); None when nothing is known.

        The point's own spread where it was measured, else the widest that any point of the same
        device and backend has in this metric. For records of today's method, as the figures are.
        """
        spreads = self._spreads(measured.cell, metric)
        own = spreads.get((measured.path, point))
        found = own or max(spreads.values(), key=lambda spread: spread.error, default=None)
        if found is None:
            return None
        of = "this point" if own else f"the noisiest of {len(spreads)} points"
        share = math.expm1(found.error)
        return found, f"A/A processes of {of} differ by {share:.1%} on {self.host}"

    def _spreads(
        self, cell: Mapping[str, Any], metric: str
    ) -> dict[tuple[str, str], inference.Estimate]:
        """(cell, point) -> deviation of one process, of the code and versions last measured."""
        newest: dict[tuple[str, str], str] = {}
        logs: dict[tuple[str, str, str], list[float]] = {}
        for figure in self.figures:
            if (figure["device"], figure["backend"]) != (cell["device"], cell["backend"]):
                continue
            if figure["metric"] != metric:
                continue
            where = figure["cell"], figure["point"]
            newest[where] = figure["group"]
            values = logs.setdefault((*where, figure["group"]), [])
            values += [math.log(value) for value in figure["values"] if value > 0]
        kept = {where: logs[(*where, group)] for where, group in newest.items()}
        return {w: inference.spread(v) for w, v in kept.items() if len(v) >= LEAST_VALUES}


def floor_path(results: Path, host: str) -> Path:
    """Where a host's noise floor lies."""
    return results / "noise-floor" / f"{host}.json"


def read(path: Path) -> Floor:
    """A noise floor.

    Raises:
        UserError: the file is missing or is none.
    """
    try:
        document = documents.read(path)
        version = document["floor_version"]
        if version != VERSION:
            raise UserError(
                f"{path}: noise floor of version {version!r}; this version reads {VERSION}"
            )
        figures = [figure for run in document["runs"] for figure in run["figures"]]
        for figure in figures:
            missing = [key for key in KEYS if key not in figure]
            if missing:
                raise KeyError(", ".join(missing))
            if any(float(value) != value for value in figure["values"]):
                raise ValueError("a figure that is no number")
            if any(not isinstance(figure[key], str) for key in KEYS[:-1]):
                raise ValueError("a name that is no text")
        todays = [
            figure
            for figure in figures
            if figure.get("method_version", METHOD_OF_OLD_FLOORS) == METHOD_VERSION
        ]
        return Floor(path, document["host"], todays)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: damaged noise floor: {in_one_line(error)}; delete it and run `siliconprof noise-floor`"
        ) from None


def figures(cells: Iterable[Measured]) -> list[dict[str, Any]]:
    """What the processes of some cells showed, for a run of the file."""
    return [
        {
            "cell": measured.path,
            "device": measured.cell["device"],
            "backend": measured.cell["backend"],
            "point": point,
            "metric": metric,
            "group": measured.group,
            "method_version": measured.newest["method_version"],
            "values": [value for _, value in values],
            "records": [data["sha256"] for data in measured.processes],
        }
        for measured in cells
        for (point, metric), values in measured.figures(memory=True).items()
    ]


def add(results: Path, source: Path) -> list[Path]:
    """Add what lies in a folder of processes to the floors of their hosts; the files.

    Raises:
        UserError: no records, or too few processes of every cell.
    """
    found = load(source, {})
    enough = [cell for cell in found.cells if len(cell.processes) >= LEAST_VALUES]
    if not enough:
        most = max((len(cell.processes) for cell in found.cells), default=0)
        raise UserError(
            f"{source}: {most} processes of a cell at most; a noise floor needs {LEAST_VALUES}"
        )
    paths = []
    for host in sorted({cell.cell["host"] for cell in enough}):
        path = floor_path(results, host)
        document: dict[str, Any] = {"floor_version": VERSION, "host": host, "runs": []}
        if path.exists():
            read(path)  # never add to a damaged one
            document = documents.read(path)
        run: dict[str, Any] = {
            "added_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "source": source.as_posix(),
            "figures": figures(cell for cell in enough if cell.cell["host"] == host),
        }
        known = {sha for old in document["runs"] for f in old["figures"] for sha in f["records"]}
        if known & {sha for figure in run["figures"] for sha in figure["records"]}:
            raise UserError(f"{path}: the processes of {source} are in it already")
        document["runs"].append(run)
        write_atomically(path, json.dumps(document, indent=1, sort_keys=True) + "\n")
        paths.append(path)
    return paths


def lines(path: Path) -> list[str]:
    """A floor for a person: how much processes of each point differ."""
    floor = read(path)
    found = [f"{path}:"]
    seen: dict[tuple[str, str, str], list[float]] = {}
    for figure in floor.figures:
        seen.setdefault((figure["cell"], figure["point"], figure["metric"]), []).extend(
            math.log(value) for value in figure["values"] if value > 0
        )
    for (cell, point, metric), logs in seen.items():
        if len(logs) >= LEAST_VALUES and not metric.endswith("_bytes"):
            share = math.expm1(inference.spread(logs).error)
            found.append(f"  {share:6.1%}  {cell} {point} {metric} ({len(logs)} processes)")
    return found


def default_cells(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Paths of a backend's quickest kernel and its quickest training, for every backend."""
    chosen: dict[tuple[str, str, bool], Mapping[str, Any]] = {}
    for entry in sorted(entries, key=lambda entry: entry["expected_s"]):
        cell = entry["cell"]
        if entry["state"] != "unsupported":
            chosen.setdefault((cell["device"], cell["backend"], cell["trainer"] is None), entry)
    return [replicate.cell_path(entry["cell"]) for entry in chosen.values()]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure or take A/A processes, and keep what they say."""
    parser = argparse.ArgumentParser(
        prog="siliconprof noise-floor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--from", dest="source", type=Path, help="processes that are there already")
    replicate.add_cell_arguments(parser)
    parser.add_argument("-n", type=int, default=PROCESSES, help=f"processes ({PROCESSES})")
    arguments = parser.parse_args(argv)
    results = arguments.results
    if arguments.source:
        paths = add(results, arguments.source)
    else:
        if arguments.n < LEAST_VALUES:
            raise UserError(f"-n {arguments.n}: a noise floor needs {LEAST_VALUES} processes")
        this = replicate.Side.here()
        cells = replicate.chosen_cells(this, arguments, default_cells)
        folder = results / "replicates" / replicate.stamp("noise-floor")
        for line in replicate.measure([(this, cells)], arguments.n, folder):
            print(f"not measured: {line}", file=sys.stderr)
        paths = add(results, folder / "a")
    print("\n".join(line for path in paths for line in lines(path)))
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
