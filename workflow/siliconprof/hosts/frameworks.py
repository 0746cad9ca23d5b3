"""Probes one framework in a process of its own: does it work, with which BLAS and which GPUs?

    python -m siliconprof.hosts.frameworks torch

`detect` runs one such process for each framework, because an import can abort or hang. The
answer is one line of JSON after a mark, since frameworks print banners of their own.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from siliconprof import plugins
from siliconprof.hosts import blas, machine
from siliconprof.lifetime import leave

ANSWER_MARK = "siliconprof-answer: "
SMALL = 64  # rows and columns of the product that proves a device to work


def _fault(function: Callable[[int], None], index: int) -> str | None:
    """What a call raises, in one line; None when it works."""
    try:
        function(index)
    except Exception as error:  # each framework has errors of its own
        return one_line(error)
    return None


def _some_work(devices: list[dict[str, Any]]) -> dict[str, Any]:
    """The devices, if at least one works: an unsupported card does not disable the others."""
    if not devices:
        raise RuntimeError("no GPU is visible; CUDA_VISIBLE_DEVICES may hide it")
    if all(device["error"] for device in devices):
        raise RuntimeError(devices[0]["error"])
    return {"devices": devices}


def one_line(error: BaseException) -> str:
    """An exception's type and the first line of its message."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def _torch() -> dict[str, Any]:
    """torch on the CPU: version, BLAS, and which GPUs it was built for."""
    import torch

    ones = torch.ones(SMALL, SMALL)
    (ones @ ones).sum().item()
    built = torch.__config__.show()
    mkl = re.search(r"Math Kernel Library Version (\S+)", built)
    preloaded = blas.owner("sgemm_")
    if mkl and not preloaded:
        blas_name: str | None = f"oneMKL {mkl[1].removesuffix('-Product')} (in torch)"
    else:
        owner = preloaded or blas.owner("sgemm_", torch._C.__file__)
        blas_name = blas.name_of(owner) if owner else None
    return {
        "blas": blas.of_the_system() or blas_name,
        "cuda_runtime": torch.version.cuda,
        "rocm_runtime": torch.version.hip,
        "mps_built": torch.backends.mps.is_built(),
    }


def _torch_cuda() -> dict[str, Any]:
    """Every GPU that torch's CUDA path can multiply on."""
    import torch

    torch.cuda.init()  # raises with the driver's message where `is_available` only says False

    def multiply(index: int) -> None:
        ones = torch.ones(SMALL, SMALL, device=f"cuda:{index}")
        (ones @ ones).sum().item()

    devices = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        facts = {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
        }
        devices.append({**facts, "error": _fault(multiply, index)})
    return _some_work(devices)


def _torch_mps() -> dict[str, Any]:
    """The Apple GPU through torch."""
    import torch

    if not torch.backends.mps.is_available():
        raise RuntimeError("torch's MPS needs macOS 14 or newer and an Apple GPU")
    ones = torch.ones(SMALL, SMALL, device="mps")
    (ones @ ones).sum().item()
    return {"working_set_bytes": int(torch.mps.recommended_max_memory())}


def _mlx() -> dict[str, Any]:
    """MLX on the CPU, imported as the backend imports it, and the kind of GPU it was built for."""
    works, reason = plugins.load("backends", "mlx")().available()
    if not works:
        raise RuntimeError(reason)
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    ones = mx.ones((SMALL, SMALL))
    mx.eval(ones @ ones)
    # Every build for CUDA says that it is available, also where no GPU is visible.
    gpus = [kind for kind in ("metal", "cuda") if hasattr(mx, kind) and mx.device_count(mx.gpu)]
    return {
        "blas": blas.of_mlx()["blas"],
        "gpu": next((kind for kind in gpus if getattr(mx, kind).is_available()), None),
    }


def _mlx_gpu() -> dict[str, Any]:
    """Every GPU that MLX can multiply on."""
    import mlx.core as mx

    def multiply(index: int) -> None:
        mx.set_default_device(mx.Device(mx.gpu, index))
        ones = mx.ones((SMALL, SMALL))
        mx.eval(ones @ ones)

    devices = []
    for index in range(mx.device_count(mx.gpu)):
        facts = mx.device_info(mx.Device(mx.gpu, index))
        size = facts.get("total_memory", facts.get("memory_size"))
        device = {"name": facts.get("device_name"), "memory_bytes": size}
        device["working_set_bytes"] = facts.get("max_recommended_working_set_size")  # Metal only
        if "compute_capability_major" in facts:  # CUDA only, mlx/backend/cuda/device_info.cpp
            major, minor = (facts[f"compute_capability_{part}"] for part in ("major", "minor"))
            device["compute_capability"] = f"{major}.{minor}"
        devices.append({**device, "error": _fault(multiply, index)})
    return _some_work(devices)


def _plugin(name: str) -> dict[str, Any]:
    """Any other backend: whether its plug-in works here, and the GPUs that it works on."""
    backend = plugins.load("backends", name)()
    works, reason = backend.available()
    if not works:
        raise RuntimeError(reason)
    return {"devices": backend.gpus()}


PROBES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "torch": _torch,
    "torch-cuda": _torch_cuda,
    "torch-mps": _torch_mps,
    "mlx": _mlx,
    "mlx-gpu": _mlx_gpu,
}


def answer(name: str) -> dict[str, Any]:
    """A probe's facts, or `{"error": one line}`."""
    try:
        facts = PROBES[name]() if name in PROBES else _plugin(name)
    except Exception as error:  # a broken install raises anything
        return {"error": one_line(error)}
    simulated = machine.emulated("torch") or machine.emulated("mlx")
    return facts | ({"emulated": simulated} if simulated else {})


def main(argv: list[str]) -> int:
    """Print the answer of the framework in `argv`."""
    (name,) = argv
    print(f"\n{ANSWER_MARK}{json.dumps(answer(name))}", flush=True)
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
