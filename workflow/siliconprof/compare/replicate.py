"""Measures the same cells in several fresh processes, as `siliconprof compare` needs them.

    siliconprof replicate --cells '*/matmul*/*' -n 10
    siliconprof replicate --cells '*/matmul*/*' -n 10 --against ../other-checkout
    siliconprof replicate --cells '*/matmul*/*' -n 10 --python-b ../new-torch/bin/python

Processes differ by far more than the interval of one process, so a comparison needs several; and
the host drifts, so both sides are measured in turn: A B, B A, A B, ... Side A is this checkout
with this Python; side B another checkout, another Python, or both. Every process is a cell of
`siliconprof.measure`, with the host to itself. The records go to `results/replicates/{name}/a` and
`…/b`, each a folder that `compare` reads; the pipeline's records are not changed. Energy and
captures are left out: they take time and are not compared.

The cells are those of the experiment, or JSON as `siliconprof plan --json` prints it.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from siliconprof import options
from siliconprof.errors import UserError, stage
from siliconprof.plugins import PACKAGE_DIR
from siliconprof.stats.inference import LEAST_PROCESSES
from siliconprof.store import names, record
from siliconprof.store.cell import AXES, Cell, canonical_json

CONFIG = Path("config/config.yaml")
PROCESSES = 10  # per side: even with one disturbed process in ten, 10 % more work is detected
CHECKOUT = PACKAGE_DIR.parent.parent

Entry = Mapping[str, Any]  # a cell of the plan: `cell`, `environment`, `state`, `why`, ...


@dataclass(frozen=True)
class Side:
    """The checkout and the Python that measure."""

    checkout: Path
    python: str

    @classmethod
    def here(cls) -> Side:
        """This checkout, this Python."""
        return cls(CHECKOUT, sys.executable)

    def call(self, cwd: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a module of this side's package."""
        inherited = os.environ.get("PYTHONPATH")
        path = str(self.checkout / "workflow") + (os.pathsep + inherited if inherited else "")
        return subprocess.run(
            [self.python, "-m", f"siliconprof.{module}", *arguments],
            cwd=cwd,
            env=dict(os.environ) | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    def plan(self, configfile: Path) -> list[Entry]:
        """The cells of an experiment as this side sees them.

        Raises:
            UserError: this side cannot plan it; the line ends with its message.
        """
        done = self.call(
            self.checkout, "cells.plan", "--configfile", str(configfile.resolve()), "--json"
        )
        if done.returncode:
            raise UserError(
                f"{self.checkout} with {self.python}: no plan for {configfile}: "
                f"{_last_line(done) or 'no message'}; give cells with --cell instead"
            )
        entries: list[Entry] = json.loads(done.stdout)["cells"]
        return entries


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    """What a process said last on standard error; empty where it said nothing."""
    return next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")


# -- which cells -------------------------------------------------------------------------------


def lean(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The cell without energy and capture, which take time and are not compared."""
    parameters = {key: value for key, value in cell["parameters"].items() if key != "capture"}
    timing = dict(cell["timing"])
    if "energy_window_s" in timing:
        timing["energy_window_s"] = 0
    return dict(cell) | {"parameters": parameters, "timing": timing}


def chosen_cells(side: Side, arguments: argparse.Namespace) -> list[Entry]:
    """The cells that the command line asks for.

    Raises:
        UserError: no cell is chosen, a pattern matches none, or no chosen cell can run here.
    """
    if arguments.cell:
        cells = [json.loads(Cell.from_json(text).to_json()) for text in arguments.cell]
        return [{"cell": cell, "environment": {}, "state": "given"} for cell in cells]
    if not arguments.cells:
        raise UserError(
            "no cells are chosen; pass --cells PATTERN (`siliconprof plan --json` lists the cells)"
        )
    entries = {record.cell_path(entry): entry for entry in side.plan(arguments.configfile)}
    matching: set[str] = set()
    for pattern in arguments.cells:
        found = fnmatch.filter(entries, pattern)
        if not found:
            raise UserError(
                f"--cells '{pattern}': matches no cell of {arguments.configfile}; its cells: "
                f"{', '.join([*entries][:3]) or 'there are none'}"
            )
        matching.update(found)
    chosen = [entry for path, entry in entries.items() if path in matching]
    possible = [entry for entry in chosen if entry["state"] != "unsupported"]
    if not possible:
        raise UserError(f"{record.cell_path(chosen[0])}: cannot run here: {chosen[0]['why']}")
    return possible


def counterparts(entries: Sequence[Entry], other: Side, configfile: Path) -> list[Entry]:
    """The same cells as another side sees them, under this side's label for the host.

    Raises:
        UserError: the other side lacks a cell.
    """

    def key(entry: Entry) -> tuple[str, ...]:
        return tuple(entry["cell"][axis] for axis in AXES if axis != "host")

    by_key = {key(entry): entry for entry in other.plan(configfile)}
    entries_b: list[Entry] = []
    for entry in entries:
        counterpart = by_key.get(key(entry))
        if counterpart is None or counterpart["state"] == "unsupported":
            reason = "no such cell" if counterpart is None else counterpart["why"]
            raise UserError(f"{other.checkout}: {'/'.join(key(entry))}: {reason}")
        cell = dict(counterpart["cell"]) | {"host": entry["cell"]["host"]}
        entries_b.append(dict(counterpart) | {"cell": cell})
    return entries_b


# -- measuring ---------------------------------------------------------------------------------


def measure(
    sides: Sequence[tuple[Side, Sequence[Entry]]], n: int, folder: Path, within_s: float = math.inf
) -> list[str]:
    """Measure the cells of one or two sides in turn, n processes each.

    A cell that failed is not measured again. Both sides read the data of this checkout: they
    run in an empty folder that has only `results/data`.

    Args:
        within_s: cells are left out from the end, but for the first, where the first turn shows that
            five turns would take longer; after five, no turn begins that would end later.

    Returns:
        One line for each cell that failed.

    Raises:
        UserError: a side refuses the cell.
    """
    failed: dict[int, str] = {}
    kept, spent_s = list(range(len(sides[0][1]))), 0.0
    with tempfile.TemporaryDirectory(prefix="siliconprof-") as scratch:
        (Path(scratch) / "results").mkdir()
        (Path(scratch) / "results" / "data").symlink_to(CHECKOUT / "results" / "data")
        for turn in range(n):
            if turn >= LEAST_PROCESSES and spent_s * (turn + 1) / turn > within_s:
                break
            taken_s = []
            for index in kept:
                began_s = time.monotonic()
                for which in range(len(sides))[:: -1 if turn % 2 else 1]:
                    side, entries = sides[which]
                    if index in failed:
                        continue
                    into, path = folder / "ab"[which], record.cell_path(entries[index])
                    status, reason = _measure_once(side, entries[index], into, Path(scratch))
                    line = f"{turn + 1}/{n} {into.name} {path}: {status}"
                    print(line, file=sys.stderr, flush=True)
                    if status != "ok":
                        failed[index] = f"{path}: {into.name}: {status}: {reason}"
                taken_s.append(time.monotonic() - began_s)
            spent_s += sum(taken_s)
            while turn == 0 and len(kept) > 1 and LEAST_PROCESSES * sum(taken_s) > within_s:
                kept.pop()
                taken_s.pop()
    return list(failed.values())


def _measure_once(side: Side, entry: Entry, into: Path, scratch: Path) -> tuple[str, str | None]:
    """(status, reason) of one fresh process."""
    output = into.resolve() / "records" / f"{record.cell_path(entry)}.json"
    options = ["--cell", canonical_json(lean(entry["cell"])), "--output", str(output)]
    options += ["--history", str(into.resolve() / "history")]
    options += ["--environment", json.dumps(entry["environment"])]
    done = side.call(scratch, "measure", *options)
    if done.returncode:
        why = _last_line(done) or f"exit {done.returncode}"
        raise UserError(f"{record.cell_path(entry)}: {why}")
    data = json.loads(output.read_text(encoding="utf-8"))
    return data["status"], data["reason"]


# -- command line ------------------------------------------------------------------------------


def stamp(word: str) -> str:
    """A name for a folder: a word and the local time."""
    return f"{word}-{datetime.now():%Y%m%d-%H%M%S}"


def add_cell_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the cells and the folder of the results."""
    parser.add_argument(
        "--cells",
        nargs="+",
        metavar="PATTERN",
        help="cells of the experiment whose path host/device/backend/workload/scenario/precision "
        "matches, * for anything",
    )
    parser.add_argument("--configfile", type=Path, default=CONFIG, help=f"default: {CONFIG}")
    parser.add_argument("--cell", action="append", metavar="JSON", help="a cell; repeatable")
    parser.add_argument("--results", type=Path, default=Path("results"), help="default: results")


def other_side(arguments: argparse.Namespace) -> Side | None:
    """Side B, None where the command line names none.

    Raises:
        UserError: its checkout or its Python does not exist.
    """
    if not arguments.against and not arguments.python_b:
        return None
    checkout = (arguments.against or CHECKOUT).resolve()
    if not (checkout / "workflow" / "siliconprof" / "measure").is_dir():
        raise UserError(f"--against {arguments.against}: no checkout of siliconprof")
    python = arguments.python_b or Path(sys.executable)
    if not os.access(python, os.X_OK) or python.is_dir():
        raise UserError(f"--python-b {python}: no such program")
    return Side(checkout, str(python.absolute()))  # not resolved: a venv's python is a link


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the folder; the exit status is 1 when a cell failed."""
    parser = options.parser("siliconprof replicate", __doc__)
    add_cell_arguments(parser)
    parser.add_argument(
        "-n", type=int, default=PROCESSES, help=f"processes per side (default: {PROCESSES})"
    )
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="side B's code")
    parser.add_argument("--python-b", type=Path, metavar="FILE", help="side B's Python")
    parser.add_argument("--configfile-b", type=Path, help="side B's experiment, where it differs")
    parser.add_argument("--name", help="folder under results/replicates (default: the time)")
    parser.add_argument("--more", action="store_true", help="add to the folder of that name")
    arguments = parser.parse_args(argv)
    if arguments.n < 1:
        raise UserError(f"-n {arguments.n}: at least 1 process a side")
    name = arguments.name or stamp("replicate")
    if not re.fullmatch(names.LABEL, name):
        raise UserError(f"--name {name}: is not a valid name of a folder; use {names.RULE}")
    folder = arguments.results / "replicates" / name
    if folder.exists() and not arguments.more:
        raise UserError(f"{folder}: exists; name another with --name, or add to it with --more")
    this, other = Side.here(), other_side(arguments)
    entries = chosen_cells(this, arguments)
    sides = [(this, entries)]
    if other:
        configfile = arguments.configfile_b or arguments.configfile
        twins = entries if arguments.cell else counterparts(entries, other, configfile)
        sides.append((other, twins))
    try:
        failed = measure(sides, arguments.n, folder)
    except KeyboardInterrupt:
        print(f"interrupted; what was measured is in {folder}", file=sys.stderr)
        return 130
    print(f"{len(entries)} cells, {arguments.n} processes a side: {folder}")
    for line in failed:
        print(f"not measured: {line}")
    if other:
        print(f"next: siliconprof compare {folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(stage(main))
