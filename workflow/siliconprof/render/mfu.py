"""Efficiency of every training: of the data sheet's peak (MFU), and of the best measured product.

The numbers are those of the table of training rates; here they are sorted and have intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from siliconprof import words
from siliconprof.render import marks, style, uncertainty
from siliconprof.render.book import Book
from siliconprof.render.compare import Step
from siliconprof.render.data import Data
from siliconprof.render.training import best_products, product_key
from siliconprof.render.variants import Row, has_no_speed, label, model

ROWS_PER_FIGURE = 40
EACH_BELOW = 80  # trainings; more of them stand as dots in one row for a device and backend
ROW_IN, GROUPED_ROW_IN = 0.2, 0.19
NARROW_ROW_IN = 0.32  # labels stand in two lines


class Efficiency(NamedTuple):
    """One training: shares between 0 and 1, None where the reference rate is unknown."""

    row: Row
    of_sheet: float | None
    of_product: float | None
    low: float  # ends of the 95 % interval over the middle, for both alike
    high: float
    product: float | None = None  # the reference rates, in FLOP/s
    sheet: float | None = None

    @property
    def order(self) -> tuple[bool, float]:
        """Sort key: the most efficient first; those with the sheet's share alone come last."""
        return (self.of_product is None, -(self.of_product or self.of_sheet or 0.0))

    @property
    def hover_text(self) -> str:
        """What is shown beside the pointer."""
        parts = [
            f"{words.percent(share)} "
            f"({words.percent(share * self.low)}–{words.percent(share * self.high)}) of {reference}, "
            f"{words.scaled(rate, 'FLOP/s')}"
            for share, rate, reference in (
                (self.of_product, self.product, "the best measured product"),
                (self.of_sheet, self.sheet, "the data sheet's peak (MFU)"),
            )
            if share is not None and rate
        ]
        return f"{model(self.row)}, {label(self.row)}: {'; '.join(parts)}"


def add(data: Data, book: Book, prefix: str = "") -> None:
    """One figure, in parts where there are many trainings; one line where there is nothing."""
    trained = [row for row in data.training() if not has_no_speed(row)]
    trainings = sorted(efficiencies(data, trained), key=lambda training: training.order)
    if not trainings:
        book.note(
            "No figure of efficiency: "
            + (
                "no training was measured."
                if not trained
                else "no training has both a number of operations and a rate to compare it with, a "
                "matrix product measured on its device or a data sheet's peak."
            )
        )
        return
    n_lacking = len(trained) - len(trainings)
    lacking_text = (
        f" {words.count(n_lacking, 'training')} cannot be compared with either rate and "
        f"{'is' if n_lacking == 1 else 'are'} left out."
        if n_lacking
        else ""
    )
    sheetless = sorted(
        {data.device_name(training.row) for training in trainings if training.of_sheet is None}
    )
    if sheetless:
        devices = words.listing(sheetless[:3]) + (" and others" if len(sheetless) > 3 else "")
        lacking_text += f" For {devices} no data sheet's peak is known in some number formats."
    if len(trainings) < EACH_BELOW:
        rows: list[list[Efficiency]] = [[training] for training in trainings]
        drawn = draw
    else:
        rows, drawn = _grouped(trainings), draw_grouped
    chunks = [rows[i : i + ROWS_PER_FIGURE] for i in range(0, len(rows), ROWS_PER_FIGURE)]
    for index, chunk in enumerate(chunks):
        part = f" (part {index + 1} of {len(chunks)})" if len(chunks) > 1 else ""
        book.figure(
            f"{prefix}mfu" + (f"-{index + 1}" if index else ""),
            "mfu",
            partial(drawn, data, chunk),
            part=part,
            row="One row is one training, the most efficient first"
            if drawn is draw
            else "One row is a device, backend and precision, one dot a training",
            lacking=lacking_text,
        )


def efficiencies(data: Data, rows: Sequence[Row]) -> list[Efficiency]:
    """The efficiency of each training that has a rate to be compared with."""
    fastest, results = best_products(data), []
    for row in rows:
        rate, step = words.number(row["flop_per_s"]), Step.of(row)
        peak, product = data.peak_flop_per_s(row), fastest.get(product_key(row))
        if not rate or not (peak or product):
            continue
        low, high = (step.middle / step.high, step.middle / step.low) if step else (1.0, 1.0)
        results.append(
            Efficiency(
                row,
                rate / peak if peak else None,
                rate / product if product else None,
                low,
                high,
                product,
                peak,
            )
        )
    return results


def _grouped(trainings: Sequence[Efficiency]) -> list[list[Efficiency]]:
    """Trainings by device, backend and precision."""
    groups: dict[tuple, list[Efficiency]] = {}
    for training in trainings:
        row = training.row
        groups.setdefault((row["device"], row["backend"], row["precision"]), []).append(training)
    return list(groups.values())


# -- figures -----------------------------------------------------------------------------------


def _name(data: Data, row: Row, devices: int, narrow: bool) -> str:
    where = f"{row['device']} · " if devices > 1 else ""
    backend, _, rest = label(row).partition(" · ")
    first = f"{where}{model(row)} · {backend}"
    return f"{first}\n{rest}" if narrow else f"{first} · {rest}"


def _entries(trainings: Sequence[Efficiency], grouped: bool) -> list[style.Entry]:
    rows = [training.row for training in trainings]
    product = (
        style.sample("o", color=style.MUTED, markersize=3.2)
        if grouped
        else style.swatch(style.shade("grey", 60))
    )
    entries = [*style.backends(rows, 3.2)]
    if any(training.of_product is not None for training in trainings):
        entries.append((product, "of the best measured product"))
    if any(training.of_sheet is not None for training in trainings):
        entries.append(
            (
                style.sample(
                    "D",
                    color=style.INK,
                    markersize=3.6,
                    markerfacecolor=style.PAPER,
                    markeredgewidth=0.8,
                ),
                "of the data sheet's peak: MFU",
            )
        )
    origins = {uncertainty.origin(row) for row in rows}
    if not grouped:
        origin_text = " and ".join(sorted(str(origin) for origin in origins if origin))
        entries.append(
            (
                style.sample(None, "-", color=style.INK, linewidth=0.9),
                f"95 % interval, {origin_text}" if origin_text else "95 % interval",
            )
        )
    return entries


def _canvas(
    entries: Sequence[style.Entry], names: Sequence[str], row_in: float, narrow: bool
) -> tuple[Any, Any, float]:
    """(figure, axes with a row for each name, width of the axes in inches)."""
    width = style.width_in(narrow)
    left = min(style.labels_in(names, narrow) + 0.08, width * 0.62)
    head, foot = style.legend_height(entries, width) + 0.08, 0.42
    high = len(names) * row_in
    figure = style.canvas(width, head + high + foot)
    style.legend(figure, entries, 0.0)
    inner = width - left - 0.1
    ax = style.axes(figure, left, head, inner, high)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_yticks(range(len(names)), names)
    size = style.SMALL_PT if narrow else style.TEXT_PT
    ax.tick_params(axis="y", length=0, labelsize=size, labelcolor=style.INK)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x")
    ax.set_xlabel("share of the rate, %", size=style.SMALL_PT)
    return figure, ax, inner


def draw(data: Data, rows: Sequence[Sequence[Efficiency]], narrow: bool) -> Any:
    """A bar for each training, its share of the best product; a diamond for its MFU."""
    trainings = [row[0] for row in rows]
    devices = len({training.row["device"] for training in trainings})
    names = [_name(data, training.row, devices, narrow) for training in trainings]
    figure, ax, wide = _canvas(
        _entries(trainings, False), names, NARROW_ROW_IN if narrow else ROW_IN, narrow
    )
    reach, size = 0.0, style.SMALL_PT - (0.8 if narrow else 0.0)
    for y, training in enumerate(trainings):
        ends = [share for share in (training.of_product, training.of_sheet) if share is not None]
        far = max(ends) * training.high
        lines: list[Any] = []
        if training.of_product is not None:
            bar = ax.barh([y], [training.of_product], height=0.62, color=style.colour(training.row))
            lines += [bar, *_interval(ax, y, training, training.of_product)]
        if training.of_sheet is not None:
            lines += _interval(ax, y, training, training.of_sheet)
            lines += ax.plot(
                [training.of_sheet],
                [y],
                "D",
                color=style.INK,
                markersize=3.6,
                markerfacecolor=style.PAPER,
                markeredgewidth=0.8,
            )
        number = training.of_product if training.of_product is not None else training.of_sheet
        bar_label = words.percent(number or 0.0)
        flop_per_s = training.product or training.sheet or 0.0
        rate_text = f"of {words.scaled(flop_per_s, 'FLOP/s')}"
        bar_label = f"{bar_label}\n{rate_text}" if narrow else f"{bar_label} {rate_text}"
        text = ax.annotate(
            bar_label,
            (far, y),
            (3, 0),
            va="center",
            textcoords="offset points",
            size=size,
            linespacing=1.15,
        )
        marks.tag([lines, text], training.row, training.hover_text)
        room = style.text_in(f" {rate_text if narrow else bar_label}", size) / wide
        reach = max(reach, far / (1 - min(room, 0.8)))
    ax.set_xlim(0, reach or 1)
    style.plain_ticks(ax.xaxis, 5, 0.01)
    return figure


def _interval(ax: Any, y: int, training: Efficiency, share: float) -> list[Any]:
    return list(
        ax.plot(
            [share * training.low, share * training.high], [y, y], color=style.INK, linewidth=0.9
        )
    )


def draw_grouped(data: Data, rows: Sequence[Sequence[Efficiency]], narrow: bool) -> Any:
    """A row for each device, backend and precision: filled dots by product, diamonds MFU."""
    trainings = [training for row in rows for training in row]
    names = []
    for group in rows:
        row = group[0].row
        first = f"{row['device']} · {row['backend']}"
        names.append(f"{first}\n{row['precision']}" if narrow else f"{first} · {row['precision']}")
    height = NARROW_ROW_IN if narrow else GROUPED_ROW_IN
    figure, ax, _ = _canvas(_entries(trainings, True), names, height, narrow)
    for y, group in enumerate(rows):
        for training in group:
            drawn: list[Any] = []
            if training.of_product is not None:
                drawn += ax.plot(
                    [training.of_product],
                    [y],
                    "o",
                    color=style.colour(training.row),
                    markersize=3.2,
                )
            if training.of_sheet is not None:
                drawn += ax.plot(
                    [training.of_sheet],
                    [y],
                    "D",
                    color=style.INK,
                    markersize=3.6,
                    markerfacecolor=style.PAPER,
                    markeredgewidth=0.8,
                )
            marks.tag(drawn, training.row, training.hover_text)
    shares = [
        s
        for training in trainings
        for s in (training.of_product, training.of_sheet)
        if s is not None
    ]
    ax.set_xlim(0, max(shares) * 1.05)
    style.plain_ticks(ax.xaxis, 5, 0.01)
    return figure
