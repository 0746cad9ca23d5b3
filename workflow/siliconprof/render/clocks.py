"""Clocks, temperatures, throttling and interference: what was seen, and what could not be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from siliconprof import words
from siliconprof.render import hover, marks, strokes, style
from siliconprof.render.book import Book
from siliconprof.render.data import SWITCHED_OFF, Data
from siliconprof.render.tables import Column, Table, Value, missing, quantity
from siliconprof.render.traces import key
from siliconprof.render.variants import Row

CLOCK_PANELS = (  # column of samples, title, unit, scale
    ("gpu_sm_clock_mhz", "GPU clock", "MHz", 1.0),
    ("gpu_temperature_c", "GPU temperature", "°C", 1.0),
    ("gpu_power_w", "GPU power", "W", 1.0),
    ("soc_power_w", "Power of the SoC", "W", 1.0),
    ("cpu_clock_mhz", "CPU clock", "MHz", 1.0),
    ("cpu_temperature_c", "CPU temperature", "°C", 1.0),
    ("cpu_package_power_w", "Power of the CPU package", "W", 1.0),
)
SUMMARISED = (  # stem in the probe's summary, unit, column of the table
    ("gpu_sm_clock", "mhz", "GPU clock", "MHz"),
    ("gpu_temperature", "c", "GPU temperature", "°C"),
    ("cpu_clock", "mhz", "CPU clock", "MHz"),
    ("cpu_temperature", "c", "CPU temperature", "°C"),
)
POINTS_PER_CELL = 24
MOST_NAMED = 4


def add(data: Data, book: Book, prefix: str = "") -> None:
    """Facts first; a figure over the whole run and a table where any clock was read."""
    book.heading("Clocks, temperature and interference", anchor=f"{prefix}clocks")
    rows = {
        name: [row for row in data.probes if row["probe"] == name and row["means"] != SWITCHED_OFF]
        for name in ("clocks", "interference")
    }
    if not any(rows.values()):
        book.note(
            "No clock, no temperature and no interference was looked at: no record of these "
            "results has a probe for them."
        )
        return
    book.facts(facts(data, rows["clocks"], rows["interference"]))
    for device in dict.fromkeys(cell["device"] for cell in data.cells):
        cells = [cell for cell in data.cells if cell["device"] == device and cell["status"] == "ok"]
        panels = _panels(data, cells)
        if panels:
            book.figure(
                f"{prefix}clocks-{device}",
                "clocks",
                partial(draw, panels),
                device=data.device_name(cells[0]),
            )
    shown = [row for row in rows["clocks"] if _has_reading(row)]
    if shown:
        book.table(
            f"{prefix}clocks", "clocks", table(data, shown), folded=words.count(len(shown), "cell")
        )


# -- facts -------------------------------------------------------------------------------------


def facts(data: Data, clocks: Sequence[Row], interference: Sequence[Row]) -> list[tuple[str, str]]:
    """What the probes saw or ruled out, and why the rest is unknown."""
    load = [
        value
        for row in interference
        if (value := words.number(row.get("foreign_load_cores"))) is not None
    ]
    flagged = [cell for cell in data.cells if "contended" in (cell["flags"] or "").split(";")]
    throttling = _seen(clocks, "throttled", "limits_means")
    power_limit = _seen(clocks, "power_capped", "limits_means")
    return [
        ("Throttling" if throttling != power_limit else "Throttling, power limit", throttling),
        ("Held at the power limit", power_limit if throttling != power_limit else ""),
        *(
            (f"{head}", text)
            for stem, unit, head, sign in SUMMARISED
            if (text := _range(clocks, stem, unit, sign))
        ),
        (
            "Power supply",
            _tally(
                interference,
                "power_source",
                "nothing here tells of mains or battery, as on servers and virtual machines",
            ),
        ),
        ("Power mode", _tally(interference, "power_mode", "")),
        ("Low-power mode", _seen(interference, "low_power_mode", "low_power_means")),
        (
            "CPU governor",
            _tally(interference, "cpu_governor", "no cpufreq: a virtual machine, or not Linux"),
        ),
        (
            "Foreign load",
            f"{_span(load)} cores by other processes, cell by cell; "
            f"{words.count(len(flagged), 'cell')} flagged contended"
            if load
            else "not known: no processor time of others could be read",
        ),
        ("Others on the GPU", _tally(interference, "gpu_foreign_processes", "")),
    ]


def _span(values: Sequence[float]) -> str:
    low, high = (words.significant(end, 2) for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _range(rows: Sequence[Row], stem: str, unit: str, sign: str) -> str:
    """Lowest and highest of a quantity over all cells, and its median; empty when never read."""
    values = {
        part: [
            value
            for row in rows
            if (value := words.number(row.get(f"{stem}_{part}_{unit}"))) is not None
        ]
        for part in ("median", "min", "max")
    }
    if not values["median"]:
        return ""
    low, high = (words.significant(end) for end in (min(values["min"]), max(values["max"])))
    middle = words.significant(float(np.median(values["median"])))
    return f"{low} to {high} {sign}, median of the cells {middle} {sign}"


def _yes(value: Any) -> bool | None:
    """A truth value that went through CSV; None for anything else."""
    return {"True": True, "False": False}.get(str(value))


def _seen(rows: Sequence[Row], column: str, means: str) -> str:
    """`seen in 1 of 9 cells (…), not in 6; not told in 2: the reason`."""
    groups: dict[bool | None, list[Row]] = {}
    for row in rows:
        groups.setdefault(_yes(row.get(column)), []).append(row)
    parts = []
    if True in groups:
        names = [_name(row) for row in groups[True]]
        more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
        shown = words.listing([*names[:MOST_NAMED], *more])
        parts.append(f"seen in {words.count(len(names), 'cell')} ({shown})")
    if False in groups:
        cells = words.count(len(groups[False]), "cell")
        how = _common(groups[False], means)
        parts.append(f"not seen in {cells}" + (f" (told by {how})" if how else ""))
    if None in groups:
        silent = groups[None]
        where = "" if len(silent) == len(rows) else f" in {words.count(len(silent), 'cell')}"
        parts.append(f"cannot be told{where}: {_common(silent, means) or _common(silent, 'means')}")
    return "; ".join(parts)


def _common(rows: Sequence[Row], column: str) -> str:
    return "; ".join(dict.fromkeys(str(row[column]) for row in rows if row.get(column)))


def _tally(rows: Sequence[Row], column: str, reason: str) -> str:
    """The values of a column with how often each was found."""
    counts = Counter(
        f"{value:g}" if isinstance(value, float) else str(value)
        for row in rows
        if (value := row.get(column)) is not None
    )
    if not counts:
        return reason and f"cannot be told: {reason}"
    if len(counts) == 1 and counts.total() == len(rows):
        return next(iter(counts))
    return ", ".join(f"{value} in {words.count(n, 'cell')}" for value, n in counts.most_common())


def _name(row: Row) -> str:
    return f"{row['workload']}/{row['backend']}/{row['precision']}"


# -- figure ------------------------------------------------------------------------------------


class Panel(NamedTuple):
    """One quantity over the whole run: of each cell the minutes and the values."""

    title: str
    unit: str
    series: list[tuple[list[float], list[float], Row]]

    @property
    def cells(self) -> list[Row]:
        """The cells that have samples of it."""
        return [cell for *_, cell in self.series]


def _panels(data: Data, cells: Sequence[Row]) -> list[Panel]:
    """Quantities that any cell has samples of, over minutes since the first cell began."""
    timed = sorted((cell for cell in cells if cell["started_at"]), key=lambda c: c["started_at"])
    if not timed:
        return []
    zero = datetime.fromisoformat(timed[0]["started_at"])
    panels = []
    for column, title, unit, scale in CLOCK_PANELS:
        series: list[tuple[list[float], list[float], Row]] = []
        for cell in timed:
            frame = data.traces.sampled(cell)
            if frame is None or column not in frame or frame[column].notna().sum() < 1:
                continue
            samples = frame[frame[column].notna()]
            offset = (datetime.fromisoformat(cell["started_at"]) - zero).total_seconds()
            minutes = ((samples["t_s"] + offset) / 60).tolist()
            values = (samples[column] / scale).tolist()
            series.append((*strokes.thin(minutes, values, POINTS_PER_CELL), cell))
        if series:
            panels.append(Panel(title, unit, series))
    return panels


def draw(panels: Sequence[Panel], narrow: bool) -> Any:
    """One panel below the other on one axis of time; every dot is a sample."""
    width, left, title, height, foot = style.width_in(narrow), 0.46, 0.26, 0.8, 0.4
    entries = style.backends((cell for panel in panels for cell in panel.cells), 2.6)
    head = style.legend_height(entries, width)
    figure = style.canvas(width, head + len(panels) * (title + height) + foot)
    style.legend(figure, entries, 0.0)
    end = max(xs[-1] for panel in panels for xs, _, _ in panel.series) or 1.0
    for index, panel in enumerate(panels):
        top = head + index * (title + height)
        style.write(figure, 0, top + 0.15, panel.title, weight="bold", va="center")
        ax = style.axes(figure, left, top + title, width - left - 0.1, height)
        for xs, ys, cell in panel.series:
            text = hover.of_several(ys, panel.unit)
            marks.tag(
                strokes.dots(ax, xs, ys, color=style.colour(cell)),
                cell,
                f"{hover.cell(cell)}: {panel.title}, {text}",
            )
        values = [value for _, ys, _ in panel.series for value in ys]
        room = (max(values) - min(values)) * 0.1 or max(values) * 0.1 or 1.0
        ax.set_ylim(min(values) - room, max(values) + room)
        ax.set_xlim(0, end * 1.01)
        ax.set_ylabel(panel.unit, size=style.SMALL_PT)
        style.plain_ticks(ax.yaxis, 4)
        style.plain_ticks(ax.xaxis, 6)
        ax.grid(axis="y")
        if index < len(panels) - 1:
            ax.tick_params(labelbottom=False)
        else:
            ax.set_xlabel("time since the first cell began / min", size=style.SMALL_PT)
    return figure


# -- table -------------------------------------------------------------------------------------


def _has_reading(row: Row) -> bool:
    return any(
        words.number(row.get(f"{stem}_median_{unit}")) is not None
        for stem, unit, _, _ in SUMMARISED
    ) or any(_yes(row.get(column)) is not None for column in ("throttled", "power_capped"))


def table(data: Data, rows: Sequence[Row]) -> Table:
    """Median, lowest and highest of each cell, and whether anything held its clock down."""
    shown = [
        entry
        for entry in SUMMARISED
        if any(words.number(row.get(f"{entry[0]}_median_{entry[1]}")) is not None for row in rows)
    ]
    result = Table(
        [
            Column("Workload"),
            Column("Device", folds=True),
            Column("Backend"),
            Column("Precision"),
            Column("Scenario", folds=True),
            *(Column(head, sign, True, "median, lowest and highest") for _, _, head, sign in shown),
            Column("Throttled"),
            Column("At the power limit"),
        ]
    )
    place = {key(cell): index for index, cell in enumerate(data.cells)}
    for row in sorted(rows, key=lambda row: place.get(key(row), len(place))):
        result.add(
            row["workload"],
            row["device"],
            words.backend_name(row),
            row["precision"],
            row["scenario"],
            *(_spread(row, stem, unit) for stem, unit, _, _ in shown),
            *(_answer(row, column) for column in ("throttled", "power_capped")),
            of=row,
        )
    return result


def _spread(row: Row, stem: str, unit: str) -> Value:
    value = quantity(row.get(f"{stem}_median_{unit}"), "this cell's probe did not read it")
    ends = [words.number(row.get(f"{stem}_{part}_{unit}")) for part in ("min", "max")]
    if value.reason or ends[0] is None or ends[1] is None:
        return value
    below = "–".join(words.significant(end) for end in ends if end is not None)
    return Value(value.text, value.sort, below)


def _answer(row: Row, column: str) -> Value:
    yes = _yes(row.get(column))
    if yes is None:
        return missing(row.get("limits_means") or "nothing tells")
    shares = row.get("limits") or ""
    return Value("yes", sort="yes", mark="bad", title=shares) if yes else Value("no", sort="no")
