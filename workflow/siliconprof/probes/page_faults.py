"""Page faults of the process over time: minor (no disk) and major (disk), and the page size.

Linux counts them in `getrusage`. macOS is read through psutil, whose field moved between
versions 7 (`memory_info().pfaults`, `.pageins`) and 8 (`page_faults()`).
"""

from __future__ import annotations

import os
import sys
from typing import Any

from siliconprof.probes.base import Probe


def read() -> tuple[int, int, str]:
    """(minor, major, means) since the process began.

    Raises:
        ImportError: macOS without psutil.
    """
    if sys.platform == "darwin":
        import psutil

        process = psutil.Process()
        if hasattr(process, "page_faults"):
            minor, major = process.page_faults()
            return minor, major, f"psutil {psutil.__version__} page_faults()"
        info = process.memory_info()
        return info.pfaults, info.pageins, f"psutil {psutil.__version__} pfaults, pageins"
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt, usage.ru_majflt, "getrusage ru_minflt, ru_majflt"


class Plugin(Probe):
    """page_faults"""

    name = "page_faults"

    @classmethod
    def available(cls) -> tuple[bool, str]:
        """See `Probe.available`."""
        try:
            return True, read()[2]
        except ImportError as error:
            return False, f"{error}: pip install psutil"

    def start(self, backend: Any) -> None:
        """See `Probe.start`."""
        super().start(backend)
        self.minor, self.major, self.means = read()

    def sample(self) -> dict[str, float | int | None]:
        """See `Probe.sample`; cumulative since the process began."""
        minor, major, _ = read()
        return {"minor_faults": minor, "major_faults": major}

    def stop(self, wall_s: float) -> dict[str, Any]:
        """See `Probe.stop`."""
        minor, major, _ = read()
        page = os.sysconf("SC_PAGE_SIZE")
        return {
            "minor_faults": minor - self.minor,
            "major_faults": major - self.major,
            "page_size_bytes": page,
            "faulted_bytes": (minor - self.minor + major - self.major) * page,
            "means": self.means,
        }
