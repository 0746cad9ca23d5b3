"""A host's noise floor: how much processes of the same cell differ on it.

    siliconprof noise-floor                                  the last run's main cells, in a minute
    siliconprof noise-floor --cells PATTERN ... [-n 12]      measure some cells n times each
    siliconprof noise-floor --from FOLDER                    use processes that exist already

The main cells are of each backend the quickest training, plain and in fp32 where there is one, and
the quickest operation that computes something: the floor of any other point is that of the noisiest
of its backend. Of these as many are measured, and as often from five times on, as a minute allows.
It is stored in `results/noise-floor/{host}.json`, where `siliconprof compare` reads it: with it a
ratio of single processes has an error, though a wide one. Every call adds a run, so that the floor
covers differences from day to day too.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from siliconprof import options
from siliconprof.compare import replicate
from siliconprof.compare.replicate import Entry
from siliconprof.compare.result_sets import Measured, load
from siliconprof.errors import UserError, stage
from siliconprof.hosts.environment import node_id
from siliconprof.store import documents, matrix_file, record, temporary
from siliconprof.store.noise_floors import LEAST_VALUES, VERSION, floor_path, read

PROCESSES = 12
MOST_S = 60.0  # of the main cells, all in all
SHORT_S = 0.5  # of one of them, in place of its own budget


def figures(cells: Iterable[Measured]) -> list[dict[str, Any]]:
    """The figures of the processes of some cells, for a run in the file."""
    return [
        {
            "cell": measured.path,
            "device": measured.cell.device,
            "backend": measured.cell.backend,
            "point": point,
            "metric": metric,
            "group": measured.group,
            "method_version": measured.newest.method_version,
            "values": [value for _, value in values],
            "records": [data.sha256 for data in measured.processes],
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
    for host in sorted({cell.cell.host for cell in usable}):
        path = floor_path(results, host)
        document: dict[str, Any] = {"floor_version": VERSION, "host": host, "runs": []}
        if path.exists():
            read(path)  # never add to a damaged file
            document = documents.read(path)
        run: dict[str, Any] = {
            "added_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "source": source.as_posix(),
            "figures": figures(cell for cell in usable if cell.cell.host == host),
        }
        stored = {sha for old in document["runs"] for f in old["figures"] for sha in f["records"]}
        if stored & {sha for figure in run["figures"] for sha in figure["records"]}:
            raise UserError(f"{path}: it has the processes of {source} already")
        document["runs"].append(run)
        temporary.write(path, json.dumps(document, indent=1, sort_keys=True) + "\n")
        paths.append(path)
    return paths


def lines(path: Path) -> list[str]:
    """A noise floor as text: how much processes of each point differ."""
    floor = read(path)
    texts = [f"{path}:"]
    for place in dict.fromkeys((one.device, one.backend, one.metric) for one in floor.figures):
        for (cell, point), spread in floor.spreads(*place).items():
            metric, share = place[-1], math.expm1(spread.error)
            if not metric.endswith("_bytes"):
                texts.append(
                    f"  {share:6.1%}  {cell} {point} {metric} ({spread.df + 1:.0f} processes)"
                )
    return texts


def last_run(results: Path) -> list[Entry]:
    """The cells of the last run that were measured here, each with the seconds that it took."""
    if not (results / "matrix.json").is_file():
        return []
    entries: list[Entry] = []
    for planned in matrix_file.read(results / "matrix.json").cells:
        path = results / "records" / f"{planned.cell.path}.json"
        data = record.load(path, check_schema=False, in_place=True) if path.is_file() else None
        if data and data.status == "ok" and data.environment.node == node_id():
            entries.append(
                {
                    "cell": vars(planned.cell),
                    "environment": data.environment.declared,
                    "state": "measured",
                    "expected_s": data.accounting.get("child_wall_s") or 0.0,
                    "computes": any(point.flops for point in data.points),
                }
            )
    return entries


def main_cells(entries: Sequence[Entry]) -> list[Entry]:
    """Of every backend the quickest training, then the quickest operation of each."""

    def order(entry: Entry) -> tuple[bool, bool, bool, float]:
        cell, computes = entry["cell"], entry.get("computes", True)
        plain = cell["trainer"] in (None, "plain")
        return not computes, cell["precision"] != "fp32", not plain, entry["expected_s"]

    quickest: dict[tuple[bool, str, str], Entry] = {}
    for entry in sorted(entries, key=order):
        cell = entry["cell"]
        if entry["state"] != "unsupported":
            quickest.setdefault((not cell["trainer"], cell["device"], cell["backend"]), entry)
    return [hurried(quickest[key]) for key in sorted(quickest)]


def hurried(entry: Entry) -> Entry:
    """The same in less time: processes differ by more than what a short one knows less exactly."""
    timing = dict(entry["cell"]["timing"])
    timing |= {"budget_s": min(timing.get("budget_s", SHORT_S), SHORT_S), "retries": 0}
    return dict(entry) | {"cell": dict(entry["cell"]) | {"timing": timing}}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure or read A/A processes, and add them to the noise floor."""
    parser = options.parser("siliconprof noise-floor", __doc__)
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
        named = arguments.cells or arguments.cell
        if named:
            cells = replicate.chosen_cells(this, arguments)
        else:
            another = arguments.configfile != replicate.CONFIG
            measured = [] if another else last_run(results)
            cells = main_cells(measured or this.plan(arguments.configfile))
        if not cells:
            raise UserError("none of the experiment's cells can run here")
        folder = results / "replicates" / replicate.stamp("noise-floor")
        within_s = math.inf if named else MOST_S
        for line in replicate.measure([(this, cells)], arguments.n, folder, within_s):
            print(f"not measured: {line}", file=sys.stderr)
        paths = add(results, folder / "a")
    print("\n".join(line for path in paths for line in lines(path)))
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
