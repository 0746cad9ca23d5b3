"""The run at a glance: samples per second of every plain training, one row a training."""

from __future__ import annotations

from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.render import marks, style
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.variants import (
    Row,
    as_usual,
    family,
    family_order,
    has_no_speed,
    model,
    precision,
    work_apart,
)

ROW_IN = 0.27
MOST_ROWS = 16  # of the largest trainings; smaller ones are in the sections below
SIZE = 4.2


def trainings(data: Data) -> dict[str, list[Row]]:
    """Name of a training with its batch -> its points that have a speed, small models first.

    Those driven by the plain loop, as the framework runs them by default, each with the batch
    that it was given: what differs within a row is device, backend and precision alone.
    """
    rows: dict[str, list[Row]] = {}
    points = [
        point
        for point in data.training()
        if point["trainer"] == "plain"
        and not has_no_speed(point)
        and not point.get("batch_size_found")
        and as_usual(point)
        and words.number(point.get("samples_per_s"))
    ]
    for point in sorted(points, key=lambda p: (family(p).order, family_order(p))):
        batch = point.get("samples_per_step")
        name = model(point) + work_apart(point)
        rows.setdefault(f"{name}, batch {int(batch)}" if batch else name, []).append(point)
    for trainer in ("epochs", "training_run"):
        largest: dict[tuple, Row] = {}
        for point in data.whole_trainings(trainer):
            if not words.number(point.get("samples_per_s")):
                continue
            place = tuple(point[name] for name in ("workload", *marks.FACETS))
            current = largest.get(place)
            if current is None or (point["samples_per_step"] or 0) > (
                current["samples_per_step"] or 0
            ):
                largest[place] = point
        for point in largest.values():
            name = point.get("network") or point["workload"]
            rows.setdefault(f"{name}, batch {int(point['samples_per_step'])}", []).append(point)
    return rows


def add(data: Data, book: Book) -> None:
    """The figure, where at least two points can stand in it."""
    rows = trainings(data)
    if sum(map(len, rows.values())) < 2:
        return
    shown = dict(list(rows.items())[-MOST_ROWS:])
    left_out = len(rows) - len(shown)
    more = f" {words.count(left_out, 'smaller training')} left out." if left_out else ""
    book.figure("glance", "glance", partial(draw, shown), left_out=more)


def rate(point: Row) -> tuple[float, float, float]:
    """Samples per second and the ends of their interval; the rate itself where there is none."""
    value = words.number(point["samples_per_s"])
    assert value is not None
    samples = words.number(point.get("samples_per_step"))
    ends = [words.number(point.get(f"unsplit_step_{end}_s")) for end in ("high", "low")]
    if not samples or not ends[0] or not ends[1]:
        return value, value, value
    return value, samples / ends[0], samples / ends[1]


def draw(rows: dict[str, list[Row]], narrow: bool) -> Any:
    """Rows of dots over a logarithmic axis; the fastest of each row has its number."""
    points = [point for row in rows.values() for point in row]
    several = len({point["device"] for point in points}) > 1
    entries = [
        *style.backends(points, SIZE),
        *(
            (
                style.sample(
                    style.device_mark(device),
                    color=style.MUTED,
                    markersize=SIZE,
                    markerfacecolor="none",
                ),
                device,
            )
            for device in dict.fromkeys(point["device"] for point in points if several)
        ),
        *_precisions(points),
    ]
    names = [name.replace(", batch", "\nbatch") if narrow else name for name in rows]
    row_in = ROW_IN * (1.25 if narrow else 1.0)
    width, left, foot = style.width_in(narrow), style.labels_in(names, narrow) + 0.12, 0.4
    head = style.legend_height(entries, width) + 0.1
    height = row_in * len(rows)
    figure = style.canvas(width, head + height + foot)
    style.legend(figure, entries, 0.0)
    ax = style.axes(figure, left, head, width - left - 0.1, height)
    rates = [rate(point) for point in points]
    low, top = min(r[1] for r in rates) / 1.3, max(r[2] for r in rates) * 2.2
    ax.set_xscale("log")
    ax.set_xlim(low, top)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    style.log_ticks(ax.xaxis, low, top)
    ax.grid(axis="x")
    ax.set_xlabel("samples per second, more is better", size=style.SMALL_PT)
    ax.set_yticks(range(len(rows)), names, size=style.SMALL_PT if narrow else style.TEXT_PT)
    ax.tick_params(axis="y", length=0)
    for y, row in enumerate(rows.values()):
        best = max(row, key=lambda point: rate(point)[0])
        for point in sorted(row, key=lambda point: rate(point)[0]):
            value, least, most = rate(point)
            mark = style.device_mark(point["device"]) if several else "o"
            drawn = ax.plot([least, most], [y, y], color=style.colour(point), linewidth=0.9)
            drawn += ax.plot(
                [value],
                [y],
                mark,
                color=style.colour(point),
                markersize=SIZE,
                markeredgecolor=style.PAPER,
                markeredgewidth=0.4,
            )
            hover_text = (
                f"{list(rows)[y]}: {words.backend_name(point)} {precision(point)} on "
                f"{point['device']}, {words.significant(value)} samples/s "
                f"({words.significant(least)}–{words.significant(most)})"
            )
            marks.tag(drawn, point, hover_text)
        value, _, most = rate(best)
        text = ax.annotate(
            words.significant(value),
            (most, y),
            xytext=(4, 0),
            va="center",
            textcoords="offset points",
            size=style.SMALL_PT,
            color=style.MUTED,
        )
        marks.tag(text, best)
    return figure


def _precisions(points: list[Row]) -> list[style.Entry]:
    """Legend entries of the steps of lightness."""
    steps: dict[int, list[str]] = {}
    for point in points:
        step = style.PRECISION_STEP.get(point["precision"], 100)
        steps.setdefault(step, [])
        if point["precision"] not in steps[step]:
            steps[step].append(point["precision"])
    if len(steps) < 2:
        return []
    return [
        (style.swatch(style.shade("grey", step)), words.listing(sorted(named)))
        for step, named in sorted(steps.items(), reverse=True)
    ]
