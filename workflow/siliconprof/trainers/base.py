"""The base of trainers, which drive the loop of a training workload."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from siliconprof.backends._step import Compilation, Stepper
from siliconprof.probes.page_faults import read_faults
from siliconprof.session import memory_limit, operators, thread_time
from siliconprof.session.cell_run import CellRun
from siliconprof.session.operators import Operators
from siliconprof.session.timing import (
    UNSYNCHRONISED_RUN_SHARE,
    UNSYNCHRONISED_RUN_STEPS,
    UNSYNCHRONISED_RUNS,
    PhaseClock,
    Plan,
    StepTimes,
    StoppingRule,
)
from siliconprof.session.weight_watch import WeightWatch
from siliconprof.stats import statistics
from siliconprof.trainers import _offload
from siliconprof.workloads._training import TrainingWorkload

COMPILE_STEPS = 8  # at most; a training that still compiles then does so all along
FREE, OPERATORS, SKIPPED = "unsynchronised", "operators", "skipped"  # kinds of training steps
MOST_SKIPPED = 64  # in a row: each halves the scale, so that no scale helps
DATA_PATH = (
    "every step takes its batch from prepared arrays in this process, no worker, and copies it to the "
    "device, on CUDA from page-locked memory and without waiting, under every trainer"
)


class Trainer:
    """Base of all trainers."""

    frameworks: ClassVar[tuple[str, ...]] = ("torch", "mlx")
    compiles: ClassVar[bool] = False  # it can drive a compiled step, which has no phases
    # framework -> distributions that it imports, whose versions its numbers depend on
    LIBRARIES: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    cannot_offload: ClassVar[str | None] = None  # why, None = can
    OFFLOAD_LIBRARIES: ClassVar[tuple[str, ...]] = ("deepspeed",)  # what ZeRO-Offload adds
    import_deepspeed = staticmethod(_offload.import_deepspeed)

    def supports(self, framework: str, device_kind: str, precision: str) -> str | None:
        """Why it cannot train with this framework, device and precision; None where it can."""
        if framework not in self.frameworks:
            return f"this trainer needs {' or '.join(self.frameworks)}"
        return None

    def imports(
        self, own: list[tuple[str, Callable[[], Any]]], workload: Any
    ) -> list[tuple[str, Callable[[], Any]]]:
        """The workload's imports and those of the trainer, see `Workload.imports`."""
        return own

    def prepare(self, cell_run: CellRun) -> None:
        """Set up what is no part of the training, before sampling; may raise `Unsupported`."""
        workload = cell_run.workload
        attention = workload.parameters.get("attention", "default")
        if attention != "default":
            cell_run.backend.choose_attention(attention)
        if cell_run.offloads:
            cell_run.deepspeed = _offload.initialise(cell_run)

    def run(self, cell_run: CellRun) -> None:
        """Train, time, and pass each point to `CellRun.add_point`."""
        raise NotImplementedError


class StepSchedule:
    """The kind of the next training step, and the times of all steps so far.

    Steps come in this order: those that compile; warm-up; split and whole steps in turn, so that drift
    affects both alike, with an occasional step whose operators are watched; then runs of unsynchronised
    steps, each of which waits for the device at its end alone, until the energy window is long enough.
    A step that a gradient scaler skips counts as none of these. For each step a trainer calls
    `next_kind` and `begin`, runs the step with `clock`'s edges, and calls `end`.
    """

    def __init__(
        self, cell_run: CellRun, compilation: Callable[[], Compilation | None] = lambda: None
    ) -> None:
        self.cell_run = cell_run
        self.compilation = compilation
        self.updates: Callable[[], int | None] = lambda: None  # see `Stepper.updates`
        self._updated: int | None = None  # at the start of the current step or run
        self.skipped = 0  # steps that updated no weights
        self._compiled = -1  # graphs before the last step that could compile
        self.clock = PhaseClock(cell_run.backend.clock)
        self.clock.split = False
        self.operators = Operators(cell_run.backend.profiler, self.clock, cell_run.method)
        self.pace = StoppingRule(Plan.of(cell_run.cell.timing))
        self.times = StepTimes()
        self.losses: list[float] = []
        self.trained: WeightWatch | None = None  # if the trainer exposes its weights
        self.steps: dict[str, list[Any]] = {
            "kind": [],
            "started_s": [],
            "minor_faults": [],
            "major_faults": [],
            **{name: [] for name in thread_time.ThreadTime._fields},
        }
        self.resumed_at: list[int] = []  # steps after which a killed training went on
        self._thread = threading.get_ident()
        self.run_steps = 0  # unsynchronised steps in a run; 0: none has begun
        self._run_losses: list[Callable[[], float]] = []  # of the run under way, not read yet
        self._runs_s: list[float] = []  # of each run, over its steps

    def next_kind(self) -> str | None:
        """`warm-up`, `split`, `whole`, `operators`, `unsynchronised`; None when the training is over."""
        if self.steps["kind"][-MOST_SKIPPED:] == [SKIPPED] * MOST_SKIPPED:
            raise ArithmeticError(f"the gradients of {MOST_SKIPPED} steps in a row are not finite")
        if not self.run_steps:
            if self._compiles():
                return "compile"
            if self.pace.warming_up():
                return "warm-up"
            split, whole = len(self.times.step_s), len(self.times.whole_step_s)
            if split > whole:
                return "whole"
            if self.tells_operators and self.operators.due(split, self.pace.overruns()):
                return OPERATORS
            if not self.pace.done():  # stops with as many split steps as whole ones
                return "split" if self.compilation() is None else "whole"
        return FREE if self.runs_on() else None

    @property
    def tells_operators(self) -> bool:
        """Whether operators can be watched: not in compiled steps, nor without memory to spare."""
        held = self.cell_run.scenario.get("applied") in ("offload", "near-capacity")
        return not held and self.compilation() is None

    def _compiles(self) -> bool:
        """Whether the next step may compile: the first, and each after one that did, up to a few."""
        done = self.compilation()
        if done is None or len(self.times.compile_step_s) >= COMPILE_STEPS:
            return False
        before, self._compiled = self._compiled, done.graphs
        return before < done.graphs

    def runs_on(self) -> bool:
        """Whether an unsynchronised step is due; the energy window spans the runs."""
        cell_run, plan, runs_s = self.cell_run, self.pace.plan, self._runs_s
        energy = cell_run.energy if cell_run.energy and cell_run.energy.enabled else None
        share_s = UNSYNCHRONISED_RUN_SHARE * plan.budget_s
        if self.overran and not energy:
            cell_run.under_way = False
            return False
        if not self.run_steps:
            fewest, most = UNSYNCHRONISED_RUN_STEPS
            steps = round(share_s / statistics.median(self.pace.times))
            self.run_steps = min(max(steps, fewest), most)
            if energy:
                energy.begin()
            return True
        fewest, most = UNSYNCHRONISED_RUNS
        long_enough = self.run_steps * sum(runs_s) >= most * share_s  # with fewer, longer runs
        enough = len(runs_s) >= most or (len(runs_s) >= fewest and long_enough)
        if self._run_losses or not enough or (energy and not energy.enough()):
            return True
        cell_run.under_way = False
        if energy:
            workload = cell_run.workload
            energy.end(len(runs_s) * self.run_steps, workload.batch_size)
            energy.idle("after")
        return False

    @property
    def overran(self) -> bool:
        """Whether it ended early; measurements that only serve as checks are then left out."""
        return self.pace.stopped_by == "overrun"

    def state(self) -> dict[str, Any]:
        """The state beside the stepper's, for `restore` in a later process."""
        return {
            "zero_unix_s": time.time() - (time.perf_counter() - self.cell_run.zero),
            "losses": self.losses,
            "steps": self.steps,
            "times": vars(self.times),
            "resumed_at": self.resumed_at,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned in an earlier process, whose steps began before 0 s."""
        self.losses, self.steps = state["losses"], state["steps"]
        self.skipped = self.steps["kind"].count(SKIPPED)
        later_s = self.state()["zero_unix_s"] - state["zero_unix_s"]
        self.steps["started_s"] = [began - later_s for began in self.steps["started_s"]]
        self.times = StepTimes(**state["times"])
        self.pace.times = list(self.times.whole_step_s)
        self.resumed_at = [*state["resumed_at"], len(self.losses)]
        self.cell_run.timed(-sum(self.pace.times))  # which an earlier process spent

    def follow(self, stepper: Stepper, batches: Iterator[Any]) -> None:
        """Train to the end of the schedule."""
        while kind := self.next_kind():
            self.step(kind, stepper, batches)

    def run_freely(self, stepper: Stepper, batches: Iterator[Any]) -> None:
        """Continue a training that is over with its unsynchronised steps."""
        self.cell_run.under_way = True
        while self.runs_on():
            self.step(FREE, stepper, batches)

    def step(self, kind: str, stepper: Stepper, batches: Iterator[Any]) -> None:
        """Run one training step, which includes fetching its batch."""
        self.trained = self.trained or WeightWatch(
            self.cell_run, self.cell_run.workload, stepper.weights
        )
        self.updates = stepper.updates
        self.begin(kind)
        self.end(stepper.step(next(batches), self.clock))

    def begin(self, kind: str) -> None:
        """Start a step, which includes fetching its data."""
        if not self.losses:  # a training that does not fit its memory ends here
            self.cell_run.under_way = True
            self.cell_run.progress(f"first step, {kind}", 1, always=True)
        self._kind = kind
        self._watched = kind == "whole" and self.trained is not None and self.trained.due
        if self.trained and self._watched:
            self.trained.before()
        if kind != FREE or not self._run_losses:
            self._updated = self.updates()
        self._faults = read_faults()
        self._used = thread_time.read(self._thread)
        if kind != FREE:
            self.clock.start(split=kind in ("split", OPERATORS))
        elif not self._run_losses:
            self.clock.start_run()
        self._started_s = time.perf_counter() - self.cell_run.zero
        if kind == OPERATORS:
            self.operators.begin(len(self.times.step_s))

    def end(self, loss: Callable[[], float]) -> None:
        """End a step; its loss is fetched after the clock has stopped."""
        self.step_s, phases = (0.0, {}) if self._kind == FREE else self.clock.stop()
        if self._kind == OPERATORS:  # before reading anything, which is not part of the step
            self.operators.stop()
        if self._kind != FREE and self._skips(1) and self._kind != "compile":
            self._kind = SKIPPED
        if self._kind == OPERATORS:
            self.operators.end()
        used = thread_time.between(self._used, thread_time.read(self._thread))
        minor, major = read_faults()
        if self._kind == FREE:
            self._run_losses.append(loss)
            if len(self._run_losses) == self.run_steps:
                self._stop_run()
        else:
            self.losses.append(loss())
        faults = {"minor_faults": minor - self._faults[0], "major_faults": major - self._faults[1]}
        of_step = {"kind": self._kind, "started_s": self._started_s, **faults, **used}
        for name, value in of_step.items():
            self.steps[name].append(value)
        if self._kind == "compile":
            self.times.compile_step_s.append(self.step_s)
            # What autotuning allocates is in no training's peak: torch/_inductor/runtime/benchmarking.py
            # takes a buffer of the L2 cache's size, Triton's own one of 256 MiB.
            self.cell_run.backend.memory.empty_cache()
            self.cell_run.backend.memory.reset_peak()
        elif self._kind == "warm-up":
            self.pace.warmup_times.append(self.step_s)
            self.times.warmup_step_s = self.pace.warmup_times
        elif self._kind == "split":
            self.times.add_split(self.step_s, phases)
        elif self._kind == "whole":
            self.times.whole_step_s.append(self.step_s)
            if self.cell_run.backend.clock.works_beside:
                self.times.dispatch_s.append(self.clock.dispatch_s)
            self.pace.times.append(self.step_s)
        elif self._kind == OPERATORS:
            self.pace.pause(self.step_s)
            self.cell_run.timed(self.step_s)
        if self.trained and self._watched and self._kind != SKIPPED:
            self.trained.after()
        what = "training step" if self._kind in ("split", "whole") else self._kind
        self.cell_run.progress(what, len(self.losses))

    def _stop_run(self) -> None:
        """End a run of unsynchronised steps, and read their losses."""
        run_s = self.clock.stop_run()
        self._runs_s.append(run_s / self.run_steps)
        if not self._skips(self.run_steps):
            self.times.unsynchronised_step_s.append(self._runs_s[-1])
        self.cell_run.timed(run_s)
        self.losses += [loss() for loss in self._run_losses]
        self._run_losses = []

    def _skips(self, steps: int) -> bool:
        """Count those of the last steps that updated no weights; whether there were any."""
        done = self.updates()
        skipped = 0 if done is None or self._updated is None else steps - (done - self._updated)
        self.skipped += skipped
        return skipped > 0

    def point(self, **extra: list[float]) -> dict[str, Any]:
        """The point of a training cell; `extra` has more series of times, in seconds."""
        cell_run, times = self.cell_run, self.times
        workload: TrainingWorkload = cell_run.workload
        cell_run.method |= {"weights": workload.weights.origin(), "data_path": DATA_PATH}
        flops, source = workload.flops_per_step()
        trained = self.trained.facts() if self.trained else {}
        whole_step_s = statistics.median(times.whole_step_s)
        split_over = statistics.median(times.step_s) / whole_step_s if times.step_s else None
        compiling: dict[str, Any] = {}
        if done := self.compilation():
            steps_s = times.compile_step_s
            compiling = {
                "compile_s": sum(steps_s) - len(steps_s) * whole_step_s,
                "recompilations": done.recompilations,
                "graph_breaks": done.graph_breaks,
            }
        return {
            "params": {
                "batch_size": workload.parameters["batch_size"],
                "n_parameters": workload.weights.n_parameters(),
                "n_trainable_parameters": workload.weights.n_trainable_parameters(),
                "samples_per_step": workload.batch_size,
                "tokens_per_step": workload.tokens_per_step(),
                "audio_s_per_step": workload.audio_s_per_step(),
            },
            "times": {
                "warmup_step_s": times.warmup_step_s,
                "step_s": times.step_s,
                "whole_step_s": times.whole_step_s,
                "unsynchronised_step_s": times.unsynchronised_step_s,
                **({"dispatch_s": times.dispatch_s} if times.dispatch_s else {}),
                **({"compile_step_s": times.compile_step_s} if times.compile_step_s else {}),
                **times.phases,
                **extra,
            },
            "stopped_by": self.pace.stopped_by,
            "flops": flops,
            "flops_source": source,
            "bytes": None,
            "loss": self.losses,
            "steps": self.steps,
            **({} if self.updates() is None else {"skipped_steps": self.skipped}),
            **trained,
            **({"draws": True} if workload.draws else {}),
            "unsynchronised_steps": self.run_steps or None,
            "split_over_whole_step": split_over,
            "quantities": compiling,
            **self.operators.of_point(),
            "forward_only_over_forward": forward_ratio(extra.get("forward_only_s"), times.phases),
            "memory": cell_run.memory(),
            "energy": cell_run.energy.summary() if cell_run.energy else None,
        }

    def watch_more(self, point: dict[str, Any], stepper: Stepper, batches: Iterator[Any]) -> None:
        """Run extra steps after the training; add their operators and peak memory to its point."""

        def again() -> Any:
            return stepper.step(next(batches), self.clock)

        point |= operators.watch_step(self.cell_run, again, self.clock)
        point["memory"] |= memory_limit.peak_of_step(
            self.cell_run, again, stepper.persistent_arrays()
        )


def forward_ratio(
    alone_s: Sequence[float] | None, phases: Mapping[str, Sequence[float]]
) -> float | None:
    """Median forward pass alone over that inside a step, tracing included; None without either."""
    if not alone_s or not phases.get("forward_s"):
        return None
    parts = (phases[name] for name in ("trace_s", "forward_s") if phases.get(name))
    return statistics.median(alone_s) / sum(map(statistics.median, parts))
