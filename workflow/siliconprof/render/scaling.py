"""What of a grid's steps is fixed: memory-bound, launch-bound, or both?

The time of a step over its batch size is fitted by a fixed part and one for each sample. What is
fixed costs a small batch most, which is why larger batches give more tokens a second.
"""

from __future__ import annotations

from siliconprof import words
from siliconprof.analyse.scaling import ABOUT_BACKEND, ABOUT_SHAPE
from siliconprof.render import tables
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.grid_points import (
    MODEL,
    MS,
    NO_FORMULA,
    Grid,
    by_place,
    place,
    place_name,
    shape,
)
from siliconprof.render.tables import Column, Table, Value, number, told
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
            Table.of(fits, COLUMNS, notes=reached),
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


def _model(row: Row) -> Value:
    return Value(shape(row), sort=", ".join(f"{row.get(name) or 0:06.0f}" for name in MODEL))


def _why(row: Row) -> str:
    return str(row.get("fit_reason") or "no fit")


def _interval(row: Row) -> str:
    ends = (words.number(row.get(f"fixed_{end}_s")) for end in ("low", "high"))
    both = [words.significant(end / MS, 2) for end in ends if end is not None]
    return "–".join(both) if len(both) == 2 else ""


def _of_ceiling(row: Row) -> str:
    share = words.number(row.get("best_of_ceiling"))
    return "" if share is None else words.percent(share)


def _shares(head: str, what: str, made_of: str) -> Column:
    """The share of the step that one limit explains at the smallest batch; at the largest below."""

    def largest(row: Row) -> str:
        share = words.number(row.get(f"{what}_share_largest"))
        return "" if share is None else words.significant(100 * share, 2)

    return number(
        head,
        "%",
        f"{what}_share_smallest",
        lambda row: str(row.get(f"{what}_reason") or "not known"),
        f"{made_of}, share of the step at the smallest batch; at the largest below",
        digits=2,
        under=largest,
        below="largest batch",
    )


FIXED = "of a step, whatever the batch; 95 % interval below"
GAIN = "samples a second at the largest over the smallest batch"
BEST = "over its batch sizes; share of the measured ceiling below"
RESIDUAL = "root mean square, as a share of the step"
SHARE = "share of the step"
COLUMNS = (
    told("Model", _model),
    number("parameters", "10⁶", "n_parameters", "not counted"),
    tables.DEVICE,
    tables.BACKEND,
    tables.ONE_PRECISION,
    told("batch sizes", lambda row: str(row.get("batch_sizes") or "").replace(";", ", ")),
    number("fixed", "ms", "fixed_s", _why, FIXED, under=_interval),
    number("each sample", "ms", "per_sample_s", _why),
    number("residual", "%", "residual", lambda row: row.get("fit_reason") or EXACT, RESIDUAL, 2),
    number("fixed, smallest batch", "%", "fixed_share_smallest", _why, SHARE, 2),
    number("fixed, largest batch", "%", "fixed_share_largest", _why, SHARE, 2),
    number("gain", "×", "throughput_gain", _why, GAIN),
    _shares("launches", "launch", "operator launches × cost of one"),
    _shares("memory", "memory", "bytes that must move ÷ measured bandwidth"),
    number(
        "best",
        "GFLOP/s",
        "best_flop_per_s",
        NO_FORMULA,
        BEST,
        under=_of_ceiling,
        below="of ceiling",
    ),
)
