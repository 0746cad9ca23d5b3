"""What a point of a record contains, typed: one shape or setting, and its raw times.

A value that a point lacks is None, a part that it lacks has no values, and where it matters whether a
part is there, the part is None. What of it no stage reads stays in the file alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from siliconprof.store.cell import point_name
from siliconprof.store.model import Count, Open

WHOLE = ("whole_step_s", "step_s")  # the first of these that a point has is its time


def or_empty(empty: Callable[[], Any]) -> Any:
    """Metadata of a part for which null means that it has no values."""
    return BeforeValidator(lambda value: empty() if value is None else value)


# Empty values made anew: pydantic copies a default that may change, which takes much longer.
NONE: Any = Field(default_factory=list)
NOTHING: Any = Field(default_factory=dict)
Scalar = str | int | float | bool | None
Figure = int | float | None
Whole = Annotated[int, Field(ge=0)]  # a count, bytes
Positive = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
RawTimes = list[Seconds]  # one entry per iteration
Series = Sequence[float]  # the same, for a reader
Name = Annotated[str, Field(max_length=64)]
Times = dict[Name, RawTimes]
Facts = Annotated[dict[str, Any], or_empty(dict)]  # which no stage takes apart
Bytes = Annotated[dict[str, int], or_empty(dict)]  # part of a memory -> bytes


class Memory(Open):
    """Device memory of a point."""

    device_peak_bytes: Whole | None = None
    device_peak_means: str | None = None  # what counted the peak
    predicted_bytes: Whole | None = None  # by the memory model, of a point of a sweep


class GpuState(Open):
    """How long an operation was measured, and how its GPU was just afterwards."""

    measured_s: float | None = None
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    limits: list[str] | None = None  # what held its clock down


class Steps(Open):
    """Every training step in order, on the clock of `samples`; None where the system does not tell."""

    kind: list[
        Literal[
            "compile",  # compiles, or follows one that did
            "warm-up",
            "split",
            "whole",
            "operators",  # whose operators were watched
            "unsynchronised",  # in a run of steps without a wait between them
            "partial",  # on the smaller batch that an epoch leaves
            "skipped",  # not timed: its gradients overflowed, so that it updated no weights
        ]
    ]
    started_s: list[float]  # since the sampling began
    minor_faults: list[Whole]  # without disk
    major_faults: list[Whole]  # with disk
    cpu_s: list[Annotated[float, Field(ge=0)]] = NONE  # the measuring thread was on a core
    waiting_s: list[Annotated[float, Field(ge=0)] | None] = NONE  # it waited for a core
    all_threads_cpu_s: list[Annotated[float, Field(ge=0)]] = NONE  # of all threads of the process


class Operator(Open):
    """A distinct operator of a training step; `seconds` of all its calls, by step."""

    bytes: Whole  # that one call reads and writes, each operand once
    count: Count  # calls in a step
    flops: Whole | None  # of one call; None where no formula is known
    inputs: str  # dtype, shape, and strides where not row by row
    kind: str  # the framework's name of it
    phase: Name
    role: str  # module whose it is, layers together, or optimizer
    # The cost of timing is taken off, so small ones may be less than 0.
    seconds: list[Annotated[float, Field(ge=-1, le=1e9)]]


class Operators(Open):
    """The operators of a training step in the order in which they first run."""

    rows: list[Operator]
    reason: str | None  # why none is timed
    # Of the steps between, where they are not among the times.
    phases: dict[str, RawTimes] = NOTHING


class EnergySource(Open):
    """Energy of a window by one source, or why there is none."""

    name: str | None = None
    scope: str | None = None
    quality: str | None = None
    energy_j: Figure = None
    updates: Figure = None
    energy_per_step_j: Figure = None
    energy_per_sample_j: Figure = None
    idle_before_w: Figure = None
    idle_after_w: Figure = None
    net_energy_per_step_j: Figure = None
    reason: str | None = None


class Energy(Open):
    """Energy of a window of unsynchronised steps."""

    window_s: Positive | None = None
    steps: Count | None = None
    reason: str | None = None
    sources: list[EnergySource] = NONE


class Cold(Open):
    """The fresh processes behind a kernel's cold launch."""

    reasons: dict[str, str] = NOTHING  # why a time is missing


class Cache(Open):
    """A last-level cache."""

    last_level_cache_bytes: Figure = None


class Rotation(Open):
    """What the repeats of a cold cache go round: copies, one after another."""

    cache_bytes: Count | None  # None: unknown, then more than any known is assumed


class Autorange(Open):
    """The same iteration by torch.utils.benchmark.Timer.blocked_autorange, or why it is not."""

    reason: str | None = None
    min_run_time_s: Positive | None = None
    times_s: list[Seconds] = NONE  # of one iteration, one entry per block


class Curve(Open):
    """A whole training, one entry per step in each list; None is NaN or infinite."""

    loss: list[float | None]
    gradient_norm: list[float | None]  # of all gradients together, before clipping
    learning_rate: list[Annotated[float, Field(ge=0)]]


class Evaluation(Open):
    """The loss on held-out data after a number of steps."""

    step: Whole
    loss: float | None
    perplexity: float | None = None
    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    seconds: Seconds


class Outcome(Open):
    """How a whole training ended."""

    diverged: bool | None = None
    reason: str | None = None  # what shows it
    final_loss: float | None = None  # mean over the last tenth of the steps


class Text(Open):
    """What the trained model wrote."""

    temperature: Annotated[float, Field(ge=0)]  # 0: always the likeliest token
    prompt: str
    text: str


class Epoch(Open):
    """Passes over the training and the validation data."""

    means: Literal["measured", "extrapolated"] | None = None
    steps: Count | None = None  # training steps of a whole epoch
    measured_steps: Count | None = None
    validation_steps: Whole | None = None  # batches of a whole validation
    measured_validation_steps: Whole | None = None
    epoch_s: list[Seconds] = NONE  # one entry per epoch


class Test(Open):
    """What the trained model makes of the test data."""

    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    loss: float | None = None
    samples: Count | None = None
    trained_steps: Whole | None = None


class Repeat(Open):
    """A further process of a cell: the raw times of one of its points."""

    times: Times


class Point(Open):
    """One shape or setting; a training cell has one."""

    # What was varied, and what follows from it; the workload's `POINT` declares the types.
    params: dict[Name, str | bool | Whole | Annotated[float, Field(ge=0)] | None]
    times: Times
    flops: Annotated[int | float, Field(ge=1)] | None  # of one iteration
    bytes: Count | None  # that must move in one iteration
    memory: Memory
    repeats: list[Repeat] = NONE
    status: Literal["ok", "oom", "skipped", "failed"] = "ok"
    reason: str | None = None
    # overrun: by far more than the budget, before the least number of iterations
    stopped_by: Literal["interval", "budget", "max_iterations", "overrun"] | None = None
    disturbed: str | None = None  # how other processes disturbed an operation, also when retried
    loss: list[float | None] = NONE  # one entry per training step from the first
    draws: bool | None = None  # a step draws random numbers, as dropout does
    steps: Steps | None = None
    operators: Operators | None = None
    energy: Energy | None = None
    forward_only_over_forward: Positive | None = None  # medians, alone over inside split steps
    unsynchronised_steps: Count | None = None  # unsynchronised_step_s has the mean of so many
    result_error: float | None = None  # relative, RMS, of the result against float64
    enqueue_burst: Count | None = None  # launches in a row for `enqueue_s`
    cold: Cold = Cold()
    rotation: Rotation | None = None
    quantities: dict[Name, Figure] = NOTHING  # which the workload declares, beside series of times
    blocked_autorange: Autorange = Autorange()
    curve: Curve | None = None
    evaluations: list[Evaluation] = NONE
    outcome: Outcome = Outcome()
    texts: list[Text] = NONE
    resumed_at: list[Whole] = NONE  # steps from which a killed training went on, in order
    epoch: Epoch = Epoch()
    test: Test = Test()
    calls_per_time: Count | None = None  # in a row, whose mean each entry of `times` is
    gpu: GpuState = GpuState()
    launch_bound: bool | None = None  # a call is little longer than its launch
    burst_mean_s: float | None = None  # of launches in a row, the paper's method
    burst_reason: str | None = None  # why there is none

    @property
    def name(self) -> str:
        """Its parameters as canonical JSON: what tells it from the others of its cell."""
        return point_name(self.params)

    def of_processes(self, name: str) -> list[Series]:
        """The raw times of this name in each process that has any."""
        all_times = (self.times, *(repeat.times for repeat in self.repeats))
        return [times[name] for times in all_times if times.get(name)]

    def series(self, *names: str) -> Series:
        """The first of these times that has any entry."""
        return next((self.times[name] for name in names if self.times.get(name)), [])
