"""Page faults of every training step: how many, how many bytes, and what the allocator adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from siliconprof import words
from siliconprof.render.book import Book
from siliconprof.render.compare import Step
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing, quantity
from siliconprof.render.training import NAMES, names
from siliconprof.render.variants import Row, has_no_speed, precision, twins

KIB = 2.0**10
FOLD_ABOVE = 16
NO_STEPS = "the training steps of this cell are not in its record"
NO_PAGE = "the page size is unknown: the probe was not available"


def add(data: Data, book: Book) -> None:
    """The table, and the allocators side by side."""
    rows = [row for points, _ in data.families().values() for row in points]
    if not rows:
        return
    book.heading("Page faults", anchor="faults")
    fold = words.count(len(rows), "training cell") if len(rows) > FOLD_ABOVE else ""
    book.table("faults", "faults", table(rows), folded=fold)
    if pairs := _allocators(rows):
        book.table("allocators", "allocators", allocators_table(pairs))


def table(rows: Sequence[Row]) -> Table:
    """Median of the unsplit steps, in counts and in bytes, and the whole cell's counts."""
    result = Table(
        [
            *NAMES,
            Column("minor faults", "per step", True, "median of the unsplit steps"),
            Column("touched by them", "KiB per step", True, "minor faults × page size"),
            Column("major faults", "per step", True, "median of the unsplit steps"),
            Column("read by them", "KiB per step", True, "major faults × page size"),
            Column("minor, whole cell", "", True),
            Column("major, whole cell", "", True),
            Column("page", "KiB", True, folds=True),
        ]
    )
    for row in rows:
        result.add(
            *names(row),
            *(
                value
                for kind in ("minor", "major")
                for value in (
                    _whole(row.get(f"{kind}_faults_per_step"), NO_STEPS),
                    quantity(row.get(f"{kind}_faulted_bytes_per_step"), NO_PAGE, KIB),
                )
            ),
            _whole(row.get("minor_faults"), NO_PAGE),
            _whole(row.get("major_faults"), NO_PAGE),
            quantity(row.get("page_size_bytes"), NO_PAGE, KIB),
            of=row,
        )
    return result


def _whole(value: Any, reason: str) -> Value:
    number = words.number(value)
    if number is None:
        return missing(reason)
    return Value(f"{number:,.0f}".replace(",", words.THIN), sort=number)


def _allocators(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """(default, other) of trainings that differ in the allocator's setting only."""
    others = twins(rows, "allocator")
    return [
        (default, other)
        for default in rows
        if default.get("allocator") in (None, "default")
        for other in others(default)
        if other.get("allocator") not in (None, "default")
    ]


def allocators_table(pairs: Sequence[tuple[Row, Row]]) -> Table:
    """What is left of the faults, and of the step time, when freed memory is kept."""
    result = Table(
        [
            Column("Workload"),
            Column("Device", folds=True),
            Column("Backend"),
            Column("Precision"),
            Column("Allocator", folds=True),
            Column("minor faults, default", "per step", True),
            Column("minor faults, kept", "per step", True),
            Column("step, default", "ms", True, "unsplit: median, 95 % interval"),
            Column("step, kept", "ms", True, "unsplit: median, 95 % interval"),
        ]
    )
    for default, other in pairs:
        result.add(
            default["workload"],
            default["device"],
            words.backend_name(default),
            precision(default),
            other["allocator"],
            _whole(default.get("minor_faults_per_step"), NO_STEPS),
            _whole(other.get("minor_faults_per_step"), NO_STEPS),
            *(_time(row) for row in (default, other)),
            of=(default, other),
        )
    return result


def _time(row: Row) -> Value:
    step = Step.of(row)
    if step is None or has_no_speed(row):
        return missing("no unsplit step was timed, or it is a mechanism check")
    return step.value()
