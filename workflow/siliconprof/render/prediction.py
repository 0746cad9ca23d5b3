"""Each training's step as the operators of the others on its device predict it, and as measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.analyse import prediction, throughputs
from siliconprof.analyse.equal_work import DISTURBED, flagged
from siliconprof.render import chart
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.traces import point_key
from siliconprof.render.variants import Row, family_order, label
from siliconprof.store import table_files

MS = 1e-3
MOST_IN_A_ROW = 3


def add(data: Data, book: Book) -> None:
    """The figure; nothing where no training was predicted."""
    points = {point_key(point): point for point in data.points}
    found = [row for row in data.predicted if point_key(row) in points and row["others"]]
    settings = apart(points.values())
    rows = [points[point_key(row)] | row | {"apart": settings[point_key(row)]} for row in found]
    rows.sort(key=family_order)
    said = grouped((row for row in rows if row["error"] is not None), _place)
    if said:
        book.figure("predicted", "predicted", partial(draw, said))


def apart(points: Iterable[Row]) -> dict[tuple, str]:
    """Key of a point -> what sets it apart from the others of its cell: `batch 32`."""
    texts = {}
    for own in grouped(points, table_files.key).values():
        workload = throughputs.workload_of(own[0])
        declared = workload.POINT.items() if workload else ()
        swept = [
            (name, parameter)
            for name, parameter in declared
            if not parameter.derived and len({str(row.get(name)) for row in own}) > 1
        ]
        for row in own:
            settings = [p.text(row[name]) for name, p in swept if row.get(name) is not None]
            texts[point_key(row)] = ", ".join(settings)
    return texts


def _place(row: Row) -> str:
    whose = words.whose(row)
    return f"{words.backend_name(row)} on {row['device']}" + (f" [{whose}]" if whose else "")


def typical_error(rows: Sequence[Row]) -> str:
    """`typical error 9 % (23 checks)`, of the steps that no other process disturbed."""
    errors = prediction.errors(row for row in rows if not flagged(row, DISTURBED))
    if errors is None:
        return "no undisturbed check"
    off = words.whole_percent(errors.median_size)
    return f"typical error {off} ({words.count(errors.trainings, 'check')})"


def draw(places: Mapping[str, Sequence[Row]]) -> Any:
    """A panel for each device and backend, with equal scales on both sides."""
    reach = [row[name] / MS for rows in places.values() for row in rows for name in SIDES]
    panels = [
        Panel(
            [chart.diagonal(), *map(_dot, rows)],
            Scale("measured / ms", log=10, reach=reach),
            Scale("predicted / ms", log=10, reach=reach),
            title=f"{place}\n{typical_error(rows)}",
            of=rows,
            high=2.2,
            grid="both",
        )
        for place, rows in places.items()
    ]
    columns = min(len(panels), MOST_IN_A_ROW)
    return Chart(panels, columns=columns, same_y=True, same_x=True).figure()


SIDES = ("measured_s", "predicted_s")


def _dot(row: Row) -> chart.Mark:
    measured, predicted = (row[name] / MS for name in SIDES)
    name = ", ".join(filter(None, [row["workload"], label(row), row["apart"]]))
    text = (
        f"{name}: predicted {words.significant(predicted)} ms, measured "
        f"{words.significant(measured)} ms ({row['error']:+.0%})"
    )
    return chart.dot(measured, predicted, row, text)
