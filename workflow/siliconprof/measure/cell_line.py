"""A measured cell in one line for a person: how long a step took, how fast that is, what to doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from siliconprof import declarations, words
from siliconprof.analyse import record_rows
from siliconprof.store import table_files
from siliconprof.store.contents import Record

RATES = (("samples_per_s", ""), ("flop_per_s", "FLOP/s"), ("bytes_per_s", "B/s"))
NAME_WIDTH, TIME_WIDTH = 46, 10
REASON_LENGTH = 60


def name(cell: Mapping[str, str]) -> str:
    """`torch-cpu · gpt2-nano-plain · fp32`, with the device where the backend does not say it."""
    axes = ("device", "backend", "workload", "scenario", "precision")
    skipped = {"device"} if cell.get("device_kind") == "cpu" else set()
    skipped |= {"scenario"} if cell["scenario"] == "auto" else set()
    return " · ".join(cell[axis] for axis in axes if axis not in skipped)


def of(record: Record) -> str:
    """The line of a record: of its fastest point where it has several."""
    head = f"{name(vars(record.cell)):<{NAME_WIDTH}} "
    if record.status != "ok":
        reason = words.shortened(record.reason or "", REASON_LENGTH)
        return f"{head}{words.STATUS_WORDS[record.status]}: {reason}"
    key = table_files.key_of("", record.cell)
    rows = [key | row for row in record_rows.point_rows(record)]
    flags = ", ".join(record.codes)
    return f"{head}{_speed(rows):<30}  {flags}".rstrip().replace(words.THIN, " ")


def _speed(rows: Sequence[Mapping[str, Any]]) -> str:
    """`7.43 ms   538 samples/s`, `2.6 ms  102 GFLOP/s  (512³)`."""
    column, unit = _rate(rows)
    if column:
        best = max(rows, key=lambda row: row.get(column) or 0.0)
    elif not (timed := [row for row in rows if _seconds(row)]):
        return ""
    else:
        best = min(timed, key=lambda row: _seconds(row) or 0.0)
    seconds = _seconds(best)
    parts = [f"{words.duration(seconds) if seconds else '':>{TIME_WIDTH}}"]
    if column:
        rate = best[column]
        parts.append(words.scaled(rate, unit) if unit else f"{words.significant(rate)} samples/s")
    if len(rows) > 1:
        parts.append(f"({declarations.describe(best)})")
    return "  ".join(parts)


def _rate(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """(column, unit) of the rate that suits the points; empty where they have none."""
    found = [rate for rate in RATES if any(row.get(rate[0]) for row in rows)]
    intensities = [row["flops"] / row["bytes"] for row in rows if row["flops"] and row["bytes"]]
    if intensities and max(intensities) < declarations.PRODUCT_INTENSITY:
        found = [rate for rate in found if rate[0] != "flop_per_s"]
    return found[0] if found else ("", "")


def _seconds(row: Mapping[str, Any]) -> float | None:
    """The time that a point is about: the whole step, the call, or the first that it has."""
    series = ("unsplit_step_s", "step_s", *declarations.quantities())
    columns = (f"{one.removesuffix('_s')}_median_s" for one in series)
    return next((row[column] for column in columns if row.get(column)), None)
