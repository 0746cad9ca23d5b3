"""Numbers of config/published and of the registry, looked up by what their rows say.

A number that a table has is never typed again: claims take it from here, and whether a statement
agrees with a table is computed from it.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError, nearest
from siliconprof.hosts.registry import Registry

REGISTRY = "registry"  # the pseudo-table of data sheets
PEAKS = ("fp32", "tf32", "fp16", "bf16")
# What a column's unit has to be multiplied with to be an SI unit.
SCALES = {"ms": 1e-3, "s": 1.0, "j": 1.0}
# What a row is about; two names of one thing are said once.
NAMES = ("workload_as_printed", "workload", "model", "device", "device_a", "device_b", "backend")

STATEMENTS = "device_a,device_b,model,batch_size,statement,value_min,value_max,unit,source,note"
HEADERS = {  # table -> the columns that its readers need, as its first line has them
    "feng2025_statements": STATEMENTS,
    "wide_deep_report_speedups": STATEMENTS,
    "daniel2023_speedups": STATEMENTS,
    "table1_devices": "device,device_as_printed,memory_gb,compute_tflops,launch_price_usd,source,note",
    "table2_workloads": "workload_as_printed,parameters_m,theoretical_memory_gib,source,note",
    "table3_configurations": "scenario,workload,batch_size,device,device_as_printed,source,note",
    "table4_pass_time": "device,backend,workload,batch_size,pass_time_s,precision,source,note",
    "table5_energy": "device,energy_per_iteration_j,scope,workload,batch_size,precision,source,note",
    "table6_kernel_launch": "device,cold_launch_ms,followup_launch_ms,source,note",
}
POSITIVE = {
    "batch_size",
    "parameters_m",
    "theoretical_memory_gib",
    "memory_gb",
    "compute_tflops",
    "launch_price_usd",
    "pass_time_s",
    "energy_per_iteration_j",
    "cold_launch_ms",
    "followup_launch_ms",
}
NUMBERS = {"value_min", "value_max", *POSITIVE}  # empty where a source has none


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a published table, each with every column.

    Raises:
        UserError: all that is wrong with it, one line each.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        lines = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        rows = list(lines)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    header = list(lines.fieldnames or ())
    needed = HEADERS[path.stem].split(",") if path.stem in HEADERS else []
    missing = [name for name in needed if name not in header]
    if missing or len(set(header)) < len(header):
        problem = f"no column {', '.join(missing)}" if missing else "a column is there twice"
        raise UserError(f"{path}: {problem}")
    mistakes = []
    for number, row in enumerate(rows, 2):
        where = f"{path}: row {number}"
        if None in row or None in row.values():
            mistakes.append(f"{where}: {len(header)} columns, and as many values are expected")
            continue
        for name in NUMBERS & row.keys():
            if row[name] and not _is_number(row[name], name in POSITIVE):
                kind = "a positive number" if name in POSITIVE else "a number"
                mistakes.append(f"{where}: {name}: is {row[name][:60]!r}; expected {kind}")
    if mistakes:
        raise UserError("\n".join(mistakes[:20]))
    return rows


def model_and_size(workload: str) -> tuple[str, str]:
    """`Whisper-medium`, as the paper names it, in our names: module and size."""
    name, _, size = workload.lower().partition("-")
    return name, size


def _is_number(text: str, positive: bool) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isfinite(value) and (value > 0 or not positive)


class Unknown(Exception):
    """A table, a column or a row that is not there; `.key: what`."""


@dataclass(frozen=True)
class Number:
    """One printed number, with what its row is about."""

    value: float
    shown: str  # as it was printed, with what it was divided by
    row: Mapping[str, str]


class Published:
    """The published tables and the registry, read once each."""

    def __init__(self, folder: Path, registry: Registry) -> None:
        self.folder, self.registry = folder, registry
        self._tables: dict[str, list[dict[str, str]]] = {}

    def rows(self, name: str) -> list[dict[str, str]]:
        """The rows of a table.

        Raises:
            Unknown: it cannot be read.
        """
        if name == REGISTRY:
            return list(self._sheets())
        if name not in self._tables:
            path = self.folder / f"{name}.csv"
            try:
                self._tables[name] = read_table(path)
            except UserError as error:
                raise Unknown(f".table: {str(error).splitlines()[0]}") from None
        return self._tables[name]

    def _sheets(self) -> Iterator[dict[str, str]]:
        for name, entry in self.registry["devices"].items():
            row = {"device": name, "vendor": entry["vendor"], "kind": entry["kind"]}
            for column in ("price_usd", "memory_gib", "bandwidth_gb_per_s", "power_w"):
                row[column] = _figure(entry.get(column))
            for column in PEAKS:
                row[f"{column}_tflops"] = _figure(entry["peak_tflops"][column])
            yield row

    def chosen(
        self, spec: Mapping[str, Any], other: Mapping[str, str] | None = None
    ) -> list[dict[str, str]]:
        """The rows that a specification names.

        Args:
            spec: `table`, and what rows must have: `where` (column -> value or values), `match`
                (column -> the column of `other` that it must equal).

        Raises:
            Unknown: no such table or column, or no row.
        """
        rows = self.rows(spec["table"])
        wanted = {
            column: [str(v) for v in (value if isinstance(value, list) else [value])]
            for column, value in spec.get("where", {}).items()
        }
        wanted |= {column: [(other or {})[of]] for column, of in spec.get("match", {}).items()}
        for column in (*wanted, *([spec["column"]] if "column" in spec else [])):
            if rows and column not in rows[0]:
                hint = nearest(column, rows[0])
                raise Unknown(f".{column}: {spec['table']} has no such column{hint}")
        matching = [
            row for row in rows if all(row[name] in values for name, values in wanted.items())
        ]
        if not matching:
            conditions = ", ".join(
                f"{name} {' or '.join(values)}" for name, values in wanted.items()
            )
            raise Unknown(f".where: no row of {spec['table']} has {conditions or 'anything'}")
        return matching

    def numbers(
        self, spec: Mapping[str, Any], other: Mapping[str, str] | None = None
    ) -> list[Number]:
        """The numbers that a specification names: a column of rows, divided or multiplied.

        Args:
            spec: as of `chosen`, with `column`; `per`, a column to divide by; `times`, a factor.

        Raises:
            Unknown: see `chosen`; or a value is no number.
        """
        numbers = []
        for row in self.chosen(spec, other):
            try:
                value, shown = float(row[spec["column"]]), row[spec["column"]]
                if "per" in spec:
                    value, shown = value / float(row[spec["per"]]), f"{shown}/{row[spec['per']]}"
                if "times" in spec:
                    value, shown = value * spec["times"], f"{shown} × {spec['times']:.6g}"
            except (ValueError, KeyError):
                where = f"{spec['table']}, {self.label(row)}"
                raise Unknown(f".{spec['column']}: no number in {where}") from None
            numbers.append(Number(value, shown, row))
        return numbers

    def label(self, row: Mapping[str, str], without: Collection[str] = ()) -> str:
        """What a row is about, each thing said once: `M2 Ultra, mlx`."""
        printed = {r["device"]: r["device_as_printed"] for r in self.rows("table1_devices")}
        devices = self.registry["devices"]
        parts: dict[str, None] = {}
        for name in NAMES:
            value = row.get(name)
            if value and name not in without:
                full_name = devices.get(value, {}).get("name", value) if "device" in name else value
                parts[printed.get(value, full_name)] = None
        return ", ".join(parts)


def _figure(figure: Mapping[str, Any] | None) -> str:
    return f"{figure['value']:g}" if figure else ""


def per_device(published: Published, spec: Mapping[str, Any]) -> dict[str, float]:
    """Device -> its printed number in an SI unit, by the column's ending.

    Raises:
        Unknown: see `Published.numbers`.
    """
    scale = SCALES.get(spec["column"].rpartition("_")[2], 1.0)
    return {number.row["device"]: scale * number.value for number in published.numbers(spec)}
