"""What the analysis and the page cost: `python benchmarks/render.py`, two minutes or so.

Makes the results of an experiment that nobody ran, by default of 1,000 cells and 100,000 training
steps: the tests' golden records of one host, and the same again of as many others as it takes, their
series as long as it takes. They are no measurement of anything; the page's title says so. Then every
stage after measuring runs as a process of its own, and each one's wall time and largest memory are
printed, with the size of the page. Times depend on the machine and on what else runs there.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from itertools import count, islice
from math import ceil
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

import shared
from golden import update
from siliconprof.store import record

STAGES = ("analyse.aggregate", "pipeline.analyse", "render.page")  # those after measuring


def repeat_series(made: dict[str, Any], times: int) -> None:
    """Repeat a record's series so many times."""
    made["samples"] *= times
    for point in made["points"]:
        lists = [*point["times"].items(), *(point.get("steps") or {}).items()]
        for values in (values for _, values in lists if isinstance(values, list)):
            values *= times
        if point.get("loss"):
            point["loss"] *= times


def synthetic(folder: Path, cells: int, steps: int) -> Path:
    """A results folder of so many cells, the trainings among them with so many steps in all."""
    results = update.unpack(update.HERE / "records/default.tar.xz", folder) / "results"
    golden = list(shared.records(folder).values())
    shutil.rmtree(results / "records")
    every = [json.loads(json.dumps(made)) for made in golden]
    others = ((number, made) for number in count(1) for made in golden)
    for number, made in islice(others, max(cells - len(golden), 0)):
        host = {"host": f"host-{number}", "seed": number}  # so each trains something of its own
        every.append(json.loads(json.dumps(made)) | {"cell": made["cell"] | host})
    points = [point for made in every for point in made["points"] if point.get("steps")]
    of_steps = sum(len(point["steps"]["kind"]) for point in points)
    for made in every[:cells]:
        repeat_series(made, ceil(steps / of_steps))
        path = results / "records" / f"{record.cell_path(made)}.json"
        own = made["cell"]["host"] == golden[0]["cell"]["host"]
        record.write(made, path, results / "history" if own else None)
    matrix = json.loads((results / "matrix.json").read_text(encoding="utf-8"))
    there = [cell for cell in matrix["cells"] if (folder / cell["record"]).exists()]
    matrix["cells"] = there
    matrix["experiment"]["report"]["title"] = "SYNTHETIC, not measured"
    (results / "matrix.json").write_text(json.dumps(matrix), encoding="utf-8")
    return results


def stages(cells: int, steps: int) -> tuple[dict[str, shared.Done], int]:
    """Return the resources of each stage after measuring, and the bytes of the page."""
    with tempfile.TemporaryDirectory() as scratch:
        results, used = synthetic(Path(scratch), cells, steps), {}
        for module in STAGES:
            command = [sys.executable, "-m", f"siliconprof.{module}", "--matrix"]
            path = {"PYTHONPATH": str(shared.ROOT / "workflow")}
            used[module] = shared.done([*command, "results/matrix.json"], Path(scratch), **path)
        return used, (results / "report.html").stat().st_size


def main() -> None:
    """Make results, run every stage, print."""
    asked = shared.arguments(__doc__, cells=1000, steps=100_000)
    used, page_bytes = stages(asked.cells, asked.steps)
    for module, stage in used.items():
        print(
            f"{module:17} {stage.wall_s:8.1f} s, {stage.processor_s:.1f} s of a processor   "
            f"peak RSS {stage.peak_rss_bytes / 2**20:8.0f} MiB"
        )
    print(f"page              {page_bytes / 1e6:8.2f} MB")


if __name__ == "__main__":
    main()
