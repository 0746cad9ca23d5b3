"""Our timing against torch.utils.benchmark's blocked_autorange, the tool of the wide/deep report."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from siliconprof import words
from siliconprof.render.book import Book
from siliconprof.render.data import grouped
from siliconprof.render.grid_points import Grid, place_name
from siliconprof.render.variants import Row

INTRO = "Median of blocked_autorange over that of our own timing, same iterations:"
AGREE = 0.05  # both timings agree within it
SHORT = (
    "{}; in {} of them min_run_time was shorter than one iteration: the tool then times one "
    "iteration alone and repeats nothing on purpose, which is the doubt that the wide/deep report "
    "has about its own numbers."
)


def ratio(point: Row) -> float | None:
    """blocked_autorange's median over ours, None where it did not time the point."""
    return words.number(point.get("autorange_over_ours"))


def is_short(point: Row) -> bool:
    """Whether the tool was given less time than one iteration takes."""
    return bool(point.get("autorange_shorter_than_iteration"))


def add(book: Book, grid: Grid) -> None:
    """A sentence for each place that the tool timed, and for each reason why it did not."""
    places = list(grid.places().values())
    timed = [points for points in places if any(map(ratio, points))]
    if timed:
        book.listing(list(map(agreement, timed)), INTRO)
    silent = [points for points in places if points not in timed]
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
    n_short = sum(map(is_short, points))
    ends = list(dict.fromkeys(words.significant(ratios[i]) for i in (0, -1)))
    span = f", from {ends[0]} to {ends[1]}" if len(ends) > 1 else ""
    sentence = (
        f"{place_name(points[0])}: ratio {words.significant(median(ratios))}, the median of "
        f"{words.count(len(ratios), 'point')}{span}; {near} of them "
        f"within {words.whole_percent(AGREE)}"
    )
    if n_short:
        return SHORT.format(sentence, n_short)
    return f"{sentence}; min_run_time was never shorter than one iteration."
