"""What a dry run and a run with nothing to do cost beside a bare Snakefile: `python benchmarks/scale.py`.

An experiment of so many cells is the default one in every precision, its entries repeated under
other names, in a copy of this checkout; its records are copies of one that is really measured.
The bare Snakefile has as many jobs of one rule, each with an output, a log and a parameter, and the
same profile. Both are asked in turns, in fresh processes, for what they would do with no output
there, and with every output there; the figure is CPU time, user and system, the least of
`--repeats` after one run that does not count: it compiles our modules and reads every record.
Quote the ratios.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("Snakefile", "workflow", "config", "profiles", "report")
sys.path.insert(0, str(ROOT / "workflow"))

from siliconprof.cells import config, matrix  # noqa: E402
from siliconprof.hosts import host_file, registry  # noqa: E402
from siliconprof.store import record  # noqa: E402
from siliconprof.store.cell import PRECISIONS  # noqa: E402

BARE = """\
rule all:
    input:
        expand("out/{{cell}}.json", cell=range({cells})),


rule measure:
    output:
        "out/{{cell}}.json",
    log:
        "logs/{{cell}}.log",
    params:
        cell="{{cell}}",
    resources:
        accelerator=1,
    shell:
        "echo {{params.cell}} >{{output}}"
"""
TINY = {"module": "matmul", "shapes": [[1, 8, 8, 8]], "backends": ["mlx"], "precisions": ["fp32"]}
# No wait for a second between jobs, which are many and short.
OPTIONS = ["--cores", "64", "--resources", "accelerator=64", "--quiet", "all"]


def snakemake(folder: Path, *arguments: str) -> float:
    """CPU seconds of one `snakemake …` in a folder, its jobs included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "snakemake", *OPTIONS, *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        # Our modules are read compiled, as Snakemake's own are, and as they are on a person's host.
        env={k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def grown(cells: int, folder: Path) -> matrix.Matrix:
    """Give a checkout an experiment of about so many cells; its expansion."""
    experiment = yaml.safe_load((ROOT / "config" / "config.yaml").read_text(encoding="utf-8"))
    entries = {n: e for n, e in experiment["workloads"].items() if "of" not in e}
    for entry in entries.values():
        entry["precisions"] = list(PRECISIONS)
    devices = registry.load(folder / "config/devices.yaml")
    host = host_file.resolve(folder / "results", "bench", devices)

    def expanded(copies: int) -> matrix.Matrix:
        experiment["host"] = "bench"
        experiment["workloads"] = {
            f"{name}-{number}": copy.deepcopy(entry)
            for name, entry in entries.items()
            for number in range(copies)
        }
        return matrix.expand(config.resolve(experiment), devices, host)

    expansion = expanded(max(1, round(cells / len(expanded(1).cells))))
    text = yaml.safe_dump(experiment, sort_keys=False)
    (folder / "config" / "config.yaml").write_text(text, encoding="utf-8")
    return expansion


def filled(expansion: matrix.Matrix, template: Mapping[str, Any], folder: Path) -> None:
    """Give every cell a record, a copy of the template as far as it says what was measured."""
    for planned in expansion.cells:
        data = copy.deepcopy(dict(template)) | {"cell": asdict(planned.cell)}
        data["code"] = {"fingerprint": planned.code.sha256, "modules": dict(planned.code.modules)}
        data["environment"]["declared"] = dict(planned.environment)
        data |= {"dataset": None, "status": "skipped", "reason": "a copy"}
        data["sha256"] = record.content_sha256(data)
        text = json.dumps(data, indent=1, sort_keys=True) + "\n"
        path = folder / matrix.record_path(planned.cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        record.keep_in_history(data, text, folder / "results" / "history")


def measured(folder: Path) -> dict[str, Any]:
    """A record that was really measured, of a quick cell."""
    experiment = {
        "host": "bench",
        "timing": {"iterations": 5, "budget_s": 0.2, "warmup_budget_s": 0.1},
        "workloads": {"tiny": TINY},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(experiment), encoding="utf-8")
    snakemake(folder, "--configfile", "tiny.yaml", "--", "measured")
    (path,) = (folder / "results" / "records").rglob("*.json")
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return data


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    print("cells  asked     siliconprof / s    bare / s    ratio")
    for cells in arguments.cells:
        with tempfile.TemporaryDirectory() as scratch:
            ours, bare = Path(scratch) / "ours", Path(scratch) / "bare"
            ours.mkdir(), bare.mkdir()
            for part in PARTS:
                source = ROOT / part
                (shutil.copytree if source.is_dir() else shutil.copy2)(source, ours / part)
            (ours / "results").mkdir()
            os.environ["SILICONPROF_LOCK_FILE"] = str(Path(scratch) / "lock")
            expansion = grown(cells, ours)
            many = len(expansion.cells)
            (bare / "Snakefile").write_text(BARE.format(cells=many), encoding="utf-8")
            shutil.copytree(ROOT / "profiles", bare / "profiles")

            def compare(
                asked: str, target: str, *options: str, ours=ours, bare=bare, many=many
            ) -> None:
                taken = [
                    (
                        snakemake(ours, *options, "--", target),
                        snakemake(bare, *options, "--", "all"),
                    )
                    for _ in range(1 + arguments.repeats)
                ]
                own_s, bare_s = (min(side) for side in zip(*taken[1:], strict=True))
                ratio = own_s / bare_s
                print(f"{many:5d}  {asked:8s}  {own_s:15.2f}  {bare_s:10.2f}  {ratio:7.2f}")

            template = measured(
                ours
            )  # and what was read of the code, which a dry run does not keep
            compare("dry run", "report", "-n")
            filled(expansion, template, ours)
            data = sorted({path for planned in expansion.cells for path in planned.data})
            snakemake(ours, "--", *data)
            snakemake(ours, "--touch", "--", "measured")
            snakemake(bare, "--", "all")
            compare("no-op", "measured")
    return 0


if __name__ == "__main__":
    sys.exit(main())
