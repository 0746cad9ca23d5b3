"""Power over time, where a sensor gives it.

The energy of a training is measured in its own window (`siliconprof.session.energy`); these samples
show how constant the power was.
"""

from __future__ import annotations

import time
from typing import Any

from siliconprof.hosts import machine
from siliconprof.hosts.sensors import apple, nvml, rapl, sources
from siliconprof.hosts.sensors.base import Readings, Source
from siliconprof.probes.base import Probe
from siliconprof.stats import statistics


def column(source: Source) -> str:
    """`gpu_power_w`, `cpu_package_power_w`, …"""
    return f"{source.scope.replace('-', '_')}_power_w"


class Plugin(Probe):
    """energy"""

    name = "energy"
    LIBRARIES = ("nvidia-ml-py", "zeus-apple-silicon")

    @classmethod
    def available(cls) -> tuple[bool, str]:
        can, nvml_text = nvml.available()
        sensor = apple.energy(with_gpu=True) if machine.is_mac() else rapl.energy()
        means = [nvml_text] if can else []
        means += [source.means for source in sensor.sources if source.reason is None]
        reasons = [] if can or machine.is_mac() else [nvml_text]
        reasons += [source.reason for source in sensor.sources if source.reason is not None]
        text = "; ".join(dict.fromkeys(means or reasons))
        return bool(means), text

    def start(self, backend: Any) -> None:
        super().start(backend)
        self.sensors = sources.energy(backend.gpu_address)
        self.power_limit_w = sources.gpu(backend.gpu_address).power_limit_w()
        self.reasons: dict[str, str] = {}
        chosen: dict[str, Source] = {}
        for source in (source for sensor in self.sensors for source in sensor.sources):
            if source.reason is not None:
                self.reasons.setdefault(column(source), source.reason)
            elif source.quality == "integral" or column(source) not in chosen:
                chosen[column(source)] = source  # a power as such, else the growth of a counter
        self.chosen = chosen
        self.reasons = {name: why for name, why in self.reasons.items() if name not in chosen}
        self.before: dict[str, tuple[float, float]] = {}
        self.powers: dict[str, list[float]] = {name: [] for name in chosen}

    def sample(self) -> Readings:
        """Powers; a counter's is its mean since the sample before, so the first has none."""
        powers: Readings = dict.fromkeys(self.chosen)
        for sensor in self.sensors:
            readings, now_s = sensor.readings(), time.perf_counter()
            for name, source in self.chosen.items():
                value = readings.get(source.name)
                if value is None:
                    continue
                if source.quality == "integral":
                    powers[name] = value
                    continue
                before_s, before = self.before.get(name, (now_s, value))
                elapsed = now_s - before_s
                powers[name] = (value - before) / elapsed if elapsed else None
                self.before[name] = (now_s, value)
        if self.under_way:
            for name, power in powers.items():
                if power is not None:
                    self.powers[name].append(power)
        return powers

    def stop(self, wall_s: float) -> dict[str, Any]:
        held = {source.name: sensor for sensor in self.sensors for source in sensor.sources}
        sources_ = {n: held[source.name].held(source) for n, source in self.chosen.items()}
        lost = {name: held[source.name].lost.get(source.name) for name, source in sources_.items()}
        why_not = {name: lost[name] or source.reason for name, source in sources_.items()}
        summary: dict[str, Any] = {
            "gpu_power_limit_w": self.power_limit_w,
            "sources": {name: source.means for name, source in sources_.items()},
            "reasons": self.reasons | {name: why for name, why in why_not.items() if why},
            "flags": [
                ("energy_one_die", apple.ONE_DIE)
                for sensor in self.sensors
                for source in sensor.sources
                if source.reason == apple.ONE_DIE
            ],
        }
        for name, powers in self.powers.items():
            stem = name.removesuffix("_w")
            summary[f"{stem}_median_w"] = statistics.median(powers) if powers else None
            summary[f"{stem}_max_w"] = max(powers, default=None)
        return summary
