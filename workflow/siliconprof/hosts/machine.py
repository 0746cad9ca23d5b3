"""This machine's operating system, CPU and memory, and what identifies it.

Cheap and free of frameworks, since every parse of the Snakefile calls it. Whatever is read of a host,
here, by a sensor or by a probe, goes through `reading`: a reading that raises costs itself alone. Only
`run` and `read_text` touch the machine here, so that a test can put another one in its place.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from siliconprof.errors import UserError, in_one_line

# What the kernel reserves differs by some MiB from boot to boot, and a host file must not.
MEMORY_STEP_BYTES = 64 * 2**20

# CPU features that decide how fast 16-bit arithmetic is, by Linux's and by Apple's names.
LINUX_FEATURES = frozenset(
    "avx2 avx512f avx512_bf16 avx512_fp16 amx_bf16 amx_fp16 asimdhp bf16 i8mm sve sve2".split()
)
APPLE_FEATURES = ("FEAT_FP16", "FEAT_BF16")

VENDORS = ("nvidia", "intel", "amd", "apple")
# Who makes GPUs that no backend measures, by the id of the vendor on PCI.
UNMEASURED_VENDORS = {"0x1002": "AMD", "0x8086": "Intel"}
MAX_CARDS = 16
LEAST_FREE_BYTES = 16 * 2**20  # of a disk, for tables and a page

T = TypeVar("T")


class Unreadable(Exception):
    """A reading is not available, or no longer; the message says why."""


def reading(read: Callable[[], T]) -> tuple[T | None, str | None]:
    """Return (a reading of the host, None), or (None, why there is none).

    Whatever it raises is the reason: a library that was built for another release of the system, a
    driver or a container's /proc raise anything.
    """
    try:
        return read(), None
    except Unreadable as error:
        return None, str(error)
    except Exception as error:
        return None, in_one_line(error)


def by_psutil(read: Callable[[Any], T]) -> tuple[T | None, str | None]:
    """Return a `reading` by psutil, which `read` gets as its argument, so that plug-ins need not import it."""

    def ask() -> T:
        import psutil

        return read(psutil)

    return reading(ask)


def require_room(folder: Path) -> None:
    """Refuse a disk that is full.

    Raises:
        UserError: it is; one line.
    """
    free, _ = reading(lambda: shutil.disk_usage(folder).free)
    if free is not None and free < LEAST_FREE_BYTES:
        raise UserError(
            f"{folder}: {free / 2**20:.1f} MiB are free on this disk, too little for tables and a page; "
            "make room there and run the same command again: what was measured is kept"
        )


def not_executable(folder: Path) -> tuple[str, str] | None:
    """Why no code in this folder can be loaded and how to fix it, or None; it is tried on Linux."""
    if sys.platform != "linux":
        return None
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
            file.flush()
            mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
    except PermissionError as error:
        why = (
            f"nothing may be executed in {folder.absolute()} (mounted noexec), so code that MLX and "
            "torch.compile make there cannot be loaded"
        )
        fix = "work in a folder on a disk that is mounted without noexec"
        return None if error.filename else (why, fix)  # a name: nothing may be written there
    except OSError:  # a full disk
        return None
    return None


# -- the boundary to the machine: tests fake these two -----------------------------------------


def run(command: Sequence[str], timeout_s: float = 30.0) -> str:
    """Standard output of a system command; "" when it is missing, fails or hangs."""
    printed, _ = reading(
        lambda: (
            subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=True,
                env={**os.environ, "LC_ALL": "C"},
            ).stdout
        )
    )
    return printed or ""


def read_text(path: str) -> str:
    """A file of /proc, /sys or /etc; "" when it is missing or unreadable."""
    text, _ = reading(lambda: Path(path).read_text(encoding="utf-8", errors="replace"))
    return text or ""


def listed(folder: Path | str, pattern: str) -> list[Path]:
    """The files of a folder of /proc or /sys that fit a pattern, sorted; none where it is unreadable."""
    return reading(lambda: sorted(Path(folder).glob(pattern)))[0] or []


def number(text: str) -> int | None:
    """The integer a text is, or None."""
    try:
        return int(text)
    except ValueError:
        return None


def read_number(path: Path | str) -> int | None:
    """The integer in a file of /proc or /sys, or None."""
    return number(read_text(str(path)))


# -- operating system, CPU, memory -------------------------------------------------------------


def is_mac() -> bool:
    """Whether this is macOS."""
    return platform.system() == "Darwin"


def sysctl(name: str) -> str:
    """A macOS kernel variable; "" when there is none."""
    return run(["sysctl", "-n", name]).strip()


def simulated_device(framework: str) -> str | None:
    """Return what simulates a framework's devices, as tests mark its module; None if they are real."""
    return getattr(sys.modules.get(framework), "simulated_device", None)


def cpu_model() -> str:
    """The CPU's name as the system gives it, such as `AMD EPYC` or `Apple M2 Max`."""
    if is_mac():
        unnamed = "Apple chip" if platform.machine() == "arm64" else platform.machine()
        return sysctl("machdep.cpu.brand_string") or unnamed
    for pattern, text in (
        (r"^model name\s*:\s*(.+)$", read_text("/proc/cpuinfo")),
        (r"^Model name:\s*(.+)$", run(["lscpu"])),  # /proc/cpuinfo has no name on ARM
    ):
        match = re.search(pattern, text, re.M)
        if match and match[1].strip() not in ("", "-", "unknown"):
            return " ".join(match[1].split())
    return platform.processor() or platform.machine()


def vendor(name: str) -> str:
    """Who makes a device of that name."""
    return next((v for v in VENDORS if v in name.lower()), "unknown")


def fingerprint_parts() -> dict[str, str | None]:
    """What identifies this machine: hashed machine id, CPU model, architecture.

    The id is hashed with this program's name, as machine-id(5) asks, so that no file contains it.
    A container may have no id: then the other two decide.
    """
    if is_mac():
        tree = run(["ioreg", "-rd1", "-c", "IOPlatformExpertDevice"])
        match = re.search(r'"IOPlatformUUID" = "([^"]+)"', tree)
        machine_id = match[1] if match else ""
    else:
        machine_id = read_text("/etc/machine-id") or read_text("/var/lib/dbus/machine-id")
    machine_id = machine_id.strip()
    hashed = hashlib.sha256(f"siliconprof:{machine_id}".encode()).hexdigest()
    return {
        "machine_id_sha256": hashed if machine_id else None,
        "cpu_model": cpu_model(),
        "architecture": platform.machine(),
    }


def own_cgroups(controller: str) -> Iterator[tuple[str, str]]:
    """(controller, path) of this process's cgroups that a controller has, whoever made them.

    Version 2 has one tree for all controllers, where the first is empty; version 1 one for each.
    """
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            yield controller if controllers else "", path.strip("/")


def _cgroup_files(controller: str, name: str) -> list[str]:
    """Return the contents of a limit's file in this process's cgroup and in all above it."""
    texts = []
    for tree, path in own_cgroups(controller):
        folder = Path("/sys/fs/cgroup", tree)
        for place in (path, *map(str, Path(path).parents)):
            texts.append(read_text(str(folder / place / name)).strip())
    return [text for text in texts if text]


def _quota_cores() -> float:
    """Return the cores that this process's cgroup quotas allow; infinite without a quota."""
    cores = math.inf
    for text in _cgroup_files("cpu", "cpu.max"):
        quota, period = text.split()
        if quota != "max":
            cores = min(cores, int(quota) / int(period))
    for quota, period in zip(
        _cgroup_files("cpu", "cpu.cfs_quota_us"),
        _cgroup_files("cpu", "cpu.cfs_period_us"),
        strict=False,
    ):
        if int(quota) > 0:
            cores = min(cores, int(quota) / int(period))
    return cores


def _usable_cores(logical: int) -> int:
    """Cores that this process may use, given its affinity and cgroup quota."""
    cores = float(logical)
    if hasattr(os, "sched_getaffinity"):
        cores = min(cores, len(os.sched_getaffinity(0)))
    quota_cores, _ = reading(_quota_cores)
    return max(1, int(min(cores, quota_cores or cores)))


def _threads(usable: int) -> tuple[int, str]:
    """(threads that `cpu_threads: auto` takes, the rule that gave them).

    Where a processor's cores differ, parts of equal size wait for the slowest core. torch then takes
    an Apple chip's performance cores (pytorch pull request 123038), and with oneMKL the physical cores
    of an Intel processor (its Developer Guide, "Improving Performance with Threading"); Linux lists
    the two kinds of these as devices (perf's intel-hybrid.txt).

    Args:
        usable: processors that this process may use.
    """
    if is_mac():
        fast = number(sysctl("hw.perflevel0.logicalcpu"))
        if fast and 1 < fast < usable:
            return fast, "the performance cores (hw.perflevel0.logicalcpu), as torch itself does"
    elif sys.platform == "linux" and all(
        read_text(f"/sys/devices/{kind}/cpus") for kind in ("cpu_core", "cpu_atom")
    ):
        physical = _physical_cores(os.sched_getaffinity(0))
        if physical and physical < usable:
            return physical, "the physical cores of a hybrid processor, as torch does with oneMKL"
    return usable, "all processors that this process may use"


def _memory_bytes() -> int | None:
    """Bytes of physical memory or the cgroup's limit, whichever is less, in whole steps."""
    if is_mac():
        return number(sysctl("hw.memsize"))
    match = re.search(r"^MemTotal:\s*(\d+) kB", read_text("/proc/meminfo"), re.M)
    sizes = [int(match[1]) * 1024] if match else []
    for name in ("memory.max", "memory.limit_in_bytes"):
        limits = (number(text) for text in _cgroup_files("memory", name))
        sizes.extend(limit for limit in limits if limit)
    if not sizes:
        return None
    return min(sizes) // MEMORY_STEP_BYTES * MEMORY_STEP_BYTES


def _physical_cores(processors: Iterable[int]) -> int | None:
    """The physical cores of some processors of a Linux host, by sysfs' list of each core's threads."""
    folders = (f"/sys/devices/system/cpu/cpu{number}" for number in processors)
    threads = {read_text(f"{folder}/topology/thread_siblings_list") for folder in folders}
    return len(threads - {""}) or None


def cpu() -> dict[str, Any]:
    """Model, cores, threads, the features that decide 16-bit speed, and usable memory in bytes.

    Features and memory are None where nothing tells them.
    """
    logical = os.cpu_count() or 1
    if is_mac():
        told = {name: sysctl(f"hw.optional.arm.{name}") for name in APPLE_FEATURES}
        features = (
            [name for name, text in told.items() if text == "1"] if any(told.values()) else None
        )
        usable = logical = number(sysctl("hw.logicalcpu")) or logical
        physical = number(sysctl("hw.physicalcpu"))
    else:
        cpuinfo = read_text("/proc/cpuinfo")
        match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.M)
        features = sorted(LINUX_FEATURES.intersection(match[1].split())) if match else None
        usable, physical = _usable_cores(logical), _physical_cores(range(logical))
    threads, threads_rule = _threads(usable)
    return {
        "model": cpu_model(),
        "physical_cores": physical,
        "logical_cores": logical,
        "usable_cores": usable,
        "threads": threads,
        "threads_rule": threads_rule,
        "memory_bytes": _memory_bytes(),
        "features": features,
    }


def mac_version() -> str:
    """The version of macOS, such as `26.1`.

    A Python built with an SDK before 26 takes macOS 26 for 16 (github.com/python/cpython/issues/
    135675), Apple's own command does not.
    """
    return sysctl("kern.osproductversion") or platform.mac_ver()[0]


def other_gpus() -> list[dict[str, Any]]:
    """AMD's and Intel's GPUs by Linux's list of cards, which needs no driver's tool."""
    gpus = []
    for number in range(MAX_CARDS):
        folder = f"/sys/class/drm/card{number}/device"
        if vendor := UNMEASURED_VENDORS.get(read_text(f"{folder}/vendor").strip()):
            model = read_text(f"{folder}/product_name") or read_text(f"{folder}/device")
            own = {"name": f"{vendor} {model.strip()}", "vendor": vendor.lower()}
            memory = read_number(
                f"{folder}/mem_info_vram_total"
            )  # amdgpu has it, other drivers not
            gpus.append(own | {"memory_bytes": memory})
    return gpus


def operating_system() -> dict[str, str | None]:
    """System, kernel release, distribution with version, machine."""
    if is_mac():
        distribution: str | None = f"macOS {mac_version()}"
    else:
        match = re.search(r'^PRETTY_NAME="?([^"\n]+)', read_text("/etc/os-release"), re.M)
        distribution = match[1] if match else None
    return {
        "system": platform.system(),
        "release": platform.release(),
        "distribution": distribution,
        "machine": platform.machine(),
    }
