"""The typed content of a point: one shape or setting, and its raw times.

Missing values and parts, and keys that no stage reads: see `contents`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from siliconprof.parameters import Count, Whole
from siliconprof.store.cell import point_name
from siliconprof.store.model import Columns, Open, key, required

WHOLE = ("whole_step_s", "step_s")  # the first of these that a point has is its time


def or_empty(empty: Callable[[], Any]) -> Any:
    """Metadata of a part for which null means that it has no values."""
    return BeforeValidator(lambda value: empty() if value is None else value)


# Empty values made anew: pydantic copies a default that may change, which takes much longer.
NONE: Any = Field(default_factory=list)
NO_FACTS: Any = Field(default_factory=dict)
Scalar = str | int | float | bool | None
Figure = int | float | None
Share = Annotated[float, Field(ge=0, le=1)]
Flops = Annotated[int | float, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
RawTimes = list[Seconds]  # one entry per iteration
Series = Sequence[float]  # the same, for a reader
Name = Annotated[str, Field(max_length=64)]
Times = dict[Name, RawTimes]
Facts = Annotated[dict[str, Any], or_empty(dict)]  # no stage reads single entries
Bytes = Annotated[dict[str, int], or_empty(dict)]  # part of a memory -> bytes


class Memory(Open):
    """Device memory of a point, predicted where it is of a sweep."""

    device_peak_bytes: Whole | None = key(None, "most memory of the device by its allocator")
    device_peak_means: str | None = key(None, "what counted it")
    predicted_bytes: Whole | None = key(None, "memory by the memory model", "predicted_peak_bytes")


class GpuState(Open):
    """How long an operation was measured, and how its GPU was just afterwards."""

    measured_s: float = required(
        "how long an operation ran on a GPU while it was measured, warm-up included"
    )
    sm_clock_mhz: float | None = key(None, "clock of the GPU's cores just after an operation")
    power_w: float | None = key(None, "power of the GPU at that moment")
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
    ] = required("compile, warm-up, split, whole, operators, unsynchronised or partial")
    started_s: list[float] = required("start on the clock of samples.csv")
    minor_faults: list[Whole] = required("page faults without disk")
    major_faults: list[Whole] = required("page faults with disk")
    cpu_s: list[Annotated[float, Field(ge=0)]] = NONE  # the measuring thread was on a core
    waiting_s: list[Annotated[float, Field(ge=0)] | None] = NONE  # it waited for a core
    all_threads_cpu_s: list[Annotated[float, Field(ge=0)]] = NONE  # of all threads of the process


class Operator(Open):
    """A distinct operator of a training step; `seconds` of all its calls, by step."""

    bytes: Whole = required("that one call reads and writes")  # each operand once
    count: Count = required("calls in a step")
    flops: Whole | None = required("of one call; empty where no formula is known")
    inputs: str = required("dtype, shape, and strides where not row by row, of each operand")
    kind: str = required("the framework's name of the operator; empty for the framework itself")
    phase: Name = required("phase of the step, such as forward_s")
    role: str = required("module whose it is, layers taken together, or optimizer")
    seconds: list[Annotated[float, Field(ge=-1, le=1e9)]] = required(
        "of all its calls in a step, timed inside of steps: median; where the cost of timing is "
        "taken off, small ones may be less than 0"
    )


class Operators(Open):
    """The operators of a training step in the order in which they first run."""

    rows: list[Operator]
    reason: str | None = required("why operators are not timed")
    # Of the steps between, where they are not among the times: split ones, and whole ones.
    phases: dict[str, RawTimes] = NO_FACTS
    whole_step_s: RawTimes = NONE


class EnergySource(Open):
    """Energy of a window by one source, or why there is none."""

    name: str | None = key(None, "the source of energy")
    scope: str | None = key(None, "what it counts: gpu, soc, cpu-package or wall")
    quality: str | None = key(None, "counter, model or integral of a power")
    energy_j: Figure = key(None, "energy of the window")
    updates: Whole | None = key(None, "times that the counter changed in it")
    energy_per_step_j: Figure = key(None, "energy of a step")
    energy_per_sample_j: Figure = key(None, "energy of a sample")
    idle_before_w: Figure = key(None, "power before the window with the context open")
    idle_after_w: Figure = key(None, "power after it")
    net_energy_per_step_j: Figure = key(None, "energy of a step above idle")
    reason: str | None = key(None, "why there is no number")


class Energy(Open):
    """Energy of a window of unsynchronised steps."""

    window_s: Positive | None = key(None, "length of the window")
    steps: Count | None = key(None, "steps in the window", "energy_steps")
    reason: str | None = None
    sources: list[EnergySource] = NONE


class Cold(Open):
    """The fresh processes behind a kernel's cold launch."""

    reasons: dict[str, str] = NO_FACTS  # why a time is missing


class Cache(Open):
    """A last-level cache."""

    last_level_cache_bytes: Figure = None


class Rotation(Open):
    """What the repeats of a cold cache go round: copies, one after another."""

    cache_bytes: Count | None  # None: unknown, then more than any known is assumed


class Autorange(Open):
    """The same iteration by torch.utils.benchmark.Timer.blocked_autorange, or why it is not."""

    min_run_time_s: Positive | None = key(None, "what it was asked to spend at least")
    reason: str | None = key(None, "why there is no time by torch's own timer")
    times_s: list[Seconds] = NONE  # of one iteration, one entry per block


class Curve(Open):
    """A whole training, one entry per step in each list; None is NaN or infinite."""

    loss: list[float | None] = required("loss of the step")
    gradient_norm: list[float | None] = required("norm of all gradients before clipping")
    learning_rate: list[Annotated[float, Field(ge=0)]] = required("learning rate of the step")


class Evaluation(Open):
    """The loss on held-out data after a number of steps."""

    step: Whole = required("training steps done before it")
    loss: float | None = required("mean loss on held-out data")
    perplexity: float | None = key(None, "exponential of that loss")
    accuracy: Share | None = key(None, "share of held-out data that the model gets right")
    seconds: Seconds = required("time that the evaluation took")


class Outcome(Open):
    """How a whole training ended."""

    diverged: bool | None = key(None, "whether a whole training diverged")
    reason: str | None = key(None, "what shows that it diverged", "outcome_reason")
    final_loss: float | None = key(None, "mean loss over the last tenth of the steps")


class Text(Open):
    """What the trained model wrote."""

    temperature: Annotated[float, Field(ge=0)] = required("0 is always the likeliest token")
    prompt: str = required("what was given")
    text: str = required("what the model wrote")


class Epoch(Open):
    """Passes over the training and the validation data."""

    means: Literal["measured", "extrapolated"] | None = key(None, "measured or extrapolated")
    steps: Count | None = key(None, "training steps of a whole epoch")
    measured_steps: Count | None = key(None, "of these measured")
    validation_steps: Whole | None = key(None, "batches of a whole validation")
    measured_validation_steps: Whole | None = key(None, "of these measured")
    epoch_s: list[Seconds] = NONE  # one entry per epoch


class Test(Open):
    """What the trained model makes of the test data."""

    accuracy: Share | None = key(None, "share of the test data that the trained model gets right")
    loss: float | None = key(None, "loss on the test data")
    samples: Count | None = key(None, "samples of the test data")
    trained_steps: Whole | None = key(None, "training steps done before the test")


class OfProcess(Open):
    """The part of a point that each process of a cell measures."""

    times: Times
    steps: Steps | None = None
    operators: Operators | None = None

    def series(self, *names: str) -> Series:
        """The first of these times that has any entry."""
        return next((self.times[name] for name in names if self.times.get(name)), [])


class Point(OfProcess):
    """One shape or setting; a training cell has one. Fields beyond `OfProcess` are of the first process."""

    # What was varied, and what follows from it; the workload's `POINT` declares the types.
    params: dict[Name, str | bool | Whole | Annotated[float, Field(ge=0)] | None]
    memory: Annotated[Memory, Columns("{}")]
    flops: Flops | None = required("floating-point operations of one iteration")
    bytes: Count | None = required("bytes that must move at least in one iteration")
    result_error: float | None = key(None, "relative error of the result against float64")  # RMS
    stopped_by: Literal["interval", "budget", "max_iterations", "overrun"] | None = key(
        None,
        "what ended the repeats: interval, budget, max_iterations, or overrun: ten budgets, before "
        "the least number",
    )
    unsynchronised_steps: Count | None = key(  # unsynchronised_step_s has the mean of so many
        None, "unsynchronised steps in a run, without a wait between them"
    )
    calls_per_time: Count | None = key(None, "calls in a row whose mean each time is")
    forward_only_over_forward: Positive | None = key(
        None, "forward passes by themselves over those inside split steps"
    )
    launch_bound: bool | None = key(None, "whether a call is little longer than its launch")
    burst_mean_s: float | None = key(None, "mean of launches in a row")  # the paper's method
    burst_reason: str | None = key(None, "why there is no mean of launches in a row")
    enqueue_burst: Count | None = key(None, "launches in a row for the time to enqueue one")
    gpu: Annotated[GpuState | None, Columns("gpu_{}")] = None
    draws: Annotated[bool, or_empty(bool)] = key(
        False,
        "whether a step draws random numbers, as dropout does, so that each framework has losses of "
        "its own",
    )
    status: Literal["ok", "oom", "skipped", "failed"] = key(
        "ok", "what became of a point of a sweep", "point_status"
    )
    reason: str | None = key(None, "why its status is not ok", "point_reason")
    disturbed: str | None = key(  # also when it was tried again
        None,
        "how other processes disturbed an operation: then it is in no ratio, ceiling or gap",
        "point_disturbed",
    )
    blocked_autorange: Annotated[Autorange, Columns("autorange_{}")] = Autorange()
    epoch: Annotated[Epoch, Columns("epoch_{}")] = Epoch()
    test: Annotated[Test, Columns("test_{}")] = Test()
    outcome: Annotated[Outcome, Columns("{}")] = Outcome()
    repeats: list[OfProcess] = NONE  # of the further processes
    loss: list[float | None] = NONE  # one entry per training step from the first
    energy: Energy | None = None
    cold: Cold = Cold()
    rotation: Rotation | None = None
    quantities: dict[Name, Figure] = NO_FACTS  # which the workload declares, beside series of times
    curve: Curve | None = None
    evaluations: list[Evaluation] = NONE
    texts: list[Text] = NONE
    resumed_at: list[Whole] = NONE  # steps from which a killed training went on, in order

    @property
    def name(self) -> str:
        """Its parameters as canonical JSON, unique in its cell."""
        return point_name(self.params)

    @property
    def processes(self) -> list[OfProcess]:
        """All processes, the first one first."""
        return [self, *self.repeats]

    def of_processes(self, name: str) -> list[Series]:
        """The raw times of this name in each process that has any."""
        return [times for process in self.processes if (times := process.series(name))]
