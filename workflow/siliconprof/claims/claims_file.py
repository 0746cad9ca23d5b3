"""config/claims.yaml: the statements of the sources, and the comparison that tests each of them.

A number that is in `config/published` is not repeated: the claim names the row, by its statement,
and takes value, devices, model, batch size and source from it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from siliconprof.analyse import published_values
from siliconprof.analyse.published_values import Published, Unknown
from siliconprof.claims.figures import Region
from siliconprof.claims.quantities import QUANTITIES
from siliconprof.errors import UserError
from siliconprof.hosts.registry import Registry
from siliconprof.store import validation

OWN_CPU = "cpu"  # as a device: the processor of the other side's computer
PERCENT = "percent"  # of more, in a published row: 30 percent are 1.3 times
SIGNS = ("direction", "trend")  # kinds without a number, whatever their row prints
WITH_NUMBER = ("ratio", "range", "share")  # need a number: a published row's or their own
UNITS = {kind: "times" for kind in ("ratio", "direction", "trend", "largest")} | {
    "share": "of the points",
    "finding": "",
}
COLUMNS = {
    "a": "device_a",
    "b": "device_b",
    "of": "device_a",
}  # side -> where a row names its device
STATED = {"statement", "value_min", "value_max", "unit", "source"}  # columns of statements
Side = dict[str, Any]  # column of a row -> its value, or a list of them


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


@dataclass(frozen=True)
class Claim:
    """One statement of a source, and the comparison that tests it."""

    id: str
    text: str
    source: str
    note: str
    untestable: str  # why no cell can answer it; empty otherwise
    value: float | None
    printed: str  # the number as printed, with its meaning; empty where there is none
    printed_unit: str
    consistency: Any  # checks against published tables, or why there is none
    kind: str  # of comparison; empty where it is untestable
    quantity: str
    unit: str  # of the measured and claimed values
    cases: str  # how many of the cases must agree
    region: Region | None  # the figures that agree; None where words or a workload do
    words: Sequence[str]
    largest: str
    along: str  # the parameter of a trend
    same: Sequence[str]  # the columns in which two sides must agree, where the claim says which
    any_batch: bool
    similar_price: float | None
    over_printed: str  # the table whose numbers are divided by
    tolerance: float | None
    tolerance_reason: str | None
    questions: Sequence[Question]

    @property
    def devices(self) -> list[str]:
        """The registry ids of the devices that it names, each once."""
        return list(dict.fromkeys(d for question in self.questions for d in question.devices))

    @property
    def expected(self) -> str:
        """The figures, words or workload that agree."""
        return " or ".join(self.words) or self.largest or str(self.region)


def load(path: Path, registry: Registry, published: Published) -> list[Claim]:
    """The claims of a file.

    Args:
        published: the published tables.

    Raises:
        UserError: all mistakes at once, one line each.
    """
    document = validation.load_yaml(path)
    problems = validation.problems(document, validation.load_schema("claims"), f"{path}: ")
    if not problems:
        reader = _Reader(registry, published)
        claims = [reader.claim(entry) for entry in document["claims"]]
        problems = [validation.one_line(f"{path}: {line}") for line in reader.problems]
    if problems:
        raise UserError("\n".join(problems))
    return claims


class _Reader:
    """Builds the claims, and notes what JSON Schema cannot find wrong with them."""

    def __init__(self, registry: Registry, published: Published) -> None:
        self.devices, self.published = registry["devices"], published
        self.vendors = {entry["vendor"] for entry in self.devices.values()}
        self.ids: set[str] = set()
        self.problems: list[str] = []

    def claim(self, entry: Mapping[str, Any]) -> Claim:
        """An entry, completed from its published rows."""
        name, compare = entry["id"], entry.get("compare", {})
        if name in self.ids:
            self.problems.append(f"{name}: the id is used twice")
        self.ids.add(name)
        rows = self._rows(name, entry["published"]) if "published" in entry else []
        value, printed = _printed(rows)
        if value is not None and "value" in compare:
            self.problems.append(f"{name}.compare.value: the published row has it; leave it out")
        kind, quantity = compare.get("kind", ""), QUANTITIES.get(compare.get("quantity", ""))
        unit = rows[0]["unit"] if rows else ""
        own_unit = quantity.unit if quantity else ""
        if isinstance(compare.get("value"), Mapping):
            value = self._from_tables(f"{name}.compare.value", compare["value"])
            printed = f"{value:.4g}"
            unit = "times" if "b" in compare["value"] else own_unit
        elif "value" in compare:
            value = float(compare["value"])
        notes = [entry.get("note", ""), *dict.fromkeys(row["note"] for row in rows)]
        source = "; ".join(dict.fromkeys(row["source"] for row in rows)) or entry.get("source", "")
        measured_unit = UNITS.get(kind, "times" if unit == PERCENT else unit or own_unit)
        return Claim(
            id=name,
            text=entry["text"],
            source=f"{source}; again in {entry['also']}" if "also" in entry else source,
            note="; ".join(filter(None, notes)),
            untestable=entry.get("untestable", ""),
            consistency=entry.get("consistency", ()),
            value=value,
            printed=printed,
            printed_unit=unit,
            kind=kind,
            quantity=compare.get("quantity", ""),
            unit="times the printed" if "over_printed" in compare else measured_unit,
            cases=compare.get("cases", "all"),
            region=_region(compare, value),
            words=compare.get("words", ()),
            largest=compare.get("largest", ""),
            along=compare.get("along", ""),
            same=compare.get("same", ()),
            any_batch=compare.get("any_batch", False),
            similar_price=compare.get("similar_price"),
            over_printed=compare.get("over_printed", {}).get("table", ""),
            tolerance=compare.get("tolerance"),
            tolerance_reason=compare.get("tolerance_reason"),
            questions=self._questions(f"{name}.compare", compare, value, rows) if compare else (),
        )

    def _rows(self, name: str, statement: Mapping[str, str]) -> list[dict[str, str]]:
        """The rows of a published statement."""
        table, text = statement["table"], statement["statement"]
        try:
            rows = self.published.rows(table)
        except Unknown as error:
            self.problems.append(f"{name}.published{error}")
            return []
        where = f"{name}.published.statement"
        missing = ", ".join(sorted(STATED - set(rows[0] if rows else ())))
        if missing:
            self.problems.append(f"{where}: {table}.csv has no statements (no {missing})")
            return []
        matching = [row for row in rows if row["statement"] == text]
        if not matching:
            near = validation.nearest(text, {row["statement"] for row in rows})
            self.problems.append(f"{where}: no row of {table}.csv has it{near}")
        if len({(row["value_min"], row["value_max"], row["unit"]) for row in matching}) > 1:
            self.problems.append(f"{where}: its rows in {table}.csv have different values")
        return matching

    def _from_tables(self, where: str, spec: Mapping[str, Any]) -> float:
        """A printed number, or one over another."""
        values = []
        for name, of in spec.items():
            try:
                numbers = self.published.numbers(of)
            except Unknown as error:
                self.problems.append(f"{where}.{name}{error}")
                return math.nan
            if len(numbers) != 1:
                self.problems.append(f"{where}.{name}: {len(numbers)} rows have it; expected one")
            values.append(numbers[0].value)
        return values[0] / (values[1] if len(values) > 1 else 1)

    def _questions(
        self, where: str, compare: Mapping[str, Any], value: float | None, rows: Sequence[Any]
    ) -> list[Question]:
        """One question for each published row and each pair or device that the comparison names."""
        sides = {name: compare[name] for name in COLUMNS if name in compare}
        device_sets: list[dict[str, str]] = [{"a": a, "b": b} for a, b in compare.get("pairs", ())]
        device_sets += [dict.fromkeys(COLUMNS, name) for name in compare.get("devices", ())]
        printed: Mapping[str, float] = {}
        if "over_printed" in compare:
            try:
                printed = published_values.per_device(self.published, compare["over_printed"])
                self._known(f"{where}.devices", compare["devices"], printed, "printed number of")
            except Unknown as error:
                self.problems.append(f"{where}.over_printed{error}")
        if compare["kind"] in WITH_NUMBER and value is None:
            self.problems.append(f"{where}.value: is missing, here and in a published row")
        quantity = QUANTITIES.get(compare["quantity"])
        self._known(f"{where}.quantity", [compare["quantity"]], QUANTITIES, "quantity")
        if quantity and quantity.finding != (compare["kind"] == "finding"):
            self.problems.append(f"{where}.quantity: a finding is a word, all else a number")
        self._known(f"{where}.largest", [compare.get("largest")], compare["workloads"], "workload")
        for devices in device_sets:
            self._known(f"{where}.devices", devices.values(), self.devices, "device")
        for name, side in sides.items():
            known = {*self.devices, OWN_CPU}
            self._known(f"{where}.{name}.device", [side.get("device")], known, "device")
            vendors = [side.get("vendor"), side.get("like", {}).get("vendor")]
            self._known(f"{where}.{name}.vendor", vendors, self.vendors, "vendor")
        return [
            _question(compare, sides, row, devices, printed)
            for row, devices in product(rows or ({},), device_sets or ({},))
        ]

    def _known(self, where: str, names: Iterable[Any], known: Collection[str], what: str) -> None:
        for name in dict.fromkeys(names):
            if name is not None and name not in known:
                near = validation.nearest(name, known)
                self.problems.append(f"{where}: no {what} '{name}'{near}")


def _printed(rows: Sequence[Mapping[str, str]]) -> tuple[float | None, str]:
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
    given: Mapping[str, Side],
    row: Mapping[str, str],
    devices: Mapping[str, str],
    printed: Mapping[str, float],
) -> Question:
    """The question of one published row; an empty row adds nothing to the comparison."""
    sides, same_host = [], False
    for name, side in given.items():
        side = dict(side)
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
