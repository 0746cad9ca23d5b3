"""Trainings that do equal work and run it differently: compiled, or by kernels that were asked for.

Each stands beside the same training as its framework runs it by default.
"""

from __future__ import annotations

from collections.abc import Iterator

from siliconprof import words
from siliconprof.analyse.equal_work import CHOICES
from siliconprof.render.book import Book
from siliconprof.render.compare import NO_STEP, Step, ratio, step_column
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, count, missing, number, quantity
from siliconprof.render.training import NAMES
from siliconprof.render.variants import Row, as_usual, family_order, has_no_speed, twins

OTHERS = tuple(name for name in CHOICES if name != "allocator")  # which has a table of its own
FIRST_LOSSES = 10
EAGER = "an eager step compiles nothing"
TOO_FEW = f"fewer than {FIRST_LOSSES} losses on one side"


def add(data: Data, book: Book, prefix: str = "") -> None:
    """The table, where any training makes a choice and its usual twin was measured."""
    if compared := list(pairs(data)):
        book.table(f"{prefix}choices", "choices", table(data, compared), first=FIRST_LOSSES)


def pairs(data: Data) -> Iterator[tuple[Row, Row]]:
    """(as usual, with one choice) of trainings that differ in nothing else."""
    rows = [row for row in sorted(data.training(), key=family_order) if not has_no_speed(row)]
    place = {id(row): index for index, row in enumerate(rows)}
    twins_in = [twins(rows, name) for name in OTHERS]
    for chosen in rows:
        found = [twin for of in twins_in for twin in of(chosen) if as_usual(twin)]
        for usual in sorted(found, key=lambda row: place[id(row)]):
            yield usual, chosen


def table(data: Data, compared: list[tuple[Row, Row]]) -> Table:
    """Both steps, how many times as fast the choice is, what compiling cost, and the losses."""

    def differ(row: Row) -> Value:
        share = losses_differ(data, row["usual"], row)
        return missing(TOO_FEW) if share is None else Value(words.scientific(share), share)

    return Table.of(
        [chosen | {"usual": usual} for usual, chosen in compared],
        [*COLUMNS, Column("losses differ by", "", True, DIFFER, value=differ)],
        about=lambda row: (row["usual"], row),
        why_none=lambda row: None if all(map(Step.of, (row["usual"], row))) else NO_STEP,
    )


def _paid_back(row: Row) -> Value:
    """How many steps it takes until compiling has paid for itself."""
    usual, chosen, compile_s = Step.of(row["usual"]), Step.of(row), words.number(row["compile_s"])
    if not (usual and chosen and compile_s):
        return missing(EAGER)
    gain_s = usual.middle - chosen.middle
    if gain_s <= 0:
        return missing("a step gains nothing")
    return quantity(compile_s / gain_s, EAGER, digits=2)


FASTER = "as usual over as chosen; what both intervals allow"
COMPILING = "the steps that compile, from empty caches, less a step"
GAINED = "compiling over what a step gains"
BREAKS = "where compiled code goes back to Python"
DIFFER = "the largest of the first ones, as a share"
COLUMNS = (  # of a training with its `usual` twin
    *NAMES,
    step_column("step, as usual", lambda row: row["usual"]),
    step_column("step, as chosen", lambda row: row),
    Column(
        "× faster", "", True, FASTER, value=lambda row: ratio(Step.of(row["usual"]), Step.of(row))
    ),
    number("compiling", "s", "compile_s", EAGER, COMPILING),
    Column("paid back after", "steps", True, GAINED, value=_paid_back),
    count("recompilations", "recompilations", EAGER),
    count("graph breaks", "graph_breaks", EAGER, BREAKS),
)


def losses_differ(data: Data, a: Row, b: Row) -> float | None:
    """The largest relative difference of the first losses, which see equal batches; None = few."""
    sides = [data.traces.series(row, "loss")[:FIRST_LOSSES] for row in (a, b)]
    if min(map(len, sides)) < FIRST_LOSSES:
        return None
    return max(abs(y / x - 1) if x else abs(y) for x, y in zip(*sides, strict=True))
