"""What a cell costs besides itself: here, as a job of Slurm, on another host over ssh.

    python benchmarks/overhead.py            as root; with slurm-wlm, munge, openssh-server, rsync

The same tiny cells are measured three ways in one run of this program: by a local Snakemake, by
real Slurm daemons on this machine (one node, ten cells a job), and by `siliconprof collect` from a
host in namespaces of its own. Each way measures one cell first, which also pays for looking at the
host, then a few, then many more. A cell's overhead is what one cell more adds to the wall clock,
less the time that its record accounts for; the fixed part is what a run with no such cell would
take. The ratios compare the ways within this run: this machine's own speed is in all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

import shared
import slurm_daemons
import ssh_hosts
import yaml
from shared import python

LABEL = "elsewhere"
FEW, MANY = 2, 10  # cells of the short run, and of the long one
NODE = slurm_daemons.Node("node-a", "any", partition="main")


# How cells get measured: what does so in a copy of the project, and keys of its config.
Way = tuple[Callable[[Path], object], dict[str, Any]]


@contextlib.contextmanager
def ways(scratch: Path) -> Iterator[dict[str, Way]]:
    """Every way that there is, by name, with its hosts running."""
    lock = {slurm_daemons.LOCK_FILE_VARIABLE: str(scratch / "host.lock")}
    with (
        slurm_daemons.running((NODE,)) as cluster,
        ssh_hosts.running(scratch / "hosts", [LABEL]) as (_, config),
    ):

        def collect(folder: Path) -> None:
            there = {LABEL: {"ssh": LABEL, "folder": folder.name, "environment": sys.prefix}}
            (folder / "config" / "hosts.yaml").write_text(yaml.safe_dump(there))
            cli = ("siliconprof.pipeline.cli", "collect", "--ssh-config", str(config))
            python(*cli, folder=folder)

        def snakemake(*options: str, **more: str) -> Callable[[Path], object]:
            return lambda folder: python("snakemake", "measured", *options, folder=folder, **more)

        resources = {"slurm_partition": NODE.partition, "constraint": NODE.features}
        jobs = {"cluster": {LABEL: {"device": "cpu", "resources": resources}}}
        profile = ("--workflow-profile", "profiles/slurm", "--groups", "measure=cells")
        profile += ("--group-components", "cells=10")
        profile += ("--slurm-init-seconds-before-status-checks", "1")  # not rounded up to tens
        slurm = snakemake(*profile, **cluster.environment)
        yield {
            "local": (snakemake("--cores", "1", **lock), {}),
            "slurm": (slurm, jobs),
            "ssh": (collect, {}),
        }


def grow(folder: Path, way: Way, number: int) -> tuple[float, list[float]]:
    """(wall seconds of a run after which there are so many cells, what its records account for)."""
    run, more = way
    (folder / "config" / "config.yaml").write_text(shared.experiment(number, **more))
    before = set((folder / "results" / "records").rglob("*.json"))
    started = time.perf_counter()
    run(folder)
    wall_s = time.perf_counter() - started
    paths = sorted((folder / "results" / "records").rglob("*.json"))
    records = [json.loads(path.read_text()) for path in paths if path not in before]
    wrong = [f"{r['cell']['workload']}: {r['reason']}" for r in records if r["status"] != "ok"]
    if wrong or len(paths) != number:
        raise SystemExit(f"{folder.name}: {len(paths)} of {number} records; {'; '.join(wrong)}")
    return wall_s, [record["accounting"]["wall_s"] for record in records]


def measure(folder: Path, way: Way) -> tuple[float, float, float, float]:
    """Seconds: of a cell, its overhead, the fixed part of a run, all in per cell."""
    grow(folder, way, 1)
    short_s, _ = grow(folder, way, 1 + FEW)
    long_s, cells = grow(folder, way, 1 + FEW + MANY)
    per_cell_s = (long_s - short_s) / (MANY - FEW)
    cell_s = statistics.mean(cells)
    fixed_s, all_in_s = short_s - FEW * per_cell_s, (long_s - sum(cells)) / MANY
    return cell_s, per_cell_s - cell_s, fixed_s, all_in_s


def show(found: dict[str, list[tuple[float, float, float, float]]]) -> None:
    """The table: medians, and ratios to local."""
    print("way           a cell      overhead   × local    fixed part    all in, per cell")
    middle = {
        way: [*map(statistics.median, zip(*runs, strict=True))] for way, runs in found.items()
    }
    for way, (cell_s, overhead_s, fixed_s, all_in_s) in middle.items():
        print(
            f"{way:8}{cell_s:10.2f} s{overhead_s:12.2f} s{overhead_s / middle['local'][1]:10.1f}"
            f"{fixed_s:12.1f} s{all_in_s:18.2f} s"
        )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="of everything; the median counts")
    arguments = parser.parse_args()
    if reason := slurm_daemons.missing() or ssh_hosts.missing():
        print(f"cannot be measured here: {reason}", file=sys.stderr)
        return 2
    for name in [name for name in os.environ if name.startswith("SILICONPROF_")]:
        del os.environ[name]
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch, ways(Path(scratch)) as all_ways:
        for repeat in range(arguments.repeats):
            for name, way in all_ways.items():
                folder = shared.copied(
                    Path(scratch) / f"{name}-{repeat}", "__pycache__", "measured"
                )
                found.setdefault(name, []).append(measure(folder, way))
    print("medians; overhead: one cell more, less what its record accounts for")
    show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
