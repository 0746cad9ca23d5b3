"""A host with a framework and what `measure` needs: environments that really hold no more than that.

Not one with modules hidden: folders of site-packages that only the framework and its own
requirements are linked into.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from conftest import NANO, QUICK, ROOT, Checkout
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from siliconprof.lifetime import PIPELINE_VARIABLE
from siliconprof.packages import REQUIRED

pytestmark = pytest.mark.campaign

OTHERS = "pandas snakemake matplotlib transformers tokenizers datasets".split()
DATA = {
    "words": {"source": "builtin", "vocab_size": 300, "max_bytes": 50_000},
    "garments": {"kind": "images", "source": "builtin"}
    | {"n_train": 60, "n_validation": 30, "n_test": 20},
}
COMMON = {"host": "desk", "cpu_threads": 1, "timing": QUICK, "precisions": ["fp32"]}
COMMON |= {"datasets": DATA}
ENOUGH = {"energy_window_s": 0}
SMALL = {"n_layer": [1], "n_embd": [16], "n_head": [2], "seq_len": [8], "batch_size": [1]}
OF_TORCH = {
    "product": {"module": "matmul", "shapes": [[1, 16, 16, 16]], "burst": 0},
    "bandwidth": {"module": "bandwidth", "sweep_factor": 16},
    "first-touch": {"module": "first_touch", "pages": [64]},
    "gpt2": NANO | {"timing": ENOUGH},
}
OF_MLX = {
    "vector": {"module": "matvec", "shapes": [[16, 16]], "burst": 0},
    "gradient": {"module": "vjp", "shapes": [[1, 16, 16, 16]], "burst": 0},
    "launch": {"module": "kernel_launch", "bursts": 10},
    "grid": {"module": "transformer_grid", "vocab_size": 64} | SMALL,
    "mlp": {"module": "mlp", "trainer": "epochs", "batch_sizes": [8]}
    | {"max_steps": 4, "max_validation_steps": 1, "max_test_steps": 1}
    | {"dataset": "garments", "timing": ENOUGH},
    "lm": {"module": "transformer_lm", "trainer": "training_run", "n_layer": 1, "n_embd": 16}
    | {"n_head": 2, "seq_len": 16, "batch_size": 2, "dataset": "words"}
    | {"steps": 4, "warmup_steps": 1, "decay_steps": 4, "evaluate_every": 2, "timing": ENOUGH}
    | {"evaluation_batches_limit": 1, "checkpoint_every": 2, "sample_tokens": 1},
}


def with_requirements(name: str) -> Iterator[metadata.Distribution]:
    """A distribution that is installed here, and what it requires to be installed beside it."""
    todo, seen = [name], set()
    while todo:
        wanted = Requirement(todo.pop())
        key = (canonicalize_name(wanted.name), *sorted(wanted.extras))
        if key in seen:
            continue
        seen.add(key)
        found = metadata.distribution(wanted.name)
        yield found
        for line in found.requires or ():
            marker = Requirement(line).marker
            extras = ("", *wanted.extras)
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                todo.append(line.partition(";")[0])


def install(environment: Path, name: str) -> None:
    """What pip would bring, as links to where it lies already."""
    (site,) = environment.glob("lib/python*/site-packages")
    for found in with_requirements(name):
        for part in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not part.endswith(".pth") and not (site / part).exists():
                (site / part).symlink_to(found.locate_file(part))


class Box(Checkout):
    """The other machine: a folder with the package in it, and a Python of its own."""

    def __init__(self, folder: Path, framework: str) -> None:
        super().__init__(folder / "box", {"SILICONPROF_LOCK_FILE": str(folder / "lock")})
        self.environment[PIPELINE_VARIABLE] = str(os.getpid())  # checks of kernels are made once
        self.python = str(folder / "bare" / "bin" / "python")
        command = [sys.executable, "-m", "venv", "--without-pip", folder / "bare"]
        subprocess.run(command, check=True)
        for name in (framework, *REQUIRED):
            install(folder / "bare", name)
        self.path.mkdir()
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "workflow", self.path / "workflow", ignore=ignore)
        self.environment |= {"PYTHONPATH": "workflow"}

    def has(self, module: str) -> bool:
        """Whether a module can be imported there."""
        return self.run(self.python, "-c", f"import {module}", check=False).returncode == 0

    def measured(self, desk: Checkout, *carried: str) -> dict[str, dict[str, Any]]:
        """Plan on the desk, carry data, measure each cell there by hand: records by workload."""
        for folder in carried:
            shutil.copytree(desk.path / folder, self.path / folder)
        plan = json.loads(desk.stage("pipeline.cli", "plan", "--json").stdout)
        for entry in plan["cells"]:
            cell = json.dumps(entry["cell"] | {"host": "box"})
            output = entry["record"].replace("/desk/", "/box/")
            command = ("-m", "siliconprof.measure", "--cell", cell, "--output", output)
            done = self.run(self.python, *command)
            assert "Traceback" not in done.stderr
        return {r["cell"]["workload"]: r for r in self.records().values()}


def test_what_is_missing_is_one_line(tmp_path: Path) -> None:
    box = Box(tmp_path, "mlx[cpu]")
    for name in ("numpy", "yaml"):
        (part,) = tmp_path.glob(f"bare/lib/python*/site-packages/{name}")
        part.unlink()
    done = box.run(box.python, "-m", "siliconprof.measure", check=False)
    said = "needs numpy, pyyaml, which this Python does not have: pip install numpy pyyaml\n"
    assert (done.returncode, done.stderr) == (2, f"siliconprof.measure {said}")


def test_torch(checkout: Checkout, tmp_path: Path) -> None:
    box = Box(tmp_path, "torch")
    assert box.has("torch")
    assert [name for name in (*OTHERS, "mlx") if box.has(name)] == []
    checkout.configure(**COMMON, workloads=OF_TORCH, backends=["torch-cpu"])
    checkout.snakemake("results/data/words/dataset.json")
    made = box.measured(checkout, "results/data/words")
    gpt2 = made.pop("gpt2")
    said = "needs transformers, which this Python does not have: pip install transformers"
    assert (gpt2["status"], gpt2["reason"]) == ("failed", said)
    assert {name: (r["status"], r["reason"]) for name, r in made.items()} == {
        name: ("ok", None) for name in OF_TORCH if name != "gpt2"
    }
    for record in made.values():
        assert record["precision"]["effective"] == "fp32"
        known = {*record["modules_loaded"]} & record["code"]["modules"].keys()
        assert "session.measurement" in known
    # Carried here, they are another host's.
    shutil.copytree(box.path / "results/records/box", checkout.path / "results/records/box")
    foreign = checkout.snakemake("-n", "results/tables/cells.csv", "--quiet", "progress").stdout
    assert "results/records/box/" in foreign


def test_mlx(checkout: Checkout, tmp_path: Path) -> None:
    box = Box(tmp_path, "mlx[cpu]")
    assert box.has("mlx.core")
    assert [name for name in (*OTHERS, "torch", "jinja2") if box.has(name)] == []
    checkout.configure(**COMMON, workloads=OF_MLX, backends=["mlx"])
    folders = [f"results/data/{name}" for name in DATA]
    checkout.snakemake(*(f"{folder}/dataset.json" for folder in folders))
    made = box.measured(checkout, *folders)
    assert {name: (r["status"], r["reason"]) for name, r in made.items()} == {
        name: ("ok", None) for name in OF_MLX
    }
