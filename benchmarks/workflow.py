"""What this workflow costs Snakemake's process beside the barest one of the same shape.

    python benchmarks/workflow.py [--cells 100 1000 10000] [--rounds 3]

Processor time and memory of `snakemake -n -q` before anything is measured and of a run with nothing
to do, in turn with a Snakefile of one rule `host`, one rule `measure` with the same six wildcards, and
functions of a dictionary. Cells are products of matrices that nobody measures. Quote the ratios.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml
from shared import copied

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


def config(n_cells: int) -> str:
    """An experiment of so many cells."""
    workloads = {
        f"mm{index}": {"module": "matmul", "shapes": [[1, 8, 8, index + 1]]}
        for index in range(n_cells // 2)
    }
    axes = {"backends": ["mlx", "torch-cpu"], "precisions": ["fp32"]}
    return yaml.safe_dump({"host": "desk", "retry_contended_s": 0, "workloads": workloads} | axes)


def cost(folder: Path, *arguments: str) -> tuple[float, float]:
    """(processor seconds, MiB at most) of one Snakemake."""
    command = [sys.executable, "-m", "snakemake", "--cores", "1", *arguments, "-q", "all"]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    said = process.stderr.read() if process.stderr else b""
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(said.decode())
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def compared(folders: Sequence[Path], rounds: int, *arguments: str) -> str:
    """Medians of both, and their ratios."""
    found = [[cost(folder, *arguments) for folder in folders] for _ in range(rounds)]
    own, bare = (
        [statistics.median(pair[side][what] for pair in found) for what in (0, 1)]
        for side in (0, 1)
    )
    ratios = [statistics.median(pair[0][what] / pair[1][what] for pair in found) for what in (0, 1)]
    return (
        f"{own[0]:6.1f} s {bare[0]:6.1f} s {ratios[0]:6.2f} ×"
        f"{own[1]:8.0f} MiB {bare[1]:5.0f} MiB {ratios[1]:6.2f} ×"
    )


def main() -> None:
    """Print a line for each number of cells and each kind of run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        own, bare = copied(Path(folder) / "own"), Path(folder) / "bare"
        (bare / "config").mkdir(parents=True)
        shutil.copytree(own / "profiles", bare / "profiles")
        (bare / "Snakefile").write_text(BARE, encoding="utf-8")
        print("cells  run            this workflow, bare, ratio: processor time; memory")
        for n_cells in arguments.cells:
            for side in (own, bare):
                (side / "config" / "config.yaml").write_text(config(n_cells), encoding="utf-8")
                shutil.rmtree(side / "results" / "records", ignore_errors=True)
                cost(side, "results/hosts/desk.json")
            dry = compared((own, bare), arguments.rounds, "-n", "measured")
            print(f"{n_cells:6} before it      {dry}", flush=True)
            for side in (own, bare):
                command = [sys.executable, "-m", "snakemake", "--summary", "measured", "--cores=1"]
                text = subprocess.run(command, cwd=side, capture_output=True, text=True).stdout
                for line in text.splitlines():
                    if line.startswith("results/records/"):
                        record = side / line.split("\t")[0]
                        record.parent.mkdir(parents=True, exist_ok=True)
                        record.touch()
            idle = compared((own, bare), arguments.rounds, "measured")
            print(f"{n_cells:6} nothing to do  {idle}", flush=True)


if __name__ == "__main__":
    main()
