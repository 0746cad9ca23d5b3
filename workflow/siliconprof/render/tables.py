"""Frames as HTML tables and CSV files.

A missing number is a dash, never 0; its reason stands under the table, where print and phones
show it too. P marks what others printed, C what was computed from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup, escape

from siliconprof import formatting
from siliconprof.analyse.frames import records
from siliconprof.errors import nearest
from siliconprof.render.axes import is_true
from siliconprof.render.axes import text as words_of
from siliconprof.render.exhibit import Column, Num, Text
from siliconprof.render.svg import FACETS, Cells
from siliconprof.store import table_files

MOST_ROWS = 200
WIDE = 0.05  # half-width of an interval, as a share, from which it is marked
LETTERS = "abcdefghijklmnopqrstuvwxyz"
NOT_MEASURED = "not measured"
OF_ROW = {*FACETS, "why_not", "published", "computed", "source_text", "css"}


@dataclass(frozen=True)
class Table:
    """A table of the page."""

    head: Markup
    body: Markup
    notes: Markup
    rows: int


def html(frame: pd.DataFrame, columns: Sequence[Column], cells: Cells, file: str) -> Table:
    """Some columns of a frame as a table.

    Args:
        cells: numbers the cells that rows are about, for the filter.
        file: where all rows stand, of a table that is cut.

    Raises:
        LookupError: the frame lacks one of the columns.
    """
    if missing := [column.column for column in columns if column.column not in frame]:
        raise LookupError(f"no column is called {missing[0]!r}{nearest(missing[0], frame)}")
    shown = frame.head(MOST_ROWS)
    columns, notes = _folded(shown, columns)
    of_best = [c for c in columns if isinstance(c, Num) and c.best]
    best = {c.column: getattr(shown[c.column], c.best)() for c in of_best}
    reasons: dict[str, str] = {}
    lines = []
    ends = ("", "_why", "_computed")
    seen = {f"{name}{end}" for c in columns for name in c.columns for end in ends} | OF_ROW
    for row in records(shown[[name for name in shown if name in seen]]):
        of = cells.of(row)
        tds = [
            _number(row, c, best.get(c.column), reasons) if isinstance(c, Num) else _words(row, c)
            for c in columns
        ]
        css = Markup(' class="{}"').format(row["css"]) if words_of(row.get("css")) else ""
        data = Markup(' data-of="{}"').format(of) if of else ""
        lines.append(Markup("<tr{}{}>{}</tr>").format(css, data, Markup("").join(tds)))
    if len(frame) > len(shown):
        notes.append(f"{len(shown)} of {len(frame)} rows; all are in {file}.")
    spans = [Markup("<span>{}</span>").format(note) for note in notes]
    spans += [
        Markup("<span><sup>{}</sup>{}</span>").format(letter, reason)
        for reason, letter in reasons.items()
        if letter
    ]
    return Table(_head(columns), Markup("\n").join(lines), Markup(" ").join(spans), len(shown))


def _folded(frame: pd.DataFrame, columns: Sequence[Column]) -> tuple[list[Column], list[str]]:
    """(columns that say something, notes of those that are alike in all rows)."""
    kept, notes = [], []
    for column in columns:
        values = frame[column.column]
        badged = isinstance(column, Text) and column.badge and (frame[column.badge] != "").any()
        is_alone = len(frame) < 2 and values.notna().any()
        if not column.folds or badged or is_alone or values.nunique(dropna=False) > 1:
            kept.append(column)
        elif values.notna().any():
            value = values.iloc[0]
            shown = shown_number(value, column) if isinstance(column, Num) else words_of(value)
            notes.append(
                f"{column.title}: {shown}{formatting.NARROW + column.unit if column.unit else ''}."
            )
    return kept, notes


def _head(columns: Sequence[Column]) -> Markup:
    heads = []
    for column in columns:
        numeric = Markup(' class="num"') if isinstance(column, Num) else ""
        tip = Markup(' title="{}"').format(column.help) if column.help else ""
        unit = Markup('<span class="unit">{}</span>').format(column.unit) if column.unit else ""
        # A first click has the fastest first.
        first = Markup(' data-first="descending"') if column.unit.endswith("/s") else ""
        heads.append(
            Markup('<th scope="col"{}{}{}>{}{}</th>').format(
                numeric, tip, first, column.title, unit
            )
        )
    return Markup("").join(heads)


def _words(row: Mapping[str, Any], column: Text) -> Markup:
    value = words_of(row.get(column.column))
    inner = escape(value or formatting.DASH)
    if column.code:
        inner = Markup("<code>{}</code>").format(value)
    if column.badge and (badge := words_of(row.get(column.badge))):
        inner += Markup(' <span class="badge">{}</span>').format(badge)
    if column.below and (below := words_of(row.get(column.below))):
        inner += Markup("<small>{}</small>").format(below)
    classes = "prose" if column.prose else ""
    if not value:
        classes = f"{classes} missing".strip()
    return Markup("<td{}>{}</td>").format(Markup(f' class="{classes}"') if classes else "", inner)


def shown_number(value: float, column: Num, published: bool = False) -> str:
    """A number as the page shows it; a published one has the digits of its source."""
    if column.percent:
        return formatting.percent(value)
    value = value / column.scale
    if published:
        return f"{value:.6g}"
    return (
        formatting.grouped(value)
        if column.integer
        else formatting.significant(value, column.digits)
    )


def _number(
    row: Mapping[str, Any], column: Num, best: float | None, reasons: dict[str, str]
) -> Markup:
    value = formatting.number(row.get(column.column))
    if value is None:
        reason = words_of(row.get(f"{column.column}_why")) or words_of(row.get("why_not"))
        reason = reason or NOT_MEASURED
        letter = reasons.setdefault(reason, LETTERS[len(reasons)] if len(reasons) < 26 else "")
        mark = Markup('<sup class="mark">{}</sup>').format(letter) if letter else ""
        return Markup('<td class="num missing" title="{}">{}{}</td>').format(
            reason, formatting.DASH, mark
        )
    own_computed = is_true(row, f"{column.column}_computed")
    published = (column.published or is_true(row, "published")) and not own_computed
    inner, classes = escape(shown_number(value, column, published)), ["num"]
    if published:
        source = words_of(row.get("source_text")) or "published"
        inner = Markup('<span class="printed">{}</span><sup title="{}">P</sup>').format(
            inner, source
        )
        classes.append("published")
    elif own_computed or column.computed or is_true(row, "computed"):
        inner += Markup('<sup title="computed from published numbers">C</sup>')
        classes.append("computed")
    low, high = (formatting.number(row.get(f"{column.column}_{end}")) for end in ("low", "high"))
    if low is not None and high is not None and value and not published:
        half = abs(high - low) / 2
        wide = Markup(' class="wide"') if half > WIDE * abs(value) else ""
        # A percentage of what is near 0 says nothing.
        percent = formatting.whole_percent(half / abs(value)) if half <= abs(value) else ""
        n = formatting.number(row.get(f"{column.column}_n"))
        spread = formatting.spread(n, percent or shown_number(half, column))
        inner += Markup(" <i{}>{}</i>").format(wide, spread)
    if column.below and (below := words_of(row.get(column.below))):
        inner += Markup("<small>{}</small>").format(below)
    if best is not None and value == best:
        classes.append("best")
    return Markup('<td class="{}" data-sort="{}">{}</td>').format(
        " ".join(classes), f"{value:.6g}", inner
    )


def csv(frame: pd.DataFrame, columns: Sequence[str]) -> str:
    """Those columns that the frame has, as CSV in which no text is a spreadsheet's formula."""
    own = frame[[name for name in dict.fromkeys(columns) if name in frame]]
    texts = own.select_dtypes(exclude="number")
    harmless = own.assign(**texts.map(table_files.harmless)) if len(own) else own
    return harmless.to_csv(index=False, lineterminator="\n")
