"""Operations over a sweep of shapes: one figure and one table for products, matvecs and vjps.

An operation is held against what limits it: a product against the fastest product, a
matrix-vector product, which uses every value once, against the memory's bandwidth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log10
from typing import Any, NamedTuple

from siliconprof import words
from siliconprof.render import hover, style, uncertainty
from siliconprof.render.data import Data
from siliconprof.render.marks import tag, tag_labels
from siliconprof.render.tables import Column, Table, Value, integer, missing, quantity, ranged
from siliconprof.render.variants import PRECISION_ORDER, Row

GIGA = 1e9
SHAPES_PER_FIGURE = 24
UNTIMED = "nothing was timed"
COLUMNS_OF_UNIT = {"GFLOP/s": ("flops", "flop_per_s"), "GB/s": ("bytes", "bytes_per_s")}


class Rate(NamedTuple):
    """A throughput with the ends of its 95 % interval, per second; None where there is none."""

    middle: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Limit:
    """What bounds an operation."""

    unit: str  # GFLOP/s or GB/s
    ceiling: str  # the line of ceilings.csv
    label: str  # in a figure's legend
    sheet: str  # what the data sheet's line is called
    share: str  # how a share of it is called

    @property
    def per_second(self) -> str:
        """The unit without its prefix."""
        return self.unit.removeprefix("G")

    @property
    def amount(self) -> str:
        """The column of the work."""
        return COLUMNS_OF_UNIT[self.unit][0]

    @property
    def rate(self) -> str:
        """The column of the throughput."""
        return COLUMNS_OF_UNIT[self.unit][1]


PRODUCTS = Limit("GFLOP/s", "matmul", "fastest product measured here", "peak", "of peak")
MEMORY = Limit(
    "GB/s", "memory_bandwidth", "memory bandwidth measured here", "bandwidth", "of data sheet"
)


@dataclass(frozen=True)
class Mark:
    """One way in which a shape was measured, as it is drawn."""

    name: str
    filled: bool
    rate: Callable[[Row], Rate]


def shape_key(point: Row) -> tuple:
    """Shapes in order of their work."""
    batch, m, k, n = (int(point[name]) for name in ("batch", "m", "k", "n"))
    return (batch * m * k * n, batch, m, k, n)


def shape_name(point: Row) -> str:
    """`8 × 128³`; of a matrix-vector product the matrix alone."""
    if point["module"] != "matvec":
        return words.shape(point)
    batch, m, k = (int(point[name]) for name in ("batch", "m", "k"))
    matrix = f"{m}²" if m == k else f"{m} × {k}"
    if batch == 1:
        return matrix
    return f"{batch} × {matrix if m == k else f'({matrix})'}"


def median_rate(limit: Limit, point: Row) -> Rate:
    """From the median of single calls."""
    amount, low, high = (
        words.number(point[name]) for name in (limit.amount, "step_low_s", "step_high_s")
    )
    middle = words.number(point[limit.rate])
    if not (middle and amount and low and high):
        return Rate(middle)
    return Rate(middle, amount / high, amount / low)


def burst_rate(limit: Limit, point: Row) -> Rate:
    """From the mean of launches in a row."""
    amount, seconds = words.number(point[limit.amount]), words.number(point["burst_mean_s"])
    return Rate(amount / seconds if amount and seconds else None)


def sheet_value(data: Data, limit: Limit, row: Row) -> float | None:
    """The data sheet's figure for what bounds a row; None when there is none."""
    line = data.ceiling(row, limit.ceiling)
    return words.number(line["datasheet_value"]) if line else None


def own_value(data: Data, limit: Limit, row: Row) -> float | None:
    """Our own ceiling for what bounds a row; None when there is none."""
    line = data.ceiling(row, limit.ceiling)
    return words.number(line["value"]) if line else None


def parts(points: Sequence[Row]) -> list[list[tuple]]:
    """Shapes in portions that a page can show."""
    shapes = sorted({shape_key(point) for point in points})
    return [shapes[i : i + SHAPES_PER_FIGURE] for i in range(0, len(shapes), SHAPES_PER_FIGURE)]


# -- figure ------------------------------------------------------------------------------------


def is_timed(point: Row, marks: Sequence[Mark]) -> bool:
    """Whether any mark of a figure has a place for a point; a record may lack its times."""
    return any(rate for mark in marks for rate in mark.rate(point))


def draw(
    data: Data,
    points: Sequence[Row],
    shapes: Sequence[tuple],
    limit: Limit,
    marks: Sequence[Mark],
    with_own: bool,
    narrow: bool,
) -> Any:
    """Shapes from small to large downwards, throughput on a log axis, one panel a precision.

    Args:
        with_own: whether our own ceiling of each backend is drawn.
    """
    precisions = [p for p in PRECISION_ORDER if any(point["precision"] == p for point in points)]
    backends = list(dict.fromkeys(point["backend"] for point in points))
    names = {shape_key(point): shape_name(point) for point in points}
    sheets = {p: sheet_value(data, limit, {**points[0], "precision": p}) for p in precisions}
    owns = _own_ceilings(data, points, limit) if with_own else {}
    rates = [r for point in points for mark in marks for r in mark.rate(point) if r]
    low = 10 ** (log10(min(rates)) - 0.12)
    top = 10 ** (log10(max([*rates, *owns.values()])) + 0.12)
    top = max([top, *(1.15 * value for value in sheets.values() if value)])
    width = style.width_in(narrow)
    left = max(map(style.text_in, names.values())) + 0.1
    height = len(shapes) * (0.12 + 0.1 * len(backends))
    title, foot, gap = 0.24, 0.4, 0.16
    columns = 1 if narrow else min(4, len(precisions))
    rows = -(-len(precisions) // columns)
    entries = [*style.backends(points, 3.2), *((_sample(mark), mark.name) for mark in marks)]
    if owns:
        entries.append((style.sample(None, "-", color=style.MUTED, dashes=(1, 1)), limit.label))
    head = style.legend_height(entries, width) + 0.08
    figure = style.canvas(width, head + rows * (title + height + foot))
    style.legend(figure, entries, 0.0)
    panel = (width - left - 0.1 - gap * (columns - 1)) / columns
    for index, precision in enumerate(precisions):
        row, column = divmod(index, columns)
        top_in = head + row * (title + height + foot)
        x = left + column * (panel + gap)
        style.write(figure, x, top_in + title / 2, precision, weight="bold", va="center")
        ax = style.axes(figure, x, top_in + title, panel, height)
        _frame(ax, len(shapes))
        here = {
            backend: owns[precision, backend]
            for backend in backends
            if (precision, backend) in owns
        }
        for backend, value in here.items():
            shared = len(backends) > 1 and len(set(here.values())) == 1  # of the device, then
            ink = style.MUTED if shared else style.shade(backend)
            limited = [p for p in points if (p["precision"], p["backend"]) == (precision, backend)]
            text = f"{limit.label}, {backend} {precision}: {hover.rate(value, limit.per_second)}"
            line = ax.axvline(value, color=ink, linewidth=0.9, dashes=(1, 1))
            tag(line, limited, text)
        for point in points:
            if point["precision"] == precision and shape_key(point) in shapes:
                place = (backends.index(point["backend"]) + 0.5) / len(backends) - 0.5
                at = shapes.index(shape_key(point)) + 0.62 * place
                _point(ax, at, point, limit, marks)
        ax.set_yticks(range(len(shapes)), [names[s] for s in shapes] if column == 0 else [])
        tag_labels(ax.yaxis, [[p for p in points if shape_key(p) == s] for s in shapes])
        ax.set_xlim(low, top)
        style.log_ticks(ax.xaxis, low, top * (4 if columns > 2 else 1))
        if top < 4 * low:  # decades and their halves would be too few
            ax.xaxis.set_major_locator(style.MaxNLocator(3))
        ax.xaxis.set_major_formatter(
            style.FuncFormatter(lambda value, _: words.significant(value / GIGA, 1))
        )
        sheet = sheets[precision]
        if sheet:
            ax.axvline(sheet, color=style.INK, linewidth=0.7, dashes=(3, 2))
            ax.text(sheet, -0.55, f"{limit.sheet} ", ha="right", va="bottom", size=style.SMALL_PT)
        ax.set_xlabel(limit.unit, size=style.SMALL_PT)
    return figure


def _own_ceilings(
    data: Data, points: Sequence[Row], limit: Limit
) -> Mapping[tuple[str, str], float]:
    """(precision, backend) -> our own ceiling."""
    ceilings = {(p["precision"], p["backend"]): own_value(data, limit, p) for p in points}
    return {where: value for where, value in ceilings.items() if value}


def _sample(mark: Mark) -> Any:
    face = {} if mark.filled else {"markerfacecolor": "none", "markeredgewidth": 0.8}
    return style.sample("o", color=style.MUTED, markersize=3.2 if mark.filled else 4.2, **face)


def _frame(ax: Any, n_shapes: int) -> None:
    ax.set_xscale("log")
    ax.set_ylim(n_shapes - 0.5, -0.5)
    ax.tick_params(axis="y", length=0, labelsize=style.TEXT_PT, labelcolor=style.INK)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x")
    for y in range(1, n_shapes):
        ax.axhline(y - 0.5, color=style.RULE, linewidth=0.4)


def _point(ax: Any, at: float, point: Row, limit: Limit, marks: Sequence[Mark]) -> None:
    ink = style.shade(point["backend"])
    for mark in marks:
        rate = mark.rate(point)
        if not rate.middle:
            continue
        if rate.low and rate.high:
            line = ax.plot([rate.low, rate.high], [at, at], color=ink, linewidth=0.9, zorder=2)
            tag(line, point)
        if mark.filled:
            dot = ax.plot([rate.middle], [at], "o", color=ink, markersize=3.2, zorder=4)
        else:
            face = style.PAPER if rate.low else "none"  # hides an interval shorter than itself
            dot = ax.plot(
                [rate.middle],
                [at],
                "o",
                markersize=4.6,
                markerfacecolor=face,
                markeredgewidth=0.8,
                color=ink,
                zorder=3,
            )
        what = hover.interval_name(point, "step")
        text = hover.rate(rate.middle, limit.per_second, rate.low, rate.high, what)
        name = mark.name.split(",")[0]
        whose = f"{shape_name(point)}, {words.backend_name(point)} {point['precision']}"
        tag(dot, point, f"{whose}: {name} {text}")


# -- table -------------------------------------------------------------------------------------


def table(data: Data, points: Sequence[Row], limit: Limit, apart: str = "") -> Table:
    """Every point: times, both throughputs, shares of both ceilings, and how exact the result was.

    Args:
        apart: a parameter beside the shape that tells points apart, such as `cache`.
    """
    other = next(unit for unit in COLUMNS_OF_UNIT if unit != limit.unit)
    result = Table(
        [
            Column("Shape"),
            Column("Device", folds=True),
            Column("Backend"),
            Column("Precision"),
            *([Column(apart.capitalize())] if apart else []),
            Column("median", "ms", True, "each call synchronised; 95 % interval below"),
            Column("n", "", True, "calls timed"),
            Column("median", limit.unit, True, "from the median; 95 % interval below"),
            Column("burst mean", limit.unit, True, "launches in a row, synchronised once"),
            Column("median", other, True, "the same calls, by the other measure of work"),
            Column("of own ceiling", "%", True, f"median over the {limit.label}"),
            Column(limit.share, "%", True, f"median over the data sheet's {limit.sheet}"),
            Column("result error", "", True, "relative RMS error against float64"),
            Column("95 % interval", help=uncertainty.HELP, folds=True),
        ]
    )
    for point in points:
        error = words.number(point["result_error"])
        own, sheet = shares(data, limit, point)
        result.add(
            Value(shape_name(point), sort=float(shape_key(point)[0])),
            point["device"],
            words.backend_name(point),
            point["precision"],
            *([point[apart]] if apart else []),
            ranged(point, "step", 1e-3, UNTIMED, "low", "high", 3),
            integer(point["step_n"], UNTIMED),
            with_interval(median_rate(limit, point)),
            _burst(limit, point),
            quantity(point[COLUMNS_OF_UNIT[other][1]], UNTIMED, GIGA),
            own,
            sheet,
            Value(words.scientific(error), sort=error)
            if error is not None
            else missing("not recorded"),
            uncertainty.value(point),
            of=point,
        )
    return result


def with_interval(rate: Rate) -> Value:
    """A throughput in 10⁹ a second, its interval below."""
    value = quantity(rate.middle, UNTIMED, GIGA)
    if value.reason or not (rate.low and rate.high):
        return value
    ends = (words.significant(end / GIGA) for end in (rate.low, rate.high))
    return Value(value.text, value.sort, "–".join(ends))


def shares(data: Data, limit: Limit, point: Row) -> tuple[Value, Value]:
    """A point's share of our own ceiling and of the data sheet's figure.

    What fits a cache has no share of the memory's bandwidth.
    """
    line, check = data.ceiling(point, limit.ceiling), data.check(point, limit.rate)
    rate = words.number(point[limit.rate])
    if line is None or rate is None:
        none = missing("no ceiling of this device and backend" if rate else UNTIMED)
        return none, none
    if check is not None and check["compared_value"] is None:
        why = missing("the operands fit the last-level cache, which is faster than memory")
        return why, why
    return (
        _share(rate, line, "value", f"no ceiling of ours: {line['reason']}"),
        _share(rate, line, "datasheet_value", f"no data sheet: {line['datasheet_reason']}"),
    )


def _share(rate: float, line: Row, name: str, reason: str) -> Value:
    of = words.number(line[name])
    return quantity(rate / of, reason, 0.01) if of else missing(reason)


def _burst(limit: Limit, point: Row) -> Value:
    """The burst's throughput, or why there is none, which leaves out the estimate of seconds."""
    why = point["burst_reason"] or "not recorded"
    value = quantity(
        burst_rate(limit, point).middle,
        "no burst: " + re.sub(r"about [\d.]+ s", "too long", why),
        GIGA,
    )
    return replace(value, title=why) if value.reason else value
