"""Workloads and probes without exhibits of their own, by what their plug-ins declare.

Of a workload a figure of its first quantity for each device, and a table of all; of a probe a table
of what it read beside each cell.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from siliconprof import plugins, words
from siliconprof.analyse import throughputs
from siliconprof.declarations import Parameter, Quantity
from siliconprof.render import hover, marks, style
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, quantity, ranged, text
from siliconprof.render.variants import Row
from siliconprof.workloads.base import KernelWorkload

# Workloads with exhibits of their own; so have all trainings, by their trainer.
WITH_EXHIBIT = (
    "bandwidth",
    "kernel_launch",
    "matmul",
    "matvec",
    "optimizer_sweep",
    "transformer_grid",
    "vjp",
)
PROBES_WITH_EXHIBIT = ("clocks", "energy", "interference", "memory", "page_faults")
PLACE = (
    Column("Workload", folds=True),
    Column("Device", folds=True),
    Column("Backend"),
    Column("Precision", folds=True),
)
ROWS_PER_FIGURE = 40
TINY = 1e-3  # a number below it is written with an exponent
NOT_MEASURED = "the record does not hold it"


class Shown(NamedTuple):
    """A quantity, its column in points.csv, and the unit that it is shown in."""

    name: str
    label: str
    unit: str
    scale: float
    series: bool
    better: str

    def ends(self, point: Row) -> tuple[float | None, float | None, float | None]:
        """(median or value, ends of its 95 % interval) in the unit shown; None where unknown."""
        stem = self.name.removesuffix("_s")
        names = [f"{stem}_{part}_s" for part in ("median", "low", "high")]
        values = [words.number(point.get(name)) for name in names] if self.series else []
        values = values or [words.number(point.get(self.name)), None, None]
        middle, low, high = (None if v is None else v / self.scale for v in values)
        return middle, low, high


def anything(data: Data) -> bool:
    """Whether there is a workload or a probe to show here."""
    return bool(workloads(data) or probes(data))


def probes(data: Data) -> list[str]:
    """The probes that ran and are shown nowhere else."""
    return sorted(
        {
            name
            for row in data.probes
            if (name := row["probe"]) not in PROBES_WITH_EXHIBIT
            and name in plugins.names("probes")
            and any(row.get(column) is not None for column in _quantities(name))
        }
    )


def _quantities(probe: str) -> Mapping[str, Quantity]:
    return plugins.load("probes", probe).QUANTITIES


def workloads(data: Data) -> list[str]:
    """The workloads that are shown nowhere else."""
    rows = [p for p in data.points if p["module"] not in WITH_EXHIBIT and not p["trainer"]]
    return sorted({point["module"] for point in rows})


def add(data: Data, book: Book, prefix: str = "") -> None:
    """The exhibits of each such workload and probe."""
    for module in workloads(data):
        points = [point for point in data.of_module(module) if not point["trainer"]]
        quantities = list(in_units(_plugin(module).QUANTITIES, points))
        if not quantities:
            book.note(f"Nothing of {module} is shown: its records hold no times.")
            continue
        first = quantities[0]
        for device in dict.fromkeys(point["device"] for point in points):
            timed = [p for p in points if p["device"] == device and (first.ends(p)[0] or 0) > 0]
            for start in range(0, len(timed), ROWS_PER_FIGURE):
                book.figure(
                    f"{prefix}{module}-{device}" + (f"-{start}" if start else ""),
                    "declared",
                    partial(draw, timed[start : start + ROWS_PER_FIGURE], first),
                    module=module,
                    quantity=first.label,
                    device=data.device_name(timed[0]),
                )
        book.table(f"{prefix}{module}", "declared", table(points, quantities), module=module)
    for probe in probes(data):
        book.table(
            f"{prefix}probe-{probe}", "declared-probe", probe_table(data, probe), probe=probe
        )


def probe_table(data: Data, probe: str) -> Table:
    """What a probe's summary holds, a row for each cell."""
    rows = [row for row in data.probes if row["probe"] == probe]
    quantities = list(in_units(_quantities(probe), rows))
    result = Table(
        [
            *PLACE,
            *(Column(one.label, one.unit, True, _help(one)) for one in quantities),
        ]
    )
    for row in sorted(rows, key=lambda row: (row["workload"], row["backend"], row["precision"])):
        reason = str(row.get("reason") or row.get("means") or NOT_MEASURED)
        result.add(
            *_place(row),
            *(quantity(row.get(one.name), reason, one.scale) for one in quantities),
            of=row,
        )
    return result


def _place(row: Row) -> tuple[str, str, str, str]:
    """What stands below `PLACE`."""
    return row["workload"], row["device"], words.backend_name(row), row["precision"]


def in_units(quantities: Mapping[str, Quantity], rows: Sequence[Row]) -> Iterator[Shown]:
    """The quantities that any row has, each in a unit that suits its typical value."""
    for name, one in quantities.items():
        plain = Shown(name, one.label, one.unit, 1.0, one.series, one.better)
        values = [value for row in rows if (value := plain.ends(row)[0]) is not None]
        if values:
            unit, scale = _unit(one.unit, statistics.median(values))
            yield plain._replace(unit=unit, scale=scale)


def _unit(unit: str, typical: float) -> tuple[str, float]:
    """(unit to show a quantity in, its size), so that a typical value is easily read."""
    if unit == "byte":
        return "MiB", 2.0**20
    if unit == "s":
        return next((step for step in hover.SECONDS if typical >= step[1]), hover.SECONDS[-1])
    if unit == "1/s" and typical >= 1e6:
        return "10⁶/s", 1e6
    if unit in ("", "1/s"):
        return unit, 1.0
    unit = unit.replace("byte", "B")
    prefix, scale = next((step for step in hover.PREFIXES if typical >= step[1]), ("", 1.0))
    return f"{prefix}{unit}", scale


def _plugin(module: str) -> Any:
    has_plugin = module in plugins.names("workloads")
    return plugins.load("workloads", module) if has_plugin else KernelWorkload


def label(point: Row, workloads: int) -> str:
    """`512 MiB, cold`; with the entry of the config where there are several of the workload."""
    point_text = throughputs.describe(point)
    return f"{point['workload']}: {point_text}" if workloads > 1 else point_text


def draw(points: Sequence[Row], of: Shown, narrow: bool) -> Any:
    """A row for each point, a dot with its interval for each backend and precision."""
    workloads = len({point["workload"] for point in points})
    labels = list(dict.fromkeys(label(point, workloads) for point in points))
    backends = list(dict.fromkeys((p["backend"], p["precision"]) for p in points))
    values = [end for p in points for end in of.ends(p) if end and end > 0]
    width, step, foot = style.width_in(narrow), 0.2, 0.42
    left = min(max(map(style.text_in, labels)) + 0.1, width * 0.5)
    entries = style.backends(points, 3.4)
    head = style.legend_height(entries, width) + 0.08
    figure = style.canvas(width, head + len(labels) * step + foot)
    style.legend(figure, entries, 0.0)
    ax = style.axes(figure, left, head, width - left - 0.1, len(labels) * step)
    low, high = min(values) / 1.6, max(values) * 1.6
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_yticks(range(len(labels)), labels)
    ax.tick_params(axis="y", length=0, labelsize=style.TEXT_PT, labelcolor=style.INK)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x")
    rows = [[p for p in points if label(p, workloads) == name] for name in labels]
    marks.tag_labels(ax.yaxis, rows)
    style.log_ticks(ax.xaxis, low, high)
    better = f" ({of.better} is better)" if of.better else ""
    quantity_text = f"{of.label} / {of.unit}" if of.unit else of.label
    ax.set_xlabel(f"{quantity_text}{better}", size=style.SMALL_PT)
    for at, row in enumerate(rows):
        for point in row:
            place = backends.index((point["backend"], point["precision"])) + 0.5
            y = at + 0.6 * (place / len(backends) - 0.5)
            middle, start, end = of.ends(point)
            if middle is None or middle <= 0:
                continue
            if start and end:
                line = ax.plot([start, end], [y, y], color=style.colour(point), linewidth=0.9)
                marks.tag(line, point)
            what = hover.interval_name(point, of.name.removesuffix("_s"))
            value_text = hover.spanned(middle, start, end, of.unit, what=what)
            dot = ax.plot([middle], [y], "o", color=style.colour(point), markersize=3.4)
            marks.tag(dot, point, f"{hover.cell(point)}, {labels[at]}: {value_text}")
    return figure


def table(points: Sequence[Row], quantities: Sequence[Shown]) -> Table:
    """Parameters of the points, and every quantity with its interval."""
    parameters = _parameters(points)
    result = Table(
        [
            *PLACE,
            *(Column(one.label, one.unit, one.type != "string") for one in parameters.values()),
            *(Column(one.label, one.unit, True, _help(one)) for one in quantities),
        ]
    )
    for point in points:
        params = json.loads(point["params"]) if point.get("params") else {}
        result.add(
            *_place(point),
            *(_parameter(params.get(name), one) for name, one in parameters.items()),
            *(_quantity(point, one) for one in quantities),
            of=point,
        )
    return result


def _parameters(points: Sequence[Row]) -> dict[str, Parameter]:
    """What the points' records hold, as their workload declares it, or by its name."""
    names = dict.fromkeys(n for p in points for n in json.loads(p.get("params") or "{}"))
    declared: Mapping[str, Parameter] = _plugin(points[0]["module"]).POINT
    others = {name: Parameter("string", name) for name in names if name not in declared}
    return {name: one for name, one in declared.items() if name in names} | others


def _parameter(value: Any, one: Parameter) -> Value:
    if value is None or one.type in ("string", "boolean"):
        return text(value)
    return Value(words.grouped(value) if one.type == "integer" else f"{value:g}", sort=value)


def _help(one: Shown) -> str:
    better = f"{one.better} is better" if one.better else ""
    return "; ".join(filter(None, ["median, 95 % interval" if one.series else "", better]))


def _quantity(point: Row, one: Shown) -> Value:
    stem = one.name.removesuffix("_s")
    reason = str(point.get(f"{stem.removesuffix('_mean')}_reason") or NOT_MEASURED)
    if one.series:
        return ranged(point, stem, one.scale, reason, "low", "high", 3)
    value = quantity(point.get(one.name), reason, one.scale)
    if isinstance(value.sort, float) and 0 < value.sort < TINY:
        return Value(words.scientific(value.sort), value.sort)
    return value
