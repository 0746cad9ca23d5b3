"""Energy of training, source by source: what it counts, how well, idle power beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.analyse.equal_work import WHOLE_TRAININGS
from siliconprof.render import hover, marks, style
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, integer, missing, quantity
from siliconprof.render.traces import key
from siliconprof.render.training import NAMES, names
from siliconprof.render.variants import Row, has_no_speed, label, model

NO_IDLE = "idle power was not measured"
CHECK_ONLY = "a mechanism check's energy per step says nothing"
NO_HOST = "the paper's assumption is for the host of an NVIDIA GPU"
MOST_NAMED = 6
CELLS_PER_FIGURE = 36
FOLD_ABOVE = 16
ROW_IN = 0.21
MARKERS = {"gpu": "o", "soc": "s", "cpu-package": "^", "wall": "D"}


def add(data: Data, book: Book, prefix: str = "") -> None:
    """The table of what was measured; what was not, once for each reason."""
    book.heading("Energy", anchor=f"{prefix}energy-per-step")
    points = {key(p): p for kind in data.families().values() for p in kind[0]}
    rows = [(points[key(row)], row) for row in data.energy if key(row) in points]
    measured = [pair for pair in rows if words.number(pair[1].get("energy_per_step_j")) is not None]
    if measured:
        place = {name: index for index, name in enumerate(points)}
        measured.sort(key=lambda pair: place[key(pair[0])])
        for device in dict.fromkeys(point["device"] for point, _ in measured):
            shown = [
                (point, row)
                for point, row in measured
                if point["device"] == device
                and not has_no_speed(point)
                and words.number(row["energy_per_sample_j"]) is not None
            ]
            cells = list(dict.fromkeys(key(point) for point, _ in shown))
            for start in range(0, len(cells), CELLS_PER_FIGURE):
                part = cells[start : start + CELLS_PER_FIGURE]
                more = f"-{start // CELLS_PER_FIGURE + 1}" if start else ""
                book.figure(
                    f"{prefix}energy-{device}{more}",
                    "energy",
                    partial(draw, [pair for pair in shown if key(pair[0]) in part]),
                    device=data.device_name(shown[0][0]),
                )
        fold = words.count(len(measured), "line") if len(measured) > FOLD_ABOVE else ""
        book.table(f"{prefix}energy", "energy", table(measured), folded=fold)
    sentences = _reasons(points, rows)
    if sentences and not measured:
        book.note(f"No energy was measured. {' '.join(sentences)}")
    elif sentences:
        book.listing(sentences, "No energy from:")
    elif not measured:
        book.note("No energy was measured: no training cell of these results reads any.")
    if whole := _whole_trainings(data):
        book.listing(whole, "Trainings from the first to the last step:")


def _whole_trainings(data: Data) -> list[str]:
    """What is known of the energy of trainings that are not timed phase by phase."""
    cells = {key(cell): cell for cell in data.cells if cell["trainer"] in WHOLE_TRAININGS}
    reasons: dict[str, list[str]] = {}
    sentences = []
    for row in data.energy:
        cell = cells.get(key(row))
        if cell is None or cell["status"] != "ok":
            continue
        joules = words.number(row.get("energy_per_step_j"))
        if joules is None:
            why = str(row.get("reason") or "no reason given")
            reasons.setdefault(why, []).append(row["workload"])
        else:
            sentences.append(
                f"{hover.cell(cell)}: {words.significant(joules, 4)} J a step, of the "
                f"{row['scope']} by {row['name']}, {row['quality']}."
            )
    return sentences + [
        f"{words.listing(dict.fromkeys(workloads))}: no energy, {why}."
        for why, workloads in reasons.items()
    ]


def _reasons(points: Mapping[tuple, Row], rows: Sequence[tuple[Row, Row]]) -> list[str]:
    """One sentence for each reason why a source gave nothing, with the cells that it holds for."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for point, row in rows:
        if words.number(row.get("energy_per_step_j")) is None:
            name = row.get("name")
            source = f"{name} ({row['scope']})" if name else "Any source"
            why = row.get("reason") or "no reason given"
            groups.setdefault((source, why), []).append(point)
    with_source = {key(point) for point, _ in rows}
    silent = [point for name, point in points.items() if name not in with_source]
    if silent:
        groups["Any source", "the record has no energy"] = silent
    return [
        f"{source}: {why} ({_cells(cells, len(points))})."
        for (source, why), cells in groups.items()
    ]


def _cells(cells: Sequence[Row], of: int) -> str:
    if len(cells) == of:
        return "all training cells" if of > 1 else "the training cell"
    if len(cells) > MOST_NAMED:
        return words.count(len(cells), "training cell")
    return "; ".join(f"{model(cell)} {label(cell)}" for cell in cells)


def draw(rows: Sequence[tuple[Row, Row]], narrow: bool) -> Any:
    """One line a cell: energy per sample by source, and a bar for what is above idle."""
    cells: dict[tuple, list[tuple[Row, Row]]] = {}
    for point, row in rows:
        cells.setdefault(key(point), []).append((point, row))
    names = [
        f"{model(group[0][0])}\n{label(group[0][0])}"
        if narrow
        else f"{model(group[0][0])} · batch {int(group[0][0]['batch_size'])} · {label(group[0][0])}"
        for group in cells.values()
    ]
    width = style.width_in(narrow)
    left = min(style.labels_in(names, narrow) + 0.1, width * 0.62)
    scopes = list(dict.fromkeys(row["scope"] for _, row in rows))
    entries = [
        *(
            (style.sample(MARKERS.get(scope, "o"), color=style.MUTED, markersize=3.4), scope)
            for scope in scopes
        ),
        (
            style.sample(
                "o", color=style.MUTED, markersize=4.6, markerfacecolor="none", markeredgewidth=0.8
            ),
            "integral of a power",
        ),
        (style.swatch(style.shade("grey", 45)), "above idle"),
    ]
    head = style.legend_height(entries, width) + 0.05
    pitch, foot = 0.3 if narrow else ROW_IN, 0.4
    figure = style.canvas(width, head + len(cells) * pitch + foot)
    style.legend(figure, entries, 0.0)
    ax = style.axes(figure, left, head, width - left - 0.12, len(cells) * pitch)
    most = 0.0
    for y, group in enumerate(cells.values()):
        for point, row in group:
            joules = row["energy_per_sample_j"]
            most = max(most, joules)
            ring = row["quality"] == "integral"
            net = words.number(row["net_energy_per_step_j"])
            if net and not ring:
                net *= joules / row["energy_per_step_j"]
                bar = ax.barh(
                    y, net, height=0.34, linewidth=0, facecolor=style.shade(point["backend"], 45)
                )
                marks.tag(
                    bar.patches,
                    point,
                    f"{hover.training(point)}: {row['scope']} above idle "
                    f"{hover.spanned(net, None, None, 'J')} a sample",
                )
            dot = ax.plot(
                [joules],
                [y],
                MARKERS.get(row["scope"], "o"),
                color=style.colour(point),
                markersize=5 if ring else 3.4,
                markerfacecolor="none" if ring else None,
                markeredgewidth=0.8,
            )
            marks.tag(
                dot,
                point,
                f"{hover.training(point)}: {row['scope']} "
                f"{hover.spanned(joules, None, None, 'J')} a sample, by {row['name']}, "
                f"{row['quality']}",
            )
    ax.set_xlim(0, most * 1.05)
    ax.set_ylim(len(cells) - 0.5, -0.5)
    ax.set_yticks(range(len(cells)), names)
    marks.tag_labels(ax.yaxis, [group[0][0] for group in cells.values()])
    size = style.SMALL_PT - 0.5 if narrow else style.TEXT_PT
    ax.tick_params(axis="y", length=0, labelsize=size, labelcolor=style.INK)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("energy of one sample / J", size=style.SMALL_PT)
    style.plain_ticks(ax.xaxis, 5)
    ax.grid(axis="x")
    return figure


def table(rows: Sequence[tuple[Row, Row]]) -> Table:
    """A line for each cell and source; the paper's assumption has a column of its own."""
    result = Table(
        [
            *NAMES,
            Column("Source"),
            Column("Scope", help="what the energy was spent in"),
            Column(
                "Quality",
                help="counter: counted by hardware; model: estimated by firmware; "
                "integral: power over time",
            ),
            Column("energy", "J per step", True, "the window's energy over its steps"),
            Column("energy", "J per sample", True),
            Column("idle before", "W", True, "context open, nothing running"),
            Column("idle after", "W", True, "context open, nothing running"),
            Column("above idle", "J per step", True, "idle power × time subtracted"),
            Column(
                "with 70 W assumed",
                "J per step",
                True,
                "the paper adds 70 W for the host of "
                "an NVIDIA GPU: an assumption, measured nowhere",
                folds=True,
            ),
            Column("window", "s", True),
            Column("steps", "", True),
        ]
    )
    for point, row in rows:
        why = row.get("reason") or NO_IDLE
        result.add(
            *names(point),
            row["name"],
            row["scope"],
            row["quality"],
            _joules(point, row, "energy_per_step_j", why),
            _joules(point, row, "energy_per_sample_j", why),
            quantity(row["idle_before_w"], why),
            quantity(row["idle_after_w"], why),
            _joules(point, row, "net_energy_per_step_j", why),
            _joules(point, row, "energy_per_step_plus_assumed_host_j", NO_HOST),
            quantity(row.get("window_s"), "not recorded"),
            integer(row.get("energy_steps"), "not recorded"),
            of=point,
        )
    return result


def _joules(point: Row, row: Row, column: str, reason: str) -> Value:
    """An energy of a cell, unless the cell says nothing of speed and so nothing of this either."""
    if has_no_speed(point):
        return missing(CHECK_ONLY)
    return quantity(row.get(column), reason, digits=4)
