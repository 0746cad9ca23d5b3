"""The figure of an optimizer sweep, a loss curve for each setting, and the settings in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from siliconprof import words
from siliconprof.render import marks, strokes, style
from siliconprof.render.data import Data
from siliconprof.render.grid_points import Place, Scale, place_name
from siliconprof.render.variants import Row

CURVES_PER_PANEL = 32
POINTS_PER_CURVE = 120
NONE = -1.0  # stands for "off" among the values of a setting
SETTINGS = (
    ("learning_rate", "learning rate"),
    ("warmup_steps", "warm-up steps"),
    ("weight_decay", "weight decay"),
    ("beta1", "β₁"),
    ("beta2", "β₂"),
    ("max_gradient_norm", "clipping"),
)
OFF = {"max_gradient_norm": "off"}


def value(point: Row, name: str) -> float | None:
    """A setting's value; `NONE` where the setting is off, None where it is not known."""
    number = words.number(point.get(name))
    return NONE if number is None and name in OFF else number


def values(points: Sequence[Row], name: str) -> list[float]:
    """The values that a setting takes, in order; off is first."""
    return sorted({number for p in points if (number := value(p, name)) is not None})


def value_text(name: str, number: float | None) -> str:
    """A value in words: `3e-4`, `off`."""
    if number is None:
        return words.DASH
    if number == NONE and name in OFF:
        return OFF[name]
    return f"{number:g}".replace("e-0", "e-").replace("-", "−")


def diverged(point: Row) -> bool:
    """Whether a training diverged."""
    return str(point.get("diverged")) in ("True", "1", "1.0")


def _training_text(point: Row, scale: Scale) -> str:
    """`mlx · fp32, learning rate 3e-4`."""
    setting_text = value_text(scale.name, value(point, scale.name))
    return f"{place_name(point)}, {dict(SETTINGS)[scale.name]} {setting_text}"


def _chosen(points: Sequence[Row]) -> list[Row]:
    """Curves that a panel can hold: of more, those of evenly spaced final loss."""

    def rank(point: Row) -> tuple[bool, float]:
        final = words.number(point.get("final_loss"))
        return (diverged(point), float("inf") if final is None else final)

    ordered = sorted(points, key=rank)
    if len(ordered) <= CURVES_PER_PANEL:
        return ordered
    last = len(ordered) - 1
    return [ordered[round(i * last / (CURVES_PER_PANEL - 1))] for i in range(CURVES_PER_PANEL)]


def left_out(places: dict[Place, list[Row]]) -> str:
    """A note that not every curve is drawn; empty where all are."""
    most = max(len(points) for points in places.values())
    if most <= CURVES_PER_PANEL:
        return ""
    return f" Of {most} settings {CURVES_PER_PANEL} of evenly spaced final loss are drawn."


def draw_curves(
    data: Data, places: dict[Place, list[Row]], varying: Sequence[str], narrow: bool
) -> Any:
    """One panel a place, one line a setting; the line of a diverged training ends in a cross."""
    width = style.width_in(narrow)
    everything = [point for points in places.values() for point in points]
    name = varying[0]
    scale = Scale(name, values(everything, name))
    entries = [
        (style.sample(), f"{dict(SETTINGS)[name]}:"),
        *scale.entries(say=lambda number: value_text(name, number)),
        (style.sample("x", color=style.INK, markersize=3.6, markeredgewidth=0.9), "diverged"),
    ]
    columns = 1 if narrow else min(2, len(places))
    rows = -(-len(places) // columns)
    head = style.legend_height(entries, width) + 0.06
    left, gap, title, high, foot = 0.44, 0.3, 0.26, 1.6, 0.42
    panel = (width - gap * (columns - 1)) / columns - left - 0.06
    figure = style.canvas(width, head + rows * (title + high + foot))
    style.legend(figure, entries, 0.0)
    for index, points in enumerate(places.values()):
        row, column = divmod(index, columns)
        x, y = column * (panel + left + gap), head + row * (title + high + foot)
        marks.tag(
            style.write(
                figure, x, y + title / 2, place_name(points[0]), weight="bold", va="center"
            ),
            points,
        )
        ax = style.axes(figure, x + left, y + title, panel, high)
        _curves(ax, data, points, scale)
        ax.set_ylabel("loss / nat", size=style.SMALL_PT)
        ax.set_xlabel("training step", size=style.SMALL_PT)
        style.plain_ticks(ax.xaxis, 5)
        style.plain_ticks(ax.yaxis, 5)
        ax.grid(axis="y")
    return figure


def _curves(ax: Any, data: Data, points: Sequence[Row], scale: Scale) -> None:
    """The panel is as high as first losses and trainings that came to their end need."""
    reach: list[float] = []
    diverged_ends: list[tuple[float, float, str, Row]] = []
    for point in reversed(_chosen(points)):
        frame = data.traces.curve(point)
        if frame is None:
            continue
        losses = frame["loss"].to_numpy(dtype=float)
        finite = np.flatnonzero(np.isfinite(losses))
        if not len(finite):
            continue
        xs, ys = strokes.thin((finite + 1).tolist(), losses[finite].tolist(), POINTS_PER_CURVE)
        ink = scale.colour(value(point, scale.name))
        line = ax.plot(
            xs, ys, color=ink, linewidth=0.9, dashes=(3, 1.2) if diverged(point) else (1, 0)
        )
        final = words.number(point.get("final_loss"))
        end = (
            "diverged"
            if diverged(point) or final is None
            else (f"final loss {words.significant(final, 4)} nat")
        )
        marks.tag(line, point, f"{_training_text(point, scale)}: {end}")
        reach.append(ys[0])
        if diverged(point):
            diverged_ends.append((xs[-1], ys[-1], ink, point))
        else:
            reach += [min(ys), max(ys)]
    if not reach:
        return
    room = (max(reach) - min(reach)) * 0.12 or 1.0
    low, high = min(reach) - room / 2, max(reach) + room
    ax.set_ylim(low, high)
    for x, y, ink, point in diverged_ends:  # at the edge where the end lies beyond it
        marks.tag(
            ax.plot(
                [x],
                [min(max(y, low), high)],
                "x",
                color=ink,
                markersize=4,
                markeredgewidth=1.0,
                clip_on=False,
            ),
            point,
        )
