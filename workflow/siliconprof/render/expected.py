"""Expected against actual time of a training iteration, coloured by each parameter of the grid.

Expected is the number of operations over a rate: the data sheet's peak as seed 003 has it, and
the fastest product that the same backend managed here, which is the fairer of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from siliconprof import words
from siliconprof.render import hover, marks, strokes, style
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.grid_points import (
    MS,
    Grid,
    Scale,
    devices_said,
    log_ticks,
    place_name,
    seconds,
    values,
)
from siliconprof.render.variants import Row

ROWS_PER_FIGURE = 5
WIDEST_PANEL_IN = 2.0
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
    parts = [all_lines[i : i + ROWS_PER_FIGURE] for i in range(0, len(all_lines), ROWS_PER_FIGURE)]
    for index, part in enumerate(parts):
        name = f"{prefix}expected-{grid.workload}"
        book.figure(
            f"{name}-{index + 1}" if index else name,
            "grid-expected",
            partial(draw, part, grid.varying()),
            workload=grid.workload,
            device=devices_said(data, grid.points),
            below=below(part),
        )
    facts: dict[str, list[str]] = {}
    for line in all_lines:
        facts.setdefault(line.name, []).append(fact(line))
    book.facts([(name, "; ".join(lines_)) for name, lines_ in facts.items()])


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
        f" {words.count(n, 'dot')} {verb} faster than expected: what they are held against was "
        "measured too low or is not what bounds them."
    )


def draw(part: Sequence[Line], varying: Sequence[str], narrow: bool) -> Any:
    """Rows are places and what is expected of them, columns the parameters that vary."""
    columns: list[str | None] = list(varying) or [None]
    per_row = NARROW_COLUMNS if narrow else len(columns)
    bands = [columns[i : i + per_row] for i in range(0, len(columns), per_row)]
    width = style.width_in(narrow)
    left, gap, foot, title = 0.5, 0.12, 0.4, 0.24
    n = max(len(band) for band in bands)
    panel = min(WIDEST_PANEL_IN, (width - left - 0.06 - gap * (n - 1)) / n)
    points = [point for line in part for point in line.points]
    scales = {name: Scale(name, values(points, name)) for name in varying}
    heads = [
        max(
            (0.2 + style.legend_height(scales[name].entries(), panel) for name in band if name),
            default=0.0,
        )
        for band in bands
    ]
    height = sum(heads) + len(bands) * (len(part) * (title + panel + 0.2) + foot - 0.1)
    figure = style.canvas(width, height)
    top = 0.0
    for band, head in zip(bands, heads, strict=True):
        for index, name in enumerate(band):
            if name:
                x = left + index * (panel + gap)
                style.write(
                    figure, x, top + 0.09, NAMES.get(name, name), weight="bold", va="center"
                )
                style.legend(figure, scales[name].entries(), top + 0.18, x - 0.03, panel)
        top += head
        for row, line in enumerate(part):
            heading = f"{line.name}, by {line.basis}"
            marks.tag(
                style.write(
                    figure, left, top + title - 0.07, heading, va="bottom", size=style.SMALL_PT
                ),
                line.points,
            )
            low, end = _reach(line)
            for index, name in enumerate(band):
                x = left + index * (panel + gap)
                ax = style.axes(figure, x, top + title, panel, panel)
                _panel(ax, line, scales.get(name or ""), low, end)
                if index:
                    ax.set_yticklabels([])
                else:
                    ax.set_ylabel("actual / ms", size=style.SMALL_PT)
                if row == len(part) - 1:
                    ax.set_xlabel("expected / ms", size=style.SMALL_PT)
            top += title + panel + 0.2
        top += foot - 0.1
    return figure


def _reach(line: Line) -> tuple[float, float]:
    """Both ends of both axes in seconds, so that the identity runs from corner to corner."""
    ends = [end for p in line.points for end in (line.expected_s(p), float(seconds(p) or 0))]
    return min(ends) / 1.4, max(ends) * 1.4


def _hover(line: Line, points: Sequence[Row], scale: Scale | None) -> str:
    """`torch-cpu · fp32, n_layer 4: 6 points, actual over expected: median 2.1 × (range …)`."""
    over = [float(seconds(point) or 0) / line.expected_s(point) for point in points]
    value = words.number(points[0].get(scale.name)) if scale else None
    shared = f", {NAMES.get(scale.name, scale.name)} {value:g}" if scale and value else ""
    text = hover.of_several(over, "×")
    return f"{line.name}{shared}: {words.count(len(points), 'point')}, actual over expected {text}"


def _panel(ax: Any, line: Line, scale: Scale | None, low: float, high: float) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.plot([low, high], [low, high], color=style.MUTED, linewidth=0.8, dashes=(3, 2))
    groups = (
        scale.groups(line.points)
        if scale
        else {style.shade(line.points[0]["backend"]): line.points}
    )
    size = 3.2 if len(line.points) <= 120 else 2.2
    for ink, points in groups.items():
        xs = [line.expected_s(point) for point in points]
        ys = [float(seconds(point) or 0) for point in points]
        marks.tag(
            strokes.dots(ax, xs, ys, size, log=True, color=ink), points, _hover(line, points, scale)
        )
    inner = (high / low) ** 0.07  # labels at the very ends would touch those of the next panel
    for axis in (ax.xaxis, ax.yaxis):
        log_ticks(axis, low * inner, high / inner**2, 3, MS)
    ax.grid(color=style.RULE)
