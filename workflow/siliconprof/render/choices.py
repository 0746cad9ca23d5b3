"""Trainings beside their twins: run in another way, and with adapters on a frozen rest (LoRA).

What does equal work stands beside the same training as its framework runs it by default: compiled,
by kernels or with an allocator that were asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from siliconprof import words
from siliconprof.analyse.equal_work import CHOICES
from siliconprof.render import compare, variants
from siliconprof.render.blocks import Finding
from siliconprof.render.book import Book
from siliconprof.render.compare import (
    NO_STEP,
    Step,
    compared,
    manner,
    ratio_column,
    ratio_words,
    step_column,
)
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, count, missing, number, quantity, told
from siliconprof.render.training import MS, NAMES
from siliconprof.render.variants import (
    Row,
    as_usual,
    family,
    family_order,
    precision,
    twins,
    variant,
)

PHASES = (
    ("forward", "forward"),
    ("backward", "backward"),
    ("optimizer", "optimizer"),
    ("unsplit_step", "whole step, unsplit"),
)
FIRST_LOSSES = 10
EAGER = "an eager step compiles nothing"
TOO_FEW = f"fewer than {FIRST_LOSSES} losses on one side"


def add(data: Data, book: Book) -> None:
    """The tables, where any training makes a choice, or has adapters, and its twin was measured."""
    if both := list(pairs(data)):
        book.table("choices", "choices", table(data, both), first=FIRST_LOSSES)
    if adapted := both_ways(data):
        book.heading("With and without LoRA", anchor="lora")
        lora = Table.of(adapted, ADAPTED, about=lambda pair: pair)
        book.table("lora", "lora", lora)
    elif any(row.get("lora_rank") for row in data.training()):
        book.note(
            "LoRA: no training was measured both with adapters and of every parameter, "
            "equal in everything else."
        )


def pairs(data: Data) -> Iterator[tuple[Row, Row]]:
    """(as usual, with one choice) of trainings that differ in nothing else."""
    rows = sorted(data.with_speed(), key=family_order)
    place = {id(row): index for index, row in enumerate(rows)}
    twins_in = [twins(rows, name) for name in CHOICES]
    for chosen in rows:
        found = [twin for of in twins_in for twin in of(chosen) if as_usual(twin)]
        for usual in sorted(found, key=lambda row: place[id(row)]):
            yield usual, chosen


def table(data: Data, both: list[tuple[Row, Row]]) -> Table:
    """Both steps, how many times as fast the choice is, what compiling cost, and the losses."""

    def differ(row: Row) -> Value:
        share = losses_differ(data, row["usual"], row)
        return missing(TOO_FEW) if share is None else Value(words.scientific(share), share)

    return Table.of(
        [chosen | {"usual": usual} for usual, chosen in both],
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
    ratio_column("× faster", lambda row: (row["usual"], row), FASTER),
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


# -- LoRA -----------------------------------------------------------------------------------------


def both_ways(data: Data) -> list[tuple[Row, Row]]:
    """(training of every parameter, training of adapters): equal but for what is trained."""
    rows = sorted(data.with_speed(), key=family_order)

    def is_adapted(row: Row) -> bool:
        return bool(row.get("lora_rank"))

    return variants.pairs(
        rows, "n_trainable_parameters", lambda row: not is_adapted(row), is_adapted
    )


def finding(data: Data) -> Finding | None:
    """What adapters on a frozen rest save over the training of every parameter."""
    comparisons: list[compare.Comparison] = []
    for full_row, adapted_row in both_ways(data):
        full, adapted = Step.of(full_row), Step.of(adapted_row)
        if not full or not adapted:
            continue
        adapters, name = _adapters(adapted_row), family(full_row).name
        place = f"{name} on {words.backend_name(full_row)} ({manner(full_row)})"
        line = compared(f"{place}, {adapters}: {_comparison_text(full, adapted)}", full, adapted)
        shared = f"{name}, {words.backend_name(full_row)}, {manner(full_row)}"
        names = ("training every parameter", adapters)
        comparisons.append(compare.Comparison(full, adapted, names, shared, line))
    return compare.headline("LoRA", [("", comparisons)], "lora")


def _comparison_text(full: Step, adapted: Step) -> str:
    if full.overlaps(adapted):
        return "no difference beyond noise in the step"
    if adapted.middle < full.middle:
        text = f"it is {ratio_words(full, adapted)} faster than training every parameter"
    else:
        text = f"training every parameter is {ratio_words(adapted, full)} faster"
    shares = [
        f"{name} {words.change(change)}"
        for part, name in PHASES[:3]
        if (change := _relative(full.row, adapted.row, part)) is not None
    ]
    return f"{text} ({', '.join(shares)})"


def _adapters(row: Row) -> str:
    return next(word for word in variant(row) if word.startswith("LoRA"))


def _median(row: Row, part: str) -> float | None:
    return words.number(row.get(f"{part}_median_s"))


def _relative(full: Row, adapted: Row, part: str) -> float | None:
    """Change of a part's median as a share of what it was; None where there is none."""
    before, after = _median(full, part), _median(adapted, part)
    return None if not before or after is None else after / before - 1


def _both(part: str, pair: tuple[Row, Row]) -> Value:
    before, after = (_median(row, part) for row in pair)
    if before is None or after is None:
        return missing("one of the two marks no such phase")
    change = _relative(*pair, part)
    text = f"{words.significant(before / MS)} → {words.significant(after / MS)}"
    return Value(text, below="" if change is None else words.change(change))


def _trained(pair: tuple[Row, Row]) -> float:
    return pair[1]["n_trainable_parameters"] / pair[0]["n_parameters"]


EITHER = "one of the two has no unsplit step"
MEDIANS = "every parameter trained → LoRA; medians"
ALLOWED = "whole step; what both 95 % intervals allow below"
ADAPTED = (
    told("Model", lambda pair: family(pair[0]).name),
    told("Device", lambda pair: pair[0]["device"], folds=True),
    told("Backend", lambda pair: words.backend_name(pair[0])),
    told("Trainer", lambda pair: pair[0]["trainer"]),
    told("Precision", lambda pair: precision(pair[0])),
    told("Adapters", lambda pair: _adapters(pair[1]), folds=True),
    number("trained", "%", _trained, "", "parameters that the optimizer changes, of all"),
    *(Column(name, "ms", True, MEDIANS, value=partial(_both, part)) for part, name in PHASES),
    ratio_column("full / LoRA", lambda pair: pair, ALLOWED, EITHER),
)
