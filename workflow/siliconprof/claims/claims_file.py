"""config/claims.yaml: the statements of the sources, and the comparison that tests each of them.

A number that is in `config/published` is not repeated: the claim names the row, by its statement,
and takes value, devices, model, batch size and source from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from siliconprof.claims import models
from siliconprof.claims.figures import Region
from siliconprof.claims.models import OWN_CPU
from siliconprof.claims.quantities import QUANTITIES
from siliconprof.errors import UserError, nearest
from siliconprof.hosts.registry import Registry
from siliconprof.store import model, published, table_files, validation
from siliconprof.store.table_files import Row

PERCENT = "percent"  # of more, in a published row: 30 percent are 1.3 times
SIGNS = ("direction", "trend")  # kinds without a number, whatever their row prints
WITH_NUMBER = ("ratio", "range")  # need a number: a published row's or their own
UNITS = {"ratio": "times", "direction": "times", "trend": "times", "finding": ""}
# Side -> the column in which a published row names its device.
COLUMNS = {"a": "device_a", "b": "device_b", "of": "device_a"}
# What a column's unit has to be multiplied with to be an SI unit.
SCALES = {"ms": 1e-3}
Side = dict[str, Any]  # column of a row -> its value, or a list of them
Read = Callable[[str], list[Row]]  # of a published table


class Unknown(Exception):
    """A column or a row that is not there; `.key: what`."""


@dataclass(frozen=True)
class Question:
    """One published row's part of a claim; a claim without published rows has one question."""

    sides: Sequence[Side]  # which cells: a and b, or one side alone
    workloads: Sequence[str]
    batch_sizes: Sequence[int]  # empty: any
    same_host: bool = False  # b is the processor of a's own computer
    printed: float | None = None  # the printed figure to divide by, in an SI unit

    @property
    def devices(self) -> list[str]:
        """The registry ids of the devices that it names."""
        return [side["device"] for side in self.sides if "device" in side]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement of a source, and the comparison that tests it."""

    id: str
    text: str
    source: str
    note: str
    untestable: str = ""  # why no cell can answer it
    printed: str  # the number as printed, with its meaning; empty where there is none
    printed_unit: str
    consistency: str | None = None  # whether the source's own numbers agree with it
    consistency_reason: str | None = None
    kind: str = ""  # of comparison; empty where it is untestable
    quantity: str = ""
    unit: str  # of the measured and claimed values
    cases: str = "all"  # how many of the cases must agree
    region: Region | None  # the figures that agree; None where words do
    words: Sequence[str] = ()
    along: str = ""  # the parameter of a trend
    same: Sequence[str] = ()  # columns in which two sides must agree, where the claim says which
    any_batch: bool = False
    similar_price: float | None = None
    over_printed: str  # the table whose numbers are divided by
    tolerance: float | None = None
    tolerance_reason: str | None = None
    questions: Sequence[Question]

    @property
    def devices(self) -> list[str]:
        """The registry ids of the devices that it names, each once."""
        return list(dict.fromkeys(d for question in self.questions for d in question.devices))

    @property
    def expected(self) -> str:
        """The figures or words that agree."""
        return " or ".join(self.words) or str(self.region)


# Keys of an entry or its comparison that a claim has as they are; others are made of them.
AS_GIVEN = {field.name for field in fields(Claim) if field.default is not MISSING} | {"id", "text"}


def load(path: Path, registry: Registry, folder: Path) -> list[Claim]:
    """The claims of a file.

    Args:
        folder: of the published tables.

    Raises:
        UserError: the mistakes of all claims, or of a published table, one line each.
    """
    context = {
        "devices": [*registry["devices"]],
        "vendors": sorted({entry["vendor"] for entry in registry["devices"].values()}),
    }
    checked = model.checked(models.Claims, validation.load_yaml(path), f"{path}: ", context)

    @cache
    def read(table: str) -> list[Row]:
        return table_files.rows(published.read(folder, table))

    problems = []
    claims: dict[str, Claim] = {}
    for entry in checked.model_dump(exclude_unset=True)["claims"]:
        try:
            if entry["id"] in claims:
                raise Unknown(": the id is used twice")
            claims[entry["id"]] = _claim(entry, read)
        except Unknown as error:
            problems.append(validation.one_line(f"{path}: {entry['id']}{error}"))
    if problems:
        raise UserError("\n".join(problems))
    return list(claims.values())


def _claim(entry: Mapping[str, Any], read: Read) -> Claim:
    """An entry, completed from its published rows.

    Raises:
        Unknown: the first mistake that no type expresses, `.key: what`.
    """
    compare = entry.get("compare", {})
    rows = _rows(read, **entry["published"]) if "published" in entry else []
    value, printed = _printed(rows)
    if value is not None and "value" in compare:
        raise Unknown(".compare.value: the published row has it; leave it out")
    kind, unit = compare.get("kind", ""), rows[0]["unit"] if rows else ""
    own_unit = QUANTITIES[compare["quantity"]].unit if compare else ""
    if isinstance(compare.get("value"), Mapping):
        spec = compare["value"]
        value = _number(spec, "a", read)
        value /= _number(spec, "b", read) if "b" in spec else 1
        printed, unit = f"{value:.4g}", "times" if "b" in spec else own_unit
    elif "value" in compare:
        value = float(compare["value"])
    notes = [entry.get("note"), *dict.fromkeys(row["note"] for row in rows)]
    source = "; ".join(dict.fromkeys(row["source"] for row in rows)) or entry.get("source", "")
    measured_unit = UNITS.get(kind, "times" if unit == PERCENT else unit or own_unit)
    given = {key: each[key] for each in (entry, compare) for key in each if key in AS_GIVEN}
    return Claim(
        **given,
        source=f"{source}; again in {entry['also']}" if "also" in entry else source,
        note="; ".join(filter(None, notes)),
        printed=printed,
        printed_unit=unit,
        unit="times the printed" if "over_printed" in compare else measured_unit,
        region=_region(compare, value),
        over_printed=compare.get("over_printed", {}).get("table", ""),
        questions=_questions(compare, value, rows, read) if compare else (),
    )


def _rows(read: Read, table: str, statement: str) -> list[Row]:
    """The rows of a published statement."""
    rows = [row for row in read(table) if row["statement"] == statement]
    if not rows:
        near = nearest(statement, {row["statement"] for row in read(table)})
        raise Unknown(f".published.statement: no row of {table}.csv has it{near}")
    if len({(row["value_min"], row["value_max"], row["unit"]) for row in rows}) > 1:
        raise Unknown(f".published.statement: its rows in {table}.csv have different values")
    return rows


def _numbers(spec: Mapping[str, Any], key: str, read: Read) -> list[tuple[Row, float]]:
    """The rows that a specification names, each with its number in the unit of its column."""
    rows, where = read(spec["table"]), spec.get("where", {})
    known = published.COLUMNS[spec["table"]].split()
    for column in filter(None, (spec["column"], *where, spec.get("per"))):
        if column not in known:
            near = nearest(column, known)
            raise Unknown(f"{key}: {spec['table']}.csv has no column '{column}'{near}")
    rows = [row for row in rows if where.items() <= row.items()]
    per = [float(row[spec["per"]]) if "per" in spec else 1.0 for row in rows]
    return [(row, float(row[spec["column"]]) / of) for row, of in zip(rows, per, strict=True)]


def _number(spec: Mapping[str, Any], name: str, read: Read) -> float:
    """A printed number."""
    numbers = _numbers(spec[name], f".compare.value.{name}", read)
    if len(numbers) != 1:
        raise Unknown(f".compare.value.{name}: {len(numbers)} rows have it; expected one")
    return numbers[0][1]


def _per_device(spec: Mapping[str, Any], read: Read) -> dict[str, float]:
    """Device -> its printed number in an SI unit, by the column's ending."""
    scale = SCALES.get(spec["column"].rpartition("_")[2], 1.0)
    numbers = _numbers(spec, ".compare.over_printed", read)
    return {row["device"]: scale * number for row, number in numbers}


def _questions(
    compare: Mapping[str, Any],
    value: float | None,
    rows: Sequence[Row],
    read: Read,
) -> list[Question]:
    """One question for each published row and each pair or device that the comparison names."""
    device_sets: list[dict[str, str]] = [{"a": a, "b": b} for a, b in compare.get("pairs", ())]
    device_sets += [dict.fromkeys(COLUMNS, name) for name in compare.get("devices", ())]
    printed: Mapping[str, float] = {}
    if "over_printed" in compare:
        printed = _per_device(compare["over_printed"], read)
        for name in compare["devices"]:
            if name not in printed:
                raise Unknown(f".compare.devices: no printed number of {name}")
    if compare["kind"] in WITH_NUMBER and value is None:
        raise Unknown(".compare.value: is missing, here and in a published row")
    if QUANTITIES[compare["quantity"]].finding != (compare["kind"] == "finding"):
        raise Unknown(".compare.quantity: a finding is a word, all else a number")
    return [
        _question(compare, row, devices, printed)
        for row, devices in product(rows or ({},), device_sets or ({},))
    ]


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


def _region(compare: Mapping[str, Any], value: float | None) -> Region | None:
    """The figures that agree with a claim; a sign is one whatever its published row prints."""
    if "expect" not in compare:
        return None
    mark = None if compare["kind"] in SIGNS else value
    added = compare["kind"] == "difference"
    return Region.of(compare["expect"], mark, compare.get("tolerance", 0.0), added)


def _question(
    compare: Mapping[str, Any],
    row: Row,
    devices: Mapping[str, str],
    printed: Mapping[str, float],
) -> Question:
    """The question of one published row; an empty row adds nothing to the comparison."""
    sides, same_host = [], False
    for name in filter(compare.__contains__, COLUMNS):
        side = dict(compare[name])
        device = row.get(COLUMNS[name]) or devices.get(name) or side.pop("device", None)
        if device == OWN_CPU:
            side, same_host = side | {"device_kind": "cpu"}, True
        elif device:
            side["device"] = device
        sides.append(side)
    model = (row.get("model") or "").lower()
    workloads = [model] if model in compare["workloads"] else list(compare["workloads"])
    batch = row.get("batch_size")
    batches = [int(batch)] if batch else list(compare.get("batch_sizes", ()))
    return Question(sides, workloads, batches, same_host, printed.get(devices.get("of", "")))
