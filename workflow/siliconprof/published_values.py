"""Numbers of config/published and of the registry, looked up by what their rows say.

A number that a table has is never typed again: claims take it from here, and whether a statement
agrees with a table is computed from it.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siliconprof import validation
from siliconprof.registry import Registry

REGISTRY = "registry"  # the pseudo-table of data sheets
PEAKS = ("fp32", "tf32", "fp16", "bf16")
# What a column's unit has to be multiplied with to be an SI unit.
SCALES = {"ms": 1e-3, "s": 1.0, "j": 1.0}
# What a row is about; two names of one thing are said once.
NAMES = ("workload_as_printed", "workload", "model", "device", "device_a", "device_b", "backend")


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
                with open(path, encoding="utf-8", newline="") as stream:
                    self._tables[name] = list(csv.DictReader(stream))
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                raise Unknown(f".table: {path} cannot be read ({why})") from None
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
        self, spec: Mapping[str, Any], beside: Mapping[str, str] | None = None
    ) -> list[dict[str, str]]:
        """The rows that a specification names.

        Args:
            spec: `table`, and what rows must have: `where` (column -> value or values), `match`
                (column -> the column of `beside` that it must equal).

        Raises:
            Unknown: no such table or column, or no row.
        """
        rows = self.rows(spec["table"])
        wanted = {
            column: [str(v) for v in (value if isinstance(value, list) else [value])]
            for column, value in spec.get("where", {}).items()
        }
        wanted |= {column: [(beside or {})[of]] for column, of in spec.get("match", {}).items()}
        for column in (*wanted, *([spec["column"]] if "column" in spec else [])):
            if rows and column not in rows[0]:
                near = validation.nearest(column, rows[0])
                raise Unknown(f".{column}: {spec['table']} has no such column{near}")
        found = [row for row in rows if all(row[name] in values for name, values in wanted.items())]
        if not found:
            said = ", ".join(f"{name} {' or '.join(values)}" for name, values in wanted.items())
            raise Unknown(f".where: no row of {spec['table']} has {said or 'anything'}")
        return found

    def numbers(
        self, spec: Mapping[str, Any], beside: Mapping[str, str] | None = None
    ) -> list[Number]:
        """The numbers that a specification names: a column of rows, divided or multiplied.

        Args:
            spec: as of `chosen`, with `column`; `per`, a column to divide by; `times`, a factor.

        Raises:
            Unknown: see `chosen`; or a value is no number.
        """
        found = []
        for row in self.chosen(spec, beside):
            try:
                value, shown = float(row[spec["column"]]), row[spec["column"]]
                if "per" in spec:
                    value, shown = value / float(row[spec["per"]]), f"{shown}/{row[spec['per']]}"
                if "times" in spec:
                    value, shown = value * spec["times"], f"{shown} × {spec['times']:.6g}"
            except (ValueError, KeyError):
                where = f"{spec['table']}, {self.label(row)}"
                raise Unknown(f".{spec['column']}: no number in {where}") from None
            found.append(Number(value, shown, row))
        return found

    def label(self, row: Mapping[str, str], without: Collection[str] = ()) -> str:
        """What a row is about, each thing said once: `M2 Ultra, mlx`."""
        printed = {r["device"]: r["device_as_printed"] for r in self.rows("table1_devices")}
        devices = self.registry["devices"]
        said: dict[str, None] = {}
        for name in NAMES:
            value = row.get(name)
            if value and name not in without:
                known = devices.get(value, {}).get("name", value) if "device" in name else value
                said[printed.get(value, known)] = None
        return ", ".join(said)


def _figure(figure: Mapping[str, Any] | None) -> str:
    return f"{figure['value']:g}" if figure else ""


def per_device(published: Published, spec: Mapping[str, Any]) -> dict[str, float]:
    """Device -> its printed number in an SI unit, by the column's ending.

    Raises:
        Unknown: see `Published.numbers`.
    """
    scale = SCALES.get(spec["column"].rpartition("_")[2], 1.0)
    return {number.row["device"]: scale * number.value for number in published.numbers(spec)}
