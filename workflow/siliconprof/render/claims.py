"""Published claims: how many came to which verdict, and one table of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from siliconprof.claim_verdicts import VERDICTS, shown
from siliconprof.render import words
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing, published
from siliconprof.render.variants import Row

UNITS = {"times": "×"}
NOT_PRINTED = "the source gives no number"
NOT_COMPARED = "nothing was compared: see the reason"
NO_CELL = "no cell can answer it: see the reason"
NO_ANALOGUE = "no other device or host did the same work, or none is like the named ones"


def add(data: Data, book: Book) -> None:
    """The section's count and table."""
    if not data.claims:
        book.note("No claim is listed.")
        return
    counts = Counter(row["verdict"] for row in data.claims)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    analogues = Counter(row["analogue_says"] for row in data.claims if row["analogue_says"])
    beside = words.listing([f"{count} {what}" for what, count in analogues.items()])
    book.note(
        f"Of {words.count(len(data.claims), 'claim')}: {said}."
        + (f" Analogues, not counted among them: {beside}." if beside else "")
    )
    book.table("claims", "claims", table(data))


def table(data: Data) -> Table:
    """Every claim, decided ones first, in the order of the sources."""
    result = Table(
        [
            Column("Verdict"),
            Column("Claim and source"),
            Column("published", help="as it was printed; a bound of a direction is none"),
            Column("agrees if", help="the published value with its tolerance, or a sign"),
            Column("measured", help="of several cases the one that decides", below="interval"),
            Column("Reason"),
            Column("Analogue", help="what other devices show; changes no verdict"),
            Column("On", folds=True, help="devices and backends whose cells were compared"),
            Column("How to read it", folds=True),
        ]
    )  # fmt: skip
    for row in sorted(data.claims, key=lambda row: VERDICTS.index(row["verdict"])):
        result.add(
            Value(row["verdict"], sort=VERDICTS.index(row["verdict"])),
            Value(f"“{row['statement']}” ({row['source']})", sort=row["id"], title=row["id"],
                  mark="note"),
            _printed(row),
            _claimed(row),
            _value(row, "measured", NOT_COMPARED),
            Value(str(row["reason"] or ""), mark="note"),
            _analogue(row),
            Value(row["measured_devices"] or words.DASH, sort=row["measured_devices"] or "",
                  mark="prose"),
            Value("; ".join(filter(None, (row["tolerance_reason"], row["note"]))), mark="note"),
        )  # fmt: skip
    return result


def _unit(row: Row, column: str = "unit") -> str:
    unit = row[column] or ""
    return UNITS.get(unit, unit)


def _printed(row: Row) -> Value:
    if row["published_value"] is None:
        return missing(NOT_PRINTED)
    text = f"{row['published_value']} {_unit(row, 'published_unit')}".strip()
    return published(text, row["source"])


def _claimed(row: Row) -> Value:
    if row["claimed"] is None:
        return missing(NO_CELL)
    bounds = [words.number(row[f"claimed_{end}"]) for end in ("low", "high")]
    known = [bound for bound in bounds if bound is not None]
    tolerance = words.number(row["tolerance"])
    title = f"tolerance {tolerance:.0%}" if tolerance else "no tolerance: noise alone decides"
    text = f"{row['claimed']} {_unit(row)}" if known else row["claimed"]
    return Value(text.strip(), sort=known[0] if known else text, title=title)


def _value(row: Mapping[str, Any], prefix: str, none: str) -> Value:
    """A measured figure with its interval below, or a word."""
    if row[f"{prefix}_word"]:
        return Value(str(row[f"{prefix}_word"]), sort=str(row[f"{prefix}_word"]), mark="measured")
    middle = words.number(row[f"{prefix}_value"])
    if middle is None:
        return missing(none)
    # An end that noise leaves open is infinite.
    low, high = (float(row[f"{prefix}_{end}"]) for end in ("low", "high"))
    unit = UNITS.get(row["unit"] or "", row["unit"] or "")
    title = f"{row[f'{prefix}_case']}; {row[f'{prefix}_basis']}"
    return Value(f"{shown(middle)} {unit}".strip(), sort=middle,
                 below="" if low == high else f"{shown(low)} to {shown(high)}", title=title, mark="measured")  # fmt: skip


def _analogue(row: Row) -> Value:
    if row["analogue_says"] is None:
        return missing(NO_ANALOGUE)
    figure = _value(row, "analogue", NOT_COMPARED)
    said = row["analogue_says"] if figure.reason else f"{row['analogue_says']}, {figure.text}"
    return Value(f"{said}: {row['analogue_reason']}", sort=said, mark="note")
