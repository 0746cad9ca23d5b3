"""What the analysis and the page cost: `python benchmarks/render.py`, two minutes or so.

Makes the results of an experiment that nobody ran, by default of 1,000 cells and 100,000 training
steps on six devices of three hosts: the records that the tests build, varied, in the project's
own format, in a temporary folder. They are SYNTHETIC and no measurement of anything; the page's
title says so. Then every stage after measuring runs as a process of its own, and each one's wall
time and largest memory are printed, with the size of the page. Times depend on the machine and on what else runs there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

import shared
import synthetic_cells as cells_
import synthetic_results as training_
from siliconprof.store import record
from siliconprof.store.cell import AXES

MIB = 2.0**20
STAGES = ("analyse.aggregate", "pipeline.analyse", "render.page")  # those after measuring
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
ADA = {"id": "rtx-4090", "registry_id": "rtx-4090", "index": 1, "name": "NVIDIA GeForce RTX 4090",
       "memory_bytes": 24 * 2**30}  # fmt: skip
PRECISIONS = ("fp32", "amp-bf16", "bf16", "amp-fp16", "tf32")
BATCH_SIZES = (4, 8, 16, 32)
# (model, seconds of a step on an H200 at batch 4, MiB)
MODELS = (("gpt2-nano", 0.0006, 60), ("gpt2-small", 0.02, 2400), ("whisper-tiny", 0.009, 900))
TRAINERS = ("plain", "hf")
OUTCOMES = ("oom", "timeout", "unsupported")


def places() -> Iterator[tuple[Mapping[str, Any], float]]:
    """(the axes of a cell at a place, how many times as long it takes there)."""
    for *axes, slower in PLACES:
        yield dict(zip(("host", "device", "backend", "device_kind"), axes, strict=True)), slower


def trained(steps: int, draw: random.Random) -> Iterator[Made]:
    """Training cells without end: models by batch size, trainer and precision, at every place.

    Args:
        steps: of each, half of them split into phases.
    """
    settings = product(BATCH_SIZES, PRECISIONS, MODELS, TRAINERS, places())
    for batch, precision, (model, seconds, mib), trainer, (axes, slower) in cycle(settings):
        faster = 1.0 if precision in ("fp32", "tf32") else 0.6
        step_s = seconds * slower * batch / 4 * faster * draw.uniform(0.9, 1.1)
        module, size = model.split("-")
        made = training_.training(
            step_s,
            [6.0 / (1 + 0.02 * i) + draw.gauss(0, 0.02) for i in range(steps)],
            samples=batch,
            module=module,
            workload=f"{model}-b{batch}-{trainer}",
            parameters={"size": size, "batch_size": batch},
            precision=precision,
            trainer=trainer,
            **axes,
        )
        point, half = made["points"][0], steps // 2
        whole = [step_s * draw.lognormvariate(0, 0.02) for _ in range(half)]
        split = [1.01 * step_s * draw.lognormvariate(0, 0.02) for _ in range(half)]
        point["times"] |= {"whole_step_s": whole, "step_s": split} | {
            name: [share * s for s in split] for name, share in training_.PHASES.items()
        }
        point["steps"] = {
            "kind": ["split", "whole"] * half,
            "started_s": [step_s * i for i in range(2 * half)],
            "minor_faults": [int(draw.expovariate(1 / 40)) for _ in range(2 * half)],
            "major_faults": [0] * (2 * half),
        }
        peak_bytes = int(mib * MIB * (0.5 + batch / 8))
        point["memory"]["device_peak_bytes"] = peak_bytes
        made["scenario"]["predicted_bytes"] = int(1.05 * peak_bytes)
        held = mib * MIB if axes["device_kind"] == "gpu" else None
        made["samples"] = [
            sample | {"t_s": 0.1 * i, "device_memory_bytes": held}
            for i, sample in enumerate(made["samples"] * 8)
        ]
        if draw.random() < 0.04:
            made = training_.without_result(made, draw.choice(OUTCOMES), "synthetic: not run")
        yield made


def others() -> Iterator[Made]:
    """Everything that is no plain training, at every place."""
    shapes = [(1, n, n, n) for n in (64, 256, 512, 1024, 2048)] + [(8, 512, 512, 512)]
    for axes, slower in places():
        for precision in PRECISIONS:
            points = [cells_.product(s, 5e13 / slower / (1 + 2e7 / s[1] ** 3)) for s in shapes]
            yield cells_.products(points, precision=precision, **axes)
        rates = {(n, n, c): 2e12 / slower for n in (256, 4096) for c in ("warm", "cold")}
        passes = {(n, f): 3e13 / slower for n in (64, 512) for f in ("with", "without")}
        yield training_.kernel_launch(**axes)
        yield cells_.bandwidth(3e12 / slower, 9e12 / slower, **axes)
        yield cells_.matvec(rates, **axes)
        yield cells_.vjp(passes, **axes)
        for precision in ("fp32", "bf16"):
            yield cells_.grid(cells_.small_grid(), precision=precision, **axes)
        yield cells_.sweep(**axes)
        yield cells_.whole_training("wide", 0.01 * slower, **axes)
        yield cells_.whole_training("deep", 0.02 * slower, **axes)
        for name in cells_.PARAMETERS:
            yield cells_.network(name, {32: 2e-4 * slower, 128: 3e-4 * slower}, **axes)


def synthetic(folder: Path, cells: int, steps: int, seed: int) -> Path:
    """A results folder of so many cells, the trainings among them with so many steps in all."""
    made = list(islice(others(), max(cells // 4, 1)))
    trainings = max(cells - len(made), 0)
    each = max(steps // max(trainings, 1), 4)
    unique: dict[tuple[str, ...], Made] = {}
    for data in [*made, *islice(trained(each, random.Random(seed)), trainings)]:
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
    host = training_.host_file([training_.H200, training_.H200 | ADA, training_.CPU])
    matrix = {
        "experiment": {"experiment": "synthetic", "report": {"title": "SYNTHETIC, not measured"}},
        "host": host,
        "hosts": [host],
        "cells": planned,
        "not_measured": [],
    }
    (results / "matrix.json").write_text(json.dumps(matrix), encoding="utf-8")
    return results


def run(folder: Path, module: str) -> dict[str, float]:
    """Wall time and largest resident memory of one stage's process.

    Raises:
        SystemExit: it failed.
    """
    environment = os.environ | {"PYTHONPATH": str(shared.ROOT / "workflow")}
    command = [sys.executable, "-m", f"siliconprof.{module}", "--matrix", "results/matrix.json"]
    started = time.perf_counter()
    stage = subprocess.Popen(command, cwd=folder, env=environment)
    _, stage.returncode, used = os.wait4(stage.pid, 0)
    if stage.returncode:
        raise SystemExit(f"siliconprof.{module} failed; see above")
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    return {
        "wall_s": time.perf_counter() - started,
        "processor_s": used.ru_utime + used.ru_stime,
        "peak_rss_bytes": used.ru_maxrss * unit,
    }


def main() -> int:
    """Make results, run every stage, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100_000, help="training steps of all cells")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="work in this new folder and leave it")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (arguments.keep or Path(scratch) / "made").resolve()
        folder.mkdir(parents=True)
        results = synthetic(folder, arguments.cells, arguments.steps, arguments.seed)
        used = {module: run(folder, module) for module in STAGES}
        page_bytes = (results / "report.html").stat().st_size
    if arguments.json:
        print(json.dumps({"page_bytes": page_bytes, "stages": used}))
        return 0
    for module, stage in used.items():
        print(
            f"{module:17} {stage['wall_s']:8.1f} s, {stage['processor_s']:.1f} s of a processor   "
            f"peak RSS {stage['peak_rss_bytes'] / MIB:8.0f} MiB"
        )
    print(f"page              {page_bytes / 1e6:8.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
