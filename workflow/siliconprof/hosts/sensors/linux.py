"""Clock, temperature and throttling of the CPU from Linux's /sys and /proc.

Documentation: admin-guide/pm/cpufreq.rst (kHz), hwmon/sysfs-interface.rst (thousandths of a
degree), admin-guide/thermal/intel_thermal_throttle.rst (counts since boot).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

from siliconprof.hosts import machine
from siliconprof.hosts.sensors.base import Hardware, Readings


class KernelFile:
    """A file of /proc that is read several times a second, in one call that holds Python's GIL.

    A call that releases the lock, as `open` and `read` do, waits about a millisecond to get it back
    beside a training loop; the read itself takes some 10 microseconds.
    """

    def __init__(self, path: str, size: int = 1 << 16) -> None:
        self.path = path
        self._size = size
        self._opened_by: int | None = None  # /proc/self is another file after a fork

    def _open(self) -> None:
        self._descriptor = os.open(self.path, os.O_RDONLY)
        self._opened_by = os.getpid()
        self._buffer = ctypes.create_string_buffer(self._size)
        self._pread = ctypes.PyDLL(None, use_errno=True).pread
        self._pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
        self._pread.restype = ctypes.c_ssize_t

    def read(self) -> bytes:
        """Its current content, at most `size` bytes."""
        if self._opened_by != os.getpid():
            self._open()
        count = self._pread(self._descriptor, self._buffer, self._size, 0)
        if count < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), self.path)
        return ctypes.string_at(self._buffer, count)


STATM = KernelFile("/proc/self/statm", 256)
SYSTEM = Path("/sys")
CORES_READ = 8  # at most, evenly spread: a reading can cost an interrupt to the core
CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu_thermal_zone")


class LinuxHost(Hardware):
    """The CPU's clock (the fastest of some cores), hottest sensor, and throttle count."""

    throttling = frozenset({"CPU heat"})
    limits_shown = (
        "cpu_throttle_count",
        "the CPUs' thermal throttle counts, cores and packages summed, which tell of heat only",
    )

    def __init__(self) -> None:
        super().__init__()
        cpus = SYSTEM / "devices/system/cpu"
        frequencies = machine.listed(cpus, "cpufreq/policy*/scaling_cur_freq")
        self.frequencies = frequencies[:: -(-len(frequencies) // CORES_READ) or 1]
        self.temperatures = [
            sensor
            for name in machine.listed(SYSTEM, "class/hwmon/hwmon*/name")
            if machine.read_text(str(name)).strip() in CPU_SENSORS
            for sensor in machine.listed(name.parent, "temp1_input")  # the package, or Tctl
        ]
        self.counts = _throttle_counts(cpus)
        self._last_count: float | None = None
        here = self.state()
        why = {
            "cpu_clock_mhz": "no cpufreq files: a virtual machine, which shows the nominal clock only",
            "cpu_temperature_c": f"no CPU temperature under {SYSTEM}/class/hwmon "
            f"({', '.join(CPU_SENSORS[:4])})",
            "cpu_throttle_count": "no throttle count: a virtual machine, or a CPU that is not "
            "Intel's",
        }
        self.reasons = {column: why[column] for column, value in here.items() if value is None}

    def state(self) -> Readings:
        clocks_khz, temperatures_mc, counts = (
            [number for number in map(machine.read_number, files) if number is not None]
            for files in (self.frequencies, self.temperatures, self.counts)
        )
        return {
            "cpu_clock_mhz": max(clocks_khz) / 1e3 if clocks_khz else None,
            "cpu_temperature_c": max(temperatures_mc) / 1e3 if temperatures_mc else None,
            "cpu_throttle_count": sum(counts) if counts else None,
        }

    def limits(self, readings: Mapping[str, float | int | None]) -> tuple[str, ...] | None:
        """Heat, where the count grew since the last sample."""
        count = readings.get("cpu_throttle_count")
        if count is None:
            return None
        last, self._last_count = self._last_count, count
        if last is None:
            return None
        return ("CPU heat",) if count > last else ()


def _throttle_counts(cpus: Path) -> list[Path]:
    """One file per core and one per package: hyper-threads share theirs."""
    files: dict[tuple[str, str], Path] = {}
    for folder in machine.listed(cpus, "cpu[0-9]*/thermal_throttle"):
        topology = folder.parent / "topology"
        core = machine.read_text(str(topology / "thread_siblings_list")) or folder.parent.name
        package = machine.read_text(str(topology / "physical_package_id"))
        for kind, which in (("core", core), ("package", package)):
            for path in machine.listed(folder, f"{kind}_throttle_count"):
                files.setdefault((kind, which), path)
    return list(files.values())
