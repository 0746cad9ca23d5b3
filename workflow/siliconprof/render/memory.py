"""Memory, page faults and swap over time, with the training steps below on the same clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from siliconprof import words
from siliconprof.render import hover, marks, strokes, style
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.variants import Family, Row, label

MIB = 2.0**20
RUG_IN = 0.05  # height of one cell's line of training steps
MOST_TICKS = 160  # of one cell's line; more than that are one dark stripe
PANELS = (
    ("rss_bytes", "Resident memory", "MiB", MIB, False),
    ("device_memory_bytes", "Device memory", "MiB", MIB, False),
    ("minor_faults", "Minor page faults since the start", "thousands", 1e3, True),
    ("major_faults", "Major page faults since the start", "", 1.0, True),
    ("swap_in_bytes", "Swapped in, whole host", "MiB", MIB, True),
    ("swap_out_bytes", "Swapped out, whole host", "MiB", MIB, True),
)  # column, title, unit, scale, counted from the first sample


def add(data: Data, book: Book, prefix: str = "") -> None:
    """Every training family."""
    for kind, (points, _) in data.families().items():
        if points:
            add_memory(data, book, kind, points, prefix)


def add_memory(data: Data, book: Book, kind: Family, points: list[Row], prefix: str) -> None:
    """Resident and device memory and page faults of one family, device by device."""
    for device in dict.fromkeys(point["device"] for point in points):
        rows = [
            point for point in points if point["device"] == device and not point.get("probes_off")
        ]
        if not rows:
            continue
        if not any(
            _lines(data, rows, column, scale, since) for column, _, _, scale, since in PANELS
        ):
            book.note(
                f"{kind.name} on {device}: memory and page faults over time are not shown, the "
                "probes left no samples."
            )
            continue
        silent = sorted(
            {
                words.backend_name(row)
                for row in rows
                if not _lines(data, [row], "device_memory_bytes", MIB, False)
            }
        )
        book.figure(
            f"{prefix}memory-{kind.slug}-{device}",
            "memory",
            partial(draw_memory, data, rows),
            family=kind.label,
            device=data.device_name(rows[0]),
            silent=f" No device memory is drawn for {words.listing(silent)}: no counter."
            if silent
            else "",
        )


def _lines(
    data: Data, rows: Sequence[Row], column: str, scale: float, since: bool
) -> list[tuple[Row, np.ndarray, np.ndarray]]:
    """(row, seconds, values) of each cell that has samples in a column."""
    lines = []
    for row in rows:
        frame = data.traces.sampled(row)
        if frame is None or column not in frame or frame[column].notna().sum() < 2:
            continue
        samples = frame[frame[column].notna()]
        values = samples[column].to_numpy(dtype=float)
        lines.append(
            (
                row,
                samples["t_s"].to_numpy(dtype=float),
                (values - values[0] if since else values) / scale,
            )
        )
    return lines


def draw_memory(data: Data, rows: Sequence[Row], narrow: bool) -> Any:
    """One panel a quantity that was sampled; a quantity that stayed 0 is left to the caption."""
    panels = []
    for column, title, unit, scale, since in PANELS:
        lines = _lines(data, rows, column, scale, since)
        if lines and any(values.max() > 0 for _, _, values in lines):
            panels.append((title, unit, lines))
    columns = 1 if narrow else 3 if len(panels) == 3 else min(2, len(panels))
    width = style.width_in(narrow)
    courses = {
        index: course
        for index, row in enumerate(rows)
        if (course := data.traces.course(row)) is not None
    }
    rug = RUG_IN * len(rows) + 0.04 if courses else 0.0
    left, head, foot, high, gap = 0.46, 0.3, 0.4, 1.35, 0.25
    entries = [
        (style.sample(None, "-", color=style.colour(row), dashes=style.dashes(row)), label(row))
        for row in rows
    ]
    top = style.legend_height(entries, width) + 0.05
    panel = (width - gap * (columns - 1)) / columns
    pitch = head + high + rug + foot
    figure = style.canvas(width, top + -(-len(panels) // columns) * pitch)
    style.legend(figure, entries, 0.0)
    for index, (title, unit, lines) in enumerate(panels):
        row, column_index = divmod(index, columns)
        x = column_index * (panel + gap)
        y = top + row * pitch
        style.write(figure, x, y + 0.16, title, weight="bold", va="center")
        ax = style.axes(figure, x + left, y + head, panel - left - 0.1, high)
        for cell, seconds, values in lines:
            line = ax.plot(seconds, values, color=style.colour(cell), dashes=style.dashes(cell))
            most = f"{words.significant(float(values.max()))} {unit}".strip()
            marks.tag(line, cell, f"{hover.training(cell)}: {title.lower()}, at most {most}")
        end_s = max(seconds[-1] for _, seconds, _ in lines) or 1
        ax.set_ylim(0, max(values.max() for _, _, values in lines) * 1.06 or 1)
        ax.set_ylabel(unit, size=style.SMALL_PT)
        last = ax
        if courses:
            last = style.axes(figure, x + left, y + head + high, panel - left - 0.1, rug)
            _steps(last, rows, courses)
            ax.tick_params(labelbottom=False)
        last.set_xlabel("time since the cell began / s", size=style.SMALL_PT)
        for axis in {ax, last}:
            axis.set_xlim(0, end_s)
            style.plain_ticks(axis.xaxis, 5)
        style.plain_ticks(ax.yaxis, 5)
        ax.grid(axis="y")
    return figure


def _steps(ax: Any, rows: Sequence[Row], courses: Mapping[int, Any]) -> None:
    """One line a cell: a tick where each training step began, light while it warmed up."""
    ax.set_ylim(len(rows) - 0.5, -1.3)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    for index, course in courses.items():
        ink = style.colour(rows[index])
        for warm, width in ((True, 0.8), (False, 1.6)):
            chosen = course[(course["kind"] == "warm-up") == warm]["started_s"].tolist()
            chosen = chosen[:: -(-len(chosen) // MOST_TICKS) or 1]
            if chosen:
                marks.tag(
                    strokes.dots(ax, chosen, [index] * len(chosen), width, color=ink), rows[index]
                )
