"""One thread that reads every probe four times a second while a cell is measured.

Every probe's own cost is measured too: the wall clock of this thread, which includes waiting for
Python's lock, so it is an upper bound of what the training loses. A reading that raises costs a probe
that series alone; a probe that itself raises is switched off, with the reason in its summary. Waking
up costs the training more than reading does, so the thread waits on a lock and not on an event.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from siliconprof import plugins
from siliconprof.errors import in_one_line
from siliconprof.hosts import machine
from siliconprof.probes.base import Probe
from siliconprof.session.cell_run import CellRun
from siliconprof.stats import statistics

SAMPLE_EVERY_S = 0.25


class Sampler:
    """A context around the measurement; afterwards `samples` and `summaries` are complete.

    Args:
        cell_run: its backend is open; flags go to it.
        only: names of the probes that may run, None for all; a control run allows none.

    Attributes:
        started: `time.perf_counter()` at `t_s` = 0, the zero of the steps' times too.
    """

    def __init__(self, cell_run: CellRun, only: Sequence[str] | None = None) -> None:
        self.cell_run = cell_run
        self.only = only
        self.started = time.perf_counter()
        self.samples: list[dict[str, Any]] = []
        self.summaries: dict[str, dict[str, Any]] = {}
        self._probes: list[Probe] = []
        self._cost_s: dict[str, list[float]] = {}
        self._running = threading.Lock()  # released at the end
        self._running.acquire()
        self._thread = threading.Thread(target=self._run, name="probes", daemon=True)
        for name in plugins.names("probes"):
            plugin = plugins.load("probes", name)
            available, means = False, "switched off for this cell"
            if self.only is None or name in self.only:
                found, why = machine.reading(plugin.available)
                available, means = found or (False, str(why))
            self.summaries[name] = {"available": available, "means": means}
            if available:
                self._cost_s[name] = []
                self._probes.append(plugin())
            else:
                self.summaries[name] |= plugin.missing

    def __enter__(self) -> Sampler:
        self.started = time.perf_counter()
        for probe in list(self._probes):
            try:
                probe.start(self.cell_run.backend)
            except Exception as error:
                self._switch_off(probe, error)
        self._thread.start()
        return self

    def _switch_off(self, probe: Probe, error: Exception) -> None:
        elapsed_s = time.perf_counter() - self.started
        off = {"reason": in_one_line(error), "switched_off_at_s": elapsed_s}
        self.summaries[probe.name] |= {**probe.missing, **off}
        self._probes.remove(probe)

    def _run(self) -> None:
        while self._probes:
            begun = time.perf_counter()
            sample: dict[str, Any] = {"t_s": begun - self.started}
            for probe in list(self._probes):
                probe.under_way = self.cell_run.under_way
                try:
                    sample |= probe.sample()
                except Exception as error:
                    self._switch_off(probe, error)
                ended = time.perf_counter()
                self._cost_s[probe.name].append(ended - begun)
                begun = ended
            self.samples.append(sample)
            if self._running.acquire(timeout=SAMPLE_EVERY_S):
                return

    def __exit__(self, *_: object) -> None:
        self._running.release()
        self._thread.join()
        wall_s = time.perf_counter() - self.started
        for name, costs in self._cost_s.items():
            if costs:
                self.summaries[name] |= {
                    "samples": len(costs),
                    "sample_cost_median_s": statistics.median(costs),
                    "sample_cost_p95_s": statistics.quantile(costs, 0.95),
                    "share_of_wall": sum(costs) / wall_s,
                }
        for probe in list(self._probes):
            try:
                summary = probe.stop(wall_s)
            except Exception as error:
                self._switch_off(probe, error)
                continue
            for code, detail in summary.pop("flags", ()):
                self.cell_run.flag(code, detail)
            self.summaries[probe.name] |= summary
