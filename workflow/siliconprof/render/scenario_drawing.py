"""The paper's Figure 2 from our memory model: what a training needs against what a device has.

Scenario 1 fits, 2 needs offload, 3 is near capacity. Every bar is a prediction: of this run's
trainings as their records hold it, of the paper's models as the formulas of `footprint` give it
now, which build no weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.analyse.record_rows import PARTS
from siliconprof.memory import memory_model
from siliconprof.render import chart, style
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data
from siliconprof.render.scenario_needs import (
    PAPER,
    Capacity,
    Model,
    Need,
    needs,
    own_devices,
    paper_devices,
    trainings,
)
from siliconprof.render.tables import Column, Table, Value, missing, number, quantity, told

MIB = 2.0**20
COLOUR_OF_PART = {
    "weights": style.RAMP[4][0],
    "gradients": style.RAMP[3][0],
    "optimizer": style.RAMP[2][0],
    "activations": style.RAMP[0][0],
    "temporary": style.shade("grey", 60),
}
MOST_TRAININGS, MOST_DEVICES = 12, 40
REACH_TRAININGS, REACH_MODELS = 1.3, 2.0  # shares of the capacity at which a bar is cut


def add(data: Data, book: Book) -> None:
    """One figure and one table; a note says what cannot be drawn."""
    own, here, paper = trainings(data), own_devices(data), paper_devices(data)
    predicted = [needs(trained, device) for device in here for trained in PAPER]
    elsewhere = [needs(trained, device) for device in paper for trained in PAPER]
    if not (own or predicted or elsewhere):
        book.note(
            "No scenarios are drawn: no training has a prediction, and the registry has no "
            "device of the paper."
        )
        return
    left_out = ""
    if len(own) > MOST_TRAININGS:
        left_out += (
            f" Of {len(own)} different trainings the {MOST_TRAININGS} that come nearest to their "
            "capacity are drawn; all are in the table."
        )
    if len(here) > MOST_DEVICES:
        left_out += f" Of {len(here)} devices of this run the first {MOST_DEVICES} are drawn."
    if not own:
        left_out += " This run has no training with a prediction, so there is no panel of its own."
    shown = partial(draw, own[:MOST_TRAININGS], here[:MOST_DEVICES], paper)
    book.figure("scenarios", "scenarios", shown, left_out=left_out)
    away = {capacity.device for capacity in paper} - {capacity.device for capacity in here}
    parts = table([*own, *predicted, *elsewhere], away)
    book.table("scenario-parts", "scenario-parts", parts, counted="prediction")


# -- figure ------------------------------------------------------------------------------------


def draw(
    own: Sequence[Need], here: Sequence[Capacity], paper: Sequence[Capacity], narrow: bool
) -> Any:
    """This run's trainings; the paper's models on this run's devices, and on the paper's."""
    legend = [
        *((style.swatch(COLOUR_OF_PART[part]), part) for part in PARTS),
        (style.swatch(style.RULE), "capacity"),
        (style.swatch("none", style.PUBLISHED_HATCH), "capacity as published"),
    ]
    charts = [_trainings(own, narrow)] if own else []
    for devices, heading, away in (
        (here, "The paper’s models on this run’s devices: predicted", False),
        (paper, "The paper’s devices: predicted, not measured", True),
    ):
        if devices:
            panels = [_model(trained, devices, away, narrow) for trained in PAPER]
            columns = (len(PAPER), 2)
            charts.append(Chart(panels, (), columns, same_y=True, heading=heading, quiet=away))
    return chart.stacked([replace(charts[0], legend=legend), *charts[1:]], narrow)


def _capacity_look(printed: bool) -> dict[str, Any]:
    if printed:
        return style.published("grey") | {"hatch": "///", "edgecolor": style.FAINT}
    return {"facecolor": style.RULE, "edgecolor": style.FAINT, "linewidth": 0.6}


def _limits() -> list[Mark]:
    """Lines where a training is near the capacity, and where it has reached it."""
    near = chart.upright(memory_model.NEAR_CAPACITY_ABOVE, dashes=(1.5, 1.5), zorder=3)
    return [near, chart.upright(1.0, zorder=3)]


def _bar(y: float, need: Need, reach: float, printed: bool, high: float = 0.78) -> Iterator[Mark]:
    """The capacity behind, the parts end to end; cut, with an arrow, where it goes beyond."""
    size, share, rows, whole = need.capacity.size_bytes, need.share, need.rows, need.hover_text
    if not size or share is None:
        return
    yield chart.bar(y, 0, 1, rows, whole, high, zorder=1, **_capacity_look(printed))
    start = 0.0
    for part, value in (need.parts or {"": need.total_bytes}).items():
        end = min(start + value / size, reach)
        if end > start:
            text = need.hover_text_of(part) if part else whole
            ink = COLOUR_OF_PART.get(part, style.MUTED)
            yield chart.bar(y, start, end, rows, text, 0.6 * high, zorder=2, color=ink)
        start += value / size
    if share > reach:
        arrow: dict[str, Any] = {"color": style.INK, "clip_on": False, "zorder": 4}
        yield chart.dot(reach, y, rows, whole, ">", 3.5, **arrow)


def _trainings(own: Sequence[Need], narrow: bool) -> Chart:
    """Against the capacity on the left, where the bytes go on the right; one panel on a phone."""
    several = len({need.capacity.device for need in own}) > 1
    names = []
    for need in own:
        where = f"{need.capacity.device} · " if several else ""
        rest = f"{where}{need.backend} · {need.precision}"
        names.append(f"{need.name}\n{rest}" if narrow else f"{need.name} · {rest}")
    shown = [*_limits(), *(mark for y, need in enumerate(own) for mark in _row(y, need, narrow))]
    capacity = Panel(
        shown,
        Scale("share of the capacity, %", ends=(0, REACH_TRAININGS), most=4, unit=0.01),
        labels=names,
        row_in=(0.21, 0.31),
        side_in=chart.RIGHT_IN if narrow else 1.35,
    )
    parts = [mark for y, need in enumerate(own) for mark in _parts(y, need)]
    split = Panel(
        parts,
        Scale("share of the prediction, %", ends=(0, 1), most=4, unit=0.01),
        labels=names,
    )
    panels = [capacity] if narrow or not parts else [capacity, split]
    return Chart(panels, columns=(2, 1), same_y=True, heading="This run’s trainings")


def _row(y: int, need: Need, narrow: bool) -> Iterator[Mark]:
    """The bar of one of this run's trainings, with its bytes and its scenario; above on a phone."""
    size, share = need.capacity.size_bytes, need.share
    of = f" / {words.mebibytes(size)}" if size else ""
    text = f"{words.mebibytes(need.total_bytes)}{of} · {need.number}"
    look: dict[str, Any] = {"hover": need.hover_text, "color": style.INK}
    if narrow:
        yield from _bar(y + 0.2, need, REACH_TRAININGS, False, 0.46)
        yield chart.note(0, y - 0.24, text, need.rows, (0, 0), size=style.SMALL_PT - 0.8, **look)
        return
    yield from _bar(y, need, REACH_TRAININGS, False)
    yield chart.note(REACH_TRAININGS, y, text, need.rows, **look)
    if share and share < 0.65:  # beside a bar that may be too short to see
        look |= {"size": style.SMALL_PT - 0.5, "zorder": 5, "color": style.MUTED}
        yield chart.note(share, y, words.percent(share), need.rows, **look)


def _parts(y: int, need: Need) -> Iterator[Mark]:
    start = 0.0
    for part, value in need.parts.items():
        end, text = start + need.share_of(value), need.hover_text_of(part)
        yield chart.bar(y, start, end, need.rows, text, color=COLOUR_OF_PART[part])
        start = end


def _model(trained: Model, devices: Sequence[Capacity], away: bool, narrow: bool) -> Panel:
    """One of the paper's models, a row for each device."""
    shown = _limits()
    for y, device in enumerate(devices):
        need = needs(trained, device)
        shown += _bar(y, need, REACH_MODELS, away)
        share = need.share
        percent = words.significant(100 * share, 2 if share < 1 else 3) if share else "–"
        for text, look in (
            (f"{percent} · ", {"ha": "right", "size": style.SMALL_PT - 0.5}),
            (need.number, {"weight": "bold", "color": style.INK}),
        ):
            place = (REACH_MODELS, y, text, need.rows, (26, 0), need.hover_text)
            shown.append(chart.note(*place, **look))
    return Panel(
        shown,
        Scale("of capacity, %", ends=(0, REACH_MODELS), most=4, unit=0.01),
        labels=[words.shortened(_short(device.name), 20 if narrow else 28) for device in devices],
        title=trained.title,
        row_in=(0.21, 0.21),
        quiet=away,
        side_in=0.48,
    )


def _short(name: str) -> str:
    """A device's name without what its vendor's products share."""
    for noise in ("NVIDIA ", "GeForce ", "Apple ", " GPU cores"):
        name = name.replace(noise, "")
    return name


# -- table -------------------------------------------------------------------------------------


def table(every: Sequence[Need], away: set[str]) -> Table:
    """The parts of every prediction.

    Args:
        away: devices of which nothing was measured here.
    """

    def is_absent(need: Need) -> bool:
        return need.capacity.device in away and need.row is None

    def device(need: Need) -> Value:
        name = need.capacity.name
        return Value(name, name, badge="not measured" if is_absent(need) else "")

    def capacity(need: Need) -> Value:
        value = quantity(need.capacity.size_bytes, UNKNOWN, MIB)
        if not is_absent(need):
            return value
        return replace(value, mark="published", title="from the data sheet")

    def verdict(need: Need) -> Value:
        return Value(need.verdict, need.share or 0.0) if need.scenario else missing(UNKNOWN)

    columns = (
        told("Training", lambda need: need.name),
        told("Device", device),
        told("Backend", lambda need: need.backend),
        told("Precision", lambda need: need.precision),
        *(number(part, "MiB", partial(_part, part), UNSPLIT, LARGEST) for part in PARTS),
        number(
            "predicted",
            "MiB",
            lambda need: need.total_bytes,
            "",
            "all together, without offloading",
        ),
        Column("capacity", "MiB", True, "what a training may use of the device", value=capacity),
        number("share", "%", lambda need: need.share, UNKNOWN),
        told("Scenario", verdict, "as the memory model derives it"),
        number(
            "stays when offloaded",
            "MiB",
            lambda need: need.offloaded_bytes,
            "was not offloaded",
            STAGE_3,
        ),
        told("Evidence", lambda need: need.evidence),
    )
    sources = sorted({need.capacity.source for need in every if need.capacity.source})
    notes = [f"Capacities are {words.listing(sources)}."]
    return Table.of(every, columns, lambda need: need.rows, notes)


UNKNOWN = "the device's memory is unknown"
UNSPLIT = "its record does not split the prediction"
LARGEST = "at the step's largest moment"
STAGE_3 = "ZeRO-Offload, stage 3"


def _part(part: str, need: Need) -> float | None:
    return need.parts.get(part)
