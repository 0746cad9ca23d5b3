"""A measured cell in one line: the time of a step with its uncertainty, and its speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from siliconprof import declarations, formatting
from siliconprof.analyse import record_rows
from siliconprof.errors import UserError
from siliconprof.session.resolved_cell import AUTO
from siliconprof.store import record as records
from siliconprof.store import table_files
from siliconprof.store.contents import Record

RATE_SUFFIXES = {"samples_per_s": "", "flop_per_s": "FLOP/s", "bytes_per_s": "B/s"}
NAME_WIDTH, TIME_WIDTH, SPEED_WIDTH = 42, 18, 34
LINE_WIDTH = 110
SAME_BELOW = 1.15  # times as fast; fresh processes of one cell differ by 13 %


def name(cell: Mapping[str, str]) -> str:
    """`torch-cpu · gpt2-nano-plain · fp32`, with the device where the backend does not say it."""
    axes = ("device", "backend", "workload", "scenario", "precision")
    skipped = {"device"} if cell.get("device_kind") == "cpu" else set()
    skipped |= {"scenario"} if cell["scenario"] == "auto" else set()
    return " · ".join(cell[axis] for axis in axes if axis not in skipped)


def line_of_record(record: Record, others: Iterable[Record] = ()) -> str:
    """The line of a record, about its fastest point.

    Args:
        others: finished cells of the same work; the line ends with a comparison with the fastest.
    """
    head = f"{name(vars(record.cell)):<{NAME_WIDTH}} "
    if record.status != "ok":
        line = f"{head}{formatting.STATUS_WORDS[record.status]}: {record.reason}"
        return formatting.shortened(line, LINE_WIDTH)
    rate, best, n_points = _fastest(record)
    remark = _remark(record, n_points)
    if rate and n_points == 1 and not remark and record.cell.parameters.get("batch_size") != AUTO:
        remark = _against(record, rate, best[rate], others)
    speed = _speed(rate, best) if best else ""
    point = f"({declarations.describe(best)})" if best and n_points > 1 else ""
    line = f"{head}{speed:<{SPEED_WIDTH}}  {'  '.join(filter(None, [remark, point]))}"
    return formatting.shortened(line.replace(formatting.NARROW, " ").rstrip(), LINE_WIDTH)


def records_of_same_work(results: Path, own: Record) -> Iterator[Record]:
    """The records of the same work on other backends and devices of the host."""
    cell = own.cell
    folder, file = results / "records" / cell.host, f"{cell.scenario}/{cell.precision}.json"
    for path in sorted(folder.glob(f"*/*/{cell.workload}/{file}")):
        try:
            record = records.load(path)
        except UserError:  # damaged; the tables report it
            continue
        if record.cell.path != cell.path and record.cell.parameters == cell.parameters:
            yield record


def _remark(record: Record, n_points: int) -> str:
    """A remark on points that were disturbed or took far longer than their budget; may be empty."""
    disturbed = sum(point.disturbed is not None for point in record.points)
    if disturbed and disturbed < n_points:
        return f"{disturbed} of {n_points} points disturbed"
    if disturbed:
        return "disturbed by other processes"
    overran = any(point.stopped_by == "overrun" for point in record.points)
    return "fewer repeats than asked for" if overran else ""


def _against(record: Record, rate: str, own: float, others: Iterable[Record]) -> str:
    """`2.9 x faster than mlx`, the fastest of the others; empty without one."""
    rivals = [(*_fastest(other), other.cell) for other in others if other.status == "ok"]
    alike = [
        (row[rate], cell)
        for theirs, row, _, cell in rivals
        if theirs == rate and not row.get("point_disturbed")
    ]
    if not alike:
        return ""
    theirs, rival = max(alike, key=itemgetter(0))
    ratio = own / theirs
    where = rival.backend if rival.device == record.cell.device else rival.device
    if max(ratio, 1 / ratio) < SAME_BELOW:
        return f"as fast as {where}"
    word = "faster" if ratio > 1 else "slower"
    return f"{max(ratio, 1 / ratio):.1f} x {word} than {where}"


def _fastest(record: Record) -> tuple[str, Mapping[str, Any], int]:
    """(column of the points' rate, the fastest point, number of points).

    The column is empty where points have no rate, the point where nothing is timed. Disturbed points
    count only where all are.
    """
    key = table_files.key_of("", record.cell)
    every = [key | row for row in record_rows.point_rows(record)]
    rows = [row for row in every if not row["point_disturbed"]] or every
    rates = [rate for rate in RATE_SUFFIXES if any(row.get(rate) for row in rows)]
    intensities = [row["flops"] / row["bytes"] for row in rows if row["flops"] and row["bytes"]]
    if intensities and max(intensities) < declarations.PRODUCT_INTENSITY:
        rates = [rate for rate in rates if rate != "flop_per_s"]
    if rates:
        return rates[0], max(rows, key=lambda row: row.get(rates[0]) or 0.0), len(every)
    timed = [row for row in rows if _series(row)]
    best = min(timed, key=lambda row: float(row[f"{_series(row)}_median_s"])) if timed else {}
    return "", best, len(every)


def _speed(rate: str, best: Mapping[str, Any]) -> str:
    """`7.43 ms ±  3 %  538 samples/s`, or `2.6 ms ±  1 %  102 GFLOP/s`."""
    time = _series(best)
    within = (
        f"{formatting.duration(best[f'{time}_median_s'])}{_half_width(best, time)}" if time else ""
    )
    if not rate:
        return f"{within:>{TIME_WIDTH}}"
    unit = RATE_SUFFIXES[rate]
    per_s = (
        formatting.scaled(best[rate], unit)
        if unit
        else f"{formatting.significant(best[rate])} samples/s"
    )
    return f"{within:>{TIME_WIDTH}}  {per_s}"


def _series(row: Mapping[str, Any]) -> str:
    """The series that stands for a point: whole step, call, or the first one that it has."""
    series = ("whole_step_s", "step_s", *declarations.quantities())
    names = (one.removesuffix("_s") for one in series)
    return next((one for one in names if row.get(f"{one}_median_s")), "")


def _half_width(row: Mapping[str, Any], time: str) -> str:
    """` ±  3 %`: half of the 95 % interval, or ` range of 3`; empty without either."""
    low_s, high_s = (row.get(f"{time}_{end}_s") for end in ("low", "high"))
    if low_s is None or high_s is None:
        return ""
    half = f"{(high_s - low_s) / 2 / row[f'{time}_median_s']:3.0%}".replace("%", " %")
    return f" {formatting.spread(row[f'{time}_n'], half)}"
