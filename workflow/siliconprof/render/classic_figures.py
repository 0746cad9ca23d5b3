"""Figures of seed 004's networks: epochs, throughput, accuracy, and a panel for every two sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from siliconprof import words
from siliconprof.render import hover, marks, ratios, style
from siliconprof.render.classic_tables import CHANCE, accuracy_interval, trained_steps
from siliconprof.render.data import Data
from siliconprof.render.ratios import Case, Pair, Ratio, epoch, side, side_name, times
from siliconprof.render.variants import Row, order, precision

Cases = Mapping[Case, Sequence[Row]]
LINE_IN, GAP_IN = 0.13, 0.09  # of one side within a case, and between cases
PAIR_ROW_IN = 0.19  # of a case where a panel shows one pair alone
HOLLOW = {"markerfacecolor": style.PAPER, "markeredgewidth": 0.9}
LINES = {
    "products": ("by the fastest products measured", (1, 1)),
    "sheets": ("by the data sheets", (3, 2)),
}


def order_of_side(point: Row) -> tuple:
    """Where a point's device, backend and precision stand on the page, whatever its network."""
    return order(point | {"module": "", "workload": "", "point": 0})


# -- rows of cases ---------------------------------------------------------------------------------


class Kind(NamedTuple):
    """How one device, backend and precision is drawn."""

    name: str
    colour: str
    marker: str


def kinds(cases: Cases) -> dict[tuple, Kind]:
    """(side, precision) -> how it is drawn; a marker for each device, a colour for each backend."""
    points = sorted((p for group in cases.values() for p in group), key=order_of_side)
    devices = list(dict.fromkeys(side(point)[:3] for point in points))
    precisions = {precision(point) for point in points}
    kind_of = {}
    for point in points:
        name = side_name(point) if len(devices) > 1 else words.backend_name(point)
        name += f", {precision(point)}" if len(precisions) > 1 else ""
        kind_of[_kind(point)] = Kind(name, style.colour(point), style.device_mark(point["device"]))
    return kind_of


def _kind(point: Row) -> tuple:
    return (*side(point), precision(point))


def _samples(kind_of: Mapping[tuple, Kind], hollow: bool = False) -> list[style.Entry]:
    """Legend entries."""
    entries = [
        (style.sample(kind.marker, color=kind.colour, markersize=3.4), kind.name)
        for kind in kind_of.values()
    ]
    if hollow:
        sample = style.sample("o", color=style.MUTED, markersize=4, **HOLLOW)
        entries.append((sample, "hollow: extrapolated epoch"))
    return entries


class Rows:
    """Axes with a row for each case, and in it a line for each side."""

    def __init__(self, cases: Sequence[Case], lines: int) -> None:
        self.cases, self.lines = list(cases), lines
        self.pitch = lines * LINE_IN + GAP_IN

    @property
    def height(self) -> float:
        """Inches."""
        return len(self.cases) * self.pitch

    def left(self) -> float:
        """Inches that the labels need."""
        return style.labels_in([str(case) for case in self.cases]) + 0.1

    def frame(self, ax: Any, rows: Sequence[Sequence[Row]], labels: bool = True) -> None:
        """Labels and lines between the rows; y is in inches.

        Args:
            rows: what each case shows.
        """
        ax.set_ylim(self.height, 0)
        middles = [(i + 0.5) * self.pitch for i in range(len(self.cases))]
        ax.set_yticks(middles, [str(case) for case in self.cases] if labels else [])
        ax.tick_params(axis="y", length=0, labelsize=style.TEXT_PT, labelcolor=style.INK)
        ax.spines["left"].set_visible(False)
        ax.grid(axis="x")
        marks.tag_labels(ax.yaxis, rows)
        for i in range(1, len(self.cases)):
            same = self.cases[i].network == self.cases[i - 1].network
            ink = style.RULE if same else style.FAINT
            ax.axhline(i * self.pitch, color=ink, linewidth=0.4 if same else 0.7)

    def at(self, case: Case, line: int) -> float:
        """Where a side of a case stands, in inches."""
        return self.cases.index(case) * self.pitch + GAP_IN / 2 + (line + 0.5) * LINE_IN


def _canvas(cases: Cases, narrow: bool, hollow: bool) -> tuple[Any, Any, Rows, dict, float]:
    """A figure of rows: itself, its axes, the rows, how sides are drawn, the axes' width."""
    kind_of = kinds(cases)
    width = style.width_in(narrow)
    rows = Rows(list(cases), len(kind_of))
    entries = _samples(kind_of, hollow)
    head = style.legend_height(entries, width) + 0.12
    figure = style.canvas(width, head + rows.height + 0.42)
    style.legend(figure, entries, 0.0)
    inner = width - rows.left() - 0.1
    ax = style.axes(figure, rows.left(), head, inner, rows.height)
    rows.frame(ax, list(cases.values()))
    return figure, ax, rows, kind_of, inner


def draw_epochs(cases: Cases, narrow: bool) -> Any:
    """Epochs on a log axis: a light bar from the training's time to the dot, the whole epoch."""
    drawn = [(case, p, step) for case, group in cases.items() for p in group if (step := epoch(p))]
    hollow = any(ratios.extrapolated(point) for _, point, _ in drawn)
    figure, ax, rows, kind_of, inner = _canvas(cases, narrow, hollow)
    lines = list(kind_of)
    lows = [words.number(p.get("epoch_train_s")) or step.low for _, p, step in drawn]
    low = 0.8 * min([*lows, *(step.low for _, _, step in drawn)])
    most = max(step.high for _, _, step in drawn)
    # the labels stand right of the dots
    room = max(style.text_in(words.duration(s.middle) + "   ", style.SMALL_PT) for *_, s in drawn)
    high = low * (1.1 * most / low) ** (1 / (1 - room / inner))
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    for case, point, step in drawn:
        kind, at = kind_of[_kind(point)], rows.at(case, lines.index(_kind(point)))
        train = words.number(point.get("epoch_train_s"))
        hollow = ratios.extrapolated(point)
        if train:
            bar = ax.plot(
                [train, step.middle],
                [at, at],
                color=kind.colour,
                linewidth=3.2,
                alpha=0.35,
                solid_capstyle="butt",
            )
            marks.tag(
                bar,
                point,
                f"{case}, {kind.name}: validation "
                f"{hover.seconds(step.middle - train)} of the epoch",
            )
        marks.tag(ax.plot([step.low, step.high], [at, at], color=kind.colour, linewidth=0.9), point)
        dot = ax.plot(
            [step.middle],
            [at],
            kind.marker,
            color=kind.colour,
            markersize=3.8,
            **(HOLLOW if hollow else {}),
        )
        text = hover.seconds(step.middle, step.low, step.high)
        marks.tag(dot, point, f"{case}, {kind.name}: epoch {text}" + ", extrapolated" * hollow)
        marks.tag(
            ax.annotate(
                words.duration(step.middle),
                (max(step.high, step.middle), at),
                (4, 0),
                textcoords="offset points",
                va="center",
                size=style.SMALL_PT,
            ),
            point,
        )
    _ticks(ax, low, high)
    ax.set_xlabel("one epoch with validation / s", size=style.SMALL_PT)
    return figure


def _ticks(ax: Any, low: float, high: float) -> None:
    style.log_ticks(ax.xaxis, low, high)
    if high < 4 * low:  # decades and their halves would be too few
        style.plain_ticks(ax.xaxis, 4)


def draw_accuracy(cases: Cases, narrow: bool) -> Any:
    """Test accuracy with its 95 % interval; chance as a line."""
    figure, ax, rows, kind_of, inner = _canvas(cases, narrow, False)
    lines = list(kind_of)
    texts = []
    for case, group in cases.items():
        for point in group:
            share = words.number(point.get("test_accuracy"))
            if share is None:
                continue
            kind, at = kind_of[_kind(point)], rows.at(case, lines.index(_kind(point)))
            ends = accuracy_interval(point)
            if ends:
                marks.tag(ax.plot(ends, [at, at], color=kind.colour, linewidth=0.9), point)
            dot = ax.plot([share], [at], kind.marker, color=kind.colour, markersize=3.6)
            least, most = ends or (None, None)
            text = hover.spanned(share, least, most, "%", 0.01)
            marks.tag(dot, point, f"{case}, {kind.name}: test accuracy {text}")
            steps = trained_steps(point)
            label = words.percent(share) + (f", {words.count(steps, 'step')}" if steps else "")
            texts.append((at, max(share, ends[1] if ends else share), label, point))
    room = max(style.text_in(label + "  ", style.SMALL_PT) for _, _, label, _ in texts)
    high = max(end for _, end, _, _ in texts) / (1 - min(room / inner, 0.6))
    for at, end, label, point in texts:
        marks.tag(
            ax.annotate(
                label,
                (end, at),
                (4, 0),
                textcoords="offset points",
                va="center",
                size=style.SMALL_PT,
            ),
            point,
        )
    ax.axvline(CHANCE, color=style.INK, linewidth=0.7, dashes=(3, 2))
    ax.text(CHANCE, 0, " chance", size=style.SMALL_PT, va="bottom")
    ax.set_xlim(0, max(high, 1.0))
    ax.xaxis.set_major_locator(style.FixedLocator([0, 0.2, 0.4, 0.6, 0.8, 1.0]))
    ax.xaxis.set_major_formatter(style.FuncFormatter(lambda value, _: f"{100 * value:.0f}"))
    ax.set_xlabel("test images classified rightly / %", size=style.SMALL_PT)
    return figure


# -- throughput ------------------------------------------------------------------------------------


def draw_rates(cases: Cases, narrow: bool) -> Any:
    """Samples per second of the unsplit step against the batch size; a panel for each network."""
    kind_of = kinds(cases)
    names = list(dict.fromkeys(case.network for case in cases))
    batches = sorted({case.batch_size for case in cases})
    width, title, height, foot, left = style.width_in(narrow), 0.24, 1.55, 0.42, 0.5
    columns = 1 if narrow else min(3, len(names))
    entries = _samples(kind_of)
    head = style.legend_height(entries, width) + 0.06
    count = -(-len(names) // columns)
    figure = style.canvas(width, head + count * (title + height + foot))
    style.legend(figure, entries, 0.0)
    panel = width / columns - left - 0.12
    for index, name in enumerate(names):
        row, column = divmod(index, columns)
        top, x = head + row * (title + height + foot), left + column * width / columns
        style.write(figure, x, top + title / 2, name, weight="bold", va="center")
        ax = style.axes(figure, x, top + title, panel, height)
        _rates(ax, cases, name, kind_of, batches)
        if column == 0:
            ax.set_ylabel("samples per second", size=style.SMALL_PT)
    return figure


def _rates(ax: Any, cases: Cases, name: str, kind_of: Mapping, batches: Sequence[int]) -> None:
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ends: list[float] = []
    for key, kind in kind_of.items():
        line, rows = [], []
        for case, group in cases.items():
            for point in group:
                rate = words.number(point["samples_per_s"])
                if case.network == name and _kind(point) == key and rate:
                    low, high = _rate_ends(point, rate)
                    text = hover.spanned(rate, low, high, "samples/s")
                    marks.tag(
                        [
                            ax.plot(
                                [case.batch_size] * 2, [low, high], color=kind.colour, linewidth=0.9
                            ),
                            ax.plot(
                                [case.batch_size],
                                [rate],
                                kind.marker,
                                color=kind.colour,
                                markersize=3.4,
                                zorder=3,
                            ),
                        ],
                        point,
                        f"{case}, {kind.name}: {text}",
                    )
                    line.append((case.batch_size, rate))
                    rows.append(point)
                    ends += [low, high]
        xs, ys = [x for x, _ in line], [y for _, y in line]
        marks.tag(ax.plot(xs, ys, color=kind.colour, linewidth=1.0), rows)
    margin = 1.6 if len(batches) == 1 else (batches[-1] / batches[0]) ** 0.06
    ax.set_xlim(batches[0] / margin, batches[-1] * margin)
    if ends:
        low, high = 0.7 * min(ends), 1.4 * max(ends)
        ax.set_ylim(low, high)
        style.log_ticks(ax.yaxis, low, high)
    ax.xaxis.set_major_locator(style.FixedLocator(batches))
    ax.xaxis.set_minor_locator(style.FixedLocator([]))
    ax.xaxis.set_major_formatter(style.FuncFormatter(lambda value, _: f"{value:.0f}"))
    ax.grid(axis="y")
    ax.set_xlabel("batch size", size=style.SMALL_PT)


def _rate_ends(point: Row, rate: float) -> tuple[float, float]:
    """The 95 % interval of a throughput, from that of the unsplit step."""
    middle, low, high = (
        words.number(point[f"unsplit_step_{part}_s"]) for part in ("median", "low", "high")
    )
    return (rate * middle / high, rate * middle / low) if middle and low and high else (rate, rate)


# -- ratios ----------------------------------------------------------------------------------------


def draw_ratios(data: Data, pairs: Sequence[Pair], narrow: bool) -> Any:
    """A panel for each pair: ratios on a log axis, and what matrix products and data sheets say."""
    width = style.width_in(narrow)
    cases = list(dict.fromkeys(ratio.case for pair in pairs for ratio in pair.ratios))
    columns = 1 if narrow or len(pairs) == 1 else 2
    hollow = any(ratio.extrapolated for pair in pairs for ratio in pair.ratios)
    predictions = [(ratios.by_products(data, pair), ratios.by_sheets(data, pair)) for pair in pairs]
    entries: list[style.Entry] = [
        (style.sample("o", color=style.INK, markersize=3.6), "ratio of epochs")
    ]
    if hollow:
        sample = style.sample("o", color=style.MUTED, markersize=4, **HOLLOW)
        entries.append((sample, "hollow: an extrapolated epoch in it"))
    for index, (name, dash) in enumerate(LINES.values()):
        if any(pair[index].ratio for pair in predictions):
            entries.append((style.sample(None, "-", color=style.MUTED, dashes=dash), name))
    head, title, foot = style.legend_height(entries, width) + 0.05, 0.24, 0.42
    rows = Rows(cases, 1)
    rows.pitch = PAIR_ROW_IN
    block = title + rows.height + foot
    figure = style.canvas(width, head + -(-len(pairs) // columns) * block)
    style.legend(figure, entries, 0.0)
    left, gap = rows.left(), 0.3
    panel = (width - left - 0.12 - gap * (columns - 1)) / columns
    for index, (pair, predicted) in enumerate(zip(pairs, predictions, strict=True)):
        row, column = divmod(index, columns)
        top, x = head + row * block, left + column * (panel + gap)
        room = width if narrow else panel + 0.2
        name = words.shortened(pair.name, int(room / style.text_in("x")))
        at = x if column else (0 if narrow else x)
        points = [point for ratio in pair.ratios for point in ratio.rows]
        marks.tag(
            style.write(figure, at, top + title / 2, name, weight="bold", va="center"), points
        )
        ax = style.axes(figure, x, top + title, panel, rows.height)
        shown = {ratio.case: ratio.rows for ratio in pair.ratios}
        rows.frame(ax, [shown.get(case, ()) for case in rows.cases], labels=column == 0)
        _panel(ax, pair, predicted, rows, panel)
    return figure


def _panel(
    ax: Any, pair: Pair, predicted: Sequence[ratios.Foretold], rows: Rows, width: float
) -> None:
    """Dots of one pair."""
    limits = [prediction.ratio for prediction in predicted if prediction.ratio]
    low = 0.8 * min([1.0, *limits, *(ratio.low for ratio in pair.ratios)])
    most = max([1.0, *limits, *(ratio.high for ratio in pair.ratios)])
    room = style.text_in("00.0 × ", style.SMALL_PT) / width
    high = low * (1.15 * most / low) ** (1 / (1 - min(room, 0.5)))
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    ax.axvline(1, color=style.INK, linewidth=0.8)
    for prediction, (_, dash) in zip(predicted, LINES.values(), strict=True):
        if prediction.ratio:
            ax.axvline(prediction.ratio, color=style.MUTED, linewidth=0.9, dashes=dash)
    for ratio in pair.ratios:
        at = (rows.cases.index(ratio.case) + 0.5) * rows.pitch
        _dot(ax, ratio, at)
    _ticks(ax, low, high)
    ax.set_xlabel("times as fast", size=style.SMALL_PT)


def _dot(ax: Any, ratio: Ratio, at: float) -> None:
    ink = style.colour((ratio.a if ratio.middle >= 1 else ratio.b).row)  # the faster side's
    marks.tag(ax.plot([ratio.low, ratio.high], [at, at], color=ink, linewidth=0.9), ratio.rows)
    face = HOLLOW if ratio.extrapolated else {}
    dot = ax.plot([ratio.middle], [at], "o", color=ink, markersize=4, **face)
    text = hover.spanned(ratio.middle, ratio.low, ratio.high, "×")
    marks.tag(
        dot,
        ratio.rows,
        f"{ratio.case}: {side_name(ratio.a.row)} trains {text} as fast as "
        f"{side_name(ratio.b.row)}" + ", extrapolated" * ratio.extrapolated,
    )
    marks.tag(
        ax.annotate(
            times(ratio.middle),
            (ratio.high, at),
            (4, 0),
            va="center",
            textcoords="offset points",
            size=style.SMALL_PT,
        ),
        ratio.rows,
    )
