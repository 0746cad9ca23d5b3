"""Memory over time: resident set of the process, and what the framework holds on the device."""

from __future__ import annotations

import os
import sys
from typing import Any

from siliconprof.probes.base import Probe


def resident_bytes() -> int | None:
    """Resident set size of this process; None where neither /proc nor psutil tells."""
    try:
        with open("/proc/self/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
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

    @classmethod
    def available(cls) -> tuple[bool, str]:
        """See `Probe.available`."""
        if resident_bytes() is None:
            return False, "no /proc and no psutil: pip install psutil"
        return True, "/proc/self/statm" if sys.platform == "linux" else "psutil"

    def start(self, backend: Any) -> None:
        """See `Probe.start`; what is resident after the imports is subtracted by readers."""
        super().start(backend)
        self.at_start = resident_bytes()
        self.peak = self.at_start or 0

    def sample(self) -> dict[str, float | int | None]:
        """See `Probe.sample`."""
        resident = resident_bytes()
        self.peak = max(self.peak, resident or 0)
        return {"rss_bytes": resident, "device_memory_bytes": self.backend.memory_bytes()}

    def stop(self, wall_s: float) -> dict[str, Any]:
        """See `Probe.stop`."""
        return {"rss_at_start_bytes": self.at_start, "rss_peak_sampled_bytes": self.peak or None}
