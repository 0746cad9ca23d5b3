"""What a record contains: what is one and what its parts mean, typed, the same for every reader.

A value that a record lacks is None, a part that it lacks has no values, and where it matters whether
a part is there, the part is None. What of a part no stage reads stays in the file alone.
`SCHEMA_VERSION` changes with this file and `point`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import model_validator

from siliconprof.store.cell import Cell
from siliconprof.store.model import Count, Open, Part, Sha256, matches
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

Texts = Annotated[dict[str, str], or_empty(dict)]
Applied = Literal["fits", "offload", "near-capacity"]


class Limit(Open):
    """Whether a capacity was enforced; how, and why not, is in the file alone."""

    enforced: bool | None = None  # False: it is a number for the memory model only


class Scenario(Open):
    """The memory situation, what the memory model says of it, and what was run."""

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
    limit: Annotated[Limit, or_empty(Limit)] = Limit()
    confirmed_peak_bytes: Whole | None = None  # the most that was really held under the limit


class Evidence(Open):
    """What proves a precision; the observed dtypes are in the file alone."""

    product_error: Figure = None  # a product's relative error against float64


class Precision(Open):
    """The one that was proved numerically."""

    effective: str | None
    evidence: Evidence


class Check(Open):
    """A check of the clock or the repeats; its figures and reason are in the file alone."""

    verdict: Literal["ok", "failed", "not checked"] | None = None  # None: not reached


class Probe(Part, extra="allow"):
    """A probe's summary; its numbers are further keys, with their unit at the end."""

    available: bool | None = None
    means: str | None = None
    reasons: Texts = NOTHING
    limits: Annotated[dict[str, Scalar], or_empty(dict)] = NOTHING

    @property
    def figures(self) -> dict[str, Scalar]:
        """Everything in it that is one value."""
        values = {"available": self.available, "means": self.means} | (self.model_extra or {})
        return {name: value for name, value in values.items() if isinstance(value, Scalar)}


class Flag(Open):
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
    kernels: dict[str, str] = NOTHING  # attention, AdamW
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
    packages: Annotated[dict[str, str | None], or_empty(dict)] = NOTHING
    backend: Annotated[BackendFacts, or_empty(BackendFacts)] = BackendFacts()
    declared: Facts = NOTHING  # by the pipeline


class Code(Open):
    """The method code: a hash of each module by its name, and one of all."""

    fingerprint: Sha256
    modules: dict[str, Sha256]


class Record(Part, strict=False):  # `Cell` is a dataclass, made of a mapping
    """What one cell leaves behind, whatever happened to it."""

    schema_version: Literal[6]
    method_version: Literal[2]  # how numbers are made; another method's are never compared
    sha256: Sha256  # of this record's canonical content without this key
    cell: Cell
    emulated: str | None = None  # what plays the device in a test: no measurement
    status: Literal["ok", "oom", "failed", "timeout", "unsupported", "skipped"]
    reason: str | None  # why it is not ok
    # UTC, 1970 to 2199: a clock may be wrong, and the record is as good.
    started_at: Annotated[
        str, matches(r"(19[7-9]\d|2[01]\d\d)-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")
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

    @model_validator(mode="after")
    def _has_points(self) -> Record:
        if self.status == "ok" and not self.points:
            raise ValueError("its status is ok, and there is no point")
        return self

    @property
    def codes(self) -> list[str]:
        """Of its flags, in their order, each once."""
        return list(dict.fromkeys(flag.code for flag in self.flags))

    def probed(self, probe: str, name: str) -> float | None:
        """A number in a probe's summary; None where it has none."""
        number = self.probes.get(probe, Probe()).figures.get(name)
        return number if isinstance(number, int | float) else None
