"""What this workflow costs Snakemake's process beside the barest one of the same shape.

    python benchmarks/workflow.py [--cells 100 1000 10000] [--rounds 5]

Processor time and memory of `snakemake -n -q` before anything is measured and of a run with nothing to
do, in turn with a Snakefile of one rule `host`, one rule `measure` with the same six wildcards, and
functions of a dictionary. Cells are products of matrices of which one is measured: a first run leaves
what later ones find. Each figure is the least of its rounds, to which other processes only add.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

from shared import SNAKEMAKE, Done, arguments, configure, copied, done, experiment, python

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


def cost(folder: Path, *arguments: str) -> Done:
    """What one Snakemake uses."""
    return done([sys.executable, "-m", *SNAKEMAKE, *arguments, "-q", "all"], folder)


def records(folder: Path) -> list[Path]:
    """The records that are wanted in a folder."""
    summary = python("-m", *SNAKEMAKE, "--summary", "measured", folder=folder)
    paths = (line.split("\t")[0] for line in summary.splitlines())
    return [Path(path) for path in paths if path.startswith("results/records/")]


def compared(folders: Sequence[Path], rounds: int, *arguments: str) -> str:
    """The least of both, and their ratios."""
    found = [[cost(folder, *arguments) for folder in folders] for _ in range(rounds)]
    (own, own_bytes), (bare, bare_bytes) = (
        (min(one.processor_s for one in side), min(one.peak_rss_bytes for one in side))
        for side in zip(*found, strict=True)
    )
    return (
        f"{own:6.1f} s {bare:6.1f} s {own / bare:6.2f} ×{own_bytes / 2**20:8.0f} MiB "
        f"{bare_bytes / 2**20:5.0f} MiB {own_bytes / bare_bytes:6.2f} ×"
    )


def main() -> None:
    """Print a line for each number of cells and each kind of run."""
    asked = arguments(__doc__, cells=[100, 1000, 10_000], rounds=5)
    with tempfile.TemporaryDirectory() as folder:
        own, bare = copied(Path(folder) / "own"), Path(folder) / "other"
        (bare / "config").mkdir(parents=True)
        shutil.copytree(own / "profiles", bare / "profiles")
        (bare / "Snakefile").write_text(BARE, encoding="utf-8")
        print("cells  run            this workflow, the other, ratio: processor time; memory")
        for n_cells in asked.cells:
            config = experiment(n_cells // 2, host="desk", backends=["mlx", "torch-cpu"])
            for side in (own, bare):
                configure(side, config)
                shutil.rmtree(side / "results" / "records", ignore_errors=True)
                cost(side, "results/hosts/desk.json", str(records(side)[0]))
            dry = compared((own, bare), asked.rounds, "-n", "measured")
            print(f"{n_cells:6} before it      {dry}", flush=True)
            for side in (own, bare):
                for record in records(side):
                    (side / record.parent).mkdir(parents=True, exist_ok=True)
                    (side / record).touch()
            idle = compared((own, bare), asked.rounds, "measured")
            print(f"{n_cells:6} nothing to do  {idle}", flush=True)


if __name__ == "__main__":
    main()
