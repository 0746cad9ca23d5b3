"""Clocks, temperatures, and what limited the clocks, over time.

`throttled` has a value for every cell: true, false, or None with what could not be read. Heat and
the hardware's own protection are distinguished from a limit on power, which is a card's setting.
"""

from __future__ import annotations

import time
from collections import Counter
from itertools import chain
from typing import Any

from siliconprof.hosts import machine
from siliconprof.hosts.sensors import nvml, sources
from siliconprof.hosts.sensors.base import Hardware, Readings
from siliconprof.probes.base import Probe
from siliconprof.stats import statistics

STATE_INTERVAL_S = 1.0
SUMMARISED = {
    "gpu_sm_clock_mhz": "gpu_sm_clock",
    "gpu_memory_clock_mhz": "gpu_memory_clock",
    "gpu_temperature_c": "gpu_temperature",
    "gpu_utilization_percent": "gpu_utilization",
    "cpu_clock_mhz": "cpu_clock",
    "cpu_temperature_c": "cpu_temperature",
}


class Plugin(Probe):
    """clocks"""

    name = "clocks"
    LIBRARIES = ("nvidia-ml-py",)
    missing = {"throttled": None, "power_capped": None}

    @classmethod
    def available(cls) -> tuple[bool, str]:
        can, nvml_text = nvml.available()
        host = sources.host()
        columns = {**host.clocks(), **host.state()}
        readable = [name for name, value in columns.items() if value is not None]
        means = ([nvml_text] if can else []) + readable
        reasons = dict.fromkeys(host.reasons.values(), "")
        reason = "; ".join([*reasons] if machine.is_mac() else [nvml_text, *reasons])
        return bool(means), ", ".join(means) or reason

    def start(self, backend: Any) -> None:
        super().start(backend)
        self.hardware: list[Hardware] = [sources.host()]
        if backend.gpu_address is not None:
            self.hardware.insert(0, sources.gpu(backend.gpu_address))
        self.state: Readings = {}
        self.next_state_s = 0.0
        self.values: dict[str, list[float]] = {}
        # For each, its limits in every sample that shows any.
        self.limited: list[list[tuple[str, ...]]] = [[] for _ in self.hardware]
        self.under_way = False
        self.sample()  # the counts of throttlings before
        self.under_way = True

    def sample(self) -> Readings:
        """What is slow to read is read once a second, and None in between."""
        now_s = time.monotonic()
        begins = self.under_way and not self.values
        due = begins or now_s >= self.next_state_s
        if due:
            self.next_state_s = now_s + STATE_INTERVAL_S
        together: Readings = {}
        for hardware, limited in zip(self.hardware, self.limited, strict=True):
            readings = hardware.clocks()
            if due:
                state = hardware.state()
                self.state |= dict.fromkeys(state)
                readings = readings | state
            together |= readings
            limits = hardware.limits(readings)
            if limits is not None and self.under_way:
                limited.append(limits)
        for name in SUMMARISED.keys() & together.keys():
            if self.under_way and (value := together[name]) is not None:
                self.values.setdefault(name, []).append(value)
        return self.state | together

    def stop(self, wall_s: float) -> dict[str, Any]:
        summary: dict[str, Any] = {"limits": {}, "throttled": None, "power_capped": None}
        flags: list[tuple[str, str]] = []
        silent = False  # a sensor that must report did not, or stopped
        for hardware, limited in zip(self.hardware, self.limited, strict=True):
            n_samples = len(limited)
            if not limited:
                silent |= hardware.must_report
                continue
            silent |= hardware.limits_shown[0] in hardware.reasons
            counts = Counter(chain.from_iterable(limited))
            shares = {name: count / n_samples for name, count in sorted(counts.items())}
            summary["limits"] |= shares
            for key, names in (
                ("throttled", hardware.throttling),
                ("power_capped", hardware.power_caps),
            ):
                active = [f"{name} in {shares[name]:.0%}" for name in shares.keys() & names]
                if names:
                    summary[key] = bool(summary[key] or active)
                if active:
                    flags.append((key, f"{', '.join(sorted(active))} of {n_samples} samples"))
        if summary["throttled"] is False and silent:
            summary["throttled"] = None  # the CPU's no is not the GPU's
        summary["limits_means"] = "; ".join(hardware.limits_means() for hardware in self.hardware)
        for column, stem in SUMMARISED.items():
            if values := self.values.get(column):
                unit = column.removeprefix(f"{stem}_")
                summary[f"{stem}_median_{unit}"] = statistics.median(values)
                summary[f"{stem}_min_{unit}"] = min(values)
                summary[f"{stem}_max_{unit}"] = max(values)
        reasons = {name: why for each in self.hardware for name, why in each.reasons.items()}
        return summary | {"reasons": reasons, "flags": flags}
