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
from functools import partial
from typing import Any

from siliconprof import plugins
from siliconprof.errors import in_one_line
from siliconprof.hosts import blas, machine
from siliconprof.lifetime import leave

ANSWER_MARK = "siliconprof-answer: "


def _torch() -> dict[str, Any]:
    """torch on the CPU: version, BLAS, and which GPUs it was built for."""
    import torch

    ones = torch.ones(64, 64)
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
        "blas": blas.system_blas() or blas_name,
        "cuda_runtime": torch.version.cuda,
        "rocm_runtime": torch.version.hip,
        "mps_built": torch.backends.mps.is_built(),
    }


def _mlx() -> dict[str, Any]:
    """MLX on the CPU, imported as the backend imports it, and the kind of GPU it was built for."""
    works, reason = plugins.load("backends", "mlx")().available()
    if not works:
        raise RuntimeError(reason)
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    ones = mx.ones((64, 64))
    mx.eval(ones @ ones)
    # Every build for CUDA says that it is available, also where no GPU is visible.
    gpus = [kind for kind in ("metal", "cuda") if hasattr(mx, kind) and mx.device_count(mx.gpu)]
    return {
        "blas": blas.blas_of_mlx()["blas"],
        "gpu": next((kind for kind in gpus if getattr(mx, kind).is_available()), None),
    }


def _gpus(name: str) -> dict[str, Any]:
    """The GPUs of a backend, if one works: an unsupported card does not disable the others."""
    backend = plugins.load("backends", name)()
    backend.import_framework()
    devices = backend.gpus()
    if not devices:
        raise RuntimeError("no GPU is visible; CUDA_VISIBLE_DEVICES may hide it")
    if all(device["error"] for device in devices):
        raise RuntimeError(devices[0]["error"])
    return {"devices": devices}


def _plugin(name: str) -> dict[str, Any]:
    """Any other backend: whether its plug-in works here, and the GPUs that it works on."""
    backend = plugins.load("backends", name)()
    works, reason = backend.available()
    if not works:
        raise RuntimeError(reason)
    return {"devices": backend.gpus()}


PROBE_FUNCTIONS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "torch": _torch,
    "torch-cuda": partial(_gpus, "torch-cuda"),
    "torch-mps": partial(_gpus, "torch-mps"),
    "mlx": _mlx,
    "mlx-gpu": partial(_gpus, "mlx"),
}


def answer(name: str) -> dict[str, Any]:
    """A probe's facts, or `{"error": one line}`."""
    try:
        facts = PROBE_FUNCTIONS[name]() if name in PROBE_FUNCTIONS else _plugin(name)
    except Exception as error:  # a broken install raises anything
        return {"error": in_one_line(error)}
    simulated = machine.simulated_device("torch") or machine.simulated_device("mlx")
    return facts | ({"simulated": simulated} if simulated else {})


def main(argv: list[str]) -> int:
    """Print the answer of the framework in `argv`."""
    (name,) = argv
    print(f"\n{ANSWER_MARK}{json.dumps(answer(name))}", flush=True)
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
