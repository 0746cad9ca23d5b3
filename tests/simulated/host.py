"""Hosts with simulated GPUs: what their system brings, and the variables that put a process there."""

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
GIB = 2**30
RECOMMENDED_BYTES = 16 * GIB  # of the Mac's memory, by Metal
# test_plugins.py: what it asks of every backend but for two kernels whose simulated seconds are many,
# and that a training is the same as on the CPU.
SELECTED = "(torch-cuda and not copy and not bandwidth) or does_the_same_training"


def compiled(source: Path, library: Path, standard: str, *torch: str) -> None:
    """Compile a library, against torch's own where some are named."""
    command = ["c++", "-shared", "-fPIC", "-O0", f"-std={standard}", str(source)]
    if torch:
        import torch as installed

        folder = Path(installed.__file__).parent
        command += [f"-I{folder / 'include'}", f"-L{folder / 'lib'}"]
        command += [f"-Wl,-rpath,{folder / 'lib'}", *(f"-l{name}" for name in torch)]
    subprocess.run([*command, "-o", library], check=True)


def build(folder: Path) -> Path:
    """Put an NVIDIA driver's libraries and nvidia-smi there."""
    compiled(HERE.parent / "fake_nvml.cpp", folder / "libnvidia-ml.so.1", "c++17")
    compiled(HERE / "cuda.cpp", folder / "simulated_cuda.so", "c++20", "c10", "torch_cpu")
    smi = folder / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA H200, 2256, 580.65.06'\n", encoding="utf-8")
    smi.chmod(0o755)
    return folder


def build_mac(folder: Path) -> Path:
    """Put macOS's libraries there."""
    compiled(HERE.parent / "fake_macos.cpp", folder / "macos.so", "c++17")
    compiled(HERE / "metal.cpp", folder / "metal.so", "c++20", "c10", "torch_cpu")
    return folder


def _environment(spec: dict[str, Any]) -> dict[str, str]:
    return {
        "SILICONPROF_SIMULATED": json.dumps(spec),
        ACCEPT: "1",
        "PYTHONPATH": str(HERE),
        "PYTEST_XDIST_WORKER": "",
    }


def simulated(driver: Path, *gpus: str, **more: Any) -> dict[str, str]:
    """The environment in which frameworks find these NVIDIA GPUs."""
    spec = {
        "gpus": [
            {"name": name, "uuid": f"{'MIG' if 'MIG' in name else 'GPU'}-{UUID.format(index)}"}
            for index, name in enumerate(gpus)
        ],
        "library": str(driver / "simulated_cuda.so"),
        **more,
    }
    path = map(str, (Path(sys.executable).parent, driver, os.environ["PATH"]))
    return _environment(spec) | {
        "LD_LIBRARY_PATH": str(driver),
        "PATH": os.pathsep.join(path),
    }


def simulated_mac(system: Path, **more: Any) -> dict[str, str]:
    """The environment in which Python is on a Mac with an M2."""
    spec = {"memory_bytes": 24 * GIB, "recommended_bytes": RECOMMENDED_BYTES}
    libraries = {"library": str(system / "metal.so"), "macos": str(system / "macos.so")}
    return _environment(spec | libraries | more)


def paths(tests: Path) -> dict[str, str]:
    """Python's path to the layer and the package of the checkout that has these tests."""
    return {"PYTHONPATH": f"{tests / 'simulated'}{os.pathsep}{tests.parent / 'workflow'}"}


def contract_mac(tests: Path, name: str, folder: Path) -> list[str]:
    """Arguments of Python that run the quick tests of a backend on a simulated Mac, in that folder."""
    folder.mkdir(exist_ok=True)
    return [str(tests / "simulated" / "contract_mac.py"), name, str(folder)]


def contract(tests: Path, folder: Path) -> list[str]:
    """Arguments of Python that run the quick tests of a simulated GPU.

    Args:
        folder: where they write.
    """
    pytest = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--basetemp={folder}"]
    of_a_card = f"({SELECTED}) or simulated_card"
    return [
        *pytest,
        "-k",
        of_a_card,
        *map(str, (tests / "test_plugins.py", tests / "simulated/checks.py")),
    ]
