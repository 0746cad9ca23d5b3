"""Kernel launch: four different numbers."""

from __future__ import annotations

from collections.abc import Sequence

from siliconprof import words
from siliconprof.render import tables
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, count, median, number, told
from siliconprof.render.variants import Row

US = 1e-6
UNRECORDED = "not recorded"


def add(data: Data, book: Book) -> None:
    """The table."""
    points = data.of_module("kernel_launch")
    if not points:
        book.note(data.why_none("kernel_launch", "kernel launch"))
        return
    book.table("kernel-launch", "launch", table(data, points))


NAMES = (tables.DEVICE, tables.BACKEND, told("Launched", "launch"))


def table(data: Data, points: Sequence[Row]) -> Table:
    """The four numbers in µs."""

    def series(head: str, kind: str, help: str) -> Column:
        return median(head, "µs", kind, UNRECORDED, help, ("low", "high"), 3)

    columns = [
        *NAMES,
        told("What it is", "note", folds=True),
        _cold(data),
        series("launch and wait", "launch_and_wait", "median, 95 % interval"),
        series("amortised", "amortised", "burst with one wait at its end, per launch"),
        series("enqueue", "enqueue", "handing over, per launch of a burst"),
        count("burst", "burst", UNRECORDED, "over which the launch is amortised", "launches"),
    ]
    notes = [
        f"Enqueue, {point['backend']}, in bursts of {point['enqueue_burst']:.0f}: "
        f"{point['enqueue_means']}."
        for point in points
        if point["enqueue_means"]
    ]
    notes += [f"Cold, {p['backend']}: {p['cold_means']}." for p in points if p["cold_means"]]
    return Table.of(points, columns, notes=list(dict.fromkeys(notes)))


def _cold(data: Data) -> Column:
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
        "median of fresh processes; below, lowest and highest",
        under=span,
        title=lambda point: f"n = {point['cold_n']:.0f}" if span(point) else "",
    )
