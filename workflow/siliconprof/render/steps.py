"""Raw step times over iterations: what a median hides, such as drift and outliers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.render import hover, marks, strokes, style
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.variants import Family, Row, label

MOST_POINTS = 500  # of one series in one panel
PANELS_PER_FIGURE = 12


def add(data: Data, book: Book, prefix: str = "") -> None:
    """Small multiples for every training family."""
    for kind, (points, _) in data.families().items():
        if points:
            add_steps(data, book, kind, points, prefix)


def add_steps(data: Data, book: Book, kind: Family, points: list[Row], prefix: str) -> None:
    """Small multiples of raw step times, one panel a cell."""
    parts = [points[i : i + PANELS_PER_FIGURE] for i in range(0, len(points), PANELS_PER_FIGURE)]
    for index, part in enumerate(parts):
        longest = max(len(data.traces.series(point, "unsplit_step_s")) for point in part)
        book.figure(
            f"{prefix}steps-{kind.slug}" + (f"-{index + 1}" if index else ""),
            "step-times",
            partial(draw_steps, data, part),
            family=kind.label + (f" (part {index + 1} of {len(parts)})" if len(parts) > 1 else ""),
            thinned=f" Of more than {MOST_POINTS} points the smallest and largest of each stretch "
            "are drawn."
            if longest > MOST_POINTS
            else "",
        )


def draw_steps(data: Data, points: Sequence[Row], narrow: bool) -> Any:
    """One panel a cell: warm-up left of zero, then split and unsplit steps."""
    columns = 2 if narrow else 3 if len(points) in (1, 2, 3, 5, 6, 9) else 4
    width = style.width_in(narrow)
    rows = -(-len(points) // columns)
    devices = {point["device"] for point in points}
    lines = 1 + narrow + (len(devices) > 1)
    title, left, foot, high = 0.14 + 0.12 * lines, 0.42, 0.36, 0.95
    pitch = width / columns
    entries = [
        (style.sample("o", color=style.FAINT, markersize=2.4), "warm-up"),
        (style.sample("o", color=style.MUTED, markersize=2.4), "split step"),
        (
            style.sample("o", color=style.shade(points[0]["backend"]), markersize=2.4),
            "unsplit step, in its backend's colour",
        ),
        (style.sample(None, "-", color=style.INK, linewidth=0.8), "median of unsplit steps"),
    ]
    head = style.legend_height(entries, width)
    figure = style.canvas(width, head + rows * (title + high + foot))
    style.legend(figure, entries, 0.0)
    for index, point in enumerate(points):
        row, column = divmod(index, columns)
        top = head + row * (title + high + foot)
        x = column * pitch
        name = label(point).split(" · ", 1) if narrow else [label(point)]
        if len(devices) > 1:
            name.insert(0, data.device_name(point))
        marks.tag(
            style.write(
                figure, x, top + title - 0.06, "\n".join(name), va="bottom", size=style.SMALL_PT
            ),
            point,
        )
        ax = style.axes(figure, x + left, top + title, pitch - left - 0.1, high)
        _panel(ax, data, point)
        if row == rows - 1 or index + columns >= len(points):
            ax.set_xlabel("iteration", size=style.SMALL_PT)
        if column == 0:
            ax.set_ylabel("ms", size=style.SMALL_PT)
    return figure


def _panel(ax: Any, data: Data, point: Row) -> None:
    highest = 0.0
    for name, series_name, ink in (
        ("warmup_step_s", "warm-up steps", style.FAINT),
        ("step_s", "split steps", style.MUTED),
        ("unsplit_step_s", "unsplit steps", style.shade(point["backend"])),
    ):
        values = data.traces.series(point, name)
        if not values:
            continue
        first = -len(values) if name == "warmup_step_s" else 0
        xs, ys = strokes.thin(range(first, first + len(values)), values, MOST_POINTS)
        marks.tag(
            strokes.dots(ax, xs, ys, color=ink),
            point,
            f"{hover.training(point)}: {len(values)} {series_name}, "
            + hover.of_several(values, "ms", 1e-3),
        )
        if name != "warmup_step_s":
            highest = max(highest, max(values))
    middle = point["unsplit_step_median_s"]
    if middle is not None:
        marks.tag(
            ax.axhline(middle, color=style.INK, linewidth=0.8),
            point,
            f"{hover.training(point)}: unsplit step {hover.median(point, 'unsplit_step')}",
        )
    slow = data.traces.series(point, "warmup_step_s")
    top = highest * 1.12 or 1.0
    if slow and max(slow) > top:  # the first step may take a hundred times as long: say so
        beyond = max(slow)
        marks.tag(
            ax.text(
                1,
                1,
                f"warm-up up to {words.duration(beyond)}",
                size=style.SMALL_PT - 0.5,
                color=style.MUTED,
                va="top",
                ha="right",
                transform=ax.transAxes,
            ),
            point,
        )
        top = highest * 1.3 or 1.0
    ax.set_ylim(0, top)
    ax.set_clip_on(True)
    style.plain_ticks(ax.yaxis, 4, 1e-3)
    style.plain_ticks(ax.xaxis, 3)
    ax.grid(axis="y")
