"""Which frameworks work on this machine, and on which of its devices: facts for `host_file`.

    python -m siliconprof.hosts.detect torch

Every framework is imported by such a process of its own, with a time limit, because an import can
abort or hang: a broken install becomes a reason and a way to fix it. The answer is one line of JSON
after a mark, since frameworks print banners of their own. Importing this module imports nothing outside
the standard library, and a bare host needs nothing else to run it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from siliconprof import declarations, plugins
from siliconprof.errors import BUSY, EXCLUSIVE, in_one_line
from siliconprof.hosts import blas, machine, offload_ops
from siliconprof.lifetime import leave
from siliconprof.plugins import PACKAGE_DIR

ANSWER_MARK = "siliconprof-answer: "
PROBE_LIMIT_S = 180.0  # a first import from a cold network disk takes a minute

IMPORTED_FRAMEWORKS = ("torch", "mlx")  # what is probed first
OF_TORCH = ("torch-cuda", "torch-mps")
# Backends that are detected by their frameworks' own facts too; any other is asked itself alone.
PROBED_BACKENDS = ("torch-cpu", *OF_TORCH, "mlx")
NO_GPU = "`nvidia-smi -L` must list a GPU, and CUDA_VISIBLE_DEVICES name one of these or be unset"
IN_USE = "another process holds the GPU: look with `nvidia-smi`, and run again once it has ended"
NO_KERNELS = "no kernel image"  # for this GPU in this build: only another version fixes it
CUBLAS_PACKAGES = ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12")

# A part of a broken framework's message -> how to fix it; the first that matches counts.
IMPORT_FIXES = (
    (
        "no module named 'torch'",
        "install this host's pins: pip install -r envs/cpu.txt "
        "(envs/cuda.txt with an NVIDIA GPU, envs/apple.txt on a Mac)",
    ),
    (
        blas.BLAS_VARIABLE.lower(),
        f"set {blas.BLAS_VARIABLE}={blas.OWN_KERNELS} to keep MLX's own BLAS, or unset it",
    ),
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
    (BUSY, EXCLUSIVE),
    ("cuda_visible_devices names", "name those that `nvidia-smi -L` lists"),
    # cudaErrorSystemNotReady: a machine with NVSwitch whose fabric manager does not run
    ("system not yet initialized", "systemctl start nvidia-fabricmanager, NVIDIA's own service"),
    ("driver", "install or update the NVIDIA driver: `nvidia-smi` must list the GPU"),
    ("sigill", "the build uses instructions that this CPU lacks: install another build"),
    ("took more than", "the disk or the driver hangs: run the import by hand and look"),
)
NOT_LOADED = r"^import|^module|\.so\b"  # a message of a library or module that was not loaded


def fix_of(reason: str, package: str) -> str:
    """Return how to fix a framework that failed for this reason."""
    for sign, fix in IMPORT_FIXES:
        if sign in reason.lower():
            return fix
    if "cuda" in reason.lower() and not re.search(NOT_LOADED, reason, re.I):
        return (
            "`nvidia-smi` and the kernel's log (`sudo dmesg`) may say why, else restart the machine"
        )
    return f"reinstall it: pip install --force-reinstall {package}"


def package_versions() -> dict[str, str | None]:
    """Versions of Python and of what cells and data use, None where not installed.

    Not of what probes read with: it changes no number, and may be installed for something else.
    """
    python = ".".join(map(str, sys.version_info[:3]))
    names = declarations.libraries_but_of_probes()
    return {"python": python, **{name: declarations.installed_version(name) for name in names}}


def probe(name: str) -> dict[str, Any]:
    """Probe one framework in a child process: its facts, or `{"error": one line}`."""
    search = os.pathsep.join(filter(None, [str(PACKAGE_DIR.parent), os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "siliconprof.hosts.detect", name],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_LIMIT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": search, "PYTHONSAFEPATH": "1"},
        )
    except subprocess.TimeoutExpired:
        return {"error": f"importing {name} took more than {PROBE_LIMIT_S:.0f} s"}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(ANSWER_MARK):
            return json.loads(line.removeprefix(ANSWER_MARK))
    if done.returncode < 0:
        return {"error": f"importing {name} was ended by {signal.Signals(-done.returncode).name}"}
    error_lines = done.stderr.strip().splitlines() or ["no output"]
    return {"error": f"importing {name} ended with status {done.returncode}: {error_lines[-1]}"}


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
        if len(fields) == 3:  # else a message
            mib = int(fields[1]) if fields[1].isdigit() else None  # [N/A] on unified memory
            own = {"name": fields[0], "memory_bytes": mib and mib * 2**20, "driver": fields[2]}
            gpus.append(own | {"vendor": "nvidia"})
    return gpus


def apple_gpu(chip: str, memory_bytes: int | None) -> list[dict[str, Any]]:
    """The GPU of an Apple chip; its cores, which distinguish variants, are None in a virtual machine."""
    tree = machine.run(["ioreg", "-rc", "AGXAccelerator", "-d1"])
    match = re.search(r'"gpu-core-count" = (\d+)', tree)
    own = {"name": chip, "vendor": "apple", "memory_bytes": memory_bytes, "memory_kind": "unified"}
    return [own | {"gpu_cores": int(match[1]) if match else None}]


def _device(kind: str, index: int, facts: Mapping[str, Any], driver: str | None) -> dict[str, Any]:
    """Return a device as the host file describes it, without its ids."""
    optional = ("memory_bytes", "working_set_bytes", "gpu_cores", "compute_capability")
    return {
        "name": facts["name"],
        "kind": kind,
        "vendor": facts["vendor"],
        "memory_kind": facts.get("memory_kind", "dedicated"),
        "index": index,
        "driver": driver,
        **{key: facts.get(key) for key in optional},
        "backends": [],
    } | ({"simulated": facts["simulated"]} if facts.get("simulated") else {})


def _gpus(
    answers: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], driver: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The machine's GPUs, each with the backends that can use it, in the frameworks' order.

    Those that no backend measures come last.

    Args:
        answers: by backend.
        listed: by the system. On a Mac it says what the GPU is, elsewhere it counts where no
            framework sees a GPU: nvidia-smi ignores CUDA_VISIBLE_DEVICES and may order otherwise.
    """
    versions = {"nvidia": driver["nvidia"], "apple": driver["macos"]}
    gpus: dict[tuple[str, int], dict[str, Any]] = {}
    for backend, answer in answers.items():
        for index, device in enumerate(answer.get("devices", ())):
            vendor = "nvidia" if backend in PROBED_BACKENDS else machine.vendor(device["name"])
            own = listed[0] if machine.is_mac() and listed else {"vendor": vendor}
            facts = {**device, **own, "simulated": answer.get("simulated")}
            gpu = gpus.setdefault(
                (facts["name"], index), _device("gpu", index, facts, versions.get(facts["vendor"]))
            )
            gpu["working_set_bytes"] = gpu["working_set_bytes"] or device.get("working_set_bytes")
            if not device["error"]:
                gpu["backends"].append(backend)
    without = [_device("gpu", i, own, versions[own["vendor"]]) for i, own in enumerate(listed)]
    others = [_device("gpu", i, own, None) for i, own in enumerate(machine.other_gpus())]
    return ([*gpus.values()] or without) + others


def _not_visible(n_gpus: int) -> str | None:
    """Say that CUDA_VISIBLE_DEVICES names more GPUs than the `n_gpus` that torch sees; None where it does not."""
    named = [*filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))]
    if len(named) <= n_gpus:
        return None
    return (
        f"CUDA_VISIBLE_DEVICES names {len(named)} GPUs, of which CUDA finds {n_gpus}: it takes none from the "
        "first on that is not here, and one slice (MIG) for a process"
    )


def _state(
    answer: Mapping[str, Any], package: str, gpus: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a backend's `{available, reason, fix}`.

    Args:
        answer: of the probe of its framework.
        gpus: of the probe of its GPUs, where that is another one.
    """
    if "error" in answer:
        reason = answer["error"]
        fix = answer["fix"] if "fix" in answer else fix_of(reason, package)
        return {"available": False, "reason": reason, "fix": fix}
    gpus = gpus or answer
    reasons = [f"on the GPU: {gpus['error']}"] if "error" in gpus else []
    for index, device in enumerate(gpus.get("devices", ())):
        if device["error"]:
            reasons.append(f"on GPU {index} ({device['name']}): {device['error']}")
    if (
        package == "torch"
        and gpus.get("devices")
        and (hidden := _not_visible(len(gpus["devices"])))
    ):
        reasons.append(hidden)
    reason = "; ".join(reasons) or None
    return {"available": True, "reason": reason, "fix": reason and fix_of(reason, package)}


def _without_probe(
    name: str, torch: Mapping[str, Any], nvidia: str | None
) -> Mapping[str, Any] | None:
    """Return why a GPU's backend cannot work here, as far as it is known without a probe; None where it is not."""
    reason, fix = None, None
    if name == "torch-mps" and not machine.is_mac():
        reason = f"Apple GPUs only; this is {platform.system()}"
    elif "error" in torch:
        return torch
    elif name == "torch-mps" and not torch["mps_built"]:
        reason = "this torch is built without MPS"
    elif name == "torch-cuda" and all_hidden():
        reason = "CUDA_VISIBLE_DEVICES hides every GPU"
    elif name == "torch-cuda" and torch["rocm_runtime"]:
        reason = (
            "this torch is built for AMD's GPUs, which are not supported: NVIDIA's and Apple's are"
        )
    elif name == "torch-cuda" and not nvidia:
        reason = "no NVIDIA GPU or driver on this machine"
    elif name == "torch-cuda" and not torch["cuda_runtime"]:
        reason = "this torch is built without CUDA"
        fix = "install the CUDA build: pip install -r envs/cuda.txt"
    return {"error": reason, "fix": fix} if reason else None


def _cublas() -> str | None:
    versions = map(declarations.installed_version, CUBLAS_PACKAGES)
    version = next(filter(None, versions), None)
    return version and f"cuBLAS {version}"


def detect() -> dict[str, Any]:
    """All facts of this machine that decide a measurement, none that changes by itself.

    The devices have no ids yet: `host_file.identify` adds them from the registry.
    """
    cpu, system, mac = machine.cpu(), machine.operating_system(), machine.is_mac()
    vendor = machine.vendor(cpu["model"])
    if mac:
        listed = apple_gpu(cpu["model"], cpu["memory_bytes"]) if vendor == "apple" else []
    else:
        listed = [] if all_hidden() else nvidia_smi()
    kernel = machine.read_text("/proc/driver/nvidia/version")
    match = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", kernel, re.M)
    others = [name for name in plugins.names("backends") if name not in PROBED_BACKENDS]
    with ThreadPoolExecutor() as pool:
        torch, mlx = pool.map(probe, IMPORTED_FRAMEWORKS)
        driver = {
            "nvidia": match[1] if match else listed[0]["driver"] if listed and not mac else None,
            "macos": system["distribution"] if mac else None,
            "cuda_runtime": torch.get("cuda_runtime"),
            "rocm_runtime": torch.get("rocm_runtime"),
            "cublas": _cublas() if torch.get("cuda_runtime") else None,
        }
        # backend -> what it answers about its GPUs; None: it is asked
        answers: dict[str, Any] = {
            name: _without_probe(name, torch, driver["nvidia"]) for name in OF_TORCH
        }
        answers |= {"mlx": None if mlx.get("gpu") else {}, **dict.fromkeys(others)}
        asked = [name for name, answer in answers.items() if answer is None]
        probes = ["mlx-gpu" if name == "mlx" else name for name in asked]
        answers |= zip(asked, pool.map(probe, probes), strict=True)
    for name, again in zip(asked, probes, strict=True):
        if BUSY in answers[name].get("error", ""):  # maybe the other of these processes had the GPU
            answers[name] = probe(again)
    backends = {
        "torch-cpu": _state(torch, "torch"),
        **{name: _state(answers[name], "torch") for name in OF_TORCH},
        "mlx": _state(mlx, "mlx", answers["mlx"]),
    }
    for name in others:
        backends[name] = _state(answers[name], plugins.load("backends", name).packages[0])
    processor = {
        **_device("cpu", 0, {"name": cpu["model"], "vendor": vendor} | cpu, None),
        "memory_kind": "unified" if vendor == "apple" else "system",
        "backends": [
            name
            for name, state in backends.items()
            if state["available"] and plugins.load("backends", name).device_kind != "gpu"
        ],
    }
    return {
        "fingerprint_parts": machine.fingerprint_parts(),
        "os": system,
        "cpu": cpu,
        "devices": [*_gpus(answers, listed, driver), processor],
        "backends": backends,
        "packages": package_versions(),
        "blas": {"torch": torch.get("blas"), "mlx": mlx.get("blas")},
        "driver": driver,
        "cpu_adam": offload_ops.built(),
    }


# -- the process that imports one framework -----------------------------------------------------


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


def _gpus_of(name: str) -> dict[str, Any]:
    """Return a backend's GPUs; fail only where none works, so that one unsupported card disables no other."""
    backend = plugins.load("backends", name)()
    if name not in PROBED_BACKENDS:  # it need not work, nor have a GPU
        works, reason = backend.available()
        if not works:
            raise RuntimeError(reason)
        return {"devices": _gpu_identities(backend)}
    backend.import_framework()
    devices = _gpu_identities(backend)
    if not devices:
        raise RuntimeError("no GPU is visible; CUDA_VISIBLE_DEVICES may hide it")
    if all(device["error"] for device in devices):
        raise RuntimeError(devices[0]["error"])
    return {"devices": devices}


def _gpu_identities(backend: Any) -> list[dict[str, Any]]:
    """The `identity` of each GPU in the framework's order; `error` is a line, or None if it works."""
    devices = []
    for index in range(backend.n_gpus()):
        error: str | None = None
        try:
            backend.open("gpu", index, 1, "fp32")
            backend.prove_precision()
        except Exception as raised:  # each framework has errors of its own
            error = in_one_line(raised)
        devices.append({**backend.identity("gpu", index), "error": error})
    return devices


def answered(name: str) -> dict[str, Any]:
    """A probe's facts, or `{"error": one line}`."""
    try:
        imported = {"torch": _torch, "mlx": _mlx}
        facts = imported[name]() if name in imported else _gpus_of(name.removesuffix("-gpu"))
    except Exception as error:  # a broken install raises anything
        return {"error": in_one_line(error)}
    simulated = machine.simulated_device("torch") or machine.simulated_device("mlx")
    return facts | ({"simulated": simulated} if simulated else {})


if __name__ == "__main__":
    (framework,) = sys.argv[1:]
    print(f"\n{ANSWER_MARK}{json.dumps(answered(framework))}", flush=True)
    leave(0)
