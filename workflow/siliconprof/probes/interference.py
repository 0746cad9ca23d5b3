"""What disturbs a measurement from outside: foreign load, the power supply, saving of power.

Foreign load is processor time of other processes on this host, and other processes on the same
NVIDIA GPU. macOS shows the load of its GPU to root only. Battery, low-power mode and governor are
read before and after, and the worse of both counts.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

from siliconprof.declarations import Quantity
from siliconprof.hosts import environment, machine
from siliconprof.hosts.sensors import sources
from siliconprof.hosts.sensors.base import Readings
from siliconprof.probes.base import Probe

FLAG_ABOVE_CORES = 0.2  # foreign load, in cores, above which a record is flagged
FLAG_ABOVE_GPU_PERCENT = 10.0  # load of the GPU while this process let it rest
GPU_INTERVAL_S = 1.0
CPUFREQ = Path("/sys/devices/system/cpu/cpu0/cpufreq")
PLATFORM_PROFILE = "/sys/firmware/acpi/platform_profile"
SAVING_PROFILES = ("low-power", "cool", "quiet")  # Documentation/ABI/testing/sysfs-platform_profile
REASONS = {
    "power_source": "None: no battery and no reading of mains power: a server or virtual machine",
    "cpu_governor": "None: no cpufreq: a virtual machine, or not Linux",
}
# With these drivers `powersave` follows the load; with all others it pins the lowest clock
# (Documentation/admin-guide/pm: cpufreq, intel_pstate, amd-pstate).
ADAPTIVE_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")


def busy_seconds() -> float | None:
    """Busy processor seconds of the whole host since boot; None where they cannot be read."""
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


def own_busy_seconds() -> float:
    """Busy processor seconds of this process and of those that it started and waited for."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def started() -> set[int]:
    """Ids of this process's living children; empty where they cannot be read."""
    lists = list(Path("/proc/self/task").glob("*/children"))
    if lists:
        return {int(number) for path in lists for number in machine.read_text(str(path)).split()}
    try:
        import psutil
    except ImportError:
        return set()
    try:
        return {child.pid for child in psutil.Process().children()}
    except (OSError, psutil.Error):
        return set()


def power_source() -> str | None:
    """`battery` or `mains`; None where it cannot be read (servers, virtual machines)."""
    try:
        import psutil

        battery = psutil.sensors_battery()
    except (ImportError, AttributeError, OSError, RuntimeError):
        battery = None
    if battery is None or battery.power_plugged is None:
        return environment.power_source()
    return "mains" if battery.power_plugged else "battery"


def low_power_mode() -> tuple[bool | None, str]:
    """Whether low-power mode is on, None where unknown; the setting read, or why there is none."""
    if machine.is_mac():
        match = re.search(r"lowpowermode\s+(\d)", machine.run(["pmset", "-g"]))
        if match is None:
            return None, "pmset -g prints no lowpowermode"
        return match[1] == "1", "pmset -g lowpowermode"
    profile = machine.read_text(PLATFORM_PROFILE).strip()
    if not profile:
        return None, f"no {PLATFORM_PROFILE}"
    return profile in SAVING_PROFILES, f"platform_profile is '{profile}'"


def governor() -> tuple[str | None, str | None]:
    """(governor, driver) of the first CPU's clock; None where there is none."""
    values = (
        machine.read_text(str(CPUFREQ / name)).strip() or None
        for name in ("scaling_governor", "scaling_driver")
    )
    name, driver = values
    return name, driver


class Plugin(Probe):
    """interference"""

    name = "interference"
    LIBRARIES = ("nvidia-ml-py", "psutil")
    QUANTITIES = {"foreign_load_cores": Quantity("foreign load", "cores", "lower")}

    @classmethod
    def available(cls) -> tuple[bool, str]:
        """See `Probe.available`."""
        if busy_seconds() is None:
            return False, "no /proc/stat and no psutil: pip install psutil"
        return True, "processor time of the host less that of the cell"

    def start(self, backend: Any) -> None:
        """See `Probe.start`; the backend has been at rest, but for one small product."""
        super().start(backend)
        self.gpu = sources.gpu(backend)
        self.gpu_before_percent = self.gpu.utilization_percent()
        self.next_gpu_s = 0.0
        self.most_processes: int | None = None
        self.most_bytes: int | None = None
        self.own_seen = False
        self.surroundings = [self._surroundings()]
        self.busy, self.own = busy_seconds(), own_busy_seconds()

    @staticmethod
    def _surroundings() -> dict[str, Any]:
        saving, means = low_power_mode()
        name, driver = governor()
        return {
            "power_source": power_source(),
            "low_power_mode": saving,
            "low_power_means": means,
            "cpu_governor": name,
            "cpu_governor_driver": driver,
        }

    def sample(self) -> Readings:
        """See `Probe.sample`: who else computes on the GPU, once a second and None in between."""
        if self.gpu.reason is not None:
            return {}
        now_s = time.monotonic()
        if now_s < self.next_gpu_s:
            return {"gpu_foreign_processes": None, "gpu_foreign_bytes": None}
        self.next_gpu_s = now_s + GPU_INTERVAL_S
        count, n_bytes = self._foreign()
        if count is not None:
            self.most_processes = max(self.most_processes or 0, count)
        if n_bytes is not None:
            self.most_bytes = max(self.most_bytes or 0, n_bytes)
        return {"gpu_foreign_processes": count, "gpu_foreign_bytes": n_bytes}

    def _foreign(self) -> tuple[int | None, int | None]:
        """(processes, bytes) of others on the GPU.

        In a container NVML lists the host's process ids, and this process's own is not among them:
        then one listed process counts as this one, one more for each child, and the bytes of the
        rest are unknown. NVML may also list none at all, which tells nothing.
        """
        listed = self.gpu.processes()
        if not listed:
            return None, None
        own = {os.getpid()} | started()
        others = [n_bytes for process, n_bytes in listed if process not in own]
        if len(others) < len(listed):
            self.own_seen = True
            sizes = [n_bytes for n_bytes in others if n_bytes is not None]
            return len(others), sum(sizes) if len(sizes) == len(others) else None
        return max(len(listed) - len(own), 0), 0 if len(listed) <= len(own) else None

    def stop(self, wall_s: float) -> dict[str, Any]:
        """See `Probe.stop`."""
        busy, own = busy_seconds(), own_busy_seconds()
        self.surroundings.append(self._surroundings())
        flags: list[tuple[str, str]] = []
        cores = None
        if busy is not None and self.busy is not None and wall_s > 0:
            cores = max(busy - self.busy - (own - self.own), 0.0) / wall_s
            if cores > FLAG_ABOVE_CORES:
                flags.append(
                    ("contended", f"other processes used {cores:.2f} cores while this was measured")
                )
        return {
            "foreign_load_cores": cores,
            **self._gpu(flags),
            **self._merged(flags),
            "reasons": REASONS,
            "flags": flags,
        }

    def _gpu(self, flags: list[tuple[str, str]]) -> dict[str, Any]:
        """The GPU's part of the summary."""
        if self.gpu.reason is not None:
            return {"gpu_means": self.gpu.reason}
        if self.most_processes:
            flags.append(
                (
                    "contended",
                    f"{self.most_processes} other process(es) computed on the GPU, or held it",
                )
            )
        before = self.gpu_before_percent
        if before is not None and before > FLAG_ABOVE_GPU_PERCENT:
            flags.append(
                ("contended", f"the GPU was busy {before:g} % of the second before this began")
            )
        if self.most_processes is None:
            means = "NVML lists no compute processes, not even this one"
        elif self.own_seen:
            means = "NVML's compute processes without this one, the most at any time"
        else:
            means = (
                "NVML's compute processes, one of which counts as this one: its process id is "
                "not among them, as in a container"
            )
        return {
            "gpu_utilization_before_percent": before,
            "gpu_foreign_processes": self.most_processes,
            "gpu_foreign_bytes": self.most_bytes,
            "gpu_means": means,
        }

    def _merged(self, flags: list[tuple[str, str]]) -> dict[str, Any]:
        """Power supply, low-power mode and governor: the worse of before and after."""
        worst, after = self.surroundings
        if after["power_source"] == "battery" or worst["power_source"] is None:
            worst["power_source"] = after["power_source"]
        if after["low_power_mode"]:
            worst |= {key: after[key] for key in ("low_power_mode", "low_power_means")}
        if pins_lowest(after["cpu_governor"], after["cpu_governor_driver"]):
            worst |= {key: after[key] for key in ("cpu_governor", "cpu_governor_driver")}
        if worst["power_source"] == "battery":
            flags.append(("on_battery", "the computer ran on its battery"))
        if worst["low_power_mode"]:
            flags.append(("low_power_mode", worst["low_power_means"]))
        if pins_lowest(worst["cpu_governor"], worst["cpu_governor_driver"]):
            flags.append(
                (
                    "governor",
                    f"'{worst['cpu_governor']}' of driver "
                    f"{worst['cpu_governor_driver'] or 'unknown'} pins the lowest clock",
                )
            )
        return worst


def pins_lowest(name: str | None, driver: str | None) -> bool:
    """Whether a governor keeps the clock at its lowest whatever the load."""
    return name == "powersave" and driver not in ADAPTIVE_DRIVERS
