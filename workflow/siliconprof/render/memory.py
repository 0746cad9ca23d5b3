"""Memory and page faults over time, as the probes saw them about ten times a second."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from siliconprof.render import style, words
from siliconprof.render.book import Book
from siliconprof.render.data import Data, Family, Row
from siliconprof.render.training import label

MIB = 2.0**20
PANELS = (
    ("rss_bytes", "Resident memory", "MiB", MIB, False),
    ("device_memory_bytes", "Device memory", "MiB", MIB, False),
    ("minor_faults", "Minor page faults since the start", "thousands", 1e3, True),
    ("major_faults", "Major page faults since the start", "", 1.0, True),
)  # column, title, unit, scale, counted from the first sample


def add(data: Data, book: Book, prefix: str = "") -> None:
    """Every training family."""
    for kind, (points, _) in data.families().items():
        if points:
            add_memory(data, book, kind, points, prefix)


def add_memory(data: Data, book: Book, kind: Family, points: list[Row], prefix: str) -> None:
    """Resident and device memory and page faults of one family, device by device."""
    for device in dict.fromkeys(point["device"] for point in points):
        rows = [point for point in points if point["device"] == device]
        if not any(_lines(data, rows, column, scale, since)
                   for column, _, _, scale, since in PANELS):  # fmt: skip
            book.note(
                f"{kind.name} on {device}: memory and page faults over time are not shown, the "
                "probes left no samples."
            )
            continue
        silent = sorted({
            row["backend"] for row in rows
            if not _lines(data, [row], "device_memory_bytes", MIB, False)
        })  # fmt: skip
        book.figure(
            f"{prefix}memory-{kind.slug}-{device}",
            "memory",
            partial(draw_memory, data, rows),
            family=kind.label, device=data.device_name(rows[0]),
            silent=f" No device memory is drawn for {words.listing(silent)}: no counter."
            if silent else "",
        )  # fmt: skip


def _lines(
    data: Data, rows: Sequence[Row], column: str, scale: float, since: bool
) -> list[tuple[Row, np.ndarray, np.ndarray]]:
    """(row, seconds, values) of each cell that has samples in a column."""
    found = []
    for row in rows:
        frame = data.traces.sampled(row)
        if frame is None or column not in frame or frame[column].notna().sum() < 2:
            continue
        kept = frame[frame[column].notna()]
        values = kept[column].to_numpy(dtype=float)
        found.append((row, kept["t_s"].to_numpy(dtype=float),
                      (values - values[0] if since else values) / scale))  # fmt: skip
    return found


def draw_memory(data: Data, rows: Sequence[Row], narrow: bool) -> Any:
    """One panel a quantity that was sampled; a quantity that stayed 0 is left to the caption."""
    panels = []
    for column, title, unit, scale, since in PANELS:
        lines = _lines(data, rows, column, scale, since)
        if lines and any(values.max() > 0 for _, _, values in lines):
            panels.append((title, unit, lines))
    columns = 1 if narrow else min(2, len(panels))
    width = style.width_in(narrow)
    left, head, foot, high, gap = 0.46, 0.3, 0.4, 1.35, 0.25
    entries = [
        (style.sample(None, "-", color=style.colour(row), dashes=style.dashes(row)), label(row))
        for row in rows
    ]
    top = style.legend_height(entries, width) + 0.05
    panel = (width - gap * (columns - 1)) / columns
    figure = style.canvas(width, top + -(-len(panels) // columns) * (head + high + foot))
    style.legend(figure, entries, 0.0)
    for index, (title, unit, lines) in enumerate(panels):
        row, column_index = divmod(index, columns)
        x = column_index * (panel + gap)
        y = top + row * (head + high + foot)
        style.write(figure, x, y + 0.16, title, weight="bold", va="center")
        ax = style.axes(figure, x + left, y + head, panel - left - 0.1, high)
        for cell, seconds, values in lines:
            ax.plot(seconds, values, color=style.colour(cell), dashes=style.dashes(cell))
        ax.set_ylim(0, max(values.max() for _, _, values in lines) * 1.06 or 1)
        ax.set_xlim(0, max(seconds[-1] for _, seconds, _ in lines) or 1)
        ax.set_ylabel(unit, size=style.SMALL_PT)
        ax.set_xlabel("time since the cell began / s", size=style.SMALL_PT)
        style.plain_ticks(ax.xaxis, 5)
        style.plain_ticks(ax.yaxis, 5)
        ax.grid(axis="y")
    return figure
