"""Raw step times over iterations: what a median hides, such as drift and outliers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

from siliconprof import words
from siliconprof.render import chart, hover, strokes, style
from siliconprof.render.book import Book, told_parts
from siliconprof.render.chart import Chart, Panel, Scale
from siliconprof.render.data import Data
from siliconprof.render.variants import Row, label

MOST_POINTS = 500  # of one series in one panel
PANELS_PER_FIGURE = 12
MS = 1e-3
WARM_UP = "warmup_step_s"
SERIES = {  # what its steps are called, and their colour; that of the backend where there is none
    WARM_UP: ("warm-up steps", style.FAINT),
    "step_s": ("split steps", style.MUTED),
    "unsplit_step_s": ("unsplit steps", ""),
}
THINNED = f" Of more than {MOST_POINTS} points the smallest and largest of each stretch are drawn."


def add(data: Data, book: Book, prefix: str = "") -> None:
    """Small multiples of raw step times for every training family, one panel a cell."""
    for kind, (points, _) in data.families().items():
        stem = f"{prefix}steps-{kind.slug}"
        for name, part, chunk in told_parts(stem, points, PANELS_PER_FIGURE):
            longest = max(len(data.traces.series(point, "unsplit_step_s")) for point in chunk)
            book.figure(
                name,
                "step-times",
                partial(draw_steps, data, chunk),
                family=kind.label + part,
                thinned=THINNED if longest > MOST_POINTS else "",
            )


def draw_steps(data: Data, points: Sequence[Row], narrow: bool) -> Any:
    """One panel a cell: warm-up left of zero, then split and unsplit steps."""
    ink = style.shade(points[0]["backend"])
    legend = [
        (style.sample("o", color=style.FAINT, markersize=2.4), "warm-up"),
        (style.sample("o", color=style.MUTED, markersize=2.4), "split step"),
        (style.sample("o", color=ink, markersize=2.4), "unsplit step, in its backend's colour"),
        (style.sample(None, "-", color=style.INK, linewidth=0.8), "median of unsplit steps"),
    ]
    several = len({point["device"] for point in points}) > 1
    panels = [
        _panel(data, point, f"{data.device_name(point)}\n" if several else "") for point in points
    ]
    columns = 3 if len(points) in (1, 2, 3, 5, 6, 9) else 4
    return Chart(panels, legend, columns=(columns, 2)).figure(narrow)


def _panel(data: Data, point: Row, device: str) -> Panel:
    """A cell's steps, as high as those after the warm-up; how long that took, in words."""
    shown = []
    raw = {name: data.traces.series(point, name) for name in SERIES}
    for name, values in raw.items():
        if values:
            called, ink = SERIES[name]
            first = -len(values) if name == WARM_UP else 0
            xs, ys = strokes.thin(range(first, first + len(values)), values, MOST_POINTS)
            counted = f"{len(values)} {called}, {hover.of_several(values, 'ms', MS)}"
            text = f"{hover.training(point)}: {counted}"
            color = ink or style.shade(point["backend"])
            shown.append(chart.dots(xs, ys, point, text, color=color))
    middle = point["unsplit_step_median_s"]
    if middle is not None:
        text = f"{hover.training(point)}: unsplit step {hover.median(point, 'unsplit_step')}"
        shown.append(chart.across(middle, point, text, color=style.INK, linewidth=0.8))
    slow = max(raw[WARM_UP], default=0.0)
    top = max(chain(raw["step_s"], raw["unsplit_step_s"]), default=0.0) * 1.12 or 1.0
    if slow > top:  # the first step may take a hundred times as long: say so
        shown.append(chart.corner(f"warm-up up to {words.duration(slow)}", point))
        top *= 1.16
    return Panel(
        shown,
        Scale("iteration", most=3),
        Scale("ms", ends=(0, top), most=4, unit=MS),
        title=device + label(point, True),
        of=point,
        high=0.95,
    )
