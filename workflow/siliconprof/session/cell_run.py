"""What a running cell shares with its workload, trainer and probes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from siliconprof.backends.base import Backend
from siliconprof.session.thread_time import DisturbanceWatch
from siliconprof.session.timing import Plan, drifting, noise, order, repeat
from siliconprof.store.cell import Cell

REPORT_EVERY_S = 0.2
COURSE = "course.json"  # in the folder of a training's checkpoints, see trainers/training_run.py


@dataclass(eq=False)
class CellRun:
    """The state of one cell while it is measured."""

    cell: Cell
    backend: Backend
    workload: Any  # a `workloads.base.Workload`
    report: Callable[[dict[str, Any]], None]  # tells the supervisor the progress and each point
    checkpoints: Path | None = None  # folder for those of a whole training
    points: list[dict[str, Any]] = field(default_factory=list)
    flags: list[dict[str, str]] = field(default_factory=list)
    evidence: dict[str, Any] = field(default_factory=dict)  # what proves the effective precision
    method: dict[str, Any] = field(default_factory=dict)  # as trainer or workload describe it
    # Points of a sweep that this process measured, and from when to when.
    windows: list[tuple[dict[str, Any], float, float]] = field(default_factory=list)
    timed_s: float = 0.0
    retried_s: float = 0.0  # of the plan's retry budget, pauses included
    stays_busy: bool = False  # the last second attempt was disturbed as well: no more are made
    zero: float = field(default_factory=time.perf_counter)  # of the steps' and the samples' times
    under_way: bool = True  # False in a training's set-up and end, which are not timed
    deepspeed: Any = None  # the result of trainers._offload.initialise
    gpu: Any = None  # a `sensors.base.Gpu`, where the cell has one
    energy: Any = None  # an energy.EnergyMeter, where a training's energy can be read
    scenario: dict[str, Any] = field(default_factory=dict)  # of the memory model, and as applied
    _reported: float = 0.0
    _data: Any = None

    @property
    def data(self) -> Any:
        """The prepared arrays, of text, speech or images; loaded on first use.

        Raises:
            prepared.DataError: they are missing or damaged.
        """
        if self._data is None:
            from siliconprof.datasets import training_data

            self._data = training_data.load(Path(self.cell.dataset or ""))
        return self._data

    @property
    def offloads(self) -> bool:
        """Whether the training runs under ZeRO-Offload."""
        return self.scenario.get("applied") == "offload"

    def add_point(self, point: dict[str, Any]) -> None:
        """Add one point to the record, which has it even if this process is killed.

        Its raw times, without compiling and warm-up, count as timed.
        """
        self.points.append(point)
        self.report({"point": point})
        times, calls = point["times"], point.get("calls_per_time", 1)
        for name in ("step_s", "whole_step_s", "forward_only_s", "launch_and_wait_s"):
            self.timed(calls * sum(times.get(name, ())))

    def repeat(
        self, label: str, operation: Callable[[], Any], calls: int | None = None
    ) -> dict[str, Any]:
        """Time an operation by the cell's plan; return that part of its point.

        Times that scatter, drift or were disturbed are measured again after a pause, while retries and
        budget last. The last attempt stands, whatever it shows, and not the fastest.

        Args:
            label: of the operation, for the progress.
            operation: runs it and has a lazy framework compute the result.
            calls: see `timing.repeat`; the operation then only starts, and returns its result.

        Returns:
            `times` in seconds, `stopped_by`, `drift`, `change_point`, how other processes
            `disturbed` them or None, the `attempts` that were given up, and the `gpu` as it then was.
        """
        plan = Plan.of(self.cell.timing)
        attempts: list[dict[str, Any]] = []
        while True:
            measured = repeat(operation, self.backend.clock, plan, self.stepping(label), calls)
            gpu = self.gpu.now() if self.gpu else {}
            scatters = noise(measured.times_s) or drifting(order(measured.times_s))
            reason, disturbed = measured.disturbed or scatters, measured.disturbed is not None
            enough = len(attempts) >= max(plan.retries, int(disturbed))
            if not reason or enough or not self.may_retry(plan, measured.spent_s):
                break
            attempts.append(
                measured.series | {"stopped_by": measured.stopped_by, "given_up": reason}
            )
            self.timed(measured.calls * sum(measured.times_s))
        self.stays_busy |= bool(attempts) and disturbed
        return {
            "times": measured.series,
            "stopped_by": measured.stopped_by,
            **order(measured.times_s),
            "disturbed": measured.disturbed,
            "attempts": attempts,
            **({"gpu": {"measured_s": measured.spent_s} | gpu} if gpu else {}),
        }

    def may_retry(self, plan: Plan, last_s: float) -> bool:
        """Pause, and return True, if the budget has room for another attempt as long as the last."""
        spent_s = plan.cool_down_s + last_s
        if self.stays_busy or self.retried_s + spent_s > plan.retry_budget_s:
            return False
        self.retried_s += spent_s
        time.sleep(plan.cool_down_s)
        return True

    def undisturbed(self, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Measure something else of a point, and again where it was disturbed and budget is left.

        Returns:
            the last of what was measured, `disturbed`, and the `attempts` that were given up.
        """
        attempts: list[dict[str, Any]] = []
        while True:
            watch, began = DisturbanceWatch(), time.perf_counter()
            measured = measure()
            spent_s, disturbed = time.perf_counter() - began, watch.disturbed()
            self.timed(spent_s)
            plan = Plan.of(self.cell.timing)
            if not disturbed or attempts or not self.may_retry(plan, spent_s):
                self.stays_busy |= bool(attempts) and disturbed is not None
                return measured | {"disturbed": disturbed, "attempts": attempts}
            attempts.append(measured | {"given_up": disturbed})

    def timed(self, seconds: float) -> None:
        """Count seconds spent inside timed regions, compiling and warm-up left out."""
        self.timed_s += seconds

    def flag(self, code: str, detail: str) -> None:
        """Mark the record."""
        self.flags.append({"code": code, "detail": detail})

    def memory(self) -> dict[str, int | None]:
        """Device memory as the backend counts it, in bytes."""
        return {
            "device_bytes": self.backend.memory.allocated_bytes(),
            "device_peak_bytes": self.backend.memory.peak_bytes(),
        }

    def progress(self, label: str, step: int, always: bool = False) -> None:
        """Tell the supervisor how far the cell is, at most five times a second unless `always`."""
        now = time.monotonic()
        if always or now - self._reported >= REPORT_EVERY_S:
            self._reported = now
            self.report({"doing": label, "step": step})

    def stepping(self, label: str) -> Callable[[str, int], None]:
        """A progress callback for the timing loops."""
        return lambda stage, step: self.progress(f"{label}: {stage}", step)
