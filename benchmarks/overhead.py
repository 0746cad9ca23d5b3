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

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

import pandas as pd
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
    """Yield every way of running cells by name, with its hosts running."""
    lock = {slurm_daemons.LOCK_FILE_VARIABLE: str(scratch / "host.lock")}
    with (
        slurm_daemons.running((NODE,)) as cluster,
        ssh_hosts.running(scratch / "hosts", [LABEL]) as (_, config),
    ):

        def collect(folder: Path) -> None:
            there = {LABEL: {"ssh": LABEL, "folder": folder.name, "environment": sys.prefix}}
            (folder / "config" / "hosts.yaml").write_text(yaml.safe_dump(there))
            cli = ("siliconprof.pipeline.cli", "collect", "--ssh-config", str(config))
            python("-m", *cli, folder=folder)

        def snakemake(*options: str, **more: str) -> Callable[[Path], object]:
            command = ("-m", "snakemake", "measured", *options)
            return lambda folder: python(*command, folder=folder, **more)

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
    shared.configure(folder, shared.experiment(number, **more))
    before = shared.records(folder)
    started = time.perf_counter()
    run(folder)
    wall_s = time.perf_counter() - started
    records = shared.records(folder)
    new = [record for path, record in records.items() if path not in before]
    wrong = [f"{r['cell']['workload']}: {r['reason']}" for r in new if r["status"] != "ok"]
    if wrong or len(records) != number:
        raise SystemExit(f"{folder.name}: {len(records)} of {number} records; {'; '.join(wrong)}")
    return wall_s, [record["accounting"]["wall_s"] for record in new]


def measure(folder: Path, way: Way) -> dict[str, float]:
    """Seconds: of a cell, its overhead, the fixed part of a run, all in per cell."""
    grow(folder, way, 1)
    short_s, _ = grow(folder, way, 1 + FEW)
    long_s, cells = grow(folder, way, 1 + FEW + MANY)
    per_cell_s, cell_s = (long_s - short_s) / (MANY - FEW), sum(cells) / MANY
    return {
        "a cell, s": cell_s,
        "overhead, s": per_cell_s - cell_s,
        "fixed part, s": short_s - FEW * per_cell_s,
        "all in, per cell, s": (long_s - sum(cells)) / MANY,
    }


def main() -> None:
    """Measure and print."""
    asked = shared.arguments(__doc__, repeats=3)
    if reason := slurm_daemons.missing() or ssh_hosts.missing():
        raise SystemExit(f"cannot be measured here: {reason}")
    found = []
    with tempfile.TemporaryDirectory() as scratch, ways(Path(scratch)) as all_ways:
        for repeat in range(asked.repeats):
            for name, way in all_ways.items():
                folder = Path(scratch) / f"{name}-{repeat}"
                shared.copied(folder, "__pycache__", "measured")
                found.append({"way": name} | measure(folder, way))
    print("medians; overhead: one cell more, less what its record accounts for")
    table = pd.DataFrame(found).groupby("way", sort=False).median()
    table["× local"] = table["overhead, s"] / table["overhead, s"]["local"]
    print(table.round(2).to_string())


if __name__ == "__main__":
    main()
