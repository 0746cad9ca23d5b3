"""Tables of the page: what a cell shows, how it sorts, and why it is empty.

A missing number is a dash, never 0; its reason stands under the table, where print and phones
show it too.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.render import marks

CAPTION = "\ue000"  # stands in a drawing for its caption, which the page's writer puts there
FOOTNOTE_MARKS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Value:
    """One cell of a table."""

    text: str
    sort: float | str | None = None  # what a click on the column's head sorts by
    below: str = ""  # small print under the text, such as a range
    title: str = ""  # shown when the pointer rests on it
    mark: str = ""  # classes: published, computed, missing, bad, best
    badge: str = ""  # another host, reference: shown as a label after the text
    reason: str = ""  # why it is missing; becomes a footnote
    footnote: str = ""  # its letter
    link: str = ""  # where the text leads, relative to the page
    more: str = ""  # what a click opens below the text; goes on where the text ends in "…"


@dataclass(frozen=True)
class Column:
    """One column: a head, its unit, and whether numbers stand in it."""

    head: str
    unit: str = ""
    numeric: bool = False
    help: str = ""  # what the number is, for the pointer
    below: str = "range"  # what the small print under a value is
    folds: bool = False  # when all rows agree, left out of the page and named in a note below
    value: Callable[[Any], Value | str | None] | None = None  # of a row; see `Table.of`


@dataclass
class Table:
    """Columns and rows; a row has one value for each column."""

    columns: Sequence[Column]
    rows: list[list[Value]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # printed under the table
    row_classes: list[str] = field(default_factory=list)
    row_cells: list[tuple[marks.Cell, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # a page is data: what computes a value stays behind
        self.columns = [replace(column, value=None) for column in self.columns]

    @classmethod
    def of(
        cls,
        rows: Iterable[Any],
        columns: Sequence[Column],
        about: Callable[[Any], Any] = lambda row: row,
        notes: Sequence[str] = (),
        why_none: Callable[[Any], str | None] = lambda row: None,
        naming: int = 4,
        css: Callable[[Any], str] = lambda row: "",
    ) -> Table:
        """A row for each item, in which every column has its `value`.

        What is not this host's has its host and source beside the first value.

        Args:
            about: the row or rows of results that an item is about; see `add`.
            why_none: the reason why an item has nothing but its name, or None.
            naming: how many columns are the name.
            css: the class of an item's row.
        """
        table = cls(columns, notes=list(notes))
        for row in rows:
            why = why_none(row)
            shown = columns if why is None else columns[:naming]
            values = [column.value(row) for column in shown if column.value]
            values += [missing(why)] * (len(columns) - len(shown)) if why else []
            values[:1] = [_labelled(value, about(row)) for value in values[:1]]
            table.add(*values, css=css(row), of=about(row))
        return table

    def add(self, *values: Value | str | None, css: str = "", of: Any = None) -> None:
        """Append a row; text and None are taken as plain cells.

        Args:
            of: the row or rows of results that it is about; None where it is about no cell, and
                then no filter hides it.
        """
        row = [value if isinstance(value, Value) else text(value) for value in values]
        if len(row) != len(self.columns):
            raise ValueError(f"{len(row)} values for {len(self.columns)} columns")
        self.rows.append(row)
        self.row_classes.append(css)
        self.row_cells.append(marks.cells(of))

    def on_page(self) -> Table:
        """Without the columns whose rows are all equal, or all without a value; a note below says so.

        The files keep every column.
        """
        hidden, notes = set(), list(self.notes)
        for index, column in enumerate(self.columns):
            values = [row[index] for row in self.rows]
            reasons = dict.fromkeys(value.reason for value in values)
            equal = len({(value.text, value.badge, value.reason) for value in values}) == 1
            if column.folds and len(values) > 1 and (equal or all(reasons)):
                hidden.add(index)
                shared = "; ".join(reasons) or values[0].text
                if shared not in ("", words.DASH):
                    notes.append(f"{column.head}, all rows: {shared}.")
        if not hidden:
            return self

        def visible(items: Sequence[Any]) -> list[Any]:
            return [item for index, item in enumerate(items) if index not in hidden]

        rows = [visible(row) for row in self.rows]
        return replace(self, columns=visible(self.columns), rows=rows, notes=notes)

    def first(self, most: int) -> Table:
        """The first rows, and below them a note of how many there are; the files have all."""
        if len(self.rows) <= most:
            return self
        note = (
            f"The first {most} of {words.grouped(len(self.rows))} rows; the files have all of "
            "them, and the filter sees these alone."
        )
        classes, cells = self.row_classes[:most], self.row_cells[:most]
        return Table(self.columns, self.rows[:most], [*self.notes, note], classes, cells)

    def footnoted(self) -> tuple[list[list[Value]], list[tuple[str, str]]]:
        """(rows with footnote letters, the footnotes as (letter, reason))."""
        reasons = dict.fromkeys(value.reason for row in self.rows for value in row if value.reason)
        letters = {reason: _letter(index) for index, reason in enumerate(reasons)}
        marked = [
            [replace(v, footnote=letters[v.reason]) if v.reason else v for v in row]
            for row in self.rows
        ]
        return marked, [(letter, reason) for reason, letter in letters.items()]

    def to_csv(self) -> str:
        """The table as CSV: numbers where a cell has one, else its text, see `_harmless`."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        ranged = [any(row[i].below for row in self.rows) for i in range(len(self.columns))]
        head = []
        for column, has_range in zip(self.columns, ranged, strict=True):
            name = f"{column.head} ({column.unit})" if column.unit else column.head
            head += [name, f"{name}: {column.below}"] if has_range else [name]
        writer.writerow(head)
        for row in self.rows:
            line: list[Any] = []
            for value, column, has_range in zip(row, self.columns, ranged, strict=True):
                is_number = column.numeric and isinstance(value.sort, (int, float))
                text_ = value.sort if is_number else _harmless(_badged(value))
                line.append("" if value.mark == "missing" else text_)
                line += [_harmless(value.below)] * has_range
            writer.writerow(line)
        return stream.getvalue()


def _letter(index: int) -> str:
    """a, b, … z, aa, ab, …"""
    more, index = divmod(index, len(FOOTNOTE_MARKS))
    return (_letter(more - 1) if more else "") + FOOTNOTE_MARKS[index]


def _harmless(plain: str) -> str:
    """A text that a spreadsheet does not take for a formula: an apostrophe stands before it.

    Records come from other hosts, and a reason or a name in one may begin with `=`, `+`, `-` or
    `@` (OWASP, "CSV Injection"). Numbers stay as they are, so do the tables of `results/tables`.
    """
    if plain[:1] not in ("=", "+", "-", "@", "\t", "\r"):
        return plain
    try:
        float(plain)
    except ValueError:
        return f"'{plain}"
    return plain


def _badged(value: Value) -> str:
    whole = f"{value.text}: {value.more}" if value.more else value.text
    if value.more and value.text.endswith("…"):
        whole = f"{value.text.removesuffix('…')} {value.more}"
    return f"{whole} [{value.badge}]" if value.badge else whole


def split(text_: str, limit: int, **more: Any) -> Value:
    """A text of which a long one's end is folded away behind a word."""
    head = words.shortened(text_, limit)
    if head == text_:
        return Value(text_, **more)
    return Value(head, more=text_[len(head) - 1 :].lstrip(), **more)


def _labelled(value: Any, of: Any) -> Value:
    """A value with a badge that says whose the rows behind it are, where that is one other host."""
    shown = value if isinstance(value, Value) else text(value)
    rows = [of] if isinstance(of, Mapping) else of or ()
    hosts = {words.whose(row) for row in rows}
    return replace(shown, badge=shown.badge or hosts.pop()) if len(hosts) == 1 else shown


def text(value: Any, **more: Any) -> Value:
    """A plain cell; None is a dash without a reason (the column's head says what it means)."""
    if value is None or value == "":
        return Value(words.DASH, mark="missing", **more)
    return Value(str(value), sort=str(value), **more)


def missing(reason: str) -> Value:
    """A dash, and why."""
    return Value(words.DASH, title=reason, mark="missing", reason=reason)


def quantity(value: Any, reason: str, scale: float = 1.0, digits: int = 3, **more: Any) -> Value:
    """A number divided by `scale`, or a dash with the reason why there is none."""
    number = words.number(value)
    if number is None:
        return missing(reason)
    return Value(words.significant(number / scale, digits), sort=number / scale, **more)


SIZES = {
    "KiB": 2.0**10,
    "KiB per step": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "ms": 1e-3,
    "µs": 1e-6,
    "ns": 1e-9,
    "%": 0.01,
    "10⁶": 1e6,
    "10⁹ a step": 1e9,
    "GB/s": 1e9,
    "GFLOP/s": 1e9,
}
Of = str | Callable[[Any], Any]  # a column of the results, or what tells a row's value


def _of(row: Any, source: Of) -> Any:
    return row.get(source) if isinstance(source, str) else source(row)


def _why(row: Any, why: Of) -> str:
    return why if isinstance(why, str) else why(row)


def number(
    head: str,
    unit: str,
    source: Of,
    why: Of,
    help: str = "",
    digits: int = 3,
    under: Callable[[Any], str] = lambda row: "",
    title: Callable[[Any], str] = lambda row: "",
    **more: Any,
) -> Column:
    """A column of numbers, divided by the size of its unit.

    Args:
        why: the reason where a row has no number; a function of the row, or the words.
        under: the small print under a row's number; `below` names it.
        title: what is shown when the pointer rests on a row's number.
    """

    def value(row: Any) -> Value:
        shown = quantity(_of(row, source), _why(row, why), SIZES.get(unit, 1.0), digits)
        return shown if shown.reason else replace(shown, below=under(row), title=title(row))

    return Column(head, unit, True, help, value=value, **more)


def median(
    head: str,
    unit: str,
    stem: str,
    why: Of,
    help: str = "",
    ends: tuple[str, str] = ("q25", "q75"),
    digits: int = 2,
    **more: Any,
) -> Column:
    """A column of medians with a range of their series below; see `ranged`."""

    def value(row: Any) -> Value:
        return ranged(row, stem, SIZES[unit], _why(row, why), *ends, digits)

    return Column(head, unit, True, help, value=value, **more)


def printed(head: str, unit: str, name: str) -> Column:
    """A column of published numbers, each as it was printed; see `published`."""

    def value(row: Any) -> Value | None:
        return published(row[name], row["source"]) if row[name] else None

    return Column(head, unit, True, value=value)


def count(
    head: str,
    source: Of,
    why: Of,
    help: str = "",
    unit: str = "",
    under: Callable[[Any], str] = lambda row: "",
    **more: Any,
) -> Column:
    """A column of counts; see `number`."""

    def value(row: Any) -> Value:
        shown = integer(_of(row, source), _why(row, why))
        return shown if shown.reason else replace(shown, below=under(row))

    return Column(head, unit, True, help, value=value, **more)


def told(head: str, source: Of, help: str = "", folds: bool = False, mark: str = "") -> Column:
    """A column of words.

    Args:
        mark: the class of sentences, `prose` or `note`.
    """

    def value(row: Any) -> Any:
        told_of_row = _of(row, source)
        if not mark:
            return told_of_row
        return Value(str(told_of_row or words.DASH), sort=str(told_of_row or ""), mark=mark)

    return Column(head, help=help, folds=folds, value=value)


DEVICE = told("Device", "device", folds=True)
BACKEND = told("Backend", words.backend_name)
PRECISION = told("Precision", "precision")
ONE_PRECISION = told("Precision", "precision", folds=True)
PLACE, ONE_PLACE = (DEVICE, BACKEND, PRECISION), (DEVICE, BACKEND, ONE_PRECISION)


def badged(name: str, row: Mapping[str, Any]) -> Value:
    """What a row has in a column, with a badge where it is of another host or a reference."""
    return Value(row[name], row[name], badge=words.whose(row))


HOST = told("Host", partial(badged, "host"))


def integer(value: Any, reason: str) -> Value:
    """A count, digits grouped from 10 000, or a dash with the reason why there is none."""
    number = words.number(value)
    if number is None:
        return missing(reason)
    return Value(words.grouped(number), sort=number)


def spanned(
    value: float, low: float | None, high: float | None, scale: float = 1.0, **more: Any
) -> Value:
    """A number with its range below, as far as either end is known."""
    ends = (words.significant(end / scale) for end in (low, high) if end is not None)
    return Value(words.significant(value / scale), value / scale, "–".join(ends), **more)


def ranged(
    row: Mapping[str, Any],
    name: str,
    scale: float,
    reason: str,
    low: str = "q25",
    high: str = "q75",
    digits: int = 2,
) -> Value:
    """A median with a range of its series below it, from the columns of points.csv."""
    value = quantity(row.get(f"{name}_median_s"), reason, scale)
    ends = [words.number(row.get(f"{name}_{end}_s")) for end in (low, high)]
    if value.reason or ends[0] is None or ends[1] is None:
        return value
    below = "–".join(words.significant(end / scale, digits) for end in ends if end is not None)
    return Value(value.text, value.sort, below, title=f"n = {int(row[f'{name}_n'])}")


def published(value: str | None, source: str, **more: Any) -> Value:
    """A printed number exactly as it was printed, marked as such."""
    if value is None:
        return missing("not published")
    try:
        sort: float | str = float(value)
    except ValueError:
        sort = value
    return Value(value, sort, title=f"published: {source}", mark="published", **more)
