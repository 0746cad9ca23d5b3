"""Clocks, temperatures, throttling and interference: what was seen, and what could not be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from statistics import median
from typing import Any

from siliconprof import words
from siliconprof.analyse.equal_work import DISTURBED
from siliconprof.analyse.throughputs import device_of
from siliconprof.render import chart, hover, strokes, style
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Panel, Scale
from siliconprof.render.data import SWITCHED_OFF, Data, grouped
from siliconprof.render.tables import PLACE, Column, Table, Value, missing, number, told
from siliconprof.render.traces import key
from siliconprof.render.variants import Row, flagged

CLOCK_PANELS = (  # column of samples, title, unit
    ("gpu_sm_clock_mhz", "GPU clock", "MHz"),
    ("gpu_temperature_c", "GPU temperature", "°C"),
    ("gpu_power_w", "GPU power", "W"),
    ("soc_power_w", "Power of the SoC", "W"),
    ("cpu_clock_mhz", "CPU clock", "MHz"),
    ("cpu_temperature_c", "CPU temperature", "°C"),
    ("cpu_package_power_w", "Power of the CPU package", "W"),
)
SUMMARISED = (  # stem in the probe's summary, unit, column of the table
    ("gpu_sm_clock", "mhz", "GPU clock", "MHz"),
    ("gpu_temperature", "c", "GPU temperature", "°C"),
    ("cpu_clock", "mhz", "CPU clock", "MHz"),
    ("cpu_temperature", "c", "CPU temperature", "°C"),
)
POINTS_PER_CELL = 24
MOST_NAMED = 4
NO_SUPPLY = "mains and battery are not reported here, as on servers and virtual machines"
NO_GOVERNOR = "no cpufreq: a virtual machine, or not Linux"


def add(data: Data, book: Book) -> None:
    """Facts first; a figure over the whole run and a table where any clock was read."""
    book.heading("Clocks, temperature and interference", anchor="clocks")
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
    measured = (cell for cell in data.cells if cell["status"] == "ok")
    for cells in grouped(measured, device_of).values():
        if panels(data, cells):
            book.figure(
                f"clocks-{data.slug_of(cells[0])}",
                "clocks",
                partial(draw, data, cells),
                device=data.place(cells[0]),
            )
    if shown := [row for row in rows["clocks"] if _has_reading(row)]:
        place = {key(cell): index for index, cell in enumerate(data.cells)}
        shown.sort(key=lambda row: place.get(key(row), len(place)))
        table = Table.of(shown, columns(shown))
        book.table("clocks", "clocks", table, counted="cell", above=0)


# -- facts -------------------------------------------------------------------------------------


def facts(data: Data, clocks: Sequence[Row], interference: Sequence[Row]) -> list[tuple[str, str]]:
    """What the probes saw or ruled out, and why the rest is unknown."""
    throttling = _seen(clocks, "throttled", "limits_means")
    power_limit = _seen(clocks, "power_capped", "limits_means")
    both = throttling == power_limit
    return [
        ("Throttling, power limit" if both else "Throttling", throttling),
        ("Held at the power limit", "" if both else power_limit),
        *((head, _range(clocks, stem, unit, sign)) for stem, unit, head, sign in SUMMARISED),
        ("Power supply", _tally(interference, "power_source", NO_SUPPLY)),
        ("Power mode", _tally(interference, "power_mode")),
        ("Low-power mode", _seen(interference, "low_power_mode", "low_power_means")),
        ("CPU governor", _tally(interference, "cpu_governor", NO_GOVERNOR)),
        ("Foreign load", _foreign_load(data, interference)),
        ("Others on the GPU", _tally(interference, "gpu_foreign_processes")),
    ]


def _foreign_load(data: Data, interference: Sequence[Row]) -> str:
    load = words.numbers(interference, "foreign_load_cores")
    if not load:
        return "not known: no processor time of others could be read"
    ends = dict.fromkeys(words.significant(end, 2) for end in (min(load), max(load)))
    contended = sum(flagged(cell, DISTURBED) for cell in data.cells)
    return (
        f"{' to '.join(ends)} cores by other processes, cell by cell; "
        f"{words.count(contended, 'cell')} flagged contended"
    )


def _range(rows: Sequence[Row], stem: str, unit: str, sign: str) -> str:
    """Lowest and highest of a quantity over all cells, and its median; empty when never read."""
    middles, lows, highs = (
        words.numbers(rows, f"{stem}_{part}_{unit}") for part in ("median", "min", "max")
    )
    if not middles:
        return ""
    values = (min(lows), max(highs), median(middles))
    low, high, middle = map(words.significant, values)
    return f"{low} to {high} {sign}, median of the cells {middle} {sign}"


def _seen(rows: Sequence[Row], column: str, means: str) -> str:
    """`seen in 1 of 9 cells (…), not in 6; not told in 2: the reason`."""
    groups = grouped(rows, lambda row: row.get(column))
    parts = []
    if True in groups:
        names = [f"{r['workload']}/{r['backend']}/{r['precision']}" for r in groups[True]]
        shown = words.listing(names, MOST_NAMED)
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


def _tally(rows: Sequence[Row], column: str, reason: str = "") -> str:
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


# -- figure ------------------------------------------------------------------------------------


def panels(data: Data, cells: Sequence[Row]) -> list[Panel]:
    """Quantities that any cell has samples of, over minutes since the first cell began."""
    timed = [cell for cell in cells if cell["started_at"]]
    times = {cell["started_at"] for cell in timed}
    began = {time: datetime.fromisoformat(time).timestamp() for time in times}
    made = []
    for column, title, unit in CLOCK_PANELS:
        shown = []
        for cell in sorted(timed, key=lambda cell: began[cell["started_at"]]):
            seconds, values = data.traces.sampled_values(cell, column)
            offset_s = began[cell["started_at"]] - min(began.values())
            minutes = ((seconds + offset_s) / 60).tolist()
            xs, ys = strokes.thin(minutes, values.tolist(), POINTS_PER_CELL)
            if xs:
                text = f"{hover.cell(cell)}: {title}, {hover.of_several(ys, unit)}"
                shown.append(chart.dots(xs, ys, cell, text))
        if shown:
            across = Scale("time since the first cell began / min", zero=True, most=6)
            made.append(Panel(shown, across, Scale(unit, most=4), title=title, high=0.8))
    return made


def draw(data: Data, cells: Sequence[Row]) -> Any:
    """One panel below the other on one axis of time; every dot is a sample."""
    shown = panels(data, cells)
    drawn = [mark.of for panel in shown for mark in panel.marks]
    return Chart(shown, style.backends(drawn, 2.6), same_x=True).figure()


# -- table -------------------------------------------------------------------------------------


def _has_reading(row: Row) -> bool:
    return any(
        words.numbers([row], f"{stem}_median_{unit}") for stem, unit, _, _ in SUMMARISED
    ) or any(row.get(column) is not None for column in ("throttled", "power_capped"))


def columns(rows: Sequence[Row]) -> list[Column]:
    """Median, lowest and highest of each cell, and whether anything held its clock down."""
    return [
        told("Workload", "workload"),
        *PLACE,
        told("Scenario", "scenario", folds=True),
        *(
            number(
                head,
                sign,
                f"{stem}_median_{unit}",
                "this cell's probe did not read it",
                "median, lowest and highest",
                under=partial(_ends, stem, unit),
            )
            for stem, unit, head, sign in SUMMARISED
            if words.numbers(rows, f"{stem}_median_{unit}")
        ),
        told("Throttled", partial(_answer, "throttled")),
        told("At the power limit", partial(_answer, "power_capped")),
    ]


def _ends(stem: str, unit: str, row: Row) -> str:
    ends = [words.number(row.get(f"{stem}_{part}_{unit}")) for part in ("min", "max")]
    return "" if None in ends else "–".join(words.significant(end or 0.0) for end in ends)


def _answer(column: str, row: Row) -> Value:
    yes = row.get(column)
    if yes is None:
        return missing(row.get("limits_means") or "nothing tells")
    shares = row.get("limits") or ""
    return Value("yes", sort="yes", mark="bad", title=shares) if yes else Value("no", sort="no")
