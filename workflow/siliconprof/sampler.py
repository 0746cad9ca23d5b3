"""One thread that reads every probe at about 10 Hz while a cell is measured."""

from __future__ import annotations

import threading
import time
from typing import Any

from siliconprof import plugins
from siliconprof.probes.base import Probe
from siliconprof.session import Session

INTERVAL_S = 0.1


class Sampler:
    """A context around the measurement; afterwards `samples` and `summaries` are complete."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.samples: list[dict[str, Any]] = []
        self.summaries: dict[str, dict[str, Any]] = {}
        self._probes: list[Probe] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probes", daemon=True)

    def __enter__(self) -> Sampler:
        for name in plugins.names("probes"):
            probe = plugins.load("probes", name)
            can, means = probe.available()
            self.summaries[name] = {"available": can, "means": means}
            if can:
                self._probes.append(probe())
        self._started = time.perf_counter()
        for probe in self._probes:
            probe.start(self.session.backend)
        self._thread.start()
        return self

    def _run(self) -> None:
        while True:
            sample: dict[str, Any] = {"t_s": time.perf_counter() - self._started}
            for probe in self._probes:
                sample |= probe.sample()
            self.samples.append(sample)
            if self._stop.wait(INTERVAL_S):
                return

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        wall_s = time.perf_counter() - self._started
        for probe in self._probes:
            summary = probe.stop(wall_s)
            flag = summary.pop("flag", None)
            if flag:
                self.session.flag(*flag)
            self.summaries[probe.name] |= summary
