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
from siliconprof.hosts.sensors import linux
from siliconprof.hosts.sensors.base import Readings
from siliconprof.probes.base import Probe

DRIVER_INTERVAL_S = 1.0


def resident_bytes() -> int | None:
    """Resident set size of this process; None without /proc and psutil."""
    try:
        return int(linux.STATM.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pass
    try:
        import psutil
    except ImportError:
        return None
    return psutil.Process().memory_info().rss


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
        if resident_bytes() is None:
            return False, "no /proc and no psutil: pip install psutil"
        return True, "/proc/self/statm" if sys.platform == "linux" else "psutil"

    def start(self, backend: Any) -> None:
        super().start(backend)
        self.peak: dict[str, float] = {}
        self.next_driver_s = 0.0
        self.at_start = self.sample()
        self.limit_bytes = backend.memory_limit_bytes()

    def sample(self) -> Readings:
        """Read now; the driver's count once a second and None in between."""
        now_s = time.monotonic()
        if driver := now_s >= self.next_driver_s:
            self.next_driver_s = now_s + DRIVER_INTERVAL_S
        counters = self.backend.memory_counters(driver)
        now: Readings = {
            "rss_bytes": resident_bytes(),
            "device_memory_bytes": self.backend.memory_bytes(),
            **{f"{self.backend.memory_prefix}_{name}": v for name, v in counters.items()},
        }
        for name, value in now.items():
            if value is not None:
                self.peak[name] = max(self.peak.get(name, 0), value)
        return now

    def stop(self, wall_s: float) -> dict[str, Any]:
        summary: dict[str, Any] = {
            "device_limit_bytes": self.limit_bytes,
            "device_means": self.backend.memory_means,
        }
        for column, stem in (("rss_bytes", "rss"), ("device_memory_bytes", "device")):
            start, peak = self.at_start[column], self.peak.get(column)
            growth = None if start is None or peak is None else peak - start
            summary[f"{stem}_at_start_bytes"] = start
            summary[f"{stem}_peak_sampled_bytes"] = peak
            summary[f"{stem}_growth_bytes"] = growth
        return summary
