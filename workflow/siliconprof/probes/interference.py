"""What disturbs a measurement from outside: foreign load, the power supply, saving of power.

Foreign load is processor time of other processes on this host, and other processes on the same
NVIDIA GPU. What a cell starts is not foreign, nor is what works for it or for the display on a Mac.
macOS shows the load of its GPU to root only. Battery, low-power mode and governor are read at the end.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from siliconprof.declarations import Quantity
from siliconprof.hosts import environment, machine
from siliconprof.hosts.sensors import sources
from siliconprof.hosts.sensors.base import Readings
from siliconprof.probes.base import Probe

FLAG_ABOVE_CORES = 0.2  # foreign load, in cores, above which a record is flagged
IDLE_CORES = 0.5  # fewer count as none, where waiting threads are not counted
# On a Mac: what compiles Metal's kernels for whoever asks, and what draws the display.
SERVICES = ("MTLCompilerService", "WindowServer")
PS = ("ps", "-axo", "pid=,ppid=,time=,comm=")
PROCESS = re.compile(r"\s*(\d+)\s+(\d+)\s+((?:\d+-)?(?:\d+:){1,2}\d+(?:\.\d+)?)\s+(.*\S)")
TIME_UNITS_S = (1, 60, 3600, 86400)  # of [[days-]hours:]minutes:seconds, from its end
GPU_INTERVAL_S = 1.0
CPUFREQ = Path("/sys/devices/system/cpu/cpu0/cpufreq")
REASONS = {
    "power_source": "no battery and no reading of mains power: a server or virtual machine",
    "cpu_governor": "no cpufreq: a virtual machine, or not Linux",
}
# With these drivers `powersave` follows the load; with all others it pins the lowest clock
# (Documentation/admin-guide/pm: cpufreq, intel_pstate, amd-pstate).
ADAPTIVE_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")


def _proc_stat() -> float:
    fields = [int(x) for x in machine.read_text("/proc/stat").partition("\n")[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _cpu_times(psutil: Any) -> float:
    times = psutil.cpu_times()
    return sum(times) - times.idle - getattr(times, "iowait", 0.0)


def busy_seconds() -> tuple[float | None, str | None]:
    """(busy processor seconds of the whole host since boot, None), or (None, the reason why unknown)."""
    seconds, _ = machine.reading(_proc_stat)
    return machine.by_psutil(_cpu_times) if seconds is None else (seconds, None)


class Process(NamedTuple):
    """A process of a Mac."""

    parent: int
    busy_s: float
    name: str


def mac_processes() -> dict[int, Process]:
    """All processes of a Mac by id; empty elsewhere. ps(1) may read those of other users too."""
    lines = machine.run(PS, 5).splitlines() if machine.is_mac() else []
    found = {}
    for pid, parent, busy, command in (m.groups() for m in map(PROCESS.match, lines) if m):
        parts = busy.replace("-", ":").split(":")
        seconds = sum(
            float(x) * unit for x, unit in zip(reversed(parts), TIME_UNITS_S, strict=False)
        )
        found[int(pid)] = Process(int(parent), seconds, command.rpartition("/")[2])
    return found


def descendants() -> set[int]:
    """Ids of the living processes that this one has started, and theirs; on Linux, else empty."""
    found: set[int] = set()
    parents = {os.getpid()}
    while parents:
        tasks = (machine.listed(f"/proc/{parent}/task", "*/children") for parent in parents)
        lists = chain.from_iterable(tasks)
        parents = {int(pid) for path in lists for pid in machine.read_text(str(path)).split()}
        found |= parents
    return found


def own_busy_seconds(listed: Mapping[int, Process] | None = None) -> float:
    """Busy processor seconds of this process and of what it has started, alive or waited for.

    Inductor's compile workers, which are not waited for, live until the measuring process ends.

    Args:
        listed: `mac_processes`, on a Mac.
    """
    listed, times = listed or {}, os.times()
    own_s = time.process_time() + times.children_user + times.children_system
    family = {os.getpid()}
    while more := {pid for pid, process in listed.items() if process.parent in family} - family:
        family |= more
        own_s += sum(listed[pid].busy_s for pid in more)
    for pid in descendants():
        tail = machine.read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        own_s += sum(map(int, tail[11:15])) / os.sysconf("SC_CLK_TCK")  # proc_pid_stat(5)
    return own_s


class ForeignLoad:
    """The load of the host's other processes since its creation."""

    def __init__(self) -> None:
        self.listed = mac_processes()
        self.busy, self.reason = busy_seconds()
        self.own, self.own_s = own_busy_seconds(self.listed), 0.0

    def cores(self, wall_s: float) -> float | None:
        """Cores that they used on average in these seconds; None where unknown."""
        listed = mac_processes()
        busy, why = busy_seconds()
        own = own_busy_seconds(listed)
        if bool(listed) != bool(self.listed):
            why = f"{' '.join(PS)} lists no processes"
        self.reason = self.reason or why
        if self.reason or busy is None or self.busy is None or wall_s <= 0:
            return None
        served_s = sum(
            process.busy_s - (self.listed[pid].busy_s if pid in self.listed else 0.0)
            for pid, process in listed.items()
            if process.name.endswith(SERVICES)
        )
        self.own_s = own - self.own + served_s
        return max(busy - self.busy - self.own_s, 0.0) / wall_s

    def own_cores(self, wall_s: float) -> float:
        """Cores used by this process and all that is not foreign, until `cores` was last called."""
        return self.own_s / wall_s


def none_idle(cores: float) -> bool:
    """Whether so many busy cores leave none idle."""
    return cores > (os.cpu_count() or 1) - IDLE_CORES


class Plugin(Probe):
    """interference"""

    name = "interference"
    LIBRARIES = ("nvidia-ml-py", "psutil")
    QUANTITIES = {"foreign_load_cores": Quantity("foreign load", "cores", "lower")}

    @classmethod
    def available(cls) -> tuple[bool, str]:
        _, why = busy_seconds()
        means = "processor time of the host less that of the cell"
        return True, f"all but the processor's load: {why}" if why else means

    def start(self, backend: Any) -> None:
        super().start(backend)
        self.gpu = sources.gpu(backend.gpu_address)
        self.next_gpu_s = 0.0
        self.most_processes: int | None = None
        self.most_bytes: int | None = None
        self.own_seen = False
        self.foreign = ForeignLoad()

    @staticmethod
    def _surroundings() -> dict[str, Any]:
        mode, saving, means = environment.power_mode()
        name, driver = (
            machine.read_text(str(CPUFREQ / f"scaling_{file}")).strip() or None
            for file in ("governor", "driver")
        )
        return {
            "power_source": environment.power_source(),
            "power_mode": mode,
            "low_power_mode": saving,
            "low_power_means": means,
            "cpu_governor": name,
            "cpu_governor_driver": driver,
        }

    def sample(self) -> Readings:
        """Other processes on the GPU, read once a second and None in between."""
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
        own = {os.getpid()} | descendants()
        others = [n_bytes for process, n_bytes in listed if process not in own]
        if len(others) < len(listed):
            self.own_seen = True
            sizes = [n_bytes for n_bytes in others if n_bytes is not None]
            return len(others), sum(sizes) if len(sizes) == len(others) else None
        return max(len(listed) - len(own), 0), 0 if len(listed) <= len(own) else None

    def stop(self, wall_s: float) -> dict[str, Any]:
        cores = self.foreign.cores(wall_s)
        summary = {"foreign_load_cores": cores, **self._gpu(), **self._surroundings()}
        why_not = REASONS | {"foreign_load_cores": str(self.foreign.reason)}
        reasons = {name: why for name, why in why_not.items() if summary[name] is None}
        flags = []
        # A Mac keeps cores of a second kind for such work: there it is in the way where none is idle.
        all_cores = (cores or 0.0) + self.foreign.own_cores(wall_s)
        in_the_way = none_idle(all_cores) or not machine.is_mac()
        if cores is not None and cores > FLAG_ABOVE_CORES and in_the_way:
            detail = f"other processes used {cores:.2f} cores while this was measured"
            flags.append(("contended", detail))
        if self.most_processes:
            detail = f"{self.most_processes} other process(es) computed on the GPU, or held it"
            flags.append(("contended", detail))
        if summary["power_source"] == "battery":
            flags.append(("on_battery", "the computer ran on its battery"))
        if summary["low_power_mode"]:
            flags.append(("low_power_mode", summary["low_power_means"]))
        name, driver = summary["cpu_governor"], summary["cpu_governor_driver"]
        if name == "powersave" and driver not in ADAPTIVE_DRIVERS:
            detail = f"'{name}' of driver {driver or 'unknown'} pins the lowest clock"
            flags.append(("governor", detail))
        return summary | {"reasons": reasons, "flags": flags}

    def _gpu(self) -> dict[str, Any]:
        if self.gpu.reason is not None:
            return {"gpu_means": self.gpu.reason}
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
            "gpu_foreign_processes": self.most_processes,
            "gpu_foreign_bytes": self.most_bytes,
            "gpu_means": means,
        }
