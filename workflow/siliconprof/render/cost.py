"""What measuring itself costs: each probe's sample, a clock between phases, all probes at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from siliconprof import words
from siliconprof.render import hover
from siliconprof.render.book import Book
from siliconprof.render.compare import Step
from siliconprof.render.data import SWITCHED_OFF, Data, grouped
from siliconprof.render.tables import SIZES, Column, Table, Value, count, number, told
from siliconprof.render.variants import Row, family_order, flagged, label, model, pairs

DIFFERS = 0.05  # of the unsplit step
CHECKED_FROM_S = 0.020  # shorter steps cost more to split, and are not flagged
SPLIT_FLAG = "split_differs"
MOST_NAMED = 6
SPLIT = (
    "A split step, between whose phases the clock is read, takes {} times as long as an unsplit one"
)
WAITS = (
    "An unsplit step, after which the device is waited for, takes {} times as long as a free-running "
    "one"
)


def add(data: Data, book: Book) -> None:
    """Probes by backend; what splitting steps and waiting after them costs; without any probe."""
    if data.probes:
        book.table("probes", "probes", probes_table(data.probes))
    else:
        book.note("No record of these results holds the cost of a probe.")
    rows = sorted(data.training(), key=family_order)
    if split := ratio(rows, "split_over_unsplit", SPLIT):
        book.note(f"{split} {agreement(rows)}")
    if waits := ratio(rows, "unsplit_over_free_running", WAITS):
        book.note(waits)
    if compared := paired(rows):
        book.table("probes-paired", "probes-paired", paired_table(compared))


def ratio(rows: Sequence[Row], column: str, text: str) -> str | None:
    """A ratio of two steps over all trainings in words; None where no training has it."""
    known = {value: row for row in rows if (value := words.number(row[column])) is not None}
    if not known:
        return None
    ends = (
        f"{words.significant(x)} ({hover.training(known[x])})" for x in (min(known), max(known))
    )
    return (
        f"{text.format(words.significant(float(np.median(list(known)))))}, the median of "
        f"{words.count(len(known), 'training')}: from {' to '.join(ends)}."
    )


def agreement(rows: Sequence[Row]) -> str:
    """How many trainings take as long split as unsplit, and which are flagged."""
    ratios = [
        ratio
        for row in rows
        if (ratio := words.number(row["split_over_unsplit"])) is not None
        and row["unsplit_step_median_s"] >= CHECKED_FROM_S
    ]
    kept = sum(abs(ratio - 1) <= DIFFERS for ratio in ratios)
    marked = [f"{model(row)} {label(row)}" for row in rows if flagged(row, SPLIT_FLAG)]
    named = f"Flagged: {words.listing(marked, MOST_NAMED)}." if marked else "None is flagged."
    return (
        f"From {words.duration(CHECKED_FROM_S, 2)} on the two must agree within "
        f"{words.whole_percent(DIFFERS)}; {kept} of {words.count(len(ratios), 'cell')} do. {named}"
    )


# -- probes ------------------------------------------------------------------------------------


def probes_table(rows: Sequence[Row]) -> Table:
    """One line for each probe and backend: medians over its cells, and the worst."""

    def line(row: Row) -> tuple[str, str, str]:
        # a probe that is available nowhere has one line
        backend = words.backend_name(row) if words.numbers([row], "samples") else ""
        return row["probe"], row["device"], backend

    groups = grouped((row for row in rows if row["means"] != SWITCHED_OFF), line)
    return Table.of([groups[name] for name in sorted(groups)], PROBES)


def _middle(rows: Sequence[Row], column: str) -> float | None:
    values = words.numbers(rows, column)
    return float(np.median(values)) if values else None


def _with_worst(head: str, unit: str, column: str, help: str) -> Column:
    """A column of medians over the cells, the largest below."""

    def worst(group: Sequence[Row]) -> str:
        most = max(words.numbers(group, column)) / SIZES[unit]
        return f"at most {words.significant(most, 2)}"

    middle = partial(_middle, column=column)
    return number(head, unit, middle, UNAVAILABLE, help, digits=2, under=worst)


def _most(group: Sequence[Row]) -> float | None:
    return max(words.numbers(group, "sample_cost_p95_s"), default=None)


def _backends(group: Sequence[Row]) -> str:
    return ", ".join(sorted(set(map(words.backend_name, group))))


def _means(group: Sequence[Row]) -> Value:
    return Value("; ".join(dict.fromkeys(str(row["means"]) for row in group)), mark="note")


UNAVAILABLE = "it is not available here: see the column before"
ONE = "median of the cells' medians; the largest below"
INSIDE = "time inside the probe: median; largest below"
PROBES = (
    told("Probe", lambda group: group[0]["probe"]),
    told("Device", lambda group: group[0]["device"], folds=True),
    told("Backend", _backends),
    told("How it reads, or why it does not", _means),
    Column("cells", "", True, value=lambda group: Value(str(len(group)), len(group))),
    count("samples", partial(_middle, column="samples"), UNAVAILABLE, unit="per cell"),
    _with_worst("one sample", "µs", "sample_cost_median_s", ONE),
    number("95th percentile", "µs", _most, UNAVAILABLE, "the largest of the cells'"),
    _with_worst("of the cell's time", "%", "share_of_wall", INSIDE),
)


# -- with and without --------------------------------------------------------------------------


def paired(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """(without any probe, with them) of trainings that differ in nothing else."""
    return pairs(rows, "probes_off", lambda row: row.get("probes_off"), lambda row: True)


def _step(row: Row) -> Step:
    """The unsplit step of a row that has one."""
    step = Step.of(row)
    assert step
    return step


def difference(pair: tuple[Row, Row]) -> Value:
    """How much longer the second's step takes, and what both intervals allow, in per cent."""
    without, probed = map(_step, pair)
    change, *ends = (100 * (times - 1) for times in probed.over(without))
    return Value(_signed(change), change, " to ".join(map(_signed, ends)))


def _signed(value: float) -> str:
    text = words.significant(value, 2)
    return f"+{text}" if value > 0 else text


UNSPLIT = "unsplit step: median, 95 % interval"
PAIRED = (
    told("Model", lambda pair: model(pair[1])),
    told("Device", lambda pair: pair[1]["device"], folds=True),
    told("Cell", lambda pair: label(pair[1])),
    Column("without", "ms", True, UNSPLIT, value=lambda pair: _step(pair[0]).value()),
    Column("with probes", "ms", True, UNSPLIT, value=lambda pair: _step(pair[1]).value()),
    Column("difference", "%", True, "what both intervals allow below", value=difference),
)


def paired_table(compared: Sequence[tuple[Row, Row]]) -> Table:
    """Step times with and without the probes, and what both intervals allow of the difference."""

    def untimed(pair: tuple[Row, Row]) -> str | None:
        return None if all(map(Step.of, pair)) else "no unsplit step was timed"

    return Table.of(compared, PAIRED, why_none=untimed, naming=3)
