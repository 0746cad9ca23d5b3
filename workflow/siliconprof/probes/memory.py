"""Memory over time: resident set of the process, and what the framework holds on the device.

Each kind of counter has a column of its own: `device_memory_bytes` is the one that every backend
gives (what its arrays hold), the others are those of one framework. What is there at the start,
after the backend's import, is in the summary, and the growth above it too.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from siliconprof.declarations import Quantity
from siliconprof.hosts.sensors import linux
from siliconprof.hosts.sensors.base import Readings
from siliconprof.probes.base import Probe


def resident_bytes() -> int | None:
    """Resident set size of this process; None where neither /proc nor psutil tells."""
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
        """See `Probe.available`."""
        if resident_bytes() is None:
            return False, "no /proc and no psutil: pip install psutil"
        return True, "/proc/self/statm" if sys.platform == "linux" else "psutil"

    def start(self, backend: Any) -> None:
        """See `Probe.start`."""
        super().start(backend)
        self.peak: dict[str, float] = {}
        self.at_start = self.sample()
        self.limit_bytes = backend.memory_limit_bytes()

    def sample(self) -> Readings:
        """See `Probe.sample`."""
        now: Readings = {
            "rss_bytes": resident_bytes(),
            "device_memory_bytes": self.backend.memory_bytes(),
        }
        prefix = self.backend.memory_prefix
        now |= {f"{prefix}_{name}": v for name, v in self.backend.memory_counters().items()}
        for name, value in now.items():
            if value is not None:
                self.peak[name] = max(self.peak.get(name, 0), value)
        return now

    def stop(self, wall_s: float) -> dict[str, Any]:
        """See `Probe.stop`."""
        found: dict[str, Any] = {}
        for column, stem in (("rss_bytes", "rss"), ("device_memory_bytes", "device")):
            first, most = self.at_start[column], self.peak.get(column)
            grown = None if first is None or most is None else most - first
            found[f"{stem}_at_start_bytes"] = first
            found[f"{stem}_peak_sampled_bytes"] = most
            found[f"{stem}_growth_bytes"] = grown
        return found | {
            "device_limit_bytes": self.limit_bytes,
            "device_means": self.backend.memory_means,
        }
