"""Many points and many lines in one axes: drawn small, thinned out, named at their ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from siliconprof.render import style


def dots(
    ax: Any,
    xs: Sequence[float],
    ys: Sequence[float],
    size: float = 1.8,
    log: bool = False,
    **look: Any,
) -> Any:
    """Draw many points as one path and return it; markers would make the page large.

    Every point is a stroke of no visible length with round ends.

    Args:
        log: whether the horizontal axis is logarithmic.
    """
    nan = float("nan")
    tiny = (max(xs) - min(xs) or 1.0) * 1e-5 if len(xs) else 0.0
    ends = [(x * (1 - 1e-5), x * (1 + 1e-5)) if log else (x - tiny, x + tiny) for x in xs]
    x_path = [value for low, high in ends for value in (low, high, nan)]
    y_path = [value for y in ys for value in (y, y, nan)]
    # snapping to pixels would make the strokes so short that they vanish
    return ax.plot(x_path, y_path, linewidth=size, solid_capstyle="round", snap=False, **look)


def end_cross(ax: Any, values: Sequence[float], colour: str) -> list[Any]:
    """A cross at the last finite value of a training that diverged; steps count from 1."""
    finite = [(step, value) for step, value in enumerate(values, 1) if math.isfinite(value)]
    return [
        artist
        for last in finite[-1:]
        for artist in ax.plot(*last, "x", color=colour, markersize=5, clip_on=False)
    ]


def thin(xs: Sequence[float], ys: Sequence[float], most: int) -> tuple[list[float], list[float]]:
    """At most about `most` points; each stretch keeps its smallest and its largest."""
    if len(xs) <= most:
        return list(xs), list(ys)
    stretch = -(-2 * len(xs) // most)
    chosen: list[int] = []
    for start in range(0, len(xs), stretch):
        stretch_indices = range(start, min(start + stretch, len(xs)))
        chosen += sorted(
            {min(stretch_indices, key=ys.__getitem__), max(stretch_indices, key=ys.__getitem__)}
        )
    return [xs[i] for i in chosen], [ys[i] for i in chosen]


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones and at least `gap` apart, for labels at the ends of lines."""
    ordered = sorted(range(len(wanted)), key=wanted.__getitem__)
    places = [min(max(wanted[i], low), high) for i in ordered]
    for _ in range(2):  # push up from below, then down from above, then once more
        for i in range(1, len(places)):
            places[i] = max(places[i], places[i - 1] + gap)
        if places and places[-1] > high:
            places[-1] = high
            for i in range(len(places) - 1, 0, -1):
                places[i - 1] = min(places[i - 1], places[i] - gap)
    result = [0.0] * len(wanted)
    for place, i in zip(places, ordered, strict=True):
        result[i] = place
    return result


def end_labels(
    ax: Any,
    ends: Sequence[tuple[float, float]],
    labels: Sequence[str],
    inks: Sequence[tuple],
    high: float,
    wide: float,
    log: bool = False,
) -> list[list[Any]]:
    """Names beside the ends of lines, moved apart, with a thin line from each end to its name.

    Args:
        ends: x, y of each line's end, in data units.
        inks: colour and dashes of each line.
        high, wide: size of the axes in inches.

    Returns:
        What was drawn of each.
    """
    x_low, x_high = ax.get_xlim()
    y_low, y_high = ax.get_ylim()

    def place(y: float) -> float:
        """A value's height as a share of the axes."""
        if log:
            return math.log(y / y_low) / math.log(y_high / y_low)
        return (y - y_low) / (y_high - y_low)

    gap = (style.SMALL_PT + 1.2) / style.POINTS_PER_IN / high
    places = spread([place(y) for _, y in ends], gap, gap / 2, 1 - gap / 2)
    drawn: list[list[Any]] = []
    for (x, y), at, name, (ink, dash) in zip(ends, places, labels, inks, strict=True):
        share = (x - x_low) / (x_high - x_low)
        drawn.append([])
        if share > 0.97:  # across the axes it would only cross other lines
            drawn[-1] += ax.plot(
                [share, 1 + 0.12 / wide],
                [place(y), at],
                color=style.MUTED,
                linewidth=0.35,
                transform=ax.transAxes,
                clip_on=False,
            )
        drawn[-1] += ax.plot(
            [1 + 0.14 / wide, 1 + 0.3 / wide],
            [at, at],
            color=ink,
            dashes=dash,
            linewidth=1.1,
            transform=ax.transAxes,
            clip_on=False,
        )
        drawn[-1].append(
            ax.text(
                1 + 0.33 / wide, at, name, size=style.SMALL_PT, va="center", transform=ax.transAxes
            )
        )
    return drawn
