"""Cells that were measured more than once: their steps over time, and what changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.analyse.throughputs import describe
from siliconprof.compare.history import changes
from siliconprof.render import chart, strokes, style
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import Column, Table, Value, number, told
from siliconprof.render.variants import Row
from siliconprof.store.table_files import key

LINES_PER_FIGURE = 12
HIGH_IN = 2.4
DAY_S = 86400.0
NO_CHANGE = "the first record"


def add(data: Data, book: Book) -> None:
    """A figure and a table, where any cell has more than one record; else nothing."""
    cells = {key(cell): cell for cell in data.cells}
    lines = [
        cells[key(line)] | line for line in changes(data.history, data.floors) if key(line) in cells
    ]
    if not lines:
        return
    book.heading("Measured more than once", anchor="history")
    series = list(grouped(lines, lambda line: (*key(line), line["params"])).values())
    series.sort(key=lambda group: not group[0]["trainer"])  # trainings first
    book.figure("history", "history", partial(draw, series[:LINES_PER_FIGURE]))
    rows = [line for group in series for line in group]
    book.table("history", "history", Table.of(rows, COLUMNS), counted="record")


def _name(line: Row) -> str:
    parts = (line["workload"], words.backend_name(line), line["precision"])
    setting = "" if line["trainer"] else describe(line | json.loads(line["params"]))
    return ", ".join(filter(None, [" · ".join(parts), setting]))


def _ms(line: Row) -> Value:
    ends = "–".join(words.significant(1e3 * line[f"step_{end}_s"]) for end in ("low", "high"))
    return Value(words.significant(1e3 * line["step_s"]), 1e3 * line["step_s"], ends)


def _version(line: Row) -> Value:
    commit = line["git_commit"]
    below = commit[:9] if commit else f"code {(line['code_sha256'] or 'unknown')[:9]}"
    return Value(line["framework_version"] or words.DASH, below=below)


COLUMNS = (
    told("Cell", _name),
    told("When", lambda line: line["started_at"][:16].replace("T", " ")),
    Column("Framework", below="commit", value=_version),
    Column("a step", "ms", True, "median, 95 % interval in its process", value=_ms),
    number("over the one before", "", "ratio", NO_CHANGE, "above 1 is slower"),
    told("Change", "change"),
    told("Flags", lambda line: (line["flags"] or "none").replace(";", ", ")),
)


def draw(series: Sequence[Sequence[Row]], narrow: bool) -> Any:
    """Each cell's step over that of its first record, by days since the first of all."""
    start = min(_seconds(line) for group in series for line in group)
    drawn: list[Mark] = [chart.across(1.0, color=style.MUTED, linewidth=0.6)]
    for group in series:
        xs = [(_seconds(line) - start) / DAY_S for line in group]
        ys = [line["step_s"] / group[0]["step_s"] for line in group]
        drawn.append(chart.line(xs, ys, group[0], _name(group[0])))
        for x, y, line in zip(xs, ys, group, strict=True):
            text = f"{_name(line)}: {words.significant(1e3 * line['step_s'])} ms; {line['change']}"
            drawn.append(chart.dot(x, y, line, text))
    firsts = [group[0] for group in series]
    names = [_name(row) for row in firsts]
    ends = [
        strokes.End((_seconds(group[-1]) - start) / DAY_S, ratio, name, _look(group[0]), group[0])
        for group, name in zip(series, names, strict=True)
        for ratio in [group[-1]["step_s"] / group[0]["step_s"]]
    ]
    panel = Panel(
        drawn,
        Scale("days since the first record"),
        Scale("step over the first", log=10),
        high=HIGH_IN,
        side_in=0.0 if narrow else max(style.text_in(n, style.SMALL_PT) + 0.36 for n in names),
        finish=None if narrow else partial(strokes.end_labels, ends),
    )
    # a phone is too small for names at the ends of lines
    return Chart([panel], style.lines(firsts, names) if narrow else ()).figure(narrow)


def _look(row: Row) -> dict[str, Any]:
    return {"color": style.colour(row)}


def _seconds(line: Row) -> float:
    return datetime.fromisoformat(line["started_at"]).timestamp()
