"""A host with a framework and nothing else: an environment that really holds no more than that.

Not one with modules hidden: folders of site-packages that only the framework and its own
requirements are linked into. What is measured there comes back as a bundle.
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

pytestmark = pytest.mark.slow

OURS = """numpy pandas yaml jsonschema psutil snakemake matplotlib transformers tokenizers
datasets""".split()
DATA = {
    "words": {"source": "builtin", "vocab_size": 300, "max_bytes": 50_000},
    "garments": {"kind": "images", "source": "builtin"}
    | {"n_train": 60, "n_validation": 30, "n_test": 20},
}
COMMON = {"cpu_threads": 1, "timing": QUICK, "precisions": ["fp32"], "datasets": DATA}
ENOUGH = {"energy_window_s": 0}
SMALL = {"n_layer": [1], "n_embd": [16], "n_head": [2], "seq_len": [8], "batch_size": [1]}
OF_TORCH = {
    "product": {"module": "matmul", "shapes": [[1, 16, 16, 16]], "burst": 0},
    "bandwidth": {"module": "bandwidth", "sweep_factor": 16, "burst": 0},
    "first-touch": {"module": "first_touch", "pages": [64]},
    "gpt2": NANO | {"timing": ENOUGH},
}
OF_MLX = {
    "vector": {"module": "matvec", "shapes": [[16, 16]], "burst": 0},
    "gradient": {"module": "vjp", "shapes": [[1, 16, 16, 16]], "burst": 0},
    "launch": {"module": "kernel_launch", "repeats": 10},
    "grid": {"module": "transformer_grid", "vocab_size": 64} | SMALL,
    "mlp": {"module": "mlp", "trainer": "epochs", "batch_sizes": [8]}
    | {"max_steps": 4, "max_validation_steps": 1, "max_test_steps": 1}
    | {"dataset": "garments", "timing": ENOUGH},
    "lm": {"module": "transformer_lm", "trainer": "training_run", "parameter_budget": 60_000}
    | {"aspect": "wide", "n_head": 2, "seq_len": 16, "batch_size": 2, "dataset": "words"}
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
        self.python = str(folder / "bare" / "bin" / "python")
        command = [sys.executable, "-m", "venv", "--without-pip", folder / "bare"]
        subprocess.run(command, check=True)
        install(folder / "bare", framework)
        self.path.mkdir()
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "workflow", self.path / "workflow", ignore=ignore)
        self.environment |= {"PYTHONPATH": "workflow", "PYTHON": self.python}

    def has(self, module: str) -> bool:
        """Whether a module can be imported there."""
        return self.run(self.python, "-c", f"import {module}", check=False).returncode == 0

    def asked_by(self, desk: Checkout, *carried: str) -> tuple[list[str], dict[str, Any]]:
        """Detect there, plan on the desk, carry, measure there: (what was left out, records)."""
        facts = self.run(self.python, "-m", "siliconprof.hosts.detect", "--json").stdout
        (desk.path / "box.json").write_text(facts, encoding="utf-8")
        script = desk.stage(
            "pipeline.cli", "plan", "--commands", "--facts", "box.json", "--label", "box"
        )
        (self.path / "box.sh").write_text(script.stdout, encoding="utf-8")
        to_carry = script.stdout.splitlines()[2]
        for folder in carried:
            assert folder in to_carry
            shutil.copytree(desk.path / folder, self.path / folder)
        assert "results/data" not in to_carry or carried
        done = self.run("sh", "box.sh")
        assert done.stdout.startswith("measured; now: ")
        left_out = [line for line in script.stdout.splitlines() if line.startswith("# left out: ")]
        return left_out, {r["cell"]["workload"]: r for r in self.records().values()}


def brought_back(box: Box, desk: Checkout) -> dict[str, dict[str, Any]]:
    """The records, packed there and imported on the desk."""
    bundle = str(desk.path / "box.zip")
    box.run(box.python, "-m", "siliconprof.remote.bundle_pack", "--output", bundle)
    desk.stage("pipeline.cli", "import", bundle)
    return desk.records()


def test_torch_alone(checkout: Checkout, tmp_path: Path) -> None:
    box = Box(tmp_path, "torch")
    assert box.has("torch")
    assert [name for name in (*OURS, "mlx") if box.has(name)] == []
    checkout.configure(**COMMON, workloads=OF_TORCH, backends=["torch-cpu"])
    left_out, made = box.asked_by(checkout)
    assert {name: (r["status"], r["reason"]) for name, r in made.items()} == {
        name: ("ok", None) for name in OF_TORCH if name != "gpt2"
    }
    (line,) = left_out
    assert "torch-cpu/gpt2/auto/fp32: needs numpy, transformers, which the host has not" in line
    # By hand all the same: a record that says so, in a line.
    plan = json.loads(checkout.stage("pipeline.cli", "plan", "--json").stdout)
    (cell,) = (e["cell"] for e in plan["cells"] if e["cell"]["workload"] == "gpt2")
    command = [box.python, "-m", "siliconprof.measure", "--cell", json.dumps(cell)]
    done = box.run(*command, "--output", "gpt2.json")
    said = "needs numpy, transformers, which this Python does not have: pip install numpy "
    said += "transformers"
    assert done.stderr.splitlines()[-1].endswith(f"gpt2/auto/fp32: unsupported: {said}")
    assert "Traceback" not in done.stderr
    old = box.run("env", "PYTHON=false", "sh", "box.sh", check=False)
    said = "box.sh: false is no Python 3.11 or later; set PYTHON\n"
    assert (old.returncode, old.stdout, old.stderr) == (2, "", said)
    came = brought_back(box, checkout)
    assert came == box.records() and len(came) == 3
    for record in came.values():
        assert record["environment"]["packages"].get("numpy") is None
        assert record["precision"]["effective"] == "fp32"
        assert (
            "session.measurement" in {*record["modules_loaded"]} & record["code"]["modules"].keys()
        )


def test_mlx_alone_and_then_numpy(checkout: Checkout, tmp_path: Path) -> None:
    """What was missing is installed, and the same two commands measure what was left out."""
    box = Box(tmp_path, "mlx[cpu]")
    assert box.has("mlx.core")
    assert [name for name in (*OURS, "torch", "jinja2") if box.has(name)] == []
    checkout.configure(**COMMON, workloads=OF_MLX, backends=["mlx"])
    left_out, first = box.asked_by(checkout)
    bare = ("vector", "gradient", "launch")
    assert {name: r["status"] for name, r in first.items()} == dict.fromkeys(bare, "ok")
    assert len(left_out) == 3
    assert all(line.endswith("needs numpy, which the host has not") for line in left_out)
    install(tmp_path / "bare", "numpy")
    folders = [f"results/data/{name}" for name in DATA]
    checkout.snakemake(*(f"{folder}/dataset.json" for folder in folders))
    left_out, made = box.asked_by(checkout, *folders)
    assert left_out == []
    assert {name: (r["status"], r["reason"]) for name, r in made.items()} == {
        name: ("ok", None) for name in OF_MLX
    }
    assert {name: made[name] for name in first} == first  # not measured again
    assert brought_back(box, checkout) == box.records()


def test_what_is_no_file_of_facts_is_one_line(checkout: Checkout) -> None:
    checkout.configure(workloads={"product": {"module": "matmul", "shapes": [[1, 8, 8, 8]]}})
    (checkout.path / "box.json").write_text('{"hostname": "x\\n; touch pwned"}', encoding="utf-8")
    for arguments, says in {
        ("--facts", "box.json", "--label", "box"): "box.json: no facts of a host (KeyError",
        ("--facts", "none.json", "--label", "box"): "none.json: cannot read: No such file",
        ("--facts", "box.json", "--label", "b; touch pwned"): "--label: 'b; touch pwned' is no",
    }.items():
        done = checkout.stage("pipeline.cli", "plan", "--commands", *arguments, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1 and says in done.stderr
    assert not os.path.exists(checkout.path / "pwned")
