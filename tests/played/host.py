"""A host with played GPUs: what its driver brings, and the variables that put it there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
UUID = "fa4e0000-0000-0000-0000-{:012d}"
ACCEPT = "SILICONPROF_ACCEPT_EMULATED"
# test_plugins.py: what it asks of every backend but for two kernels whose played seconds are many,
# and that a training is the same as on the CPU.
SELECTED = "(torch-cuda and not copy and not bandwidth) or does_the_same_training"


def build(folder: Path) -> Path:
    """Put a driver's libraries and nvidia-smi there."""
    import torch

    installed = Path(torch.__file__).parent
    build = ["c++", "-shared", "-fPIC", "-O0"]
    nvml = [*build, "-std=c++17", HERE.parent / "fake_nvml.cpp", "-o", folder / "libnvidia-ml.so.1"]
    libraries = [
        f"-L{installed / 'lib'}",
        "-lc10",
        "-ltorch_cpu",
        f"-Wl,-rpath,{installed / 'lib'}",
    ]
    hooks = [*build, "-std=c++20", f"-I{installed / 'include'}", HERE / "cuda.cpp"]
    subprocess.run(nvml, check=True)
    subprocess.run([*hooks, "-o", folder / "played_cuda.so", *libraries], check=True)
    smi = folder / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA H200, 2256, 580.65.06'\n", encoding="utf-8")
    smi.chmod(0o755)
    return folder


def played(driver: Path, *gpus: str, **more: Any) -> dict[str, str]:
    """The environment in which torch finds these GPUs."""
    spec = {
        "gpus": [
            {"name": name, "uuid": f"{'MIG' if 'MIG' in name else 'GPU'}-{UUID.format(index)}"}
            for index, name in enumerate(gpus)
        ],
        "library": str(driver / "played_cuda.so"),
        **more,
    }
    path = map(str, (Path(sys.executable).parent, driver, os.environ["PATH"]))
    return {
        "SILICONPROF_PLAYED": json.dumps(spec),
        ACCEPT: "1",
        "PYTHONPATH": str(HERE),
        "LD_LIBRARY_PATH": str(driver),
        "PATH": os.pathsep.join(path),
        "PYTEST_XDIST_WORKER": "",
    }


def paths(tests: Path) -> dict[str, str]:
    """Python's path to the layer and the package of the checkout that has these tests."""
    return {"PYTHONPATH": f"{tests / 'played'}{os.pathsep}{tests.parent / 'workflow'}"}


def contract(tests: Path, folder: Path) -> list[str]:
    """Arguments of Python that run the quick tests of a played GPU.

    Args:
        folder: where they write.
    """
    pytest = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--basetemp={folder}"]
    of_a_card = f"({SELECTED}) or played_card"
    return [
        *pytest,
        "-k",
        of_a_card,
        *map(str, (tests / "test_plugins.py", tests / "played/checks.py")),
    ]
