"""The CPU package's energy counter (Intel's RAPL, AMD's too) through Linux's powercap files.

Documentation/power/powercap/powercap.rst: one zone per package, `energy_uj` counts microjoules
and starts again from 0 after `max_energy_range_uj`. Since CVE-2020-8694 only root may read it.
"""

from __future__ import annotations

from pathlib import Path

from siliconprof.hosts import machine
from siliconprof.hosts.machine import Unreadable
from siliconprof.hosts.sensors.base import EnergySensor, Source

POWERCAP = Path("/sys/class/powercap")
PACKAGE_SOURCE = Source(
    "rapl-package",
    "cpu-package",
    "counter",
    "energy_uj of every CPU package (powercap intel-rapl); without memory and mainboard",
)
ALLOW = "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj, until the next boot"


def energy() -> EnergySensor:
    """This host's CPU packages, or why they cannot be read."""
    sensor, why = machine.reading(_packages)
    return sensor or EnergySensor(PACKAGE_SOURCE.without(f"RAPL: {why}"))


def _packages() -> RaplEnergy:
    try:
        zones = [
            zone
            for zone in sorted(POWERCAP.glob("intel-rapl:*"))
            if (zone / "name").read_text(encoding="ascii").startswith("package")
        ]
        if zones:
            return RaplEnergy(zones)
    except PermissionError:
        raise Unreadable(f"only root may read the counter: {ALLOW}") from None
    raise Unreadable(
        f"no CPU package under {POWERCAP}: a virtual machine, a kernel without the "
        "driver (modprobe intel_rapl_msr), or a CPU without such a counter"
    )


class RaplEnergy(EnergySensor):
    """The sum of all packages' counters since this object was made, each continued where it wraps."""

    def __init__(self, zones: list[Path]) -> None:
        super().__init__(PACKAGE_SOURCE)
        self.ranges_uj = {zone: _microjoules(zone, "max_energy_range_uj") for zone in zones}
        self.last_uj = {zone: _microjoules(zone, "energy_uj") for zone in zones}
        self.total_uj = 0

    def read(self) -> dict[str, float]:
        """See `EnergySensor.read`. A counter wraps after 262 kJ on most packages, which takes minutes."""
        for zone, range_uj in self.ranges_uj.items():
            now_uj = _microjoules(zone, "energy_uj")
            spent_uj = now_uj - self.last_uj[zone]
            self.total_uj += spent_uj if spent_uj >= 0 else spent_uj + range_uj
            self.last_uj[zone] = now_uj
        return {PACKAGE_SOURCE.name: self.total_uj / 1e6}


def _microjoules(zone: Path, name: str) -> int:
    return int((zone / name).read_text(encoding="ascii"))
