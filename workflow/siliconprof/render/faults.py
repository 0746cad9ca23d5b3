"""Page faults of every training step: how many, how many bytes, and what the allocator adds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.ticker import FixedLocator, FuncFormatter

from siliconprof import words
from siliconprof.render import hover, marks, strokes, style
from siliconprof.render.book import Book
from siliconprof.render.compare import Step
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing, quantity
from siliconprof.render.training import NAMES, names
from siliconprof.render.variants import Family, Row, differ_in, has_no_speed, label, precision

KIB = 2.0**10
MOST_POINTS = 250  # of one line
MOST_IN_PANEL = 2500  # of all lines together
FOLD_ABOVE = 16
NO_STEPS = "the training steps of this cell are not in its record"
NO_PAGE = "the page size is unknown: the probe was not available"


def add(data: Data, book: Book) -> None:
    """A figure for each device, the table, and the allocators side by side."""
    rows = [row for points, _ in data.families().values() for row in points]
    if not rows:
        return
    book.heading("Page faults", anchor="faults")
    for device in dict.fromkeys(row["device"] for row in rows):
        families = {
            kind: part
            for kind, (points, _) in data.families().items()
            if (part := [p for p in points if p["device"] == device and _has_steps(data, p)])
        }
        name = data.device_name(next(row for row in rows if row["device"] == device))
        if not families:
            book.note(f"{name}: page faults per step are not shown, no record has them.")
            continue
        shown = [point for part in families.values() for point in part]
        major = any(_counts(data, point, "major").max() > 0 for point in shown)
        book.figure(
            f"faults-{device}",
            "faults",
            partial(draw, data, families, major),
            device=name,
            major=" The lower panels count major faults, which wait for the disk."
            if major
            else " No step of these had a major fault, which waits for the disk.",
        )
    fold = words.count(len(rows), "training cell") if len(rows) > FOLD_ABOVE else ""
    book.table("faults", "faults", table(rows), folded=fold)
    pairs = list(_allocators(rows))
    if pairs:
        book.table("allocators", "allocators", allocators_table(pairs))


def _has_steps(data: Data, point: Row) -> bool:
    return data.traces.course(point) is not None


def _counts(data: Data, point: Row, kind: str) -> Any:
    course = data.traces.course(point)
    assert course is not None
    return course[f"{kind}_faults"].astype(float)


def draw(data: Data, families: dict[Family, list[Row]], major: bool, narrow: bool) -> Any:
    """One panel a family, one line a cell; the axis is linear below 1 and then logarithmic."""
    kinds = [(kind, part, "minor") for kind, part in families.items()]
    if major:
        kinds += [
            (kind, part, "major")
            for kind, part in families.items()
            if any(_counts(data, point, "major").max() > 0 for point in part)
        ]
    columns = 1 if narrow else min(3, len(kinds))
    width = style.width_in(narrow)
    lines = {label(point): point for part in families.values() for point in part}
    entries = [
        (style.sample(None, "-", color=style.colour(p), dashes=style.dashes(p)), name)
        for name, p in lines.items()
    ]
    left, title, foot, height, gap = 0.42, 0.42, 0.4, 1.15, 0.18
    head = style.legend_height(entries, width) + 0.04
    rows = -(-len(kinds) // columns)
    figure = style.canvas(width, head + rows * (title + height + foot))
    style.legend(figure, entries, 0.0)
    panel = (width - gap * (columns - 1)) / columns
    for index, (kind, part, which) in enumerate(kinds):
        row, column = divmod(index, columns)
        x, y = column * (panel + gap), head + row * (title + height + foot)
        name, _, size = kind.label.partition(": ")
        style.write(
            figure,
            x,
            y + 0.12,
            f"{name}{', major faults' if which == 'major' else ''}",
            weight="bold",
            va="center",
        )
        limit = int(panel / style.text_in("x", style.SMALL_PT))
        size = words.shortened(size.partition(", ")[2] or size, limit)
        size = "near capacity" if kind.near_capacity else size
        style.write(figure, x, y + 0.28, size, va="center", size=style.SMALL_PT, color=style.MUTED)
        ax = style.axes(figure, x + left, y + title, panel - left - 0.06, height)
        _panel(ax, data, part, which)
        if column == 0:
            ax.set_ylabel("faults in a step", size=style.SMALL_PT)
        ax.set_xlabel("training step", size=style.SMALL_PT)
    return figure


def _panel(ax: Any, data: Data, part: Sequence[Row], which: str) -> None:
    most, longest = 1.0, 1
    ax.set_yscale("symlog", linthresh=1, linscale=0.4)
    per_line = min(MOST_POINTS, max(MOST_IN_PANEL // len(part), 20))
    for point in part:
        values = _counts(data, point, which).tolist()
        xs, ys = strokes.thin(range(1, len(values) + 1), values, per_line)
        line = ax.plot(xs, ys, color=style.colour(point), dashes=style.dashes(point), linewidth=0.8)
        text = hover.counts(values, f"{which} faults a step")
        marks.tag(line, point, f"{hover.training(point)}: {text}")
        most, longest = max(most, *values), max(longest, len(values))
    ax.set_ylim(-0.15, most * 2)
    ax.set_xlim(1, longest)
    decades = [10.0**n for n in range(0, 12) if 10.0**n <= most * 2]
    ax.yaxis.set_major_locator(FixedLocator([0, *decades[:: 2 if len(decades) > 4 else 1]]))
    ax.yaxis.set_minor_locator(FixedLocator([]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: words.significant(value, 1)))
    style.plain_ticks(ax.xaxis, 4)
    ax.grid(axis="y")


def table(rows: Sequence[Row]) -> Table:
    """Median of the unsplit steps, in counts and in bytes, and the whole cell's counts."""
    result = Table(
        [
            *NAMES,
            Column("minor faults", "per step", True, "median of the unsplit steps"),
            Column("touched by them", "KiB per step", True, "minor faults × page size"),
            Column("major faults", "per step", True, "median of the unsplit steps"),
            Column("read by them", "KiB per step", True, "major faults × page size"),
            Column("minor, whole cell", "", True),
            Column("major, whole cell", "", True),
            Column("page", "KiB", True, folds=True),
        ]
    )
    for row in rows:
        result.add(
            *names(row),
            *(
                value
                for kind in ("minor", "major")
                for value in (
                    _whole(row.get(f"{kind}_faults_per_step"), NO_STEPS),
                    quantity(row.get(f"{kind}_faulted_bytes_per_step"), NO_PAGE, KIB),
                )
            ),
            _whole(row.get("minor_faults"), NO_PAGE),
            _whole(row.get("major_faults"), NO_PAGE),
            quantity(row.get("page_size_bytes"), NO_PAGE, KIB),
            of=row,
        )
    return result


def _whole(value: Any, reason: str) -> Value:
    number = words.number(value)
    if number is None:
        return missing(reason)
    return Value(f"{number:,.0f}".replace(",", words.THIN), sort=number)


def _allocators(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """(default, other) of trainings that differ in the allocator's setting only."""
    return [
        (a, b)
        for a in rows
        for b in rows
        if a.get("allocator") in (None, "default")
        and b.get("allocator") not in (None, "default")
        and differ_in(a, b, "allocator")
    ]


def allocators_table(pairs: Sequence[tuple[Row, Row]]) -> Table:
    """What is left of the faults, and of the step time, when freed memory is kept."""
    result = Table(
        [
            Column("Workload"),
            Column("Device", folds=True),
            Column("Backend"),
            Column("Precision"),
            Column("Allocator", folds=True),
            Column("minor faults, default", "per step", True),
            Column("minor faults, kept", "per step", True),
            Column("step, default", "ms", True, "unsplit: median, 95 % interval"),
            Column("step, kept", "ms", True, "unsplit: median, 95 % interval"),
        ]
    )
    for default, other in pairs:
        result.add(
            default["workload"],
            default["device"],
            words.backend_name(default),
            precision(default),
            other["allocator"],
            _whole(default.get("minor_faults_per_step"), NO_STEPS),
            _whole(other.get("minor_faults_per_step"), NO_STEPS),
            *(_time(row) for row in (default, other)),
            of=(default, other),
        )
    return result


def _time(row: Row) -> Value:
    step = Step.of(row)
    if step is None or has_no_speed(row):
        return missing("no unsplit step was timed, or it is a mechanism check")
    return step.value()
