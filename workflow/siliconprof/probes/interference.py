"""Foreign load: processor time that others used on this host while the cell was measured."""

from __future__ import annotations

import os
import time
from typing import Any

from siliconprof.probes.base import Probe

FLAG_ABOVE_CORES = 0.2  # foreign load, in cores, above which a record is flagged


def busy_seconds() -> float | None:
    """Busy processor seconds of the whole host since boot; None where it is not told."""
    try:
        with open("/proc/stat", encoding="ascii") as stream:
            fields = [int(x) for x in stream.readline().split()[1:9]]
        user, nice, system, _idle, _iowait, irq, softirq, steal = fields
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        pass
    try:
        import psutil
    except ImportError:
        return None
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0)


class Plugin(Probe):
    """interference"""

    name = "interference"

    @classmethod
    def available(cls) -> tuple[bool, str]:
        """See `Probe.available`."""
        if busy_seconds() is None:
            return False, "no /proc/stat and no psutil: pip install psutil"
        return True, "processor time of the host less that of the cell"

    def start(self, backend: Any) -> None:
        """See `Probe.start`."""
        super().start(backend)
        self.busy, self.own = busy_seconds(), time.process_time()

    def stop(self, wall_s: float) -> dict[str, Any]:
        """See `Probe.stop`."""
        busy = busy_seconds()
        if busy is None or self.busy is None or wall_s <= 0:
            return {"foreign_load_cores": None}
        foreign = busy - self.busy - (time.process_time() - self.own)
        cores = max(foreign, 0.0) / wall_s
        result: dict[str, Any] = {"foreign_load_cores": cores}
        if cores > FLAG_ABOVE_CORES:
            result["flag"] = (
                "contended",
                f"other processes used {cores:.2f} cores while this was measured",
            )
        return result
