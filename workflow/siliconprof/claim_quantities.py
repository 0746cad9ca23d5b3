"""What a claim may compare: figures of measured rows, each with what noise leaves open of it.

The error of a time is that between processes: from the host's noise floor where it has one, else
the same allowance that `throughputs` makes, and never less than the process's own interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from siliconprof import inference, line_fit, scaling, training_course
from siliconprof.datasheet import DataSheets
from siliconprof.record_rows import HERE, KEY
from siliconprof.table_files import Row
from siliconprof.throughputs import NOISE_ASSUMED, NOISE_ASSUMED_BASIS, Noise, metric
from siliconprof.training_course import Reading

POINTS, SHAPES, BACKENDS = "points", "shapes", "backends"  # which rows a quantity is of
ASSUMED_DF = 1000.0  # an assumption has no degrees of freedom; so many make t the normal
FROM_CELL = ("seed", "data_sha256", "method_version", "device_kind", "gradient_checkpointing",
             "record")  # fmt: skip
COUNTED = "counted by the framework's allocator; no spread of it is known"


@dataclass(frozen=True)
class Figure:
    """A number with what it may be: an error on its logarithm, or the two ends themselves."""

    middle: float
    estimate: inference.Estimate | None = None
    low: float = math.nan
    high: float = math.nan
    basis: str = ""  # where the error is from
    remark: str = ""  # what else keeps it open

    def interval(self, confidence: float) -> tuple[float, float]:
        """What it may be; ends that were given stay as they are."""
        if self.estimate is None:
            return self.low, self.high
        if not self.estimate.error:
            return self.middle, self.middle
        return self.estimate.interval(confidence)


@dataclass(frozen=True)
class Quantity:
    """One thing that claims compare."""

    words: str
    unit: str
    read: Callable[[Evidence, Row], Figure | str]  # or why there is none
    rows: str = POINTS
    fastest: bool = False  # of several backends of a device the one with the most counts


@dataclass
class Evidence:
    """Everything that was measured, as claims look at it."""

    cells: Sequence[Row]
    points: Sequence[Row]
    shapes: Sequence[Row]
    backends: Sequence[Row]
    curves: Mapping[tuple, Sequence[Row]]
    evaluations: Mapping[tuple, Sequence[Row]]
    sheets: DataSheets
    noise: Noise
    _figures: dict[tuple[str, int], Figure | str] = field(default_factory=dict)

    @classmethod
    def of(cls, tables: Mapping[str, Sequence[Row]], sheets: DataSheets, noise: Noise) -> Evidence:
        """From the tables by name: cells, points, scaling, curves, evaluations."""
        cells = [_seen(cell, sheets) for cell in tables["cells"]]
        by_key = {_key(cell): cell for cell in cells}
        names = ("registry_id", "vendor", "module", *FROM_CELL)

        def usable(rows: Sequence[Row]) -> list[Row]:
            ok = [r for r in rows if by_key.get(_key(r), {}).get("status") == "ok"]
            return [
                dict(row) | {name: by_key[_key(row)].get(name) for name in names}
                for row in ok
                if row.get("point_status") in (None, "ok")
            ]

        points, lines = usable(tables["points"]), usable(tables["scaling"])
        whole = [p for p in points if p.get("trainer") == "training_run"]
        for pair in training_course.pairs(whole):
            for point, name in zip(pair, ("wide", "deep"), strict=True):
                point["model"] = name
        return cls(
            cells, points,
            [line for line in lines if line["about"] == scaling.ABOUT_SHAPE],
            [line for line in lines if line["about"] == scaling.ABOUT_BACKEND],
            _by_point(tables["curves"]), _by_point(tables["evaluations"]), sheets, noise,
        )  # fmt: skip

    def rows(self, quantity: Quantity) -> Sequence[Row]:
        """Those that a quantity is of."""
        return {POINTS: self.points, SHAPES: self.shapes, BACKENDS: self.backends}[quantity.rows]

    def figure(self, name: str, row: Row) -> Figure | str:
        """A quantity of a row, or why there is none."""
        known = (name, id(row))
        if known not in self._figures:
            self._figures[known] = QUANTITIES[name].read(self, row)
        return self._figures[known]

    def timed(self, row: Row, value: float | None, none: str) -> Figure | str:
        """A figure proportional to a step's time or to its reciprocal: the same error of the logarithm."""
        if not value or not math.isfinite(value):
            return none
        series = metric(row)
        found = self.noise.deviation(row, series)
        if found is None:
            error, df = NOISE_ASSUMED / (line_fit.NORMAL * math.sqrt(2)), ASSUMED_DF
            basis = NOISE_ASSUMED_BASIS
        else:
            error, df, basis = found[0].error, found[0].df, found[1]
        stem = series.removesuffix("_s")
        low, high = row.get(f"{stem}_low_s"), row.get(f"{stem}_high_s")
        if low and high:
            own = math.log(high / low) / (2 * line_fit.NORMAL)
            if own > error:
                error, basis = own, "the process's own interval, wider than between processes"
        estimate = inference.Estimate(math.log(value), error, df, basis)
        return Figure(value, estimate, basis=basis)

    def course(self, row: Row, column: str) -> list[float]:
        """One column of a training's curve by step; NaN where a step has none."""
        return _values(self.curves.get(_point(row), ()), column)

    def evaluated(self, row: Row) -> list[float]:
        """The losses on held-out data in order."""
        return _values(self.evaluations.get(_point(row), ()), "loss")


def _seen(cell: Row, sheets: DataSheets) -> Row:
    """A cell with its device's name in the registry and its vendor, where they are known."""
    entry = sheets.entry(cell)
    names = [name for name, known in sheets.registry["devices"].items() if known is entry]
    vendor = entry["vendor"] if entry else None
    if entry is None and cell["source"] == HERE:
        found = [d for d in sheets.host["devices"] if d["id"] == cell["device"]]
        vendor = found[0].get("vendor") if found else None
    return dict(cell) | {"registry_id": names[0] if entry else None, "vendor": vendor}


def _key(row: Mapping[str, Any]) -> tuple:
    return tuple(row[name] for name in KEY)


def _point(row: Mapping[str, Any]) -> tuple:
    return (*_key(row), int(row["point"]))


def _by_point(rows: Sequence[Row]) -> dict[tuple, list[Row]]:
    found: dict[tuple, list[Row]] = {}
    for row in rows:
        found.setdefault(_point(row), []).append(row)
    return {name: sorted(part, key=lambda row: row["step"]) for name, part in found.items()}


def _values(rows: Sequence[Row], column: str) -> list[float]:
    return [math.nan if row.get(column) is None else float(row[column]) for row in rows]


# -- the quantities ------------------------------------------------------------------------------


def _step_s(row: Row) -> float | None:
    found = row.get("unsplit_step_median_s") or row.get("step_median_s")
    return float(found) if found else None


def _inverse(value: Any) -> float | None:
    return 1 / float(value) if value else None


def _epoch_speed(evidence: Evidence, row: Row) -> Figure | str:
    return evidence.timed(row, _inverse(row.get("epoch_s")), "no epoch was timed")


def _step_speed(evidence: Evidence, row: Row) -> Figure | str:
    return evidence.timed(row, _inverse(_step_s(row)), "no step was timed")


def _throughput(evidence: Evidence, row: Row) -> Figure | str:
    rate = row.get("tokens_per_s") or row.get("samples_per_s")
    return evidence.timed(row, rate, "no step was timed")


def _flop_rate(evidence: Evidence, row: Row) -> Figure | str:
    return evidence.timed(row, row.get("flop_per_s"), "no rate of operations is known")


def _over_datasheet(evidence: Evidence, row: Row) -> Figure | str:
    sheet, seconds = evidence.sheets.peak(row, row["precision"]), _step_s(row)
    if sheet.value is None:
        return sheet.reason or "its data sheet gives no peak"
    if not row.get("flops"):
        return "no number of operations is known"
    expected_s = row["flops"] / sheet.value
    return evidence.timed(row, seconds and seconds / expected_s, "no step was timed")


def _epoch_by_peak(evidence: Evidence, row: Row) -> Figure | str:
    sheet, epoch_s = evidence.sheets.peak(row, row["precision"]), row.get("epoch_s")
    if sheet.value is None:
        return sheet.reason or "its data sheet gives no peak"
    return evidence.timed(row, epoch_s and epoch_s * sheet.value, "no epoch was timed")


def _iteration_over_min_run_time(evidence: Evidence, row: Row) -> Figure | str:
    """Of torch's tool, which repeats nothing when one run takes longer than its minimum."""
    minimum_s, median_s = row.get("autorange_min_run_time_s"), row.get("autorange_median_s")
    if not minimum_s or not median_s:
        return str(row.get("autorange_reason") or "blocked_autorange timed nothing")
    return evidence.timed(row, median_s / minimum_s, "blocked_autorange timed nothing")


def _peak_memory(evidence: Evidence, row: Row) -> Figure | str:
    peak = row.get("device_peak_bytes")
    if not peak:
        return "nothing counts the peak of its memory"
    found = evidence.noise.deviation(row, "device_peak_bytes")
    if found is None:
        return Figure(peak, None, peak, peak, COUNTED)
    estimate = replace(found[0], log=math.log(peak), basis=found[1])
    return Figure(peak, estimate, basis=found[1])


def _read(reading: Reading | None, none: str, basis: str) -> Figure | str:
    if reading is None:
        return none
    return Figure(reading.middle, None, reading.low, reading.high, basis, reading.remark)


def _steady_loss(evidence: Evidence, row: Row) -> Figure | str:
    return _read(
        training_course.settled_loss(evidence.evaluated(row)),
        "fewer than three evaluations came to a finite loss, or it never fell",
        "by what the loss changed between its last two evaluations; one seed",
    )


def _least_loss(evidence: Evidence, row: Row) -> Figure | str:
    return _read(
        training_course.settled_loss(evidence.evaluated(row), least=True),
        "fewer than three evaluations came to a finite loss, or it never fell",
        "by what the loss changed between its last two evaluations; one seed",
    )


def _convergence_step(evidence: Evidence, row: Row) -> Figure | str:
    return _read(
        training_course.converged_at(evidence.course(row, "loss")),
        "too few steps with a finite loss, or it never fell",
        "by how far single steps lie from the smoothed loss; one seed",
    )


def _norm_elevated_until(evidence: Evidence, row: Row) -> Figure | str:
    return _read(
        training_course.elevated_until(evidence.course(row, "gradient_norm")),
        "too few steps with a finite gradient norm",
        "by how far single steps lie from their running median; one seed",
    )


def _unusual_share(evidence: Evidence, row: Row) -> Figure | str:
    """Share of steps that took far longer than the run's own spread explains."""
    marks = [line.get("unusual") for line in evidence.curves.get(_point(row), ())]
    known = [str(mark) in ("True", "1", "1.0") for mark in marks if mark is not None]
    if not known:
        return "no course of step times, or too few steps"
    n, share = len(known), sum(known) / len(known)
    # Wilson's interval (J. Am. Stat. Assoc. 22, 1927), which holds for shares near 0.
    z = line_fit.NORMAL
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    low, high = max(0.0, middle - reach), middle + reach
    return Figure(share, None, low, high, f"95 % of a share of {n} steps")


def _fixed_share(evidence: Evidence, row: Row) -> Figure | str:
    share = row.get("fixed_share_smallest")
    if share is None:
        return str(row.get("fit_reason") or "no line through its batch sizes")
    low, high = (row.get(f"fixed_share_smallest_{end}") for end in ("low", "high"))
    low, high = (share if low is None else low), (share if high is None else high)
    return Figure(share, None, max(low, 0.0), high, str(row.get("noise_basis") or ""))


def _bound(evidence: Evidence, row: Row) -> Figure | str:
    return "a word, and no number"


QUANTITIES: Mapping[str, Quantity] = {
    "epoch_speed": Quantity("epochs with validation", "1/s", _epoch_speed, fastest=True),
    "step_speed": Quantity("training steps", "1/s", _step_speed, fastest=True),
    "throughput": Quantity("throughput", "tokens/s", _throughput),
    "flop_rate": Quantity("operations", "FLOP/s", _flop_rate),
    "over_datasheet": Quantity("actual over expected time", "times", _over_datasheet),
    "epoch_by_peak": Quantity(
        "operations that the listed peak allows in an epoch", "FLOP", _epoch_by_peak
    ),
    "iteration_over_min_run_time": Quantity(
        "one iteration over min_run_time", "times", _iteration_over_min_run_time
    ),
    "peak_memory": Quantity("peak of device memory", "byte", _peak_memory),
    "steady_loss": Quantity("evaluation loss at the end", "nat", _steady_loss),
    "least_loss": Quantity("lowest evaluation loss", "nat", _least_loss),
    "convergence_step": Quantity(
        "step at which the loss was near its end", "steps", _convergence_step
    ),
    "norm_elevated_until": Quantity(
        "last step with an elevated gradient norm", "steps", _norm_elevated_until
    ),
    "unusual_share": Quantity("share of steps of unusual length", "", _unusual_share),
    "fixed_share": Quantity(
        "share of a step that does not grow with the batch", "", _fixed_share, SHAPES
    ),
    "bound": Quantity("what bounds the grid's steps", "", _bound, BACKENDS),
}
