"""Section 4.3 of the paper: memory and page faults over the steps, fits against near capacity."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from siliconprof import words
from siliconprof.render import marks, strokes, style
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.paper_bars import place, where
from siliconprof.render.paper_figure3 import applied
from siliconprof.render.variants import Row, model, order

MIB = 2.0**20
MOST_POINTS = 250
MOST_PAIRS = 4
WARM_UP = "warm-up"
LOOKS: dict[str, tuple[int, tuple[float, ...]]] = {  # step of the backend's colour, dashes
    "fits": (60, (3, 1.2)),
    "near capacity": (100, (1, 0)),
}


class Course(NamedTuple):
    """Memory and faults from the first step after the warm-up on."""

    row: Row
    grown_bytes: np.ndarray  # resident memory since then, by step
    faults: np.ndarray  # minor page faults since then, by step


def add(data: Data, book: Book) -> None:
    """One figure; without a suitable pair of records, a note that says what it takes."""
    book.heading("Figure 4: memory and page faults", anchor="paper-figure-4")
    course_pairs = pairs(data)
    if not course_pairs:
        book.note(
            "Memory and page faults of fits against near capacity are not drawn: that takes "
            "a training near its capacity and another of the same model that fits, on one "
            "device and backend, both with the probes of memory and page faults."
        )
        return
    left_out = len(course_pairs) - MOST_PAIRS
    book.figure(
        "paper-figure-4",
        "paper-figure-4",
        partial(draw, data, course_pairs[:MOST_PAIRS]),
        left_out=f" {words.count(left_out, 'more pair')} of records "
        f"{'is' if left_out == 1 else 'are'} left out."
        if left_out > 0
        else "",
    )


def pairs(data: Data) -> list[tuple[Course, Course]]:
    """(fits, near capacity) of one model, device, backend, trainer and precision each."""
    kinds: dict[str, dict[tuple, Row]] = {"fits": {}, "near-capacity": {}}
    for point in sorted(data.training(), key=order):
        scenario = applied(point)
        if scenario in kinds and not point["lora_rank"] and not point.get("probes_off"):
            same = (
                *where(point),
                point["backend"],
                model(point),
                point["trainer"],
                point["precision"],
            )
            kinds[scenario].setdefault(same, point)
    result = []
    for same, near in kinds["near-capacity"].items():
        fits = kinds["fits"].get(same)
        courses = [_course(data, row) for row in (fits, near) if row]
        if len(courses) == 2 and courses[0] and courses[1]:
            shared = min(len(course.faults) for course in courses if course)
            result.append((_first(courses[0], shared), _first(courses[1], shared)))
    return result


def _first(course: Course, steps: int) -> Course:
    return Course(course.row, course.grown_bytes[:steps], course.faults[:steps])


def _course(data: Data, row: Row) -> Course | None:
    """Memory and faults by step, None where the probes left too little."""
    frame, course = data.traces.sampled(row), data.traces.course(row)
    if frame is None or course is None or "rss_bytes" not in frame:
        return None
    resident = frame[frame["rss_bytes"].notna()]
    steps = course[course["kind"] != WARM_UP]
    faults = steps["minor_faults"].astype(float)
    if len(resident) < 2 or len(steps) < 2 or faults.isna().any():
        return None
    memory = np.interp(
        steps["started_s"].to_numpy(dtype=float),
        resident["t_s"].to_numpy(dtype=float),
        resident["rss_bytes"].to_numpy(dtype=float),
    )
    return Course(row, memory - memory[0], np.cumsum(faults.to_numpy()))


def draw(data: Data, course_pairs: Sequence[tuple[Course, Course]], narrow: bool) -> Any:
    """A row of two panels for each pair; below each other on a phone."""
    width = style.width_in(narrow)
    entries: list[style.Entry] = [
        (style.sample(None, "-", color=style.shade("grey", step), dashes=dash), name)
        for name, (step, dash) in LOOKS.items()
    ]
    head, title, left, foot, high, gap = style.LEGEND_ROW_IN, 0.42, 0.5, 0.4, 1.1, 0.3
    columns = 1 if narrow else 2
    panel = (width - gap * (columns - 1)) / columns
    rows = len(course_pairs) * (2 // columns)
    figure = style.canvas(width, head + rows * (title + high + foot))
    style.legend(figure, entries, 0.0)
    index = 0
    for fits, near in course_pairs:
        name = f"{model(near.row)}, {place(data, near.row)}, {words.backend_name(near.row)}"
        for what, unit, values in (
            ("resident memory, growth", "MiB", [fits.grown_bytes / MIB, near.grown_bytes / MIB]),
            ("minor page faults, sum", "thousands", [fits.faults / 1e3, near.faults / 1e3]),
        ):
            row, column = divmod(index, columns)
            index += 1
            x, y = column * (panel + gap), head + row * (title + high + foot)
            limit = int(panel / style.text_in("x", style.TEXT_PT))
            style.write(
                figure, x, y + 0.12, words.shortened(name, limit), weight="bold", va="center"
            )
            style.write(
                figure, x, y + 0.28, what, va="center", size=style.SMALL_PT, color=style.MUTED
            )
            ax = style.axes(figure, x + left, y + title, panel - left - 0.1, high)
            for course, series, (kind, look) in zip(
                (fits, near), values, LOOKS.items(), strict=True
            ):
                _line(ax, course.row, series, kind, look, f"{what}, {unit}")
            ax.set_xlim(left=0)
            style.plain_ticks(ax.xaxis, 5)
            style.plain_ticks(ax.yaxis, 4)
            ax.set_ylabel(unit, size=style.SMALL_PT)
            ax.set_xlabel("training step after the warm-up", size=style.SMALL_PT)
            ax.grid(axis="y")
    return figure


def _line(
    ax: Any, row: Row, values: np.ndarray, kind: str, look: tuple[int, tuple[float, ...]], what: str
) -> None:
    xs, ys = strokes.thin(range(1, len(values) + 1), values.tolist(), MOST_POINTS)
    line = ax.plot(xs, ys, color=style.shade(row["backend"], look[0]), dashes=look[1])
    last = "0" if not values[-1] else words.significant(float(values[-1]))
    marks.tag(
        line,
        row,
        f"{row['workload']}, {words.backend_name(row)}, {kind}: {what}: {last} "
        f"after {len(values)} steps",
    )
