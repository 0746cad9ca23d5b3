"""A small experiment on a simulated device, through the front door."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from conftest import QUICK, Checkout, copy_project
from host import HERE

GPT2 = {"module": "gpt2", "size": "nano", "batch_size": 4, "seq_len": 32, "dataset": "words"}
TIMING = QUICK | {"iterations": 4, "max_iterations": 4, "energy_window_s": 0, "retries": 0}


def prepared(
    folder: Path, environment: dict[str, str], workloads: dict[str, dict[str, Any]]
) -> Checkout:
    """A copy of the project that measures these workloads on a simulated GPU, in fp32 by default."""
    copy = copy_project(folder / "project")
    for module in HERE.glob("*.py"):  # the rules put this folder on Python's path
        shutil.copy2(module, copy.path / "workflow")
    copy.environment |= environment | {"PYTHONPATH": str(copy.path / "workflow")}
    copy.environment["SILICONPROF_LOCK_FILE"] = str(folder / "host.lock")
    copy.configure(
        experiment="simulated",
        host="desk",
        devices=["local"],
        precisions=["fp32"],
        datasets={"words": {"source": "builtin", "vocab_size": 512}},
        workloads={
            name: {"timing": TIMING, "device_kinds": ["gpu"]} | workload
            for name, workload in workloads.items()
        },
    )
    return copy


def record(run: Checkout, **axes: str) -> dict[str, Any]:
    """The record of the cell that is there by these axes, in fp32 unless they say otherwise."""
    asked = {"precision": "fp32"} | axes
    (found,) = (
        record
        for record in run.records().values()
        if all(record["cell"][axis] == value for axis, value in asked.items())
    )
    return found
