"""Figures of an optimizer sweep: final losses over the settings, and the curves behind them."""

from __future__ import annotations

import math
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


def _scale(points: Sequence[Row], name: str) -> Scale:
    return Scale(name, values(points, name))


def _coloured(points: Sequence[Row], scale: Scale) -> dict[str, list[Row]]:
    """Colour -> points; off counts as a value."""
    by_colour: dict[str, list[Row]] = {}
    for point in points:
        by_colour.setdefault(scale.colour(value(point, scale.name)), []).append(point)
    return by_colour


def _training_text(point: Row, scale: Scale | None) -> str:
    """`mlx · fp32, learning rate 3e-4`."""
    if scale is None:
        return place_name(point)
    setting_text = value_text(scale.name, value(point, scale.name))
    return f"{place_name(point)}, {dict(SETTINGS)[scale.name]} {setting_text}"


def _entries(scale: Scale) -> list[style.Entry]:
    return scale.entries(say=lambda number: value_text(scale.name, number))


def draw(places: dict[Place, list[Row]], varying: Sequence[str], narrow: bool) -> Any:
    """Places below each other and the settings that vary side by side; one setting alone takes
    less, so places then share a row. Diverged trainings stand above all others.
    """
    width = style.width_in(narrow)
    setting_names = dict(SETTINGS)
    everything = [point for points in places.values() for point in points]
    scale = _scale(everything, varying[0]) if len(varying) > 1 else None
    pairs = [(points, name) for points in places.values() for name in varying]
    columns = (1 if narrow else min(3, len(places))) if scale is None else (2 if narrow else 4)
    bands = -(-len(varying) // columns)
    per_row = columns if scale is None else -(-len(varying) // bands)  # rows of equal length
    each = len(pairs) if scale is None else len(varying)  # a place begins a row of its own
    rows = [
        pairs[start : min(start + per_row, first + each)]
        for first in range(0, len(pairs), each)
        for start in range(first, first + each, per_row)
    ]
    entries: list[style.Entry] = []
    if scale is not None:
        entries = [(style.sample(), f"{setting_names[varying[0]]}:"), *_entries(scale)]
    entries += [
        (style.sample("x", color=style.INK, markersize=3.6, markeredgewidth=0.9), "diverged"),
        (style.sample(None, "-", color=style.FAINT), "least loss of each value"),
    ]
    head = style.legend_height(entries, width) + 0.06
    left, gap, title, high, foot = 0.44, 0.2, 0.26, 1.45, 0.42
    # Of several settings only the first of a row needs room for its axis.
    aside = left + gap if scale is None else gap
    n = max(map(len, rows))
    panel = min(3.2, (width - left - 0.06 - aside * (n - 1)) / n)
    figure = style.canvas(width, head + len(rows) * (title + high + foot))
    style.legend(figure, entries, 0.0)
    for index, row in enumerate(rows):
        top = head + index * (title + high + foot)
        for column, (points, name) in enumerate(row):
            x = left + column * (panel + aside)
            ax = style.axes(figure, x, top + title, panel, high)
            _losses(ax, points, name, values(everything, name), scale, panel)
            ax.set_xlabel(setting_names[name], size=style.SMALL_PT)
            if column and scale is not None:
                ax.set_yticklabels([])
                continue
            ax.set_ylabel("final loss / nat", size=style.SMALL_PT)
            marks.tag(
                style.write(
                    figure,
                    x - left,
                    top + title / 2,
                    place_name(points[0]),
                    weight="bold",
                    va="center",
                ),
                points,
            )
    return figure


def _losses(
    ax: Any,
    points: Sequence[Row],
    name: str,
    ordered: Sequence[float],
    scale: Scale | None,
    wide: float,
) -> None:
    """Final losses over the values of one setting, side by side where several share one.

    Args:
        wide: of the axes, in inches.
    """
    finished = [
        p for p in points if not diverged(p) and words.number(p.get("final_loss")) is not None
    ]
    losses = [float(point["final_loss"]) for point in finished]
    low, high = (min(losses), max(losses)) if losses else (0.0, 1.0)
    edge = (high - low) * 0.1 or abs(high) * 0.05 or 1.0
    above = high + 2.2 * edge  # where diverged trainings stand
    ax.set_ylim(low - edge, above + edge)
    ax.set_xlim(-0.5, len(ordered) - 0.5)
    least: dict[int, float] = {}
    places: dict[int, tuple[float, float]] = {}
    for index, setting in enumerate(ordered):
        same_setting = [point for point in points if value(point, name) == setting]
        for number, point in enumerate(same_setting):
            at = index + (((number + 0.5) / len(same_setting)) - 0.5) * (
                0.5 if len(same_setting) > 1 else 0
            )
            final = words.number(point.get("final_loss"))
            if diverged(point) or final is None:
                places[id(point)] = (at, above)
            else:
                places[id(point)] = (at, final)
                least[index] = min(least.get(index, final), final)
    marks.tag(
        ax.plot(list(least), list(least.values()), color=style.FAINT, linewidth=0.9, zorder=1),
        points,
    )
    groups = _coloured(points, scale) if scale else {style.shade(points[0]["backend"]): points}
    for ink, group in groups.items():
        finished_places = [
            places[id(p)] for p in group if id(p) in places and places[id(p)][1] < above
        ]
        diverged_places = [
            places[id(p)] for p in group if id(p) in places and places[id(p)][1] == above
        ]
        training = _training_text(group[0], scale)
        if finished_places:
            drawn = strokes.dots(
                ax, [x for x, _ in finished_places], [y for _, y in finished_places], 3.4, color=ink
            )
            best = words.significant(min(y for _, y in finished_places), 4)
            marks.tag(
                drawn,
                group,
                f"{training}: {words.count(len(finished_places), 'training')}, least final loss {best} nat",
            )
        crosses = ax.plot(
            [x for x, _ in diverged_places],
            [y for _, y in diverged_places],
            "x",
            color=ink,
            markersize=3.6,
            markeredgewidth=0.9,
        )
        marks.tag(crosses, group, f"{training}: {len(diverged_places)} diverged")
    if any(y == above for _, y in places.values()):
        ax.axhline(high + 1.1 * edge, color=style.RULE, linewidth=0.6)
    labels = [value_text(name, setting_value) for setting_value in ordered]
    room = wide / len(labels) / (style.labels_in(labels, narrow=True) + 0.04)
    every = math.ceil(1 / room)
    shown = [label if index % every == 0 else "" for index, label in enumerate(labels)]
    ax.set_xticks(range(len(ordered)), shown)
    ax.yaxis.set_major_locator(style.MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    inside = [tick for tick in ax.get_yticks() if low - edge <= tick <= high + edge]
    ax.set_yticks(inside, [f"{tick:g}" for tick in inside])
    ax.grid(axis="y")


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
    scale = _scale(everything, varying[0])
    entries = [
        (style.sample(), f"{dict(SETTINGS)[varying[0]]}:"),
        *_entries(scale),
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
