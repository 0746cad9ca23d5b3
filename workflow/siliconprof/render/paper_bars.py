"""Horizontal bars under device names, as the rebuilt figures and tables of the paper share them.

A bar of ours is filled and has the line of its 95 % interval; a published one is hatched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from siliconprof import words
from siliconprof.render import chart, style, uncertainty
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data
from siliconprof.render.variants import Row
from siliconprof.store.records import HERE

ROWS_PER_PANEL, ROWS_PER_FIGURE = 24, 48
HATCHED: style.Entry = (style.swatch("none", style.PUBLISHED_HATCH), "published, not measured here")


class Span(NamedTuple):
    """A value with the ends of its 95 % interval; an end is None where there is none."""

    middle: float
    low: float | None = None
    high: float | None = None

    def text(self, scale: float, unit: str) -> str:
        """`12.3 ms (11.9–12.8)`."""
        value_text = f"{words.significant(self.middle / scale)} {unit}"
        if self.low is None or self.high is None:
            return value_text
        ends = "–".join(words.significant(end / scale) for end in (self.low, self.high))
        return f"{value_text} ({ends})"


@dataclass(frozen=True)
class Bar:
    """One bar, of one or more parts end to end."""

    label: str
    parts: Sequence[tuple[Span, Mapping[str, Any]]]  # each with how it is drawn
    text: str  # at its end
    hover_text: str  # for the pointer
    of: Any = None  # the row or rows that it shows; None where it is published

    def marks(self, y: int) -> Iterator[Mark]:
        """Its parts, their intervals and the words at its end."""
        start = end = 0.0
        for span, look in self.parts:
            yield chart.bar(y, start, start + span.middle, self.of, self.hover_text, 0.66, **look)
            if span.low is not None and span.high is not None:
                ends = [start + span.low, start + span.high]
                yield chart.line(ends, [y, y], self.of, color=style.INK)
            end = max(end, start + max(span.middle, span.high or 0.0))
            start += span.middle
        yield chart.beside(end, y, self.text, self.of, color=style.INK)


def place(data: Data, row: Row) -> str:
    """A row's device, and its host where that is not this one."""
    badge = words.SOURCE_BADGES.get(row["source"])
    return f"{data.device_name(row)} [{badge}: {row['host']}]" if badge else data.device_name(row)


def panel(
    title: str,
    remark: str,
    groups: Iterable[tuple[str, Sequence[Bar]]],
    label: str,
    unit: float = 1.0,
) -> Panel:
    """Bars under the names of their devices."""
    labels: list[str] = []
    headings: dict[int, str] = {}
    shown: list[Mark] = []
    for name, bars in groups:
        headings[len(labels)] = name
        labels.append("")
        for bar in bars:
            shown += bar.marks(len(labels))
            labels.append(bar.label)
    x = Scale(label, zero=True, most=4, unit=unit)
    return Panel(
        shown,
        x,
        labels=labels,
        headings=headings,
        title=title,
        remark=remark,
        row_in=(chart.ROW_IN, chart.ROW_IN),
    )


def panels(
    data: Data,
    rows: Sequence[Row],
    bar: Callable[[Row], Bar],
    title: str,
    remark: str,
    label: str,
    unit: float,
) -> list[Panel]:
    """Bars of measured rows, this host's devices first, in portions that a panel can show.

    Accelerators and CPUs are apart: on one axis the former would vanish beside the latter.
    """
    parts: list[dict[str, list[Bar]]] = []
    for cpu in (False, True):
        groups: dict[str, list[Bar]] = {}
        for row in sorted(rows, key=lambda row: row["source"] != HERE):
            if (row["device_kind"] == "cpu") == cpu:
                groups.setdefault(place(data, row), []).append(bar(row))
        full = True
        for name, bars in groups.items():
            full = full or sum(map(len, parts[-1].values())) + len(bars) > ROWS_PER_PANEL
            if full:
                parts.append({})
            parts[-1][name] = bars
            full = False
    return [panel(title, remark, part.items(), label, unit) for part in parts]


def add(
    book: Book,
    name: str,
    shown: Sequence[Panel],
    legend: Sequence[style.Entry],
    columns: int = 2,
    **values: Any,
) -> None:
    """Figures of panels, as many as a page can show in one, their intervals explained."""
    parts: list[list[Panel]] = []
    for one in shown:
        if parts and sum(len(p.labels) for p in [*parts[-1], one]) <= ROWS_PER_FIGURE:
            parts[-1].append(one)
        else:
            parts.append([one])
    values["intervals"] = uncertainty.origin_text(measured(shown))
    for index, part in enumerate(parts):
        more = f"-{index + 1}" if index else ""
        drawing = Chart(part, legend, (columns, 1))
        book.figure(f"{name}{more}", name, drawing.figure, **values)


def measured(shown: Sequence[Panel]) -> list[Row]:
    """The rows of all bars that are ours."""
    return [mark.of for one in shown for mark in one.marks if mark.of and mark.text]


def filled(face: str) -> dict[str, Any]:
    """How a measured part is drawn."""
    return {"facecolor": face, "edgecolor": style.PAPER, "linewidth": 0.4}
