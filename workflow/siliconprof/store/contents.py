"""What a record contains, typed: made once, when its file is read, and the same for every reader.

`workflow/schemas/record.schema.yaml` decides which documents are records and says what each value
means; nothing is checked here, and the names are the schema's (a test holds that). What no stage
reads stays in the file alone. A value that a record lacks is None, a part that it lacks has no
values, and where it matters whether a part is there, the part is None.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache, partial
from typing import Any, TypeVar

from siliconprof.store.cell import Cell, canonical_json

Scalar = str | int | float | bool | None
Series = Sequence[float]  # raw times, one entry per iteration, in seconds
WORDS = ("note",)  # parameters of a point that only describe it: not part of its name
WHOLE = ("unsplit_step_s", "step_s")  # the first of these that a point has is its time
Bytes = Mapping[str, int]  # part of a memory -> bytes
T = TypeVar("T")


def _empty() -> Any:
    return field(default_factory=dict)


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
class Part:
    """A part of a document: its subclasses are dataclasses, frozen, made by keywords."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


# -- a point -------------------------------------------------------------------------------------


def point_name(params: Mapping[str, Scalar]) -> str:
    """Parameters as canonical JSON: what tells a point from the others of its cell."""
    return canonical_json({k: v for k, v in params.items() if k not in WORDS})


class Memory(Part):
    """Device memory of a point."""

    device_peak_bytes: int | None = None
    device_peak_means: str | None = None
    predicted_bytes: int | None = None


class Steps(Part):
    """Every training step in order; the lists of what the system does not tell are empty."""

    kind: Sequence[str]
    started_s: Sequence[float]
    minor_faults: Sequence[int]
    major_faults: Sequence[int]
    cpu_s: Sequence[float | None] = ()
    system_s: Sequence[float | None] = ()
    waiting_s: Sequence[float | None] = ()
    all_threads_cpu_s: Sequence[float | None] = ()

    def unsplit(self, values: Sequence[T | None]) -> list[T]:
        """Those of one of these lists that are of unsplit steps and known."""
        pairs = zip(self.kind, values, strict=False)
        return [value for kind, value in pairs if kind == "unsplit" and value is not None]


class Operator(Part):
    """A distinct operator of a training step; `seconds` of all its calls, by step."""

    bytes: int
    count: int
    flops: int | None = None
    inputs: str
    kind: str
    phase: str
    role: str
    seconds: Series


class Operators(Part):
    """The operators of a training step, and the phases of the steps between."""

    rows: Sequence[Operator]
    reason: str | None = None
    phases: Mapping[str, Series] = _empty()


class EnergySource(Part):
    """Energy of a window by one source, or why there is none."""

    name: str | None = None
    scope: str | None = None
    quality: str | None = None
    energy_j: float | None = None
    updates: float | None = None
    energy_per_step_j: float | None = None
    energy_per_sample_j: float | None = None
    idle_before_w: float | None = None
    idle_after_w: float | None = None
    net_energy_per_step_j: float | None = None
    reason: str | None = None


class Energy(Part):
    """Energy of a window of free-running steps."""

    window_s: float | None = None
    steps: int | None = None
    reason: str | None = None
    sources: Sequence[EnergySource] = ()


class Cold(Part):
    """The fresh processes behind a kernel's cold launch."""

    processes: int | None = None
    failed: Sequence[str] = ()
    reasons: Mapping[str, str] = _empty()


class Cache(Part):
    """A last-level cache, and who says how large it is."""

    last_level_cache_bytes: float | None = None
    last_level_cache_source: str | None = None


class Rotation(Part):
    """What the repeats of a cold cache go round."""

    cache_bytes: int | None = None
    cache_source: str | None = None


class Autorange(Part):
    """torch's own timing of the same iteration."""

    reason: str | None = None
    min_run_time_s: float | None = None
    number_per_run: int | None = None
    times_s: Series = ()
    shorter_than_one_iteration: bool | None = None


class Curve(Part):
    """A whole training, one entry per step in each list."""

    loss: Sequence[float | None]
    gradient_norm: Sequence[float | None]
    learning_rate: Sequence[float]


class Evaluation(Part):
    """The loss on held-out data after a number of steps."""

    step: int
    loss: float | None = None
    perplexity: float | None = None
    accuracy: float | None = None
    seconds: float


class Outcome(Part):
    """How a whole training ended."""

    diverged: bool | None = None
    reason: str | None = None
    final_loss: float | None = None


class Text(Part):
    """What the trained model wrote."""

    temperature: float
    prompt: str
    text: str


class Checkpoint(Part):
    """A checkpoint of a whole training."""

    step: int | None = None
    bytes: int | None = None


class Epoch(Part):
    """Passes over the training and the validation data, measured or extrapolated."""

    means: str | None = None
    steps: int | None = None
    measured_steps: int | None = None
    validation_steps: int | None = None
    measured_validation_steps: int | None = None
    train_s: Series = ()
    validation_s: Series = ()
    epoch_s: Series = ()


class Test(Part):
    """What the trained model makes of the test data."""

    accuracy: float | None = None
    loss: float | None = None
    samples: int | None = None
    trained_steps: int | None = None


class Repeat(Part):
    """A further process of a cell: the raw times of one of its points."""

    times: Mapping[str, Series]


class Point(Part):
    """One shape or setting; a training cell has one."""

    params: Mapping[str, Scalar]
    times: Mapping[str, Series]
    memory: Memory
    repeats: Sequence[Repeat] = ()
    flops: float | None = None  # of one iteration
    bytes: int | None = None  # that must move in one iteration
    status: str = "ok"
    reason: str | None = None
    stopped_by: str | None = None
    loss: Sequence[float | None] = ()
    steps: Steps | None = None
    operators: Operators | None = None
    energy: Energy | None = None
    forward_only_over_forward: float | None = None
    free_running_steps: int | None = None
    result_error: float | None = None
    enqueue_burst: int | None = None
    means: Mapping[str, str] = _empty()
    cold: Cold = Cold()
    rotation: Rotation | None = None
    quantities: Mapping[str, float | None] = _empty()
    blocked_autorange: Autorange = Autorange()
    curve: Curve | None = None
    evaluations: Sequence[Evaluation] = ()
    outcome: Outcome = Outcome()
    texts: Sequence[Text] = ()
    checkpoints: Mapping[str, Checkpoint] = _empty()  # `latest` and `best`
    resumed_at: Sequence[int] = ()
    epoch: Epoch = Epoch()
    test: Test = Test()
    calls_per_time: int | None = None
    launch_bound: bool | None = None
    burst_mean_s: float | None = None
    burst_reason: str | None = None

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
        return next((self.times[name] for name in names if self.times.get(name)), ())


# -- a record ------------------------------------------------------------------------------------


class Limit(Part):
    """How a capacity was enforced."""

    enforced: bool | None = None
    how: str | None = None
    reason: str | None = None


class Scenario(Part):
    """The memory situation, what the memory model says of it, and what was run."""

    applied: str
    derived: str | None = None
    batch_size: int | None = None
    batch_size_found: bool | None = None
    predicted_bytes: int | None = None
    predicted_parts_bytes: Bytes = _empty()
    offloaded_parts_bytes: Bytes = _empty()
    device_memory_bytes: int | None = None
    capacity_bytes: int | None = None
    capacity_source: str | None = None
    limit: Limit = Limit()
    confirmed_peak_bytes: int | None = None


class Evidence(Part):
    """What proves a precision."""

    product_error: float | None = None
    master_weights: str | None = None
    activations: str | None = None


class Precision(Part):
    """The one that was proved numerically."""

    effective: str | None = None
    evidence: Evidence = Evidence()


class KernelCheck(Part):
    """Twice the work of one kernel."""

    kernel: str
    ratio: float | None = None


class Check(Part):
    """One check of the clock or of the repeats; None throughout where it was not reached."""

    verdict: str | None = None
    reason: str | None = None
    ratio: float | None = None
    resolution_s: float | None = None
    reading_cost_s: float | None = None
    asked_s: float | None = None
    measured_s: float | None = None
    worst_ratio: float | None = None
    given_up: float | None = None
    waited_shares: Mapping[str, float] = _empty()
    kernels: Sequence[KernelCheck] = ()


class Probe(Part):
    """A probe's summary.

    Args:
        figures: everything in it that is one value, `available` and `means` too.
    """

    figures: Mapping[str, Scalar] = _empty()
    reasons: Mapping[str, str] = _empty()
    limits: Mapping[str, Scalar] = _empty()

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> Probe:
        """The summary in a document."""
        figures = {name: value for name, value in summary.items() if isinstance(value, Scalar)}
        reasons, limits = summary.get("reasons") or {}, summary.get("limits") or {}
        return cls(figures=figures, reasons=reasons, limits=limits)


class Flag(Part):
    """What to doubt of a record."""

    code: str
    detail: str


class Dataset(Part):
    """What was read."""

    name: str | None = None
    data_sha256: str | None = None
    synthetic: bool | None = None


class Weights(Part):
    """The pretrained weights that a training began with: hashes of a folder's files."""

    weights_sha256: Mapping[str, str] = _empty()
    weights_revision: str | None = None  # of the hub's


class Method(Part):
    """What of the method is shown or asked again; the file has more."""

    offload: Mapping[str, Scalar] = _empty()
    kernels: Mapping[str, str] = _empty()
    bandwidth: Cache = Cache()
    weights: Weights | None = None
    instead_of: str | None = None  # the SHA-256 of the record that was disturbed


class BackendFacts(Part):
    """What the backend says of itself."""

    framework_version: str | None = None
    device_name: str | None = None
    blas: str | None = None


class Environment(Part):
    """System and versions."""

    system: str | None = None
    python: str | None = None
    git_commit: str | None = None
    node: str | None = None  # an id of the computer
    power_source: str | None = None
    packages: Mapping[str, str | None] = _empty()
    backend: BackendFacts = BackendFacts()
    scheduler_job: Mapping[str, Scalar] = _empty()
    declared: Mapping[str, Any] = _empty()  # by the pipeline


class Code(Part):
    """The method code."""

    fingerprint: str
    modules: Mapping[str, str] = _empty()


class Record(Part):
    """What one cell leaves behind, whatever happened to it."""

    cell: Cell
    status: str
    started_at: str
    scenario: Scenario
    precision: Precision
    points: Sequence[Point]
    samples: Sequence[Mapping[str, float | None]]
    probes: Mapping[str, Probe]
    flags: Sequence[Flag]
    environment: Environment
    code: Code
    accounting: Mapping[str, float | None]
    sha256: str
    schema_version: int
    method_version: int
    reason: str | None = None
    dataset: Dataset = Dataset()
    method: Method = Method()
    checks: Mapping[str, Check] = _empty()

    @property
    def codes(self) -> list[str]:
        """Of its flags, in their order, each once."""
        return list(dict.fromkeys(flag.code for flag in self.flags))

    def probed(self, probe: str, name: str) -> float | None:
        """A number in a probe's summary; None where it has none."""
        number = self.probes.get(probe, Probe()).figures.get(name)
        return number if isinstance(number, int | float) else None


# -- from and to plain values --------------------------------------------------------------------


def made(kind: Callable[..., T], document: Mapping[str, Any]) -> T:
    """The value of a type that a document holds.

    Raises:
        TypeError, AttributeError: the document is none of it, which its schema would have said.
    """
    values = {}
    for name, required, make in _makers(kind):
        value = document.get(name)
        if value is not None:
            values[name] = make(value) if make else value
        elif required and name in document:
            values[name] = None
    return kind(**values)


@cache
def _makers(kind: Any) -> Collection[tuple[str, bool, Callable[[Any], Any] | None]]:
    """(field, whether it has no default, what makes its value; None: it stays as it is)."""
    hints = typing.get_type_hints(kind)
    return [
        (one.name, one.default is one.default_factory is MISSING, _maker(hints[one.name]))
        for one in fields(kind)
    ]


def _maker(hint: Any) -> Callable[[Any], Any] | None:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if is_dataclass(hint):
        return getattr(hint, "of", None) or partial(made, typing.cast("type", hint))
    makers = [maker for one in inner if (maker := _maker(one))]
    if not makers:
        return None
    (make,) = makers
    if origin is types.UnionType:
        return make
    if issubclass(origin, Mapping):
        return lambda value: {key: make(entry) for key, entry in value.items()}
    return lambda value: [make(entry) for entry in value]


def columns(value: Any, prefix: str = "", without: Collection[str] = ()) -> dict[str, Any]:
    """The fields of one of these as columns of a table; those within are not taken apart."""
    names = [one.name for one in fields(value) if one.name not in without]
    return {prefix + name: getattr(value, name) for name in names}
