"""Data quality and provenance: flags, failures, earlier and damaged records, what made this."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from siliconprof import words
from siliconprof.render import setting, truth
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, integer, missing, quantity
from siliconprof.render.traces import key
from siliconprof.render.variants import Row
from siliconprof.store import columns

FOLD_ABOVE = 12
AGAIN = "snakemake --cores 1 report"


def add(data: Data, book: Book, own: Data, command: str, output: Path, again: str = AGAIN) -> None:
    """Checks, flags and failures first, then where every number comes from.

    Args:
        command: what this process was called with.
        output: where the page will lie.
        again: the command of a person that makes it all again.
    """
    truth.add(own, book)
    book.heading("Flags", anchor="flags")
    flagged = [cell for cell in data.cells if cell["flags"]]
    if flagged:
        table = flags_table(flagged)
        fold = words.count(len(flagged), "flagged cell") if len(flagged) > FOLD_ABOVE else ""
        codes = sorted({code for cell in flagged for code, _ in words.flags(cell)})
        unknown = "this report has no explanation of this flag; see the column “What was seen”"
        book.facts([(code, words.FLAG_WORDS.get(code, unknown)) for code in codes])
        book.table("flags", "flags", table, folded=fold)
    else:
        book.note("No cell was flagged.")
    book.heading("Cells without a measurement", anchor="failures")
    failed = [cell for cell in data.cells if cell["status"] != "ok"]
    if failed:
        book.table("failures", "failures", failures_table(failed))
    else:
        book.note("Every cell was measured.")
    if own.captures:
        book.heading("Deep captures", anchor="captures")
        book.table("captures", "captures", captures_table(own, output.parent))
    _earlier(data, book)
    _set_aside(data, book)
    _provenance(data, book, own, command, again)


def _name(cell: Row) -> str:
    parts = (cell[axis] for axis in ("device", "backend", "workload", "scenario", "precision"))
    return "/".join(part for part in parts if part != "auto")


def _host(cell: Row) -> Value:
    badge = words.SOURCE_BADGES.get(cell["source"], "")
    return Value(cell["host"], sort=cell["host"], badge=badge)


def flags_table(cells: Sequence[Row]) -> Table:
    """One line for each flag of a cell, and what was seen."""
    table = Table([Column("Host"), Column("Cell"), Column("Flag"), Column("What was seen")])
    for cell in cells:
        details_of: dict[str, list[str]] = {}
        for code, detail in words.flags(cell):
            details_of.setdefault(code, []).append(detail)
        for code, details in details_of.items():
            details_cell = Value("; ".join(details), mark="note")
            table.add(_host(cell), _name(cell), code, details_cell, of=cell)
    return table


def failures_table(cells: Sequence[Row]) -> Table:
    """Status, reason, and the earlier record that is still there."""
    table = Table(
        [
            Column("Host"),
            Column("Cell"),
            Column("Status"),
            Column("Reason"),
            Column("Earlier record"),
        ]
    )
    for cell in cells:
        earlier = cell["earlier_ok_record"]
        table.add(
            _host(cell),
            _name(cell),
            Value(cell["status"], sort=cell["status"], mark=f"status-{cell['status']}"),
            Value(cell["reason"] or "no reason given", mark="note"),
            Value(f"an earlier record with status ok is kept at {earlier}", mark="note")
            if earlier
            else "none with status ok",
            css="failed",
            of=cell,
        )
    return table


def captures_table(data: Data, folder: Path) -> Table:
    """The files that tools left of a cell, or why one left none.

    Args:
        folder: of the page, from which the links lead.
    """
    table = Table(
        [
            Column("Cell"),
            Column("Tool"),
            Column("File"),
            Column("size", "MiB", True),
            Column("steps", "", True, "training steps that the tool saw"),
            Column("What it records"),
        ]
    )
    place = {key(cell): index for index, cell in enumerate(data.cells)}
    for row in sorted(data.captures, key=lambda row: place[key(row)]):
        why = row["reason"] or "the tool left no file"
        table.add(
            _name(row),
            row["tool"],
            _file(data.results / "captures" / row["file"], folder) if row["file"] else missing(why),
            quantity(row["file_bytes"], why, 2.0**20),
            integer(row["steps"], why),
            Value(row["means"], mark="note"),
            of=row,
        )
    return table


def _file(path: Path, folder: Path) -> Value:
    """A link to a file; no rule owns it, so it may be gone."""
    if not path.is_file():
        reason = "it was moved or deleted after the measurement"
        return Value(path.name, sort=path.name, title=path.as_posix(), reason=reason)
    link = quote(Path(os.path.relpath(path, folder)).as_posix())
    return Value(path.name, sort=path.name, title=path.as_posix(), link=link)


def _earlier(data: Data, book: Book) -> None:
    """Cells whose earlier records are in the history."""
    cells = [cell for cell in data.cells if words.number(cell["earlier_records"])]
    not_measured = [cell for cell in cells if cell["earlier_ok_record"]]
    if not_measured:
        book.listing(
            [
                f"{_name(cell)}: this cell {cell['status']} this time ({cell['reason']}); an earlier "
                f"record with status ok is kept at {cell['earlier_ok_record']}"
                for cell in not_measured
            ],
            "Measured before, not this time:",
        )
    n_remeasured = len(cells) - len(not_measured)
    if n_remeasured:
        book.note(
            f"{words.count(n_remeasured, 'cell')} had been measured before; the earlier records are kept "
            f"in {data.results.as_posix()}/history."
        )


def _set_aside(data: Data, book: Book) -> None:
    """Own records that are used in nothing: outside today's matrix, or damaged."""
    if data.outside:
        book.listing(
            [f"{row['record']}: {row['note']}" for row in data.outside],
            f"{words.count(len(data.outside), 'record')} of this host not in this experiment, used "
            "in nothing:",
        )
    if data.damaged:
        book.listing(
            [path.as_posix() for path in data.damaged],
            f"{words.count(len(data.damaged), 'damaged record')} set aside, used in nothing:",
        )


def _provenance(data: Data, book: Book, own: Data, command: str, again: str) -> None:
    """Config, code, versions, commands and hashes."""
    book.heading("Provenance", anchor="provenance")
    experiment = data.matrix["experiment"]
    folder = data.results.as_posix()
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
            ("Tables", f"{folder}/tables, as CSV: {', '.join(columns.tables())}"),
            (
                "Figures",
                f"{book.folder.as_posix()}: every figure as SVG, PNG and PDF, every table "
                "of this page as CSV, Markdown and LaTeX",
            ),
        ]
    )
    book.folded("The resolved configuration", json.dumps(experiment, indent=1, sort_keys=True))
    if data.cells:
        book.table(
            "records",
            "records",
            records_table(data.cells),
            folded=words.count(len(data.cells), "record"),
        )


def records_table(cells: Sequence[Row]) -> Table:
    """The file behind every cell, and the hash of its content."""
    columns = [
        Column("Record"),
        Column("Source"),
        Column("SHA-256 of its content"),
        Column("started, UTC"),
        Column("Code"),
        Column("Method", "", True),
    ]
    table = Table(columns)
    for cell in cells:
        row: list[Any] = [
            Value(cell["record"], mark="note"),
            Value(cell["source"], badge=words.SOURCE_BADGES.get(cell["source"], "")),
            Value(cell["record_sha256"], mark="hash"),
            (cell["started_at"] or "")[:19].replace("T", " "),
            (cell["git_commit"] or "")[:12],
            Value(str(int(cell["method_version"])), float(cell["method_version"])),
        ]
        table.add(*row, of=cell)
    return table
