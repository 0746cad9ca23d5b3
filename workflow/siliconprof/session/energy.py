"""Energy of a window of unsynchronised training steps, and the idle power around it.

A thread reads every source ten times a second: it counts how often a counter changes, integrates
sources that give only power, and notices a source that is lost. The window's ends are read with
the device synchronised. A window that is too short, or in which a counter changed too seldom,
gives None and the reason: an energy that was not measured is never 0 J.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from siliconprof.backends.base import Backend
from siliconprof.hosts.sensors import sources as sensors
from siliconprof.hosts.sensors.base import EnergySensor, Source
from siliconprof.session.timing import Plan

READ_EVERY_S = 0.1  # NVML's counter moves every 10 to 100 ms
LEAST_WINDOW_S = 10.0
LEAST_UPDATES = 20
LEAST_IDLE_READINGS = 5  # that differ from the one before, over all sources of a sensor
LONGEST_WINDOWS = 6  # windows, after which a slow counter is not waited for
SETTLE_S = 2.0  # after work: NVML's power is a mean of 1 s, and clocks take a while to fall

Series = list[tuple[float, float]]  # seconds; joules, or watts of a source that is integrated


def updates(series: Series) -> int:
    """Number of readings that differ from the one before."""
    return sum(before != after for (_, before), (_, after) in pairwise(series))


def joules(source: Source, series: Series) -> float:
    """Energy from the first reading to the last."""
    if source.quality == "integral":
        return sum((b + a) / 2 * (till - since) for (since, a), (till, b) in pairwise(series))
    return series[-1][1] - series[0][1] if series else 0.0


class Recording:
    """Reads all sensors in a thread, from its creation until `stop`."""

    def __init__(self, meters: Iterable[EnergySensor]) -> None:
        self._readings: dict[EnergySensor, list[tuple[float, dict[str, float]]]]
        self._readings = {sensor: [] for sensor in meters}
        self.lost: dict[str, str] = {}  # why a source could not be read any more, by its name
        self._stop = threading.Event()
        self._read()
        self.started = time.perf_counter()  # as `ended`, just after a reading
        self.ended = self.started
        self._thread = threading.Thread(target=self._run, name="energy", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for sensor, readings in self._readings.items():
            values = sensor.readings()
            readings.append((time.perf_counter(), values))
            self.lost |= sensor.lost

    def _run(self) -> None:
        while not self._stop.wait(READ_EVERY_S):
            self._read()

    def stop(self) -> None:
        """Take the last reading."""
        self._stop.set()
        self._thread.join()
        self._read()
        self.ended = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds from the first reading until now, or to the last one."""
        running = not self._stop.is_set()
        return (time.perf_counter() if running else self.ended) - self.started

    def series(self, sensor: EnergySensor, source: Source) -> Series:
        """The readings of one source of a sensor."""
        readings = self._readings[sensor]
        return [(at_s, values[source.name]) for at_s, values in readings if source.name in values]

    def moved(self, sensor: EnergySensor) -> int:
        """Number of readings in which any source of a sensor differs from the one before."""
        return sum(a != b for (_, a), (_, b) in pairwise(self._readings[sensor]))


class EnergyMeter:
    """Reads the energy of one training, by the plan's `energy_window_s` and `energy_idle_s`.

    `idle("before")`; then, around unsynchronised steps, `begin`, `enough` after each run of them,
    `end`; then `idle("after")` and `summary`.

    Args:
        backend: open; its clock waits for the device.

    Attributes:
        enabled: energy is measured: a source can be read, and the window is long enough.
    """

    def __init__(self, backend: Backend, plan: Plan) -> None:
        self.backend, self.plan = backend, plan
        requested = plan.energy_window_s >= LEAST_WINDOW_S  # opening sensors takes time
        self.sensors = sensors.energy(backend.gpu_address) if requested else []
        self.readable = [
            (sensor, source)
            for sensor in self.sensors
            for source in sensor.sources
            if source.reason is None
        ]
        self.enabled = bool(self.readable)
        self._idle: dict[tuple[str, str], float | str] = {}  # when, source -> watts, or why none
        self._window: Recording | None = None
        self._steps: int | None = None
        self._samples_per_step = 0

    def idle(self, when: str) -> None:
        """Measure idle power, with the device's context open and nothing running.

        Args:
            when: `before` or `after` the training.
        """
        if not self.enabled or self.plan.energy_idle_s <= 0:
            return
        self.backend.clock.synchronize()
        time.sleep(SETTLE_S)
        recording = Recording({sensor for sensor, _ in self.readable})
        time.sleep(self.plan.energy_idle_s)
        recording.stop()
        for sensor, source in self.readable:
            series, moved = recording.series(sensor, source), recording.moved(sensor)
            watts: float | str = f"idle {when}: {moved} updates, fewer than {LEAST_IDLE_READINGS}"
            if source.name in recording.lost:
                watts = recording.lost[source.name]
            elif moved >= LEAST_IDLE_READINGS:
                watts = joules(source, series) / (series[-1][0] - series[0][0])
            self._idle[when, source.name] = watts

    def begin(self) -> None:
        """Open the window; unsynchronised training steps follow."""
        self.backend.clock.synchronize()
        self._window = Recording({sensor for sensor, _ in self.readable})

    def enough(self) -> bool:
        """Whether the window may close. Costs about a microsecond until it is long enough.

        It is long enough and every counter has changed often enough; a counter that has not
        changed at all by then is not waited for, and a slow one for `LONGEST_WINDOWS` windows at most.
        """
        window, window_s = self._window, self.plan.energy_window_s
        if window is None or window.seconds >= LONGEST_WINDOWS * window_s:
            return True
        alive = [
            (sensor, source) for sensor, source in self.readable if source.name not in window.lost
        ]
        if not alive or window.seconds < window_s:
            return not alive
        moved = (updates(window.series(sensor, source)) for sensor, source in alive)
        return all(n_updates >= LEAST_UPDATES or n_updates == 0 for n_updates in moved)

    def end(self, steps: int, samples_per_step: int) -> None:
        """Close the window; a second call does nothing.

        Args:
            steps: training steps since `begin`.
            samples_per_step: training samples in each.
        """
        assert self._window is not None, "end without begin"
        if self._steps is not None:
            return
        self.backend.clock.synchronize()
        self._window.stop()
        self._steps, self._samples_per_step = steps, samples_per_step

    def summary(self) -> dict[str, Any]:
        """The point's `energy`: joules, watts, seconds; None with a reason where not measured."""
        sources = [self._source(s, source) for s in self.sensors for source in s.sources]
        reason, window_s = None, self.plan.energy_window_s
        if window_s < LEAST_WINDOW_S:
            reason = (
                f"no window was asked for that is long enough: {window_s:g} s (energy_window_s), at "
                f"least {LEAST_WINDOW_S:g} s are needed"
            )
        elif not any(source["energy_j"] is not None for source in sources):
            reasons = dict.fromkeys(source["reason"] for source in sources)
            reason = "; ".join(reasons) or "no sensor of this host measures energy"
        measured = self._window is not None and self._steps is not None
        return {
            "window_s": self._window.seconds if measured and self._window else None,
            "steps": self._steps,
            "sources": sources,
            "reason": reason,
        }

    def _missing(self, source: Source, series: Series) -> str | None:
        if source.reason is not None:
            return source.reason
        window = self._window
        if window is None or self._steps is None:
            return "no window of training was measured"
        if source.name in window.lost:
            return f"lost in the window: {window.lost[source.name]}"
        if window.seconds < LEAST_WINDOW_S:
            return f"a window of {window.seconds:.1f} s; at least {LEAST_WINDOW_S:g} s are needed"
        if not self._steps:
            return "no step ended in the window"
        if (moved := updates(series)) < LEAST_UPDATES:
            return f"{moved} updates in the window; at least {LEAST_UPDATES} are needed"
        return "the counter was reset in the window" if joules(source, series) <= 0 else None

    def _source(self, sensor: EnergySensor, source: Source) -> dict[str, Any]:
        read = self._window and source.reason is None
        if self._window and self._steps is not None and source.name not in self._window.lost:
            source = sensor.held(source)
        series = self._window.series(sensor, source) if self._window and read else []
        reason = self._missing(source, series)
        idle = [
            self._idle.get((when, source.name), f"idle {when}: not measured")
            for when in ("before", "after")
        ]
        before_w, after_w = (None if isinstance(watts, str) else watts for watts in idle)
        summary: dict[str, Any] = {
            "name": source.name,
            "scope": source.scope,
            "quality": source.quality,
            "means": source.means,
            "energy_j": None,
            "updates": updates(series) if read and self._steps is not None else None,
            "energy_per_step_j": None,
            "energy_per_sample_j": None,
            "idle_before_w": before_w,
            "idle_after_w": after_w,
            "net_energy_per_step_j": None,
            "reason": reason,
        }
        if reason is None and self._steps:
            summary["energy_j"] = joules(source, series)
            per_step = summary["energy_per_step_j"] = summary["energy_j"] / self._steps
            summary["energy_per_sample_j"] = per_step / self._samples_per_step
            known = [watts for watts in (before_w, after_w) if watts is not None]
            if known:
                idle_j = sum(known) / len(known) * (series[-1][0] - series[0][0])
                summary["net_energy_per_step_j"] = per_step - idle_j / self._steps
            if self.plan.energy_idle_s <= 0:
                summary["reason"] = "energy_idle_s is 0, so idle power was not measured"
            else:
                summary["reason"] = "; ".join(w for w in idle if isinstance(w, str)) or None
        return summary
