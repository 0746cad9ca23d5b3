"""The run at a glance: samples per second of every plain training, one row a training."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.render import beside, chart, marks, style
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.variants import (
    Row,
    as_usual,
    family,
    family_order,
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
    plain = [
        point
        for point in data.with_speed()
        if point["trainer"] == "plain"
        and not point.get("batch_size_found")
        and as_usual(point)
        and words.number(point.get("samples_per_s"))
    ]
    plain.sort(key=lambda point: (family(point).order, family_order(point)))
    return grouped(plain, _plain_name) | grouped(_whole_trainings(data), _whole_name)


def _plain_name(point: Row) -> str:
    name, batch = model(point) + work_apart(point), point.get("samples_per_step")
    return f"{name}, batch {int(batch)}" if batch else name


def _whole_name(point: Row) -> str:
    return f"{point.get('network') or point['workload']}, batch {int(point['samples_per_step'])}"


def _whole_trainings(data: Data) -> list[Row]:
    """Of every training that ran from first to last step the point with the largest batch."""
    timed = [
        point
        for trainer in ("epochs", "training_run")
        for point in data.whole_trainings(trainer)
        if words.number(point.get("samples_per_s"))
    ]
    alike = grouped(
        timed, lambda point: tuple(point[n] for n in ("source", "host", "workload", *marks.FACETS))
    )
    return [
        max(group, key=lambda point: point["samples_per_step"] or 0) for group in alike.values()
    ]


def add(data: Data, book: Book) -> None:
    """The figure, where at least two points can stand in it."""
    rows = trainings(data)
    if sum(map(len, rows.values())) < 2:
        return
    shown = dict(list(rows.items())[-MOST_ROWS:])
    left_out = len(rows) - len(shown)
    more = f" {words.count(left_out, 'smaller training')} left out." if left_out else ""
    book.figure("glance", "glance", partial(draw, data, shown), left_out=more)


def rate(point: Row) -> tuple[float, float, float]:
    """Samples per second and the ends of their interval; the rate itself where there is none."""
    value = words.number(point["samples_per_s"])
    assert value is not None
    samples = words.number(point.get("samples_per_step"))
    ends = [words.number(point.get(f"unsplit_step_{end}_s")) for end in ("high", "low")]
    if not samples or not ends[0] or not ends[1]:
        return value, value, value
    return value, samples / ends[0], samples / ends[1]


def draw(data: Data, rows: dict[str, list[Row]]) -> Any:
    """Rows of dots over a logarithmic axis; the fastest of each row has its number."""
    points = [point for row in rows.values() for point in row]
    printed = [mark for y, row in enumerate(rows.values()) for mark in _printed(data, y, row)]
    legend = [
        *style.backends(points, SIZE),
        *style.devices(points, lambda point: point["device"], SIZE),
        *_precisions(points),
        *([chart.HATCHED] if printed else []),
    ]
    panel = Panel(
        [*printed, *(mark for y, row in enumerate(rows.items()) for mark in _dots(y, *row))],
        Scale("samples per second, more is better", log=10),
        labels=list(rows),
        label_rows=list(rows.values()),
        row_in=ROW_IN,
    )
    return Chart([panel], legend).figure()


def _dots(y: int, name: str, row: list[Row]) -> Iterator[Mark]:
    """The rates of a row, the fastest on top."""
    *others, best = sorted(row, key=lambda point: rate(point)[0])
    for point in (*others, best):
        value, *ends = rate(point)
        span = "–".join(map(words.significant, ends))
        text = (
            f"{name}: {words.backend_name(point)} {precision(point)} on {point['device']}, "
            f"{words.significant(value)} samples/s ({span})"
        )
        yield chart.line(ends, [y, y], point, text)
        mark = style.device_mark(point["device"])
        edge = {"markeredgecolor": style.PAPER, "markeredgewidth": 0.4}
        yield chart.dot(value, y, point, text, mark, SIZE, **edge)
    value, _, most = rate(best)
    yield chart.beside(most, y, words.significant(value), best)


def _printed(data: Data, y: int, row: list[Row]) -> Iterator[Mark]:
    """What the paper prints of the same model and batch."""
    samples = row[0]["samples_per_step"]
    for one in beside.passes(data, row):
        yield chart.published(samples / one.seconds, y, one.text)


def _precisions(points: list[Row]) -> list[style.Entry]:
    """Legend entries of the steps of lightness; none where there is only one."""
    names = sorted({point["precision"] for point in points})
    steps = grouped(names, lambda name: style.PRECISION_STEP.get(name, 100))
    return [
        (style.swatch(style.shade("grey", step)), words.listing(steps[step]))
        for step in sorted(steps, reverse=True)
        if len(steps) > 1
    ]
