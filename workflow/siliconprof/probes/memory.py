"""Memory over time: the process's resident set, and the memory that the framework holds.

Each kind of counter has its own column: every backend fills `device_memory_bytes` (the memory of
its arrays), the other columns belong to one framework. The summary has the memory at the start,
after the backend's import, and the growth above it.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from siliconprof.declarations import Quantity
from siliconprof.hosts import machine
from siliconprof.hosts.sensors import linux
from siliconprof.hosts.sensors.base import Readings
from siliconprof.probes.base import Probe

DRIVER_INTERVAL_S = 1.0


def resident_bytes() -> tuple[int | None, str | None]:
    """(resident set size of this process, None), or (None, why neither /proc nor psutil tells it)."""
    pages, why = machine.reading(lambda: int(linux.STATM.read().split()[1]))
    if pages is not None:
        return pages * os.sysconf("SC_PAGE_SIZE"), None
    n_bytes, why_not = machine.by_psutil(lambda psutil: psutil.Process().memory_info().rss)
    return n_bytes, why_not and f"{why}; {why_not}"


class Plugin(Probe):
    """memory"""

    name = "memory"
    LIBRARIES = ("psutil",)
    QUANTITIES = {
        f"{stem}_{name}_bytes": Quantity(f"{what} {label}", "byte", "lower")
        for stem, what in (("rss", "resident memory"), ("device", "device memory"))
        for name, label in (
            ("at_start", "at the start"),
            ("peak_sampled", "at most, sampled"),
            ("growth", "growth"),
        )
    }

    @classmethod
    def available(cls) -> tuple[bool, str]:
        _, why = resident_bytes()
        means = "/proc/self/statm" if sys.platform == "linux" else "psutil"
        return True, f"the framework's alone: {why}" if why else means

    def start(self, backend: Any) -> None:
        super().start(backend)
        self.peak: dict[str, float] = {}
        self.reasons: dict[str, str] = {}
        self.next_driver_s = 0.0
        self.at_start = self.sample()
        limit = machine.reading(backend.memory.recommended_bytes)
        self.limit_bytes = self._value("device_limit_bytes", limit)

    def _value(self, column: str, found: tuple[Any, str | None]) -> Any:
        """The value of a reading; None where there is none, and then its reason is kept."""
        value, why = found
        if why is not None:
            self.reasons[column] = why
        return value

    def sample(self) -> Readings:
        """Read now; the driver's count once a second and None in between."""
        now_s = time.monotonic()
        if driver := now_s >= self.next_driver_s:
            self.next_driver_s = now_s + DRIVER_INTERVAL_S
        memory = self.backend.memory
        counters = machine.reading(lambda: memory.counters(driver))
        held = machine.reading(memory.allocated_bytes)
        now: Readings = {
            "rss_bytes": self._value("rss_bytes", resident_bytes()),
            "device_memory_bytes": self._value("device_memory_bytes", held),
            **{
                f"{memory.prefix}_{name}": value
                for name, value in (self._value(memory.prefix, counters) or {}).items()
            },
        }
        for name, value in now.items():
            if value is not None:
                self.peak[name] = max(self.peak.get(name, 0), value)
        return now

    def stop(self, wall_s: float) -> dict[str, Any]:
        summary: dict[str, Any] = {
            "device_limit_bytes": self.limit_bytes,
            "device_means": self.backend.memory.means,
            "reasons": self.reasons,
        }
        for column, stem in (("rss_bytes", "rss"), ("device_memory_bytes", "device")):
            start, peak = self.at_start[column], self.peak.get(column)
            growth = None if start is None or peak is None else peak - start
            summary[f"{stem}_at_start_bytes"] = start
            summary[f"{stem}_peak_sampled_bytes"] = peak
            summary[f"{stem}_growth_bytes"] = growth
        return summary
