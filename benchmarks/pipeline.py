"""What the pipeline costs, as one table: `make bench`, or `python benchmarks/pipeline.py`.

In a fresh copy of this checkout: the default run, no-op reruns and a forced page; steps of cells
beside the bare training (`bare.py`), and with and without probes (`probes.py`); the stages after
measuring at 1,000 cells (`render.py`). What a job of Slurm adds is asked of `overhead.py`, as root.
Each figure is a ratio or share of two times of this one run, or a time where no other makes sense,
beside its goal, with the word "missed" where it is not met; that fails nothing, as machines are shared.
The table goes to benchmarks/results.md too, with machine and versions. These machines are noisy:
quote shares and ratios, not one absolute time.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

import bare
import probes
import render
from shared import ROOT, SNAKEMAKE, arguments, as_ratio, copied, environment, python, records
from siliconprof import formatting
from siliconprof.hosts.machine import cpu_model
from siliconprof.stats.statistics import median
from siliconprof.store import matrix_file

TABLE = ROOT / "benchmarks" / "results.md"
PAIRS_OF_BLOCKS = 12  # of a second, with and without probes, for each round
FIRST_NUMBER_S, WHOLE_RUN_S, TIMED_SHARE = 10.0, 150.0, 0.7  # the goals of the default run
WITHOUT_AVX512_S = 240.0  # the whole run, where a processor has AVX2 at most
PROBES_AT_MOST, PAGE_S, PAGE_MIB = 1.01, 20.0, 1024.0
PACKAGES = ("torch", "mlx", "transformers", "snakemake", "matplotlib")
Line = tuple[str, str, str, str]  # a row of the table: what, against what, found, goal


def snakemake(folder: Path, *arguments: str) -> tuple[float, float]:
    """Seconds of one `snakemake --cores 1 …`, and until its first cell's numbers stood there."""
    started, first_s = time.perf_counter(), 0.0
    command, own = [sys.executable, "-m", *SNAKEMAKE, *arguments], environment(folder)
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=folder, env=own, **pipes) as process:
        lines = []
        for line in process.stdout or ():
            lines.append(line)
            if not first_s and "±" in line:  # a cell's line
                first_s = time.perf_counter() - started
    if process.returncode:
        raise SystemExit("".join(lines))
    return time.perf_counter() - started, first_s


def marked(found: str, is_met: bool) -> str:
    """Return a figure as text, marked where it misses its goal."""
    return found if is_met else f"{found}, missed"


def run_lines(folder: Path, times_s: tuple[float, float] | None) -> list[Line]:
    """Return the lines about the default run.

    Args:
        times_s: of the whole, and until its first number; None for one that was not timed here.
    """
    cells = records(folder).values()
    timed_s = sum(record["accounting"].get("timed_s", 0.0) for record in cells)
    failed = sum(record["status"] not in ("ok", "unsupported", "skipped") for record in cells)
    cpu = matrix_file.read(folder / "results/matrix.json").host["cpu"]
    goal_s = WHOLE_RUN_S if "avx512f" in cpu["features"] else WITHOUT_AVX512_S
    whole = f"default run, {len(cells)} cells, {failed} failed"
    if times_s is None:
        return [(whole, "–", "not timed", f"{goal_s:.0f} s")]
    wall_s, first_s = times_s
    share = marked(f"{timed_s / wall_s:.2f}", timed_s / wall_s >= TIMED_SHARE)
    first = marked(f"{first_s:.1f} s", 0 < first_s <= FIRST_NUMBER_S)
    return [
        ("first measured number on the terminal", "–", first, f"{FIRST_NUMBER_S:.0f} s"),
        (whole, "–", marked(f"{wall_s:.0f} s", wall_s <= goal_s), f"{goal_s:.0f} s"),
        ("inside timed regions", "its wall clock", share, f"{TIMED_SHARE}"),
    ]


def page_lines(folder: Path) -> list[Line]:
    """Return the lines about the cost of rendering the page again."""
    idle_s = median([snakemake(folder, "report")[0] for _ in range(3)])
    whole_s, _ = snakemake(folder, "--forcerun", "render", "--", "report")
    return [
        ("nothing to do", "–", f"{idle_s:.1f} s", "–"),
        ("the page", "–", f"{whole_s:.1f} s", "–"),
    ]


def step_lines(folder: Path, rounds: int) -> list[Line]:
    """Return the lines about the time that measuring adds to a training step."""
    goals = (1.01, 1.01, 1.00, 1.00, 1.00)
    of = f"the other, {formatting.count(rounds, 'round')}"
    lines = [
        # missed where the whole interval is above
        (f"step of {what}", of, marked(as_ratio(found), found[1] <= goal), f"{goal:.2f}")
        for (what, found), goal in zip(bare.ratios(folder, rounds).items(), goals, strict=True)
    ]
    pairs = rounds * PAIRS_OF_BLOCKS
    ((_, found_of_all),) = probes.costs(["all"], pairs)
    found = found_of_all["ratio_of_means"]
    goal = f"1.003, the interval below {PROBES_AT_MOST}"
    cost = marked(as_ratio(found), found[2] < PROBES_AT_MOST)
    return [
        *lines,
        ("mean step with all probes, GPT-2 nano", f"without, {pairs} pairs", cost, goal),
    ]


def many_cells_line(cells: int) -> Line:
    """What the stages after measuring cost where there are many cells; the goals are for 1,000."""
    steps = 100 * cells
    stages = render.stages(cells, steps)[0].values()
    wall_s = sum(stage.wall_s for stage in stages)
    peak = max(stage.peak_rss_bytes for stage in stages) / 2**20
    found = marked(f"{wall_s:.0f} s, {peak:.0f} MiB", wall_s <= PAGE_S and peak <= PAGE_MIB)
    what = f"all after measuring, {cells:,} cells and {steps:,} steps"
    return (what, "–", found, f"{PAGE_S:.0f} s, {PAGE_MIB:.0f} MiB")


def machine() -> str:
    """This machine and the versions, in a line."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    load = os.getloadavg()[2]
    return (
        f"{cpu_model()}, {len(os.sched_getaffinity(0))} cores, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}; {versions}; "
        f"{datetime.now(UTC):%Y-%m-%d}, load of the last 15 minutes {load:.1f}"
    )


def main() -> None:
    """Run, print, and write the table."""
    asked = arguments(__doc__, rounds=5, finished="", cells=1000)
    about = machine()
    rows: list[str] = []

    def add(*lines: Line) -> None:
        """Keep lines and print them at once, since a later part may fail."""
        for line in lines:
            rows.append(f"| {' | '.join(line)} |\n")
            print(rows[-1], end="", flush=True)

    print(f"{about}\n")
    add(("What", "Against", "Found", "Goal"), ("---", "---", "---", "---"))
    with tempfile.TemporaryDirectory() as scratch:
        folder, times_s = Path(asked.finished), None
        if not asked.finished:
            folder = copied(Path(scratch) / "project")
            snakemake(folder, "-n", "report")  # compiles the modules and detects the host
            python("-m", "siliconprof.pipeline.cli", "doctor", folder=folder, check=False)
            times_s = snakemake(folder, "report")
        add(*run_lines(folder, times_s))
        add(*page_lines(folder))
        if asked.rounds:
            add(*step_lines(folder, asked.rounds))
    add(many_cells_line(asked.cells))
    TABLE.write_text(f"# What the pipeline costs\n\n`make bench` on {about}.\n\n{''.join(rows)}")


if __name__ == "__main__":
    main()
