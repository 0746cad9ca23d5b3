"""Workloads and probes without exhibits of their own, by what their plug-ins declare.

Of a workload a table of all its quantities, of a probe one of what it read beside each cell.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from siliconprof import plugins, words
from siliconprof.declarations import Parameter, Quantity
from siliconprof.render import hover
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import ONE_PLACE, Column, Table, Value, quantity, ranged, text, told
from siliconprof.render.variants import Row
from siliconprof.workloads.base import KernelWorkload

# Workloads with exhibits of their own; so have all trainings, by their trainer.
WITH_EXHIBIT = (
    "bandwidth",
    "kernel_launch",
    "matmul",
    "matvec",
    "optimizer_sweep",
    "transformer_grid",
    "vjp",
)
PROBES_WITH_EXHIBIT = ("clocks", "energy", "interference", "memory", "page_faults")
NAMES = (told("Workload", "workload", folds=True), *ONE_PLACE)
TINY = 1e-3  # a number below it is written with an exponent
NOT_MEASURED = "the record does not hold it"


class Shown(NamedTuple):
    """A quantity, its column in points.csv, and the unit that it is shown in."""

    name: str
    label: str
    unit: str
    scale: float
    series: bool
    better: str

    def ends(self, point: Row) -> tuple[float | None, float | None, float | None]:
        """(median or value, ends of its 95 % interval) in the unit shown; None where unknown."""
        stem = self.name.removesuffix("_s")
        names = [f"{stem}_{part}_s" for part in ("median", "low", "high")]
        values = [words.number(point.get(name)) for name in names] if self.series else []
        values = values or [words.number(point.get(self.name)), None, None]
        middle, low, high = (None if v is None else v / self.scale for v in values)
        return middle, low, high


def anything(data: Data) -> bool:
    """Whether there is a workload or a probe to show here."""
    return bool(workloads(data) or probes(data))


def probes(data: Data) -> list[str]:
    """The probes that ran and are shown nowhere else."""
    return sorted(
        {
            name
            for row in data.probes
            if (name := row["probe"]) not in PROBES_WITH_EXHIBIT
            and name in plugins.names("probes")
            and any(row.get(column) is not None for column in _quantities(name))
        }
    )


def _quantities(probe: str) -> Mapping[str, Quantity]:
    return plugins.load("probes", probe).QUANTITIES


def workloads(data: Data) -> list[str]:
    """The workloads that are shown nowhere else."""
    rows = [p for p in data.points if p["module"] not in WITH_EXHIBIT and not p["trainer"]]
    return sorted({point["module"] for point in rows})


def add(data: Data, book: Book) -> None:
    """The exhibits of each such workload and probe."""
    for module in workloads(data):
        points = [point for point in data.of_module(module) if not point["trainer"]]
        quantities = list(in_units(_plugin(module).QUANTITIES, points))
        if not quantities:
            book.note(f"Nothing of {module} is shown: its records hold no times.")
            continue
        book.table(module, "declared", table(points, quantities), module=module)
    for probe in probes(data):
        book.table(f"probe-{probe}", "declared-probe", probe_table(data, probe), probe=probe)


def probe_table(data: Data, probe: str) -> Table:
    """What a probe's summary holds, a row for each cell."""
    rows = [row for row in data.probes if row["probe"] == probe]
    rows.sort(key=lambda row: (row["workload"], row["backend"], row["precision"]))

    def value(one: Shown, row: Row) -> Value:
        reason = str(row.get("reason") or row.get("means") or NOT_MEASURED)
        return quantity(row.get(one.name), reason, one.scale)

    columns = (
        Column(one.label, one.unit, True, _help(one), value=partial(value, one))
        for one in in_units(_quantities(probe), rows)
    )
    return Table.of(rows, [*NAMES, *columns])


def in_units(quantities: Mapping[str, Quantity], rows: Sequence[Row]) -> Iterator[Shown]:
    """The quantities that any row has, each in a unit that suits its typical value."""
    for name, one in quantities.items():
        plain = Shown(name, one.label, one.unit, 1.0, one.series, one.better)
        values = [value for row in rows if (value := plain.ends(row)[0]) is not None]
        if values:
            unit, scale = _unit(one.unit, statistics.median(values))
            yield plain._replace(unit=unit, scale=scale)


def _unit(unit: str, typical: float) -> tuple[str, float]:
    """(unit to show a quantity in, its size), so that a typical value is easily read."""
    if unit == "byte":
        return "MiB", 2.0**20
    if unit == "s":
        return words.suited(hover.SECONDS, typical)
    if unit == "1/s" and typical >= 1e6:
        return "10⁶/s", 1e6
    if unit in ("", "1/s"):
        return unit, 1.0
    unit = unit.replace("byte", "B")
    prefix, scale = words.suited(words.PREFIXES, typical)
    return f"{prefix}{unit}", scale


def _plugin(module: str) -> Any:
    has_plugin = module in plugins.names("workloads")
    return plugins.load("workloads", module) if has_plugin else KernelWorkload


def table(points: Sequence[Row], quantities: Sequence[Shown]) -> Table:
    """Parameters of the points, and every quantity with its interval."""
    columns = [
        *NAMES,
        *(
            Column(one.label, one.unit, one.type != "string", value=partial(_parameter, name, one))
            for name, one in _parameters(points).items()
        ),
        *(
            Column(one.label, one.unit, True, _help(one), value=partial(_quantity, one))
            for one in quantities
        ),
    ]
    return Table.of(points, columns)


def _params(point: Row) -> dict[str, Any]:
    return json.loads(point["params"]) if point.get("params") else {}


def _parameters(points: Sequence[Row]) -> dict[str, Parameter]:
    """What the points' records hold, as their workload declares it, or by its name."""
    names = dict.fromkeys(name for point in points for name in _params(point))
    declared: Mapping[str, Parameter] = _plugin(points[0]["module"]).POINT
    others = {name: Parameter("string", name) for name in names if name not in declared}
    return {name: one for name, one in declared.items() if name in names} | others


def _parameter(name: str, one: Parameter, point: Row) -> Value:
    value = _params(point).get(name)
    if value is None or one.type in ("string", "boolean"):
        return text(value)
    return Value(words.grouped(value) if one.type == "integer" else f"{value:g}", sort=value)


def _help(one: Shown) -> str:
    better = f"{one.better} is better" if one.better else ""
    return "; ".join(filter(None, ["median, 95 % interval" if one.series else "", better]))


def _quantity(one: Shown, point: Row) -> Value:
    stem = one.name.removesuffix("_s")
    reason = str(point.get(f"{stem.removesuffix('_mean')}_reason") or NOT_MEASURED)
    if one.series:
        return ranged(point, stem, one.scale, reason, "low", "high", 3)
    value = quantity(point.get(one.name), reason, one.scale)
    if isinstance(value.sort, float) and 0 < value.sort < TINY:
        return Value(words.scientific(value.sort), value.sort)
    return value
