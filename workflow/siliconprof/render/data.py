"""What the page is made of: the tables of `aggregate`, the matrix, the registry, the published.

Rows are plain dictionaries in which a missing value is None; the long tables (steps, samples)
stay pandas frames. A cell that is not `ok` keeps its row and loses its points: a time that was not
measured in the way that its cell names is no result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from siliconprof import words
from siliconprof.analyse import published_values
from siliconprof.analyse.equal_work import by_phases, has_no_speed
from siliconprof.analyse.throughputs import FLAG_OF_VERDICT, device_of, fastest_product
from siliconprof.errors import UserError
from siliconprof.hosts import registry
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.render.traces import Traces, key, point_key
from siliconprof.render.variants import Family, Row, family, family_order, label, model, order, stem
from siliconprof.store import matrix_file, table_files
from siliconprof.store.matrix_file import Matrix
from siliconprof.store.records import HERE
from siliconprof.store.results import Results
from siliconprof.store.table_files import rows

KEY = table_files.KEY
PUBLISHED = (
    "table1_devices",
    "table2_workloads",
    "table3_configurations",
    "table4_pass_time",
    "table5_energy",
    "table6_kernel_launch",
    "feng2025_statements",
    "daniel2023_speedups",
)
ADDED = ("flags", "flag_details", "offloads", "probes_off")  # to what cells.csv says of a cell
# Tables whose lines are shown as they are: those of a cell each, and others.
OF_CELLS = (
    "energy",
    "ceilings",
    "checks",
    "expected",
    "scaling",
    "predicted",
    "history",
)
OTHERS = ("outside", "unreadable", "models", "published_gaps", "attribution", "claims")
SWITCHED_OFF = "switched off for this cell"  # what the sampler says of a probe left out on purpose


@dataclass
class Data:
    """Everything that was read."""

    matrix: Matrix
    cells: list[Row]
    points: list[Row]  # of cells whose status is ok, with the cell's columns
    traces: Traces
    outside: list[Row]
    registry: Mapping[str, Any]
    published: dict[str, list[Row]]
    results: Path
    energy: list[Row] = field(default_factory=list)  # one per source of energy of a training
    probes: list[Row] = field(default_factory=list)  # one per probe of a cell
    models: list[Row] = field(default_factory=list)
    # The stages' own: see `ceilings`, `expected`, `attribution` (of everybody) and `prediction` of
    # `siliconprof.analyse`, and `siliconprof.claims.judge`.
    ceilings: list[Row] = field(default_factory=list)
    checks: list[Row] = field(default_factory=list)  # one per throughput
    expected: list[Row] = field(default_factory=list)
    scaling: list[Row] = field(default_factory=list)
    published_gaps: list[Row] = field(default_factory=list)  # nothing in it is measured
    attribution: list[Row] = field(default_factory=list)
    predicted: list[Row] = field(default_factory=list)
    claims: list[Row] = field(default_factory=list)
    history: list[Row] = field(default_factory=list)  # see `siliconprof.analyse.history`
    unreadable: list[Row] = field(default_factory=list)  # records
    _only: dict[str, Data] = field(default_factory=dict, init=False)  # see `only`

    @property
    def host(self) -> Mapping[str, Any]:
        """The host file's content."""
        return self.matrix.host

    def only(self, source: str) -> Data:
        """The same, with the measurements of one source alone."""
        if source not in self._only:  # nearly every part of the page asks
            self._only[source] = self._selected(lambda row: row["source"] == source)
        return self._only[source]

    def _selected(self, selected: Callable[[Mapping[str, Any]], bool]) -> Data:
        kept: dict[str, Any] = {
            name: [row for row in getattr(self, name) if selected(row)]
            for name in ("cells", "points", "probes", *OF_CELLS)
        }
        kept["attribution"] = [row for row in self.attribution if all(map(selected, sides(row)))]
        return replace(self, **kept)

    def of_module(self, module: str) -> list[Row]:
        """Measured points of one workload module, in the page's order."""
        return sorted((p for p in self.points if p["module"] == module), key=order)

    def why_none(self, module: str, what: str) -> str:
        """Why there is no figure of a workload module's points, in one sentence."""
        cells = [cell for cell in self.cells if cell["module"] == module]
        if not cells:
            return f"No figure: no {what} cell is part of these results."
        reasons = sorted({f"{cell['status']}: {cell['reason']}" for cell in cells})
        return f"No figure: no {what} was measured ({'; '.join(reasons)})."

    def training(self) -> list[Row]:
        """Measured points of training cells, each the one of its cell, timed phase by phase."""
        return sorted((p for p in self.points if by_phases(p)), key=order)

    def with_speed(self) -> list[Row]:
        """Those of them that say how fast something is: all but mechanism checks."""
        return [point for point in self.training() if not has_no_speed(point)]

    def whole_trainings(self, trainer: str) -> list[Row]:
        """Measured points of trainings that ran from first to last step."""
        return sorted((p for p in self.points if p["trainer"] == trainer), key=order)

    def families(self) -> dict[Family, tuple[list[Row], list[Row]]]:
        """Family -> (measured points, cells that were not measured)."""
        families: dict[Family, tuple[list[Row], list[Row]]] = {}
        home: dict[str, Family] = {}  # of a workload without its trainer, else of a model
        for point in sorted(self.training(), key=family_order):
            kind = family(point)
            families.setdefault(kind, ([], []))[0].append(point)
            home.setdefault(stem(point), kind)
        for point in self.training():
            home.setdefault(model(point), family(point))
        for cell in sorted(self.cells, key=family_order):
            if by_phases(cell) and cell["status"] != "ok":
                kind = home.get(stem(cell)) or home.get(model(cell)) or Family(model(cell))
                families.setdefault(kind, ([], []))[1].append(cell)
        return dict(sorted(families.items(), key=lambda item: item[0].order))

    @cached_property
    def sheets(self) -> DataSheets:
        """What the registry says of a row's device."""
        return DataSheets(self.registry, self.host)

    def device(self, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The registry's entry of a row's device, None when there is none."""
        return self.sheets.entry(row)

    def peak_flop_per_s(self, row: Mapping[str, Any]) -> float | None:
        """The data sheet's peak for a row's precision, None when nobody knows it."""
        entry = self.device(row)
        peak = registry.peak_tflops(entry, row["precision"]) if entry else None
        return None if peak is None else peak * 1e12

    def ceiling(self, row: Mapping[str, Any], quantity: str) -> Row | None:
        """The line of ceilings.csv for a row's device, backend and number format, or None.

        Memory knows neither backends nor number formats: the best of any counts.
        """
        lines = self._ceilings.get((*device_of(row), quantity), [])
        own = registry.PEAK_OF_PRECISION[row["precision"]]
        if quantity != "memory_bandwidth":
            lines = [
                line
                for line in lines
                if (line["backend"], line["precision"]) == (row["backend"], own)
            ]
        return max(lines, key=lambda line: line["value"] or 0.0, default=None)

    def ceiling_value(
        self, row: Mapping[str, Any], quantity: str, column: str = "value"
    ) -> float | None:
        """A number of that line, `datasheet_value` for one; None where there is none."""
        line = self.ceiling(row, quantity)
        return words.number(line[column]) if line else None

    def best_product(self, row: Mapping[str, Any]) -> float | None:
        """FLOP/s of the fastest product that a training of a row may use, or None."""
        return fastest_product(self._ceilings.get((*device_of(row), "matmul"), []), row)

    def cache_bytes(self, row: Mapping[str, Any]) -> float | None:
        """The last-level cache of a row's device; None where its size is unknown."""
        sizes = (
            words.number(line["last_level_cache_bytes"])
            for line in self.ceilings
            if device_of(line) == device_of(row)
        )
        return next((size for size in sizes if size), None)

    def check(self, point: Mapping[str, Any], quantity: str) -> Row | None:
        """The line of checks.csv for a throughput of a point, or None."""
        return self._checks.get((*point_key(point), quantity))

    @cached_property
    def _ceilings(self) -> dict[tuple, list[Row]]:
        return grouped(self.ceilings, lambda line: (*device_of(line), line["quantity"]))

    @cached_property
    def _checks(self) -> dict[tuple, Row]:
        return {(*key(line), int(line["point"]), line["quantity"]): line for line in self.checks}

    def name_of_device(self, device: str) -> str:
        """What people call a device, by its id alone."""
        row = next((cell for cell in self.cells if cell["device"] == device), None)
        return self.device_name(row) if row else device

    def trainer_of(self, workload: str) -> str:
        """What drives a workload; `none` where it trains nothing."""
        return next((c["trainer"] for c in self.cells if c["workload"] == workload), None) or "none"

    def listed_name(self, device: str | None) -> str:
        """What the registry calls a device; its id where it has none."""
        return str(self.registry["devices"].get(device, {}).get("name", device or ""))

    def device_name(self, row: Mapping[str, Any]) -> str:
        """What people call a row's device."""
        entry = self.device(row)
        if entry:
            return entry["name"]
        if row["source"] == HERE:
            for device in self.host["devices"]:
                if device["id"] == row["device"]:
                    return device["name"]
        return row["device"]

    def place(self, row: Mapping[str, Any]) -> str:
        """A row's device, and its host where that is not this one."""
        whose, name = words.whose(row), self.device_name(row)
        return f"{name} [{whose}]" if whose else name

    def slug_of(self, row: Mapping[str, Any]) -> str:
        """A row's device in the names of figures, with its host where that is not this one."""
        return row["device"] if row["source"] == HERE else f"{row['host']}-{row['device']}"


grouped = table_files.grouped


def sides(line: Mapping[str, Any]) -> list[Row]:
    """The two trainings that a line of attribution.csv is about: the columns that name them."""
    return [{name: line[f"{side}_{name}"] for name in (*KEY, "point")} for side in ("fast", "slow")]


def read_published(folder: Path) -> dict[str, list[Row]]:
    """The published tables by file name; an empty cell is None.

    Raises:
        UserError: a file is missing; all of them, one line each.
    """
    tables, mistakes = {}, []
    for name in PUBLISHED:
        try:
            tables[name] = [
                {key: value or None for key, value in row.items()}
                for row in published_values.read_table(folder / f"{name}.csv")
            ]
        except UserError as error:
            mistakes.append(str(error))
    if mistakes:
        raise UserError("\n".join(mistakes))
    return tables


def load(matrix: Path, results: Results, published: Path, registry_: Path) -> Data:
    """Everything, checked as far as the page needs it.

    Raises:
        UserError: a file is missing or damaged.
    """
    document = matrix_file.read(matrix)
    probes = rows(results.frame("probes"))  # these two get more columns, so they are no shared rows
    cells = sorted(rows(results.frame("cells")), key=order)
    _circumstances(cells, probes)
    _flag_impossible(cells, results.rows("checks"))
    points = _measured(results, cells)
    as_they_are: dict[str, Any] = {name: results.rows(name) for name in (*OF_CELLS, *OTHERS)}
    return Data(
        matrix=document,
        cells=cells,
        points=points,
        traces=Traces(**{table.name: results.frame(table.name) for table in fields(Traces)}),
        registry=registry.load(registry_),
        published=read_published(published),
        results=results.tables.parent,
        probes=probes,
        **as_they_are,
    )


def _circumstances(cells: Sequence[Row], probes: Sequence[Row]) -> None:
    """Add to each cell whether it was offloaded, and whether its probes were all switched off.

    Each probe gets what its cell multiplied with, which the page shows with the backend's name.
    """
    by_key = {key(cell): cell for cell in cells}
    for probe in probes:
        own_cell = by_key.get(key(probe), {})
        probe |= {name: own_cell.get(name) for name in ("device_kind", "blas")}
    of_cell = grouped(probes, key)
    for cell in cells:
        cell["offloads"] = cell.get("scenario_applied") == "offload"
        means = {probe["means"] for probe in of_cell.get(key(cell), ())}
        cell["probes_off"] = means == {SWITCHED_OFF}


def _flag_impossible(cells: Iterable[Row], checks: Iterable[Row]) -> None:
    """Flag the cells that have a throughput above what their device can do.

    Their records stay as they are: a value above a ceiling shows only beside other records.
    """
    by_key = {key(cell): cell for cell in cells}
    for check in checks:
        code = FLAG_OF_VERDICT.get(check["verdict"])
        cell = by_key.get(key(check))
        if code and cell is not None:
            for name, text in (("flags", code), ("flag_details", f"{code}: {check['reason']}")):
                cell[name] = (
                    f"{cell[name]}{'; ' if name == 'flag_details' else ';'}{text}"
                    if cell[name]
                    else text
                )


def _measured(results: Results, cells: Iterable[Row]) -> list[Row]:
    """Points of cells that are ok, each with its cell's columns, the added ones among them."""
    by_key = {key(cell): cell for cell in cells}
    points = rows(results.of_ok_cells())
    for point in points:
        point |= {name: by_key[key(point)][name] for name in ADDED}
    _tell_twins_apart(filter(by_phases, points))
    return points


def _tell_twins_apart(points: Iterable[Row]) -> None:
    """Mark training points that a family's labels would not tell apart."""

    def name(point: Row) -> tuple:
        return (family(point), point["source"], point["host"], point["device"], label(point))

    for twins in grouped(points, name).values():
        for point in twins:
            point["twin"] = len(twins) > 1
