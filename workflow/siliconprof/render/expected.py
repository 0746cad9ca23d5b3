"""Expected against actual time of a training iteration, coloured by each parameter of the grid.

Expected is the number of operations over a rate: the data sheet's peak as the wide/deep report has it, and
the fastest product that the same backend managed here, which is the fairer of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from siliconprof import words
from siliconprof.render import chart, hover, style
from siliconprof.render.book import Book, parts
from siliconprof.render.chart import EMPTY, Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.grid_points import MS, Grid, devices_said, place_name, seconds, values
from siliconprof.render.grid_points import Scale as Ramp
from siliconprof.render.variants import Row

ROWS_PER_FIGURE = 5
NARROW_COLUMNS = 3
OWN, SHEET = "our own ceiling", "the data sheet"
COLUMN = {OWN: "expected_ceiling_s", SHEET: "expected_datasheet_s"}
REASONS = ("expected_ceiling_reason", "expected_datasheet_reason")
NAMES = {"batch_size": "batch size", "seq_len": "sequence length", "head_dim": "head dimension"}


class Line(NamedTuple):
    """The points of one place that have an expectation, and what that rests on."""

    name: str  # of the place
    basis: str
    points: list[Row]

    def expected_s(self, point: Row) -> float:
        """The expected time of a point."""
        return float(point[COLUMN[self.basis]])

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
        for basis, column in COLUMN.items():
            expected = [point for point in points if words.number(point.get(column))]
            if expected:
                yield Line(place_name(points[0]), basis, expected)


def add(data: Data, book: Book, grid: Grid, prefix: str) -> None:
    """The figure, then facts with numbers; a sentence where no point has an expected time."""
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
    for name, part in parts(f"{prefix}expected-{grid.workload}", all_lines, ROWS_PER_FIGURE):
        book.figure(
            name,
            "grid-expected",
            partial(draw, part, grid.varying()),
            workload=grid.workload,
            device=devices_said(data, grid.points),
            below=below(part),
        )
    by_name = grouped(all_lines, lambda line: line.name)
    book.facts([(name, "; ".join(map(fact, group))) for name, group in by_name.items()])


def fact(line: Line) -> str:
    """How many times as long as expected the points of a line took."""
    ratios = line.ratios()
    low, high = words.significant(ratios[0]), words.significant(ratios[-1])
    span = f", from {low} to {high}" if len(ratios) > 1 else ""
    return (
        f"{words.significant(median(ratios))} times as long as expected by {line.basis}, "
        f"the median of {words.count(len(ratios), 'point')}{span}"
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


def draw(part: Sequence[Line], varying: Sequence[str], narrow: bool) -> Any:
    """A panel for each line and parameter that varies, all with the same scale on both sides."""
    names = list(varying) or [""]
    every = [point for line in part for point in line.points]
    ramps = {name: Ramp(name, values(every, name)) for name in varying}
    ends = [end for line in part for end in line.ends()]
    columns = min(len(names), NARROW_COLUMNS) if narrow else len(names)
    panels: list[Panel] = []
    for line in part:
        for index, name in enumerate(names):
            above = f"{line.name}, by {line.basis}" if index == 0 else ""
            panels.append(
                Panel(
                    [chart.diagonal(), *_marks(line, ramps.get(name))],
                    Scale("expected / ms", log=10, reach=ends),
                    Scale("actual / ms", log=10, reach=ends),
                    title=f"{above}\n" * (index < columns) + NAMES.get(name, name),
                    of=line.points,
                    high=1.0,
                    grid="both",
                    legend=ramps[name].entries() if name else (),
                )
            )
        panels += [EMPTY] * (-len(names) % columns)
    return Chart(panels, columns=(columns, columns), same_y=True, same_x=True).figure(narrow)


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
    shared = f", {NAMES.get(ramp.name, ramp.name)} {value:g}" if ramp and value else ""
    text = hover.of_several(over, "×")
    return f"{line.name}{shared}: {words.count(len(points), 'point')}, actual over expected {text}"
