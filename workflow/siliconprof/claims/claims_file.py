"""config/claims.yaml: the statements of the sources, and the comparison that tests each of them.

A number that is in `config/published` is not repeated: the claim names the row, by its statement,
and takes value, devices, model, batch size and source from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from siliconprof import plugins
from siliconprof.analyse import published_values
from siliconprof.analyse.published_values import Published, Unknown
from siliconprof.errors import UserError
from siliconprof.hosts.registry import Registry
from siliconprof.store import validation

OWN_CPU = "cpu"  # in a published row: the processor of the other device's computer
PAIRED = ("a", "b", "quantity", "expect", "cases")
BETWEEN = ("same_host", "pairs", "similar_price", "any_batch", "same")
SINGLE = ("of", "quantity", "expect", "cases")
# kind -> (required keys, optional keys, allowed values of `expect`)
SIGNS, NUMBERS = ("more", "less"), ("about", "at_least", "at_most", "apart")
KINDS: Mapping[str, tuple[Sequence[str], Sequence[str], Sequence[str]]] = {
    "ratio": (PAIRED, ("value", "value_from", *BETWEEN), NUMBERS),
    "direction": (PAIRED, BETWEEN, SIGNS),
    "difference": (PAIRED, ("value", "unit", *BETWEEN), (*NUMBERS, *SIGNS)),
    "range": (SINGLE, ("value", "value_from", "unit", "over_printed"), (*NUMBERS, *SIGNS)),
    "trend": ((*SINGLE, "along"), (), SIGNS),
    "share": (("of", "quantity", "expect"), ("value",), ("at_least", "at_most")),
    "largest": (("a", "b", "quantity", "largest"), ("same_host",), ()),
    "finding": (("of", "quantity", "words", "cases"), ("unclear",), ()),
}
ALWAYS = ("kind", "workloads", "batch_sizes", "tolerance", "tolerance_reason", "devices")
WITH_NUMBER = ("ratio", "range", "share")  # need a number: a published row's or their own
PERCENT = "percent"  # of more, in a published row: 30 percent are 1.3 times


@dataclass(frozen=True)
class Question:
    """One published row's part of a claim; a claim without published rows has one question."""

    sides: Mapping[str, Mapping[str, Any]]  # a and b, or of -> which cells
    workloads: Sequence[str]
    batch_sizes: Sequence[int]  # empty: any
    same_host: bool = False  # b is the processor of a's own computer
    printed: float | None = None  # the printed figure to divide by, in an SI unit

    @property
    def devices(self) -> list[str]:
        """The registry ids of the devices that it names."""
        return [side["device"] for side in self.sides.values() if "device" in side]


@dataclass(frozen=True)
class Claim:
    """One statement of a source."""

    id: str
    text: str
    source: str
    note: str
    untestable: str  # why no cell can answer it; empty otherwise
    compare: Mapping[str, Any]
    questions: Sequence[Question]
    value: float | None
    printed: str  # the number as printed, with its meaning; empty where there is none
    unit: str  # of that number or of a difference; empty where there is neither
    consistency: Any = ()  # checks against published tables, or why there is none

    @property
    def mark(self) -> float | None:
        """The number to compare with; None for a direction or trend, whatever its row prints."""
        return None if self.compare["kind"] in ("direction", "trend") else self.value

    @property
    def devices(self) -> list[str]:
        """The registry ids of the devices that it names, each once."""
        return list(dict.fromkeys(d for question in self.questions for d in question.devices))


def load(
    path: Path, registry: Registry, published: Published, quantities: Collection[str]
) -> list[Claim]:
    """The claims of a file.

    Args:
        published: the published tables.
        quantities: the names of quantities that a comparison may use.

    Raises:
        UserError: all mistakes at once, one line each.
    """
    document = validation.load_yaml(path)
    prefix = f"{path}: "
    problems = validation.problems(document, validation.load_schema("claims"), prefix)
    if problems:
        raise UserError("\n".join(problems))
    checker = _Checker(registry, published, quantities)
    problems = [validation.one_line(prefix + line) for line in checker.problems(document["claims"])]
    if problems:
        raise UserError("\n".join(problems))
    return [checker.claim(entry) for entry in document["claims"]]


class _Checker:
    """Checks what JSON Schema cannot express, and builds the claims."""

    def __init__(
        self, registry: Registry, published: Published, quantities: Collection[str]
    ) -> None:
        self.devices, self.published = registry["devices"], published
        self.vendors = {entry["vendor"] for entry in self.devices.values()}
        self.quantities, self.modules = quantities, plugins.names("workloads")

    def problems(self, entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """Every mistake, `where: what`."""
        seen: set[str] = set()
        for entry in entries:
            name = entry["id"]
            if name in seen:
                yield f"{name}: the id is used twice"
            seen.add(name)
            rows: list[dict[str, str]] = []
            if ("source" in entry) == ("published" in entry):
                yield f"{name}: expected either source or published (whose row has its source)"
            if "published" in entry:
                table_rows = self._rows(entry["published"])
                if isinstance(table_rows, str):
                    yield f"{name}.published{table_rows}"
                    continue
                rows = table_rows
            if ("compare" in entry) == ("untestable" in entry):
                yield f"{name}: expected either compare or untestable"
            elif "compare" in entry:
                for line in self._comparison(entry["compare"], rows):
                    yield f"{name}.compare{line}"

    def _rows(self, statement: Mapping[str, str]) -> list[dict[str, str]] | str:
        """The rows of a statement, or what is wrong with the reference."""
        table = self._table(statement["table"])
        if isinstance(table, str):
            return table
        matching = [row for row in table if row["statement"] == statement["statement"]]
        if not matching:
            near = validation.nearest(statement["statement"], {row["statement"] for row in table})
            return f".statement: no row of {statement['table']}.csv has it{near}"
        if len({(row["value_min"], row["value_max"], row["unit"]) for row in matching}) > 1:
            return f".statement: its rows in {statement['table']}.csv have different values"
        return matching

    def _table(self, name: str) -> list[dict[str, str]] | str:
        """A table of statements, or what is wrong with it."""
        try:
            rows = self.published.rows(name)
        except Unknown as error:
            return str(error)
        needed = {"statement", "value_min", "value_max", "unit", "source"}
        missing = needed - set(rows[0] if rows else ())
        if missing:
            path = self.published.folder / f"{name}.csv"
            return f".table: {path} is no table of statements (no {', '.join(sorted(missing))})"
        return rows

    def _comparison(
        self, compare: Mapping[str, Any], rows: Sequence[Mapping[str, str]]
    ) -> Iterator[str]:
        """`.key: what` of every mistake."""
        kind = compare["kind"]
        required, optional, expected = KINDS[kind]
        for key in required:
            if key not in compare:
                yield f".{key}: is missing; a {kind} needs it"
        for key in compare:
            if key not in (*required, *optional, *ALWAYS):
                yield f".{key}: a {kind} has no such key"
        expect = compare.get("expect")
        if expected and expect is not None and expect not in expected:
            yield f".expect: is '{expect}'; a {kind} expects one of: {', '.join(expected)}"
        value, _ = _printed(rows)
        if "value" in compare and value is not None:
            yield ".value: the published row has it too; leave it out here"
        if "value_from" in compare and ("value" in compare or value is not None):
            yield ".value_from: there is another value; expected only one of them"
        if "value_from" in compare:
            value, line = self._from_tables(compare["value_from"])
            if line:
                yield f".value_from{line}"
                return
        if "over_printed" in compare:
            try:
                printed = published_values.per_device(self.published, compare["over_printed"])
                for device in compare.get("devices", ()):
                    if device not in printed:
                        yield f".devices: {compare['over_printed']['table']} has no '{device}'"
            except Unknown as error:
                yield f".over_printed{error}"
        if "over_printed" in compare and "devices" not in compare:
            yield ".devices: is missing; over_printed needs it"
        if kind in WITH_NUMBER and "value" not in compare and value is None:
            yield f".value: is missing; a {kind} needs it, here or in a published row"
        if ("tolerance" in compare) != ("tolerance_reason" in compare):
            yield ".tolerance: expected both tolerance and tolerance_reason, or neither"
        if expect in expected and expect in ("about", "apart") and not compare.get("tolerance"):
            yield f".tolerance: is missing; '{expect}' needs it"
        if compare.get("quantity", "") not in {*self.quantities, ""}:
            near = validation.nearest(compare["quantity"], self.quantities)
            names = ", ".join(sorted(self.quantities))
            yield f".quantity: is '{compare['quantity']}'; expected one of: {names}{near}"
        for module in compare["workloads"]:
            if module not in self.modules:
                near = validation.nearest(module, self.modules)
                yield f".workloads: no workload module '{module}'{near}"
        if compare.get("largest", compare["workloads"][0]) not in compare["workloads"]:
            yield f".largest: is '{compare['largest']}'; expected one of its workloads"
        for name in ("a", "b", "of"):
            yield from self._side(name, compare.get(name, {}))
        device_names = [("devices", name) for name in compare.get("devices", ())]
        device_names += [("pairs", name) for pair in compare.get("pairs", ()) for name in pair]
        for key, device in device_names:
            if device not in self.devices:
                near = validation.nearest(device, self.devices)
                yield f".{key}: no device '{device}' in the registry{near}"

    def _side(self, name: str, side: Mapping[str, Any]) -> Iterator[str]:
        device = side.get("device")
        if device is not None and device not in self.devices:
            near = validation.nearest(device, self.devices)
            yield f".{name}.device: no device '{device}' in the registry{near}"
        for where, vendor in (
            (f"{name}.vendor", side.get("vendor")),
            (f"{name}.like.vendor", side.get("like", {}).get("vendor")),
        ):
            if vendor is not None and vendor not in self.vendors:
                near = validation.nearest(vendor, self.vendors)
                yield f".{where}: no device in the registry has vendor '{vendor}'{near}"

    def _from_tables(self, spec: Mapping[str, Any]) -> tuple[float | None, str]:
        """(a printed number or the ratio of two, ""), or (None, what is wrong with the reference)."""
        values = []
        for name in spec:
            try:
                numbers = self.published.numbers(spec[name])
            except Unknown as error:
                return None, f".{name}{error}"
            if len(numbers) != 1:
                return None, f".{name}: {len(numbers)} rows have it; expected one"
            values.append(numbers[0].value)
        return values[0] / (values[1] if len(values) > 1 else 1), ""

    def claim(self, entry: Mapping[str, Any]) -> Claim:
        """A checked entry, completed from its published rows."""
        rows: Sequence[Mapping[str, str]] = ()
        if "published" in entry:
            table_rows = self._rows(entry["published"])
            rows = () if isinstance(table_rows, str) else table_rows
        compare = entry.get("compare", {})
        value, printed = _printed(rows)
        source = "; ".join(dict.fromkeys(row["source"] for row in rows)) or entry["source"]
        if "also" in entry:
            source += f"; again in {entry['also']}"
        notes = [entry.get("note", ""), *dict.fromkeys(row["note"] for row in rows)]
        unit = compare.get("unit") or (rows[0]["unit"] if rows else "")
        if "value" in compare:
            value = float(compare["value"])
        elif "value_from" in compare:
            value, _ = self._from_tables(compare["value_from"])
            printed = f"{value:.4g}" if value else ""
            unit = unit or ("times" if "b" in compare["value_from"] else "")
        return Claim(
            entry["id"],
            entry["text"],
            source,
            "; ".join(filter(None, notes)),
            entry.get("untestable", ""),
            compare,
            self._questions(compare, rows) if compare else [],
            value,
            printed,
            unit,
            entry.get("consistency", ()),
        )

    def _questions(
        self, compare: Mapping[str, Any], rows: Sequence[Mapping[str, str]]
    ) -> list[Question]:
        """One question for each published row and each pair or device that the comparison names."""
        device_sets: list[dict[str, str]] = [{"a": a, "b": b} for a, b in compare.get("pairs", ())]
        if "devices" in compare:
            device_sets = [dict.fromkeys(("a", "b", "of"), name) for name in compare["devices"]]
        printed: Mapping[str, float] = {}
        if "over_printed" in compare:
            printed = published_values.per_device(self.published, compare["over_printed"])
        return [
            _question(compare, row, devices, printed)
            for row, devices in product(rows or ({},), device_sets or ({},))
        ]


def _printed(rows: Sequence[Mapping[str, str]]) -> tuple[float | None, str]:
    """(the number of published rows, its text); a bound of 1 is only a sign and has no text."""
    if not rows:
        return None, ""
    low, high = rows[0]["value_min"], rows[0]["value_max"]
    percent = rows[0]["unit"] == PERCENT

    def times(text: str) -> float:
        return 1 + float(text) / 100 if percent else float(text)

    if low and high and low != high:
        return (times(low) * times(high)) ** 0.5, f"{low} to {high}"
    if low and high:
        return times(low), low
    if not (low or high):
        return None, ""
    if float(low or high) == 1:
        return 1.0, ""
    return float(low or high), f"up to {high}" if high else f"at least {low}"


def _question(
    compare: Mapping[str, Any],
    row: Mapping[str, str],
    devices: Mapping[str, str],
    printed: Mapping[str, float],
) -> Question:
    """The question of one published row; an empty row adds nothing to the comparison."""
    sides = {name: dict(compare[name]) for name in ("a", "b", "of") if name in compare}
    for name, side in sides.items():
        if name in devices:
            side["device"] = devices[name]
    same_host = bool(compare.get("same_host"))
    for name, column in (("a", "device_a"), ("b", "device_b"), ("of", "device_a")):
        device = row.get(column)
        if name in sides and device == OWN_CPU:
            sides[name] |= {"device_kind": "cpu"}
            same_host = True
        elif name in sides and device:
            sides[name] |= {"device": device}
    model = (row.get("model") or "").lower()
    workloads = [model] if model in compare["workloads"] else list(compare["workloads"])
    batch = row.get("batch_size")
    batches = [int(batch)] if batch else list(compare.get("batch_sizes", ()))
    return Question(sides, workloads, batches, same_host, printed.get(devices.get("of", "")))
