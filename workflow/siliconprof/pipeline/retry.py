"""Measure disturbed trainings of the answer once more, at the end of a run and within a budget.

    python -m siliconprof.pipeline.retry --matrix F --budget S --output F

What disturbed them may be over when the last cell has ended; where the first of them is disturbed as
well, it is not, and the others are left. Both records are in results/history,
and the less disturbed one stays at its cell's place. A record that stands in the place of another
names it (`method.instead_of`) and is not tried again. Cells that the answer's table does not compare
keep their flag, and so do cells with `capture`: their files lie at one place for both.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from siliconprof import options
from siliconprof.analyse.equal_work import DISTURBED, NO_SPEED_FLAG, NOISY
from siliconprof.cells import matrix
from siliconprof.errors import UserError, stage
from siliconprof.hosts import registry
from siliconprof.measure import cell_line
from siliconprof.session.timing import Plan
from siliconprof.store import matrix_file, record, temporary
from siliconprof.store.contents import Record
from siliconprof.store.matrix_file import Matrix


def disturbance(found: Record) -> tuple[int, bool, float]:
    """How much other processes disturbed a record: the more, the larger.

    No time decides: of two that are as good, the faster one would be chosen each time.
    """
    codes = [flag.code for flag in found.flags]
    cores = found.probed("interference", "foreign_load_cores")
    return codes.count(DISTURBED), NOISY in codes, cores or 0.0


def measure(planned: matrix.PlannedCell, first: Record) -> Record | None:
    """The record of a cell that is measured into the history, as rule `measure` does."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "record.json")
        command = [sys.executable, "-P", "-m", "siliconprof.measure"]
        command += shlex.split(planned.arguments)
        command += ["--time-limit", str(Plan.of(planned.cell.timing).time_limit_s)]
        command += ["--instead-of", first.sha256, "--output", str(output)]
        done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        return record.load(output) if done.returncode == 0 else None


def waiting(run: Matrix) -> Iterator[tuple[Path, Record]]:
    """(file, record) of the disturbed trainings of a run that stand in nobody's place.

    Of those that the answer compares, see `answer.timed`.
    """
    for path in (Path(planned.record) for planned in run.cells if planned.cell.trainer):
        try:
            first = record.load(path, in_place=True)
        except UserError:
            continue  # the tables say of it that it cannot be read
        is_compared = not first.scenario.batch_size_found and NO_SPEED_FLAG not in first.codes
        is_disturbed = first.status == "ok" and DISTURBED in first.codes
        if is_disturbed and is_compared and not first.method.instead_of:
            yield path, first


def retry_all(run: Matrix, results: Path, registry_file: Path, budget_s: float) -> list[str]:
    """Measure disturbed trainings of a run once more; what became of them, as lines."""
    if not (disturbed := list(waiting(run))):
        return []
    devices = registry.load(registry_file)
    cells = {
        Path(planned.record): planned
        for host in run.hosts
        for planned in matrix.expand(run.experiment, devices, host).cells
        if not planned.cell.parameters.get("capture")
    }
    ends_s, lines, fixed = time.monotonic() + budget_s, [], 0
    left = f"the others do not fit into {budget_s:g} s"
    for path, first in disturbed:
        wall_s, waited_s = map(first.accounting.get, ("wall_s", "waited_for_lock_s"))
        if path not in cells or time.monotonic() + (wall_s or 0) - (waited_s or 0) > ends_s:
            continue
        again, stays = measure(cells[path], first), first
        if again and again.status == "ok" and disturbance(again) < disturbance(first):
            stays = again
        record.restore(path, results / "history" / first.cell.path / f"{stays.sha256}.json")
        fixed += not disturbance(stays)[0]
        lines.append(f"again  {cell_line.of(stays)}")
        if again and DISTURBED in again.codes:
            left = "the others were left, since this host is still busy"
            break
    what = f"{len(lines)} of {len(disturbed)} disturbed trainings were measured again"
    more = [left] if len(lines) < len(disturbed) else []
    return [*lines, "; ".join([f"{what}, {fixed} without disturbance", *more])]


def main(argv: Sequence[str] | None = None) -> int:
    """Try the cells and write what became of them."""
    parser = options.parser("siliconprof.pipeline.retry", __doc__)
    parser.add_argument("--matrix", type=Path, required=True)
    parser.add_argument("--registry", type=Path, default=registry.shipped())
    parser.add_argument("--budget", type=float, required=True, metavar="S", help="seconds in all")
    parser.add_argument("--output", type=Path, required=True, help="what became of them, as text")
    arguments = parser.parse_args(argv)
    try:
        lines = retry_all(
            matrix_file.read(arguments.matrix),
            arguments.matrix.parent,
            arguments.registry,
            arguments.budget,
        )
    except KeyboardInterrupt:
        return 130
    text = "".join(f"{line}\n" for line in lines)
    temporary.write(arguments.output, text)
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
