"""A host's noise floor: how much processes of the same cell differ on it.

    siliconprof noise-floor [--cells PATTERN ...] [-n 12]    measure some cells n times each
    siliconprof noise-floor --from FOLDER                    use processes that exist already

It is stored in `results/noise-floor/{host}.json`, where `siliconprof compare` reads it: with it a
ratio of single processes has an error, though a wide one. Every call adds a run, so that the floor
covers differences from day to day too.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from siliconprof.compare import replicate
from siliconprof.compare.result_sets import Measured, load
from siliconprof.errors import UserError, stage
from siliconprof.stats import inference
from siliconprof.store import documents
from siliconprof.store.noise_floors import LEAST_VALUES, VERSION, floor_path, read
from siliconprof.store.record import write_atomically

PROCESSES = 12


def figures(cells: Iterable[Measured]) -> list[dict[str, Any]]:
    """The figures of the processes of some cells, for a run in the file."""
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
    """Add the processes in a folder to the noise floors of their hosts.

    Returns:
        The files of those noise floors.

    Raises:
        UserError: there are no records, too few processes of every cell, or they were added before.
    """
    result_set = load(source, {})
    usable = [cell for cell in result_set.cells if len(cell.processes) >= LEAST_VALUES]
    if not usable:
        most = max((len(cell.processes) for cell in result_set.cells), default=0)
        raise UserError(
            f"{source}: at most {most} processes per cell; a noise floor needs {LEAST_VALUES}"
        )
    paths = []
    for host in sorted({cell.cell["host"] for cell in usable}):
        path = floor_path(results, host)
        document: dict[str, Any] = {"floor_version": VERSION, "host": host, "runs": []}
        if path.exists():
            read(path)  # never add to a damaged file
            document = documents.read(path)
        run: dict[str, Any] = {
            "added_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "source": source.as_posix(),
            "figures": figures(cell for cell in usable if cell.cell["host"] == host),
        }
        stored = {sha for old in document["runs"] for f in old["figures"] for sha in f["records"]}
        if stored & {sha for figure in run["figures"] for sha in figure["records"]}:
            raise UserError(f"{path}: it has the processes of {source} already")
        document["runs"].append(run)
        write_atomically(path, json.dumps(document, indent=1, sort_keys=True) + "\n")
        paths.append(path)
    return paths


def lines(path: Path) -> list[str]:
    """A noise floor as text: how much processes of each point differ."""
    floor = read(path)
    texts = [f"{path}:"]
    logs_by_point: dict[tuple[str, str, str], list[float]] = {}
    for figure in floor.figures:
        logs_by_point.setdefault((figure["cell"], figure["point"], figure["metric"]), []).extend(
            math.log(value) for value in figure["values"] if value > 0
        )
    for (cell, point, metric), logs in logs_by_point.items():
        if len(logs) >= LEAST_VALUES and not metric.endswith("_bytes"):
            share = math.expm1(inference.spread(logs).error)
            texts.append(f"  {share:6.1%}  {cell} {point} {metric} ({len(logs)} processes)")
    return texts


def default_cells(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Paths of a backend's quickest kernel and its quickest training, for every backend."""
    chosen: dict[tuple[str, str, bool], Mapping[str, Any]] = {}
    for entry in sorted(entries, key=lambda entry: entry["expected_s"]):
        cell = entry["cell"]
        if entry["state"] != "unsupported":
            chosen.setdefault((cell["device"], cell["backend"], cell["trainer"] is None), entry)
    return [replicate.cell_path(entry["cell"]) for entry in chosen.values()]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure or read A/A processes, and add them to the noise floor."""
    parser = argparse.ArgumentParser(
        prog="siliconprof noise-floor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--from", dest="source", type=Path, help="a folder of processes to use")
    replicate.add_cell_arguments(parser)
    parser.add_argument("-n", type=int, default=PROCESSES, help=f"processes (default: {PROCESSES})")
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
