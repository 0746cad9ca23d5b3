"""Apple silicon: energy by zeus-apple-silicon, thermal pressure and swap by macOS itself.

None of it needs root. Energy: zeus-apple-silicon 1.1.0 (README and apple_energy.hpp) reads
IOReport's "Energy Model", an estimate by the chip's firmware, in millijoules. Thermal pressure:
notify(3) with the name and the levels of <libkern/OSThermalNotification.h>. Swap:
host_statistics64 with <mach/vm_statistics.h>. Only root may read a GPU's clock, temperature and
load (powermetrics(1)), so they are absent here.
"""

from __future__ import annotations

import ctypes
import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

from siliconprof.hosts import machine
from siliconprof.hosts.sensors.base import (
    EnergySensor,
    Gpu,
    Hardware,
    Readings,
    Source,
    Unreadable,
)

LIBRARY = "/usr/lib/libSystem.B.dylib"
PRESSURE_NAME = b"com.apple.system.thermalpressurelevel"
PRESSURES = ("nominal", "moderate", "heavy", "trapping", "sleeping")  # 0 to 4 on macOS
HOST_VM_INFO64 = 4  # mach/host_info.h

GPU = Source(
    "apple-gpu",
    "gpu",
    "model",
    "zeus-apple-silicon gpu_mj: IOReport's 'GPU Energy', an estimate by the chip",
)
SOC = Source(
    "apple-soc",
    "soc",
    "model",
    "zeus-apple-silicon: cpu_total_mj, gpu_mj, ane_mj and dram_mj summed, estimates by the chip",
)
NO_WHEEL_FROM = (3, 14)  # of Python, for zeus-apple-silicon 1.1.0
SOC_PARTS = ("cpu_total_mj", "gpu_mj", "ane_mj", "dram_mj")
NEEDED_PARTS = ("cpu_total_mj", "gpu_mj")
ONE_DIE_UP_TO = (1, 1, 0)  # later ones add up the channels DIE_0_… and DIE_1_…
ONE_DIE = (
    "zeus-apple-silicon counts the CPU of one die only on an Ultra chip, up to its version 1.1.0; "
    "the GPU's figure has both"
)


def gpu(name: str) -> Gpu:
    """The GPU of this Mac, whose energy the SoC's sensors count."""
    return Gpu("macOS shows its GPU's clock, temperature and load to root only (powermetrics)")


# -- energy ------------------------------------------------------------------------------------


def energy(with_gpu: bool) -> EnergySensor:
    """The energy of the SoC and, where the cell runs on it, of this Mac's GPU: two scopes."""
    sources = (GPU, SOC) if with_gpu else (SOC,)
    try:
        return AppleEnergy(sources)
    except Unreadable as error:
        return EnergySensor(*(source.without(str(error)) for source in sources))


class AppleEnergy(EnergySensor):
    """Cumulative energy of GPU and SoC.

    Raises:
        Unreadable: the library is missing, or the chip has no energy model.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        try:
            module = importlib.import_module("zeus_apple_silicon")
        except ImportError:
            raise Unreadable(_missing()) from None
        try:
            self.monitor = module.AppleEnergyMonitor()
        except RuntimeError as error:
            raise Unreadable(f"zeus-apple-silicon: {error}") from None
        first = self.monitor.get_cumulative_energy()
        self.parts = [part for part in SOC_PARTS if getattr(first, part) is not None]
        super().__init__(*map(self._checked, sources))

    def _checked(self, source: Source) -> Source:
        """The source, with a reason where this chip cannot read it."""
        needed = ("gpu_mj",) if source is GPU else NEEDED_PARTS
        missing_parts = [part for part in needed if part not in self.parts]
        if missing_parts:
            return source.without(
                f"zeus-apple-silicon gives no {' and no '.join(missing_parts)} here"
            )
        if source is SOC and one_die():
            return source.without(ONE_DIE)
        if source is SOC and len(self.parts) < len(SOC_PARTS):
            unreported = ", ".join(part for part in SOC_PARTS if part not in self.parts)
            return replace(source, means=f"{source.means}; this chip does not report {unreported}")
        return source

    def read(self) -> dict[str, float]:
        """The sum leaves out parts that the chip does not report."""
        try:
            now = self.monitor.get_cumulative_energy()
        except (RuntimeError, ValueError) as error:
            raise Unreadable(f"zeus-apple-silicon: {error}") from None
        millijoules = {
            GPU.name: now.gpu_mj,
            SOC.name: sum(getattr(now, part) or 0 for part in self.parts),
        }
        readable = {source.name for source in self.sources if source.reason is None}
        return {
            name: mj / 1e3
            for name, mj in millijoules.items()
            if name in readable and mj is not None
        }


def _missing() -> str:
    """Why the library is not there, and what to do."""
    if sys.version_info[:2] >= NO_WHEEL_FROM:
        return "zeus-apple-silicon has no wheel for Python 3.14: energy needs 3.11 to 3.13"
    return "zeus-apple-silicon is missing: pip install zeus-apple-silicon"


def one_die() -> bool:
    """Whether the library leaves out a die of this chip.

    Up to 1.1.0 it keeps the last of an Ultra's two `DIE_n_CPU Energy` channels. The GPU has one
    channel for both dies there, `GPU Energy`.
    """
    if "Ultra" not in machine.cpu_model():
        return False
    numbers = re.findall(r"\d+", metadata.version("zeus-apple-silicon"))
    return tuple(map(int, numbers[:3])) <= ONE_DIE_UP_TO


# -- thermal pressure --------------------------------------------------------------------------


def _library() -> ctypes.CDLL:
    """macOS's C library."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise Unreadable(f"macOS: {error}") from None


class MacHost(Hardware):
    """The thermal pressure level that macOS publishes, 0 (nominal) to 4.

    Heavy and above means that the system slows itself down.
    """

    throttling = frozenset(f"thermal pressure {name}" for name in PRESSURES[2:])
    limits_shown = (
        "thermal_pressure_level",
        "macOS's thermal pressure level, throttled from heavy on, which tells of heat only",
    )

    def __init__(self) -> None:
        super().__init__()
        self.reasons["cpu_clock_mhz"] = "macOS shows the CPU's clock to root only (powermetrics)"
        self.token = ctypes.c_int()
        try:
            self.library = _library()
            self._ask("notify_register_check", PRESSURE_NAME, ctypes.byref(self.token))
        except Unreadable as error:
            self.reasons["thermal_pressure_level"] = str(error)

    def _ask(self, function: str, *arguments: Any) -> None:
        """Call a function of notify(3), which answers with a status."""
        if status := getattr(self.library, function)(*arguments):
            raise Unreadable(f"macOS: {function} answers {status}")

    def clocks(self) -> Readings:
        if "thermal_pressure_level" in self.reasons:
            return {"thermal_pressure_level": None}
        state = ctypes.c_uint64()
        self._ask("notify_get_state", self.token, ctypes.byref(state))
        return {"thermal_pressure_level": int(state.value)}

    def limits(self, readings: Mapping[str, float | int | None]) -> tuple[str, ...] | None:
        """Moderate pressure is a limit, but no throttling."""
        level = readings.get("thermal_pressure_level")
        if level is None:
            return None
        pressure = PRESSURES[min(int(level), len(PRESSURES) - 1)]
        return () if level == 0 else (f"thermal pressure {pressure}",)


# -- memory ------------------------------------------------------------------------------------


class VmStatistics64(ctypes.Structure):
    """`struct vm_statistics64` of <mach/vm_statistics.h>; counts of pages."""

    _fields_ = [
        (name, kind)
        for kind, names in (
            (ctypes.c_uint32, "free active inactive wire"),
            (ctypes.c_uint64, "zero_fill reactivations pageins pageouts faults cow_faults"),
            (ctypes.c_uint64, "lookups hits purges"),
            (ctypes.c_uint32, "purgeable speculative"),
            (ctypes.c_uint64, "decompressions compressions swapins swapouts"),
            (ctypes.c_uint32, "compressor_pages throttled external internal"),
            (ctypes.c_uint64, "uncompressed_in_compressor"),
        )
        for name in names.split()
    ]


class VirtualMemory:
    """What the whole host does with its pages of memory."""

    def __init__(self) -> None:
        library = _library()
        library.mach_host_self.restype = ctypes.c_uint32
        self._host = library.mach_host_self()
        self._statistics: Any = library.host_statistics64
        pointers = ctypes.POINTER(VmStatistics64), ctypes.POINTER(ctypes.c_uint32)
        self._statistics.argtypes = (ctypes.c_uint32, ctypes.c_int, *pointers)

    def swapped(self) -> tuple[int, int]:
        """(in, out) since boot, in pages."""
        statistics = VmStatistics64()
        count = ctypes.c_uint32(ctypes.sizeof(statistics) // 4)  # in units of integer_t
        status = self._statistics(
            self._host, HOST_VM_INFO64, ctypes.byref(statistics), ctypes.byref(count)
        )
        if status:
            raise Unreadable(f"macOS: host_statistics64 answers {status}")
        return statistics.swapins, statistics.swapouts
