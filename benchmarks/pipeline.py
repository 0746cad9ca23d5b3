"""What the pipeline itself costs: `make bench`, or `python benchmarks/pipeline.py`.

In a fresh copy of this checkout: the default run, then no-op reruns. Prints wall times, the
number of cells, and the share of the default run's wall clock that was spent inside warm-up and
timed regions; the rest is start-up of fresh processes, preparing and rendering. These machines
are noisy: quote the shares and ratios, not one absolute time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("Snakefile", "workflow", "config", "profiles", "report")


def snakemake(folder: Path, *arguments: str) -> float:
    """Seconds of one `snakemake --cores 1 …` in a folder."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "1", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - started


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reruns", type=int, default=5, help="no-op reruns to time")
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch) / "project"
        folder.mkdir(parents=True)
        for part in PARTS:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
            copy(ROOT / part, folder / part)
        (folder / "results").mkdir()
        wall_s = snakemake(folder, "report")
        reruns = [snakemake(folder, "report") for _ in range(arguments.reruns)]
        records = [json.loads(p.read_text()) for p in (folder / "results/records").rglob("*.json")]
    timed_s = sum(record["accounting"].get("timed_s", 0.0) for record in records)
    cells_s = sum(record["accounting"]["wall_s"] for record in records)
    statuses = [record["status"] for record in records]
    print(f"default run            {wall_s:8.1f} s wall")
    print(
        f"cells                  {len(records):8d}   "
        f"({', '.join(f'{statuses.count(s)} {s}' for s in sorted(set(statuses)))})"
    )
    print(f"inside cells           {cells_s:8.1f} s   {cells_s / wall_s:.0%} of the wall clock")
    print(f"warm-up and timed      {timed_s:8.1f} s   {timed_s / wall_s:.0%} of the wall clock")
    print(
        f"no-op rerun            {statistics.median(reruns):8.2f} s   "
        f"median of {len(reruns)}, {min(reruns):.2f} to {max(reruns):.2f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
