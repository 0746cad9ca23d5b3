"""Hosts with a simulated GPU: what their system brings, the variables that put a process there, a run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from conftest import QUICK, ROOT, Checkout, copy_project
from project_copy import script

HERE = Path(__file__).parent
ACCEPT = "SILICONPROF_ACCEPT_SIMULATED"
RECOMMENDED_BYTES = 16 * 2**30  # of the Mac's memory, by Metal
GPT2 = {"module": "gpt2", "size": "nano", "batch_size": 4, "seq_len": 32, "dataset": "words"}
TIMING = QUICK | {"iterations": 4, "max_iterations": 4, "energy_window_s": 0, "retries": 0}


def _compiled(source: Path, library: Path, *options: str) -> str:
    command = ["c++", "-shared", "-fPIC", "-O0", "-std=c++20", str(source), *options]
    subprocess.run([*command, "-o", library], check=True)
    return str(library)


def _below_torch(folder: Path, *options: str) -> str:
    """The library that stands below torch, against its own."""
    import torch

    own = Path(torch.__file__).parent
    options += (f"-I{own}/include", f"-L{own}/lib", f"-Wl,-rpath,{own}/lib", "-lc10", "-ltorch_cpu")
    return _compiled(HERE / "device.cpp", folder / "device.so", *options)


def _environment(spec: dict[str, Any], **more: str) -> dict[str, str]:
    path = f"{HERE}{os.pathsep}{ROOT / 'workflow'}"
    own = {"SILICONPROF_SIMULATED": json.dumps(spec), ACCEPT: "1", "PYTHONPATH": path}
    return own | {"PYTEST_XDIST_WORKER": ""} | more


def h200(folder: Path) -> dict[str, str]:
    """The environment in which frameworks find an H200, with its driver's libraries in a folder."""
    _compiled(HERE.parent / "fake_nvml.cpp", folder / "libnvidia-ml.so.1")
    script(folder / "nvidia-smi", "echo 'NVIDIA H200, 2256, 580.65.06'")
    path = os.pathsep.join(map(str, (Path(sys.executable).parent, folder, os.environ["PATH"])))
    spec = {"library": _below_torch(folder)}
    return _environment(spec, LD_LIBRARY_PATH=str(folder), PATH=path)


def this_host(folder: Path, **more: Any) -> dict[str, str]:
    """The environment in which Python is on this host; `more` as simulated/sitecustomize.py reads it."""
    return _environment(more)


def m2(folder: Path, **more: Any) -> dict[str, str]:
    """The environment in which Python is on a Mac with an M2, with its libraries in a folder."""
    spec = {"memory_bytes": 24 * 2**30, "recommended_bytes": RECOMMENDED_BYTES} | more
    spec |= {"macos": _compiled(HERE.parent / "fake_macos.cpp", folder / "macos.so")}
    return _environment(spec | {"library": _below_torch(folder, "-DPLAYED_MPS")})


def measured(
    folder: Path, environment: dict[str, str], target: str, workloads: dict[str, dict[str, Any]]
) -> Checkout:
    """A copy of the project that has measured these workloads on a simulated GPU, in fp32 by default."""
    copy = copy_project(folder / "project")
    for module in HERE.glob("*.py"):  # the rules put this folder on Python's path
        shutil.copy2(module, copy.path / "workflow")
    copy.environment |= environment | {"PYTHONPATH": str(copy.path / "workflow")}
    copy.environment["SILICONPROF_LOCK_FILE"] = str(folder / "host.lock")
    common = {"timing": TIMING, "device_kinds": ["gpu"]}
    copy.configure(
        experiment="simulated",
        host="desk",
        devices=["local"],
        precisions=["fp32"],
        datasets={"words": {"source": "builtin", "vocab_size": 512}},
        workloads={name: common | workload for name, workload in workloads.items()},
    )
    copy.snakemake(target)
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
