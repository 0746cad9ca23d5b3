"""The host: what is found on this machine and on others put in its place, and what the doctor says."""

from __future__ import annotations

import copy
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from hosts_by_answers import GIB, QUERY, Mac
from siliconprof.cells import matrix
from siliconprof.hosts import detect, doctor, host_file, machine, models, registry
from siliconprof.render import summary
from siliconprof.store import model

LINUX = pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc, which Linux has")


# -- this machine, as it is --------------------------------------------------------------------


@pytest.fixture(scope="module")
def host(found: dict[str, Any], devices: registry.Registry) -> dict[str, Any]:
    return host_file.assemble(found, "here", "0" * 64, devices)


def test_this_machine_works_with_torch_and_mlx(host: dict[str, Any]) -> None:
    assert model.problems(models.Host, host) == []
    text = json.dumps(host)
    assert sys.prefix not in text and str(Path.home()) + "/" not in text
    (cpu,) = [device for device in host["devices"] if device["kind"] == "cpu"]
    assert cpu["id"].startswith("cpu-") and cpu["index"] == 0
    for backend in ("torch-cpu", "mlx"):
        assert host["backends"][backend]["available"], host["backends"][backend]
        assert backend in cpu["backends"] and cpu["id"] in host["backends"][backend]["devices"]
    for name, state in host["backends"].items():
        assert state["available"] == (state["reason"] is None) == bool(state["devices"]), name
    assert host["cpu"]["logical_cores"] == psutil.cpu_count()
    assert host["cpu"]["usable_cores"] <= psutil.cpu_count()
    limited = machine._cgroup_files("memory", "memory.max")
    assert limited or 0.9 * psutil.virtual_memory().total <= cpu["memory_bytes"]


# -- a framework that is broken ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason", "fix"),
    [
        ("import os; os.abort()", "ended by SIGABRT", "reinstall it"),
        ("import time; time.sleep(60)", "took more than", "hangs"),
        ("raise RuntimeError('CUDA error: uncorrectable ECC error')", "ECC", "dmesg"),
    ],
)
def test_a_broken_install_becomes_a_reason_and_a_fix(
    code: str, reason: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    if "sleep" in code:
        monkeypatch.setattr(detect, "PROBE_LIMIT_S", 2.0)
    error = detect.probe("torch")["error"]
    assert reason in error and "\n" not in error
    assert fix in detect.fix_of(error, "torch")


# -- other machines, through what their commands say -------------------------------------------
# Outputs in the shape that nvidia-smi(1) and the driver's /proc/driver/nvidia/version have.

NVIDIA_VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  555.42.06  Release Build  "
    "(builder@host)  Thu Jul 11 12:00:00 UTC 2024\n"
)

NO_RUNTIME = dict.fromkeys(("cuda_runtime", "rocm_runtime"))
TORCH_CUDA = NO_RUNTIME | {"blas": "oneMKL 2024.2 (in torch)", "mps_built": False}
TORCH_CUDA["cuda_runtime"] = "12.8"
TORCH_CPU = TORCH_CUDA | {"cuda_runtime": None}
MLX_CPU = {"blas": "reference BLAS 3.10.0 (libblas-bd8a282c.so.3.10.0)", "gpu": None}
NVIDIA = {"/proc/driver/nvidia/version": NVIDIA_VERSION}
H200 = {QUERY: "NVIDIA H200, 143771, 580.159.03\n"}


def linux(torch: dict[str, Any], **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the frameworks of a machine with Linux say; `_` in a name is a hyphen."""
    answers = {name.replace("_", "-"): answer for name, answer in more.items()}
    return {"torch": torch, "mlx": MLX_CPU} | answers


@pytest.fixture
def host_of(devices: registry.Registry, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The host file of another machine, by what its frameworks, commands and files say."""

    def answer(
        answers: dict[str, dict[str, Any]],
        commands: dict[str, str] | None = None,
        files: dict[str, str] | None = None,
        system: str = "Linux",
    ) -> dict[str, Any]:
        said, contents = commands or {}, files or {}
        monkeypatch.setattr(platform, "system", lambda: system)
        if system == "Darwin":
            monkeypatch.setattr(platform, "machine", lambda: "arm64")
            monkeypatch.setattr(platform, "mac_ver", lambda: ("16.5", ("", "", ""), "arm64"))
        monkeypatch.setattr(machine, "run", lambda command, **_: said.get(" ".join(command), ""))
        monkeypatch.setattr(machine, "read_text", lambda path: contents.get(path, ""))
        monkeypatch.setattr(detect, "probe", lambda name: copy.deepcopy(answers[name]))
        made = host_file.assemble(detect.detect(), "fake", "0" * 64, devices)
        assert model.problems(models.Host, made) == []
        return made

    return answer


@pytest.mark.parametrize("cores", [30, 38])
def test_a_mac_and_its_variant(cores: int, host_of: Callable) -> None:
    """The 30-core and the 38-core M2 Max are two devices: 10.7 against 13.6 TFLOPS."""
    mac = Mac("Apple M2 Max", cores, 12, 96, 72)
    own = mac.commands() | {"sysctl -n hw.perflevel0.logicalcpu": "8\n"}
    made = host_of(mac.answers(), own, system="Darwin")
    gpu, cpu = made["devices"]
    assert (gpu["id"], gpu["registry_id"]) == (f"m2-max-{cores}", f"m2-max-{cores}")
    assert gpu["gpu_cores"] == cores and gpu["memory_kind"] == "unified"
    assert gpu["memory_bytes"] == 96 * GIB and gpu["backends"] == ["torch-mps", "mlx"]
    assert gpu["working_set_bytes"] == 72 * GIB and cpu["working_set_bytes"] is None
    assert cpu["id"] == "cpu-apple-m2-max" and cpu["registry_id"] is None
    assert cpu["backends"] == ["torch-cpu", "mlx"]
    assert made["backends"]["mlx"]["devices"] == [gpu["id"], cpu["id"]]
    assert made["driver"]["macos"] == made["os"]["distribution"] == "macOS 15.5"
    assert made["cpu"]["physical_cores"] == made["cpu"]["usable_cores"] == 12
    assert made["cpu"]["threads"] == 8 and "hw.perflevel0" in made["cpu"]["threads_rule"]
    assert "11111111" not in json.dumps(made)  # the machine's own id stays at home
    assert made["backends"]["torch-cuda"]["reason"] == "no NVIDIA GPU or driver on this machine"


CARD = {"name": "NVIDIA GeForce RTX 4090", "memory_bytes": int(23.6 * GIB), "error": None}
CARD |= {"compute_capability": "8.9"}
BOTH = {"devices": [CARD, CARD]}
# Two equal cards, which both frameworks use.
TWO_CARDS = linux(TORCH_CUDA, mlx=MLX_CPU | {"gpu": "cuda"}, torch_cuda=BOTH, mlx_gpu=BOTH)


def test_two_equal_cards_and_mlx_on_cuda(host_of: Callable) -> None:
    made = host_of(TWO_CARDS, files=NVIDIA)
    first, second, cpu = made["devices"]
    assert first["registry_id"] == second["registry_id"] == "rtx-4090"
    assert first["compute_capability"] == "8.9" and cpu["compute_capability"] is None
    # What their cells are is in test_cards. They depend on the driver.
    under_torch = host_file.environment_slice(made, "rtx-4090", "torch-cuda", ["torch"])
    under_mlx = host_file.environment_slice(made, "rtx-4090", "mlx", ["mlx"])
    assert "blas" not in under_torch and under_mlx["driver"] == {"nvidia": "555.42.06"}
    assert under_torch["driver"].items() >= {"nvidia": "555.42.06", "cuda_runtime": "12.8"}.items()


def test_a_card_that_torch_does_not_see_has_a_reason(
    host_of: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvidia-smi lists it whatever CUDA_VISIBLE_DEVICES says; torch is not to blame then."""
    made = host_of(linux(TORCH_CPU), H200)
    gpu, state = made["devices"][0], made["backends"]["torch-cuda"]
    assert (gpu["id"], gpu["backends"], gpu["driver"]) == ("h200", [], "580.159.03")
    assert "built without CUDA" in state["reason"] and "cuda.txt" in state["fix"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    made = host_of(linux(TORCH_CUDA), H200, NVIDIA)
    state = made["backends"]["torch-cuda"]
    assert [device["kind"] for device in made["devices"]] == ["cpu"]
    assert "CUDA_VISIBLE_DEVICES hides" in state["reason"] and state["fix"] is None


def test_an_old_card_beside_a_new_one_is_listed_and_not_used(host_of: Callable) -> None:
    other = CARD | {"name": "NVIDIA GeForce GT 710", "error": "no kernel image"}
    made = host_of(linux(TORCH_CUDA, torch_cuda={"devices": [CARD, other]}), files=NVIDIA)
    good, old, _ = made["devices"]
    assert good["backends"] == ["torch-cuda"]
    assert old["id"] == "gpu-nvidia-geforce-gt-710" and old["backends"] == []
    state = made["backends"]["torch-cuda"]
    assert state["available"] and state["devices"] == [good["id"]]
    assert state["reason"] == "on GPU 1 (NVIDIA GeForce GT 710): no kernel image"
    assert "no kernels for this GPU" in advice_of(doctor.report(made), "torch-cuda")


def cards(*ids: tuple[str, str]) -> dict[str, str]:
    """Files of Linux's list of cards, by vendor and model on PCI; AMD's driver says how much memory."""
    files = {}
    for number, (vendor, device) in enumerate(ids):
        folder = f"/sys/class/drm/card{number}/device"
        files |= {f"{folder}/vendor": f"{vendor}\n", f"{folder}/device": f"{device}\n"}
        if vendor == "0x1002":
            files[f"{folder}/mem_info_vram_total"] = f"{24 * GIB}\n"
    return files


def test_a_gpu_of_amd_or_intel_is_listed_and_said_not_to_be_measured(
    host_of: Callable, devices: registry.Registry
) -> None:
    """Beside NVIDIA's, and beside a server's display, 0x1a03, which is none."""
    ids = ("0x1a03", "0x2000"), ("0x10de", "0x2684"), ("0x1002", "0x744c"), ("0x8086", "0x46a6")
    found = cards(*ids)
    made = host_of(linux(TORCH_CUDA, torch_cuda={"devices": [CARD]}), files=NVIDIA | found)
    own, *others, _ = made["devices"]
    assert own["backends"] == ["torch-cuda"]
    expected = [("gpu-amd-0x744c", "amd", 24 * GIB, []), ("gpu-intel-0x46a6", "intel", None, [])]
    keys = ("id", "vendor", "memory_bytes", "backends")
    assert [tuple(one[key] for key in keys) for one in others] == expected
    document = doctor.report(made)
    line = "gpu-amd-0x744c: no backend measures AMD's GPUs, so it is not measured"
    assert doctor.as_text(document).count(line) == 1
    assert "add an entry" not in advice_of(document, "gpu-amd-0x744c")
    _, missing = matrix.select_devices({"devices": ["local"]}, {"devices": {}}, made)
    assert missing == [
        {"device": "gpu-amd-0x744c", "reason": "no backend measures AMD's GPUs"},
        {"device": "gpu-intel-0x46a6", "reason": "no backend measures Intel's GPUs"},
    ]
    assert "AMD 0x744c (not measured), Intel 0x46a6 (not measured), " in summary.host_line(made)


def test_a_gpu_that_fails_under_mlx_alone_is_told(host_of: Callable) -> None:
    held = {"error": "RuntimeError: cudaMalloc failed: out of memory"}
    made = host_of(TWO_CARDS | {"mlx-gpu": held}, files=NVIDIA)
    state = made["backends"]["mlx"]
    assert state["available"] and state["devices"] == [made["devices"][-1]["id"]]
    document = doctor.report(made)
    assert "another process holds the GPU" in advice_of(document, "mlx")
    assert f"works  {state['devices'][0]}; on the GPU: {held['error']}" in doctor.as_text(document)


# -- the processor ----------------------------------------------------------------------------


@LINUX
@pytest.mark.parametrize(
    "files",
    [
        {
            "/proc/self/cgroup": "0::/pod/box\n",
            "/sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
            "/sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
            "/sys/fs/cgroup/pod/memory.max": f"{8 * GIB}\n",
            "/sys/fs/cgroup/pod/box/memory.max": "max\n",
        },
        {
            "/proc/self/cgroup": "4:memory:/docker/box\n2:cpu,cpuacct:/docker/box\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
        },
    ],
    ids=["cgroup 2", "cgroup 1"],
)
def test_a_containers_limits_count(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    files["/proc/meminfo"] = "MemTotal:       263982016 kB\nMemFree:        1 kB\n"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(machine, "read_text", lambda path: files.get(path, ""))
    cpu = machine.cpu()
    assert (cpu["logical_cores"], cpu["usable_cores"]) == (64, 1)
    assert cpu["memory_bytes"] == 8 * GIB


@LINUX
@pytest.mark.parametrize(
    ("kinds", "allowed", "threads", "rule"),
    [
        (("cpu_core", "cpu_atom"), 20, 12, "the physical cores of a hybrid processor"),
        (("cpu_core", "cpu_atom"), 8, 4, "the physical cores of a hybrid processor"),
        (("cpu_core", "cpu_atom"), 1, 1, "all processors"),
        ((), 20, 20, "all processors"),  # one kind of cores, of two threads each
    ],
)
def test_threads_of_a_hybrid_processor_are_its_physical_cores(
    kinds: tuple[str, ...], allowed: int, threads: int, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight performance cores of two threads and four efficiency cores, some of them allowed."""
    cpus = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    files = {cpus.format(n): f"{n // 2 * 2}-{n // 2 * 2 + 1}" for n in range(16)}
    files |= {cpus.format(n): str(n) for n in range(16, 20)}
    files |= {f"/sys/devices/{kind}/cpus": "0-15\n" for kind in kinds}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)))
    monkeypatch.setattr(os, "cpu_count", lambda: 20)
    monkeypatch.setattr(machine, "read_text", lambda path: files.get(path, ""))
    cpu = machine.cpu()
    assert (cpu["threads"], cpu["usable_cores"]) == (threads, allowed)
    assert cpu["threads_rule"].startswith(rule) and cpu["physical_cores"] == 12


# -- the doctor --------------------------------------------------------------------------------


def advice_of(document: dict[str, Any], about: str) -> str:
    return " ".join(f"{a['why']} {a['fix']}" for a in document["advice"] if a["about"] == about)


def test_the_doctor_says_why_and_how(host_of: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"error": "RuntimeError: The NVIDIA driver on your system is too old"}
    files = {"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n"}
    files |= NVIDIA | {doctor.environment.PLATFORM_PROFILE: "low-power\n"}
    files["/proc/cpuinfo"] = "flags\t\t: fpu sse2 avx2\n"
    listed = {QUERY: "NVIDIA GeForce RTX 9090, 32607, 470.1\n"}
    made = host_of(linux(TORCH_CUDA, torch_cuda=old), listed, files)
    monkeypatch.setattr(doctor.environment, "power_source", lambda: "battery")
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 9.0, 9.0))
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    usage = shutil.disk_usage(".")._replace(free=GIB)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    document = doctor.report(made)
    for about, words in {
        "torch-cuda": ("too old", "update the NVIDIA driver"),
        "mlx on the CPU": ("libblas-bd8a282c", "libopenblas0-pthread"),
        "gpu-nvidia-geforce-rtx-9090": ("no backend", "add an entry"),
        "fp16 on the CPU": ("computes fp16 without instructions",),
        "C++ compiler": ("mx.compile", "install one"),
        "load": ("9.0",),
        "power": ("battery", "plug it in", "low power mode"),
        "CPU governor": ("powersave",),
        "disk": ("1.0 GiB",),
    }.items():
        assert all(word in advice_of(document, about) for word in words), about
    text = doctor.as_text(document)
    assert all(advice["why"] in text for advice in document["advice"])
    assert all(name in text for name in document["probes"]) and document["probes"]
    json.dumps(document)


@LINUX
def test_the_doctor_says_what_windows_hides(
    host_of: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WSL's kernel says whose it is; nvidia-smi answers there, /proc has no driver."""
    for release, said in (("6.6.87.2-microsoft-standard-WSL2", True), ("6.1.0-48-amd64", False)):
        monkeypatch.setattr(platform, "release", lambda release=release: release)
        known = linux(TORCH_CUDA, torch_cuda={"devices": [CARD]})
        made = host_of(known, {QUERY: "RTX 4090, 24564, 581.1\n"})
        assert made["devices"][0]["backends"] == ["torch-cuda"]
        advice = advice_of(doctor.report(made), "WSL")
        assert (".wslconfig" in advice and "inside Windows" in advice) == said
