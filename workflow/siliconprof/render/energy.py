"""Energy of training, source by source: what it counts, how well, idle power beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from siliconprof import words
from siliconprof.analyse.equal_work import WHOLE_TRAININGS
from siliconprof.render import hover
from siliconprof.render.book import Book
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import Column, Of, Table, count, number, told
from siliconprof.render.traces import key
from siliconprof.render.training import NAMES
from siliconprof.render.variants import Row, has_no_speed, label, model

NO_IDLE = "idle power was not measured"
CHECK_ONLY = "a mechanism check's energy per step says nothing"
NO_HOST = "the paper's assumption is for the host of an NVIDIA GPU"
MOST_NAMED = 6


def add(data: Data, book: Book) -> None:
    """The table of what was measured; what was not, once for each reason."""
    book.heading("Energy", anchor="energy-per-step")
    points = {key(p): p for kind in data.families().values() for p in kind[0]}
    # what a source counted, beside the training that it counted for
    rows = [points[key(row)] | row for row in data.energy if key(row) in points]
    measured = [row for row in rows if words.number(row.get("energy_per_step_j")) is not None]
    if measured:
        place = {name: index for index, name in enumerate(points)}
        measured.sort(key=lambda row: place[key(row)])
        book.table("energy", "energy", Table.of(measured, COLUMNS), counted="line")
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


def _reasons(points: Mapping[tuple, Row], rows: Sequence[Row]) -> list[str]:
    """One sentence for each reason why a source gave nothing, with the cells that it holds for."""

    def silence(row: Row) -> tuple[str, str]:
        name = row.get("name")
        source = f"{name} ({row['scope']})" if name else "Any source"
        return source, row.get("reason") or "no reason given"

    without = (row for row in rows if words.number(row.get("energy_per_step_j")) is None)
    groups = grouped(without, silence)
    with_source = set(map(key, rows))
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


def _why(row: Row) -> str:
    return CHECK_ONLY if has_no_speed(row) else row.get("reason") or NO_IDLE


def _joules(
    head: str, unit: str, column: str, help: str = "", why: Of = _why, **more: Any
) -> Column:
    """An energy of a cell, unless the cell says nothing of speed and so nothing of this either."""

    def joules(row: Row) -> Any:
        return None if has_no_speed(row) else row.get(column)

    return number(head, unit, joules, why, help, digits=4, **more)


QUALITY = "counter: counted by hardware; model: estimated by firmware; integral: power over time"
ASSUMED = "the paper adds 70 W for the host of an NVIDIA GPU: an assumption, measured nowhere"
IDLE = "context open, nothing running"
WITH_HOST, PER_STEP = "with 70 W assumed", "energy_per_step"
COLUMNS = (  # a line for each cell and source; the paper's assumption has a column of its own
    *NAMES,
    told("Source", "name"),
    told("Scope", "scope", "what the energy was spent in"),
    told("Quality", "quality", QUALITY),
    _joules("energy", "J per step", "energy_per_step_j", "the window's energy over its steps"),
    _joules("energy", "J per sample", "energy_per_sample_j"),
    number("idle before", "W", "idle_before_w", _why, IDLE),
    number("idle after", "W", "idle_after_w", _why, IDLE),
    _joules("above idle", "J per step", "net_energy_per_step_j", "idle power × time subtracted"),
    _joules(
        WITH_HOST, "J per step", f"{PER_STEP}_plus_assumed_host_j", ASSUMED, NO_HOST, folds=True
    ),
    number("window", "s", "window_s", "not recorded"),
    count("steps", "energy_steps", "not recorded"),
)
