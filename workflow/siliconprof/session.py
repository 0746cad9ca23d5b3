"""What a running cell shares with its workload, trainer and probes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from siliconprof.backends.base import Backend
from siliconprof.cell import Cell
from siliconprof.workloads.base import Workload

REPORT_EVERY_S = 0.2


class Session:
    """The state of one cell while it is measured."""

    def __init__(
        self,
        cell: Cell,
        backend: Backend,
        workload: Workload,
        report: Callable[[dict[str, Any]], None],
    ) -> None:
        self.cell = cell
        self.backend = backend
        self.workload = workload
        self.points: list[dict[str, Any]] = []
        self.flags: list[dict[str, str]] = []
        self.evidence: dict[str, Any] = {}  # what proves the effective precision
        self.method: dict[str, Any] = {}  # what a trainer or workload says of its method
        self.timed_s = 0.0
        self.zero = time.perf_counter()  # of the steps' and the samples' times alike
        self.energy: Any = None  # an energy.EnergyMeter, where a training's energy can be read
        self.capture: Any = None  # a captures.base.Window, in a process that a tool looks at
        self.scenario: dict[str, Any] = {}  # what the memory model says and what is applied
        self._report = report
        self._reported = 0.0
        self._data: Any = None

    @property
    def data(self) -> Any:
        """The prepared arrays, of text or speech; loaded on first use.

        Raises:
            token_data.DataError: they are missing or damaged.
        """
        if self._data is None:
            from siliconprof import data_folder

            self._data = data_folder.load(Path(self.cell.dataset or ""))
        return self._data

    @property
    def offloads(self) -> bool:
        """Whether the training runs under ZeRO-Offload."""
        return self.scenario.get("applied") == "offload"

    def add_point(self, point: dict[str, Any]) -> None:
        """Keep one measured point; its raw times count as timed."""
        self.points.append(point)
        times = point["times"]
        for name in ("warmup_step_s", "step_s", "unsplit_step_s", "forward_only_s",
                     "energy_step_s", "launch_and_wait_s"):  # fmt: skip
            self.timed(sum(times.get(name, ())))

    def timed(self, seconds: float) -> None:
        """Count seconds spent inside warm-up and timed regions."""
        self.timed_s += seconds

    def flag(self, code: str, detail: str) -> None:
        """Mark the record."""
        self.flags.append({"code": code, "detail": detail})

    def memory(self) -> dict[str, int | None]:
        """Device memory as the backend counts it, in bytes."""
        return {
            "device_bytes": self.backend.memory_bytes(),
            "device_peak_bytes": self.backend.peak_memory_bytes(),
        }

    def progress(self, what: str, step: int, always: bool = False) -> None:
        """Tell the supervisor how far the cell is, at most five times a second unless `always`."""
        now = time.monotonic()
        if always or now - self._reported >= REPORT_EVERY_S:
            self._reported = now
            self._report({"doing": what, "step": step})

    def stepping(self, what: str) -> Callable[[str, int], None]:
        """A progress callback for the timing loops."""

        def tell(stage: str, step: int) -> None:
            self.progress(f"{what}: {stage}", step)

        return tell
