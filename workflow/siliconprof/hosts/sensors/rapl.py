"""The CPU package's energy counter (Intel's RAPL, AMD's too) through Linux's powercap files.

Documentation/power/powercap/powercap.rst: one zone per package, `energy_uj` counts microjoules
and starts again from 0 after `max_energy_range_uj`. Since CVE-2020-8694 only root may read it.
"""

from __future__ import annotations

from pathlib import Path

from siliconprof.hosts.sensors.base import EnergySensor, NoEnergy, Source, Unreadable

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
    zones = []
    for zone in sorted(POWERCAP.glob("intel-rapl:*")):
        try:
            if (zone / "name").read_text(encoding="ascii").startswith("package"):
                zones.append(Zone(zone))
        except PermissionError:
            return NoEnergy(PACKAGE.without(f"RAPL: only root may read the counter: {ALLOW}"))
        except (OSError, ValueError) as error:
            return NoEnergy(PACKAGE.without(f"RAPL: {error}"))
    if zones:
        return RaplEnergy(zones)
    return NoEnergy(
        PACKAGE.without(
            f"RAPL: no CPU package under {POWERCAP}: a virtual machine, a kernel without the "
            "driver (modprobe intel_rapl_msr), or a CPU without such a counter"
        )
    )


class Zone:
    """One package's counter, continued where it starts again from 0."""

    def __init__(self, folder: Path) -> None:
        self.counter = folder / "energy_uj"
        self.range_uj = int((folder / "max_energy_range_uj").read_text(encoding="ascii"))
        self.last_uj = int(self.counter.read_text(encoding="ascii"))
        self.total_uj = 0

    def read_uj(self) -> int:
        """Microjoules since this object was made; a range, 262 kJ on most packages, is minutes."""
        now_uj = int(self.counter.read_text(encoding="ascii"))
        spent = now_uj - self.last_uj
        self.total_uj += spent if spent >= 0 else spent + self.range_uj
        self.last_uj = now_uj
        return self.total_uj


class RaplEnergy(EnergySensor):
    """The sum of all packages."""

    sources = (PACKAGE,)

    def __init__(self, zones: list[Zone]) -> None:
        self.zones = zones

    def read(self) -> dict[str, float]:
        try:
            return {PACKAGE.name: sum(zone.read_uj() for zone in self.zones) / 1e6}
        except (OSError, ValueError) as error:
            raise Unreadable(f"RAPL: {error}") from None
