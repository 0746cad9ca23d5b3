"""What a host lacks to train faster, or to be measured better: why, and how to fix it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from siliconprof.hosts import blas, machine, mlx_blas

REGISTRY_PATH = Path("config/devices.yaml")
# 16-bit type -> CPU features each of which has instructions for it
INSTRUCTIONS = {
    "fp16": {"avx512_fp16", "amx_fp16", "asimdhp", "FEAT_FP16"},
    "bf16": {"avx512_bf16", "amx_bf16", "bf16", "FEAT_BF16"},
}
ON_THE_CPU = "{} on the CPU"  # what the remedy for a type without instructions is about

UNMEASURED_VENDORS = {name.lower(): name for name in machine.UNMEASURED_VENDORS.values()}

Remedy = dict[str, str | None]  # about, why, fix


def remedy(about: str, why: str, fix: str | None) -> Remedy:
    """Return a remedy; `fix` is None where nothing can be done."""
    return {"about": about, "why": why, "fix": fix}


def remedies_of_host(host: Mapping[str, Any]) -> Iterator[Remedy]:
    """Yield the remedies that follow from a host file, whatever else runs on the host."""
    yield from _of_backends(host)
    yield from _of_devices(host)
    yield from _of_cpu(host)
    if "microsoft" in host["os"]["release"].lower():  # so do the kernels of WSL 1 and 2 end
        yield remedy(
            "WSL",
            "this Linux runs inside Windows: the CPU, and an NVIDIA GPU by Windows' driver, are "
            "measured; what Windows does besides is not seen and disturbs, nor are clocks and the "
            "CPU's energy, and by default half of the memory is all it gets",
            "quit what runs in Windows, raise memory= in its .wslconfig for large models, and keep "
            "this folder below /home: /mnt/c is slow",
        )


def _of_backends(host: Mapping[str, Any]) -> Iterator[Remedy]:
    """Yield a remedy for each backend that could work here and does not; a missing GPU is no fault."""
    for name, state in host["backends"].items():
        if state["fix"]:
            yield remedy(name, state["reason"], state["fix"])
    if (host["blas"]["mlx"] or "").startswith(blas.REFERENCE_BLAS):
        yield remedy(
            "mlx on the CPU",
            f"MLX multiplies with {host['blas']['mlx']}, which its wheel brings and which is slow: "
            "5 GFLOP/s against 190 with OpenBLAS, seen on two cores; the report says so beside "
            "every number",
            f"unset {blas.BLAS_VARIABLE}, which asks for it"
            if os.environ.get(blas.BLAS_VARIABLE)
            else f"`{mlx_blas.BUILD}` lets MLX call SciPy's OpenBLAS, or install {blas.SONAME} where "
            "the loader finds it (apt install libopenblas0-pthread on Debian or Ubuntu): either is "
            "then loaded before MLX, in MLX's processes alone, and its cells run again. "
            f"{blas.BLAS_VARIABLE}={blas.OWN_KERNELS} keeps MLX's own",
        )


def _of_devices(host: Mapping[str, Any]) -> Iterator[Remedy]:
    for device in host["devices"]:
        if not device["backends"]:
            yield remedy(device["id"], f"{unused(device)}, so it is not measured", None)
        if device["vendor"] in UNMEASURED_VENDORS:
            continue
        if device["kind"] == "gpu" and device["registry_id"] is None:
            cores = f" with {device['gpu_cores']} GPU cores" if device["gpu_cores"] else ""
            yield remedy(
                device["id"],
                f"'{device['name']}'{cores} fits no entry, or more than one, of {REGISTRY_PATH}: it is "
                "measured, but without peak rates, so there is no MFU",
                f"add an entry to {REGISTRY_PATH} with its figures and their sources",
            )


def unused(device: Mapping[str, Any]) -> str:
    """Why a device of a host file that no backend can use is not measured."""
    vendor = UNMEASURED_VENDORS.get(device["vendor"]) if device["kind"] == "gpu" else None
    return f"no backend measures {vendor}'s GPUs" if vendor else "no backend can use it"


def _of_cpu(host: Mapping[str, Any]) -> Iterator[Remedy]:
    cpu = host["cpu"]
    for kind in INSTRUCTIONS:
        if why := emulation(cpu, kind):
            yield remedy(
                ON_THE_CPU.format(kind),
                f"{why}, which takes many times as long as fp32",
                f"keep {kind} on the CPU to the smallest sizes"
                + ("" if emulation(cpu, "bf16") else ", or use bf16"),
            )
    if cpu["usable_cores"] < cpu["logical_cores"]:
        yield remedy(
            "CPU cores",
            f"{cpu['usable_cores']} of {cpu['logical_cores']} may be used (affinity or cgroup)",
            None,
        )


def emulation(cpu: Mapping[str, Any], precision: str) -> str | None:
    """Say that a processor has no instructions for a precision; None where it has or may have them.

    Args:
        cpu: of a host file.
    """
    kind = precision.removeprefix("amp-")
    features = cpu["features"]
    if kind not in INSTRUCTIONS or features is None or INSTRUCTIONS[kind].intersection(features):
        return None
    return f"this processor computes {kind} without instructions for it"
