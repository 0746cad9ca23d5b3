"""config/claims.yaml: the statements of the sources, and the comparison that tests each of them.

A number that is in `config/published` is not repeated: the claim names the row, by its statement,
and takes value, devices, model, batch size and source from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from siliconprof.claims.figures import Region
from siliconprof.claims.quantities import Quantity
from siliconprof.errors import UserError, nearest
from siliconprof.hosts.registry import Registry
from siliconprof.parameters import Count, Number, one_of
from siliconprof.store import model, published, table_files, validation
from siliconprof.store.model import Part, Text, matches
from siliconprof.store.table_files import Row

OWN_CPU = "cpu"  # as a device: the processor of the other side's computer
PERCENT = "percent"  # of more, in a published row: 30 percent are 1.3 times
SIGNS = ("direction", "trend")  # kinds without a number, whatever their row prints
KIND_UNITS = {"ratio": "times", "direction": "times", "trend": "times", "finding": ""}
# Side -> the column in which a published row names its device.
DEVICE_COLUMNS = {"a": "device_a", "b": "device_b", "of": "device_a"}
PAIR = ("a", "b")
SIDES = {  # kind of comparison -> its sides
    "ratio": PAIR,  # a over b against a number; without one here, a published row has it
    "direction": PAIR,  # which of a and b is more, without a number
    "difference": PAIR,  # a minus b
    "range": ("of",),  # a quantity of each cell against a bound
    "trend": ("of",),  # the last over the first along a parameter
    "finding": ("of",),  # the word that an analysis came to
}
NEEDS = {"trend": ("expect", "along"), "finding": ("words",)}  # of all others: expect


class WrongReference(Exception):
    """A row that is not there, or a number too many or too few; `.key: what`."""


# -- the file ------------------------------------------------------------------------------------


def _known(name: str, info: ValidationInfo) -> str:
    devices = [*(info.context or {})["devices"], OWN_CPU]
    if name not in devices:
        raise ValueError(f"is {name!r}; expected one of: {', '.join(devices)}")
    return name


Device = Annotated[str, AfterValidator(_known)]
Texts = Annotated[list[Text], Field(min_length=1)]


class Printed(Part):
    """Numbers of a published table."""

    table: Annotated[str, one_of(published.PUBLISHED_TABLES)]
    column: Text  # that holds the number
    where: dict[str, str] = {}  # which rows: column -> its value
    per: str = ""  # a column that it is divided by, such as batch_size


class Quotient(Part):
    """A printed number, or one over another."""

    a: Printed
    b: Printed | None = None


class Side(Part):
    """Which cells stand on one side; a device named by a published row is added."""

    device: Device = ""
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


class Compare(Part):
    """The comparison over cells that tests a statement; see `SIDES` for its kinds."""

    kind: Literal["ratio", "direction", "difference", "range", "trend", "finding"]
    quantity: Text  # one of those above
    workloads: Annotated[list[Annotated[str, one_of("workloads")]], Field(min_length=1)]  # modules
    batch_sizes: list[Count] = []  # all must have been measured
    # Each device, and each pair of an `a` and a `b`, is a question of its own.
    devices: list[Device] = []
    pairs: list[Annotated[list[Device], Field(min_length=2, max_length=2)]] = []
    # The sides of its kind; one that is left out has any cell.
    a: Side = Side()
    b: Side = Side()
    of: Side = Side()
    # typical: more than half of the cases agree and none is against it. all: the statement says
    # always, so one case against it contradicts it. most, least, mean: the largest, the smallest, the
    # geometric mean.
    cases: Literal["typical", "all", "most", "least", "mean"] = "typical"
    value: Number | Quotient | None = None
    # apart: not within the tolerance; more and less: a sign, or beyond the value.
    expect: Literal["about", "at_least", "at_most", "more", "less", "apart"] | None = None
    tolerance: Annotated[Number, Field(ge=0)] | None = None  # of the value, missed by so much
    tolerance_reason: Text | None = None  # why so much
    words: Texts | None = None  # of a finding that agree; `inconclusive` decides nothing
    along: Literal["batch_size", "n_parameters", "n_layer"] | None = None
    any_batch: bool = False  # batch sizes may differ; for what is per sample
    same: list[Text] = []  # columns in which both must agree, where that is less than the same work
    over_printed: Printed | None = None  # divides what is measured of each of `devices`

    @model_validator(mode="after")
    def _is_whole(self) -> Compare:
        needs = NEEDS.get(self.kind, ("expect",))
        if missing := [key for key in needs if getattr(self, key) is None]:
            raise ValueError(f"a {self.kind} needs {', '.join(missing)}")
        if wrong := self.model_fields_set & {*DEVICE_COLUMNS} - {*SIDES[self.kind]}:
            raise ValueError(f"a {self.kind} has no side {min(wrong)}")
        if (self.tolerance is None) != (self.tolerance_reason is None):
            raise ValueError("expected tolerance and tolerance_reason, both or neither")
        if self.tolerance is None and self.expect in ("about", "apart"):
            raise ValueError(f"expect: {self.expect}: needs a tolerance")
        return self

    @property
    def sides(self) -> dict[str, dict[str, Any]]:
        """Name of each side -> column of a row -> its value, or a list of them."""
        return {
            name: getattr(self, name).model_dump(exclude_unset=True) for name in SIDES[self.kind]
        }


class Statement(Part):
    """The rows of a published table with the claim's numbers, devices, model, batch size and source."""

    table: Annotated[str, one_of(published.STATEMENTS)]
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
    """The file: what is compared, and every statement, in the order of the page."""

    quantities: dict[str, Quantity]
    claims: Annotated[list[Entry], Field(min_length=1)]


# -- claims --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """One published row's part of a claim; a claim without published rows has one question."""

    sides: Sequence[dict[str, Any]]  # which cells: a and b, or one side alone
    workloads: Sequence[str]
    batch_sizes: Sequence[int]  # empty: any
    same_host: bool = False  # b is the processor of a's own computer
    printed: float = 1.0  # the printed figure to divide by, in an SI unit

    @property
    def devices(self) -> list[str]:
        """The registry ids of the devices that it names."""
        return [side["device"] for side in self.sides if "device" in side]


@dataclass(frozen=True)
class Claim:
    """An entry, completed from its published rows."""

    entry: Entry
    source: str
    note: str
    printed: str  # the number as printed, with its meaning; empty where there is none
    printed_unit: str
    unit: str  # of the measured and claimed values
    region: Region | None  # the figures that agree; None where words do
    questions: Sequence[Question]
    compared: Quantity | None  # None where it is not tested

    @property
    def quantity(self) -> Quantity:
        """What is compared; only asked of a claim that is."""
        assert self.compared
        return self.compared

    @property
    def compare(self) -> Compare:
        """How it is tested; only asked of a claim that is."""
        assert self.entry.compare
        return self.entry.compare

    @property
    def devices(self) -> list[str]:
        """The registry ids of the devices that it names, each once."""
        return list(dict.fromkeys(d for question in self.questions for d in question.devices))


def load(path: Path, registry: Registry, folder: Path) -> list[Claim]:
    """The claims of a file.

    Args:
        folder: of the published tables.

    Raises:
        UserError: the mistakes of all claims, or of a published table, one line each.
    """
    context = {"devices": [*registry["devices"]]}
    file = model.checked(Claims, validation.load_yaml(path), f"{path}: ", context)
    tables = {name: published.read(folder, name) for name in published.PUBLISHED_TABLES}
    problems = []
    claims: dict[str, Claim] = {}
    for entry in file.claims:
        try:
            if entry.id in claims:
                raise WrongReference(": the id is used twice")
            claims[entry.id] = _claim(entry, tables, file.quantities)
        except WrongReference as error:
            problems.append(validation.one_line(f"{path}: {entry.id}{error}"))
    if problems:
        raise UserError("\n".join(problems))
    return list(claims.values())


def _claim(
    entry: Entry, tables: Mapping[str, pd.DataFrame], quantities: Mapping[str, Quantity]
) -> Claim:
    compare = entry.compare
    quantity = None
    if compare:
        of_kind = {
            n: q for n, q in quantities.items() if bool(q.word) == (compare.kind == "finding")
        }
        if (name := compare.quantity) not in of_kind:
            expected = f"expected one of: {', '.join(of_kind)}{nearest(name, of_kind)}"
            raise WrongReference(f".compare.quantity: is {name!r}; {expected}")
        quantity = of_kind[name]
    rows = _rows(tables, entry.published) if entry.published else []
    value, printed = _printed(rows)
    unit = rows[0]["unit"] if rows else ""
    own_unit = quantity.unit if quantity else ""
    given = compare.value if compare else None
    if given is not None and value is not None:
        raise WrongReference(".compare.value: the published row has it; leave it out")
    if isinstance(given, Quotient):
        value = _number(tables, given.a) / (_number(tables, given.b) if given.b else 1)
        printed, unit = f"{value:.4g}", "times" if given.b else own_unit
    elif given is not None:
        value = float(given)
    notes = filter(None, [entry.note, *dict.fromkeys(row["note"] for row in rows)])
    source = "; ".join(dict.fromkeys(row["source"] for row in rows)) or entry.source
    measured_unit = "times" if unit == PERCENT else unit or own_unit
    if compare:
        measured_unit = KIND_UNITS.get(compare.kind, measured_unit)
        measured_unit = "times the printed" if compare.over_printed else measured_unit
    return Claim(
        entry,
        source=f"{source}; again in {entry.also}" if entry.also else source,
        note="; ".join(notes),
        printed=printed,
        printed_unit=unit,
        unit=measured_unit,
        region=_region(compare, value) if compare and compare.expect else None,
        questions=_questions(compare, rows, tables) if compare else (),
        compared=quantity,
    )


def _rows(tables: Mapping[str, pd.DataFrame], of: Statement) -> list[Row]:
    table = tables[of.table]
    rows = table_files.rows(table[table["statement"] == of.statement])
    if not rows:
        near = nearest(of.statement, {*table["statement"]})
        raise WrongReference(f".published.statement: no row of {of.table}.csv has it{near}")
    if len({(row["value_min"], row["value_max"], row["unit"]) for row in rows}) > 1:
        raise WrongReference(
            f".published.statement: its rows in {of.table}.csv have different values"
        )
    return rows


def _numbers(tables: Mapping[str, pd.DataFrame], of: Printed) -> pd.Series:
    """The numbers that rows have in a column, by the device of each where the table has one."""
    rows = tables[of.table]
    if unknown := {of.column, *of.where, of.per} - {*rows, ""}:
        raise WrongReference(f".compare: {of.table}.csv has no column '{min(unknown)}'")
    for column, text in of.where.items():
        rows = rows[rows[column] == text]
    numbers = rows[of.column].astype(float)
    numbers = numbers / rows[of.per].astype(float) if of.per else numbers
    return numbers.set_axis(rows["device"]) if "device" in rows else numbers


def _number(tables: Mapping[str, pd.DataFrame], of: Printed) -> float:
    numbers = _numbers(tables, of)
    if len(numbers) != 1:
        raise WrongReference(f".compare.value: {len(numbers)} rows have it; expected one")
    return float(numbers.iloc[0])


def _printed(rows: Sequence[Row]) -> tuple[float | None, str]:
    """(the number of published rows, its text); a bound of 1 is only a sign and has no text."""
    low, high = (rows[0]["value_min"], rows[0]["value_max"]) if rows else ("", "")
    if low and high:
        ends = [float(text) for text in (low, high)]
        if rows[0]["unit"] == PERCENT:
            ends = [1 + end / 100 for end in ends]
        return (ends[0], low) if low == high else ((ends[0] * ends[1]) ** 0.5, f"{low} to {high}")
    if not (low or high):
        return None, ""
    bound = float(low or high)
    return bound, "" if bound == 1 else f"up to {high}" if high else f"at least {low}"


def _region(compare: Compare, value: float | None) -> Region:
    """The figures that agree with a claim; a sign is one whatever its published row prints."""
    if compare.kind in ("ratio", "range") and value is None:
        raise WrongReference(".compare.value: is missing, here and in a published row")
    mark = None if compare.kind in SIGNS else value
    added = compare.kind == "difference"
    return Region.of(str(compare.expect), mark, compare.tolerance or 0.0, added)


def _questions(
    compare: Compare, rows: Sequence[Row], tables: Mapping[str, pd.DataFrame]
) -> list[Question]:
    """One question for each published row and each pair or device that the comparison names."""
    device_sets: list[dict[str, str]] = [{"a": a, "b": b} for a, b in compare.pairs]
    device_sets += [dict.fromkeys(DEVICE_COLUMNS, name) for name in compare.devices]
    numbers: Mapping[Any, float] = {}
    if of := compare.over_printed:
        scale = 1e-3 if of.column.endswith("_ms") else 1.0  # to an SI unit
        numbers = (scale * _numbers(tables, of)).to_dict()
        if missing := {*compare.devices} - {*numbers}:
            raise WrongReference(f".compare.devices: no printed number of {min(missing)}")
    return [
        _question(compare, row, devices, numbers.get(devices.get("of"), 1.0))
        for row, devices in product(rows or ({},), device_sets or ({},))
    ]


def _question(compare: Compare, row: Row, devices: Mapping[str, str], printed: float) -> Question:
    """The question of one published row; an empty row adds nothing to the comparison."""
    sides, same_host = [], False
    for name, side in compare.sides.items():
        device = row.get(DEVICE_COLUMNS[name]) or devices.get(name) or side.pop("device", None)
        if device == OWN_CPU:
            side, same_host = side | {"device_kind": "cpu"}, True
        elif device:
            side["device"] = device
        sides.append(side)
    trained = (row.get("model") or "").lower()
    workloads = [trained] if trained in compare.workloads else compare.workloads
    batch = row.get("batch_size")
    batches = [int(batch)] if batch else compare.batch_sizes
    return Question(sides, workloads, batches, same_host, printed)
