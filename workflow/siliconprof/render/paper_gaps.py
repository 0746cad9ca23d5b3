"""What launches, products and bandwidth can explain of the gaps that the paper prints, in bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from siliconprof import words
from siliconprof.analyse import published_gaps
from siliconprof.analyse.published_gaps import ALL, LAUNCHES, PHASES, PRODUCTS, TABLE_4, WHOLE
from siliconprof.render.book import Book
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import Column, Table, Value, missing, told
from siliconprof.render.variants import Row

NOTES = (
    "Published: times of a pass (Table 4) and of a follow-up launch (Table 6), of which every "
    "operator takes none to one. Registry: peaks and bandwidths. By formula: operators, as "
    "today's frameworks have them, and the least operations and bytes.",
    "Assumed: an operator is one launch, sequences are equally long, no layer is computed again, and both sides reach the same "
    "share of their data sheets. Unequal shares could explain any gap or none: the paper prints no "
    "number of them.",
)


class Gap(NamedTuple):
    """One gap of Table 4, with and without the update in its passes: cause -> line."""

    whole: dict[str, Row]
    without_update: dict[str, Row]

    @property
    def together(self) -> Row:
        """The line of all three causes, the update included."""
        return self.whole[ALL]


def gaps(lines: Sequence[Row]) -> list[Gap]:
    """The gaps of Table 4."""
    table4 = [row for row in lines if row["published_in"] == TABLE_4]
    sides = [f"{side}_{name}" for side in ("slow", "fast") for name in ("device", "backend")]
    pairs = grouped(table4, lambda row: (*(row[name] for name in sides), row["workload"]))
    return [
        Gap(
            *({r["cause"]: r for r in rows if r["phase"] == PHASES[part]} for part in (True, False))
        )
        for rows in pairs.values()
    ]


def add(data: Data, book: Book) -> None:
    """What the numbers say, in sentences, and the table."""
    book.heading("Table 4 and Figure 3: what can explain the gaps", anchor="paper-gaps")
    all_gaps = gaps(data.published_gaps)
    pictured = sum(row["published_in"] == published_gaps.FIGURE_3 for row in data.published_gaps)
    book.note(" ".join(sentences(all_gaps, pictured)))
    book.table("paper-gaps", "paper-gaps", table(data, all_gaps))


def sentences(all_gaps: Sequence[Gap], pictured: int) -> list[str]:
    """What the bounds of all gaps support and what not."""
    known = [gap for gap in all_gaps if not gap.together["reason"]]

    def whole(cause: str) -> int:
        return sum(gap.whole[cause]["can_be"] == WHOLE for gap in known)

    certain = sum(gap.together["least_share"] > 0 for gap in known)
    return [
        "If both sides reach the same share of their data sheets, launch cost, peaks of products and "
        f"bandwidth can together explain {whole(ALL)} of {words.count(len(known), 'gap')} of Table 4 "
        f"whole, the peaks alone {whole(PRODUCTS)}; that the three explain any of it is certain for "
        f"{certain or 'none'}.",
        f"Figure 3 is a picture: of its {words.count(pictured, 'pair')} of devices nothing can be "
        "said.",
    ]


def table(data: Data, all_gaps: Sequence[Gap]) -> Table:
    """A line for each gap of Table 4."""

    printed = {r["device"]: r["device_as_printed"] for r in data.published["table1_devices"]}

    def name(row: Row, side: str) -> str:
        device = row[f"{side}_device"]
        device = printed.get(device, data.listed_name(device))
        return f"{device}, {row[f'{side}_backend']}, batch {row[f'{side}_batch_size']:g}"

    def pair(gap: Gap) -> Value:
        return Value(name(gap.together, "slow"), below=f"against {name(gap.together, 'fast')}")

    def size(gap: Gap) -> Value:
        row = gap.together
        if row["gap_s_per_sample"] is None:
            return missing(row["reason"])
        seconds = [words.significant(row[f"{part}_s_per_sample"]) for part in ("slow", "fast")]
        title = f"computed from Table 4: {' − '.join(seconds)} s per sample"
        gap_s = row["gap_s_per_sample"]
        return Value(words.significant(gap_s), gap_s, mark="computed", title=title)

    def share(head: str, cause: str, part: str = "whole") -> Column:
        def value(gap: Gap) -> Value:
            return bounded(getattr(gap, part).get(cause) or gap.together)

        return Column(head, "% of gap", True, below="at least", value=value)

    columns = (
        told("Slower, and faster", pair),
        Column("gap", "s per sample", True, value=size),
        share("launches", LAUNCHES),
        share("launches, no update", LAUNCHES, "without_update"),
        share("products", PRODUCTS),
        share("bandwidth", published_gaps.BANDWIDTH),
        told("What this supports", supported),
    )
    return Table.of(all_gaps, columns, about=lambda gap: None, notes=NOTES)


def bounded(row: Row) -> Value:
    """At most, and at least below; a bound beyond the gap is named so."""
    if row["reason"]:
        return missing(row["reason"])
    most = words.percent(row["most_share"])
    text = {published_gaps.NOTHING: "none", WHOLE: f"all ({most})"}.get(row["can_be"], most)
    title = f"{row['least_s_per_sample']:.3g} to {row['most_s_per_sample']:.3g} s per sample"
    return Value(
        text,
        row["most_share"],
        f"from {words.percent(row['least_share'])}",
        title=f"{title}; {row['basis']}",
        mark="computed",
    )


def supported(gap: Gap) -> Value:
    """The conclusion, and that without the update below where it is another."""
    if gap.together["conclusion"] is None:
        return missing(gap.together["reason"])
    other = gap.without_update[ALL]["conclusion"]
    differs = other != gap.together["conclusion"]
    below = f"without the update: {other[:1].lower()}{other[1:]}" if differs else ""
    return Value(gap.together["conclusion"], below=below, mark="prose")
