"""The measured data that published claims are tested with: rows, courses, and errors of figures.

The error of a time is that between processes where its cell was measured in several, else the one
within its process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from siliconprof.analyse import scaling
from siliconprof.analyse.equal_work import compiles, has_no_speed
from siliconprof.analyse.throughputs import (
    DEVICE,
    bandwidths,
    device_of,
    estimate,
    metric,
    place,
)
from siliconprof.claims.figures import Figure
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.stats import training_course
from siliconprof.store.records import HERE
from siliconprof.store.results import Results
from siliconprof.store.table_files import KEY, Row, grouped, point_key, rows

# The rows that a quantity is read from: of a table, or lines of scaling.csv about something.
POINTS, CELLS, SHAPES, BACKENDS = "points", "cells", scaling.ABOUT_SHAPE, scaling.ABOUT_BACKEND
# The paper gives no shapes but 2000 x 2000: a matrix with that many values or more counts as
# large, one with at most a quarter of them as small, and others as neither.
LARGE_VALUES, SMALL_VALUES = 2000 * 2000, 1000 * 1000
SIZED = ("matvec", "vjp", "matmul")
OPERATION = ("batch", "m", "k", "n", "of", "cache", "forward", "launch")
NO_SPEED = "a mechanism check, whose times mean nothing: device and host share one memory here"


class Missing(Exception):
    """Why a row has no figure."""


@dataclass(frozen=True)
class Quantity:
    """A quantity that claims compare: a figure of a row, or a word about it."""

    words: str
    unit: str
    read: Callable[[Evidence, Row], Figure]  # raises Missing
    rows: str = POINTS
    fastest: bool = False  # whether only the backend with the largest figure counts
    finding: bool = False  # whether it is a word


@dataclass
class Evidence:
    """All measured data that claims are tested with."""

    results: Results
    sheets: DataSheets
    _figures: dict[tuple[str, int], Figure | Missing] = field(default_factory=dict)
    _places: dict[str, Mapping[tuple, Any]] = field(default_factory=dict)
    _columns: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)

    @cached_property
    def cells(self) -> list[Row]:
        """All cells."""
        return [self._identified(cell) for cell in self.results.rows("cells")]

    @cached_property
    def devices(self) -> set[str | None]:
        """The devices that have cells, by their own ids and the registry's."""
        return {cell[name] for cell in self.cells for name in ("device", "registry_id")}

    @cached_property
    def points(self) -> list[Row]:
        """The points of cells that are ok; every claim is about eager steps."""
        points = [point for point in self._of_ok_cells("points") if not compiles(point)]
        for point in points:
            point["shape_size"] = shape_size(point)
        whole = [p for p in points if p.get("trainer") == "training_run"]
        for pair in training_course.pairs(whole):
            for point, name in zip(pair, ("wide", "deep"), strict=True):
                point["model"] = name
        return points

    @cached_property
    def _lines(self) -> list[Row]:
        return self._of_ok_cells("scaling")

    def rows(self, quantity: Quantity) -> Sequence[Row]:
        """The rows that a quantity is read from."""
        if quantity.rows in (POINTS, CELLS):
            return self.points if quantity.rows == POINTS else self.cells
        return [line for line in self._lines if line["about"] == quantity.rows]

    def _of_ok_cells(self, name: str) -> list[Row]:
        lines = rows(self.results.of_ok_cells(name))
        return [self._identified(r) for r in lines if r.get("point_status") in (None, "ok")]

    def _identified(self, row: Row) -> Row:
        """A row with its device's name in the registry, vendor and price, where known."""
        entry, devices = self.sheets.entry(row), self.sheets.registry["devices"]
        vendor = entry["vendor"] if entry else None
        if entry is None and row["source"] == HERE:
            own = [d.get("vendor") for d in self.sheets.host["devices"] if d["id"] == row["device"]]
            vendor = own[0] if own else None
        return row | {
            "registry_id": next((name for name in devices if devices[name] is entry), None),
            "vendor": vendor,
            "framework": str(row["backend"]).partition("-")[0],
            "price_usd": self.sheets.price_usd(row),
            "lora": bool(row.get("lora_rank")),
        }

    def figure(self, name: str, quantity: Quantity, row: Row) -> Figure | Missing:
        """A quantity of a row, or why there is none."""
        cache_key = (name, id(row))
        if cache_key not in self._figures:
            try:
                self._figures[cache_key] = quantity.read(self, row)
            except Missing as reason:
                self._figures[cache_key] = reason
        return self._figures[cache_key]

    def timed(self, row: Row, value: float | None, none: str, series: str | None = None) -> Figure:
        """A figure proportional to a time or to its reciprocal, which has the error of the time.

        Args:
            none: the reason where there is no value.
            series: the name of the time in points.csv; None = that of a step.

        Raises:
            Missing: there is no value, or the times of its cell mean nothing.
        """
        if has_no_speed(row):
            raise Missing(NO_SPEED)
        if value is None or not 0 < value < math.inf:
            raise Missing(none)
        series = series or metric(row)
        known = estimate(row, series.removesuffix("_s"))
        if known is None:
            raise Missing(none)
        return Figure(value, replace(known, log=math.log(value)), basis=known.basis)

    def lines(
        self, table: str, row: Row, columns: Sequence[str], of_point: bool = False
    ) -> list[np.ndarray]:
        """Columns of a table's lines about a row's cell, or about its point alone; NaN for none."""
        names = [*KEY, *(["point"] if of_point else [])]
        frame = self.results.frame(table)
        if table not in self._places:
            places: Any = frame.groupby(names, sort=False).indices if len(frame) else {}
            self._places[table] = places
        where = self._places[table].get(tuple(row[name] for name in names), [])
        return [self._column(table, frame, name)[where] for name in columns]

    def _column(self, table: str, frame: pd.DataFrame, name: str) -> np.ndarray:
        """A column of a table; what is no number is an object, NaN where it is missing."""
        if (table, name) not in self._columns:
            column = frame[name] if name in frame else pd.Series(math.nan, frame.index, object)
            is_number = column.dtype.kind in "if"
            values = column.to_numpy() if is_number else column.to_numpy(object, na_value=math.nan)
            self._columns[table, name] = values
        return self._columns[table, name]

    def course(self, row: Row, table: str, column: str) -> list[float]:
        """A column of a point's lines of a table in order of their steps; NaN where one has none."""
        steps, values = self.lines(table, row, ("step", column), of_point=True)
        return values[steps.argsort(kind="stable")].astype(float).tolist()

    def sampled(self, row: Row, column: str) -> tuple[list[float], list[float]]:
        """(seconds, values) of a column of samples.csv from the first timed step on."""
        started_s, kinds = self.lines("training_steps", row, ("started_s", "kind"))
        timed = started_s[kinds != "warm-up"]
        seconds, values = (of.astype(float) for of in self.lines("samples", row, ("t_s", column)))
        used = (abs(values) < math.inf) & (seconds >= (timed[0] if len(timed) else math.inf))
        return seconds[used].tolist(), values[used].tolist()

    @cached_property
    def energies(self) -> dict[tuple, list[Row]]:
        """Key of a point -> the lines of energy.csv about it."""
        return grouped(self.results.rows("energy"), point_key)

    def bandwidth(self, row: Row) -> tuple[float, str]:
        """(bandwidth of the device's memory in bytes/s, its source).

        Raises:
            Missing: it is not known.
        """
        measured = self._bandwidths.get(device_of(row))
        if measured:
            return measured, "the measured bandwidth of its memory"
        sheet = self.sheets.bandwidth(row)
        if sheet.value is None:
            raise Missing(f"no bandwidth of its memory was measured, and {sheet.reason}")
        return sheet.value, "its data sheet's bandwidth"

    @cached_property
    def _bandwidths(self) -> Mapping[Any, float]:
        """Device -> bandwidth of its memory in bytes/s, where it was measured."""
        of_devices = bandwidths(self.results.frame("ceilings")).set_index(DEVICE)
        return of_devices["ceiling"].dropna().to_dict()

    @cached_property
    def products(self) -> dict[tuple, float]:
        """(*place, precision) -> FLOP/s of the fastest matrix product."""
        timed = [p for p in self.points if p["module"] == "matmul" and p.get("flop_per_s")]
        slowest_first = sorted(timed, key=lambda p: float(p["flop_per_s"]))
        return {(*place(p), p["precision"]): float(p["flop_per_s"]) for p in slowest_first}

    @cached_property
    def in_fp32(self) -> dict[tuple, Row]:
        """Operation -> its point in fp32."""
        return {operation(point): point for point in self.points if point["precision"] == "fp32"}


def shape_size(point: Row) -> str | None:
    """`large` or `small` by the paper's one printed shape; None between, and of other work."""
    if point.get("module") not in SIZED or not point.get("m") or not point.get("k"):
        return None
    values = float(point["m"]) * float(point["k"])
    return "large" if values >= LARGE_VALUES else "small" if values <= SMALL_VALUES else None


def operation(row: Row) -> tuple:
    """What an operation does and where, in whatever precision."""
    return (*place(row), row["module"], *(row.get(name) for name in OPERATION))
