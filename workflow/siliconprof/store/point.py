"""What a point of a record contains, typed: one shape or setting, and its raw times.

A value that a point lacks is None, a part that it lacks has no values, and where it matters whether a
part is there, the part is None. No other key is allowed, but in an `Open` part: what of it no stage
reads stays in the file alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from siliconprof.store.cell import point_name
from siliconprof.store.model import Count, Open, Part

SHORTEST_S = 1e-12  # of a time; a sum of differences of clock readings is a multiple of more
WHOLE = ("unsplit_step_s", "step_s")  # the first of these that a point has is its time
T = TypeVar("T")


def _is_long_enough(seconds: list[float]) -> list[float]:
    least = min(filter(None, seconds), default=1.0)
    if least < SHORTEST_S:
        raise ValueError(
            f"has {least!r}; expected seconds, 0 or at least {SHORTEST_S:g}, a clock's nanosecond "
            "shared by a thousand launches"
        )
    return seconds


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
RawTimes = Annotated[list[Seconds], AfterValidator(_is_long_enough)]  # one entry per iteration
Series = Sequence[float]  # the same, for a reader
Name = Annotated[str, Field(max_length=64)]
Times = dict[Name, RawTimes]
Facts = Annotated[dict[str, Any], or_empty(dict)]  # which no stage takes apart
Bytes = Annotated[dict[str, int], or_empty(dict)]  # part of a memory -> bytes
StoppedBy = Literal["interval", "budget", "max_iterations"]


class Memory(Open):
    """Device memory of a point."""

    device_peak_bytes: Whole | None = None
    device_peak_means: str | None = None  # what counted the peak
    predicted_bytes: Whole | None = None  # by the memory model, of a point of a sweep


class Steps(Part):
    """Every training step in order, on the clock of `samples`; None where the system does not tell."""

    # compile: compiles, or follows one that did; operators: whose operators were watched;
    # free-running: in a run of steps without a wait between them; partial: on the smaller batch that
    # an epoch leaves.
    kind: list[
        Literal["compile", "warm-up", "split", "unsplit", "operators", "free-running", "partial"]
    ]
    started_s: list[float]  # since the sampling began
    minor_faults: list[Whole]  # without disk
    major_faults: list[Whole]  # with disk
    cpu_s: list[Annotated[float, Field(ge=0)]] = NONE  # the measuring thread was on a core
    system_s: list[Annotated[float, Field(ge=0)] | None] = NONE  # of them in the kernel, in ticks
    waiting_s: list[Annotated[float, Field(ge=0)] | None] = NONE  # it waited for a core
    all_threads_cpu_s: list[Annotated[float, Field(ge=0)]] = NONE  # of all threads of the process

    def unsplit(self, values: Sequence[T | None]) -> list[T]:
        """Those of one of these lists that are of unsplit steps and known."""
        pairs = zip(self.kind, values, strict=False)
        return [value for kind, value in pairs if kind == "unsplit" and value is not None]


class Operator(Part):
    """A distinct operator of a training step; `seconds` of all its calls, by step."""

    bytes: Whole  # that one call reads and writes, each operand once
    count: Count  # calls in a step
    flops: Whole | None  # of one call; None where no formula is known
    inputs: Annotated[
        str, Field(max_length=20000)
    ]  # dtype, shape, and strides where not row by row
    kind: Annotated[str, Field(max_length=200)]  # the framework's name of it
    phase: Name
    role: Annotated[
        str, Field(max_length=1000)
    ]  # module whose it is, layers together, or optimizer
    # The cost of timing is taken off, so small ones may be less than 0.
    seconds: list[Annotated[float, Field(ge=-1, le=1e9)]]


class Operators(Part):
    """The operators of a training step in the order in which they first run."""

    rows: list[Operator]
    reason: str | None  # why none is timed
    phases: dict[str, RawTimes] = (
        NOTHING  # of the steps between, where they are not among the times
    )


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
    """Energy of a window of free-running steps."""

    window_s: Annotated[float, Field(ge=SHORTEST_S, le=1e9)] | None = None
    steps: Count | None = None
    reason: str | None = None
    sources: list[EnergySource] = NONE


class Cold(Part):
    """The fresh processes behind a kernel's cold launch, and what precedes it."""

    processes: Count | None = None  # asked for
    failed: list[str] = NONE  # a reason for each that did not come to its end
    reasons: dict[str, str] = NOTHING  # why a time is missing


class Cache(Open):
    """A last-level cache, and who says how large it is."""

    last_level_cache_bytes: Figure = None
    last_level_cache_source: str | None = None


class Rotation(Part):
    """What the repeats of a cold cache go round: copies, one after another."""

    buffers: Annotated[int, Field(ge=2)]
    buffer_bytes: Count
    cache_bytes: Count | None  # None: unknown, then more than any known is assumed
    cache_source: str


class Autorange(Part):
    """The same iteration by torch.utils.benchmark.Timer.blocked_autorange, or why it is not."""

    reason: str | None = None
    min_run_time_s: Annotated[float, Field(ge=SHORTEST_S, le=1e9)] | None = None
    number_per_run: Count | None = None  # iterations in each of its blocks
    times_s: list[Seconds] = NONE  # of one iteration, one entry per block
    shorter_than_one_iteration: bool | None = None  # so nothing was repeated on purpose


class Curve(Part):
    """A whole training, one entry per step in each list; None is NaN or infinite."""

    loss: list[float | None]
    gradient_norm: list[float | None]  # of all gradients together, before clipping
    learning_rate: list[Annotated[float, Field(ge=0)]]


class Evaluation(Part):
    """The loss on held-out data after a number of steps."""

    step: Whole
    loss: float | None
    perplexity: float | None = None
    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    seconds: Seconds


class Outcome(Part):
    """How a whole training ended."""

    diverged: bool | None = None
    reason: str | None = None  # what shows it
    final_loss: float | None = None  # mean over the last tenth of the steps


class Text(Part):
    """What the trained model wrote."""

    temperature: Annotated[float, Field(ge=0)]  # 0: always the likeliest token
    prompt: str
    text: str


class Epoch(Part):
    """Passes over the training and the validation data; each list has one entry per epoch."""

    means: Literal["measured", "extrapolated"] | None = None
    steps: Count | None = None  # training steps of a whole epoch
    measured_steps: Count | None = None
    validation_steps: Whole | None = None  # batches of a whole validation
    measured_validation_steps: Whole | None = None
    train_s: list[Seconds] = NONE
    validation_s: list[Seconds] = NONE
    epoch_s: list[Seconds] = NONE


class Test(Part):
    """What the trained model makes of the test data."""

    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    loss: float | None = None
    samples: Count | None = None
    trained_steps: Whole | None = None


class Repeat(Part):
    """A further process of a cell: the raw times of one of its points."""

    times: Times


class Point(Part):
    """One shape or setting; a training cell has one."""

    params: dict[
        Name,
        Annotated[str, Field(max_length=1000)]
        | bool
        | Whole
        | Annotated[float, Field(ge=0)]
        | None,
    ]  # what was varied, and what follows from it; the workload's `POINT` declares the types
    times: Times
    flops: Annotated[int | float, Field(ge=1)] | None  # of one iteration
    bytes: Count | None  # that must move in one iteration
    memory: Memory
    repeats: list[Repeat] = NONE
    flops_source: str = ""
    status: Literal["ok", "oom", "skipped", "failed"] = "ok"
    reason: str | None = None
    stopped_by: StoppedBy | None = None
    loss: list[float | None] = NONE  # one entry per training step from the first
    steps: Steps | None = None
    operators: Operators | None = None
    energy: Energy | None = None
    forward_only_over_forward: Positive | None = None  # medians, alone over inside split steps
    split_over_unsplit: Positive | None = None  # medians, of split steps over that of whole ones
    free_running_steps: Count | None = None  # free_running_step_s has the mean of so many
    drift: Facts = NOTHING  # medians of the halves of the repeats, their ratio; none of too few
    change_point: Facts = NOTHING  # the likeliest place where their level changes (Pettitt's test)
    attempts: list[Facts] = NONE  # that scattered or drifted, but for the last, which is in `times`
    result_error: float | None = None  # relative, RMS, of the result against float64
    enqueue_burst: Count | None = None  # launches in a row for `enqueue_s`
    means: dict[str, str] = NOTHING  # of a kernel's launch: what its times include
    cold: Cold = Cold()
    rotation: Rotation | None = None
    minor_faults: Whole | None = None  # in warm-up, repeats and burst
    faults: Facts = NOTHING  # minor ones of both passes of first touches, one entry per run
    quantities: dict[Name, Figure] = NOTHING  # which the workload declares, beside series of times
    blocked_autorange: Autorange = Autorange()
    curve: Curve | None = None
    evaluations: list[Evaluation] = NONE
    outcome: Outcome = Outcome()
    texts: list[Text] = NONE
    checkpoints: Facts = NOTHING  # `latest` and `best`
    resumed_at: list[Whole] = NONE  # steps from which a killed training went on, in order
    epoch: Epoch = Epoch()
    test: Test = Test()
    calls_per_time: Count | None = None  # in a row, whose mean each entry of `times` is
    launch_bound: bool | None = None  # a call is little longer than its launch
    burst_mean_s: float | None = None  # of launches in a row, the paper's method
    burst_reason: str | None = None  # why there is none
    burst_count: int | None = None
    burst_warmup: int | None = None

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
