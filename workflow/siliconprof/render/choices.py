"""Trainings that do equal work and run it differently: compiled, or by kernels that were asked for.

Each stands beside the same training as its framework runs it by default.
"""

from __future__ import annotations

from collections.abc import Iterator

from siliconprof import words
from siliconprof.analyse.equal_work import CHOICES
from siliconprof.render.book import Book
from siliconprof.render.compare import Step
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, integer, missing, quantity
from siliconprof.render.training import NAMES, names
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
    result = Table(
        [
            *NAMES,
            Column("step, as usual", "ms", True, "unsplit: median, 95 % interval"),
            Column("step, as chosen", "ms", True, "unsplit: median, 95 % interval"),
            Column("times as fast", "", True, "as usual over as chosen; what both intervals allow"),
            Column(
                "compiling", "s", True, "the steps that compile, from empty caches, less a step"
            ),
            Column("paid back after", "steps", True, "compiling over what a step gains"),
            Column("recompilations", "", True),
            Column("graph breaks", "", True, "where compiled code goes back to Python"),
            Column("losses differ by", "", True, "the largest of the first ones, as a share"),
        ]
    )
    for usual_row, chosen_row in compared:
        usual, chosen = Step.of(usual_row), Step.of(chosen_row)
        if not usual or not chosen:
            why = missing("no unsplit step was timed")
            result.add(*names(chosen_row), *[why] * 8, of=(usual_row, chosen_row))
            continue
        compile_s = words.number(chosen_row.get("compile_s"))
        differ = losses_differ(data, usual_row, chosen_row)
        gain_s = usual.middle - chosen.middle
        result.add(
            *names(chosen_row),
            usual.value(),
            chosen.value(),
            Value(
                words.significant(usual.middle / chosen.middle, 3),
                usual.middle / chosen.middle,
                f"{words.significant(usual.low / chosen.high, 3)}–"
                f"{words.significant(usual.high / chosen.low, 3)}",
            ),
            quantity(compile_s, EAGER),
            quantity(compile_s / gain_s, EAGER, digits=2)
            if compile_s and gain_s > 0
            else missing("a step gains nothing" if compile_s else EAGER),
            integer(words.number(chosen_row.get("recompilations")), EAGER),
            integer(words.number(chosen_row.get("graph_breaks")), EAGER),
            missing(TOO_FEW) if differ is None else Value(words.scientific(differ), differ),
            of=(usual_row, chosen_row),
        )
    return result


def losses_differ(data: Data, a: Row, b: Row) -> float | None:
    """The largest relative difference of the first losses, which see equal batches; None = few."""
    sides = [data.traces.series(row, "loss")[:FIRST_LOSSES] for row in (a, b)]
    if min(map(len, sides)) < FIRST_LOSSES:
        return None
    return max(abs(y / x - 1) if x else abs(y) for x, y in zip(*sides, strict=True))
