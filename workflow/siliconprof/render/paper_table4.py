"""The paper's Table 4: what a framework or trainer gains over another, and what explains its gaps.

What launches, products and bandwidth can explain of the gaps that the paper prints is in bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from siliconprof import words
from siliconprof.analyse import published_gaps
from siliconprof.analyse.published_gaps import ALL, LAUNCHES, PHASES, PRODUCTS, TABLE_4, WHOLE
from siliconprof.render.book import Book
from siliconprof.render.compare import Step, pairs
from siliconprof.render.data import Data, grouped
from siliconprof.render.paper_figure3 import MS, applied, per_sample, usable
from siliconprof.render.tables import (
    Column,
    Table,
    Value,
    integer,
    missing,
    published,
    spanned,
    told,
)
from siliconprof.render.variants import Row, family, order

NOTES = (
    "Published: times of a pass (Table 4) and of a follow-up launch (Table 6), of which every "
    "operator takes none to one. Registry: peaks and bandwidths. By formula: operators, as "
    "today's frameworks have them, and the least operations and bytes.",
    "Assumed: an operator is one launch, sequences are equally long, no layer is computed again, and both sides reach the same "
    "share of their data sheets. Unequal shares could explain any gap or none: the paper prints no "
    "number of them.",
)


def add(data: Data, book: Book) -> None:
    """One pass without the Hugging Face platform, and what explains the gaps that are printed."""
    book.heading("Table 4: trainers and frameworks", anchor="paper-table-4")
    book.table("paper-table-4", "paper-table-4", gains(data))
    book.heading("Table 4 and Figure 3: what can explain the gaps", anchor="paper-gaps")
    all_gaps = gaps(data.published_gaps)
    pictured = sum(row["published_in"] == published_gaps.FIGURE_3 for row in data.published_gaps)
    book.note(" ".join(sentences(all_gaps, pictured)))
    book.table("paper-gaps", "paper-gaps", gaps_table(data, all_gaps))


# -- gains ---------------------------------------------------------------------------------------


def gains(data: Data) -> Table:
    """How many times as long the slower side takes: printed, computed from print, measured."""
    table = Table(
        [
            Column("Compared", below="where from"),
            Column("Device"),
            Column("Of what"),
            Column("batch", "", True),
            Column("first", "ms per sample", True, "95 % interval below"),
            Column("second", "ms per sample", True, "95 % interval below"),
            Column("second / first", "×", True, "what both 95 % intervals allow below"),
        ]
    )
    for row in data.published["feng2025_statements"]:
        if "optimized kernels" in row["statement"]:
            low, high = (1 + float(row[f"value_{end}"]) / 100 for end in ("min", "max"))
            table.add(
                _compared("MLX against MPS", "published: “30%-40% speed advantage”"),
                missing("devices not named one by one"),
                Value(row["model"], mark="prose"),
                *[missing("not published")] * 3,
                published(f"{low:g} to {high:g}", row["source"]),
            )
    printed = {(r["device"], r["backend"]): r for r in data.published["table4_pass_time"]}
    for (device, backend), row in printed.items():
        other = printed.get((device, "torch-mps"))
        if backend == "mlx" and other:
            first, second = (
                float(r["pass_time_s"]) / int(row["batch_size"]) / MS for r in (row, other)
            )
            table.add(
                _compared("MLX against MPS", "published: Table 4"),
                data.listed_name(device),
                row["workload"],
                published(row["batch_size"], row["source"]),
                _computed(first, f"the printed {row['pass_time_s']} s a pass", 4),
                _computed(second, f"the printed {other['pass_time_s']} s a pass", 4),
                _computed(second / first, "two printed numbers"),
            )
    for what, a, b in comparisons(data):
        rows = (a.row, b.row)
        spans = [per_sample(row, "unsplit_step") for row in rows]
        table.add(
            _compared(what, ", ".join(filter(None, ["measured", words.caution(*rows)]))),
            data.place(a.row),
            family(a.row).name,
            integer(a.row["samples_per_step"], "not recorded"),
            *(spanned(*span, MS) for span in spans if span),
            spanned(*b.over(a)),
            of=rows,
        )
    return table


def _compared(what: str, whence: str) -> Value:
    return Value(what, sort=what, below=whence)


def _computed(value: float, of: str, digits: int = 3) -> Value:
    title = f"computed from {of}"
    return Value(words.significant(value, digits), value, mark="computed", title=title)


def comparisons(data: Data) -> Iterator[tuple[str, Step, Step]]:
    """(what, first, second) of equal work on one device, in fp32, everything in memory.

    MLX and torch in a plain loop, a plain loop and the Trainer.
    """
    fitting = [
        point
        for point in sorted(data.training(), key=order)
        if usable(point)
        and (applied(point), point["precision"]) == ("fits", "fp32")
        and not point["lora_rank"]
    ]
    for rows in grouped(fitting, lambda point: point["source"]).values():
        steps = [step for row in rows if (step := Step.of(row))]
        found = [
            (f"MLX against {other.row['backend']}", mlx, other)
            for mlx, other in pairs(steps, "backend", "mlx")
            if mlx.row["trainer"] == "plain"
        ]
        found += [
            (f"plain against hf, {plain.row['backend']}", plain, other)
            for plain, other in pairs(steps, "trainer", "plain")
            if other.row["trainer"] == "hf"
        ]
        yield from sorted(found, key=lambda one: (steps.index(one[1]), steps.index(one[2])))


# -- gaps ----------------------------------------------------------------------------------------


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


def gaps_table(data: Data, all_gaps: Sequence[Gap]) -> Table:
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
