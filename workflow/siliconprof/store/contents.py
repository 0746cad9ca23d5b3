"""The typed content of a record, the same for every reader.

A missing value is None. A missing part is one without values, or None where it matters whether it is
there. Keys that no stage reads are not declared and stay in the file alone. `RECORD_SCHEMA_VERSION`
of `record` changes with this file and `point`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import model_validator

from siliconprof.parameters import Count
from siliconprof.store.cell import Cell
from siliconprof.store.model import Columns, Open, Part, Sha256, key, matches, required
from siliconprof.store.point import (
    NO_FACTS,
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
Verdict = Literal["ok", "failed", "not checked"]


class Limit(Open):
    """Whether a capacity was enforced; how, and why not, is in the file alone."""

    enforced: bool | None = key(  # False: it is a number for the memory model only
        None, "whether the capacity was enforced; empty where nothing asked for it"
    )


class Parts(Open):
    """Bytes of a training step's memory at its largest moment."""

    weights: int | None = key(None, "of it the weights")
    gradients: int | None = key(None, "of it the gradients")
    optimizer: int | None = key(None, "of it the state of the optimizer")
    activations: int | None = key(None, "of it the activations")
    temporary: int | None = key(None, "of it what lives for a moment")


MEMORY_PARTS = tuple(Parts.model_fields)


class Scenario(Open):
    """The memory situation, what the memory model says of it, and what was run."""

    derived: Applied | None = required(  # None: the model or the capacity is unknown
        "the memory situation by the memory model", "scenario_derived"
    )
    applied: Applied = required("the memory situation that was run", "scenario_applied")
    predicted_bytes: int | None = required(
        "most memory of one step without offloading by the memory model", "predicted_memory_bytes"
    )
    predicted_parts_bytes: Annotated[Parts, or_empty(Parts), Columns("predicted_{}_bytes")]
    device_memory_bytes: int | None = required("memory of the device")
    capacity_bytes: Count | None = required("what the cell may use")
    capacity_source: str = required("where the capacity is from")
    batch_size: Count | None = key(None, "samples per step; empty for what is no training")
    batch_size_found: bool | None = key(None, "whether the memory model found the batch size")
    offloaded_parts_bytes: Bytes = NO_FACTS  # predicted on the device where offload is applied
    limit: Annotated[Limit, or_empty(Limit), Columns("limit_{}")] = Limit()
    confirmed_peak_bytes: Whole | None = key(None, "the most that was really held under the limit")


class Evidence(Open):
    """What proves a precision; the observed dtypes are in the file alone."""

    product_error: Figure = key(None, "relative error of a product against float64")


class Precision(Open):
    """The precision that was proved numerically."""

    effective: str | None = required(
        "the precision that was proved numerically", "effective_precision"
    )
    evidence: Annotated[Evidence, Columns("{}")]


class Check(Open):
    """A check of the clock or the repeats; its figures and reason are in the file alone."""

    verdict: Verdict | None = key(None, "verdict: ok, failed or not checked", "check")


class Checks(Open):
    """The checks of a cell before and after its measurements, in the order of their columns."""

    clock: Annotated[Check, Columns("clock_{}")] = Check()
    sleep: Annotated[Check, Columns("sleep_{}")] = Check()
    twice_the_work: Annotated[Check, Columns("twice_the_work_{}")] = Check()
    synchronisation: Annotated[Check, Columns("synchronisation_{}")] = Check()
    marks: Annotated[Check, Columns("marks_{}")] = Check()
    precision: Annotated[Check, Columns("precision_{}")] = Check()
    drift: Annotated[Check, Columns("drift_{}")] = Check()
    work: Annotated[Check, Columns("work_{}")] = Check()
    trained: Annotated[Check, Columns("trained_{}")] = Check()


class Probe(Part, extra="allow"):
    """A probe's summary; its numbers are further keys, with their unit at the end."""

    available: bool | None = key(None, "whether it could read anything")
    means: str | None = key(None, "how it reads or why it cannot")
    reasons: Texts = NO_FACTS
    limits: Annotated[dict[str, Scalar], or_empty(dict)] = NO_FACTS

    @property
    def figures(self) -> dict[str, Scalar]:
        """All entries that are single values."""
        values = {"available": self.available, "means": self.means} | (self.model_extra or {})
        return {name: value for name, value in values.items() if isinstance(value, Scalar)}


class Flag(Open):
    """A reason to doubt a record."""

    code: Name
    detail: str


class Dataset(Open):
    """What was read; losses are compared between equal checksums only."""

    name: Name | None = key(None, "name of the prepared data", "dataset")
    data_sha256: Sha256 | None = key(None, "hash of the prepared data")
    synthetic: bool | None = key(None, "whether the data are generated", "data_synthetic")


class Weights(Open):
    """The pretrained weights that a training began with: hashes of a folder's files."""

    weights_sha256: Texts = NO_FACTS
    weights_revision: str | None = None  # of the hub's


class Method(Open):
    """The parts of the method that a stage reads; the file has more."""

    offload: Annotated[dict[str, Any], or_empty(dict)] = NO_FACTS
    kernels: dict[str, str] = NO_FACTS  # attention, AdamW
    bandwidth: Annotated[Cache, or_empty(Cache)] = Cache()
    weights: Weights | None = None
    instead_of: Sha256 | None = None  # the record of this cell that other processes disturbed


class BackendFacts(Open):
    """What the backend reports about itself."""

    framework_version: str | None = key(None, "version of the framework")
    device_name: str | None = key(None, "name of the device by its framework")
    blas: str | None = None


class Environment(Open):
    """Host, system and versions, and what the pipeline declared."""

    system: str | None = key(None, "operating system")
    python: str | None = key(None, "version of Python")
    backend: Annotated[BackendFacts, or_empty(BackendFacts), Columns("{}")] = BackendFacts()
    git_commit: str | None = key(None, "commit of the measuring checkout")
    packages: Annotated[dict[str, str | None], or_empty(dict)] = NO_FACTS
    declared: Facts = NO_FACTS  # by the pipeline


class Code(Open):
    """The method code: a hash of each module by its name, and one of all."""

    fingerprint: Sha256
    modules: dict[str, Sha256]


class Accounting(Open):
    """Where the wall clock went."""

    wall_s: Figure = key(None, "from start to end of the cell")
    child_wall_s: Figure = key(None, "that of the measuring process")
    waited_for_lock_s: Figure = key(None, "waited for other cells on the host")
    open_s: Figure = key(None, "loading the framework and opening the device")
    measure_s: Figure = key(None, "the measurement with its preparation")
    timed_s: Figure = key(None, "of it what was timed")


class Record(Part, strict=False):  # `Cell` is a dataclass, made of a mapping
    """What one cell leaves behind, whatever happened to it."""

    schema_version: Literal[6]
    method_version: Literal[2]  # how numbers are made; another method's are never compared
    cell: Annotated[Cell, Columns("{}")]
    simulated: str | None = None  # what plays the device in a test: no measurement
    status: Literal["ok", "oom", "failed", "timeout", "unsupported", "skipped"] = required(
        "ok, oom, failed, timeout, unsupported or skipped"
    )
    reason: str | None = required("why the status is not ok")
    scenario: Annotated[Scenario, Columns("{}")]
    precision: Annotated[Precision, Columns("{}")]
    checks: Annotated[Checks, Columns("{}")] = Checks()
    points: list[Point]  # one per shape or setting; a training cell has one
    samples: list[dict[str, Figure]]  # of probes over time, about 4 Hz, each with its `t_s`
    probes: dict[Name, Probe]
    flags: list[Flag]
    dataset: Annotated[Dataset, or_empty(Dataset), Columns("{}")]
    accounting: Annotated[Accounting, Columns("{}")]
    environment: Annotated[Environment, Columns("{}")]
    # UTC, 1970 to 2199: a clock may be wrong, and the record is as good.
    started_at: Annotated[
        str, matches(r"(19[7-9]\d|2[01]\d\d)-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")
    ] = required("start, ISO 8601 in UTC")
    sha256: Sha256 = required("hash of the record's content", "record_sha256")  # without this key
    method: Method
    code: Code
    modules_loaded: list[str]  # of the package, by the measuring process
    progress: Facts  # the last sign of life of the child

    @model_validator(mode="after")
    def _has_points(self) -> Record:
        if self.status == "ok" and not self.points:
            raise ValueError("its status is ok, and there is no point")
        return self

    @property
    def codes(self) -> list[str]:
        """The codes of its flags in order, each once."""
        return list(dict.fromkeys(flag.code for flag in self.flags))

    def probed(self, probe: str, name: str) -> float | None:
        """A number in a probe's summary; None where it has none."""
        number = self.probes.get(probe, Probe()).figures.get(name)
        return number if isinstance(number, int | float) else None
