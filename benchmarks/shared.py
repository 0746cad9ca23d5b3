"""What benchmarks share: copies of this checkout, an experiment of cheap cells, ratios."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow"))
sys.path.append(str(ROOT / "tests"))

from siliconprof import plugins
from siliconprof.session import inventory
from siliconprof.stats.statistics import median, median_interval

PARTS = (
    *("workflow", "config", "envs", "profiles", "report", "benchmarks"),
    "pyproject.toml",
)
CONFIG = str(ROOT / "config" / "config.yaml")
TIMING = {"warmup_iterations": 1, "warmup_budget_s": 0, "iterations": 3, "max_iterations": 3,
          "budget_s": 0, "energy_window_s": 0}  # fmt: skip
# Images for containers set it: every process would compile this package anew.
USUAL = {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def experiment(n_workloads: int, **more: Any) -> str:
    """A config of matrix products that take next to nothing: what surrounds them is looked at.

    Args:
        more: keys of the config.
    """
    product = {"module": "matmul", "search_budget_s": 0, "device_kinds": ["cpu"]}
    workloads = {
        f"mm{index}": product | {"shapes": [[1, 8, 8, index + 1]]} for index in range(n_workloads)
    }
    axes = {
        "backends": ["mlx"],
        "precisions": ["fp32"],
        "timing": TIMING,
        "remeasure_contended_s": 0,
    }
    return json.dumps(axes | {"workloads": workloads} | more)  # YAML, with no anchors


def copied(folder: Path, *ignored: str) -> Path:
    """A copy of this checkout without results."""
    folder.mkdir(parents=True)
    ignore = shutil.ignore_patterns("*.egg-info", "*.zip", *ignored)
    for part in PARTS:
        if (ROOT / part).is_dir() and not (ROOT / part).is_symlink():
            shutil.copytree(ROOT / part, folder / part, ignore=ignore)
        else:
            shutil.copy2(ROOT / part, folder / part, follow_symlinks=False)
    (folder / "results").mkdir()
    return folder


def python(*words: str, folder: Path = ROOT, **more: str) -> str:
    """What `python -m …` prints in a checkout.

    Args:
        more: environment variables.

    Raises:
        SystemExit: it fails; the message has the end of what it wrote.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # rules say `python`
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(folder / "workflow")} | more
    command = [sys.executable, "-m", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: exit {done.returncode}\n{done.stderr[-4000:]}")
    return done.stdout


def planned_cells(configfile: str, *config: str) -> list[dict[str, Any]]:
    """The cells that a config has on this host's CPU, without their energy windows.

    Args:
        config: what Snakemake's `--config` would lay over it, such as `model=folder`.
    """
    only = ("--configfile", configfile, "--replace-workflow-config")
    only += ("--config", *config) if config else ()
    plan = json.loads(python("siliconprof.pipeline.cli", "plan", *only, "--json"))
    cells = [entry["cell"] for entry in plan["cells"]]
    for cell in cells:
        cell["timing"]["energy_window_s"] = 0
    return [cell for cell in cells if cell["device_kind"] == "cpu"]


def measured(cell: str, folder: Path, **more: str) -> dict[str, Any]:
    """The record of a cell that is measured by its command, whatever its status."""
    output = folder / "record.json"
    python("siliconprof.measure", "--cell", cell, "--output", str(output), **more)
    return dict(json.loads(output.read_text(encoding="utf-8")))


def workload_of(module: str, **parameters: Any) -> Any:
    """A workload, with defaults filled in as a config would."""
    plugin = plugins.load("workloads", module)
    return plugin(plugin.defaults() | parameters)


def trained(workload: Any, backend: str, precision: str, threads: int) -> inventory.Training:
    """A training on this host's CPU, with a blank batch, that takes a step on request."""
    parameters = workload.parameters | {"dataset_vocab_size": workload.vocab_size}
    return inventory.Training(workload, parameters, backend, precision, threads)


def whole_step_s(training: inventory.Training) -> float:
    """Seconds of one more whole step."""
    training.clock.start(split=False)
    loss = training.step()
    seconds, _ = training.clock.stop()
    loss()
    return seconds


def ratio(ones: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """The median over rounds of one side over the other, and the ends of its 95 % interval.

    The interval is by order statistics: now and then a process is slow for all of its life.
    """
    ratios = [one / other for one, other in zip(ones, others, strict=True)]
    return (median(ratios), *median_interval(ratios))


def as_ratio(found: Sequence[float]) -> str:
    """A ratio with its 95 % interval."""
    middle, low, high = found
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"
