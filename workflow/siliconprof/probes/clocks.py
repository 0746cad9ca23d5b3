"""Clocks, temperatures, and what held the clocks down, over time.

`throttled` is answered for every cell: true, false, or None with what could not be read. Heat and
the hardware's own protection are told apart from a limit on power, which is how a card is set.
"""

from __future__ import annotations

import time
from collections import Counter
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
        """See `Probe.available`."""
        can, found = nvml.available()
        around = sources.host()
        columns = {**around.clocks(), **around.state()}
        told = [name for name, value in columns.items() if value is not None]
        works = ([found] if can else []) + told
        lacks = dict.fromkeys(around.reasons.values(), "")
        said = "; ".join([*lacks] if machine.is_mac() else [found, *lacks])
        return bool(works), ", ".join(works) or said

    def start(self, backend: Any) -> None:
        """See `Probe.start`."""
        super().start(backend)
        self.hardware: list[Hardware] = [sources.host()]
        if backend.gpu_address() is not None:
            self.hardware.insert(0, sources.gpu(backend))
        self.state: Readings = {}
        self.next_state_s = 0.0
        self.values: dict[str, list[float]] = {}
        self.seen: list[Counter[str]] = [Counter() for _ in self.hardware]
        self.told = [0] * len(self.hardware)
        self.under_way = False
        self.sample()  # what a count of throttlings stood at before
        self.under_way = True

    def sample(self) -> Readings:
        """See `Probe.sample`; what is dear is read once a second and None in between."""
        now_s = time.monotonic()
        begins = self.under_way and not self.values
        due = begins or now_s >= self.next_state_s
        if due:
            self.next_state_s = now_s + STATE_INTERVAL_S
        together: Readings = {}
        for index, hardware in enumerate(self.hardware):
            readings = hardware.clocks()
            if due:
                state = hardware.state()
                self.state |= dict.fromkeys(state)
                readings = readings | state
            together |= readings
            limits = hardware.limits(readings)
            if limits is not None and self.under_way:
                self.told[index] += 1
                self.seen[index].update(limits)
        for name in SUMMARISED.keys() & together.keys():
            if self.under_way and (value := together[name]) is not None:
                self.values.setdefault(name, []).append(value)
        return self.state | together

    def stop(self, wall_s: float) -> dict[str, Any]:
        """See `Probe.stop`."""
        found: dict[str, Any] = {"limits": {}, "throttled": None, "power_capped": None}
        flags: list[tuple[str, str]] = []
        for hardware, seen, told in zip(self.hardware, self.seen, self.told, strict=True):
            if not told:
                continue
            shares = {name: count / told for name, count in sorted(seen.items())}
            found["limits"] |= shares
            for key, names in (
                ("throttled", hardware.throttling),
                ("power_capped", hardware.power_caps),
            ):
                hit = [f"{name} in {shares[name]:.0%}" for name in shares.keys() & names]
                if names:
                    found[key] = bool(found[key] or hit)
                if hit:
                    flags.append((key, f"{', '.join(sorted(hit))} of {told} samples"))
        silent = [h for h, told in zip(self.hardware, self.told, strict=True) if not told]
        if found["throttled"] is False and any(hardware.must_report for hardware in silent):
            found["throttled"] = None  # the CPU's no is not the GPU's
        found["limits_means"] = "; ".join(hardware.limits_means() for hardware in self.hardware)
        for column, stem in SUMMARISED.items():
            if values := self.values.get(column):
                unit = column.removeprefix(f"{stem}_")
                found[f"{stem}_median_{unit}"] = statistics.median(values)
                found[f"{stem}_min_{unit}"] = min(values)
                found[f"{stem}_max_{unit}"] = max(values)
        reasons = {name: why for each in self.hardware for name, why in each.reasons.items()}
        return found | {"reasons": reasons, "flags": flags}
