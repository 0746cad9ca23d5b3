"""What this workflow costs Snakemake's process beside the barest one of the same shape.

    python benchmarks/workflow.py [--cells 100 1000 10000] [--rounds 5] [--beside CHECKOUT]

Processor time and memory of `snakemake -n -q` before anything is measured and of a run with nothing to
do, in turn with a Snakefile of one rule `host`, one rule `measure` with the same six wildcards, and
functions of a dictionary, or with the one of another folder that has a target `measured`. Cells are
products of matrices of which one is measured: a first run leaves what later ones find. Each figure is
the least of its rounds, to which other processes only add.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

from shared import USUAL, copied, experiment

SNAKEMAKE = [sys.executable, "-m", "snakemake", "--cores", "1"]

BARE = """
import json

configfile: "config/config.yaml"

CELLS = {
    ("desk", "cpu", backend, name, "auto", "fp32"): json.dumps([name, backend, entry])
    for name, entry in config["workloads"].items()
    for backend in config["backends"]
}

def argument(wildcards):
    return CELLS[tuple(wildcards)]

rule measured:
    input:
        [f"results/records/{'/'.join(axes)}.json" for axes in CELLS],

rule host:
    output:
        "results/hosts/{host}.json",
    log:
        "results/logs/{host}.log",
    shell:
        "touch {output} 2>{log}"

rule measure:
    input:
        lambda wildcards: [],
        host=ancient("results/hosts/{host}.json"),
    output:
        "results/records/{host}/{device}/{backend}/{workload}/{scenario}/{precision}.json",
    log:
        "results/logs/{host}/{device}/{backend}/{workload}/{scenario}/{precision}.log",
    wildcard_constraints:
        host="desk",
        **dict.fromkeys(["device", "backend", "workload", "scenario", "precision"], "[^/]+"),
    threads: workflow.cores
    resources:
        runtime=lambda wildcards: 5,
    params:
        arguments=argument,
        method=lambda wildcards: "0",
    shell:
        "echo {params.arguments:q} >{output} 2>{log}"
"""


def cost(folder: Path, *arguments: str) -> tuple[float, float]:
    """(processor seconds, MiB at most) of one Snakemake."""
    command = [*SNAKEMAKE, *arguments, "-q", "all"]
    pipes: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=folder, env=USUAL, **pipes)
    said = process.stderr.read() if process.stderr else b""
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(said.decode())
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def records(folder: Path) -> list[Path]:
    """The records that are wanted in a folder."""
    command = [*SNAKEMAKE, "--summary", "measured"]
    done = subprocess.run(command, cwd=folder, env=USUAL, capture_output=True, text=True)
    paths = (line.split("\t")[0] for line in done.stdout.splitlines())
    return [Path(path) for path in paths if path.startswith("results/records/")]


def compared(folders: Sequence[Path], rounds: int, *arguments: str) -> str:
    """The least of both, and their ratios."""
    found = [[cost(folder, *arguments) for folder in folders] for _ in range(rounds)]
    own, bare = ([min(pair[side][what] for pair in found) for what in (0, 1)] for side in (0, 1))
    return (
        f"{own[0]:6.1f} s {bare[0]:6.1f} s {own[0] / bare[0]:6.2f} ×"
        f"{own[1]:8.0f} MiB {bare[1]:5.0f} MiB {own[1] / bare[1]:6.2f} ×"
    )


def main() -> None:
    """Print a line for each number of cells and each kind of run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="in place of the bare one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        own, bare = copied(Path(folder) / "own"), Path(folder) / "other"
        if arguments.beside:
            shutil.copytree(arguments.beside, bare, ignore=shutil.ignore_patterns(".*", "results"))
        else:
            (bare / "config").mkdir(parents=True)
            shutil.copytree(own / "profiles", bare / "profiles")
            (bare / "Snakefile").write_text(BARE, encoding="utf-8")
        print("cells  run            this workflow, the other, ratio: processor time; memory")
        for n_cells in arguments.cells:
            config = experiment(n_cells // 2, host="desk", backends=["mlx", "torch-cpu"])
            for side in (own, bare):
                (side / "config" / "config.yaml").write_text(config, encoding="utf-8")
                shutil.rmtree(side / "results" / "records", ignore_errors=True)
                cost(side, "results/hosts/desk.json", str(records(side)[0]))
            dry = compared((own, bare), arguments.rounds, "-n", "measured")
            print(f"{n_cells:6} before it      {dry}", flush=True)
            for side in (own, bare):
                for record in records(side):
                    (side / record.parent).mkdir(parents=True, exist_ok=True)
                    (side / record).touch()
            idle = compared((own, bare), arguments.rounds, "measured")
            print(f"{n_cells:6} nothing to do  {idle}", flush=True)


if __name__ == "__main__":
    main()
