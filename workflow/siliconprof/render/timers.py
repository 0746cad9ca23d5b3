"""Our timing against torch.utils.benchmark's blocked_autorange, the tool of seed 003."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

from siliconprof import words
from siliconprof.render import hover, marks, strokes, style
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.grid_points import MS, Grid, devices_said, log_ticks, place_name, seconds
from siliconprof.render.variants import Row

PANELS_PER_FIGURE = 6
HOLLOW_NOTE = (
    " Hollow dots are points of which one iteration took longer than min_run_time: the tool then "
    "times one iteration alone and repeats nothing on purpose, which is the doubt that seed 003 "
    "has about its own numbers."
)
AGREE = 0.05  # what is drawn as the band in which both timings agree


def ratio(point: Row) -> float | None:
    """blocked_autorange's median over ours, None where it did not time the point."""
    return words.number(point.get("autorange_over_ours"))


def is_short(point: Row) -> bool:
    """Whether the tool was given less time than one iteration takes."""
    return str(point.get("autorange_shorter_than_iteration")) in ("True", "1", "1.0")


def add(data: Data, book: Book, grid: Grid, prefix: str) -> None:
    """A panel for each place that the tool timed; a sentence for each reason why it did not."""
    panels = []
    silent: dict[str, list[str]] = {}
    for every in grid.places().values():
        points = [point for point in every if ratio(point)]
        if points:
            panels.append(points)
            continue
        reasons = {str(p["autorange_reason"]) for p in every if p.get("autorange_reason")}
        why = "; ".join(sorted(reasons)) or "not recorded"
        silent.setdefault(why, []).append(place_name(every[0]))
    for start in range(0, len(panels), PANELS_PER_FIGURE):
        part = panels[start : start + PANELS_PER_FIGURE]
        name = f"{prefix}timers-{grid.workload}"
        book.figure(
            f"{name}-{start // PANELS_PER_FIGURE + 1}" if start else name,
            "grid-timers",
            partial(draw, part),
            workload=grid.workload,
            device=devices_said(data, grid.points),
            hollow=HOLLOW_NOTE if any(map(is_short, chain(*part))) else "",
            said=" ".join(map(agreement, part)),
        )
    for why, names in silent.items():
        book.note(f"No timing by blocked_autorange for {words.listing(names)}: {why}.")


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


def draw(panels: Sequence[Sequence[Row]], narrow: bool) -> Any:
    """Ratio over the time of an iteration; hollow where the tool had less than one iteration."""
    width = style.width_in(narrow)
    columns = 1 if narrow or len(panels) == 1 else 2
    rows = -(-len(panels) // columns)
    entries = [
        (style.sample("o", color=style.MUTED, markersize=3), "blocked_autorange over our median")
    ]
    if any(map(is_short, chain(*panels))):
        ring = style.sample(
            "o", color=style.MUTED, markersize=4, markerfacecolor="none", markeredgewidth=0.8
        )
        entries.append((ring, "min_run_time shorter than one iteration"))
    entries += [
        (style.sample(None, "-", color=style.MUTED, dashes=(1, 1)), "min_run_time"),
        (style.swatch(style.shade("grey", 12)), f"within {words.whole_percent(AGREE)}"),
    ]
    head = style.legend_height(entries, width) + 0.06
    title, foot, left, gap, high = 0.26, 0.42, 0.42, 0.34, 1.45
    figure = style.canvas(width, head + rows * (title + high + foot))
    style.legend(figure, entries, 0.0)
    panel = (width - gap * (columns - 1)) / columns - left - 0.06
    for index, points in enumerate(panels):
        row, column = divmod(index, columns)
        x, y = column * (panel + left + gap), head + row * (title + high + foot)
        place_text = style.write(
            figure, x, y + title / 2, place_name(points[0]), weight="bold", va="center"
        )
        marks.tag(place_text, points)
        ax = style.axes(figure, x + left, y + title, panel, high)
        _panel(ax, points)
        ax.set_ylabel("ratio", size=style.SMALL_PT)
        ax.set_xlabel("one iteration by our timing / ms", size=style.SMALL_PT)
    return figure


def _panel(ax: Any, points: Sequence[Row]) -> None:
    xs = [float(seconds(point) or 0) for point in points]
    ys = [float(ratio(point) or 0) for point in points]
    min_run_times = sorted(
        {
            value
            for point in points
            if (value := words.number(point.get("autorange_min_run_time_s")))
        }
    )
    shown = [value for value in min_run_times if min(xs) / 20 < value < max(xs) * 20]
    low, high = min([*xs, *shown]) / 1.5, max([*xs, *shown]) * 1.5
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    reach = max(0.1, *(abs(value - 1) for value in ys)) * 1.15
    ax.set_ylim(max(0.0, 1 - reach), 1 + reach)
    ax.axhspan(1 - AGREE, 1 + AGREE, color=style.shade("grey", 12), linewidth=0)
    ax.axhline(1, color=style.MUTED, linewidth=0.7)
    for value in shown:
        ax.axvline(value, color=style.MUTED, linewidth=0.9, dashes=(1, 1))
    ink = style.colour(points[0])
    long_enough = [i for i, point in enumerate(points) if not is_short(point)]
    if long_enough:
        drawn = strokes.dots(
            ax, [xs[i] for i in long_enough], [ys[i] for i in long_enough], 3.0, True, color=ink
        )
        ratios_text = hover.of_several([ys[i] for i in long_enough], "×")
        marks.tag(
            drawn,
            points,
            f"{place_name(points[0])}: blocked_autorange over our median, "
            f"{words.count(len(long_enough), 'point')}, {ratios_text}",
        )
    for i, point in enumerate(points):
        if is_short(point):
            ring = ax.plot(
                [xs[i]],
                [ys[i]],
                "o",
                markersize=3.6,
                markerfacecolor="none",
                markeredgewidth=0.8,
                color=ink,
            )
            marks.tag(
                ring,
                point,
                f"{place_name(point)}, {hover.seconds(xs[i])} an iteration: "
                f"{words.significant(ys[i])} ×, min_run_time is shorter",
            )
    log_ticks(ax.xaxis, low, high, 7, MS)
    style.plain_ticks(ax.yaxis, 5)
    ax.grid(axis="y")
