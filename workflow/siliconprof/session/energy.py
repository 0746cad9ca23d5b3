"""Energy of a window of unsynchronised training steps, and the idle power around it.

A thread reads every source ten times a second: it counts how often a counter changes, integrates
sources that give only power, and notices a source that is lost. The window's ends are read with
the device synchronised. A window that is too short, or in which a counter changed too seldom,
gives None and the reason: an energy that was not measured is never 0 J.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from siliconprof.hosts.sensors import sources as sensors
from siliconprof.hosts.sensors.base import EnergySensor, Source, Unreadable

if TYPE_CHECKING:
    from siliconprof.backends.base import Backend
    from siliconprof.session.timing import Clock, Plan

INTERVAL_S = 0.1  # NVML's counter moves every 10 to 100 ms
LEAST_WINDOW_S = 10.0
LEAST_UPDATES = 20
LEAST_IDLE_READINGS = 5  # that differ from the one before, over all sources of a sensor
LONGEST = 6  # windows, after which a slow counter is not waited for
SETTLE_S = 2.0  # after work: NVML's power is a mean of 1 s, and clocks take a while to fall


class Tally:
    """The readings of one source over one stretch of time."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.updates = 0
        self.area_j = 0.0
        self.first: tuple[float, float] | None = None  # seconds, joules or watts
        self.last: tuple[float, float] | None = None

    def add(self, at_s: float, value: float) -> bool:
        """Add a reading, in joules or watts; whether it differs from the one before."""
        moved = False
        if self.first is None or self.last is None:
            self.first = (at_s, value)
        else:
            before_s, before = self.last
            moved = value != before
            self.updates += moved
            self.area_j += (value + before) / 2 * (at_s - before_s)
        self.last = (at_s, value)
        return moved

    @property
    def seconds(self) -> float:
        """From the first reading to the last."""
        return self.last[0] - self.first[0] if self.first and self.last else 0.0

    @property
    def joules(self) -> float:
        """Energy from the first reading to the last."""
        if self.source.quality == "integral":
            return self.area_j
        return self.last[1] - self.first[1] if self.first and self.last else 0.0


class Recording:
    """Reads all sensors in a thread, from its creation until `stop`."""

    def __init__(self, meters: Iterable[EnergySensor]) -> None:
        self.sensors = list(meters)
        self.tallies = {
            source.name: Tally(source)
            for sensor in self.sensors
            for source in sensor.sources
            if source.reason is None
        }
        self.moved = dict.fromkeys(self.tallies, 0)  # readings in which its sensor moved at all
        self.lost: dict[str, str] = {}  # source -> why its sensor could not be read any more
        self._stop = threading.Event()
        self._read()
        self.started = time.perf_counter()  # as `ended`, just after a reading
        self.ended = self.started
        self._thread = threading.Thread(target=self._run, name="energy", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for sensor in list(self.sensors):
            try:
                readings = sensor.read()
            except Unreadable as error:
                self.sensors.remove(sensor)
                self.lost |= {source.name: str(error) for source in sensor.sources}
                continue
            now = time.perf_counter()
            moved = [
                self.tallies[name].add(now, value)
                for name, value in readings.items()
                if name in self.tallies
            ]
            for name in readings.keys() & self.tallies.keys():
                self.moved[name] += any(moved)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._read()

    def stop(self) -> None:
        """The last reading is taken here, and nothing afterwards."""
        self._stop.set()
        self._thread.join()
        self._read()
        self.ended = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds from the first reading until now, or to the last one."""
        running = not self._stop.is_set()
        return (time.perf_counter() if running else self.ended) - self.started


class EnergyMeter:
    """Reads the energy of one training.

    `idle("before")`; then, around unsynchronised steps, `begin`, `enough` after each run of them,
    `end`; then `idle("after")` and `summary`.

    Args:
        meters: the result of `sensors.energy`.
        clock: its `synchronize` waits for the device.
        window_s: seconds of training to measure; below `LEAST_WINDOW_S` none are.
        idle_s: seconds of idling before and after.
    """

    def __init__(
        self, meters: Sequence[EnergySensor], clock: Clock, window_s: float, idle_s: float
    ) -> None:
        self.sensors = meters
        self.clock = clock
        self.window_s = window_s
        self.idle_s = idle_s
        self.readable = [s for s in meters if any(source.reason is None for source in s.sources)]
        self._idle_w: dict[str, dict[str, float]] = {}  # before, after -> source -> watts
        self._no_idle: dict[str, dict[str, str]] = {}  # or why there are none
        self._window: Recording | None = None
        self._steps: int | None = None
        self._samples_per_step = 0

    @classmethod
    def of(cls, backend: Backend, plan: Plan) -> EnergyMeter:
        """The meter of a cell on an open backend."""
        requested = plan.energy_window_s >= LEAST_WINDOW_S  # opening sensors takes time
        meters = sensors.energy(backend) if requested else []
        return cls(meters, backend, plan.energy_window_s, plan.energy_idle_s)

    @property
    def enabled(self) -> bool:
        """Whether energy is measured: a source can be read, and the window is long enough."""
        return bool(self.readable) and self.window_s >= LEAST_WINDOW_S

    # -- idle ------------------------------------------------------------------------------

    def idle(self, when: str) -> None:
        """Measure idle power, with the device's context open and nothing running.

        Args:
            when: `before` or `after` the training.
        """
        if not self.enabled or self.idle_s <= 0:
            return
        self.clock.synchronize()
        time.sleep(SETTLE_S)
        recording = Recording(self.readable)
        time.sleep(self.idle_s)
        recording.stop()
        watts = self._idle_w[when] = {}
        reasons = self._no_idle[when] = dict(recording.lost)
        for name in recording.tallies.keys() - recording.lost.keys():
            if recording.moved[name] < LEAST_IDLE_READINGS:
                updates = f"{recording.moved[name]} updates, fewer than {LEAST_IDLE_READINGS}"
                reasons[name] = f"idle {when}: {updates}"
            else:
                watts[name] = recording.tallies[name].joules / recording.tallies[name].seconds

    # -- the window ------------------------------------------------------------------------

    def begin(self) -> None:
        """Open the window; unsynchronised training steps follow."""
        self.clock.synchronize()
        self._window = Recording(self.readable)

    def enough(self) -> bool:
        """Whether the window may close. Costs about a microsecond.

        It is long enough and every counter has changed often enough; a counter that has not
        changed at all by then is not waited for, and a slow one for `LONGEST` windows at most.
        """
        window = self._window
        if window is None:
            return True
        elapsed = window.seconds
        if len(window.lost) == len(window.tallies) or elapsed >= LONGEST * self.window_s:
            return True
        return elapsed >= self.window_s and all(
            tally.updates >= LEAST_UPDATES or tally.updates == 0
            for name, tally in window.tallies.items()
            if name not in window.lost
        )

    def end(self, steps: int, samples_per_step: int) -> None:
        """Close the window; a second call does nothing.

        Args:
            steps: training steps since `begin`.
            samples_per_step: training samples in each.
        """
        assert self._window is not None, "end without begin"
        if self._steps is not None:
            return
        self.clock.synchronize()
        self._window.stop()
        self._steps, self._samples_per_step = steps, samples_per_step

    # -- results ---------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """The point's `energy`: joules, watts, seconds; None with a reason where not measured."""
        sources = [self._source(source) for sensor in self.sensors for source in sensor.sources]
        reason = None
        if self.window_s < LEAST_WINDOW_S:
            reason = f"energy_window_s is {self.window_s:g}; at least {LEAST_WINDOW_S:g} are needed"
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

    def _missing(self, source: Source) -> str | None:
        """Why a source has no energy, or None."""
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
        tally = window.tallies[source.name]
        if tally.updates < LEAST_UPDATES:
            return f"{tally.updates} updates in the window; at least {LEAST_UPDATES} are needed"
        if tally.joules <= 0:
            return "the counter was reset in the window"
        return None

    def _source(self, source: Source) -> dict[str, Any]:
        """One source's part of the summary."""
        reason = self._missing(source)
        tally = self._window.tallies.get(source.name) if self._window else None
        idle = {when: self._idle_w.get(when, {}).get(source.name) for when in ("before", "after")}
        summary: dict[str, Any] = {
            "name": source.name,
            "scope": source.scope,
            "quality": source.quality,
            "means": source.means,
            "energy_j": None,
            "updates": tally.updates if tally and self._steps is not None else None,
            "energy_per_step_j": None,
            "energy_per_sample_j": None,
            "idle_before_w": idle["before"],
            "idle_after_w": idle["after"],
            "net_energy_per_step_j": None,
            "reason": reason,
        }
        if reason is None and tally is not None and self._steps:
            per_step = tally.joules / self._steps
            known = [watts for watts in idle.values() if watts is not None]
            summary["energy_j"] = tally.joules
            summary["energy_per_step_j"] = per_step
            summary["energy_per_sample_j"] = per_step / self._samples_per_step
            if known:
                idle_w = sum(known) / len(known)
                summary["net_energy_per_step_j"] = per_step - idle_w * tally.seconds / self._steps
            if self.idle_s <= 0:
                summary["reason"] = "energy_idle_s is 0, so idle power was not measured"
            else:
                missing = [
                    self._no_idle.get(when, {}).get(source.name, f"idle {when}: not measured")
                    for when, watts in idle.items()
                    if watts is None
                ]
                summary["reason"] = "; ".join(missing) or None
        return summary
