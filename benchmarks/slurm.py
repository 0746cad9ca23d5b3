"""What a run on a Slurm cluster costs the host that it is started on.

    python benchmarks/slurm.py [--cells 1000 10000] [-- --groups measure=cells …]    as root

Real Slurm daemons on this machine (tests/slurm_daemons.py), this workflow in profiles/slurm, and a job
for each cell, which writes its own number as the record and is over. What follows `--` is for
Snakemake. Processor time and memory are those of Snakemake where it is started and of what it starts
there, `sbatch` and `squeue`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

import shared
import slurm_daemons

LABEL = "farm"
NODES = tuple(slurm_daemons.Node(f"node-{number}", LABEL) for number in range(8))
ASKED = ("sbatch", "squeue")
# The Python of jobs: what is asked for as `measure:host=farm,device=…` gets a record at once.
HOLLOW = """#!/bin/sh
for word; do case $word in measure:*)
    record=results/records/$(echo "${word#*:}" | sed 's/[a-z]*=//g; s|,|/|g').json
    mkdir -p "${record%/*}" && echo "$SLURM_JOB_ID" >"$record" && made=1
esac; done
test "$made" || exec """


def program(path: Path, text: str) -> Path:
    """A file that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
    path.chmod(0o755)
    return path


def hollow_python(folder: Path) -> Path:
    """A program by whose name Python starts with this one's packages, and which jobs get to run."""
    folder.mkdir()
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    (folder / "lib").symlink_to(Path(sys.prefix) / "lib")
    return program(folder / "bin" / "python", f'{HOLLOW}{sys.executable} "$@"')


def run(folder: Path, python: Path, options: Sequence[str]) -> tuple[str, int]:
    """(a row of the table, records) of one run in a copy of the checkout."""
    commands, calls = folder / "commands", folder / "calls"
    for name in ASKED:  # which write down when they are called
        text = f'#!/bin/sh\ndate +%s.%N >>{calls}.{name}\nexec {shutil.which(name)} "$@"'
        program(commands / name, text)
    path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [str(python), "-m", "snakemake", "--workflow-profile", "profiles/slurm", *options]
    with slurm_daemons.running(NODES) as cluster, open(folder / "output.txt", "wb") as output:
        environment = shared.USUAL | cluster.environment | {"PATH": path}
        streams: Any = {"stdout": output, "stderr": output, "executable": sys.executable}
        started = time.time()
        process = subprocess.Popen(
            [*command, "--", "measured"], cwd=folder, env=environment, **streams
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.time() - started
    if status:
        raise SystemExit((folder / "output.txt").read_text(errors="replace")[-4000:])
    jobs, looks = (
        [float(line) for line in Path(f"{calls}.{name}").read_text().split()] for name in ASKED
    )
    gap_s = min((b - a for a, b in zip(looks, looks[1:], strict=False)), default=0.0)
    n_records = len(list((folder / "results" / "records").rglob("*.json")))
    row = (
        f"{n_records:6} {len(jobs):6}{wall_s:8.0f} s{usage.ru_utime + usage.ru_stime:9.1f} s"
        f"{usage.ru_maxrss / 1024:8.0f} MiB{len(looks):7} calls, {gap_s:.1f} s apart at least"
    )
    return row, n_records


def main() -> None:
    """Run each size, and fail where a cell is lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("options", nargs="*", help="for Snakemake, after --")
    arguments = parser.parse_args()
    if reason := slurm_daemons.missing():
        raise SystemExit(f"cannot be measured here: {reason}")
    resources = {"slurm_partition": NODES[0].partition}
    cluster = {LABEL: {"device": "cpu", "resources": resources}}
    with tempfile.TemporaryDirectory() as scratch:
        python = hollow_python(Path(scratch) / "environment")
        print(f" cells   jobs     wall  processor      memory   squeue; on {len(NODES)} nodes")
        for n_cells in arguments.cells:
            folder = shared.copied(Path(scratch) / str(n_cells))
            config = shared.experiment(n_cells, cluster=cluster)
            (folder / "config" / "config.yaml").write_text(config)
            row, n_records = run(folder, python, arguments.options)
            print(row, flush=True)
            if n_records != n_cells:
                raise SystemExit(f"{n_cells - n_records} cells are lost")


if __name__ == "__main__":
    main()
