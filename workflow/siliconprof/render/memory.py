"""Memory, page faults and swap over time, with the training steps below on the same clock.

And page faults step by step: how many, and how many bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from siliconprof import words
from siliconprof.render import chart, hover, style
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import Table, count, number
from siliconprof.render.training import NAMES
from siliconprof.render.variants import Row, label

NO_STEPS = "the training steps of this cell are not in its record"
MEDIAN = "median of the unsplit steps"
PER_STEP, TIMES = "KiB per step", "faults × page size"
NO_PAGE = "the page size is unknown: the probe was not available"
MIB = 2.0**20
HIGH_IN, RUG_IN = 1.35, 0.05  # height of a panel, and of one cell's line of training steps
MOST_TICKS = 160  # of one cell's line; more than that are one dark stripe


class Quantity(NamedTuple):
    """Something that is sampled.

    Args:
        counts_on: whether it is shown from its first sample on.
    """

    column: str
    title: str
    unit: str
    scale: float
    counts_on: bool = False


DEVICE_MEMORY = Quantity("device_memory_bytes", "Device memory", "MiB", MIB)
QUANTITIES = (
    Quantity("rss_bytes", "Resident memory", "MiB", MIB),
    DEVICE_MEMORY,
    Quantity("minor_faults", "Minor page faults since the start", "thousands", 1e3, True),
    Quantity("major_faults", "Major page faults since the start", "", 1.0, True),
    Quantity("swap_in_bytes", "Swapped in, whole host", "MiB", MIB, True),
    Quantity("swap_out_bytes", "Swapped out, whole host", "MiB", MIB, True),
)


def add(data: Data, book: Book, prefix: str = "") -> None:
    """Resident and device memory and page faults of every training family, device by device."""
    for kind, (points, _) in data.families().items():
        for device, every in grouped(points, lambda point: point["device"]).items():
            rows = [row for row in every if not row.get("probes_off")]
            if not rows:
                continue
            if not any(_lines(data, rows, quantity) for quantity in QUANTITIES):
                book.note(
                    f"{kind.name} on {device}: memory and page faults over time are not shown, the "
                    "probes left no samples."
                )
                continue
            uncounted = [row for row in rows if not _lines(data, [row], DEVICE_MEMORY)]
            silent = words.listing(sorted(set(map(words.backend_name, uncounted))))
            book.figure(
                f"{prefix}memory-{kind.slug}-{device}",
                "memory",
                partial(draw_memory, data, rows),
                family=kind.label,
                device=data.device_name(rows[0]),
                silent=f" No device memory is drawn for {silent}: no counter." if silent else "",
            )


def _lines(
    data: Data, rows: Sequence[Row], quantity: Quantity
) -> list[tuple[Row, np.ndarray, np.ndarray]]:
    """(row, seconds, values) of each cell that has samples of a quantity."""
    lines = []
    for row in rows:
        seconds, values = data.traces.sampled_values(row, quantity.column)
        if len(values) > 1:
            start = values[0] if quantity.counts_on else 0.0
            lines.append((row, seconds, (values - start) / quantity.scale))
    return lines


def draw_memory(data: Data, rows: Sequence[Row], narrow: bool) -> Any:
    """One panel a quantity that was sampled; a quantity that stayed 0 is left to the caption."""
    panels = []
    for quantity in QUANTITIES:
        lines = _lines(data, rows, quantity)
        most = max((values.max() for _, _, values in lines), default=0.0)
        if most > 0:
            shown = [_line(quantity, *line) for line in lines]
            end_s = max(seconds[-1] for _, seconds, _ in lines) or 1.0
            row_height = most * RUG_IN / HIGH_IN
            rug = _steps(data, rows, row_height, end_s)
            lowest = [-(len(rows) + 1) * row_height] if rug else []
            panels.append(
                Panel(
                    [*shown, *rug],
                    Scale("time since the cell began / s", ends=(0, end_s)),
                    Scale(quantity.unit, zero=True, reach=lowest, ticks=chart.from_zero),
                    title=quantity.title,
                    high=HIGH_IN + (RUG_IN * len(rows) if rug else 0.0),
                )
            )
    legend = style.lines(rows, [label(row) for row in rows])
    return Chart(panels, legend, columns=(3 if len(panels) == 3 else 2, 1)).figure(narrow)


def _line(quantity: Quantity, row: Row, seconds: np.ndarray, values: np.ndarray) -> Mark:
    most = f"{words.significant(float(values.max()))} {quantity.unit}".strip()
    text = f"{hover.training(row)}: {quantity.title.lower()}, at most {most}"
    look = {"dashes": style.dashes(row), "linewidth": 1.1}
    return chart.line(seconds.tolist(), values.tolist(), row, text, **look)


def _steps(data: Data, rows: Sequence[Row], row_height: float, end_s: float) -> list[Mark]:
    """Below 0 a line a cell: a dot where each training step began, small while it warmed up."""
    shown = []
    for index, row in enumerate(rows):
        course = data.traces.course(row)
        if course is None:
            continue
        for warm, size in ((True, 0.8), (False, 1.6)):
            began = course[(course["kind"] == "warm-up") == warm]["started_s"]
            chosen = began[began <= end_s].tolist()
            chosen = chosen[:: -(-len(chosen) // MOST_TICKS) or 1]
            if chosen:
                heights = [-(index + 1) * row_height] * len(chosen)
                shown.append(chart.dots(chosen, heights, row, size=size))
    return shown


# -- page faults of steps ------------------------------------------------------------------------


def add_faults(data: Data, book: Book) -> None:
    """Page faults of every training step."""
    rows = [row for points, _ in data.families().values() for row in points]
    if not rows:
        return
    book.heading("Page faults", anchor="faults")
    book.table("faults", "faults", Table.of(rows, COLUMNS), counted="training cell")


COLUMNS = (  # the unsplit steps in counts and bytes, and the whole cell's counts
    *NAMES,
    count("minor faults", "minor_faults_per_step", NO_STEPS, MEDIAN, "per step"),
    number("touched by them", PER_STEP, "minor_faulted_bytes_per_step", NO_PAGE, f"minor {TIMES}"),
    count("major faults", "major_faults_per_step", NO_STEPS, MEDIAN, "per step"),
    number("read by them", PER_STEP, "major_faulted_bytes_per_step", NO_PAGE, f"major {TIMES}"),
    count("minor, whole cell", "minor_faults", NO_PAGE),
    count("major, whole cell", "major_faults", NO_PAGE),
    number("page", "KiB", "page_size_bytes", NO_PAGE, folds=True),
)
