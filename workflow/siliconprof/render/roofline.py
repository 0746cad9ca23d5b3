"""The measured roofline of a device: what memory and products allow, and where every point lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.analyse.throughputs import describe, device_of
from siliconprof.hosts.registry import PEAK_OF_PRECISION
from siliconprof.render import marks, style
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.roofline_points import (
    NO_PRODUCT,
    TRAINING,
    Dot,
    Limits,
    Roof,
    above,
    points,
    roof,
)
from siliconprof.render.tables import Column, Table, Value, missing, quantity
from siliconprof.render.traces import key
from siliconprof.render.variants import Row, backend_place, model

GIGA, TERA = 1e9, 1e12
FORMATS = ("fp32", "tf32", "fp16", "bf16")
KINDS = (  # module, what it is called, marker
    ("matmul", "matrix product", "o"),
    ("vjp", "gradients of one (vjp)", "D"),
    ("matvec", "matrix-vector product", "s"),
    (TRAINING, "training step, intensity at most", "^"),
)
MARKER_OF = {name: marker for name, _, marker in KINDS}
BESIDE_MATVEC = 0.7  # FLOP per byte
MOST_DOTS = 160  # of a panel; above it a cell is one mark
MOST_NAMED = 5
FOLD_ABOVE = 12
PANEL_IN = 2.35


def add(data: Data, book: Book, prefix: str = "") -> None:
    """A figure for each device and one table."""
    dots = list(points(data))
    if not dots:
        book.note(
            "No roofline: no matrix product, matrix-vector product or vjp was measured on any "
            "device or backend, nor a training whose bytes are known."
        )
        return
    for device in dict.fromkeys(device_of(dot.row) for dot in dots):
        device_dots = [dot for dot in dots if device_of(dot.row) == device]
        name = device_dots[0].row["device"]
        book.figure(
            f"{prefix}roofline-{name}",
            "roofline",
            partial(draw, device_dots),
            device=data.device_name(device_dots[0].row),
            above=_above_text(device_dots),
            lacking=_lacking_text(device_dots),
        )
    fold = f"{len(dots)} points" if len(dots) > FOLD_ABOVE else ""
    book.table(f"{prefix}roofline", "roofline", table(dots), folded=fold)
    shown = {key(dot.row) for dot in dots}
    absent = sorted({model(row) for row in data.training() if key(row) not in shown})
    if absent:
        book.note(
            f"Not on the roofline are trainings of {words.listing(absent)} that were offloaded, or "
            "whose bytes of a step are unknown."
        )


def _above_text(dots: Sequence[Dot]) -> str:
    dots_above, with_roof = above(dots), [dot for dot in dots if dot.roof]
    if not with_roof:
        return " There is no roof to compare them with: no product was measured."
    if not dots_above:
        return f" Of {words.count(len(with_roof), 'point')} none lies above its roof."
    names = "; ".join(
        f"{dot.name}, {words.backend_name(dot.row)} {dot.row['precision']}, "
        f"{words.significant(dot.share or 0)} times"
        for dot in dots_above[:MOST_NAMED]
    )
    more = f"; and {len(dots_above) - MOST_NAMED} more" if len(dots_above) > MOST_NAMED else ""
    lie = "lies" if len(dots_above) == 1 else "lie"
    n = words.count(len(with_roof), "point")
    return f" Of {n} {len(dots_above)} {lie} above the roof: {names}{more}."


def _lacking_text(dots: Sequence[Dot]) -> str:
    """What of the roof is missing on this device."""
    limits, sheet = dots[0].limits, dots[0].sheet
    reasons = []
    if limits.memory is None:
        reasons.append("no memory bandwidth was measured, so products alone are the roof")
    if not any(dot.sheet.product for dot in dots) and sheet.memory is None:
        reasons.append("no figure of a data sheet is in the registry")
    return f" For this device {words.listing(reasons)}." if reasons else ""


# -- figure ------------------------------------------------------------------------------------


def _format(row: Row) -> str:
    return PEAK_OF_PRECISION[row["precision"]]


def draw(dots: Sequence[Dot], narrow: bool) -> Any:
    """A panel for each number format, all with the same axes: operations a second over a byte's."""
    scale, unit = (
        (TERA, "TFLOP/s") if max(d.flop_per_s for d in dots) > 10 * TERA else (GIGA, "GFLOP/s")
    )
    formats = [name for name in FORMATS if any(_format(dot.row) == name for dot in dots)]
    width = style.width_in(narrow)
    kinds = [entry for entry in KINDS if any(dot.kind == entry[0] for dot in dots)]
    sheets = [dot.sheet for dot in dots]
    entries = [
        *style.backends([dot.row for dot in dots], 3.2),
        *(
            (style.sample(marker, color=style.MUTED, markersize=3.2), name)
            for _, name, marker in kinds
        ),
        *(
            [
                (
                    style.sample(
                        "o", color=style.MUTED, markersize=3.2, markerfacecolor=style.PAPER
                    ),
                    "hollow: fits the last-level cache",
                )
            ]
            if any(dot.cached for dot in dots)
            else []
        ),
        (style.sample(None, "-", color=style.MUTED, linewidth=1.2), "measured ceiling"),
    ]
    if any(sheet.product or sheet.memory for sheet in sheets):
        entries.append((_sheet_sample, "data sheet"))
    head, title, foot, left, gap = style.legend_height(entries, width) + 0.06, 0.24, 0.42, 0.42, 0.3
    columns = 1 if narrow or len(formats) == 1 else 2
    lines = -(-len(formats) // columns)
    figure = style.canvas(width, head + lines * (title + PANEL_IN + foot))
    style.legend(figure, entries, 0.0)
    panel = (width - left - 0.08 - gap * (columns - 1)) / columns
    frame = _frame(dots, scale)
    for index, name in enumerate(formats):
        line, column = divmod(index, columns)
        x, y = left + column * (panel + gap), head + line * (title + PANEL_IN + foot)
        style.write(figure, x, y + title / 2, name, weight="bold", va="center")
        ax = style.axes(figure, x, y + title, panel, PANEL_IN)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlim(*frame[:2])
        ax.set_ylim(*frame[2:])
        format_dots = [dot for dot in dots if _format(dot.row) == name]
        _sheet(ax, format_dots, scale)
        _ceilings(ax, format_dots, scale)
        _products(ax, format_dots, panel)
        _dots(ax, format_dots, scale)
        _names(ax, format_dots, scale)
        ax.grid(color=style.RULE)
        style.log_ticks(ax.xaxis, *frame[:2])
        style.log_ticks(ax.yaxis, *frame[2:])
        if column:
            ax.set_yticklabels([])
        else:
            ax.set_ylabel(unit, size=style.SMALL_PT)
        ax.set_xlabel("arithmetic intensity / FLOP per byte", size=style.SMALL_PT)
    return figure


def _frame(dots: Sequence[Dot], scale: float) -> tuple[float, float, float, float]:
    """Limits of both axes that include every dot and every ridge."""
    intensities = [dot.intensity for dot in dots]
    rates = [dot.flop_per_s / scale for dot in dots]
    tops = list(rates)
    for dot in dots:
        for limits in (dot.limits, dot.sheet):
            if limits.product:
                tops.append(limits.product / scale)
                if limits.memory:
                    intensities.append(limits.product / limits.memory)
    return (min(intensities) / 2.5, max(intensities) * 3, min(rates) / 2, max(tops) * 2.6)


def _line(
    ax: Any, scale: float, product: float | None, bandwidth: float | None, **look: Any
) -> Any:
    """A roof: the slope up to the ridge, then the products; either may be missing."""
    low, high = ax.get_xlim()
    bottom = ax.get_ylim()[0]
    xs, ys = [], []
    if bandwidth:
        start = max(low, bottom * scale / bandwidth)
        ridge = min(product / bandwidth if product else high, high)
        xs, ys = [start, ridge], [start * bandwidth / scale, ridge * bandwidth / scale]
    if product:
        xs = [*xs, high] if xs else [low, high]
        ys = [*ys, product / scale] if ys else [product / scale] * 2
    return ax.plot(xs, ys, **look) if xs else []


def _sheet_sample(ax: Any, x: float, y: float) -> None:
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((x, y - 0.045), 0.15, 0.09, **_hatched()))
    ax.plot(
        [x, x + 0.15], [y + 0.045] * 2, color=style.shade("other"), linewidth=1.0, dashes=(3, 1.5)
    )


def _hatched() -> dict[str, Any]:
    return style.published() | {"linewidth": 0, "edgecolor": style.shade("other", 60)}


def _sheet(ax: Any, dots: Sequence[Dot], scale: float) -> None:
    """What the data sheet says, dashed, with a hatched edge above: nothing can lie there."""
    sheet = dots[0].sheet
    if not (sheet.product or sheet.memory):
        return
    drawn = _line(
        ax,
        scale,
        sheet.product,
        sheet.memory,
        color=style.shade("other"),
        linewidth=1.0,
        dashes=(3, 1.5),
    )
    xs, ys = drawn[0].get_data()
    edge = ax.fill_between(xs, ys, [y * 1.3 for y in ys], **_hatched())
    figures = [
        words.scaled(value, unit)
        for value, unit in ((sheet.product, "FLOP/s"), (sheet.memory, "byte/s"))
        if value
    ]
    sheet_text = words.listing(figures)
    marks.tag([drawn, edge], [dot.row for dot in dots], f"Data sheet, published: {sheet_text}")


def _ceilings(ax: Any, dots: Sequence[Dot], scale: float) -> None:
    """Memory and cache of the device, and the fastest product of each backend."""
    low, high = ax.get_xlim()
    limits = dots[0].limits
    rows = [dot.row for dot in dots]
    firsts = {dot.row["backend"]: dot for dot in dots}
    products = {name: firsts[name].limits.product for name in sorted(firsts, key=backend_place)}
    measured = {name: value for name, value in products.items() if value}
    fastest = max(measured.values(), default=None)
    for bandwidth, memory_kind, line_width in (
        (limits.memory, "memory", 1.4),
        (limits.cache, "cache", 0.8),
    ):
        if not bandwidth:
            continue
        slope = _line(ax, scale, None, bandwidth, color=style.MUTED, linewidth=line_width)
        start, end = slope[0].get_xdata()
        end = min(end, fastest / bandwidth) if fastest else end
        if end <= start:
            slope[0].remove()
            continue
        slope[0].set_data([start, end], [start * bandwidth / scale, end * bandwidth / scale])
        label = f"{memory_kind} {words.scaled(bandwidth, 'B/s')}"
        marks.tag(
            slope, rows, f"Measured bandwidth of {memory_kind}: {words.scaled(bandwidth, 'byte/s')}"
        )
        under = memory_kind == "memory"  # above it there may be the data sheet's line
        # Right of the matrix-vector products, which lie at half an operation a byte in fp32.
        at = BESIDE_MATVEC if under and start < BESIDE_MATVEC < end / 6 else start * 1.15
        # The line's angle in data, y = bandwidth × x; these axes turn it into the eye's.
        ax.text(
            at,
            at * bandwidth / scale * (0.93 if under else 1.05),
            label,
            size=style.SMALL_PT,
            color=style.MUTED,
            va="top" if under else "bottom",
            rotation=math.degrees(math.atan(bandwidth / scale)),
            rotation_mode="anchor",
            transform_rotates_text=True,
        )
    for name, value in measured.items():
        steepest = max(filter(None, (limits.memory, limits.cache)), default=None)
        left = max(value / steepest, low) if steepest else low
        line = ax.plot([left, high], [value / scale] * 2, color=style.shade(name), linewidth=1.4)
        row = firsts[name].row
        marks.tag(
            line,
            [r for r in rows if r["backend"] == name],
            f"Fastest product measured, {words.backend_name(row)} {_format(row)}: "
            f"{words.scaled(value, 'FLOP/s')}",
        )


def _products(ax: Any, dots: Sequence[Dot], wide: float) -> None:
    """Beside the panel's title the fastest product of each backend, where it hides no dot."""
    at = 1.0
    for dot in {dot.row["backend"]: dot for dot in dots}.values():
        row, value = dot.row, dot.limits.product
        if not value:
            continue
        text = f"{words.backend_name(row)} {words.scaled(value, 'FLOP/s')}"
        room = style.text_in(text + "   ", style.SMALL_PT) / wide
        if at - room < 0.12:  # hover texts and the table have the rest
            return
        ax.text(
            at,
            1 + 0.12 / PANEL_IN,
            text,
            ha="right",
            va="center",
            size=style.SMALL_PT,
            transform=ax.transAxes,
            color=style.shade(row["backend"]),
        )
        at -= room


def _dots(ax: Any, dots: Sequence[Dot], scale: float) -> None:
    """A mark for each point; for each cell and kind where there are too many."""
    groups: dict[Any, list[Dot]] = {}
    for index, dot in enumerate(dots):
        cell = (*marks.cells(dot.row), dot.kind, dot.cached)
        groups.setdefault(cell if len(dots) > MOST_DOTS else index, []).append(dot)
    for group in groups.values():
        first, hue = group[0], style.shade(group[0].row["backend"])
        artist = ax.plot(
            [dot.intensity for dot in group],
            [dot.flop_per_s / scale for dot in group],
            MARKER_OF[first.kind],
            color=hue,
            markersize=3.2,
            markeredgewidth=0.8,
            linestyle="none",
            markerfacecolor=style.PAPER if first.cached else hue,
        )
        marks.tag(artist, [dot.row for dot in group], _hover_text(group))


def _hover_text(group: Sequence[Dot]) -> str:
    if len(group) == 1:
        return group[0].hover_text
    best = max(group, key=lambda dot: dot.share or 0)
    return (
        f"{len(group)} points of {group[0].row['workload']}; the nearest to the roof: "
        f"{best.hover_text}"
    )


def _names(ax: Any, dots: Sequence[Dot], scale: float) -> None:
    """The points above their roof, by name, in the corner that no roof reaches."""
    gap = (style.SMALL_PT + 2) / style.POINTS_PER_IN / PANEL_IN
    for index, dot in enumerate(above(dots)[:MOST_NAMED]):
        ax.annotate(
            f"{dot.row['workload']} × {words.significant(dot.share or 0, 3)}",
            (dot.intensity, dot.flop_per_s / scale),
            (0.02, 0.97 - index * gap),
            textcoords="axes fraction",
            va="center",
            size=style.SMALL_PT,
            weight="bold",
            color=style.INK,
            bbox=_ground(),
            arrowprops={"arrowstyle": "-", "color": style.MUTED, "linewidth": 0.4, "shrinkB": 2},
        )


def _ground() -> dict[str, Any]:
    """Behind a text that may cross lines."""
    return {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.5}


# -- table -------------------------------------------------------------------------------------


def table(dots: Sequence[Dot]) -> Table:
    """Intensity, rate and share of the roof of every point."""
    result = Table(
        [
            Column("Device", folds=True),
            Column("Backend"),
            Column("Workload"),
            Column("Point"),
            Column("Precision"),
            Column(
                "intensity",
                "FLOP/byte",
                True,
                "operations over the bytes that must at least be moved; "
                "for a training the most that it can be",
            ),
            Column("rate", "GFLOP/s", True, "by the median of single calls or unsplit steps"),
            Column(
                "roof",
                "GFLOP/s",
                True,
                "at this intensity, by our own measurements; which of them stands below",
                "bound",
            ),
            Column("share of roof", "%", True),
            Column("data sheet's roof", "GFLOP/s", True, "at this intensity", folds=True),
        ]
    )
    if any(dot.kind == TRAINING for dot in dots):
        result.notes.append(
            "≤: for a training step the bytes are the least that must be moved, so its intensity is "
            "at most this, and its share of the roof at least this. For decoder-only transformers "
            "they are counted from the shape; for other models they are AdamW's passes and the "
            "predicted activations, written and read once."
        )
    for dot in dots:
        sheet = dot.sheet
        promised = roof(sheet, dot.intensity, False)
        share = dot.share
        result.add(
            dot.row["device"],
            words.backend_name(dot.row),
            dot.row["workload"],
            describe(dot.row) or missing("the only one of its cell"),
            dot.row["precision"],
            Value(
                ("≤ " if dot.kind == TRAINING else "") + words.significant(dot.intensity),
                sort=dot.intensity,
            ),
            quantity(dot.flop_per_s, "", GIGA),
            Value(
                words.significant(dot.roof.flop_per_s / GIGA),
                dot.roof.flop_per_s / GIGA,
                dot.roof.bound,
            )
            if dot.roof
            else missing(NO_PRODUCT),
            Value(
                words.significant(100 * share),
                100 * share,
                mark="bad" if share > 1 else "",
                title="above the roof" if share > 1 else "",
            )
            if share
            else missing(NO_PRODUCT),
            _sheet_value(promised, dot, sheet),
            css="",
            of=dot.row,
        )
    return result


def _sheet_value(promised: Roof | None, dot: Dot, sheet: Limits) -> Value:
    """The data sheet's roof; what fits a cache is compared with its products alone."""
    if promised is None or sheet.product is None:
        return missing("no data sheet gives the peak of this device in this number format")
    value = sheet.product if dot.cached else promised.flop_per_s
    return Value(
        words.significant(value / GIGA), value / GIGA, mark="published", title="from the data sheet"
    )
