"""Our timing against torch.utils.benchmark's blocked_autorange, the tool of the wide/deep report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

from siliconprof import words
from siliconprof.render import chart, hover, style
from siliconprof.render.book import Book, parts
from siliconprof.render.chart import RING, Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.grid_points import MS, Grid, devices_said, place_name, seconds
from siliconprof.render.variants import Row

PANELS_PER_FIGURE = 6
HOLLOW_NOTE = (
    " Hollow dots are points of which one iteration took longer than min_run_time: the tool then "
    "times one iteration alone and repeats nothing on purpose, which is the doubt that the wide/deep report "
    "has about its own numbers."
)
AGREE = 0.05  # what is drawn as the band in which both timings agree


def ratio(point: Row) -> float | None:
    """blocked_autorange's median over ours, None where it did not time the point."""
    return words.number(point.get("autorange_over_ours"))


def is_short(point: Row) -> bool:
    """Whether the tool was given less time than one iteration takes."""
    return bool(point.get("autorange_shorter_than_iteration"))


def add(data: Data, book: Book, grid: Grid, prefix: str) -> None:
    """A panel for each place that the tool timed; a sentence for each reason why it did not."""
    places = list(grid.places().values())
    timed = [[point for point in points if ratio(point)] for points in places]
    panels = list(filter(None, timed))
    for name, part in parts(f"{prefix}timers-{grid.workload}", panels, PANELS_PER_FIGURE):
        book.figure(
            name,
            "grid-timers",
            partial(draw, part),
            workload=grid.workload,
            device=devices_said(data, grid.points),
            hollow=HOLLOW_NOTE if any(map(is_short, chain(*part))) else "",
            said=" ".join(map(agreement, part)),
        )
    silent = [points for points in places if not any(map(ratio, points))]
    for why, group in grouped(silent, why_none).items():
        names = [place_name(points[0]) for points in group]
        book.note(f"No timing by blocked_autorange for {words.listing(names)}: {why}.")


def why_none(points: Sequence[Row]) -> str:
    """Why the tool timed none of a place's points."""
    reasons = {str(p["autorange_reason"]) for p in points if p.get("autorange_reason")}
    return "; ".join(sorted(reasons)) or "not recorded"


def agreement(points: Sequence[Row]) -> str:
    """How far both timings of one place are apart, and how often the tool had too little time."""
    ratios = sorted(value for point in points if (value := ratio(point)))
    near = sum(abs(value - 1) <= AGREE for value in ratios)
    short = [point for point in points if is_short(point)]
    ends = list(dict.fromkeys(words.significant(ratios[i]) for i in (0, -1)))
    span = f", from {ends[0]} to {ends[1]}" if len(ends) > 1 else ""
    sentence = (
        f"{place_name(points[0])}: ratio {words.significant(median(ratios))}, the median of "
        f"{words.count(len(ratios), 'point')}{span}; {near} of them "
        f"within {words.whole_percent(AGREE)}"
    )
    if not short:
        return f"{sentence}; min_run_time was never shorter than one iteration."
    return f"{sentence}; in {len(short)} of them min_run_time was shorter than one iteration."


def draw(places: Sequence[Sequence[Row]], narrow: bool) -> Any:
    """Ratio over the time of an iteration; hollow where the tool had less than one iteration."""
    dot = style.sample("o", color=style.MUTED, markersize=3)
    ring = style.sample("o", color=style.MUTED, markersize=4, **RING)
    short = [(ring, "min_run_time shorter than one iteration")]
    legend = [
        (dot, "blocked_autorange over our median"),
        *(short if any(map(is_short, chain(*places))) else []),
        (style.sample(None, "-", color=style.MUTED, dashes=(1, 1)), "min_run_time"),
        (style.swatch(style.shade("grey", 12)), f"within {words.whole_percent(AGREE)}"),
    ]
    return Chart(list(map(_panel, places)), legend, (2, 1)).figure(narrow)


def _panel(points: Sequence[Row]) -> Panel:
    times_ms = [float(seconds(point) or 0) / MS for point in points]
    given = {words.number(point.get("autorange_min_run_time_s")) for point in points}
    limits_ms = [value / MS for value in sorted(filter(None, given))]
    near = [x for x in limits_ms if min(times_ms) / 20 < x < max(times_ms) * 20]
    reach = max(0.1, *(abs(float(ratio(point) or 0) - 1) for point in points)) * 1.15
    return Panel(
        [
            chart.band(1 - AGREE, 1 + AGREE),
            chart.across(1),
            *(chart.upright(x, linewidth=0.9, dashes=(1, 1)) for x in near),
            *_marks(points, times_ms),
        ],
        Scale("one iteration by our timing / ms", log=10),
        Scale("ratio", ends=(max(0.0, 1 - reach), 1 + reach)),
        title=place_name(points[0]),
        of=points,
    )


def _marks(points: Sequence[Row], times_ms: Sequence[float]) -> Iterator[Mark]:
    """Dots for the points that had time enough, and a ring for each that had not."""
    place = place_name(points[0])
    both = [(x, float(ratio(point) or 0), point) for x, point in zip(times_ms, points, strict=True)]
    enough = [(x, y) for x, y, point in both if not is_short(point)]
    if enough:
        xs, ys = map(list, zip(*enough, strict=True))
        text = (
            f"{place}: blocked_autorange over our median, {words.count(len(enough), 'point')}, "
            f"{hover.of_several(ys, '×')}"
        )
        yield chart.dots(xs, ys, points, text, 3.0, color=style.colour(points[0]))
    for x, y, point in both:
        if is_short(point):
            text = (
                f"{place}, {hover.seconds(x * MS)} an iteration: {words.significant(y)} ×, "
                "min_run_time is shorter"
            )
            yield chart.dot(x, y, point, text, size=3.6, **RING)
