"""Data quality and provenance: checks, flags, unreadable records, what made this.

And the steps over time of trainings that were measured more than once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.render import chart, setting, style, truth
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import HOST, Table, Value, told
from siliconprof.render.variants import Row
from siliconprof.store import columns, matrix_file, table_files
from siliconprof.store.records import HERE
from siliconprof.store.table_files import key

AGAIN = "snakemake --cores 1 report --configfile {file} --replace-workflow-config"


def again(experiment: Mapping[str, Any]) -> str:
    """The command of a person that makes it all again, from the experiment's own file."""
    return AGAIN.format(file=matrix_file.experiment_file(experiment))


def add(data: Data, book: Book, command: str, again: str) -> None:
    """Checks and flags first, then where every number comes from.

    Args:
        command: what this process was called with.
        again: the command of a person that makes it all again.
    """
    own = data.only(HERE)
    truth.add(own, book)
    book.heading("Flags", anchor="flags")
    flagged = [cell for cell in data.cells if cell["flags"]]
    if flagged:
        codes = sorted({code for cell in flagged for code, _ in words.flags(cell)})
        unknown = "this report has no explanation of this flag; see the column “What was seen”"
        book.facts([(code, words.FLAG_WORDS.get(code, unknown)) for code in codes])
        book.table("flags", "flags", Table.of(flag_lines(flagged), FLAGS), counted="flag")
    else:
        book.note("No cell was flagged.")
    _set_aside(data, book)
    _provenance(data, book, own, command, again)


def _name(cell: Row) -> str:
    parts = (cell[axis] for axis in ("device", "backend", "workload", "scenario", "precision"))
    return "/".join(part for part in parts if part != "auto")


def _note(text: str) -> Value:
    return Value(text, mark="note")


def flag_lines(cells: Sequence[Row]) -> Iterator[Row]:
    """A row for each flag of a cell, with what was seen."""
    for cell in cells:
        by_code = grouped(words.flags(cell), lambda flag: flag[0])
        for code, flags in by_code.items():
            yield cell | {"flag": code, "seen": "; ".join(detail for _, detail in flags)}


FLAGS = (
    HOST,
    told("Cell", _name),
    told("Flag", "flag"),
    told("What was seen", lambda row: _note(row["seen"])),
)


def _set_aside(data: Data, book: Book) -> None:
    """Own records that are used in nothing: outside today's matrix, or unreadable."""
    if data.outside:
        book.listing(
            [f"{row['record']}: {row['note']}" for row in data.outside],
            f"{words.count(len(data.outside), 'record')} of this host not in this experiment, used "
            "in nothing:",
        )
    if data.unreadable:
        book.listing(
            [row["error"] for row in data.unreadable],
            f"{words.count(len(data.unreadable), 'record')} could not be read:",
        )


def _provenance(data: Data, book: Book, own: Data, command: str, again: str) -> None:
    """Config, code, versions, commands and hashes."""
    book.heading("Provenance", anchor="provenance")
    experiment = data.matrix.experiment
    folder = data.results.as_posix()
    tables = [name for name in columns.tables() if name != table_files.RESULTS]
    book.facts(
        [
            ("Experiment", str(experiment.get("experiment", ""))),
            ("Made again by", again),
            ("Drawn by", command),
            ("Code", setting.commits(own.cells)),
            (
                "Host file",
                f"{folder}/hosts/{data.host['label']}.json, made from facts with "
                f"SHA-256 {data.host['quick_facts_sha256'][:12]}…",
            ),
            ("Tables", f"{folder}/results.csv; {folder}/tables, as CSV: {', '.join(tables)}"),
            (
                "Figures",
                f"{book.folder.as_posix()}: every figure as SVG, every table of this page as CSV",
            ),
        ]
    )
    book.folded("The resolved configuration", json.dumps(experiment, indent=1, sort_keys=True))


HIGH_IN = 2.4
DAY_S = 86400.0


def add_history(data: Data, book: Book) -> None:
    """Steps over time of the trainings that have more than one record; nothing without any."""
    cells = {key(cell): cell for cell in data.cells}
    lines = [cells[key(line)] | line for line in data.history if key(line) in cells]
    series = grouped((line for line in lines if line["trainer"]), key)
    if series:
        book.heading("Over time", anchor="history")
        book.figure("history", "history", partial(draw_history, list(series.values())))


def draw_history(series: Sequence[Sequence[Row]]) -> Any:
    """Each training's step in ms by the date of its records, in days since the first of all."""
    start = min(_days(line) for group in series for line in group)
    drawn: list[Mark] = []
    names = [
        f"{line['workload']} · {words.backend_name(line)} · {line['precision']}"
        for line, *_ in series
    ]
    for group, name in zip(series, names, strict=True):
        places = [(_days(line) - start, 1e3 * line["step_s"]) for line in group]
        drawn.append(chart.line([x for x, _ in places], [y for _, y in places], group[0], name))
        drawn += [
            chart.dot(*place, line, _hover(line, name))
            for place, line in zip(places, group, strict=True)
        ]
    panel = Panel(
        drawn, Scale("days since the first record"), Scale("step, ms", log=10), high=HIGH_IN
    )
    return Chart([panel], style.lines([group[0] for group in series], names)).figure()


def _hover(line: Row, name: str) -> str:
    made_by = line["framework_version"], (line["git_commit"] or line["code_sha256"] or "")[:12]
    about = [f"{words.significant(1e3 * line['step_s'])} ms", line["started_at"][:16], *made_by]
    return ", ".join(filter(None, [f"{name}: {about[0]}", *about[1:]]))


def _days(line: Row) -> float:
    return datetime.fromisoformat(line["started_at"]).timestamp() / DAY_S
