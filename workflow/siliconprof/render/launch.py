"""Kernel launch: four different numbers, and how far they are apart."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from siliconprof import words
from siliconprof.render import tables
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, count, median, missing, number, told
from siliconprof.render.variants import Row

US = 1e-6
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
UNRECORDED = "not recorded"


def add(data: Data, book: Book) -> None:
    """Two tables."""
    points = data.of_module("kernel_launch")
    if not points:
        book.note(data.why_none("kernel_launch", "kernel launch"))
        return
    book.table("kernel-launch", "launch", table(data, points))
    book.table("cold-launch", "launch-cold", cold_table(data, points))


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
        times = data.traces.series(point, "cold_s")
        if not times:
            return ""
        return "–".join(words.significant(end / US) for end in (min(times), max(times)))

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
