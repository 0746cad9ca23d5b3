"""The optimizer sweep: the loss curves of its settings, and how each training ended.

Divergence is an outcome of a training like any other: it is drawn, counted and never dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.render import chart, strokes, style
from siliconprof.render.book import Book, parts
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.grid_points import Scale as Values
from siliconprof.render.grid_points import by_place, devices_said, named, place_name
from siliconprof.render.variants import Row, point_status

MODULE = "optimizer_sweep"
PLACES_PER_FIGURE = 6
CURVES_PER_PANEL = 32
POINTS_PER_CURVE = 120
NONE = -1.0  # stands for "off" among the values of a setting
SETTINGS = {
    "learning_rate": "learning rate",
    "warmup_steps": "warm-up steps",
    "weight_decay": "weight decay",
    "beta1": "β₁",
    "beta2": "β₂",
    "max_gradient_norm": "clipping",
}
OFF = {"max_gradient_norm": "off"}


def add(data: Data, book: Book) -> None:
    """Curves, sweep by sweep."""
    sweeps = grouped(data.of_module(MODULE), lambda point: point["workload"])
    if not sweeps:
        book.heading("Optimizer sweep", anchor="optimizer-sweep")
        book.note(data.why_none(MODULE, "an optimizer sweep"))
    for workload, points in sweeps.items():
        _sweep(data, book, workload, named(data, points))


def _sweep(data: Data, book: Book, workload: str, points: list[Row]) -> None:
    """What one workload trained."""
    where = devices_said(data, points)
    book.heading(f"Optimizer sweep: {workload}, {where}", anchor=f"optimizer-{workload}")
    trained = by_place(point for point in points if point_status(point) == "ok")
    varying = [name for name in SETTINGS if len(values(points, name)) > 1] or ["learning_rate"]
    if not trained:
        book.note("No setting of this sweep was trained.")
    name = f"optimizer-curves-{workload}"
    for figure, part in parts(name, list(trained.values()), PLACES_PER_FIGURE):
        if any(data.traces.curve(point) is not None for place in part for point in place):
            book.figure(
                figure,
                "optimizer-curves",
                partial(draw, data, part, varying[0]),
                workload=workload,
                device=where,
                setting=SETTINGS[varying[0]],
                chosen=left_out(part),
            )


# -- settings ----------------------------------------------------------------------------------


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
    return bool(point.get("diverged"))


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


def left_out(places: Sequence[list[Row]]) -> str:
    """A note that not every curve is drawn; empty where all are."""
    most = max(map(len, places))
    if most <= CURVES_PER_PANEL:
        return ""
    return f" Of {most} settings {CURVES_PER_PANEL} of evenly spaced final loss are drawn."


# -- figure ------------------------------------------------------------------------------------


def draw(data: Data, places: Sequence[list[Row]], setting: str) -> Any:
    """One panel a place, one line a training; that of a diverged one ends in a cross."""
    colours = Values(setting, values([point for place in places for point in place], setting))
    legend = [
        (style.sample(), f"{SETTINGS[setting]}:"),
        *colours.entries(say=partial(value_text, setting)),
        (style.sample("x", color=style.INK, markersize=3.6, markeredgewidth=0.9), "diverged"),
    ]
    panels = [
        Panel(
            [mark for point in reversed(_chosen(points)) for mark in _line(data, point, colours)],
            Scale("training step"),
            Scale("loss / nat"),
            title=place_name(points[0]),
            of=points,
        )
        for points in places
    ]
    return Chart(panels, legend, columns=2).figure()


def _line(data: Data, point: Row, colours: Values) -> Iterator[Mark]:
    """A training's course; of a diverged one the first loss alone must be on the scale."""
    course = data.traces.curve_values(point, "loss")
    steps, losses = strokes.thin_course(course, POINTS_PER_CURVE)
    if not steps:
        return
    setting = value(point, colours.name)
    name = f"{place_name(point)}, {SETTINGS[colours.name]} {value_text(colours.name, setting)}"
    look: dict[str, Any] = {"color": colours.colour(setting)}
    final = words.number(point["final_loss"])
    if diverged(point) or final is None:
        line = chart.line(steps, losses, point, f"{name}: diverged", dashes=(3, 1.2), **look)
        yield replace(line, ys=losses[:1])
        yield chart.cross(steps[-1], losses[-1], point, **look)
    else:
        text = f"{name}: final loss {words.significant(final, 4)} nat"
        yield chart.line(steps, losses, point, text, **look)
