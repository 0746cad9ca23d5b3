"""Measure once more what other processes disturbed, at the end of a run and within a budget.

    python -m siliconprof.pipeline.retry --matrix F --registry F --budget S --output F

Whatever it was may be over when the last cell has ended. Both records are in results/history, and
the less disturbed one stays at its cell's place. A record that was measured again names the one
before it (`method.instead_of`), so each is followed by one other at most, also where this was killed
in between. Cells with captures are left out: their files lie at one place for both.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from siliconprof.cells import matrix
from siliconprof.errors import UserError, stage
from siliconprof.hosts import registry
from siliconprof.measure import capture
from siliconprof.pipeline import cell_line, remeasure
from siliconprof.session.timing import Plan
from siliconprof.store import matrix_file, record, temporary

FLAG = "contended"
RESULTS = Path("results")
HISTORY = RESULTS / "history"


def disturbance(found: Mapping[str, Any]) -> tuple[int, float]:
    """How much other processes did while a record was made: the more, the larger."""
    cores = found["probes"].get("interference", {}).get("foreign_load_cores")
    return [flag["code"] for flag in found["flags"]].count(FLAG), cores or 0.0


def second(first: Mapping[str, Any]) -> Path | None:
    """The copy of the record that was made in the place of this one; None where there is none."""
    for copy in record.earlier(first, HISTORY):
        try:
            if record.read(copy, check_schema=False)["method"].get("instead_of") == first["sha256"]:
                return copy
        except UserError:  # of an older schema, or damaged
            continue
    return None


def expected_s(found: Mapping[str, Any]) -> float:
    """How long a cell took, but for the time that it waited for others."""
    spent = found["accounting"]
    return (spent.get("wall_s") or 0.0) - (spent.get("waited_for_lock_s") or 0.0)


def measure(planned: matrix.PlannedCell, first: Mapping[str, Any]) -> bool:
    """Measure a cell into the history, as rule `measure` does; whether it came to its end."""
    with temporary.scratch() as folder:
        command = [sys.executable, "-m", "siliconprof.measure", *shlex.split(planned.arguments)]
        command += ["--time-limit", str(Plan.of(planned.cell.timing).time_limit_s)]
        command += ["--history", str(HISTORY), "--keep", str(RESULTS / "kept")]
        command += ["--instead-of", first["sha256"], "--output", str(folder / "record.json")]
        return subprocess.run(command, check=False).returncode == 0


def retry(planned: matrix.PlannedCell, path: Path, left_s: float) -> Mapping[str, Any] | None:
    """The record that stays of a disturbed cell; None where there is no time to measure it again.

    Args:
        path: of its record.
        left_s: seconds of the budget.
    """
    first = record.read_in_place(path, check_schema=False)
    copy = second(first)
    if copy is None:
        if expected_s(first) > left_s:
            return None
        copy = second(first) if measure(planned, first) else None
    if copy is None:  # it was not to be measured this time
        return first
    again = record.read(copy, check_schema=False)
    if again["status"] != "ok" or disturbance(again) >= disturbance(first):
        return first
    record.restore(path, copy)
    return again


def retry_all(document: Mapping[str, Any], registry_file: Path, budget_s: float) -> list[str]:
    """Try each disturbed cell of a run that was not tried before; what became of them, as lines."""
    paths = []
    for name in dict(remeasure.flagged(document, [FLAG])):
        found = record.read_in_place(Path(name), check_schema=False)
        if found["status"] == "ok" and "instead_of" not in found["method"]:
            paths.append(name)
    if not paths:
        return []
    devices = registry.load(registry_file)
    cells = {
        matrix.record_path(planned.cell): planned
        for host in document["hosts"]
        for planned in matrix.expand(document["experiment"], devices, host).cells
    }
    began_s, lines, tried, mended = time.monotonic(), [], 0, 0
    paths = [name for name in paths if name in cells and not capture.requested(cells[name].cell)]
    for name in paths:
        left_s = budget_s - (time.monotonic() - began_s)
        stays = retry(cells[name], Path(name), left_s)
        if stays is not None:
            tried += 1
            mended += not disturbance(stays)[0]
            lines.append(f"again  {cell_line.of(stays)}")
    left = f"; the others do not fit into {budget_s:g} s" if tried < len(paths) else ""
    what = f"{tried} of {len(paths)} cells that other processes disturbed were measured again"
    return [*lines, f"{what}, {mended} without disturbance{left}"] if paths else []


def main(argv: Sequence[str] | None = None) -> int:
    """Try the cells and write what became of them."""
    parser = argparse.ArgumentParser(
        prog="siliconprof.pipeline.retry", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--matrix", type=Path, required=True)
    parser.add_argument("--registry", type=Path, required=True)
    parser.add_argument("--budget", type=float, required=True, metavar="S", help="seconds in all")
    parser.add_argument("--output", type=Path, required=True, help="what became of them, as text")
    arguments = parser.parse_args(argv)
    try:
        lines = retry_all(matrix_file.read(arguments.matrix), arguments.registry, arguments.budget)
    except KeyboardInterrupt:
        return 130
    temporary.write(arguments.output, "".join(f"{line}\n" for line in lines).encode("utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
