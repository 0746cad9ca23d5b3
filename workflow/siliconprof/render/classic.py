"""Daniel 2023's networks: epoch and step times, throughput, accuracy, and the device ratios.

Figures and the order of everything are here; tables are in `classic_tables`, ratios in `ratios`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any

from siliconprof import words
from siliconprof.render import chart, classic_tables, hover, ratios, style, training
from siliconprof.render.book import Book, parts
from siliconprof.render.chart import HOLLOW, Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.ratios import Case, epoch, side, side_name
from siliconprof.render.tables import Table
from siliconprof.render.variants import Row, order, precision

Cases = Mapping[Case, Sequence[Row]]
CASES_PER_FIGURE = 14
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
    timed = classic_tables.times_table(data, cases)
    book.table(f"{prefix}classic-times", "classic-times", timed, counted="line")
    if any(map(_tested, points)):
        learned = Table.of(classic_tables.of_cases(cases), classic_tables.ACCURACY)
        book.table(f"{prefix}classic-accuracy", "classic-accuracy", learned, counted="line")
    if points:
        _ratios(data, book, prefix, points)
    if everyone is not None:
        printed = classic_tables.published_table(everyone)
        measured = any(value.mark == "measured" for row in printed.rows for value in row)
        counted = "" if measured else "line"
        book.table(f"{prefix}classic-published", "classic-published", printed, counted=counted)


def present(data: Data) -> bool:
    """Whether any of these networks is among the cells, measured or not."""
    return bool(_cells(data))


def _cells(data: Data) -> list[Row]:
    return [cell for cell in data.cells if cell["trainer"] == ratios.TRAINER]


def _tested(point: Row) -> bool:
    return words.number(point.get("test_accuracy")) is not None


def _stepped(point: Row) -> bool:
    return bool(point["step_median_s"])


def _figures(data: Data, book: Book, prefix: str, cases: Cases) -> None:
    """Epochs of every case, then the steps of each network."""
    timed = [(case, group) for case, group in cases.items() if any(map(epoch, group))]
    hollow = any(ratios.extrapolated(point) for _, group in timed for point in group)
    for name, part in parts(f"{prefix}classic-epochs", timed, CASES_PER_FIGURE):
        draw = partial(draw_epochs, dict(part))
        book.figure(name, "classic-epochs", draw, extrapolated=HOLLOW_NOTE if hollow else "")
    for network, of_network in grouped(cases.items(), lambda item: item[0].network).items():
        rows = [p for _, group in of_network if any(map(_stepped, group)) for p in group]
        rows.sort(key=lambda point: (order_of_side(point), point["batch_size"]))
        name = network.lower() if network.isupper() else network
        draw = partial(training.draw, data, rows, name=step_label)
        if rows:
            book.figure(f"{prefix}classic-phases-{name}", "classic-phases", draw, network=network)


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
    book.table(f"{prefix}classic-ranges", "classic-ranges", classic_tables.ranges(data, pairs))
    every = [ratio for pair in pairs for ratio in pair.ratios]
    single = Table.of(every, classic_tables.RATIOS, attrgetter("rows"))
    book.table(f"{prefix}classic-ratios", "classic-ratios", single, counted="line")
    judgements = [judgement for pair in pairs if (judgement := ratios.judged(data, pair))]
    if judgements:
        book.listing(judgements, MISLED_TITLE)
    else:
        book.note(
            "TFLOPS are held against these ratios where matrix products of both sides were "
            "measured or both data sheets are known; no pair here has either."
        )


def step_label(row: Row, lines: bool = False) -> str:
    """`batch 32 · mlx · fp32`; with `lines`, what multiplied stands on a second line."""
    remark = words.blas_remark(row)
    name = f"batch {int(row['batch_size'])} · {row['backend']} · {precision(row)}"
    return f"{name}\n{remark}" if lines and remark else f"{name}{f' · {remark}' * bool(remark)}"


# -- figures ---------------------------------------------------------------------------------------


def order_of_side(point: Row) -> tuple:
    """Where a point's device, backend and precision stand on the page, whatever its network."""
    return order(point | {"module": "", "workload": "", "point": 0})


def _kind(point: Row) -> tuple:
    """What tells one line of a case from another."""
    return (*side(point), precision(point))


def _kinds(cases: Cases) -> dict[tuple, tuple[str, Row]]:
    """Each device, backend and precision: its name, and any of its points."""
    points = sorted((p for group in cases.values() for p in group), key=order_of_side)
    several_devices = len({side(point)[:3] for point in points}) > 1
    several_precisions = len({precision(point) for point in points}) > 1
    kinds = {}
    for point in points:
        name = side_name(point) if several_devices else words.backend_name(point)
        name += f", {precision(point)}" if several_precisions else ""
        kinds[_kind(point)] = (name, point)
    return kinds


def _marker(point: Row) -> str:
    return style.device_mark(point["device"])


def draw_epochs(cases: Cases, narrow: bool) -> Any:
    """A row for each case, and in it a line for each device, backend and precision.

    On a log axis a light bar from the training's time to the dot, the whole epoch.
    """
    kinds = _kinds(cases)
    lines = list(kinds)
    row_in = 0.13 * len(lines) + 0.09
    shown: list[Mark] = []
    for y, (above, below) in enumerate(pairwise(cases), 1):  # darker between two networks
        same = above.network == below.network
        ink, thick = (style.RULE, 0.4) if same else (style.FAINT, 0.7)
        shown.append(chart.across(y - 0.5, color=ink, linewidth=thick))
    for y, (case, group) in enumerate(cases.items()):
        for point in group:
            line = lines.index(_kind(point)) - (len(lines) - 1) / 2
            shown += _epoch(point, y + line * 0.13 / row_in, f"{case}, {kinds[_kind(point)][0]}")
    legend = [
        (style.sample(_marker(point), color=style.colour(point), markersize=3.4), name)
        for name, point in kinds.values()
    ]
    if any(epoch(p) and ratios.extrapolated(p) for group in cases.values() for p in group):
        hollow = style.sample("o", color=style.MUTED, markersize=4, **HOLLOW)
        legend.append((hollow, "hollow: extrapolated epoch"))
    panel = Panel(
        shown,
        Scale("one epoch with validation / s", log=10),
        labels=[str(case) for case in cases],
        label_rows=list(cases.values()),
        row_in=(row_in, row_in),
    )
    return Chart([panel], legend).figure(narrow)


def _epoch(point: Row, at: float, name: str) -> Iterator[Mark]:
    step, train = epoch(point), words.number(point.get("epoch_train_s"))
    if step is None:
        return
    whole, extrapolated = step.middle, ratios.extrapolated(point)
    if train:
        text = f"{name}: validation {hover.seconds(whole - train)} of the epoch"
        look = {"linewidth": 3.2, "alpha": 0.35, "solid_capstyle": "butt"}
        yield chart.line([train, whole], [at, at], point, text, **look)
    yield chart.line([step.low, step.high], [at, at], point)
    text = f"{name}: epoch {hover.seconds(whole, step.low, step.high)}"
    text += ", extrapolated" * extrapolated
    look = HOLLOW if extrapolated else {}
    yield chart.dot(whole, at, point, text, _marker(point), 3.8, **look)
    yield chart.beside(max(step.high, whole), at, words.duration(whole), point, color=style.INK)
