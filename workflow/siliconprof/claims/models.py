"""config/claims.yaml as models: every key that a claim and its comparison may have.

That a row of a published table exists is asked where the claims are made, see `claims_file`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from siliconprof.claims.quantities import QUANTITIES
from siliconprof.errors import nearest
from siliconprof.store.model import Count, Number, Part, Text, matches, one_of
from siliconprof.store.published import COLUMNS, STATEMENTS

OWN_CPU = "cpu"  # as a device: the processor of the other side's computer


def _of_the_registry(part: str, *more: str) -> Any:
    """Metadata of a name that the validation's context lists."""

    def check(name: str, info: ValidationInfo) -> str:
        known = [*(info.context or {})[part], *more]
        if name not in known:
            expected = f"expected one of: {', '.join(known)}{nearest(name, known)}"
            raise ValueError(f"is {name!r}; {expected}")
        return name

    return AfterValidator(check)


Device = Annotated[str, _of_the_registry("devices")]
Vendor = Annotated[str, _of_the_registry("vendors")]
PublishedTable = Annotated[str, *one_of([*COLUMNS])]
Texts = Annotated[list[Text], Field(min_length=1)]
Share = Annotated[Number, Field(ge=0)]
Times = Annotated[Number, Field(ge=1)]
Bound = Literal["about", "at_least", "at_most", "apart"]  # apart: not within the tolerance
Sign = Literal["more", "less"]
Expected = Literal["about", "at_least", "at_most", "more", "less", "apart"]
# all: the statement says always, so one case against it contradicts it. typical: more than half of the
# cases agree and none is against it. most, least, mean: the largest, the smallest, the geometric mean.
Cases = Literal["all", "typical", "most", "least", "mean"]


class Printed(Part):
    """Numbers of a published table."""

    table: PublishedTable
    column: Text  # that holds the number
    where: dict[str, str] = {}  # which rows: column -> its value
    per: str = ""  # a column that it is divided by, such as batch_size


class Over(Part):
    """A printed number, or one over another."""

    a: Printed
    b: Printed | None = None


class Like(Part):
    """Which other cells are an analogue: asked for instead of device and backend; null asks nothing."""

    framework: Literal["torch", "mlx"] | None = None
    module: None = None
    size: None = None
    device_kind: Literal["gpu", "cpu"] | None = None
    vendor: Vendor = ""
    backend: Text = ""


class Side(Part):
    """Which cells stand on one side; a device named by a published row is added."""

    device: Annotated[str, _of_the_registry("devices", OWN_CPU)] = ""
    vendor: Vendor = ""
    backend: Text = ""
    module: Text = ""
    size: Text | list[str] = ""  # the model's, or several of which any will do
    precision: Text = ""
    trainer: Literal["hf", "plain"] | None = None
    lora: bool = False  # whether adapters are trained
    scenario_applied: Literal["fits", "offload", "near-capacity"] | None = None
    # large: a matrix of at least 2000 x 2000 values; small: of at most 1000 x 1000. The paper prints
    # no shapes but 2000 x 2000.
    shape_size: Literal["large", "small"] | None = None
    model: Literal["wide", "deep"] | None = None  # which of two models of equal size
    gradient_checkpointing: bool = False  # whether layers are computed again
    like: Like = Like()


# -- comparisons over cells ----------------------------------------------------------------------


class _Compare(Part):
    """What every kind of comparison may have."""

    quantity: Annotated[str, *one_of(sorted(QUANTITIES))]
    workloads: Annotated[list[Annotated[str, *one_of("workloads")]], Field(min_length=1)]  # modules
    batch_sizes: Annotated[list[Count], Field(min_length=1)] = []  # all must have been measured
    # Each a question of its own, on every side.
    devices: Annotated[list[Device], Field(min_length=1)] = []
    expect: Expected | None = None
    tolerance: Share | None = Field(None, validate_default=True)  # of the value, missed by so much
    tolerance_reason: Text = Field("", validate_default=True)  # why so much

    @field_validator("tolerance")
    @classmethod
    def _is_there(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and info.data.get("expect") in ("about", "apart"):
            raise ValueError("is missing; expected number")
        return value

    @field_validator("tolerance_reason", mode="wrap")
    @classmethod
    def _is_given(cls, value: Any, check: Callable[[Any], Any], info: ValidationInfo) -> Any:
        if (value == "") != (info.data.get("tolerance") is None):
            word = "is missing" if value == "" else "there is no tolerance"
            raise ValueError(f"{word}; expected both or neither")
        return value if value == "" else check(value)


class _Paired(_Compare):
    """What a comparison of two sides may have."""

    a: Side
    b: Side
    cases: Cases
    pairs: Annotated[
        list[Annotated[list[Device], Field(min_length=2, max_length=2)]], Field(min_length=1)
    ] = []  # of devices, [a, b], each a question of its own
    # Both devices' prices in the registry lie within so many times of each other; a Mac's is that of
    # the whole computer, a graphics card's its own.
    similar_price: Times | None = None
    any_batch: bool = False  # batch sizes may differ; for what is per sample
    same: Texts = []  # columns in which both must agree, where that is less than the same work


class Ratio(_Paired):
    """a over b against a number; without one here, a row of a published table has it."""

    kind: Literal["ratio"]
    value: Number | Over | None = None
    expect: Bound


class Direction(_Paired):
    """Which of a and b is more, without a number."""

    kind: Literal["direction"]
    expect: Sign


class Difference(_Paired):
    """a minus b."""

    kind: Literal["difference"]
    value: Number | Over | None = None
    expect: Expected


class Range(_Compare):
    """A quantity of each cell against a bound."""

    kind: Literal["range"]
    of: Side
    cases: Cases
    value: Number | Over | None = None
    over_printed: Printed | None = None  # divides what is measured of each of `devices`
    expect: Expected

    @model_validator(mode="after")
    def _names_devices(self) -> Range:
        if self.over_printed and not self.devices:
            raise ValueError("over_printed: expected `devices` beside it")
        return self


class Trend(_Compare):
    """The last over the first along a parameter."""

    kind: Literal["trend"]
    of: Side
    cases: Cases
    expect: Sign
    along: Literal["batch_size", "n_parameters", "n_layer"]


class Finding(_Compare):
    """The word that an analysis came to; `inconclusive` is one that decides nothing."""

    kind: Literal["finding"]
    of: Side
    cases: Cases
    words: Texts  # that agree


Compare = Annotated[
    Ratio | Direction | Difference | Range | Trend | Finding,
    Field(discriminator="kind"),
]

# -- the file ------------------------------------------------------------------------------------


class Statement(Part):
    """The rows of a published table with the claim's numbers, devices, model, batch size and source."""

    table: Annotated[str, *one_of([name for name, of in COLUMNS.items() if of is STATEMENTS])]
    statement: Text  # the column of that name, to the letter; all rows that have it


class Entry(Part):
    """One published statement, with the comparison that tests it or why none can."""

    id: Annotated[str, matches("[a-z0-9]+(-[a-z0-9]+)*")]  # never used twice
    text: Text  # as its source says it
    source: Text = ""  # and section; left out where `published` names a row, which has its own
    also: Text = ""  # where the source says it again
    published: Statement | None = None  # what stands there is not repeated here
    untestable: Text = ""  # why no cell can answer it
    note: Text = ""  # how it is read here, and what is doubtful
    compare: Compare | None = None
    # Whether the source's own printed numbers agree with it, and which; never a verdict.
    consistency: Literal["consistent", "inconsistent"] | None = None
    consistency_reason: Text | None = None

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Entry:
        if bool(self.source) == bool(self.published):
            raise ValueError("expected either source or published (whose row has its source)")
        if bool(self.compare) == bool(self.untestable):
            raise ValueError("expected either compare or untestable")
        return self


class Claims(Part):
    """The file: every statement, in the order of the page."""

    claims: Annotated[list[Entry], Field(min_length=1)]
