"""Which frameworks work on this machine, and on which of its devices.

    python -m siliconprof.hosts.detect    the facts that `host_file` turns into results/hosts/*.json

Every framework is imported in a child process of its own, with a time limit, because an import
can abort or hang: a broken install becomes a reason and a way to fix it. Importing this module
imports nothing outside the standard library, and a bare host needs nothing else to run it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from siliconprof import declarations, plugins
from siliconprof.hosts import blas, machine, offload_ops
from siliconprof.hosts.frameworks import ANSWER_MARK
from siliconprof.lifetime import end_with_pipeline
from siliconprof.plugins import PACKAGE_DIR

PROBE_LIMIT_S = 180.0  # a first import from a cold network disk takes a minute

IMPORTED = ("torch", "mlx")  # what is probed first
# Backends that are detected by their frameworks' own facts; any other is asked itself.
PROBED = ("torch-cpu", "torch-cuda", "torch-mps", "mlx")
NO_AMD = "this torch is built for AMD's GPUs, which are not supported: NVIDIA's and Apple's are"
NO_GPU = "`nvidia-smi -L` must list a GPU, and CUDA_VISIBLE_DEVICES name one of these or be unset"
IN_USE = "another process holds the GPU: look with `nvidia-smi`, and run again once it has ended"
NO_KERNELS = "no kernel image"  # for this GPU in this build: only another version fixes it
CUBLAS_PACKAGES = ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12")

# A part of a broken framework's message -> how to fix it; the first that matches counts.
FIXES = (
    (
        "no module named 'torch'",
        "install this host's pins: pip install -r envs/cpu.txt "
        "(envs/cuda.txt with an NVIDIA GPU, envs/apple.txt on a Mac)",
    ),
    (blas.VARIABLE.lower(), f"set {blas.VARIABLE}={blas.OWN} to keep MLX's own BLAS, or unset it"),
    (
        "no module named 'mlx",
        "install MLX: pip install mlx on a Mac, 'mlx[cpu]' on Linux, "
        "'mlx[cuda13]' with an NVIDIA GPU",
    ),
    (
        "libmlx",
        "MLX's backend package is missing: pip install 'mlx[cpu]', or 'mlx[cuda13]' with "
        "an NVIDIA GPU",
    ),
    ("glibc", "the wheel needs a newer C library (MLX: glibc 2.35): use a newer distribution"),
    (NO_KERNELS, "this build has no kernels for this GPU: install a build that has"),
    ("no cuda gpus are available", NO_GPU),
    ("no gpu is visible", NO_GPU),
    ("out of memory", IN_USE),
    ("busy or unavailable", IN_USE),
    # cudaErrorSystemNotReady: a machine with NVSwitch whose fabric manager does not run
    ("system not yet initialized", "systemctl start nvidia-fabricmanager, NVIDIA's own service"),
    ("driver", "install or update the NVIDIA driver: `nvidia-smi` must list the GPU"),
    ("sigill", "the build uses instructions that this CPU lacks: install another build"),
    ("took more than", "the disk or the driver hangs: run the import by hand and look"),
)
NOT_LOADED = r"^import|^module|\.so\b"  # a message of a library or module that was not loaded


def fix_of(reason: str, package: str) -> str:
    """How to fix a framework that failed with a reason."""
    for sign, fix in FIXES:
        if sign in reason.lower():
            return fix
    if "cuda" in reason.lower() and not re.search(NOT_LOADED, reason, re.I):
        return (
            "`nvidia-smi` and the kernel's log (`sudo dmesg`) may say why, else restart the machine"
        )
    return f"reinstall it: pip install --force-reinstall {package}"


def package_versions() -> dict[str, str | None]:
    """Versions of Python and of all libraries declared, None where not installed."""
    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, **declarations.installed_versions()}


def run_module(module: str, *words: str, limit_s: float, **variables: str) -> Any:
    """A module of this package in a process of its own, that ran to its end; see `subprocess.run`."""
    search = os.pathsep.join(filter(None, [str(PACKAGE_DIR.parent), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit_s,
        check=False,
        env={**os.environ, "PYTHONPATH": search, "PYTHONSAFEPATH": "1", **variables},
    )


def probe(name: str) -> dict[str, Any]:
    """Probe one framework in a child process: its facts, or `{"error": one line}`."""
    try:
        done = run_module("siliconprof.hosts.frameworks", name, limit_s=PROBE_LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"error": f"importing {name} took more than {PROBE_LIMIT_S:.0f} s"}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(ANSWER_MARK):
            return json.loads(line.removeprefix(ANSWER_MARK))
    if done.returncode < 0:
        return {"error": f"importing {name} was ended by {signal.Signals(-done.returncode).name}"}
    error_lines = done.stderr.strip().splitlines() or ["no output"]
    return {"error": f"importing {name} ended with status {done.returncode}: {error_lines[-1]}"}


def nvidia_driver() -> str | None:
    """Version of NVIDIA's kernel driver, None without one."""
    kernel = machine.read_text("/proc/driver/nvidia/version")
    match = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", kernel, re.M)
    if match:
        return match[1]
    listed = nvidia_smi()
    return listed[0]["driver"] if listed else None


def all_hidden() -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides every GPU: the first entry that is no device ends it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible is not None and visible.split(",")[0].strip() in ("", "-1")


def nvidia_smi() -> list[dict[str, Any]]:
    """NVIDIA's own list of GPUs, in its order; empty without the tool (`nvidia-smi(1)`)."""
    query = "nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader,nounits"
    gpus = []
    for line in machine.run(query.split()).splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3:
            mib = int(fields[1]) if fields[1].isdigit() else None  # [N/A] on unified memory
            memory_bytes = mib * 2**20 if mib else None
            gpus.append({"name": fields[0], "memory_bytes": memory_bytes, "driver": fields[2]})
    return gpus


def apple_gpu_cores() -> int | None:
    """GPU cores of an Apple chip, which distinguish its variants; None in a virtual machine."""
    tree = machine.run(["ioreg", "-rc", "AGXAccelerator", "-d1"])
    match = re.search(r'"gpu-core-count" = (\d+)', tree)
    return int(match[1]) if match else None


def _gpu(name: str, vendor: str, index: int, **facts: Any) -> dict[str, Any]:
    optional = ("memory_bytes", "working_set_bytes", "gpu_cores", "driver", "compute_capability")
    return {
        "name": name,
        "kind": "gpu",
        "vendor": vendor,
        "memory_kind": facts.get("memory_kind", "dedicated"),
        "index": index,
        **{key: facts.get(key) for key in optional},
        "backends": [],
    } | ({"emulated": facts["emulated"]} if facts.get("emulated") else {})


def _gpus(answers: Mapping[str, Any], cpu: Mapping[str, Any], driver: Mapping[str, Any]) -> list:
    """The machine's GPUs, each with the backends that can use it, in the frameworks' order."""
    others = [n for n in answers if n in plugins.names("backends") and n not in PROBED]
    others = [name for name in others if answers[name].get("devices")]  # those of the CPU have none
    if machine.is_mac():
        if not cpu["model"].startswith("Apple"):
            return []
        chip = _gpu(
            cpu["model"],
            "apple",
            0,
            memory_bytes=cpu["memory_bytes"],
            memory_kind="unified",
            working_set_bytes=_working_set_bytes(answers),
            gpu_cores=apple_gpu_cores(),
            driver=driver["macos"],
            emulated=(answers.get("torch-mps") or {}).get("emulated"),
        )
        chip["backends"] = [
            backend
            for backend, name in (
                *(("torch-mps", "torch-mps"), ("mlx", "mlx-gpu")),
                *((name, name) for name in others),
            )
            if works(answers.get(name))
        ]
        return [chip]
    gpus: list[dict[str, Any]] = []
    asked = [("torch-cuda", "torch-cuda"), ("mlx", "mlx-gpu"), *((name, name) for name in others)]
    for backend, name in (*asked, (None, "nvidia-smi")):
        if backend is None and gpus:
            break  # nvidia-smi ignores CUDA_VISIBLE_DEVICES and may order otherwise
        for index, device in enumerate(answers.get(name, {}).get("devices", ())):
            place = (device["name"], index)
            gpu = next((gpu for gpu in gpus if (gpu["name"], gpu["index"]) == place), None)
            if gpu is None:
                vendor = machine.vendor(device["name"]) if name in others else "nvidia"
                own = ("name", "memory_bytes", "compute_capability")
                facts = {key: device.get(key) for key in own}
                facts |= {"driver": driver.get(vendor), "emulated": answers[name].get("emulated")}
                gpu = _gpu(vendor=vendor, index=index, **facts)
                gpus.append(gpu)
            if backend and not device["error"]:
                gpu["backends"].append(backend)
    return gpus


def _working_set_bytes(answers: Mapping[str, Any]) -> int | None:
    """The bytes of memory that Metal recommends to use, from torch's or MLX's answer."""
    devices = [d for n in ("torch-mps", "mlx-gpu") for d in answers.get(n, {}).get("devices", ())]
    return next(filter(None, (device.get("working_set_bytes") for device in devices)), None)


def works(answer: Mapping[str, Any] | None) -> bool:
    """Whether a framework was probed and reported no error."""
    return answer is not None and "error" not in answer


def _state(
    answer: Mapping[str, Any] | None,
    package: str,
    why_not_probed: str | None,
    gpus: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """`{available, reason, fix}` of a backend; `gpus` answers for its GPUs where that is another."""
    if answer is None:
        return {"available": False, "reason": why_not_probed, "fix": None}
    if "error" in answer:
        reason = answer["error"]
        return {"available": False, "reason": reason, "fix": fix_of(reason, package)}
    gpus = gpus or answer
    reasons = [f"on the GPU: {gpus['error']}"] if "error" in gpus else []
    for index, device in enumerate(gpus.get("devices", ())):
        if device["error"]:
            reasons.append(f"on GPU {index} ({device['name']}): {device['error']}")
    reason = "; ".join(reasons) or None
    return {"available": True, "reason": reason, "fix": reason and fix_of(reason, package)}


def _cuda_state(answers: Mapping[str, Any]) -> dict[str, Any]:
    """torch-cuda's state: torch broken, built without CUDA, no GPU, or its probe's answer."""
    torch = answers["torch"]
    if not works(torch):
        return _state(torch, "torch", None)
    if all_hidden():
        return _state(None, "torch", "CUDA_VISIBLE_DEVICES hides every GPU")
    if answers["nvidia-smi"]["devices"] and not torch["cuda_runtime"]:
        return {
            "available": False,
            "reason": "this torch is built without CUDA",
            "fix": "install the CUDA build: pip install -r envs/cuda.txt",
        }
    if torch["rocm_runtime"]:
        return _state(None, "torch", NO_AMD)
    return _state(answers.get("torch-cuda"), "torch", "no NVIDIA GPU or driver on this machine")


def _mps_state(answers: Mapping[str, Any], system: str | None) -> dict[str, Any]:
    """torch-mps's state: no Mac, torch broken, built without MPS, or its probe's answer."""
    if not machine.is_mac():
        return _state(None, "torch", f"Apple GPUs only; this is {system}")
    if not works(answers["torch"]):
        return _state(answers["torch"], "torch", None)
    return _state(answers.get("torch-mps"), "torch", "this torch is built without MPS")


def _cublas() -> str | None:
    versions = map(declarations.installed_version, CUBLAS_PACKAGES)
    version = next(filter(None, versions), None)
    return version and f"cuBLAS {version}"


def detect() -> dict[str, Any]:
    """All facts of this machine that decide a measurement, none that changes by itself.

    The devices have no ids yet: `host_file.identify` adds them from the registry.
    """
    cpu = machine.cpu()
    system = machine.operating_system()
    nvidia = nvidia_driver()
    with ThreadPoolExecutor() as pool:
        answers = dict(zip(IMPORTED, pool.map(probe, IMPORTED), strict=True))
        torch, mlx = answers["torch"], answers["mlx"]
        more = []
        if torch.get("cuda_runtime") and nvidia and not all_hidden():
            more.append("torch-cuda")
        if machine.is_mac() and torch.get("mps_built"):
            more.append("torch-mps")
        if mlx.get("gpu"):
            more.append("mlx-gpu")
        others = [name for name in plugins.names("backends") if name not in PROBED]
        more += others
        answers.update(zip(more, pool.map(probe, more), strict=True))
    answers["nvidia-smi"] = {"devices": [] if all_hidden() else nvidia_smi()}
    driver = {
        "nvidia": nvidia,
        "macos": system["distribution"] if machine.is_mac() else None,
        "cuda_runtime": torch.get("cuda_runtime"),
        "rocm_runtime": torch.get("rocm_runtime"),
        "cublas": _cublas() if torch.get("cuda_runtime") else None,
    }
    backends = {
        "torch-cpu": _state(torch, "torch", None),
        "torch-cuda": _cuda_state(answers),
        "torch-mps": _mps_state(answers, system["system"]),
        "mlx": _state(mlx, "mlx", None, answers.get("mlx-gpu")),
    }
    for name in others:
        backends[name] = _state(answers[name], plugins.load("backends", name).packages[0], None)
    on_cpu = [
        name
        for name, state in backends.items()
        if state["available"] and plugins.load("backends", name).device_kind != "gpu"
    ]
    vendor = machine.vendor(cpu["model"])
    processor = {
        **_gpu(cpu["model"], vendor, 0, memory_bytes=cpu["memory_bytes"]),
        "kind": "cpu",
        "memory_kind": "unified" if vendor == "apple" else "system",
        "backends": on_cpu,
    }
    return {
        "fingerprint_parts": machine.fingerprint_parts(),
        "os": system,
        "cpu": cpu,
        "devices": [*_gpus(answers, cpu, driver), processor],
        "backends": backends,
        "packages": package_versions(),
        "blas": {name: answers[name].get("blas") for name in IMPORTED},
        "driver": driver,
        "cpu_adam": offload_ops.built(),
    }


def main() -> int:
    """Print the facts as JSON; `siliconprof doctor` is for persons."""
    end_with_pipeline()
    print(json.dumps(detect(), indent=2, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
