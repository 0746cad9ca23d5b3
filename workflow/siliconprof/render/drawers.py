"""The six ways to draw a frame. A drawer's fields say which columns are what; `draw` makes the
figure, and `columns` names the columns that go into its CSV file.

Every frame may have the columns `device`, `backend`, `workload` and `precision` (colours, and the
page's filter), `place` (markers), `disturbed` and `published` (looks) and `hover` (more text beside
the pointer). The interval of a column `x` is in `x_low` and `x_high`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from siliconprof import formatting
from siliconprof.analyse.frames import holds, records
from siliconprof.render import axes, style
from siliconprof.render.axes import ROW_IN, Entry, mark, panels, text

PANEL_IN = 1.5
Bars = list[tuple[str, dict[str, Any] | None]]  # labels with their rows


def _known(frame: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """The columns that a frame has of some names, their intervals and those of looks."""
    every = [name for column in names for name in (column, f"{column}_low", f"{column}_high")]
    looks = ["backend", "workload", "scenario", "precision", "published", "disturbed"]
    return [name for name in dict.fromkeys([*every, *looks]) if name in frame]


def _spread(frame: pd.DataFrame, column: str) -> list[pd.Series]:
    """A column and the ends of its interval, if the frame has them."""
    return [frame[name] for end in ("", "_low", "_high") if (name := column + end) in frame]


@dataclass(frozen=True)
class StackedBars:
    """Parts of a whole, end to end: a panel for each of `panel`, a bar for each row.

    Args:
        row: the column that names a bar.
        parts: column -> its name in the legend; parts that no row has are left out.
        x: label of the axis.
        unit: of the values, for the pointer.
        panel: the column that names each pair of axes.
        group: a column whose values are bold headings above their bars.
        by_backend: parts in shades of the backend's hue; others have the colours of a ramp.
        dot: a column and its name in the legend: a dot on the bar, such as the whole step.
        total: whether the value of the dot, else the sum of the parts, is written beside a bar.
        shares: label of a second axis, on which the parts are per cent of their sum.
    """

    row: str
    parts: Mapping[str, str]
    x: str
    unit: str = "ms"
    panel: str = ""
    group: str = ""
    by_backend: Sequence[str] = ()
    dot: tuple[str, str] | None = None
    total: bool = True
    shares: str = ""

    def columns(self, frame: pd.DataFrame) -> list[str]:
        """What names a bar, and its parts."""
        dot = self.dot[0] if self.dot else ""
        return _known(frame, [self.panel, self.group, self.row, *self.parts, dot])

    def draw(self, frame: pd.DataFrame) -> Figure:
        """Bars below each other."""
        parts = [name for name in self.parts if name in frame and frame[name].notna().any()]
        entries: list[Entry] = [
            (axes.swatch(self._fill({}, name, parts)), self.parts[name]) for name in parts
        ]
        if self.dot and self.dot[0] in frame:
            entries.append((axes.dot(style.INK), self.dot[1]))
        own = panels(frame, self.panel)
        lines = [self._lines(rows) for _, rows in own]
        heights_in = [ROW_IN * len(each) + 0.06 for each in lines]
        labels = [label for each in lines for label, _ in each]
        titles = [name for name, _ in own]
        entries += axes.looks(frame)
        drawing, all_axes = axes.layout(heights_in, labels, titles, entries)
        for ax, each, (_, rows) in zip(all_axes, lines, own, strict=True):
            self._panel(ax, each, rows, parts)
            if self.shares:
                self._beside(drawing, ax, rows, parts)
        return drawing

    def _beside(self, drawing: Figure, ax: Axes, rows: pd.DataFrame, parts: list[str]) -> None:
        left, low, width, high = ax.get_position().bounds
        ax.set_position((left, low, 0.54 * width, high))
        own = drawing.add_axes((left + 0.64 * width, low, 0.36 * width, high))
        ends = [f"{part}_{end}" for part in parts for end in ("low", "high")]
        numbers = rows[parts].astype(float).clip(lower=0)
        shares = 100 * numbers.div(numbers.sum(axis=1), axis=0)
        shares = rows.drop(columns=[*parts, *ends], errors="ignore").join(shares)
        alike = replace(self, x=self.shares, unit="%", dot=None, total=False)
        alike._panel(own, alike._lines(shares), shares, parts)
        own.tick_params(labelleft=False)

    def _lines(self, rows: pd.DataFrame) -> Bars:
        """Labels and rows from top to bottom; a heading has no row."""
        lines: Bars = []
        for name, group in panels(rows, self.group):
            if self.group:
                lines.append((name, None))
            lines += [(text(row[self.row]), row) for row in records(group)]
        return lines

    def _panel(self, ax: Axes, lines: Bars, rows: pd.DataFrame, parts: list[str]) -> None:
        numbers = rows[parts].astype(float)
        ends = [numbers.clip(lower=0).sum(axis=1), numbers.clip(upper=0).sum(axis=1)]
        ends += [rows[self.dot[0]]] if self.dot and self.dot[0] in rows else []
        ends += [ends[0] - numbers[p] + rows[f"{p}_high"] for p in parts if f"{p}_high" in rows]
        axes.scale(ax.xaxis, False, self.x, axes.limits(ends, False, zero=True))
        headings = [place for place, (_, row) in enumerate(lines) if row is None]
        axes.categories(ax, [label for label, _ in lines], headings)
        if min(ends[1].min(), 0) < 0:
            ax.axvline(0, color=style.MUTED, linewidth=0.6)
        for y, (label, row) in enumerate(lines):
            if row is not None:
                self._bar(ax, y, label, row, parts)

    def _bar(self, ax: Axes, y: int, label: str, row: dict[str, Any], parts: list[str]) -> None:
        right = left = end = 0.0
        for name in parts:
            value, *ends = (formatting.number(row.get(name + end)) for end in ("", "_low", "_high"))
            if value is None:
                continue
            start = right if value >= 0 else left
            fill = self._fill(row, name, parts)
            bar = Rectangle((start, y - 0.33), value, 0.66, facecolor=fill, linewidth=0)
            ax.add_artist(bar)
            said = axes.measured(row, name, self.unit)
            mark(bar, (row, f"{label}, {self.parts[name]}: {said}"))
            right, left = max(right, start + value), min(left, start + value)
            reached = [start + bound for bound in ends if bound is not None]
            if len(reached) == 2:
                axes.add_line(ax, reached, [y, y], color=style.INK, linewidth=0.7)
            end = max(end, right, *reached)
        whole = right + left
        name, meaning = self.dot or ("", "")
        if (value := formatting.number(row.get(name))) is not None:
            said = f"{label}, {meaning}: {axes.measured(row, name, self.unit)}"
            axes.add_dots(ax, [(value, y, row, said)], 3, {}, style.INK)
            end, whole = max(end, value), value
        if self.total and whole:
            look: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
            look |= {"size": style.SMALL_PT}
            ax.annotate(formatting.significant(whole), (end, y), (4, 0), color=style.MUTED, **look)

    def _fill(self, row: Mapping[str, Any], part: str, parts: Sequence[str]) -> str:
        alike = [name for name in parts if (name in self.by_backend) == (part in self.by_backend)]
        if part not in self.by_backend:
            return style.ramp(alike.index(part), len(alike))
        return style.shade(row.get("backend"), (45, 100, 60, 25, 80)[alike.index(part) % 5])


@dataclass(frozen=True)
class DotInterval:
    """Values with their intervals on one logarithmic axis: a line for each of `row`, a dot for each row.

    Args:
        row: the column that names a line.
        value: the column of the values.
        x: label of the axis; `unit` is for the pointer.
    """

    row: str
    value: str
    x: str
    unit: str = ""

    def columns(self, frame: pd.DataFrame) -> list[str]:
        """What names a dot, and its value."""
        return _known(frame, [self.row, "place", "setup", self.value])

    def draw(self, frame: pd.DataFrame) -> Figure:
        """Lines of dots below each other."""
        labels = [text(name) for name in dict.fromkeys(frame[self.row])]
        entries = [*axes.kinds(frame), *axes.device_entries(frame), *axes.looks(frame)]
        drawing, (ax,) = axes.layout([ROW_IN * len(labels) + 0.06], labels, [""], entries)
        axes.scale(ax.xaxis, True, self.x, axes.limits(_spread(frame, self.value), True))
        axes.categories(ax, labels)
        ax.grid(visible=True, axis="y", color=style.RULE_COLOUR, linewidth=0.4)
        own = frame[frame[self.value].gt(0)]
        rows = records(own)
        at = [labels.index(text(row[self.row])) for row in rows]
        ends = [own.get(f"{self.value}_{end}", own[self.value]) for end in ("low", "high")]
        hues: Any = [style.colour(row) for row in rows]
        ax.hlines(at, ends[0], ends[1], hues, linewidth=0.9)
        dots = [(row[self.value], y, row, self._said(row)) for y, row in zip(at, rows, strict=True)]
        axes.add_dots(ax, dots, 3.6, axes.devices(frame))
        return drawing

    def _said(self, row: Mapping[str, Any]) -> str:
        names = [text(row[self.row]), text(row.get("setup")), text(row.get("place"))]
        said = ", ".join(filter(None, names))
        return f"{said}: {axes.measured(row, self.value, self.unit)}"


@dataclass(frozen=True)
class Lines:
    """Series over an axis: a panel for each of `panel`, a line for each of `line`.

    Args:
        colour: a column whose values, in order, colour the lines along a ramp; without one, backend
            and precision do.
        dashed: a column that is true for dashed lines.
        markers: whether each value of a solid line has its device's marker and a hover text;
            `dashed_markers`: of dashed lines too.
    """

    panel: str
    line: str
    x: str
    y: str
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    columns_of_panels: int = 3
    colour: str = ""
    dashed: str = ""
    markers: bool = False
    dashed_markers: bool = False

    def columns(self, frame: pd.DataFrame) -> list[str]:
        """What names a line, and its values."""
        return _known(frame, [self.panel, self.line, self.colour, self.x, self.y])

    def draw(self, frame: pd.DataFrame) -> Figure:
        """Small multiples."""
        frame = frame.dropna(subset=[self.line, self.x, self.y])
        for column, log in ((self.x, self.log_x), (self.y, self.log_y)):
            frame = frame[frame[column].gt(0)] if log else frame
        own = panels(frame, self.panel)
        order = list(dict.fromkeys(frame[self.colour])) if self.colour else []
        hues = {value: style.ramp(place, len(order)) for place, value in enumerate(order)}
        shapes = axes.devices(frame)
        entries: list[Entry] = [(axes.stroke(hue), text(value)) for value, hue in hues.items()]
        if not self.colour:
            entries = axes.kinds(frame)
        if self.dashed and holds(frame, self.dashed).any():
            entries.append((axes.stroke(style.MUTED, "--"), f"dashed: {self.dashed}"))
        entries += axes.device_entries(frame) if self.markers else []
        entries += axes.looks(frame)
        titles, columns = [name for name, _ in own], min(self.columns_of_panels, len(own))
        drawing, all_axes = axes.layout([PANEL_IN] * len(own), [], titles, entries, columns)
        for index, (ax, (name, rows)) in enumerate(zip(all_axes, own, strict=True)):
            ends = axes.limits([rows[self.x]], self.log_x)
            axes.scale(ax.xaxis, self.log_x, self.x_label, ends)
            first = index % self.columns_of_panels == 0
            values = _spread(rows, self.y) if self.markers else [rows[self.y]]
            ends = axes.limits(values, self.log_y)
            axes.scale(ax.yaxis, self.log_y, self.y_label if first else "", ends)
            heads = records(rows.drop_duplicates(self.line))
            for head, (title, series) in zip(heads, panels(rows, self.line), strict=True):
                said = f"{name}, {title}".removeprefix(", ")
                self._line(ax, said, head, series, hues, shapes)
        return drawing

    def _line(
        self,
        ax: Axes,
        name: str,
        first: Mapping[str, Any],
        series: pd.DataFrame,
        hues: Mapping,
        shapes: Mapping,
    ) -> None:
        hue = hues[first[self.colour]] if self.colour else style.colour(first)
        dashed = bool(self.dashed) and axes.is_true(first, self.dashed)
        xs, ys = series[self.x].tolist(), series[self.y].tolist()
        dashes = "--" if dashed else "-"
        line = axes.add_line(ax, xs, ys, color=hue, linewidth=0.9, linestyle=dashes)
        ends = f"{formatting.significant(ys[0])} to {formatting.significant(ys[-1])}"
        mark(line, ({**first, "disturbed": None}, f"{name}: {self.y_label or self.y} {ends}"))
        if not (self.dashed_markers if dashed else self.markers) and len(series) > 1:
            return
        if f"{self.y}_low" in series:
            low, high = series[f"{self.y}_low"], series[f"{self.y}_high"]
            ax.vlines(xs, low, high, hue, linewidth=0.7)
        dots = [(row[self.x], row[self.y], row, self._said(name, row)) for row in records(series)]
        axes.add_dots(ax, dots, 2.6, shapes, hue)

    def _said(self, name: str, row: Mapping[str, Any]) -> str:
        at = f"{self.x_label} {formatting.significant(row[self.x])}"
        return f"{name}, {at}: {axes.measured(row, self.y, self.y_label)}"


@dataclass(frozen=True)
class Scatter:
    """One value against another, with the line where both are equal, or the roofs of devices.

    Args:
        name: the column that says what a dot is.
        equal: whether the line of equal values is drawn, on axes of the same ends.
        roofs: columns of a roofline: the highest level, the slope, and what it is of.
        panel: the column that names each pair of axes.
    """

    x: str
    y: str
    x_label: str
    y_label: str
    name: str = "setup"
    equal: bool = False
    roofs: tuple[str, str, str] | None = None
    panel: str = ""
    high_in: float = 3.0

    def columns(self, frame: pd.DataFrame) -> list[str]:
        """What names a dot, and both values."""
        roofs = self.roofs[:2] if self.roofs else ()
        return _known(frame, [self.panel, "place", self.name, self.x, self.y, *roofs])

    def draw(self, frame: pd.DataFrame) -> Figure:
        """Dots on logarithmic axes."""
        frame = frame[frame[self.x].gt(0) & frame[self.y].gt(0)]
        own = panels(frame, self.panel)
        entries = [*axes.kinds(frame), *axes.device_entries(frame), *axes.looks(frame)]
        if self.equal:
            entries.append((axes.stroke(style.MUTED, "--"), "both are equal"))
        titles, columns = [name for name, _ in own], min(2, len(own))
        drawing, all_axes = axes.layout([self.high_in] * len(own), [], titles, entries, columns)
        shapes = axes.devices(frame)
        for ax, (_, rows) in zip(all_axes, own, strict=True):
            self._panel(ax, rows, shapes)
        return drawing

    def _panel(self, ax: Axes, rows: pd.DataFrame, shapes: Mapping[str, str]) -> None:
        x_ends = axes.limits([rows[self.x]], True)
        y_ends = axes.limits([rows[self.y]], True)
        if self.equal:
            x_ends = y_ends = (min(x_ends[0], y_ends[0]), max(x_ends[1], y_ends[1]))
        if self.roofs:
            y_ends = axes.limits([rows[self.y], rows[self.roofs[0]]], True)
        axes.scale(ax.xaxis, True, self.x_label, x_ends)
        axes.scale(ax.yaxis, True, self.y_label, y_ends)
        if self.equal:
            axes.add_line(ax, x_ends, x_ends, color=style.MUTED, linewidth=0.8, linestyle="--")
        if self.roofs:
            level, slope, of = self.roofs
            known = rows.dropna(subset=[level, slope]).drop_duplicates(of)
            for row in records(known):
                xs = [x_ends[0], min(max(row[level] / row[slope], x_ends[0]), x_ends[1]), x_ends[1]]
                ys = [min(row[level], row[slope] * x) for x in xs]
                line = axes.add_line(ax, xs, ys, color=style.colour(row), linewidth=0.8)
                high, steep = formatting.significant(row[level]), formatting.significant(row[slope])
                roof = f"roof of {row[of]}: {high}, {steep} a unit of x"
                mark(line, (row | {"disturbed": None, "hover": None}, roof))
        each = records(rows)
        dots = [(row[self.x], row[self.y], row, self._said(row)) for row in each]
        axes.add_dots(ax, dots, 3.4, shapes)

    def _said(self, row: Mapping[str, Any]) -> str:
        x, y = (axes.measured(row, name, "") for name in (self.x, self.y))
        return f"{text(row[self.name])}: {self.x_label} {x}, {self.y_label} {y}"


@dataclass(frozen=True)
class Timeline:
    """Quantities over seconds: a panel for each of `panel`, a line for each of `series`."""

    panel: str
    t: str
    series: Mapping[str, str]  # column -> its name in the legend
    y_label: str

    def columns(self, frame: pd.DataFrame) -> list[str]:
        """What names a panel, and its values."""
        return _known(frame, [self.panel, self.t, *self.series])

    def draw(self, frame: pd.DataFrame) -> Figure:
        """Two panels a row."""
        own = panels(frame, self.panel)
        shown = [name for name in self.series if any(rows[name].notna().any() for _, rows in own)]
        hue = {name: style.ramp(2 * place, 6) for place, name in enumerate(shown)}
        entries = [(axes.stroke(hue[name]), self.series[name]) for name in shown]
        columns = min(2, len(own))
        titles, high_in = [name for name, _ in own], PANEL_IN - 0.3
        drawing, all_axes = axes.layout([high_in] * len(own), [], titles, entries, columns)
        for index, (ax, (name, rows)) in enumerate(zip(all_axes, own, strict=True)):
            axes.scale(ax.xaxis, False, "seconds", axes.limits([rows[self.t]], False, zero=True))
            label = self.y_label if index % columns == 0 else ""
            ends = axes.limits([rows[column] for column in shown], False, zero=True)
            axes.scale(ax.yaxis, False, label, ends)
            for column in shown:
                known = rows.dropna(subset=[column])
                if len(known):
                    xs, ys = known[self.t].tolist(), known[column].tolist()
                    line = axes.add_line(ax, xs, ys, color=hue[column], linewidth=1)
                    most = f"at most {formatting.significant(max(ys))} {self.y_label}"
                    said = f"{name}, {self.series[column]}: {most}"
                    mark(line, (records(known.head(1))[0], said))
        return drawing


@dataclass(frozen=True)
class Flow:
    """Layers of a stack from left to right: a box for each name of a layer, rows are paths."""

    layers: Mapping[str, str]  # column -> heading

    def columns(self, frame: pd.DataFrame) -> list[str]:
        """The layers."""
        return _known(frame, list(self.layers))

    def draw(self, frame: pd.DataFrame) -> Figure:
        """Boxes, and a line for each path between two of them."""
        most = max(frame[layer].nunique() for layer in self.layers)
        drawing = Figure(figsize=(axes.WIDTH_IN, 0.3 * most + 0.45))
        ax = drawing.add_axes((0, 0, 1, 1), xlim=(0, len(self.layers)), ylim=(most + 0.1, -0.9))
        ax.axis("off")
        limit = int(0.8 * axes.WIDTH_IN / len(self.layers) / style.text_in("x", style.SMALL_PT))
        at: dict[tuple[str, Any], tuple[float, float]] = {}
        look: dict[str, Any] = {"facecolor": style.PAPER, "edgecolor": style.FAINT}
        look |= {"linewidth": 0.7, "boxstyle": "round,pad=0,rounding_size=0.05"}
        for x, (layer, heading) in enumerate(self.layers.items()):
            ax.text(x + 0.5, -0.55, heading, ha="center", color=style.MUTED, fontweight="bold")
            names = list(dict.fromkeys(frame[layer].dropna()))
            for y, name in enumerate(names):
                middle = (y + 0.5) * most / len(names)
                at[layer, name] = (x + 0.5, middle)
                ax.add_patch(FancyBboxPatch((x + 0.1, middle - 0.34), 0.8, 0.68, **look))
                words_ = formatting.shortened(str(name), limit)
                ax.text(x + 0.5, middle, words_, ha="center", va="center", size=style.SMALL_PT)
        for left, right in pairwise(self.layers):
            each = frame.dropna(subset=[left, right]).drop_duplicates([left, right, "backend"])
            below = 0.1 * each.groupby([left, right]).cumcount()  # another backend's line
            for row, down in zip(records(each), below, strict=True):
                (x1, y1), (x2, y2) = at[left, row[left]], at[right, row[right]]
                xs, ys = [x1 + 0.4, x2 - 0.4], [y1 + down, y2 + down]
                line = axes.add_line(ax, xs, ys, color=style.shade(row["backend"]), linewidth=1)
                path = f"{row[left]} – {row[right]}, {row['backend']}"
                mark(line, (row | {"disturbed": None}, path))
        return drawing


Drawer = StackedBars | DotInterval | Lines | Scatter | Timeline | Flow
