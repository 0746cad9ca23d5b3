"""What a run on a Slurm cluster costs the host that it is started on.

    python benchmarks/slurm.py [--cells 1000 10000]    as root

Real Slurm daemons on this machine (tests/slurm_daemons.py), this workflow in profiles/slurm, and a job
for each cell, which writes its own number as the record and is over. Processor time and memory are
those of Snakemake where it is started and of what it starts there, `sbatch` and `squeue`.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

import shared
import slurm_daemons
from project_copy import script

LABEL = "farm"
NODES = tuple(slurm_daemons.Node(f"node-{number}", LABEL) for number in range(8))
ASKED = ("sbatch", "squeue")
# The Python of jobs: what is asked for as `measure:host=farm,device=…` gets a record at once.
HOLLOW = """
for word; do case $word in measure:*)
    record=results/records/$(echo "${word#*:}" | sed 's/[a-z]*=//g; s|,|/|g').json
    mkdir -p "${record%/*}" && echo "$SLURM_JOB_ID" >"$record" && made=1
esac; done
test "$made" || exec """


def hollow_python(folder: Path) -> Path:
    """A program by whose name Python starts with this one's packages, and which jobs get to run."""
    folder.mkdir()
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    (folder / "lib").symlink_to(Path(sys.prefix) / "lib")
    return script(folder / "bin" / "python", f'{HOLLOW}{sys.executable} "$@"')


def run(folder: Path, python: Path) -> tuple[str, int]:
    """(a row of the table, records) of one run in a copy of the checkout."""
    commands, calls = folder / "commands", folder / "calls"
    for name in ASKED:  # which write down when they are called
        text = f'date +%s.%N >>{calls}.{name}\nexec {shutil.which(name)} "$@"'
        script(commands / name, text)
    snakemake = ("snakemake", "--workflow-profile", "profiles/slurm", "measured")
    with slurm_daemons.running(NODES) as cluster:
        path = f"{commands}{os.pathsep}{shared.environment(folder)['PATH']}"
        own, command = cluster.environment | {"PATH": path}, [str(python), "-m", *snakemake]
        used = shared.done(command, folder, executable=sys.executable, **own)
    jobs, looks = (
        [float(line) for line in Path(f"{calls}.{name}").read_text().split()] for name in ASKED
    )
    gap_s = min((b - a for a, b in zip(looks, looks[1:], strict=False)), default=0.0)
    n_records = len(shared.records(folder))
    row = (
        f"{n_records:6} {len(jobs):6}{used.wall_s:8.0f} s{used.processor_s:9.1f} s"
        f"{used.peak_rss_bytes / 2**20:8.0f} MiB{len(looks):7} calls, {gap_s:.1f} s apart at least"
    )
    return row, n_records


def main() -> None:
    """Run each size, and fail where a cell is lost."""
    asked = shared.arguments(__doc__, cells=[1000, 10_000])
    if reason := slurm_daemons.missing():
        raise SystemExit(f"cannot be measured here: {reason}")
    resources = {"slurm_partition": NODES[0].partition}
    cluster = {LABEL: {"device": "cpu", "resources": resources}}
    with tempfile.TemporaryDirectory() as scratch:
        python = hollow_python(Path(scratch) / "environment")
        print(f" cells   jobs     wall  processor      memory   squeue; on {len(NODES)} nodes")
        for n_cells in asked.cells:
            folder = shared.copied(Path(scratch) / str(n_cells))
            shared.configure(folder, shared.experiment(n_cells, cluster=cluster))
            row, n_records = run(folder, python)
            print(row, flush=True)
            if n_records != n_cells:
                raise SystemExit(f"{n_cells - n_records} cells are lost")


if __name__ == "__main__":
    main()
