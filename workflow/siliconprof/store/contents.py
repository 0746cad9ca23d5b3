"""What a record contains: what is one and what its parts mean, typed, the same for every reader.

A value that a record lacks is None, a part that it lacks has no values, and where it matters whether
a part is there, the part is None. No other key is allowed, but in an `Open` part, where backends and
probes add what they know. `SCHEMA_VERSION` changes with this file and `point`.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from siliconprof.store.cell import AskedPrecision, AskedScenario, Cell
from siliconprof.store.model import Count, Label, Open, Part, Sha256, matches
from siliconprof.store.point import (
    NOTHING,
    Bytes,
    Cache,
    Facts,
    Figure,
    Name,
    Point,
    Scalar,
    Whole,
    or_empty,
)


def _is_a_time(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"is {text!r}; expected a date-time that exists") from None
    return text


Texts = Annotated[dict[str, str], or_empty(dict)]
Applied = Literal["fits", "offload", "near-capacity"]


class Usable(Part):
    """What a training may use of a device that cannot give all its memory."""

    bytes: Count
    source: str


class _CellPart(Part):
    """A `Cell` as the file has it; that class says what each key is."""

    host: Label
    device: Label
    backend: Label
    workload: Label
    scenario: AskedScenario
    precision: AskedPrecision
    module: Label
    trainer: Label | None
    device_kind: Literal["cpu", "gpu"]
    device_index: Whole
    device_memory_bytes: Whole | None
    threads: Count
    seed: int
    dataset: Annotated[str, Field(max_length=1000)] | None
    parameters: dict[str, Any]
    timing: dict[str, Any]
    device_usable: Usable | None = None
    device_capability: str | None = None


if TYPE_CHECKING:
    _Cell = Cell
else:
    _Cell = Annotated[_CellPart, AfterValidator(lambda part: Cell(**part.model_dump()))]


class Limit(Open):
    """How a capacity was enforced."""

    enforced: bool | None = None  # False: it is a number for the memory model only
    how: str | None = None
    reason: str | None = None  # why it is not enforced


class Scenario(Part):
    """The memory situation, what the memory model says of it, and what was run."""

    requested: AskedScenario
    derived: Applied | None  # None: the model or the capacity is unknown
    applied: Applied  # what was run, or would have been
    batch_size: Count | None = None
    batch_size_found: bool | None = None  # by the memory model (`batch_size: auto`)
    predicted_bytes: int | None  # most memory of one training step without offloading
    predicted_parts_bytes: Bytes  # at the step's largest moment
    offloaded_parts_bytes: Bytes = NOTHING  # predicted on the device where offload is applied
    device_memory_bytes: int | None
    capacity_bytes: Count | None  # what the cell may use
    capacity_source: str
    share: Annotated[float, Field(ge=0)] | None = None  # predicted over capacity
    reason: str | None = None  # why it was not run, by the memory model
    limit: Annotated[Limit, or_empty(Limit)] = Limit()
    confirmed_peak_bytes: Whole | None = None  # the most that was really held under the limit
    confirmed_share: Annotated[float, Field(ge=0)] | None = None  # that over the capacity
    confirmed_by: str | None = None  # what counted it


class Evidence(Open):
    """What proves a precision: a product's relative error against float64, and observed dtypes."""

    product_error: Figure = None
    master_weights: str | None = None
    activations: str | None = None


class Precision(Part):
    """The one that was asked for, and the one that was proved numerically."""

    requested: AskedPrecision
    effective: str | None
    evidence: Evidence


class Check(Open):
    """One check of the clock or of the repeats, whose figures are in the file alone; None: not reached."""

    verdict: Literal["ok", "failed", "not checked"] | None = None
    reason: str | None = None


class Probe(Part, extra="allow"):
    """A probe's summary; its numbers are further keys, with their unit at the end."""

    available: bool | None = None
    means: str | None = None
    reasons: Texts = NOTHING
    limits: Annotated[dict[str, Scalar], or_empty(dict)] = NOTHING

    @model_validator(mode="after")
    def _has_numbers(self) -> Probe:
        units = ("_bytes", "_faults", "_cores", "_s", "_w", "_j", "_mhz")
        for name, value in (self.model_extra or {}).items():
            of_number = name.endswith(units) or name in ("samples", "share_of_wall")
            if of_number and (isinstance(value, bool) or not isinstance(value, Figure)):
                raise ValueError(f"{name} is {value!r:.60}; expected number or null")
        return self

    @property
    def figures(self) -> dict[str, Scalar]:
        """Everything in it that is one value."""
        values = {"available": self.available, "means": self.means} | (self.model_extra or {})
        return {name: value for name, value in values.items() if isinstance(value, Scalar)}


class Flag(Part):
    """What to doubt of a record."""

    code: Name
    detail: str


class Dataset(Open):
    """What was read; losses are compared between equal checksums only."""

    name: Name | None = None
    data_sha256: Sha256 | None = None  # of the prepared arrays
    synthetic: bool | None = None  # generated, and no record of the world


class Weights(Open):
    """The pretrained weights that a training began with: hashes of a folder's files."""

    weights_sha256: Texts = NOTHING
    weights_revision: str | None = None  # of the hub's


class Method(Open):
    """What of the method is shown or asked again; the file has more."""

    offload: Annotated[dict[str, Any], or_empty(dict)] = NOTHING
    kernels: dict[str, Annotated[str, Field(max_length=200)]] = NOTHING  # attention, AdamW
    bandwidth: Annotated[Cache, or_empty(Cache)] = Cache()
    weights: Weights | None = None
    instead_of: Sha256 | None = None  # the record of this cell that other processes disturbed


class BackendFacts(Open):
    """What the backend says of itself."""

    framework_version: str | None = None
    device_name: str | None = None
    blas: str | None = None


class Environment(Open):
    """Host, system and versions, and what the pipeline declared."""

    system: str | None = None
    python: str | None = None
    git_commit: str | None = None
    git_commit_reason: str | None = None  # why there is none
    node: str | None = None  # an id of the computer
    power_source: str | None = None
    packages: Annotated[dict[str, str | None], or_empty(dict)] = NOTHING
    backend: Annotated[BackendFacts, or_empty(BackendFacts)] = BackendFacts()
    declared: Facts = NOTHING  # by the pipeline


class Code(Part):
    """The method code: a hash of each module by its name, and one of all."""

    fingerprint: Sha256
    modules: dict[str, Sha256]


class Record(Part):
    """What one cell leaves behind, whatever happened to it."""

    schema_version: Literal[6]
    method_version: Literal[2]  # how numbers are made; another method's are never compared
    sha256: Sha256  # of this record's canonical content without this key
    cell: _Cell
    emulated: str | None = None  # what plays the device in a test: no measurement
    status: Literal["ok", "oom", "failed", "timeout", "unsupported", "skipped"]
    reason: str | None  # why it is not ok
    # UTC, 1970 to 2199: a clock may be wrong, and the record is as good.
    started_at: Annotated[
        str,
        matches(r"(19[7-9]\d|2[01]\d\d)-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00"),
        AfterValidator(_is_a_time),
    ]
    scenario: Scenario
    precision: Precision
    checks: dict[str, Check] = NOTHING  # before the first measurement and after it
    points: list[Point]  # one per shape or setting; a training cell has one
    samples: list[dict[str, Figure]]  # of probes over time, about 4 Hz, each with its `t_s`
    probes: dict[Name, Probe]
    flags: list[Flag]
    dataset: Annotated[Dataset, or_empty(Dataset)]
    method: Method
    environment: Environment
    code: Code
    modules_loaded: list[str]  # of the package, by the measuring process
    progress: Facts  # the last sign of life of the child
    accounting: dict[Name, Figure]  # where the wall clock went, seconds

    @property
    def codes(self) -> list[str]:
        """Of its flags, in their order, each once."""
        return list(dict.fromkeys(flag.code for flag in self.flags))

    def probed(self, probe: str, name: str) -> float | None:
        """A number in a probe's summary; None where it has none."""
        number = self.probes.get(probe, Probe()).figures.get(name)
        return number if isinstance(number, int | float) else None


def columns(value: Part, prefix: str = "", without: Collection[str] = ()) -> dict[str, Any]:
    """The fields of one of these as columns of a table; those within are not taken apart."""
    return {prefix + name: field for name, field in value if name not in without}
