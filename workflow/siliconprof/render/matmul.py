"""Matrix products: throughput by shape, backend and precision, two ways of timing side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import log10
from typing import Any

from siliconprof.render import style, words
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, integer, missing, quantity, ranged
from siliconprof.render.variants import PRECISION_ORDER, Row

GIGA = 1e9
SHAPES_PER_FIGURE = 24


def shape_key(point: Row) -> tuple:
    """Shapes in order of their work."""
    batch, m, k, n = (int(point[name]) for name in ("batch", "m", "k", "n"))
    return (batch * m * k * n, batch, m, k, n)


def add(data: Data, book: Book, prefix: str = "") -> None:
    """A figure for each device and workload, and one table."""
    points = data.of_module("matmul")
    if not points:
        book.note(why_none(data, "matmul", "matrix product"))
        return
    groups: dict[tuple[str, str], list[Row]] = {}
    for point in points:
        groups.setdefault((point["device"], point["workload"]), []).append(point)
    for (device, workload), group in groups.items():
        shapes = sorted({shape_key(point) for point in group})
        parts = [shapes[i : i + SHAPES_PER_FIGURE]
                 for i in range(0, len(shapes), SHAPES_PER_FIGURE)]  # fmt: skip
        for index, part in enumerate(parts):
            chosen = [point for point in group if shape_key(point) in part]
            book.figure(
                f"{prefix}matmul-{workload}-{device}" + (f"-{index + 1}" if index else ""),
                "matmul",
                partial(draw, data, chosen, part),
                workload=workload, device=data.device_name(group[0]),
            )  # fmt: skip
    book.table(f"{prefix}matmul", "matmul", table(data, points))


def why_none(data: Data, module: str, what: str) -> str:
    """One sentence for an absent figure."""
    cells = [cell for cell in data.cells if cell["module"] == module]
    if not cells:
        return f"No figure: no {what} cell is part of these results."
    reasons = sorted({f"{cell['status']}: {cell['reason']}" for cell in cells})
    return f"No figure: no {what} was measured ({'; '.join(reasons)})."


def interval(point: Row) -> tuple[float | None, float | None, float | None]:
    """Median throughput in FLOP/s and the ends of its 95 % interval."""
    flops, low, high = (
        words.number(point[n]) for n in ("flops", "step_low_s", "step_high_s")
    )  # fmt: skip
    middle = words.number(point["flop_per_s"])
    if not (middle and flops and low and high):
        return middle, None, None
    return middle, flops / high, flops / low


def draw(data: Data, points: Sequence[Row], shapes: Sequence[tuple], narrow: bool) -> Any:
    """Shapes from small to large downwards, throughput on a log axis, one panel a precision."""
    known = [p for p in PRECISION_ORDER if any(point["precision"] == p for point in points)]
    backends = list(dict.fromkeys(point["backend"] for point in points))
    names = {shape_key(point): words.shape(point) for point in points}
    rates = [
        rate for point in points
        for rate in (*interval(point), words.number(point["burst_flop_per_s"])) if rate
    ]  # fmt: skip
    low, top = 10 ** (log10(min(rates)) - 0.12), 10 ** (log10(max(rates)) + 0.12)
    peaks = {p: data.peak_flop_per_s({**points[0], "precision": p}) for p in known}
    top = max([top, *(1.15 * peak for peak in peaks.values() if peak)])
    width = style.width_in(narrow)
    left = max(map(style.text_in, names.values())) + 0.1
    high = len(shapes) * (0.12 + 0.1 * len(backends))
    title, foot, gap = 0.24, 0.4, 0.16
    columns = 1 if narrow else min(4, len(known))
    rows = -(-len(known) // columns)
    head = 0.25 if not narrow else 0.42
    figure = style.canvas(width, head + rows * (title + high + foot))
    style.legend(
        figure,
        [
            *((style.sample("o", color=style.shade(b), markersize=3.2), b) for b in backends),
            (style.sample("o", color=style.MUTED, markersize=3.2), "adaptive median, 95 % interval"),
            (style.sample("o", color=style.MUTED, markerfacecolor="none", markersize=4.2,
                          markeredgewidth=0.8), "mean of a burst"),
        ],
        0.0,
    )  # fmt: skip
    panel = (width - left - 0.1 - gap * (columns - 1)) / columns
    for index, precision in enumerate(known):
        row, column = divmod(index, columns)
        top_in = head + row * (title + high + foot)
        x = left + column * (panel + gap)
        style.write(figure, x, top_in + title / 2, precision, weight="bold", va="center")
        ax = style.axes(figure, x, top_in + title, panel, high)
        _panel(ax, points, precision, shapes, backends)
        ax.set_yticks(range(len(shapes)), [names[s] for s in shapes] if column == 0 else [])
        ax.set_xlim(low, top)
        style.log_ticks(ax.xaxis, low, top * (4 if columns > 2 else 1))
        ax.xaxis.set_major_formatter(
            style.FuncFormatter(lambda value, _: words.significant(value / GIGA, 1))
        )
        peak = peaks[precision]
        if peak:
            ax.axvline(peak, color=style.INK, linewidth=0.7, dashes=(3, 2))
            ax.text(peak, -0.55, "peak ", ha="right", va="bottom", size=style.SMALL_PT)
        ax.set_xlabel("GFLOP/s", size=style.SMALL_PT)
    return figure


def _panel(
    ax: Any, points: Sequence[Row], precision: str, shapes: Sequence[tuple], backends: Sequence[str]
) -> None:
    ax.set_xscale("log")
    ax.set_ylim(len(shapes) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0, labelsize=style.TEXT_PT, labelcolor=style.INK)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x")
    for y in range(1, len(shapes)):
        ax.axhline(y - 0.5, color=style.RULE, linewidth=0.4)
    for point in points:
        if point["precision"] != precision or shape_key(point) not in shapes:
            continue
        middle, low, high = interval(point)
        place = (backends.index(point["backend"]) + 0.5) / len(backends) - 0.5
        at = shapes.index(shape_key(point)) + 0.62 * place
        ink = style.shade(point["backend"])
        if low and high:
            ax.plot([low, high], [at, at], color=ink, linewidth=0.9)
        if middle:
            ax.plot([middle], [at], "o", color=ink, markersize=3.2)
        burst = words.number(point["burst_flop_per_s"])
        if burst:
            ax.plot([burst], [at], "o", markersize=4.6, markerfacecolor="none",
                    markeredgewidth=0.8, color=ink)  # fmt: skip


def _burst(point: Row) -> Value:
    """The burst's throughput; the reason for none is told without its own estimate of seconds."""
    why = point["burst_reason"] or "not recorded"
    value = quantity(
        point["burst_flop_per_s"], "no burst: " + re.sub(r"about [\d.]+ s", "too long", why), GIGA
    )
    return replace(value, title=why) if value.reason else value


def table(data: Data, points: Sequence[Row]) -> Table:
    """Every point: times, both throughputs, and how exact the result was."""
    result = Table(
        [
            Column("Shape"),
            Column("Device", folds=True),
            Column("Backend"),
            Column("Precision"),
            Column("median", "ms", True, "each product synchronised; 95 % interval below"),
            Column("n", "", True, "products timed"),
            Column("median", "GFLOP/s", True, "from the median; 95 % interval below"),
            Column("burst mean", "GFLOP/s", True, "launches in a row, synchronised once"),
            Column("of peak", "%", True, "median over the data sheet's peak"),
            Column("result error", "", True, "relative RMS error against float64"),
        ]
    )
    for point in points:
        middle, low, high = interval(point)
        rate = quantity(middle, "no product was timed", GIGA)
        if low and high and not rate.reason:
            rate = Value(rate.text, rate.sort, "–".join(
                words.significant(end / GIGA) for end in (low, high)))  # fmt: skip
        peak = data.peak_flop_per_s(point)
        error = words.number(point["result_error"])
        result.add(
            Value(words.shape(point), sort=float(shape_key(point)[0])),
            point["device"],
            point["backend"],
            point["precision"],
            ranged(point, "step", 1e-3, "no product was timed", "low", "high", 3),
            integer(point["step_n"], "no product was timed"),
            rate,
            _burst(point),
            quantity(middle / peak, "", 0.01) if middle and peak else missing(
                "peak unknown: the registry has no sourced figure for this device and precision"),
            Value(words.scientific(error), sort=error) if error is not None
            else missing("not recorded"),
        )  # fmt: skip
    return result
