"""Seed 004's networks: epoch and step times, throughput, accuracy, and the device ratios."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from siliconprof import words
from siliconprof.render import (
    classic_figures,
    classic_published,
    classic_tables,
    ratios,
    training,
)
from siliconprof.render.book import Book
from siliconprof.render.classic_figures import Cases
from siliconprof.render.data import Data
from siliconprof.render.ratios import epoch, side_name
from siliconprof.render.tables import Table
from siliconprof.render.variants import Row, precision

CASES_PER_FIGURE = 14
PAIRS_PER_FIGURE = 6
FOLD_ABOVE = 16  # lines of a table
MISLED_TITLE = "What TFLOPS alone would have said:"
HOLLOW_NOTE = " Hollow: extrapolated from the steps that were timed, not measured as a whole."


def add(data: Data, book: Book, prefix: str = "", everyone: Data | None = None) -> None:
    """Everything of one host.

    Args:
        everyone: the data of every host, for the published ratios; None leaves them out.
    """
    if not present(data):
        book.note("No MLP, CNN or LSTM is part of these results.")
        return
    points = ratios.measured(data)
    cases = ratios.cases(points)
    if points:
        _figures(data, book, prefix, cases)
    else:
        failed = [cell for cell in _cells(data) if cell["status"] != "ok"]
        why = sorted({f"{cell['status']}: {cell['reason']}" for cell in failed})
        reasons = words.listing(why) or "no batch size came to its end"
        book.note(f"No figure: no network was measured ({reasons}).")
    timed = classic_tables.times(data, cases)
    book.table(f"{prefix}classic-times", "classic-times", timed, folded=_fold(timed))
    if any(words.number(point.get("test_accuracy")) is not None for point in points):
        learned = classic_tables.accuracy(cases)
        book.table(f"{prefix}classic-accuracy", "classic-accuracy", learned, folded=_fold(learned))
    if points:
        _ratios(data, book, prefix, points)
    if everyone is not None:
        printed = classic_published.table(everyone)
        measured = any(value.mark == "measured" for row in printed.rows for value in row)
        fold = "" if measured else _fold(printed)
        book.table(f"{prefix}classic-published", "classic-published", printed, folded=fold)


def present(data: Data) -> bool:
    """Whether any of these networks is among the cells, measured or not."""
    return bool(_cells(data))


def _cells(data: Data) -> list[Row]:
    return [cell for cell in data.cells if cell["trainer"] == ratios.TRAINER]


def _figures(data: Data, book: Book, prefix: str, cases: Cases) -> None:
    timed = {case: group for case, group in cases.items() if any(map(epoch, group))}
    hollow = any(ratios.extrapolated(point) for group in timed.values() for point in group)
    values = {"extrapolated": HOLLOW_NOTE if hollow else ""}
    for part, more in _parts(timed, CASES_PER_FIGURE):
        book.figure(
            f"{prefix}classic-epochs{more}",
            "classic-epochs",
            partial(classic_figures.draw_epochs, part),
            **values,
        )
    stepped = {
        case: group for case, group in cases.items() if any(p["step_median_s"] for p in group)
    }
    for name in dict.fromkeys(case.network for case in stepped):
        group = [p for case, points in stepped.items() if case.network == name for p in points]
        group.sort(key=lambda point: (classic_figures.order_of_side(point), point["batch_size"]))
        book.figure(
            f"{prefix}classic-phases-{name.lower() if name.isupper() else name}",
            "classic-phases",
            partial(training.draw, data, group, name=step_label),
            network=name,
        )
    rated = {case: group for case, group in cases.items() if any(p["samples_per_s"] for p in group)}
    if rated:
        book.figure(
            f"{prefix}classic-rates", "classic-rates", partial(classic_figures.draw_rates, rated)
        )
    tested = {
        case: group
        for case, group in cases.items()
        if any(words.number(point.get("test_accuracy")) is not None for point in group)
    }
    for part, more in _parts(tested, CASES_PER_FIGURE):
        book.figure(
            f"{prefix}classic-accuracy{more}",
            "classic-accuracy",
            partial(classic_figures.draw_accuracy, part),
            chance=words.whole_percent(classic_tables.CHANCE),
            synthetic=" The images are generated, no photographs."
            if any(classic_tables.synthetic(point) for group in part.values() for point in group)
            else "",
        )


def _fold(table: Table) -> str:
    """The line under which a long table is folded away; empty for a short one."""
    return words.count(len(table.rows), "line") if len(table.rows) > FOLD_ABOVE else ""


def _parts(cases: Cases, most: int) -> Iterator[tuple[Cases, str]]:
    """Portions that a page can show, with what their file names end in."""
    items = list(cases.items())
    for start in range(0, len(items), most):
        yield dict(items[start : start + most]), f"-{start // most + 1}" if start else ""


def _ratios(data: Data, book: Book, prefix: str, points: Sequence[Row]) -> None:
    """Ratios of every two sides; with one side alone a sentence."""
    sides = list(dict.fromkeys(side_name(point) for point in points))
    pairs = ratios.pairs(data)
    if not pairs:
        why = (
            f"{sides[0]} alone trained these networks here"
            if len(sides) == 1
            else "no two devices or backends trained the same network with the same batch for a "
            "whole or extrapolated epoch"
        )
        book.note(f"No device ratios: {why}.")
        return
    hollow = any(ratio.extrapolated for pair in pairs for ratio in pair.ratios)
    for start in range(0, len(pairs), PAIRS_PER_FIGURE):
        more = f"-{start // PAIRS_PER_FIGURE + 1}" if start else ""
        part = pairs[start : start + PAIRS_PER_FIGURE]
        book.figure(
            f"{prefix}classic-ratios{more}",
            "classic-ratios",
            partial(classic_figures.draw_ratios, data, part),
            foretold=_foretold_note(data, part),
            extrapolated=HOLLOW_NOTE if hollow else "",
        )
    book.table(f"{prefix}classic-ranges", "classic-ranges", classic_tables.ranges(data, pairs))
    single = classic_tables.ratios_table(pairs)
    book.table(f"{prefix}classic-ratios", "classic-ratios", single, folded=_fold(single))
    judgements = [judgement for pair in pairs if (judgement := ratios.judged(data, pair))]
    if judgements:
        book.listing(judgements, MISLED_TITLE)
    else:
        book.note(
            "TFLOPS are held against these ratios where matrix products of both sides were "
            "measured or both data sheets are known; no pair here has either."
        )


def _foretold_note(data: Data, pairs: Sequence[ratios.Pair]) -> str:
    """What the lines of a figure's panels are; only of those that are drawn."""
    products, sheets = (
        any(predict(data, pair).ratio for pair in pairs)
        for predict in (ratios.by_products, ratios.by_sheets)
    )
    parts = []
    if products:
        parts.append("dotted: where the fastest products measured would put every dot")
    if sheets:
        parts.append(f"dashed: where the data sheets would{'' if products else ' put every dot'}")
    return f" {'; '.join(parts).capitalize()}." if parts else ""


def step_label(row: Row, lines: bool = False) -> str:
    """`batch 32 · mlx · fp32`; with `lines`, what multiplied stands on a second line."""
    remark = words.blas_remark(row)
    name = f"batch {int(row['batch_size'])} · {row['backend']} · {precision(row)}"
    return f"{name}\n{remark}" if lines and remark else f"{name}{f' · {remark}' * bool(remark)}"
