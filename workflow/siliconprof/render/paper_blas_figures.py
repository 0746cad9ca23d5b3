"""How the paper's Figures 5, 6 and 7 are drawn: a row of panels for each pair or device."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from typing import Any, Protocol

from siliconprof import words
from siliconprof.render import by_shape, marks, style
from siliconprof.render.by_shape import PRODUCTS, Rate, shape_key, shape_name
from siliconprof.render.data import Data
from siliconprof.render.paper_bars import (
    TITLE_IN,
    Bar,
    Panel,
    Span,
    draw,
    filled,
    place,
    where,
)
from siliconprof.render.variants import PRECISION_ORDER, Row, backend_place

GIGA, TERA = 1e9, 1e12
DOT_IN = 0.115  # of one device and backend within a shape
FOOT_IN, FORMAT_IN, GAP_IN = 0.42, 0.17, 0.16


class Grouped(Protocol):
    """A row of panels."""

    @property
    def title(self) -> str: ...
    @property
    def remark(self) -> str: ...
    @property
    def points(self) -> Sequence[Row]: ...


def slots(points: Sequence[Row]) -> list[tuple]:
    """(source, host, device, backend) of points, CUDA first."""
    return sorted(
        {(*where(point), point["backend"]) for point in points},
        key=lambda way: (backend_place(way[3]), way),
    )


def formats(points: Sequence[Row]) -> list[str]:
    """The number formats of points, fp32 first."""
    return [name for name in PRECISION_ORDER if any(p["precision"] == name for p in points)]


def hover_text(data: Data, point: Row) -> str:
    """The point's name, its throughput with its interval, and that of the burst."""
    rate = by_shape.median_rate(PRODUCTS, point)
    burst = by_shape.burst_rate(PRODUCTS, point).middle
    text = (
        f"{place(data, point)}, {words.backend_name(point)} {point['precision']}, "
        f"{shape_name(point)}: {span(rate).text(GIGA, 'GFLOP/s')}"
    )
    return text + (f"; burst {words.significant(burst / GIGA)} GFLOP/s" if burst else "")


def span(rate: Rate) -> Span:
    """A throughput that there is, as a bar has it."""
    assert rate.middle
    return Span(rate.middle, rate.low, rate.high)


# -- Figure 5: one shape, bars -----------------------------------------------------------------


def bars(data: Data, groups: Sequence[Grouped], narrow: bool) -> Any:
    """A bar for each backend and number format; the panels of one group share their scale."""
    panels: list[Panel | None] = []
    columns = max(len(formats(group.points)) for group in groups)
    for group in groups:
        most = max(
            end
            for point in group.points
            for end in (
                by_shape.median_rate(PRODUCTS, point).high or point["flop_per_s"],
                by_shape.burst_rate(PRODUCTS, point).middle or 0.0,
            )
        )
        scale, unit = (TERA, "TFLOP/s") if most >= TERA else (GIGA, "GFLOP/s")
        for index, name in enumerate(formats(group.points)):
            rows = [point for point in group.points if point["precision"] == name]
            rows.sort(
                key=lambda point: slots(group.points).index((*where(point), point["backend"]))
            )
            by_device: dict[str, list[Bar]] = {}
            for point in rows:
                by_device.setdefault(place(data, point), []).append(_bar(data, point, scale))
            if list(by_device) == [group.title]:  # said above already
                by_device = {"": by_device[group.title]}
            panels.append(
                Panel(
                    f"{group.title}, {name}" if index == 0 or narrow else name,
                    group.remark if index == 0 or narrow else " ",
                    [list(by_device.items())],
                    unit,
                    scale,
                    most,
                )
            )
        panels += [None] * (columns - len(formats(group.points)))
    entries = [
        *style.backends([point for group in groups for point in group.points], 3.2),
        (style.sample(None, "-", color=style.INK, linewidth=0.9), "95 % interval of the median"),
        (
            style.sample(
                "o", color=style.INK, markersize=4.2, markerfacecolor="none", markeredgewidth=0.8
            ),
            "mean of a burst, the paper's way",
        ),
    ]
    return draw(panels, entries, columns, narrow, in_rows=True)


def _bar(data: Data, point: Row, scale: float) -> Bar:
    rate = by_shape.median_rate(PRODUCTS, point)
    return Bar(
        words.backend_name(point),
        [(span(rate), filled(style.colour(point)))],
        words.significant(span(rate).middle / scale),
        hover_text(data, point),
        point,
        by_shape.burst_rate(PRODUCTS, point).middle,
    )


# -- Figures 6 and 7: many shapes, dots ----------------------------------------------------------


def dots_entries(data: Data, groups: Sequence[Grouped]) -> list[style.Entry]:
    """Colours are backends, markers devices."""
    points = [point for group in groups for point in group.points]
    devices = {place(data, point): point["device"] for point in points}
    entries = style.backends(points, 3.2)
    if len(devices) > 1:
        entries += [
            (style.sample(style.device_mark(device), color=style.MUTED, markersize=3.2), name)
            for name, device in devices.items()
        ]
    ring: style.Entry = (
        style.sample(
            "o", color=style.MUTED, markersize=4.2, markerfacecolor="none", markeredgewidth=0.7
        ),
        "mean of a burst, the paper's way",
    )
    return [*entries, ring]


def dots(data: Data, groups: Sequence[Grouped], narrow: bool) -> Any:
    """Shapes from small to large downwards, a panel each number format, throughput on a log axis."""
    width = style.width_in(narrow)
    entries = dots_entries(data, groups)
    head = style.legend_height(entries, width) + 0.06
    names = {shape_key(p): shape_name(p) for group in groups for p in group.points}
    left = style.labels_in(list(names.values()), narrow) + 0.12
    highs = [_shape_in(group) * len({shape_key(p) for p in group.points}) for group in groups]
    above = TITLE_IN + FORMAT_IN
    figure = style.canvas(width, head + sum(above + high + FOOT_IN for high in highs))
    style.legend(figure, entries, 0.0)
    columns = max(len(formats(group.points)) for group in groups)
    panel = (width - left - 0.08 - GAP_IN * (columns - 1)) / columns
    top = head
    for group, high in zip(groups, highs, strict=True):
        style.write(figure, 0, top + 0.12, group.title, weight="bold", va="center")
        shapes = sorted({shape_key(point) for point in group.points})
        ends = [
            rate
            for point in group.points
            for rate in (
                *by_shape.median_rate(PRODUCTS, point),
                by_shape.burst_rate(PRODUCTS, point).middle,
            )
            if rate
        ]
        low, most = 10 ** (log10(min(ends)) - 0.12), 10 ** (log10(max(ends)) + 0.12)
        for column, name in enumerate(formats(group.points)):
            x = left + column * (panel + GAP_IN)
            style.write(
                figure,
                x,
                top + TITLE_IN + 0.06,
                name,
                size=style.SMALL_PT,
                va="center",
                color=style.MUTED,
            )
            ax = style.axes(figure, x, top + above, panel, high)
            ax.set_xscale("log")
            ax.set_xlim(low, most)
            ax.set_ylim(len(shapes) - 0.5, -0.5)
            ax.set_yticks(range(len(shapes)), [names[s] for s in shapes] if column == 0 else [])
            ax.tick_params(
                axis="y",
                length=0,
                labelcolor=style.INK,
                labelsize=style.SMALL_PT if narrow else style.TEXT_PT,
            )
            ax.spines["left"].set_visible(False)
            ax.grid(axis="x")
            for y in range(1, len(shapes)):
                ax.axhline(y - 0.5, color=style.RULE, linewidth=0.4)
            style.log_ticks(ax.xaxis, low, most * (20 if columns > 2 or narrow else 1))
            if most < 12 * low and (narrow or columns > 2):  # decades would be too few
                ax.xaxis.set_major_locator(style.MaxNLocator(2))
            ax.xaxis.set_major_formatter(
                style.FuncFormatter(lambda value, _: words.significant(value / GIGA, 1))
            )
            ax.set_xlabel("GFLOP/s", size=style.SMALL_PT)
            _dots(ax, data, group, name, shapes)
        top += above + high + FOOT_IN
    return figure


def _shape_in(group: Grouped) -> float:
    return 0.1 + DOT_IN * len(slots(group.points))


def _dots(ax: Any, data: Data, group: Grouped, name: str, shapes: Sequence[tuple]) -> None:
    ways = slots(group.points)
    for point in group.points:
        if point["precision"] != name:
            continue
        index = ways.index((*where(point), point["backend"]))
        at = shapes.index(shape_key(point)) + 0.72 * ((index + 0.5) / len(ways) - 0.5)
        ink, marker = style.shade(point["backend"]), style.device_mark(point["device"])
        rate = by_shape.median_rate(PRODUCTS, point)
        burst = by_shape.burst_rate(PRODUCTS, point).middle
        shown = ax.plot([rate.middle], [at], marker, color=ink, markersize=3, zorder=4)
        if burst:
            shown += ax.plot(
                [burst],
                [at],
                marker,
                color=ink,
                markersize=4.8,
                zorder=3,
                markerfacecolor="none",
                markeredgewidth=0.7,
            )
        marks.tag(shown, point, hover_text(data, point))
        if rate.low and rate.high:
            line = ax.plot([rate.low, rate.high], [at, at], color=ink, linewidth=0.9, zorder=2)
            marks.tag(line, point)
