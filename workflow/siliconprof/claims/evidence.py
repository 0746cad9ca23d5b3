"""The measured data that published claims are tested with: rows, courses, and errors of figures.

The error of a time is that between processes: from the host's noise floor where it has one, else
the allowance that `throughputs` assumes, and never less than the process's own interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from siliconprof.analyse import scaling
from siliconprof.analyse.equal_work import compiles
from siliconprof.analyse.throughputs import (
    NOISE_ASSUMED,
    NOISE_ASSUMED_BASIS,
    Noise,
    device_of,
    metric,
    place,
)
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.stats import inference, line_fit, training_course
from siliconprof.store.records import HERE
from siliconprof.store.results import Results
from siliconprof.store.table_files import KEY, Row, key, point_key, rows

POINTS, SHAPES, BACKENDS, CELLS = "points", "shapes", "backends", "cells"  # rows of a quantity
ASSUMED_DF = 1000.0  # an assumption has none; with so many, t is the normal distribution
# The paper gives no shapes but 2000 x 2000: a matrix with that many values or more counts as
# large, one with at most a quarter of them as small, and others as neither.
LARGE_VALUES, SMALL_VALUES = 2000 * 2000, 1000 * 1000
SIZED = ("matvec", "vjp", "matmul")
OPERATION = ("batch", "m", "k", "n", "of", "cache", "forward", "launch")
NO_SPEED_FLAG = "offload_on_cpu"
NO_SPEED = "a mechanism check, whose times mean nothing: device and host share one memory here"


@dataclass(frozen=True)
class Figure:
    """A number with its uncertainty: an error of its logarithm, or an interval's two ends."""

    middle: float
    estimate: inference.Estimate | None = None
    low: float = math.nan
    high: float = math.nan
    basis: str = ""  # the source of the error
    remark: str = ""  # another reason why it is uncertain

    def interval(self, confidence: float) -> tuple[float, float]:
        """Its interval (low, high) at a confidence of 0 to 1; given ends are returned unchanged."""
        if self.estimate is None:
            return self.low, self.high
        if not self.estimate.error:
            return self.middle, self.middle
        return self.estimate.interval(confidence)

    def over(self, printed: float, table: str) -> Figure:
        """This figure as a multiple of a printed number, which counts as exact."""
        middle = self.middle / printed
        estimate = self.estimate and inference.Estimate(
            self.estimate.log - math.log(printed),
            self.estimate.error,
            self.estimate.df,
            self.estimate.basis,
        )
        low, high = self.low / printed, self.high / printed
        basis = f"{self.basis}; over the printed {table}"
        return Figure(middle, estimate, low, high, basis, self.remark)


@dataclass(frozen=True)
class Quantity:
    """A quantity that claims compare: a figure of a row, or a word about it."""

    words: str
    unit: str
    read: Callable[[Evidence, Row], Figure | str]  # or why there is none
    rows: str = POINTS
    fastest: bool = False  # whether only the backend with the largest figure counts
    word: Callable[[Evidence, Row], str | None] | None = None  # of a finding


@dataclass
class Evidence:
    """All measured data that claims are tested with."""

    quantities: Mapping[str, Quantity]
    cells: Sequence[Row]
    points: Sequence[Row]
    shapes: Sequence[Row]
    backends: Sequence[Row]
    tables: Mapping[str, Mapping[tuple, Sequence[Row]]]  # name -> rows by cell, or by its point
    results: Results  # for the long tables: samples, training_steps
    sheets: DataSheets
    noise: Noise
    _figures: dict[tuple[str, int], Figure | str] = field(default_factory=dict)
    _places: dict[str, Mapping[tuple, Any]] = field(default_factory=dict)
    _fp32: dict[tuple, Row] | None = None
    _best: dict[tuple, float] | None = None

    @classmethod
    def of(
        cls,
        quantities: Mapping[str, Quantity],
        results: Results,
        sheets: DataSheets,
        noise: Noise,
    ) -> Evidence:
        """Build the evidence from the tables."""

        def usable(name: str) -> list[Row]:
            return [
                _identified(row, sheets)
                for row in rows(results.of_ok_cells(name))
                if row.get("point_status") in (None, "ok")
            ]

        # Every claim is about eager steps.
        points = [point for point in usable("points") if not compiles(point)]
        lines = usable("scaling")
        for point in points:
            point["shape_size"] = shape_size(point)
        whole = [p for p in points if p.get("trainer") == "training_run"]
        for pair in training_course.pairs(whole):
            for point, name in zip(pair, ("wide", "deep"), strict=True):
                point["model"] = name
        return cls(
            quantities,
            [_identified(cell, sheets) for cell in results.rows("cells")],
            points,
            [line for line in lines if line["about"] == scaling.ABOUT_SHAPE],
            [line for line in lines if line["about"] == scaling.ABOUT_BACKEND],
            {
                "curves": _by(point_key, results.rows("curves"), "step"),
                "evaluations": _by(point_key, results.rows("evaluations"), "step"),
                "energy": _by(point_key, results.rows("energy")),
                "probes": _by(key, results.rows("probes")),
                "ceilings": _by(device_of, results.rows("ceilings")),
            },
            results,
            sheets,
            noise,
        )

    def rows(self, quantity: Quantity) -> Sequence[Row]:
        """The rows that a quantity is read from."""
        by_kind = {
            POINTS: self.points,
            SHAPES: self.shapes,
            BACKENDS: self.backends,
            CELLS: self.cells,
        }
        return by_kind[quantity.rows]

    def figure(self, name: str, row: Row) -> Figure | str:
        """A quantity of a row, or why there is none."""
        cache_key = (name, id(row))
        if cache_key not in self._figures:
            self._figures[cache_key] = self.quantities[name].read(self, row)
        return self._figures[cache_key]

    def timed(
        self, row: Row, value: float | None, none: str, series: str | None = None
    ) -> Figure | str:
        """A figure proportional to a time or to its reciprocal, which has the error of the time.

        Args:
            none: the reason to return where there is no value.
            series: the name of the time in points.csv; None = that of a step.
        """
        if NO_SPEED_FLAG in (row.get("flags") or "").split(";"):
            return NO_SPEED
        if value is None or not 0 < value < math.inf:
            return none
        series = series or metric(row)
        deviation = self.noise.deviation(row, series)
        if deviation is None:
            error, df = NOISE_ASSUMED / (line_fit.NORMAL * math.sqrt(2)), ASSUMED_DF
            basis = NOISE_ASSUMED_BASIS
        else:
            error, df, basis = deviation[0].error, deviation[0].df, deviation[1]
        stem = series.removesuffix("_s")
        low, high = row.get(f"{stem}_low_s"), row.get(f"{stem}_high_s")
        if low and high:
            own_error = math.log(high / low) / (2 * line_fit.NORMAL)
            if own_error > error:
                error = own_error
                basis = "the process's own interval, which is wider than that between processes"
        estimate = inference.Estimate(math.log(value), error, df, basis)
        return Figure(value, estimate, basis=basis)

    def course(self, row: Row, column: str) -> list[float]:
        """One column of a training's curve by step; NaN where a step has none."""
        return _values(self.tables["curves"].get(point_key(row), ()), column)

    def unusual(self, row: Row) -> list[Any]:
        """For each step of a training's curve whether it took far longer than the others."""
        return [line.get("unusual") for line in self.tables["curves"].get(point_key(row), ())]

    def evaluated(self, row: Row) -> list[float]:
        """The losses on held-out data in order."""
        return _values(self.tables["evaluations"].get(point_key(row), ()), "loss")

    def energies(self, row: Row) -> Sequence[Row]:
        """The lines of energy.csv of a training point."""
        return self.tables["energy"].get(point_key(row), ())

    def probe(self, row: Row, name: str) -> Row | None:
        """A probe's line of a cell; None where the probe did not run."""
        lines = [line for line in self.tables["probes"].get(key(row), ()) if line["probe"] == name]
        return lines[0] if lines else None

    def bandwidth(self, row: Row) -> tuple[float | None, str]:
        """(bandwidth of the device's memory in bytes/s, its source), or (None, the reason)."""
        measured = [
            float(line["value"])
            for line in self.tables["ceilings"].get(device_of(row), ())
            if line["quantity"] == "memory_bandwidth" and line["value"]
        ]
        if measured:
            return max(measured), "the measured bandwidth of its memory"
        sheet = self.sheets.bandwidth(row)
        if sheet.value is None:
            return None, f"no bandwidth of its memory was measured, and {sheet.reason}"
        return sheet.value, "its data sheet's bandwidth"

    def best_product(self, row: Row) -> float | None:
        """FLOP/s of the fastest matrix product of a row's place and precision; None without one."""
        if self._best is None:
            self._best = {}
            for point in self.points:
                if point["module"] == "matmul" and point.get("flop_per_s"):
                    where = (*place(point), point["precision"])
                    self._best[where] = max(self._best.get(where, 0.0), float(point["flop_per_s"]))
        return self._best.get((*place(row), row["precision"]))

    def in_fp32(self, row: Row) -> Row | None:
        """The same operation at the same place in fp32; None where it was not timed."""
        if self._fp32 is None:
            self._fp32 = {
                _operation(point): point for point in self.points if point["precision"] == "fp32"
            }
        return self._fp32.get(_operation(row))

    def sampled(self, row: Row, column: str) -> tuple[list[float], list[float]]:
        """(seconds, values) of a column of samples.csv from the first timed step on."""
        lines = self._lines("samples", row, ("t_s", column))
        steps = self._lines("training_steps", row, ("started_s", "kind"))
        timed_starts = [float(start) for start, kind in steps if kind != "warm-up"]
        if not timed_starts or not lines:
            return [], []
        finite = [
            (float(t), float(value))
            for t, value in lines
            if t >= timed_starts[0] and value is not None and math.isfinite(value)
        ]
        return [t for t, _ in finite], [value for _, value in finite]

    def faults(self, row: Row) -> list[float]:
        """Page faults, minor and major, of each unsplit step in order."""
        columns = ("kind", "minor_faults", "major_faults")
        return [
            float(minor) + float(major)
            for kind, minor, major in self._lines("training_steps", row, columns)
            if kind == "unsplit" and minor is not None and math.isfinite(minor + major)
        ]

    def _lines(self, name: str, row: Row, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """The lines of a long table for a row's cell; empty where a column is missing."""
        frame = self.results.frame(name)
        if not len(frame) or any(column not in frame for column in columns):
            return []
        if name not in self._places:
            places: Any = frame.groupby(list(KEY), sort=False).indices
            self._places[name] = places
        positions = self._places[name].get(key(row))
        if positions is None:
            return []
        part = frame.iloc[positions]
        return list(zip(*(part[column].tolist() for column in columns), strict=True))


def shape_size(point: Mapping[str, Any]) -> str | None:
    """`large` or `small` by the paper's one printed shape; None between, and of other work."""
    if point.get("module") not in SIZED or not point.get("m") or not point.get("k"):
        return None
    values = float(point["m"]) * float(point["k"])
    return "large" if values >= LARGE_VALUES else "small" if values <= SMALL_VALUES else None


def _identified(row: Row, sheets: DataSheets) -> Row:
    """A row with its device's name in the registry, vendor and price, where known."""
    entry = sheets.entry(row)
    names = [name for name, listed in sheets.registry["devices"].items() if listed is entry]
    vendor = entry["vendor"] if entry else None
    if entry is None and row["source"] == HERE:
        devices = [d for d in sheets.host["devices"] if d["id"] == row["device"]]
        vendor = devices[0].get("vendor") if devices else None
    price = entry["price_usd"] if entry else None
    return row | {
        "registry_id": names[0] if entry else None,
        "vendor": vendor,
        "framework": str(row["backend"]).partition("-")[0],
        "price_usd": float(price["value"]) if price else None,
        "lora": bool(row.get("lora_rank")),
    }


def _operation(row: Mapping[str, Any]) -> tuple:
    return (*place(row), row["module"], *(row.get(name) for name in OPERATION))


def _by(
    name: Callable[[Mapping[str, Any]], tuple], rows: Sequence[Row], order: str = ""
) -> dict[tuple, list[Row]]:
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(name(row), []).append(row)
    if order:
        groups = {where: sorted(part, key=lambda row: row[order]) for where, part in groups.items()}
    return groups


def _values(rows: Sequence[Row], column: str) -> list[float]:
    return [math.nan if row.get(column) is None else float(row[column]) for row in rows]
