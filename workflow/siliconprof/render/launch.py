"""Kernel launch: four different numbers, and the published ones in a panel of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.render import chart, hover, style, tables
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, count, median, missing, number, told
from siliconprof.render.variants import Row

US = 1e-6
KINDS = (  # series, what it is called, marker
    ("cold", "cold: the first launch of a process", "D"),
    ("launch_and_wait", "launch and wait", "o"),
    ("amortised", "amortised over a burst", "s"),
    ("enqueue", "enqueue only", "<"),
)
RATIOS = (  # (over, under), how far the four numbers are apart
    ("launch_and_wait", "amortised", "wait / amortised"),
    ("amortised", "enqueue", "amortised / enqueue"),
    ("cold", "launch_and_wait", "cold / wait"),
)
BEFORE = (  # what a fresh process does before its cold launch: series, column, help
    ("import", "import", "of the framework, its files in the system's cache"),
    ("context", "context", "opening the device, with the first arrays on it"),
    ("other_kernel", "another kernel", "a product, with what its library sets up"),
    ("compile_and_load", "compile and load", "of the empty kernel; compilers keep caches on disk"),
)
PUBLISHED_KINDS = (("cold_launch_ms", "cold", "D"), ("followup_launch_ms", "follow-up", "o"))
TIME = Scale("time of one launch / µs", log=10)
UNRECORDED = "not recorded"


def add(data: Data, book: Book, prefix: str = "", with_published: bool = True) -> None:
    """One figure, two tables."""
    points = data.of_module("kernel_launch")
    printed = data.published["table6_kernel_launch"] if with_published else []
    if not points:
        book.note(data.why_none("kernel_launch", "kernel launch"))
        return
    name = f"{prefix}kernel-launch"
    book.figure(name, "launch" if printed else "launch-only", partial(draw, data, points, printed))
    book.table(name, "launch", table(data, points))
    book.table(f"{prefix}cold-launch", "launch-cold", cold_table(data, points))


def draw(data: Data, points: Sequence[Row], printed: Sequence[Row], narrow: bool) -> Any:
    """Measured rows above, published rows below and hatched; one log axis for both."""
    several = len({point["device"] for point in points}) > 1
    labels = [f"{words.backend_name(point)} · {point['launch']}" for point in points]
    if several:
        apart = "\n" if narrow else " · "
        devices = map(data.device_name, points)
        labels = [apart.join(both) for both in zip(devices, labels, strict=True)]
    shown = [
        mark
        for y, (point, name) in enumerate(zip(points, labels, strict=True))
        for mark in _marks(y, point, data, name)
    ]
    title = "Measured here" if printed else "Measured"
    panels = [Panel(shown, TIME, labels=labels, label_rows=points, title=title)]
    if printed:
        names = [data.listed_name(row["device"]) for row in printed]
        hatched = [
            mark for item in enumerate(zip(printed, names, strict=True)) for mark in _printed(*item)
        ]
        panels.append(
            Panel(hatched, TIME, labels=names, title="Published, not measured here", quiet=True)
        )
    legend = [(style.sample(m, color=style.MUTED, markersize=3.4), name) for _, name, m in KINDS]
    return Chart(panels, legend, same_x=True).figure(narrow)


def _ends(data: Data, point: Row, kind: str) -> tuple[float | None, float | None]:
    """Where a number's line begins and ends, in seconds.

    The 95 % interval of the median; of cold launches the lowest and the highest process.
    """
    if kind == "cold":
        times = data.traces.series(point, "cold_s")
        return (min(times), max(times)) if times else (None, None)
    return words.number(point[f"{kind}_low_s"]), words.number(point[f"{kind}_high_s"])


def _marks(y: int, point: Row, data: Data, name: str) -> Iterator[Mark]:
    """All numbers of one launcher, each with its line where it has one."""
    ink = style.shade(point["backend"])
    for kind, called, marker in KINDS:
        middle = words.number(point[f"{kind}_median_s"])
        low, high = _ends(data, point, kind)
        if middle is None or low is None or high is None:
            continue
        what = hover.RANGE if kind == "cold" else hover.interval_name(point, kind)
        text = f"{name}: {called.split(':')[0]} {hover.seconds(middle, low, high, what)}"
        yield chart.line([low / US, high / US], [y, y], point, color=ink)
        yield chart.dot(middle / US, y, point, text, marker, color=ink)


def _printed(y: int, row_and_name: tuple[Row, str]) -> Iterator[Mark]:
    """Both numbers of a published row; the first row names them."""
    row, name = row_and_name
    for column, kind, marker in PUBLISHED_KINDS:
        x = float(row[column]) * 1e-3 / US
        text = f"{name}: {kind} launch {row[column]} ms, published, not measured here"
        yield chart.published(x, y, text, marker)
        if y == 0:
            yield chart.note(x, -0.5, kind, shift=(0, 0), ha="center", va="bottom")


# -- tables ------------------------------------------------------------------------------------

NAMES = (tables.DEVICE, tables.BACKEND, told("Launched", "launch"))


def table(data: Data, points: Sequence[Row]) -> Table:
    """The four numbers in µs, and how far they are apart."""

    def series(head: str, kind: str, help: str) -> Column:
        return median(head, "µs", kind, UNRECORDED, help, ("low", "high"), 3)

    def ratio(over: str, under: str, head: str) -> Column:
        def value(point: Row) -> float | None:
            above, below = (words.number(point[f"{kind}_median_s"]) for kind in (over, under))
            return above / below if above is not None and below else None

        return number(head, "", value, "one of the two is missing", "ratio of the medians")

    columns = [
        *NAMES,
        told("What it is", "note", folds=True),
        _cold(data, "median of fresh processes; below, lowest and highest"),
        series("launch and wait", "launch_and_wait", "median, 95 % interval"),
        series("amortised", "amortised", "burst with one wait at its end, per launch"),
        series("enqueue", "enqueue", "handing over, per launch of a burst"),
        *(ratio(*each) for each in RATIOS),
        count("burst", "burst", UNRECORDED, "over which the launch is amortised", "launches"),
    ]
    notes = [
        f"Enqueue, {point['backend']}, in bursts of {point['enqueue_burst']:.0f}: "
        f"{point['enqueue_means']}."
        for point in points
        if point["enqueue_means"]
    ]
    return Table.of(points, columns, notes=list(dict.fromkeys(notes)))


def cold_table(data: Data, points: Sequence[Row]) -> Table:
    """What a fresh process spends up to its first launch: medians of the processes."""
    spread = "inter-quartile range of the cold launches over median"
    columns = [
        *NAMES,
        Column("processes", "", True, "that reached their one cold launch", value=_processes),
        *(
            number(head, "ms", f"{series}_median_s", partial(_why, series), help)
            for series, head, help in BEFORE
        ),
        _cold(data, "with its wait; below, lowest and highest"),
        number("spread", "%", _spread, "fewer than two processes", spread, digits=2),
    ]
    notes = [f"Cold, {p['backend']}: {p['cold_means']}." for p in points if p["cold_means"]]
    return Table.of(points, columns, notes=list(dict.fromkeys(notes)))


def _cold(data: Data, help: str) -> Column:
    """The cold launch: median of the processes, with the lowest and the highest."""

    def span(point: Row) -> str:
        low, high = _ends(data, point, "cold")
        if low is None or high is None:
            return ""
        return "–".join(words.significant(end / US) for end in (low, high))

    return number(
        "cold",
        "µs",
        "cold_median_s",
        lambda point: point["cold_reason"] or UNRECORDED,
        help,
        under=span,
        title=lambda point: f"n = {point['cold_n']:.0f}" if span(point) else "",
    )


def _processes(point: Row) -> Value:
    n = words.number(point["cold_n"])
    if not n:
        return missing(point["cold_reason"] or UNRECORDED)
    return Value(f"{n:.0f}", sort=n, reason=point["cold_failures"] or "")


def _spread(point: Row) -> float | None:
    n = words.number(point["cold_n"])
    if not n or n < 2:
        return None
    return (point["cold_q75_s"] - point["cold_q25_s"]) / point["cold_median_s"]


def _why(series: str, point: Row) -> str:
    """Why a time before the cold launch is missing."""
    reason = point["compile_and_load_reason"] if series == "compile_and_load" else None
    return reason or point["cold_failures"] or UNRECORDED
