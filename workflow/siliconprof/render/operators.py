"""What a training step is made of: its operators by what they do, and the framework around them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.analyse.operator_rows import BLOCKED, FRAMEWORK, PARTS, WAITING
from siliconprof.render import hover, training
from siliconprof.render.book import Book, told_parts
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, count, number, told
from siliconprof.render.traces import point_key
from siliconprof.render.variants import Row, family_order, label
from siliconprof.store import table_files

# Steps of the backend's colour; neighbours in the stack must differ.
STEP_OF = dict(zip(PARTS, (100, 45, 80, 80, 25, 60, 12, 45, 25, 12), strict=True))
HATCH = {BLOCKED: "------", WAITING: "xxxxxx", FRAMEWORK: "//////"}
MOST_ROWS = 12
NOT_TIMED = "the framework's own time, which is no operator's"
NO_FORMULA = "no product, convolution or attention: its operations are not counted"


def add(data: Data, book: Book) -> None:
    """Bars of every family whose operators were timed, and the longest operators of its first."""
    known = data.traces.parts_of_steps
    for kind, (points, _) in data.families().items():
        told_apart = sorted((p for p in points if point_key(p) in known), key=family_order)
        if not told_apart:
            continue
        without = dict.fromkeys(label(p) for p in points if point_key(p) not in known)
        stem = f"operators-{kind.slug}"
        for name, part, chunk in told_parts(stem, told_apart, training.ROWS_PER_FIGURE):
            book.figure(
                name,
                "operators",
                partial(draw, data, chunk),
                family=kind.label + part,
                without=f" Not split by operator: {words.listing(without)}." if without else "",
            )
        first = told_apart[0]
        book.table(
            f"{stem}-longest",
            "operators-longest",
            longest(data, first),
            training=f"{first['workload']}, {label(first)}",
            folded=f"the {MOST_ROWS} longest of {first['workload']}",
        )


def draw(data: Data, rows: Sequence[Row]) -> Any:
    """Stacked times and shares of the groups of operators; see `training.draw`."""
    known = data.traces.parts_of_steps

    def seconds(row: Row, part: str) -> float | None:
        line = known[point_key(row)].get(part)
        return None if line is None else line["seconds"]

    def hover_text(row: Row, part: str) -> str:
        line = known[point_key(row)].get(part)
        return hover.seconds(line["seconds"], line["low_s"], line["high_s"]) if line else ""

    parts = training.Parts("parts", STEP_OF, seconds, hover_text, hatch=HATCH)
    return training.draw(data, rows, parts=parts)


def longest(data: Data, point: Row) -> Table:
    """The operators of a training that take longest in a step, layers taken together."""
    frame = data.traces.step_operators(point)
    assert frame is not None
    whole = frame["seconds"].sum()
    rows = table_files.rows(frame.iloc[::-1][:MOST_ROWS])

    def rate(of: str, row: Row) -> float | None:
        amount = words.number(row[of])
        return amount * row["count"] / row["seconds"] if amount and row["seconds"] else None

    columns: list[Column] = [
        told("Operator", lambda row: (row["kind"] or row["group"]).removeprefix("aten::")),
        told("Module", lambda row: row["role"] or words.DASH),
        told("Phase", lambda row: row["phase"].removesuffix("_s")),
        count("calls", "count", NOT_TIMED, "in a step"),
        number("time", "ms", "seconds", NOT_TIMED, "of all its calls in a step, median of steps"),
        number("share", "%", lambda row: row["seconds"] / whole, NOT_TIMED, "of the whole step"),
        number("rate", "GFLOP/s", partial(rate, "flops"), NO_FORMULA),
        number("traffic", "GB/s", partial(rate, "bytes"), NOT_TIMED, "operands, each once"),
    ]
    return Table.of(rows, columns, about=lambda row: point)
