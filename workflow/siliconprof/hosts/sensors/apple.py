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
from siliconprof.hosts.machine import Unreadable
from siliconprof.hosts.sensors.base import EnergySensor, Gpu, Hardware, Readings, Source

SYSTEM_LIBRARY = "/usr/lib/libSystem.B.dylib"
PRESSURE_NAME = b"com.apple.system.thermalpressurelevel"
PRESSURES = ("nominal", "moderate", "heavy", "trapping", "sleeping")  # 0 to 4 on macOS
HOST_VM_INFO64 = 4  # mach/host_info.h
MIG_ARRAY_TOO_LARGE = -307  # mach/mig_errors.h
MOST_INTEGERS = 1024  # HOST_INFO_MAX of mach/host_info.h

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
PROCESSOR = "cpu_total_mj"
SOC_PARTS = (PROCESSOR, "gpu_mj", "ane_mj", "dram_mj")
NEEDED_PARTS = (PROCESSOR, "gpu_mj")
ONE_DIE_UP_TO = (1, 1, 0)  # later ones add up the channels DIE_0_… and DIE_1_…
ONE_DIE = (
    "zeus-apple-silicon counts the CPU of one die only on an Ultra chip, up to its version 1.1.0; "
    "the GPU's figure has both"
)


def gpu(name: str) -> Gpu:
    """The GPU of this Mac, whose energy the SoC's sensors count."""
    return Gpu("macOS shows its GPU's clock, temperature and load to root only (powermetrics)")


def energy(with_gpu: bool) -> EnergySensor:
    """The energy of the SoC and, where the cell runs on it, of this Mac's GPU: two scopes."""
    sources = (GPU, SOC) if with_gpu else (SOC,)
    sensor, why = machine.reading(lambda: AppleEnergy(sources))
    return sensor or EnergySensor(*(source.without(str(why)) for source in sources))


class AppleEnergy(EnergySensor):
    """Energy of GPU and SoC since this object was made.

    A part that has not moved by then is not counted: in macOS 27.0 the processor's stands still (macmon
    issue 76, stats issue 3608), and the sum would be the GPU's energy under the chip's name. The ANE
    stands still where nothing uses it.

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
        self.first_mj = {p: mj for p in SOC_PARTS if (mj := getattr(first, p)) is not None}
        self.moved: set[str] = set()
        super().__init__(*map(self._checked, sources))

    def _checked(self, source: Source) -> Source:
        """The source, with a reason where this chip cannot read it."""
        needed = ("gpu_mj",) if source is GPU else NEEDED_PARTS
        if missing := [part for part in needed if part not in self.first_mj]:
            return source.without(f"zeus-apple-silicon gives no {' and no '.join(missing)} here")
        if source is SOC and one_die():
            return source.without(ONE_DIE)
        return source

    def read(self) -> dict[str, float]:
        """Sum the chip's parts; the sum exists once the processor's counter has moved."""
        now = self.monitor.get_cumulative_energy()
        grown_mj = {part: getattr(now, part) - mj for part, mj in self.first_mj.items()}
        self.moved |= {part for part, mj in grown_mj.items() if mj}
        readable = {source.name for source in self.sources if source.reason is None}
        if PROCESSOR not in self.moved:
            readable -= {SOC.name}
        millijoules = {GPU.name: grown_mj.get("gpu_mj", 0), SOC.name: sum(grown_mj.values())}
        return {name: mj / 1e3 for name, mj in millijoules.items() if name in readable}

    def held(self, source: Source) -> Source:
        """Name the chip's sum for the parts in it."""
        if source.name != SOC.name or source.reason is not None:
            return source
        if PROCESSOR not in self.moved:
            return source.without(
                f"not counted: {PROCESSOR} stood still while the processor worked"
            )
        parts = [part for part in SOC_PARTS if part in self.moved]
        means = f"zeus-apple-silicon: {', '.join(parts)} summed, estimates by the chip"
        for why, others in (
            ("stood still and not counted", self.first_mj.keys() - self.moved),
            ("not reported by this chip", {*SOC_PARTS} - self.first_mj.keys()),
        ):
            if others:
                means += f"; {why}: {', '.join(sorted(others))}"
        return replace(source, means=means)


def _missing() -> str:
    """Return why the library is missing, and what to do."""
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
    version, _ = machine.reading(lambda: metadata.version("zeus-apple-silicon"))
    return tuple(map(int, re.findall(r"\d+", version or "")[:3])) <= ONE_DIE_UP_TO


def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(SYSTEM_LIBRARY)
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
        _, why = machine.reading(self._register)
        if why is not None:
            self.reasons["thermal_pressure_level"] = why

    def _register(self) -> None:
        self.library = _library()
        self._ask("notify_register_check", PRESSURE_NAME, ctypes.byref(self.token))

    def _ask(self, function: str, *arguments: Any) -> None:
        """Call a function of notify(3), which answers with a status."""
        if status := getattr(self.library, function)(*arguments):
            raise Unreadable(f"macOS: {function} answers {status}")

    def clocks(self) -> Readings:
        level = None
        if "thermal_pressure_level" not in self.reasons:
            level, why = machine.reading(self._level)
            if why is not None:
                self.reasons["thermal_pressure_level"] = why
        return {"thermal_pressure_level": level}

    def _level(self) -> int:
        state = ctypes.c_uint64()
        self._ask("notify_get_state", self.token, ctypes.byref(state))
        return int(state.value)

    def limits(self, readings: Mapping[str, float | int | None]) -> tuple[str, ...] | None:
        """Moderate pressure is a limit, but no throttling."""
        level = readings.get("thermal_pressure_level")
        if level is None:
            return None
        pressure = PRESSURES[min(int(level), len(PRESSURES) - 1)]
        return () if level == 0 else (f"thermal pressure {pressure}",)


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
        pointers = ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint32)
        self._statistics.argtypes = (ctypes.c_uint32, ctypes.c_int, *pointers)

    def swapped(self) -> tuple[int, int]:
        """(in, out) since boot, in pages.

        The kernel of macOS 27 has more fields, and after some calls asks for room for all of them: it
        writes how many (psutil pull request 2978).
        """
        room = (ctypes.c_uint32 * MOST_INTEGERS)()
        count = ctypes.c_uint32(ctypes.sizeof(VmStatistics64) // 4)  # in units of integer_t
        arguments = self._host, HOST_VM_INFO64, ctypes.byref(room), ctypes.byref(count)
        status = self._statistics(*arguments)
        if status == MIG_ARRAY_TOO_LARGE and count.value <= MOST_INTEGERS:
            status = self._statistics(*arguments)
        if status:
            raise Unreadable(f"macOS: host_statistics64 answers {status}")
        statistics = VmStatistics64.from_buffer(room)
        return statistics.swapins, statistics.swapouts
