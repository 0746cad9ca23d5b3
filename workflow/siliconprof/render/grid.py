"""The transformer grid: expected against actual, fits, both timings, and every point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from siliconprof import words
from siliconprof.render import expected, scaling, tables, timers
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.grid_points import (
    MODULE,
    MS,
    NO_FORMULA,
    UNTIMED,
    Grid,
    devices_said,
    grids,
    seconds,
    values,
)
from siliconprof.render.tables import (
    Column,
    Table,
    Value,
    count,
    missing,
    number,
    quantity,
    ranged,
    told,
)
from siliconprof.render.variants import Row

SETTINGS = (
    ("n_layer", "n_layer"),
    ("n_embd", "n_embd"),
    ("n_head", "n_head"),
    ("head_dim", "head dimension"),
    ("d_ff", "d_ff"),
    ("seq_len", "seq_len"),
    ("batch_size", "batch"),
)
NO_TIME, NO_CEILING = "no iteration was timed", "no ceiling was measured"


def add(data: Data, book: Book, prefix: str = "") -> None:
    """Every grid of these results, device by device."""
    all_grids = grids(data)
    if not all_grids:
        if not prefix:
            book.note(data.why_none(MODULE, "transformer grid"))
        return
    for grid in all_grids:
        where = devices_said(data, grid.points)
        book.heading(f"Grid search: {grid.workload}", anchor=f"{prefix}grid-{grid.workload}")
        book.facts(facts(grid, where))
        if grid.timed:
            expected.add(data, book, grid, prefix)
            scaling.add(data, book, grid, prefix)
            timers.add(data, book, grid, prefix)
        else:
            book.note(
                "No point of this grid was measured, so there is nothing to draw; the table "
                "below has the reason of each."
            )
        book.table(
            f"{prefix}grid-{grid.workload}",
            "grid-points",
            table(grid),
            folded=folded(grid.points),
            workload=grid.workload,
            device=where,
        )


def status(point: Row) -> str:
    """What became of a point."""
    return str(point.get("point_status") or "ok")


def folded(points: Sequence[Row]) -> str:
    """`72 points: 60 ok, 12 skipped`."""
    counts = Counter(map(status, points))
    statuses = ", ".join(f"{n} {name}" for name, n in counts.most_common())
    return f"{words.count(len(points), 'point')}: {statuses}"


def facts(grid: Grid, where: str) -> list[tuple[str, str]]:
    """What was combined, and what became of it."""
    points = grid.points
    settings = {called: values(points, name) for name, called in SETTINGS}
    combined = [
        f"{called} {', '.join(f'{value:g}' for value in taken)}"
        for called, taken in settings.items()
        if taken
    ]
    n_parameters = values(points, "n_parameters")
    ends = (words.significant(n / 1e6) for n in n_parameters[:: max(len(n_parameters) - 1, 1)])
    sizes = " to ".join(dict.fromkeys(ends))
    return [
        ("Measured on", where),
        ("Points", folded(points)),
        ("Combined", "; ".join(combined)),
        ("Parameters", sizes and f"{sizes} million"),
    ]


def _status(point: Row) -> Value:
    state = status(point)
    return Value(state, sort=state, mark=f"status-{state}", title=words.STATUS_WORDS.get(state, ""))


def _reason(point: Row) -> Value:
    reason = str(point.get("point_reason") or "")
    return Value(reason or words.DASH, sort=reason, mark="note")


def _stem(point: Row) -> str:
    return "unsplit_step" if point.get("unsplit_step_median_s") else "step"


def _iteration(point: Row) -> Value:
    return ranged(point, _stem(point), MS, NO_TIME, digits=3)


def _repeats(point: Row) -> float | None:
    return words.number(point.get(f"{_stem(point)}_n"))


def _no_tool(point: Row) -> str:
    return str(point.get("autorange_reason") or "blocked_autorange did not time it")


def _blocks(point: Row) -> str:
    blocks, each = (words.number(point.get(f"autorange_{name}")) for name in ("blocks", "number"))
    return f"{blocks:g} × {each:g}" if blocks and each else ""


def _over(point: Row) -> Value:
    """The ratio; marked where the tool had less time than one iteration takes."""
    value = quantity(timers.ratio(point), _no_tool(point))
    if value.reason or not timers.is_short(point):
        return value
    short = "min_run_time is shorter than one iteration, so nothing was repeated on purpose"
    return replace(value, title=short, reason=short)


def _against(head: str, column: str, of: str, otherwise: str) -> Column:
    """How many times as long as expected a point took."""

    def over(point: Row) -> float | None:
        wanted, took = words.number(point.get(f"{column}_s")), seconds(point)
        return took / wanted if wanted and took else None

    def why(point: Row) -> str:
        return str(point.get(f"{column}_reason") or otherwise)

    return number(head, "×", over, why, f"over the time at {of}")


def _if_measured(column: Column) -> Column:
    """The column, whose reason is the status where a point was not measured."""

    def value(point: Row) -> Any:
        if status(point) != "ok":
            return missing(UNTIMED)
        return column.value(point) if column.value else None

    return replace(column, value=value)


TOOL = "torch.utils.benchmark: median of its blocks, their number and the iterations in each below"
FORMULA = "operations of the model's formula per second"
OURS, RATIO = "our timing: median and quartiles", "blocked_autorange's median over ours"
SIZE, SIZE_PEAK = "exact, by the size estimator", "peak by the size estimator"
PEAK, UNCOUNTED = "of device memory, measured", "not counted for every point"
BLOCKS = "blocks × iterations"
TIMES = (
    Column("iteration", "ms", True, OURS, value=_iteration),
    count("n", _repeats, NO_TIME, "iterations timed"),
    number("autorange", "ms", "autorange_median_s", _no_tool, TOOL, under=_blocks, below=BLOCKS),
    Column("over ours", "", True, RATIO, value=_over),
    number("tokens", "1/s", "tokens_per_s", NO_TIME),
    number("achieved", "GFLOP/s", "flop_per_s", NO_FORMULA, FORMULA),
    _against("over expected", "expected_ceiling", "the measured ceiling", NO_CEILING),
    _against("over data sheet", "expected_datasheet", "the data sheet's peak", "no data sheet"),
    number("peak", "MiB", "device_peak_bytes", UNCOUNTED, PEAK),
)
COLUMNS = (
    *(count(head, name, "not recorded", folds=True) for name, head in SETTINGS),
    number("parameters", "10⁶", "n_parameters", "not counted", SIZE),
    tables.DEVICE,
    tables.BACKEND,
    tables.ONE_PRECISION,
    told("Status", _status),
    told("Reason", _reason, folds=True),
    *map(_if_measured, TIMES),
    number("predicted", "MiB", "predicted_peak_bytes", "not predicted", SIZE_PEAK),
)


def table(grid: Grid) -> Table:
    """Every point, measured or not."""

    def css(point: Row) -> str:
        return "" if status(point) == "ok" else "failed"

    return Table.of(grid.points, COLUMNS, css=css)
