"""What the analysis and the page cost: `python benchmarks/render.py`, two minutes or so.

Makes the results of an experiment that nobody ran, by default of 1,000 cells and 100,000 training
steps on six devices of three hosts: the records that the tests build, varied, in the project's
own format, in a temporary folder. They are SYNTHETIC and no measurement of anything; the page's
title says so. Then every stage after measuring runs as a process of its own, and each one's wall
time and largest memory are printed, with the size of the page and of the files beside it.

`--results DIR` does the same with the results of a real run, in a copy, for example `results`.
Times depend on the machine and on what else runs there: `quoted` ones come from a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "workflow"), str(ROOT / "tests")]

import synthetic_cells as cells_  # noqa: E402
import synthetic_results as training_  # noqa: E402
from siliconprof.store import record  # noqa: E402
from siliconprof.store.cell import AXES  # noqa: E402

MIB = 2.0**20
Made = dict[str, Any]

# (host, device, backend, kind, how many times as long a step takes as on an H200)
PLACES = (
    ("desk", "h200", "torch-cuda", "gpu", 1.0),
    ("desk", "rtx-4090", "torch-cuda", "gpu", 1.9),
    ("desk", "cpu-x", "torch-cpu", "cpu", 150.0),
    ("desk", "cpu-x", "mlx", "cpu", 260.0),
    ("studio", "m2-ultra-76", "torch-mps", "gpu", 9.0),
    ("studio", "m2-ultra-76", "mlx", "gpu", 7.5),
    ("studio", "cpu-m2", "torch-cpu", "cpu", 110.0),
    ("box", "rtx-a6000", "torch-cuda", "gpu", 2.6),
)
PRECISIONS = ("fp32", "amp-bf16", "bf16", "amp-fp16", "tf32")
BATCH_SIZES = (4, 8, 16, 32)
# (model, seconds of a step on an H200 at batch 4, MiB)
MODELS = (("gpt2-nano", 0.0006, 60), ("gpt2-small", 0.02, 2400), ("whisper-tiny", 0.009, 900))
TRAINERS = ("plain", "hf")
OUTCOMES = ("oom", "timeout", "unsupported")


def place(index: int) -> Mapping[str, Any]:
    """The axes of a cell at a place."""
    host, device, backend, kind, _ = PLACES[index]
    return {"host": host, "device": device, "backend": backend, "device_kind": kind}


def devices() -> list[Mapping[str, Any]]:
    """What this host has."""
    ada = training_.H200 | {
        "id": "rtx-4090",
        "registry_id": "rtx-4090",
        "index": 1,
        "name": "NVIDIA GeForce RTX 4090",
        "memory_bytes": 24 * 2**30,
    }
    return [training_.H200, ada, training_.CPU]


def trained(steps: int, draw: random.Random) -> Iterator[Made]:
    """Training cells without end: models by batch size, trainer and precision, at every place.

    Args:
        steps: of each, half of them split into phases.
    """
    settings = product(BATCH_SIZES, PRECISIONS, MODELS, TRAINERS, range(len(PLACES)))
    for batch, precision, (model, seconds, mib), trainer, at in cycle(settings):
        own = place(at) | {"precision": precision, "trainer": trainer}
        faster = 1.0 if precision in ("fp32", "tf32") else 0.6
        step_s = seconds * PLACES[at][4] * batch / 4 * faster * draw.uniform(0.9, 1.1)
        made = training_.training(
            step_s,
            samples=batch,
            module=model.split("-")[0],
            workload=f"{model}-b{batch}-{trainer}",
            parameters={"size": model.split("-")[1], "batch_size": batch},
            **own,
        )
        point = made["points"][0]
        half = steps // 2
        whole = [step_s * draw.lognormvariate(0, 0.02) for _ in range(half)]
        split = [1.01 * step_s * draw.lognormvariate(0, 0.02) for _ in range(half)]
        point["times"] |= {"unsplit_step_s": whole, "step_s": split} | {
            name: [share * s for s in split] for name, share in training_.PHASES.items()
        }
        point["loss"] = [6.0 / (1 + 0.02 * i) + draw.gauss(0, 0.02) for i in range(steps)]
        point["steps"] = {
            "kind": ["split", "unsplit"] * half,
            "started_s": [step_s * i for i in range(2 * half)],
            "minor_faults": [int(draw.expovariate(1 / 40)) for _ in range(2 * half)],
            "major_faults": [0] * (2 * half),
        }
        point["memory"]["device_peak_bytes"] = int(mib * MIB * (0.5 + batch / 8))
        made["scenario"]["predicted_bytes"] = int(1.05 * mib * MIB * (0.5 + batch / 8))
        gpu = own["device_kind"] == "gpu"
        made["samples"] = [
            {
                "t_s": 0.1 * i,
                "rss_bytes": 4e8 + 1e7 * draw.random(),
                "minor_faults": 40 * i,
                "major_faults": 0,
                "device_memory_bytes": mib * MIB if gpu else None,
            }
            for i in range(40)
        ]
        if draw.random() < 0.04:
            made = training_.without_result(made, draw.choice(OUTCOMES), "synthetic: not run")
        yield made


def others() -> Iterator[Made]:
    """Everything that is no plain training, at every place."""
    for at in range(len(PLACES)):
        slower = PLACES[at][4]
        axes = place(at)
        shapes = [(1, n, n, n) for n in (64, 256, 512, 1024, 2048)] + [(8, 512, 512, 512)]
        for precision in PRECISIONS:
            points = [cells_.product(s, 5e13 / slower / (1 + 2e7 / s[1] ** 3)) for s in shapes]
            yield cells_.products(points, precision=precision, **axes)
        yield training_.kernel_launch(**axes)
        yield cells_.bandwidth(3e12 / slower, 9e12 / slower, **axes)
        yield cells_.matvec(
            {(n, n, c): 2e12 / slower for n in (256, 4096) for c in ("warm", "cold")}, **axes
        )
        yield cells_.vjp(
            {(n, f): 3e13 / slower for n in (64, 512) for f in ("with", "without")}, **axes
        )
        for precision in ("fp32", "bf16"):
            yield cells_.grid(cells_.small_grid(), precision=precision, **axes)
        yield cells_.sweep(**axes)
        yield cells_.whole_training("wide", 0.01 * slower, **axes)
        yield cells_.whole_training("deep", 0.02 * slower, **axes)
        for name in cells_.PARAMETERS:
            yield cells_.network(name, {32: 2e-4 * slower, 128: 3e-4 * slower}, **axes)


def synthetic(folder: Path, cells: int, steps: int, seed: int) -> Path:
    """A results folder of so many cells, the trainings among them with so many steps in all."""
    draw = random.Random(seed)
    made = list(islice(others(), max(cells // 4, 1)))
    trainings = max(cells - len(made), 0)
    each = max(steps // max(trainings, 1), 4)
    unique: dict[tuple[str, ...], Made] = {}
    for data in [*made, *islice(trained(each, draw), trainings)]:
        cell = data["cell"]
        again = 0
        while (key := tuple(cell[axis] for axis in AXES)) in unique:
            again += 1  # more cells than settings: the same again under another name
            cell["workload"] = f"{cell['workload'].split('-again')[0]}-again{again}"
        unique[key] = data
    results = folder / "results"
    planned = []
    for key, data in unique.items():
        path = results.joinpath("records", *key[:-1], f"{key[-1]}.json")
        own = key[0] == "desk"
        record.write(data, path, results / "history" if own else None)
        if own:
            planned.append({"cell": data["cell"], "record": path.relative_to(folder).as_posix()})
    matrix = {
        "experiment": {"experiment": "synthetic", "report": {"title": "SYNTHETIC, not measured"}},
        "host": training_.host_file(devices()),
        "cells": planned,
        "not_measured": [],
    }
    (results / "matrix.json").write_text(json.dumps(matrix), encoding="utf-8")
    return results


def stages(results: Path, jobs: int | None) -> dict[str, list[str]]:
    """The command line of every stage after measuring, run in the folder that holds `results`."""
    tables = ["--tables", "results/tables"]
    matrix = ["--matrix", "results/matrix.json"]
    registry = ["--registry", str(ROOT / "config/devices.yaml")]
    published = ["--published", str(ROOT / "config/published")]
    out = ["--output-dir", "results/tables"]
    bundles = sorted(path.as_posix() for path in results.glob("reference/*"))
    floors = sorted(f"results/noise-floor/{p.name}" for p in results.glob("noise-floor/*.json"))
    known = ["--noise-floors", *floors] if floors else []
    drawn = ["--drawn", "results/drawn"]
    analysed = [*matrix, *tables, *registry, *known]
    return {
        "analyse.aggregate": [
            *matrix,
            "--results",
            "results",
            *out,
            *(["--reference", *bundles] if bundles else []),
        ],
        "pipeline.analyse": [
            *analysed,
            *("--claims", str(ROOT / "config/claims.yaml"), *published, *out),
        ],
        "render.draw": [
            *analysed,
            *published,
            *drawn,
            *("--figures", "results/figures", "--page", "results/report.html"),
            *(["--jobs", str(jobs)] if jobs else []),
        ],
        "render.page": [
            *drawn,
            *("--template", str(ROOT / "report")),
            *("--figures", "results/figures", "--output", "results/report.html"),
        ],
    }


def run(folder: Path, module: str, arguments: Sequence[str]) -> tuple[float, float]:
    """(seconds, largest resident bytes of the process) of one stage.

    Raises:
        SystemExit: it failed.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow")}
    started = time.perf_counter()
    child = os.posix_spawn(
        sys.executable,
        [
            sys.executable,
            "-c",
            f"import os; os.chdir({str(folder)!r}); "
            f"import runpy, sys; sys.argv[1:] = {list(arguments)!r}; "
            f"runpy.run_module('siliconprof.{module}', run_name='__main__')",
        ],
        environment,
    )
    _, status, used = os.wait4(child, 0)
    if status:
        raise SystemExit(f"siliconprof.{module} failed; see above")
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    return time.perf_counter() - started, used.ru_maxrss * unit


def copied(source: Path, folder: Path) -> Path:
    """A run's results without what the stages make, so that the run stays as it is.

    Raises:
        SystemExit: no such results.
    """
    if not (source / "matrix.json").is_file():
        raise SystemExit(f"{source}: no results: no matrix.json in it")
    made = shutil.ignore_patterns(
        "figures", "tables", "report.html", "study.html", "logs", "data", "captures"
    )
    return Path(shutil.copytree(source, folder / "results", ignore=made))


def main() -> int:
    """Make or copy results, run every stage, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100_000, help="training steps of all cells")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, help="those of a real run instead")
    parser.add_argument("--jobs", type=int, help="processes that draw; all processors by default")
    parser.add_argument("--keep", type=Path, help="work in this new folder and leave it")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (arguments.keep or Path(scratch) / "made").resolve()
        folder.mkdir(parents=True)
        if arguments.results:
            results = copied(arguments.results, folder)
        else:
            results = synthetic(folder, arguments.cells, arguments.steps, arguments.seed)
        commands = stages(results, arguments.jobs)
        used = {name: run(folder, name, command) for name, command in commands.items()}
        page = (results / "study.html").stat().st_size
        html = (results / "study.html").read_text(encoding="utf-8")
        files = [path.stat().st_size for path in (results / "figures").iterdir()]
        lines = {
            name: _lines(results / f"tables/{name}.csv") for name in ("cells", "training_steps")
        }
    found = {
        "cells": lines["cells"],
        "training_steps": lines["training_steps"],
        "page_bytes": page,
        "figures": html.count('<figure id="figure-'),
        "tables": html.count('<figure class="table"'),
        "files": len(files),
        "files_bytes": sum(files),
        "stages": {
            name: {"wall_s": wall_s, "peak_rss_bytes": rss} for name, (wall_s, rss) in used.items()
        },
    }
    print(json.dumps(found, indent=1) if arguments.json else told(found))
    return 0


def _lines(table: Path) -> int:
    with open(table, encoding="utf-8") as stream:
        return sum(1 for _ in stream) - 1


def told(found: Mapping[str, Any]) -> str:
    """The findings for a person."""
    lines = [
        f"{name:12} {stage['wall_s']:8.1f} s   peak RSS {stage['peak_rss_bytes'] / MIB:8.0f} MiB"
        for name, stage in found["stages"].items()
    ]
    return "\n".join(
        [
            f"{found['cells']} cells, {found['training_steps']} training steps",
            *lines,
            f"page         {found['page_bytes'] / 1e6:8.2f} MB   {found['figures']} figures and "
            f"{found['tables']} tables on it",
            f"files        {found['files_bytes'] / 1e6:8.2f} MB   in {found['files']} files",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
