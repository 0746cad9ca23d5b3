"""The transformer grid: expected against actual, fits, both timings, and every point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from siliconprof import words
from siliconprof.render import expected, scaling, timers
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.grid_points import MODULE, MS, UNTIMED, Grid, devices_said, grids, seconds
from siliconprof.render.tables import Column, Table, Value, integer, missing, quantity, ranged
from siliconprof.render.variants import Row

MIB = 2.0**20
GIGA = 1e9
SETTINGS = (
    ("n_layer", "n_layer"),
    ("n_embd", "n_embd"),
    ("n_head", "n_head"),
    ("head_dim", "head dimension"),
    ("d_ff", "d_ff"),
    ("seq_len", "seq_len"),
    ("batch_size", "batch"),
)
NO_TOOL = "blocked_autorange did not time it"


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
    combined = []
    for name, called in SETTINGS:
        values = sorted({value for p in points if (value := words.number(p.get(name))) is not None})
        if values:
            combined.append(f"{called} {', '.join(f'{value:g}' for value in values)}")
    parameters = sorted({value for p in points if (value := words.number(p.get("n_parameters")))})
    sizes = " to ".join(dict.fromkeys(map(_millions, parameters[:: max(len(parameters) - 1, 1)])))
    return [
        ("Measured on", where),
        ("Points", folded(points)),
        ("Combined", "; ".join(combined)),
        ("Parameters", sizes and f"{sizes} million"),
    ]


def _millions(n: float) -> str:
    return words.significant(n / 1e6)


def table(grid: Grid) -> Table:
    """Every point, measured or not."""
    result = Table(
        [
            *(Column(called, "", True, folds=True) for _, called in SETTINGS),
            Column("parameters", "10⁶", True, "exact, by the size estimator"),
            Column("Device", folds=True),
            Column("Backend"),
            Column("Precision", folds=True),
            Column("Status"),
            Column("Reason", folds=True),
            Column("iteration", "ms", True, "our timing: median and quartiles"),
            Column("n", "", True, "iterations timed"),
            Column(
                "autorange",
                "ms",
                True,
                "torch.utils.benchmark: median of its blocks, their "
                "number and the iterations in each below",
                "blocks × iterations",
            ),
            Column("over ours", "", True, "blocked_autorange's median over ours"),
            Column("tokens", "1/s", True),
            Column("achieved", "GFLOP/s", True, "operations of the model's formula per second"),
            Column("over expected", "×", True, "over the time at the measured ceiling"),
            Column("over data sheet", "×", True, "over the time at the data sheet's peak"),
            Column("peak", "MiB", True, "of device memory, measured"),
            Column("predicted", "MiB", True, "peak by the size estimator"),
        ]
    )
    for point in grid.points:
        state, reason = status(point), point.get("point_reason")
        ok = state == "ok"
        result.add(
            *(_setting(point, name) for name, _ in SETTINGS),
            quantity(point.get("n_parameters"), "not counted", 1e6),
            point["device"],
            words.backend_name(point),
            point["precision"],
            Value(
                state, sort=state, mark=f"status-{state}", title=words.STATUS_WORDS.get(state, "")
            ),
            Value(str(reason or words.DASH), sort=str(reason or ""), mark="note"),
            *(_times(point) if ok else [missing(UNTIMED)] * 8),
            quantity(
                point.get("device_peak_bytes"),
                "not counted for every point" if ok else UNTIMED,
                MIB,
            ),
            quantity(point.get("predicted_peak_bytes"), "not predicted", MIB),
            css="" if ok else "failed",
            of=point,
        )
    return result


def _setting(point: Row, name: str) -> Value:
    value = words.number(point.get(name))
    return missing("not recorded") if value is None else Value(f"{value:g}", sort=value)


def _times(point: Row) -> list[Value]:
    """The columns of a point that was measured."""
    stem = "unsplit_step" if point.get("unsplit_step_median_s") else "step"
    why_tool = str(point.get("autorange_reason") or NO_TOOL)
    return [
        ranged(point, stem, MS, "no iteration was timed", digits=3),
        integer(point.get(f"{stem}_n"), "no iteration was timed"),
        _autorange(point, why_tool),
        _over(point, why_tool),
        quantity(point.get("tokens_per_s"), "no iteration was timed"),
        quantity(point.get("flop_per_s"), "no formula for its operations", GIGA),
        _against(point, "expected_ceiling_s", "expected_ceiling_reason", "no ceiling was measured"),
        _against(point, "expected_datasheet_s", "expected_datasheet_reason", "no data sheet"),
    ]


def _autorange(point: Row, why: str) -> Value:
    value = quantity(point.get("autorange_median_s"), why, MS)
    blocks, number = (words.number(point.get(f"autorange_{name}")) for name in ("blocks", "number"))
    if value.reason or not blocks or not number:
        return value
    return Value(value.text, value.sort, f"{blocks:g} × {number:g}")


def _over(point: Row, why: str) -> Value:
    """The ratio; marked where the tool had less time than one iteration takes."""
    value = quantity(timers.ratio(point), why)
    if value.reason or not timers.is_short(point):
        return value
    short = "min_run_time is shorter than one iteration, so nothing was repeated on purpose"
    return Value(value.text, value.sort, title=short, reason=short)


def _against(point: Row, column: str, reason: str, otherwise: str) -> Value:
    wanted, took = words.number(point.get(column)), seconds(point)
    if not wanted or not took:
        return missing(str(point.get(reason) or otherwise))
    return quantity(took / wanted, otherwise)
