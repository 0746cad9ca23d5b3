"""Many points and many lines in one axes: drawn small, thinned out, named at their ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from siliconprof.render import marks, style


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
    look = {"linewidth": size, "solid_capstyle": "round", "snap": False, **look}
    return style.line(ax, x_path, y_path, **look)


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


def thin_course(values: np.ndarray, most: int) -> tuple[list[float], list[float]]:
    """Steps counted from 1 and their finite values, thinned."""
    places = np.flatnonzero(np.isfinite(values))
    return thin((places + 1).tolist(), values[places].tolist(), most)


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


class End(NamedTuple):
    """The end of a line in data units, its name, its look, and what it is about."""

    x: float
    y: float
    name: str
    look: Mapping[str, Any]
    of: Any


def end_labels(ends: Sequence[End], ax: Any) -> None:
    """Names beside the ends of lines, moved apart, with a thin line from each end to its name."""
    wide, high = (side / ax.figure.dpi for side in (ax.bbox.width, ax.bbox.height))
    shares = ax.transAxes.inverted().transform(ax.transData.transform([end[:2] for end in ends]))
    gap = (style.SMALL_PT + 1.2) / style.POINTS_PER_IN / high
    places = spread([y for _, y in shares], gap, gap / 2, 1 - gap / 2)
    axes = {"transform": ax.transAxes, "clip_on": False}
    for end, (x, y), at in zip(ends, shares, places, strict=True):
        drawn = []
        if x > 0.97:  # across the axes it would only cross other lines
            thin_line = {"color": style.MUTED, "linewidth": 0.35, **axes}
            drawn += ax.plot([x, 1 + 0.12 / wide], [y, at], **thin_line)
        sample = {"linewidth": 1.1, **end.look, **axes}
        drawn += ax.plot([1 + 0.14 / wide, 1 + 0.3 / wide], [at, at], **sample)
        left = 1 + 0.33 / wide
        drawn.append(ax.text(left, at, end.name, size=style.SMALL_PT, va="center", **axes))
        marks.tag(drawn, end.of)
