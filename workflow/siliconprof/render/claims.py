"""Published claims: how many came to which verdict, and one table of all of them.

Two columns beside the verdict are not verdicts: whether the sources' own numbers agree with the
statement, and what other devices or hosts show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from siliconprof import words
from siliconprof.claims.consistency import CONSISTENT, INCONSISTENT
from siliconprof.claims.figures import shown
from siliconprof.claims.verdicts import NOT_TESTABLE, VERDICTS
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, count, missing, published, split, told
from siliconprof.render.variants import Row

UNITS = {"times": "×"}
NOT_PRINTED = "the source gives no number"
NOT_COMPARED = "nothing was compared: see the reason"
NO_ANALOGUE = "no other device or host did the same work, or none is like the named ones"
NO_VERDICT = "no verdict"
CONSISTENCY = "consistency"
SHOWN = 130  # letters of a reason that stand in sight; the rest is folded
SAYS = {
    "agrees": "agree",
    "disagrees": "disagree",
    "undecided": "are undecided",
    "in part": "answer in part",
}
SOURCES = (
    ("summary of Feng et al. 2025", "the paper's summary"),
    ("Feng et al. 2025", "the paper, Feng et al. 2025"),
    ("wide/deep report", "the wide/deep report"),
    ("Daniel 2023", "Daniel 2023"),
)
PAPER = "Feng et al. 2025"


def add(data: Data, book: Book) -> None:
    """The section's counts and tables."""
    if not data.claims:
        book.note("No claim is listed: config/claims.yaml names them.")
        return
    book.table("claims-verdicts", "claims-verdicts", counted(data.claims))
    says = Counter(row["analogue_says"] for row in data.claims if row["analogue_says"])
    if says:
        analogues = words.listing([f"{says[word]} {SAYS[word]}" for word in SAYS if says[word]])
        book.note(f"Analogues, which count in no verdict: {analogues}.")
    decided = [row for row in data.claims if row["verdict"] != NOT_TESTABLE]
    if decided:
        book.table("claims-decided", "claims-decided", table(data, decided))
    else:
        book.note("No claim is decided: the reasons below name what is missing.")
    folded = f"All {words.count(len(data.claims), 'claim')}"
    book.table("claims", "claims", table(data, data.claims), folded=folded)


def counted(claims: Sequence[Row]) -> Table:
    """How many claims of each source came to which verdict."""
    groups = {name: [row for row in claims if _source(row) == start] for start, name in SOURCES}
    groups = {name: rows for name, rows in groups.items() if rows}
    if len(groups) > 1:
        groups["all"] = list(claims)

    def those(column: str, value: str, *unit_and_help: str) -> Column:
        def number(name: str) -> int:
            return sum(row.get(column) == value for row in groups[name])

        unit, help = unit_and_help or ("", "")
        return count(value, number, "", help, unit)

    columns = (
        told("Source", str),
        count("claims", lambda name: len(groups[name]), ""),
        *(those("verdict", verdict) for verdict in VERDICTS),
        those(CONSISTENCY, CONSISTENT, NO_VERDICT, "the source's own numbers agree with it"),
        those(CONSISTENCY, INCONSISTENT, NO_VERDICT, "the source's own numbers do not"),
    )
    return Table.of(groups, columns, about=lambda name: None)


def _source(row: Row) -> str:
    """Whose statement it is; one transcription of the paper alone is the paper's too."""
    starts = (start for start, _ in SOURCES if str(row["source"]).startswith(start))
    return next(starts, PAPER)


def table(data: Data, claims: Sequence[Row]) -> Table:
    """Claims, decided ones first, in the order of the sources."""
    cells = {str(cell["record"]): cell for cell in data.cells}

    def used(row: Row) -> list[Row] | None:
        """The cells that a claim's verdict or analogue rests on."""
        listed = ";".join(str(row.get(f"{of}_records") or "") for of in ("measured", "analogue"))
        return [cells[name] for name in dict.fromkeys(listed.split(";")) if name in cells] or None

    rows = sorted(claims, key=lambda row: VERDICTS.index(row["verdict"]))
    return Table.of(rows, COLUMNS, about=used)


def _unit(row: Row, column: str = "unit") -> str:
    unit = row[column] or ""
    return UNITS.get(unit, "%" if unit == "percent" else unit)


def _printed(row: Row) -> Value:
    """The printed number, and below it which measured ones agree with it."""
    below, title = "", ""
    if row["claimed"] is not None:
        bounds = any(words.number(row[f"claimed_{end}"]) is not None for end in ("low", "high"))
        tolerance = words.number(row["tolerance"])
        below = f"{row['claimed']} {_unit(row)}".strip() if bounds else str(row["claimed"])
        title = f"tolerance {tolerance:.0%}" if tolerance else "no tolerance: noise alone decides"
    if row["published_value"] is None:
        return replace(missing(NOT_PRINTED), below=below, title=title)
    text = f"{row['published_value']} {_unit(row, 'published_unit')}".strip()
    return published(text, row["source"], below=below)


def _value(row: Mapping[str, Any], prefix: str) -> Value:
    """A measured figure with its interval below, or a word."""
    if row[f"{prefix}_word"]:
        return Value(str(row[f"{prefix}_word"]), sort=str(row[f"{prefix}_word"]), mark="measured")
    middle = words.number(row[f"{prefix}_value"])
    if middle is None:
        return missing(NOT_COMPARED)
    # An end that noise leaves open is infinite.
    low, high = (float(row[f"{prefix}_{end}"]) for end in ("low", "high"))
    unit = UNITS.get(row["unit"] or "", row["unit"] or "")
    title = f"{row[f'{prefix}_case']}; {row[f'{prefix}_basis']}"
    return Value(
        f"{shown(middle)} {unit}".strip(),
        sort=middle,
        below="" if low == high else f"{shown(low)} to {shown(high)}",
        title=title,
        mark="measured",
    )


def _tables(row: Row) -> Value:
    """Whether the sources' own numbers agree, with these folded; else why no table has any."""
    word, why = row.get("consistency"), str(row.get("consistency_reason") or "")
    if word is None:
        return missing(why or "no table speaks of it")
    mark = "bad" if word == INCONSISTENT else ""
    return Value(word, sort=word, mark=mark, more=why)


def _analogue(row: Row) -> Value:
    if row["analogue_says"] is None:
        return missing(NO_ANALOGUE)
    figure = _value(row, "analogue")
    text = row["analogue_says"] if figure.reason else f"{row['analogue_says']}, {figure.text}"
    return Value(text, sort=text, more=str(row["analogue_reason"]), mark="prose")


def _read_as(row: Row) -> Value:
    """The statement, and folded how it is read and what was compared."""
    where = row["measured_devices"] and f"compared: {row['measured_devices']}"
    reading = "; ".join(filter(None, (row["tolerance_reason"], row["note"], where)))
    text = f"“{row['statement']}” ({row['source']})"
    return Value(text, row["id"], title=row["id"], mark="note", more=reading)


def _reason(row: Row) -> Value:
    text = str(row["reason"] or "")
    return split(text, SHOWN, mark="note", sort=text)


def _measured(row: Row) -> Value:
    return _value(row, "measured")


DECIDES = "of several cases the one that decides"
PRINTED = "as printed; below, what agrees with it: its tolerance applied, or a sign"
SOURCES_AGREE = "whether what the sources printed agrees with the statement"
COLUMNS = (
    told("Verdict", lambda row: Value(row["verdict"], VERDICTS.index(row["verdict"]))),
    told("Claim and source", _read_as),
    Column("published", "below: agrees if", False, PRINTED, "agrees if", value=_printed),
    Column("measured", "", False, DECIDES, "interval", value=_measured),
    told("Reason", _reason),
    Column("Sources' own numbers", NO_VERDICT, False, SOURCES_AGREE, value=_tables),
    Column("Analogue", NO_VERDICT, False, "what other devices or hosts show", value=_analogue),
)
