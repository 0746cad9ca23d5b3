"""What the pipeline costs, as one table: `make bench`, or `python benchmarks/pipeline.py`.

In a fresh copy of this checkout: the default run, no-op reruns, a forced page and one after an
edited caption; steps of cells beside the bare training (`bare.py`), and with and without probes
(`probes.py`); the stages after measuring at 1,000 cells (`render.py`); on request a figure beside
optimum-benchmark's (`optimum.py`). What a job of Slurm adds is asked of `overhead.py`, as root.
Each figure is a ratio or share of two times of this one run, or a time where no other makes sense,
beside its goal; the table goes to benchmarks/results.md too, with machine and versions. These
machines are noisy: quote shares and ratios, not one absolute time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from shared import ROOT, USUAL, as_ratio, copied
from siliconprof.hosts.machine import cpu_model

TABLE = ROOT / "benchmarks" / "results.md"
IMPORT = "import torch; from transformers import GPT2LMHeadModel"
IMPORTS = 3
PAIRS_OF_BLOCKS = 60  # of a second, with and without probes
PACKAGES = ("torch", "mlx", "transformers", "snakemake", "matplotlib")


class Line(NamedTuple):
    """A row of the table."""

    what: str
    against: str
    found: str
    goal: str


class Said(NamedTuple):
    """How a run went: seconds, and seconds until its first cell's numbers stood there."""

    wall_s: float
    first_s: float | None


def snakemake(folder: Path, *arguments: str) -> Said:
    """One `snakemake --cores 1 …` in a folder."""
    started, first_s = time.perf_counter(), None
    command = [sys.executable, "-m", "snakemake", "--cores", "1", *arguments]
    pipes: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env=USUAL, **pipes) as process:
        lines = []
        for line in process.stderr or ():
            lines.append(line)
            if first_s is None and re.match(r" *\d+/\d+  .*/s", line):
                first_s = time.perf_counter() - started
    if process.returncode:
        raise SystemExit("".join(lines))
    return Said(time.perf_counter() - started, first_s)


def import_s() -> float:
    """Seconds of a process that imports torch and GPT-2's class, the least of a few."""
    taken = []
    for _ in range(IMPORTS):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True)
        taken.append(time.perf_counter() - started)
    return min(taken)


def of_the_run(said: Said, records: Sequence[Mapping[str, Any]]) -> list[Line]:
    """What the default run itself shows."""
    accounts = [record["accounting"] for record in records]
    timed_s = sum(account.get("timed_s", 0.0) for account in accounts)
    beside_s = [
        record["accounting"]["wall_s"] - record["accounting"]["timed_s"]
        for record in records
        if record["status"] == "ok"
        and record["cell"]["backend"] == "torch-cpu"
        and record["cell"]["workload"].startswith("gpt2-tiny-plain")
    ]  # one more: gpt2-nano-plain before them has had imports and checks made, in each precision
    cost = statistics.median(beside_s) / import_s()
    failed = sum(record["status"] not in ("ok", "unsupported") for record in records)
    whole = f"default run, {len(records)} cells, {failed} failed"
    one_more = "one more cheap torch cell, less its timed part"
    share = f"{timed_s / said.wall_s:.2f}"
    return [
        Line("first measured number on the terminal", "–", f"{said.first_s or 0:.1f} s", "10 s"),
        Line(whole, "–", f"{said.wall_s:.0f} s", "180 s"),
        Line("inside warm-up and timed regions", "its wall clock", share, "0.75"),
        Line(one_more, "importing torch and GPT-2", f"{cost:.2f} ×", "0.15 ×"),
    ]


def of_the_page(folder: Path, reruns: int) -> list[Line]:
    """What making the page again costs."""
    idle_s = [snakemake(folder, "report").wall_s for _ in range(reruns)]
    whole_s = snakemake(folder, "--forcerun", "draw", "--", "report").wall_s
    captions = folder / "report" / "captions.yaml"
    text = captions.read_text(encoding="utf-8")
    captions.write_text(text.replace(". ", ".  ", 1) + "# an edit\n", encoding="utf-8")
    edited_s = snakemake(folder, "report").wall_s
    return [
        Line("nothing to do", "–", f"{statistics.median(idle_s):.1f} s", "–"),
        Line("the page, all of it", "–", f"{whole_s:.1f} s", "–"),
        Line("a caption edited", "the page, all of it", f"{edited_s / whole_s:.2f}", "0.1"),
    ]


def asked(folder: Path, script: str, *arguments: str) -> Any:
    """What another benchmark of a copy prints as JSON."""
    command = [sys.executable, f"benchmarks/{script}", "--json", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=USUAL, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)


def of_the_steps(folder: Path, rounds: int) -> list[Line]:
    """What measuring adds to a training's step."""
    goals = ("1.01", "1.01", "1.00")
    ratios = asked(folder, "bare.py", "--rounds", str(rounds))
    lines = [
        Line(f"step of a {what}", f"the other, {rounds} rounds", as_ratio(found), goal)
        for (what, found), goal in zip(ratios.items(), goals, strict=True)
    ]
    pairs = str(PAIRS_OF_BLOCKS)
    of_nano = ("--workloads", "gpt2-nano", "--probes", "all", "--pairs", pairs)
    found = asked(folder, "probes.py", *of_nano)["workloads"]["gpt2-nano"]["probes"]["all"]
    middle, low, high = (found[f"ratio_of_means{end}"] for end in ("", "_low", "_high"))
    goal = "1.003, the interval below 1.01"
    what = "mean step with all probes, GPT-2 nano"
    return [*lines, Line(what, f"without, {pairs} pairs", as_ratio((middle, low, high)), goal)]


def of_a_figure(folder: Path, environment: Path, rounds: int) -> list[Line]:
    """What one training's figure takes, from the start of the process."""
    where = ("--environment", str(environment.resolve()), "--rounds", str(rounds))
    found = asked(folder, "optimum.py", *where)
    what = "GPT-2 nano under the Trainer to a figure with a 2 % interval"
    return [Line(what, "optimum-benchmark 0.6", as_ratio(found["ratio"]), "0.5")]


def of_many_cells(sizes: Sequence[int]) -> list[Line]:
    """What the stages after measuring cost where there are many cells, a hundred steps in each."""
    lines: list[Line] = []
    first_s = 0.0
    for cells in sizes:
        steps = 100 * cells
        found = asked(ROOT, "render.py", "--cells", str(cells), "--steps", str(steps))
        stages = found["stages"].values()
        wall_s = sum(stage["wall_s"] for stage in stages)
        peak = max(stage["peak_rss_bytes"] for stage in stages) / 2**20
        what = f"all after measuring, {cells:,} cells and {steps:,} steps"
        shown = f"{wall_s:.0f} s, {peak:.0f} MiB"
        if lines:
            times = f"{wall_s / first_s:.1f} ×, {shown}"
            lines.append(Line(what, "the first size", times, "12 × for 10 ×"))
        else:
            first_s = wall_s
            lines.append(Line(what, "–", shown, "20 s, 1024 MiB for 1,000"))
    return lines


def machine() -> str:
    """This machine and the versions, in a line."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    load = os.getloadavg()[2]
    return (
        f"{cpu_model()}, {len(os.sched_getaffinity(0))} cores, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}; {versions}; "
        f"{datetime.now(UTC):%Y-%m-%d}, load of the last 15 minutes {load:.1f}"
    )


def as_rows(lines: Sequence[Line]) -> str:
    """Rows of the table in Markdown."""
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> int:
    """Run, print, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--reruns", type=int, default=3, help="no-op reruns to time")
    parser.add_argument("--keep", type=Path, help="work in this new folder and leave it")
    parser.add_argument("--cells", type=int, nargs="*", default=[1000], help="of made-up results")
    parser.add_argument("--rounds", type=int, default=5, help="of a step's two sides; 0 = none")
    parser.add_argument("--optimum", type=Path, help="environment of optimum-benchmark, or for it")
    arguments = parser.parse_args()
    about = machine()
    lines: list[Line] = []

    def add(found: Sequence[Line]) -> None:
        """Keep lines, and print them at once: a later part may fail."""
        lines.extend(found)
        print(as_rows(found), end="", flush=True)

    print(f"{about}\n")
    add([Line("What", "Against", "Found", "Goal"), Line("---", "---", "---", "---")])
    with tempfile.TemporaryDirectory() as scratch:
        folder = copied(arguments.keep or Path(scratch) / "project")
        snakemake(folder, "-n", "report")  # compiles the modules and detects the host
        command = [sys.executable, "-m", "siliconprof.pipeline.doctor"]
        path = {"PYTHONPATH": str(folder / "workflow")}
        subprocess.run(command, cwd=folder, env=USUAL | path, capture_output=True, check=False)
        said = snakemake(folder, "report")
        records = [json.loads(p.read_text()) for p in (folder / "results/records").rglob("*.json")]
        add(of_the_run(said, records))
        add(of_the_page(folder, arguments.reruns))
        if arguments.rounds:
            add(of_the_steps(folder, arguments.rounds))
        if arguments.optimum:
            add(of_a_figure(folder, arguments.optimum, arguments.rounds or 5))
    add(of_many_cells(arguments.cells))
    text = f"# What the pipeline costs\n\n`make bench` on {about}.\n\n{as_rows(lines)}"
    TABLE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
