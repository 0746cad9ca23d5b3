"""The CPU package's energy counter (Intel's RAPL, AMD's too) through Linux's powercap files.

Documentation/power/powercap/powercap.rst: one zone per package, `energy_uj` counts microjoules
and starts again from 0 after `max_energy_range_uj`. Since CVE-2020-8694 only root may read it.
"""

from __future__ import annotations

from pathlib import Path

from siliconprof.hosts.sensors.base import EnergySensor, Source, Unreadable

POWERCAP = Path("/sys/class/powercap")
PACKAGE = Source(
    "rapl-package",
    "cpu-package",
    "counter",
    "energy_uj of every CPU package (powercap intel-rapl); without memory and mainboard",
)
ALLOW = "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj, until the next boot"


def energy() -> EnergySensor:
    """This host's CPU packages, or why they cannot be read."""
    reason = (
        f"no CPU package under {POWERCAP}: a virtual machine, a kernel without the "
        "driver (modprobe intel_rapl_msr), or a CPU without such a counter"
    )
    try:
        zones = [
            zone
            for zone in sorted(POWERCAP.glob("intel-rapl:*"))
            if (zone / "name").read_text(encoding="ascii").startswith("package")
        ]
        if zones:
            return RaplEnergy(zones)
    except PermissionError:
        reason = f"only root may read the counter: {ALLOW}"
    except (OSError, ValueError) as error:
        reason = str(error)
    return EnergySensor(PACKAGE.without(f"RAPL: {reason}"))


class RaplEnergy(EnergySensor):
    """The sum of all packages' counters since this object was made, each continued where it wraps."""

    def __init__(self, zones: list[Path]) -> None:
        super().__init__(PACKAGE)
        self.ranges_uj = {zone: _microjoules(zone, "max_energy_range_uj") for zone in zones}
        self.last_uj = {zone: _microjoules(zone, "energy_uj") for zone in zones}
        self.total_uj = 0

    def read(self) -> dict[str, float]:
        """A range, 262 kJ on most packages, is minutes."""
        try:
            for zone, range_uj in self.ranges_uj.items():
                now_uj = _microjoules(zone, "energy_uj")
                spent_uj = now_uj - self.last_uj[zone]
                self.total_uj += spent_uj if spent_uj >= 0 else spent_uj + range_uj
                self.last_uj[zone] = now_uj
        except (OSError, ValueError) as error:
            raise Unreadable(f"RAPL: {error}") from None
        return {PACKAGE.name: self.total_uj / 1e6}


def _microjoules(zone: Path, name: str) -> int:
    return int((zone / name).read_text(encoding="ascii"))
