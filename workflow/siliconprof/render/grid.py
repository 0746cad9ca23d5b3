"""The transformer grid: expected against actual, fits, both timings, and every point.

Expected is the number of operations over a rate: the data sheet's peak as the wide/deep report has it,
and the fastest product that the same backend managed here, which is the fairer of the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from siliconprof import words
from siliconprof.analyse.scaling import ABOUT_SHAPE
from siliconprof.render import chart, grid_points, hover, style, tables
from siliconprof.render.book import Book, parts
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data
from siliconprof.render.grid_points import (
    MS,
    NO_FORMULA,
    Grid,
    devices_said,
    place,
    place_name,
    seconds,
    values,
)
from siliconprof.render.grid_points import Scale as Ramp
from siliconprof.render.tables import Column, Table, Value, number, told
from siliconprof.render.variants import Row, point_status

EXACT = "two batch sizes: the line goes through both"


def add(data: Data, book: Book) -> None:
    """Every grid of these results, device by device."""
    all_grids = grid_points.grids(data)
    if not all_grids:
        book.note(data.why_none(grid_points.MODULE, "transformer grid"))
    for grid in all_grids:
        book.heading(f"Grid search: {grid.workload}", anchor=f"grid-{grid.workload}")
        book.note(f"{folded(grid.points)}.")
        if not grid.timed:
            book.note("No point of this grid was measured, so there is nothing to draw.")
            continue
        add_expected(data, book, grid)
        if fits := rows_of(data, grid):
            name = f"scaling-{grid.workload}"
            table = Table.of(fits, FIT_COLUMNS)
            book.table(name, "grid-scaling", table, counted="fit", above=0)


def folded(points: Sequence[Row]) -> str:
    """`72 points: 60 ok, 12 skipped`."""
    counts = Counter(map(point_status, points))
    statuses = ", ".join(f"{n} {name}" for name, n in counts.most_common())
    return f"{words.count(len(points), 'point')}: {statuses}"


# -- what of a step is fixed --------------------------------------------------------------------


def rows_of(data: Data, grid: Grid) -> list[Row]:
    """Lines of scaling.csv of a grid's model shapes."""
    names = {place(point): place_name(point) for point in grid.points}
    order = list(grid_points.by_place(grid.points))
    rows = [
        row | {"place_name": names[place(row)]}
        for row in data.scaling
        if (row["about"], row["workload"]) == (ABOUT_SHAPE, grid.workload) and place(row) in names
    ]
    return sorted(rows, key=lambda row: order.index(place(row)))


def _model(row: Row) -> Value:
    return Value(
        grid_points.shape(row),
        sort=", ".join(f"{row.get(name) or 0:06.0f}" for name in grid_points.MODEL),
    )


def _no_fit(row: Row) -> str:
    return str(row.get("fit_reason") or "no fit")


def _interval(row: Row) -> str:
    ends = (words.number(row.get(f"fixed_{end}_s")) for end in ("low", "high"))
    both = [words.significant(end / MS, 2) for end in ends if end is not None]
    return "–".join(both) if len(both) == 2 else ""


def _of_ceiling(row: Row) -> str:
    share = words.number(row.get("best_of_ceiling"))
    return "" if share is None else words.percent(share)


def _shares(head: str, what: str, made_of: str) -> Column:
    """The share of the step that one limit explains at the smallest batch; at the largest below."""

    def largest(row: Row) -> str:
        share = words.number(row.get(f"{what}_share_largest"))
        return "" if share is None else words.significant(100 * share, 2)

    return number(
        head,
        "%",
        f"{what}_share_smallest",
        lambda row: str(row.get(f"{what}_reason") or "not known"),
        f"{made_of}, share of the step at the smallest batch; at the largest below",
        digits=2,
        under=largest,
        below="largest batch",
    )


FIXED = "of a step, whatever the batch; 95 % interval below"
GAIN = "samples a second at the largest over the smallest batch"
BEST = "over its batch sizes; share of the measured ceiling below"
OF_BEST = "of ceiling"
RESIDUAL = "root mean square, as a share of the step"
SHARE = "share of the step"
FIT_COLUMNS = (
    told("Model", _model),
    number("parameters", "10⁶", "n_parameters", "not counted"),
    *tables.ONE_PLACE,
    told("batch sizes", lambda row: str(row.get("batch_sizes") or "").replace(";", ", ")),
    number("fixed", "ms", "fixed_s", _no_fit, FIXED, under=_interval),
    number("each sample", "ms", "per_sample_s", _no_fit),
    number("residual", "%", "residual", lambda row: row.get("fit_reason") or EXACT, RESIDUAL, 2),
    number("fixed, smallest batch", "%", "fixed_share_smallest", _no_fit, SHARE, 2),
    number("fixed, largest batch", "%", "fixed_share_largest", _no_fit, SHARE, 2),
    number("gain", "×", "throughput_gain", _no_fit, GAIN),
    _shares("launches", "launch", "operator launches × cost of one"),
    _shares("memory", "memory", "bytes that must move ÷ measured bandwidth"),
    number(
        "best", "GFLOP/s", "best_flop_per_s", NO_FORMULA, BEST, under=_of_ceiling, below=OF_BEST
    ),
)


ROWS_PER_FIGURE = 5
OWN, SHEET = "our own ceiling", "the data sheet"
EXPECTED_COLUMN = {OWN: "expected_ceiling_s", SHEET: "expected_datasheet_s"}
REASONS = ("expected_ceiling_reason", "expected_datasheet_reason")
SPELLED = {"batch_size": "batch size", "seq_len": "sequence length", "head_dim": "head dimension"}


class Line(NamedTuple):
    """The points of one place that have an expectation, and what that rests on."""

    name: str  # of the place
    basis: str
    points: list[Row]

    def expected_s(self, point: Row) -> float:
        """The expected time of a point."""
        return float(point[EXPECTED_COLUMN[self.basis]])

    def ends(self) -> tuple[float, float]:
        """The least and the most of both times in ms."""
        both = [t / MS for p in self.points for t in (self.expected_s(p), float(seconds(p) or 0))]
        return min(both), max(both)

    def ratios(self) -> list[float]:
        """Actual over expected, from the least."""
        return sorted(float(seconds(p) or 0) / self.expected_s(p) for p in self.points)


def lines(grid: Grid) -> Iterator[Line]:
    """A line for each place and each basis that gives it an expected time."""
    for points in grid.places().values():
        for basis, column in EXPECTED_COLUMN.items():
            expected = [point for point in points if words.number(point.get(column))]
            if expected:
                yield Line(place_name(points[0]), basis, expected)


def add_expected(data: Data, book: Book, grid: Grid) -> None:
    """The figure; a sentence where no point has an expected time."""
    all_lines = list(lines(grid))
    if not all_lines:
        why = sorted(
            {str(point[name]) for point in grid.timed for name in REASONS if point.get(name)}
        )
        book.note(
            "Expected against actual time is not drawn: no point has an expected time "
            f"({'; '.join(why) or 'no ceiling was measured and no data sheet is known'})."
        )
        return
    for name, part in parts(f"expected-{grid.workload}", all_lines, ROWS_PER_FIGURE):
        book.figure(
            name,
            "grid-expected",
            partial(draw, part, grid.varying()),
            workload=grid.workload,
            device=devices_said(data, grid.points),
            below=below(part),
        )


def below(part: Sequence[Line]) -> str:
    """How many points were faster than expected, and why that can be; empty where none was."""
    n = sum(ratio < 1 for line in part for ratio in line.ratios())
    if not n:
        return ""
    verb = "was" if n == 1 else "were"
    return (
        f" {words.count(n, 'dot')} {verb} faster than expected: their reference rate was measured "
        "too low or is not what bounds them."
    )


def draw(part: Sequence[Line], varying: Sequence[str]) -> Any:
    """A panel for each line and parameter that varies, all with the same scale on both sides."""
    names = list(varying) or [""]
    every = [point for line in part for point in line.points]
    ramps = {name: Ramp(name, values(every, name)) for name in varying}
    ends = [end for line in part for end in line.ends()]
    panels: list[Panel] = []
    for line in part:
        for index, name in enumerate(names):
            above = f"{line.name}, by {line.basis}" if index == 0 else ""
            panels.append(
                Panel(
                    [chart.diagonal(), *_marks(line, ramps.get(name))],
                    Scale("expected / ms", log=10, reach=ends),
                    Scale("actual / ms", log=10, reach=ends),
                    title=f"{above}\n{SPELLED.get(name, name)}",
                    of=line.points,
                    high=1.0,
                    grid="both",
                    legend=ramps[name].entries() if name else (),
                )
            )
    return Chart(panels, columns=len(names), same_y=True, same_x=True).figure()


def _marks(line: Line, ramp: Ramp | None) -> Iterator[Mark]:
    """The points of a line, one mark for each colour."""
    ink = style.shade(line.points[0]["backend"])
    for colour, points in (ramp.groups(line.points) if ramp else {ink: line.points}).items():
        xs = [line.expected_s(point) / MS for point in points]
        ys = [float(seconds(point) or 0) / MS for point in points]
        size = 3.2 if len(line.points) <= 120 else 2.2
        yield chart.dots(xs, ys, points, _hover(line, points, ramp), size, color=colour)


def _hover(line: Line, points: Sequence[Row], ramp: Ramp | None) -> str:
    """`torch-cpu · fp32, n_layer 4: 6 points, actual over expected: median 2.1 × (range …)`."""
    over = [float(seconds(point) or 0) / line.expected_s(point) for point in points]
    value = words.number(points[0].get(ramp.name)) if ramp else None
    shared = f", {SPELLED.get(ramp.name, ramp.name)} {value:g}" if ramp and value else ""
    text = hover.of_several(over, "×")
    return f"{line.name}{shared}: {words.count(len(points), 'point')}, actual over expected {text}"
