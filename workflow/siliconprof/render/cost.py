"""What measuring itself costs: each probe's sample, a clock between phases, all probes at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from siliconprof import words
from siliconprof.render import hover, marks, style
from siliconprof.render.book import Book
from siliconprof.render.compare import Step
from siliconprof.render.data import SWITCHED_OFF, Data
from siliconprof.render.tables import Column, Table, Value, integer, missing, quantity
from siliconprof.render.variants import (
    PRECISION_ORDER,
    Row,
    family_order,
    flagged,
    label,
    model,
    twins,
)

US = 1e-6
DIFFERS = 0.05  # of the unsplit step
CHECKED_FROM_S = 0.020  # shorter steps cost more to split, and are not flagged
SPLIT_FLAG = "split_differs"
MOST_NAMED = 6


def add(data: Data, book: Book) -> None:
    """Probes by backend; what splitting steps and waiting after them costs; without any probe."""
    if data.probes:
        book.table("probes", "probes", probes_table(data.probes))
    else:
        book.note("No record of these results holds the cost of a probe.")
    points = [
        (row, ratio)
        for row in sorted(data.training(), key=family_order)
        if (ratio := words.number(row["split_over_unsplit"])) is not None
    ]
    if points:
        checked = [
            (row, ratio) for row, ratio in points if row["unsplit_step_median_s"] >= CHECKED_FROM_S
        ]
        outside = [row for row, ratio in checked if abs(ratio - 1) > DIFFERS]
        marked = [row for row, _ in points if flagged(row, SPLIT_FLAG)]
        names = [f"{model(row)} {label(row)}" for row in marked]
        book.figure(
            "split",
            "split",
            partial(draw, data, points),
            kept=len(checked) - len(outside),
            checked=words.count(len(checked), "cell"),
            flagged=f"Flagged: {words.listing(names[:MOST_NAMED])}"
            + (f" and {len(names) - MOST_NAMED} more." if len(names) > MOST_NAMED else ".")
            if names
            else "None is flagged.",
        )
    if waits := waiting(data):
        book.note(waits)
    compared = pairs(data)
    if compared:
        book.table("probes-paired", "probes-paired", paired_table(compared))


def waiting(data: Data) -> str | None:
    """What waiting for the device after every step costs; None without a free-running step."""
    ratios = {
        ratio: row
        for row in data.training()
        if (ratio := words.number(row["unsplit_over_free_running"])) is not None
    }
    if not ratios:
        return None
    low, high = min(ratios), max(ratios)
    return (
        "An unsplit step, after which the device is waited for, takes "
        f"{words.significant(float(np.median(list(ratios))), 3)} times as long as a free-running "
        f"one, the median of {words.count(len(ratios), 'training')}: from "
        f"{words.significant(low, 3)} ({hover.training(ratios[low])}) to "
        f"{words.significant(high, 3)} ({hover.training(ratios[high])})."
    )


# -- probes ------------------------------------------------------------------------------------


def probes_table(rows: Sequence[Row]) -> Table:
    """One line for each probe and backend: medians over its cells, and the worst."""
    result = Table(
        [
            Column("Probe"),
            Column("Device", folds=True),
            Column("Backend"),
            Column("How it reads, or why it does not"),
            Column("cells", "", True),
            Column("samples", "per cell", True),
            Column("one sample", "µs", True, "median of the cells' medians; the largest below"),
            Column("95th percentile", "µs", True, "the largest of the cells'"),
            Column("of the cell's time", "%", True, "time inside the probe: median; largest below"),
        ]
    )
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        if row["means"] != SWITCHED_OFF:
            # a probe that is available nowhere has one line
            backend = words.backend_name(row) if _all([row], "samples") else ""
            groups.setdefault((row["probe"], row["device"], backend), []).append(row)
    for (probe, device, _), group in sorted(groups.items()):
        why = "it is not available here: see the column before"
        result.add(
            probe,
            device,
            ", ".join(sorted({words.backend_name(row) for row in group})),
            Value("; ".join(dict.fromkeys(str(row["means"]) for row in group)), mark="note"),
            Value(str(len(group)), len(group)),
            integer(_middle(group, "samples"), why),
            _middle_and_worst(group, "sample_cost_median_s", US, why),
            quantity(max(_all(group, "sample_cost_p95_s"), default=None), why, US),
            _middle_and_worst(group, "share_of_wall", 0.01, why),
            of=group,
        )
    return result


def _all(rows: Sequence[Row], column: str) -> list[float]:
    return [value for row in rows if (value := words.number(row.get(column))) is not None]


def _middle(rows: Sequence[Row], column: str) -> float | None:
    values = _all(rows, column)
    return float(np.median(values)) if values else None


def _middle_and_worst(rows: Sequence[Row], column: str, scale: float, why: str) -> Value:
    value = quantity(_middle(rows, column), why, scale, digits=2)
    if value.reason:
        return value
    worst = words.significant(max(_all(rows, column)) / scale, 2)
    return Value(value.text, value.sort, f"at most {worst}")


# -- the split ---------------------------------------------------------------------------------


def draw(data: Data, points: Sequence[tuple[Row, float]], narrow: bool) -> Any:
    """Split over unsplit against the step time: a dot a cell, a ring where it is flagged."""
    width, left, foot, height = style.width_in(narrow), 0.5, 0.42, 2.0
    precisions = [p for p in PRECISION_ORDER if any(row["precision"] == p for row, _ in points)]
    entries = [
        *style.backends((row for row, _ in points), 3.4),
        *style.devices((row for row, _ in points), data.device_name, 3.4),
        (
            style.sample(
                "o", color=style.INK, markersize=6, markerfacecolor="none", markeredgewidth=0.8
            ),
            "flagged",
        ),
        (
            style.swatch(style.shade("grey", 12)),
            f"within {words.whole_percent(DIFFERS)}, from {words.duration(CHECKED_FROM_S, 2)} on",
        ),
    ]
    if len(precisions) > 1:
        entries.append((lambda ax, x, y: None, "lighter: lower precision"))
    head = style.legend_height(entries, width) + 0.08
    figure = style.canvas(width, head + height + foot)
    style.legend(figure, entries, 0.0)
    ax = style.axes(figure, left, head, width - left - 0.1, height)
    times = [row["unsplit_step_median_s"] * 1e3 for row, _ in points]
    low, top = min(times) / 1.5, max(*times, CHECKED_FROM_S * 1e3) * 1.5
    ratios = [ratio for _, ratio in points]
    ax.set_xscale("log")
    ax.set_xlim(low, top)
    ax.set_ylim(min(0.9, min(ratios) - 0.02), max(1.1, max(ratios) + 0.02))
    from matplotlib.patches import Rectangle

    start = max(low, CHECKED_FROM_S * 1e3)
    ax.add_patch(
        Rectangle(
            (start, 1 - DIFFERS),
            top - start,
            2 * DIFFERS,
            linewidth=0,
            facecolor=style.shade("grey", 12),
        )
    )
    ax.axhline(1, color=style.MUTED, linewidth=0.6)
    for (row, ratio), time in zip(points, times, strict=True):
        text = f"{hover.training(row)}: split over unsplit {words.significant(ratio, 4)}"
        shape = style.device_mark(row["device"])
        dot = ax.plot([time], [ratio], shape, color=style.colour(row), markersize=3.4)
        marks.tag(dot, row, f"{text}, unsplit step {hover.median(row, 'unsplit_step')}")
        if flagged(row, SPLIT_FLAG):
            ring = ax.plot(
                [time],
                [ratio],
                "o",
                color=style.INK,
                markersize=6,
                markerfacecolor="none",
                markeredgewidth=0.8,
            )
            marks.tag(ring, row)
    style.log_ticks(ax.xaxis, low, top)
    style.plain_ticks(ax.yaxis, 6)
    ax.grid(axis="y")
    ax.set_xlabel("unsplit step / ms", size=style.SMALL_PT)
    ax.set_ylabel("split / unsplit", size=style.SMALL_PT)
    return figure


# -- with and without --------------------------------------------------------------------------


def pairs(data: Data) -> list[tuple[Row, Row]]:
    """(without any probe, with them) of trainings that differ in nothing else."""
    rows = sorted(data.training(), key=family_order)
    probed_like = twins(rows, "probes_off")
    return [
        (without, probed)
        for without in rows
        if without.get("probes_off")
        for probed in probed_like(without)
    ]


def paired_table(compared: Sequence[tuple[Row, Row]]) -> Table:
    """Step times with and without the probes, and what both intervals allow of the difference."""
    result = Table(
        [
            Column("Model"),
            Column("Device", folds=True),
            Column("Cell"),
            Column("without", "ms", True, "unsplit step: median, 95 % interval"),
            Column("with probes", "ms", True, "unsplit step: median, 95 % interval"),
            Column("difference", "%", True, "what both intervals allow below"),
        ]
    )
    for without_row, probed_row in compared:
        without, probed = Step.of(without_row), Step.of(probed_row)
        place = (model(probed_row), probed_row["device"], label(probed_row))
        if not without or not probed:
            result.add(
                *place, *[missing("no unsplit step was timed")] * 3, of=(without_row, probed_row)
            )
            continue
        ends = (probed.low / without.high - 1, probed.high / without.low - 1)
        change = 100 * (probed.middle / without.middle - 1)
        result.add(
            *place,
            without.value(),
            probed.value(),
            Value(_signed(change), change, " to ".join(_signed(100 * end) for end in ends)),
            of=(without_row, probed_row),
        )
    return result


def _signed(value: float) -> str:
    text = words.significant(value, 2)
    return f"+{text}" if value > 0 else text
