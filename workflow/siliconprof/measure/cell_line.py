"""A measured cell in one line for a person: how long a step took, give or take, how fast that is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from siliconprof import declarations, words
from siliconprof.analyse import record_rows
from siliconprof.errors import UserError
from siliconprof.session.trial import AUTO
from siliconprof.store import record as records
from siliconprof.store import table_files
from siliconprof.store.contents import Record

RATES = (("samples_per_s", ""), ("flop_per_s", "FLOP/s"), ("bytes_per_s", "B/s"))
NAME_WIDTH, TIME_WIDTH, SPEED_WIDTH = 42, 17, 33
MOST_COLUMNS = 110
SAME_BELOW = 1.15  # times as fast; fresh processes of one cell differ by 13 %


def name(cell: Mapping[str, str]) -> str:
    """`torch-cpu · gpt2-nano-plain · fp32`, with the device where the backend does not say it."""
    axes = ("device", "backend", "workload", "scenario", "precision")
    skipped = {"device"} if cell.get("device_kind") == "cpu" else set()
    skipped |= {"scenario"} if cell["scenario"] == "auto" else set()
    return " · ".join(cell[axis] for axis in axes if axis not in skipped)


def of(record: Record, others: Iterable[Record] = ()) -> str:
    """The line of a record: of its fastest point where it has several.

    Args:
        others: finished cells of the same work, the fastest of which the line ends with.
    """
    head = f"{name(vars(record.cell)):<{NAME_WIDTH}} "
    if record.status != "ok":
        line = f"{head}{words.STATUS_WORDS[record.status]}: {record.reason}"
        return words.shortened(line, MOST_COLUMNS)
    rows = _rows(record)
    against = _against(record, rows, others)
    line = f"{head}{_speed(rows):<{SPEED_WIDTH}}".replace(words.THIN, " ")
    return f"{line}  {against}".rstrip()


def beside(results: Path, own: Record) -> Iterator[Record]:
    """The records of the same work on other backends and devices of the host."""
    cell = own.cell
    folder, file = results / "records" / cell.host, f"{cell.scenario}/{cell.precision}.json"
    for path in sorted(folder.glob(f"*/*/{cell.workload}/{file}")):
        try:
            record = records.load(path)
        except UserError:  # damaged, which the tables tell
            continue
        if record.cell.path != cell.path and record.cell.parameters == cell.parameters:
            yield record


def _rows(record: Record) -> list[dict[str, Any]]:
    key = table_files.key_of("", record.cell)
    return [key | row for row in record_rows.point_rows(record)]


def _against(record: Record, rows: Sequence[Mapping[str, Any]], others: Iterable[Record]) -> str:
    """`2.9 x faster than mlx`, the fastest of the others; empty without one."""
    if record.cell.parameters.get("batch_size") == AUTO or len(rows) > 1:
        return ""  # each has another batch, or another shape that is its fastest
    column, own = _best(rows)
    rivals = ((_best(_rows(other)), other.cell) for other in others if other.status == "ok")
    alike = [(row[theirs], cell) for (theirs, row), cell in rivals if theirs == column != ""]
    if not alike:
        return ""
    rate, rival = max(alike, key=itemgetter(0))
    ratio = own[column] / rate
    where = rival.backend if rival.device == record.cell.device else rival.device
    if max(ratio, 1 / ratio) < SAME_BELOW:
        return f"as fast as {where}"
    word = "faster" if ratio > 1 else "slower"
    return f"{max(ratio, 1 / ratio):.1f} x {word} than {where}"


def _best(rows: Sequence[Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]]:
    """(column of the rate that suits the points, the fastest point); empty where nothing is timed."""
    column, _ = _rate(rows)
    if column:
        return column, max(rows, key=lambda row: row.get(column) or 0.0)
    timed = [row for row in rows if _series(row)]
    return "", min(timed, key=lambda row: float(row[f"{_series(row)}_median_s"])) if timed else {}


def _speed(rows: Sequence[Mapping[str, Any]]) -> str:
    """`7.43 ms ±  3 %  538 samples/s`; of several points, `2.6 ms ±  1 %  102 GFLOP/s  (512³)`."""
    column, best = _best(rows)
    if not best:
        return ""
    time = _series(best)
    within = f"{words.duration(best[f'{time}_median_s'])}{_half_width(best, time)}" if time else ""
    parts = [f"{within:>{TIME_WIDTH}}"]
    if column:
        rate, unit = best[column], dict(RATES)[column]
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


def _series(row: Mapping[str, Any]) -> str:
    """The time that a point is about: the whole step, the call, or the first that it has."""
    series = ("whole_step_s", "step_s", *declarations.quantities())
    names = (one.removesuffix("_s") for one in series)
    return next((one for one in names if row.get(f"{one}_median_s")), "")


def _half_width(row: Mapping[str, Any], time: str) -> str:
    """` ±  3 %`: half of the 95 % interval; empty without one."""
    low_s, high_s = (row.get(f"{time}_{end}_s") for end in ("low", "high"))
    if low_s is None or high_s is None:
        return ""
    return f" ± {(high_s - low_s) / 2 / row[f'{time}_median_s']:3.0%}".replace("%", " %")
