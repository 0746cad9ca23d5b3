"""What of a grid's steps is fixed: memory-bound, launch-bound, or both?

The time of a step over its batch size is fitted by a fixed part and one for each sample. What is
fixed costs a small batch most, which is why larger batches give more tokens a second.
"""

from __future__ import annotations

from collections.abc import Sequence

from siliconprof import words
from siliconprof.analyse.scaling import ABOUT_BACKEND, ABOUT_SHAPE
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.grid_points import MODEL, MS, Grid, by_place, place, place_name, shape
from siliconprof.render.tables import Column, Table, Value, quantity
from siliconprof.render.variants import Row

EXACT = "two batch sizes: the line goes through both"
VERDICTS = {
    "both": "launch-bound and memory-bound",
    "neither": "neither launch-bound nor memory-bound",
}


def rows_of(data: Data, grid: Grid, about: str) -> list[Row]:
    """Lines of scaling.csv of a grid."""
    names = {place(point): place_name(point) for point in grid.points}
    order = list(by_place(grid.points))
    rows = [
        row | {"place_name": names[place(row)]}
        for row in data.scaling
        if row["about"] == about and row["workload"] == grid.workload and place(row) in names
    ]
    return sorted(rows, key=lambda row: order.index(place(row)))


def add(data: Data, book: Book, grid: Grid, prefix: str) -> None:
    """Verdicts in words, and the fits one by one."""
    fits = rows_of(data, grid, ABOUT_SHAPE)
    verdicts = rows_of(data, grid, ABOUT_BACKEND)
    book.facts([(place_name(row), verdict_with_numbers(row)) for row in verdicts])
    hows = sorted({str(row["how"]) for row in verdicts if row.get("how")})
    reached = [f"How the verdicts are reached: {how}." for how in hows]
    if fits:
        book.table(
            f"{prefix}scaling-{grid.workload}",
            "grid-scaling",
            table(fits, reached),
            folded=words.count(len(fits), "fit"),
        )
    else:
        for how in reached:
            book.note(how)


def verdict_with_numbers(row: Row) -> str:
    """A verdict with its numbers."""
    verdict = str(row.get("verdict") or "inconclusive")
    verdict_text = f"Verdict: {VERDICTS.get(verdict, verdict)}"
    return ". ".join(filter(None, [verdict_text, str(row.get("says") or "")]))


def table(fits: Sequence[Row], notes: Sequence[str]) -> Table:
    """Every fit, and what a step's time is made of at both ends of its batch sizes."""
    result = Table(
        [
            Column("Model"),
            Column("parameters", "10⁶", True),
            Column("Device", folds=True),
            Column("Backend"),
            Column("Precision", folds=True),
            Column("batch sizes"),
            Column("fixed", "ms", True, "of a step, whatever the batch; 95 % interval below"),
            Column("each sample", "ms", True),
            Column("residual", "%", True, "root mean square, as a share of the step"),
            Column("fixed, smallest batch", "%", True, "share of the step"),
            Column("fixed, largest batch", "%", True, "share of the step"),
            Column("gain", "×", True, "samples a second at the largest over the smallest batch"),
            Column(
                "launches",
                "%",
                True,
                "operator launches × cost of one, share of the step at "
                "the smallest batch; at the largest below",
                "largest batch",
            ),
            Column(
                "memory",
                "%",
                True,
                "bytes that must move ÷ measured bandwidth, share of the "
                "step at the smallest batch; at the largest below",
                "largest batch",
            ),
            Column(
                "best",
                "GFLOP/s",
                True,
                "over its batch sizes; share of the measured ceiling below",
                "of ceiling",
            ),
        ]
    )
    result.notes = list(notes)
    for row in fits:
        why = str(row.get("fit_reason") or "no fit")
        result.add(
            Value(shape(row), sort=", ".join(f"{row.get(name) or 0:06.0f}" for name in MODEL)),
            quantity(row.get("n_parameters"), "not counted", 1e6),
            row["device"],
            words.backend_name(row),
            row["precision"],
            str(row.get("batch_sizes") or "").replace(";", ", "),
            _fixed(row, why),
            quantity(row.get("per_sample_s"), why, MS),
            quantity(row.get("residual"), str(row.get("fit_reason") or EXACT), 0.01, 2),
            quantity(row.get("fixed_share_smallest"), why, 0.01, 2),
            quantity(row.get("fixed_share_largest"), why, 0.01, 2),
            quantity(row.get("throughput_gain"), why),
            _shares(row, "launch"),
            _shares(row, "memory"),
            _best(row),
            of=row,
        )
    return result


def _fixed(row: Row, why: str) -> Value:
    value = quantity(row.get("fixed_s"), why, MS)
    ends = [words.number(row.get(f"fixed_{end}_s")) for end in ("low", "high")]
    if value.reason or ends[0] is None or ends[1] is None:
        return value
    below = "–".join(words.significant(end / MS, 2) for end in ends if end is not None)
    return Value(value.text, value.sort, below)


def _shares(row: Row, what: str) -> Value:
    why = str(row.get(f"{what}_reason") or "not known")
    value = quantity(row.get(f"{what}_share_smallest"), why, 0.01, 2)
    largest = words.number(row.get(f"{what}_share_largest"))
    if value.reason or largest is None:
        return value
    return Value(value.text, value.sort, words.significant(100 * largest, 2))


def _best(row: Row) -> Value:
    value = quantity(row.get("best_flop_per_s"), "no formula for its operations", 1e9)
    share = words.number(row.get("best_of_ceiling"))
    if value.reason or share is None:
        return value
    return Value(value.text, value.sort, words.percent(share))
