"""Throughput against batch size and model size: memory-bound, launch-bound, or both?

The time of a step over its batch size is fitted by a fixed part and one for each sample. What is
fixed costs a small batch most, which is why larger batches give more tokens a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.render import hover, marks, strokes, style
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.grid_points import (
    MODEL,
    MS,
    Grid,
    Place,
    Scale,
    by_place,
    devices_said,
    log_ticks,
    model_key,
    place,
    place_name,
    seconds,
    shape,
    values,
)
from siliconprof.render.tables import Column, Table, Value, quantity
from siliconprof.render.variants import Row

ROWS_PER_FIGURE = 4
MOST_FITS = 12  # lines in one panel; of more shapes those of evenly spaced size are drawn
CURVE_POINTS = 24  # of one fitted line
EDGE = 1.35  # by how much axes reach beyond what they show
SHAPE, BACKEND = "model shape", "backend"  # what a line of scaling.csv is about
EXACT = "two batch sizes: the line goes through both"
VERDICTS = {
    "both": "launch-bound and memory-bound",
    "neither": "neither launch-bound nor memory-bound",
}
RATES = (("tokens_per_s", "tokens / s"), ("flop_per_s", "FLOP/s"))


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
    """Verdicts in words, the figure, and the fits one by one."""
    places = grid.places()
    fits = rows_of(data, grid, SHAPE)
    order = list(places)
    parts = [order[i : i + ROWS_PER_FIGURE] for i in range(0, len(order), ROWS_PER_FIGURE)]
    for index, part in enumerate(parts):
        name = f"{prefix}scaling-{grid.workload}"
        book.figure(
            f"{name}-{index + 1}" if index else name,
            "grid-scaling",
            partial(draw, {where: places[where] for where in part}, fits),
            workload=grid.workload,
            device=devices_said(data, grid.points),
            left_out=left_out(fits, part),
        )
    verdicts = rows_of(data, grid, BACKEND)
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


def left_out(fits: Sequence[Row], part: Sequence[Place]) -> str:
    """A note that not every fit is drawn; empty where all are."""
    most = max((sum(place(row) == where for row in fits) for where in part), default=0)
    if most <= MOST_FITS:
        return ""
    return (
        f" Of {most} fits {MOST_FITS} of evenly spaced model size are drawn; all are in the table."
    )


# -- figure ------------------------------------------------------------------------------------


def draw(places: dict[Place, list[Row]], fits: Sequence[Row], narrow: bool) -> Any:
    """Rows are places; columns tokens and operations a second, by batch and by model size."""
    width = style.width_in(narrow)
    everything = [point for points in places.values() for point in points]
    sizes = Scale("n_parameters", values(everything, "n_parameters"))
    batches = Scale("batch_size", values(everything, "batch_size"))
    columns = 2 if narrow else 4
    bands = 4 // columns
    left, gap, title, high, foot = 0.4, 0.42, 0.4, 1.25, 0.4
    panel = (width - left - 0.06 - gap * (columns - 1)) / columns
    keys = (
        ("Million parameters, by batch size", sizes.entries(say=_millions)),
        ("Batch size, by model size", batches.entries()),
    )
    across = width if narrow else width / 2 - 0.2
    heads = [0.2 + style.legend_height(entries, across) for _, entries in keys]
    head = sum(heads) + 0.06 if narrow else max(heads)
    figure = style.canvas(width, head + len(places) * bands * (title + high + foot))
    at = [(0.0, 0.0), (0.0, heads[0] + 0.06)] if narrow else [(0.0, 0.0), (width / 2, 0.0)]
    for (x, y), (legend_title, entries) in zip(at, keys, strict=True):
        style.write(figure, x, y + 0.09, legend_title, weight="bold", va="center")
        style.legend(figure, entries, y + 0.18, x, across)
    top = head
    for where, points in places.items():
        place_fits = _chosen([row for row in fits if place(row) == where])
        for band in range(bands):
            for column in range(columns):
                rate, unit = RATES[(band * columns + column) % 2]
                by_batch = band * columns + column < 2
                x = left + column * (panel + gap)
                if column == 0:
                    name = place_name(points[0])
                    marks.tag(
                        style.write(figure, 0, top + 0.16, name, weight="bold", va="center"), points
                    )
                style.write(
                    figure,
                    x,
                    top + title - 0.06,
                    unit,
                    va="bottom",
                    size=style.SMALL_PT,
                    color=style.MUTED,
                )
                ax = style.axes(figure, x, top + title, panel, high)
                if by_batch:
                    _by_batch(ax, points, place_fits, sizes, rate)
                else:
                    _by_size(ax, points, batches, rate)
            top += title + high + foot
    return figure


def _millions(value: float) -> str:
    return words.significant(value / 1e6, 2)


def _chosen(fits: Sequence[Row]) -> list[Row]:
    """Fits of evenly spaced model size."""
    usable = [row for row in fits if words.number(row.get("per_sample_s")) is not None]
    ordered = sorted(usable, key=lambda row: (row["n_parameters"] or 0, model_key(row)))
    if len(ordered) <= MOST_FITS:
        return ordered
    last = len(ordered) - 1
    return [ordered[round(i * last / (MOST_FITS - 1))] for i in range(MOST_FITS)]


def _rates(points: Sequence[Row], rate: str, across: str) -> tuple[list[float], list[float]]:
    pairs = [(words.number(point.get(across)), words.number(point.get(rate))) for point in points]
    measured = [(x, y) for x, y in pairs if x and y]
    return [x for x, _ in measured], [y for _, y in measured]


def _by_batch(ax: Any, points: Sequence[Row], fits: Sequence[Row], sizes: Scale, rate: str) -> None:
    """Dots are points, lines the fits of one model shape each."""
    _log_axes(ax, points, rate, "batch_size")
    for row in fits:
        same = [p for p in points if model_key(p) == model_key(row)]
        batches = values(same, "batch_size")
        amounts = [a for p in same if (a := _per_sample(p, rate))]
        if len(batches) < 2 or not amounts:
            continue
        low, high = batches[0], batches[-1]
        xs = [low * (high / low) ** (i / (CURVE_POINTS - 1)) for i in range(CURVE_POINTS)]
        fixed_s, per_sample_s = float(row["fixed_s"] or 0.0), float(row["per_sample_s"])
        line_points = [(x, amounts[0] * x / t) for x in xs if (t := fixed_s + per_sample_s * x) > 0]
        line = ax.plot(
            [x for x, _ in line_points],
            [y for _, y in line_points],
            linewidth=0.8,
            color=sizes.colour(row.get("n_parameters")),
        )
        marks.tag(
            line,
            row,
            f"{place_name(row)}, {shape(row)}: a step takes "
            f"{hover.seconds(fixed_s)} + {hover.seconds(per_sample_s)} a sample",
        )
    for ink, group in sizes.groups(points).items():
        _dots(ax, group, rate, "batch_size", ink, sizes)
    ticks = values(points, "batch_size")
    ax.xaxis.set_major_locator(style.FixedLocator(ticks if len(ticks) <= 5 else ticks[::2]))
    ax.xaxis.set_major_formatter(style.FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel("batch size", size=style.SMALL_PT)


def _dots(ax: Any, group: Sequence[Row], rate: str, across: str, ink: str, scale: Scale) -> None:
    """The points of one colour, with one hover text."""
    xs, ys = _rates(group, rate, across)
    drawn = strokes.dots(ax, xs, ys, 3.0, True, color=ink)
    if not ys:
        return
    value = words.number(group[0].get(scale.name))
    size = scale.name == "n_parameters"
    shared = f"{_millions(value or 0)} M parameters" if size else f"batch {value:g}"
    unit, over = ("GFLOP/s", 1e9) if rate == "flop_per_s" else ("tokens/s", 1.0)
    marks.tag(
        drawn,
        group,
        f"{place_name(group[0])}, {shared}: {words.count(len(ys), 'point')}, "
        + hover.of_several(ys, unit, over),
    )


def _per_sample(point: Row, rate: str) -> float | None:
    """What one sample amounts to: tokens, or operations."""
    took, batch, rate_value = seconds(point), point.get("batch_size"), words.number(point.get(rate))
    return rate_value * took / float(batch) if took and batch and rate_value else None


def _by_size(ax: Any, points: Sequence[Row], batches: Scale, rate: str) -> None:
    """Dots are points; the line joins the best of each model size."""
    _log_axes(ax, points, rate, "n_parameters")
    best: dict[float, float] = {}
    for x, y in zip(*_rates(points, rate, "n_parameters"), strict=True):
        best[x] = max(best.get(x, 0.0), y)
    if 1 < len(best) <= 40:
        xs = sorted(best)
        marks.tag(ax.plot(xs, [best[x] for x in xs], color=style.FAINT, linewidth=0.8), points)
    for ink, group in batches.groups(points).items():
        _dots(ax, group, rate, "n_parameters", ink, batches)
    xs, _ = _rates(points, rate, "n_parameters")
    if xs:
        log_ticks(ax.xaxis, min(xs) / EDGE, max(xs) * EDGE, 4, 1e6)
    ax.set_xlabel("million parameters", size=style.SMALL_PT)


def _log_axes(ax: Any, points: Sequence[Row], rate: str, across: str) -> None:
    xs, ys = _rates(points, rate, across)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_minor_locator(style.FixedLocator([]))
    ax.yaxis.set_minor_locator(style.FixedLocator([]))
    ax.grid(axis="y")
    if not xs:
        return
    ax.set_xlim(min(xs) / EDGE, max(xs) * EDGE)
    low, high = min(ys) / EDGE, max(ys) * EDGE
    ax.set_ylim(low, high)
    log_ticks(ax.yaxis, low, high, 6)
    ax.yaxis.set_major_formatter(style.FuncFormatter(lambda value, _: _short(value)))


def _short(value: float) -> str:
    """`20 k`, `3 G`."""
    for sign, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{float(f'{value / scale:.2g}'):g}{words.THIN}{sign}"
    return f"{float(f'{value:.2g}'):g}"


# -- table -------------------------------------------------------------------------------------


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
