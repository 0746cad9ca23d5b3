"""The paper's Figure 2 from our memory model: what a training needs against what a device has.

Scenario 1 fits, 2 needs offload, 3 is near capacity. Every bar is a prediction: of this run's
trainings as their records hold it, of the paper's models as the formulas of `footprint` give it
now, which build no weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.analyse.record_rows import PARTS
from siliconprof.memory import memory_model
from siliconprof.render import marks, style
from siliconprof.render.beside import SCENARIO_OF
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.scenario_needs import (
    PAPER,
    Capacity,
    Need,
    needs,
    own_devices,
    paper_devices,
    trainings,
)
from siliconprof.render.tables import Column, Table, Value, missing, quantity

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
ROW_IN, NARROW_ROW_IN = 0.21, 0.31
FOLD_ABOVE = 12


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
    left_out = (
        f" Of {len(own)} different trainings the {MOST_TRAININGS} that come nearest to their "
        "capacity are drawn; all are in the table."
        if len(own) > MOST_TRAININGS
        else ""
    )
    if len(here) > MOST_DEVICES:
        left_out += f" Of {len(here)} devices of this run the first {MOST_DEVICES} are drawn."
    if not own:
        left_out += " This run has no training with a prediction, so there is no panel of its own."
    book.figure(
        "scenarios",
        "scenarios",
        partial(draw, own[:MOST_TRAININGS], here[:MOST_DEVICES], paper),
        left_out=left_out,
    )
    every = [*own, *predicted, *elsewhere]
    fold = f"{len(every)} predictions" if len(every) > FOLD_ABOVE else ""
    book.table(
        "scenario-parts",
        "scenario-parts",
        table(every, {c.device for c in paper} - {c.device for c in here}),
        folded=fold,
    )


# -- figure ------------------------------------------------------------------------------------


def draw(
    own: Sequence[Need], here: Sequence[Capacity], paper: Sequence[Capacity], narrow: bool
) -> Any:
    """This run's trainings; the paper's models on this run's devices, and on the paper's."""
    width = style.width_in(narrow)
    entries = [
        *((style.swatch(COLOUR_OF_PART[part]), part) for part in PARTS),
        (_capacity_sample(False), "capacity"),
        (_capacity_sample(True), "capacity as published"),
    ]
    blocks: list[tuple[str, bool, Any, float]] = []
    if own:
        blocks.append(
            (
                "This run’s trainings",
                False,
                partial(_trainings, own, narrow),
                _trainings_height(len(own), narrow),
            )
        )
    left = _label_width([*here, *paper], narrow)
    for devices, title, away in (
        (here, "The paper’s models on this run’s devices: predicted", False),
        (paper, "The paper’s devices: predicted, not measured", True),
    ):
        if devices:
            blocks.append(
                (
                    title,
                    away,
                    partial(_models, devices, left, away, narrow),
                    _models_height(len(devices), narrow),
                )
            )
    head, title_in = style.legend_height(entries, width) + 0.06, 0.3
    figure = style.canvas(width, head + sum(title_in + high for *_, high in blocks))
    style.legend(figure, entries, 0.0)
    top = head
    for title, away, block, high in blocks:
        style.write(
            figure,
            0,
            top + title_in / 2,
            title,
            weight="bold",
            va="center",
            color=style.MUTED if away else style.INK,
        )
        block(figure, top + title_in)
        top += title_in + high
    return figure


def _capacity_sample(printed: bool) -> Any:
    from matplotlib.patches import Rectangle

    def draw(ax: Any, x: float, y: float) -> None:
        ax.add_patch(Rectangle((x, y - 0.055), 0.15, 0.11, **_capacity_look(printed)))

    return draw


def _capacity_look(printed: bool) -> dict[str, Any]:
    if printed:
        return style.published("grey") | {"hatch": "///", "edgecolor": style.FAINT}
    return {"facecolor": style.RULE, "edgecolor": style.FAINT, "linewidth": 0.6}


def _axes(
    figure: Any, left: float, top: float, size: tuple[float, float], n: int, reach: float
) -> Any:
    """Rows downwards, the share of the capacity to the right, its limits marked."""
    ax = style.axes(figure, left, top, *size)
    ax.set_xlim(0, reach)
    ax.set_ylim(n - 0.5, -0.5)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    for share, dashes in ((memory_model.NEAR_CAPACITY_ABOVE, (1.5, 1.5)), (1.0, (1, 0))):
        ax.plot(
            [share, share],
            [-0.5, n - 0.5],
            color=style.MUTED,
            linewidth=0.6,
            dashes=dashes,
            zorder=3,
        )
    style.plain_ticks(ax.xaxis, 4, 0.01)
    return ax


def _box(ax: Any, left: float, y: float, wide: float, high: float, **look: Any) -> Any:
    """A rectangle centred on a row; many times quicker than a bar of matplotlib's."""
    from matplotlib.patches import Rectangle

    return ax.add_patch(Rectangle((left, y - high / 2), wide, high, **look))


def _bar(
    ax: Any, y: float, need: Need, reach: float, printed: bool, high: float = 0.78
) -> list[Any]:
    """The capacity behind, the parts end to end; cut, with an arrow, where it goes beyond."""
    if not need.capacity.size_bytes or need.share is None:
        return []
    drawn = [_box(ax, 0, y, 1.0, high, zorder=1, **_capacity_look(printed))]
    start = 0.0
    for part, value in (need.parts or {"": need.total_bytes}).items():
        share = value / need.capacity.size_bytes
        shown = min(share, max(reach - start, 0.0))
        if shown > 0:
            bar = _box(
                ax,
                start,
                y,
                shown,
                0.6 * high,
                zorder=2,
                linewidth=0,
                facecolor=COLOUR_OF_PART.get(part, style.MUTED),
            )
            marks.tag(bar, _rows_of(need), need.hover_text_of(part) if part else need.hover_text)
        start += share
    if need.share > reach:
        drawn += ax.plot(
            [reach], [y], ">", color=style.INK, markersize=3.5, clip_on=False, zorder=4
        )
    return drawn


def _rows_of(need: Need) -> Any:
    return need.capacity.rows or None


def _trainings_height(n: int, narrow: bool) -> float:
    return n * (NARROW_ROW_IN if narrow else ROW_IN) + 0.46


def _trainings(own: Sequence[Need], narrow: bool, figure: Any, top: float) -> None:
    """Against the capacity on the left, where the bytes go on the right; one panel on a phone."""
    devices = len({need.capacity.device for need in own})
    names = []
    for need in own:
        where = f"{need.capacity.device} · " if devices > 1 else ""
        rest = f"{where}{need.backend} · {need.precision}"
        names.append(f"{need.name}\n{rest}" if narrow else f"{need.name} · {rest}")
    width = style.width_in(narrow)
    left = min(style.labels_in(names, narrow) + 0.08, width * (0.5 if narrow else 0.45))
    high = _trainings_height(len(own), narrow) - 0.46
    text_in = 0.0 if narrow else 1.3
    inner = width - left - 0.06
    first = inner * 0.98 if narrow else (inner - text_in) * 0.5
    ax = _axes(figure, left, top, (first, high), len(own), REACH_TRAININGS)
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(
        axis="y",
        length=0,
        labelcolor=style.INK,
        labelsize=style.SMALL_PT if narrow else style.TEXT_PT,
    )
    ax.set_xlabel("share of the capacity, %", size=style.SMALL_PT)
    split = None
    if not narrow and any(need.parts for need in own):
        split = style.axes(figure, left + first + text_in, top, (inner - text_in) * 0.48, high)
        split.set_xlim(0, 1)
        split.set_ylim(len(own) - 0.5, -0.5)
        split.set_yticks([])
        split.spines["left"].set_visible(False)
        style.plain_ticks(split.xaxis, 4, 0.01)
        split.set_xlabel("share of the prediction, %", size=style.SMALL_PT)
    for y, need in enumerate(own):
        lower, high_ = (y + 0.2, 0.46) if narrow else (y, 0.78)
        drawn = _bar(ax, lower, need, REACH_TRAININGS, False, high_)
        number = SCENARIO_OF[need.scenario] if need.scenario else "?"
        size = need.capacity.size_bytes
        of = f" / {words.mebibytes(size)}" if size else ""
        text = f"{words.mebibytes(need.total_bytes)}{of} · {number}"
        if narrow:
            drawn.append(ax.text(0, y - 0.24, text, va="center", size=style.SMALL_PT - 0.8))
        else:
            drawn.append(ax.text(REACH_TRAININGS * 1.02, y, text, va="center", size=style.SMALL_PT))
            if need.share and need.share < 0.65:  # beside a bar that may be too short to see
                drawn.append(
                    ax.text(
                        need.share + 0.03,
                        y,
                        words.percent(need.share),
                        va="center",
                        size=style.SMALL_PT - 0.5,
                        zorder=5,
                        color=style.MUTED,
                    )
                )
        if split is not None:
            start = 0.0
            for part, value in need.parts.items():
                bar = _box(
                    split,
                    start,
                    y,
                    need.share_of(value),
                    0.6,
                    linewidth=0,
                    facecolor=COLOUR_OF_PART[part],
                )
                marks.tag(bar, _rows_of(need), need.hover_text_of(part))
                start += need.share_of(value)
        marks.tag(drawn, _rows_of(need), need.hover_text)


def _grid(narrow: bool) -> int:
    return 2 if narrow else len(PAPER)


def _models_height(n: int, narrow: bool) -> float:
    lines = -(-len(PAPER) // _grid(narrow))
    return lines * (0.2 + n * ROW_IN + 0.46)


def _names(devices: Sequence[Capacity], narrow: bool) -> list[str]:
    return [words.shortened(_short(device.name), 20 if narrow else 28) for device in devices]


def _label_width(devices: Sequence[Capacity], narrow: bool) -> float:
    """Inches for the names of devices at the side of a panel."""
    return style.labels_in(_names(devices, narrow), narrow) * 1.05 + 0.1 if devices else 0.0


def _models(
    devices: Sequence[Capacity], left: float, away: bool, narrow: bool, figure: Any, top: float
) -> None:
    """A panel for each of the paper's models, a row for each device."""
    width, columns = style.width_in(narrow), _grid(narrow)
    names, size = _names(devices, narrow), style.SMALL_PT if narrow else style.TEXT_PT
    gap, text_in = 0.08, 0.46
    panel = (width - left - columns * text_in - gap * (columns - 1)) / columns
    high = len(devices) * ROW_IN
    for index, trained in enumerate(PAPER):
        line, column = divmod(index, columns)
        x = left + column * (panel + text_in + gap)
        y = top + line * (0.2 + high + 0.46)
        style.write(
            figure, x, y + 0.08, trained.title, size=style.SMALL_PT, va="center", color=style.MUTED
        )
        ax = _axes(figure, x, y + 0.2, (panel, high), len(devices), REACH_MODELS)
        if column == 0:
            ax.set_yticks(range(len(names)), names)
            ax.tick_params(
                axis="y", length=0, labelsize=size, labelcolor=style.MUTED if away else style.INK
            )
        ax.set_xlabel("of capacity, %", size=style.SMALL_PT)
        for at, device in enumerate(devices):
            need = needs(trained, device)
            drawn = _bar(ax, at, need, REACH_MODELS, away)
            number = SCENARIO_OF[need.scenario] if need.scenario else "?"
            share = (
                words.significant(100 * need.share, 2 if need.share < 1 else 3)
                if (need.share)
                else "–"
            )
            drawn.append(
                ax.annotate(
                    f"{share} · ",
                    (REACH_MODELS, at),
                    (text_in * 72 - 8, 0),
                    ha="right",
                    va="center",
                    textcoords="offset points",
                    size=style.SMALL_PT - 0.5,
                    color=style.MUTED,
                )
            )
            drawn.append(
                ax.annotate(
                    number,
                    (REACH_MODELS, at),
                    (text_in * 72 - 8, 0),
                    ha="left",
                    va="center",
                    textcoords="offset points",
                    size=style.SMALL_PT,
                    weight="bold",
                    color=style.INK,
                )
            )
            marks.tag(drawn, _rows_of(need), need.hover_text)


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
    result = Table(
        [
            Column("Training"),
            Column("Device"),
            Column("Backend"),
            Column("Precision"),
            *(Column(part, "MiB", True, "at the step's largest moment") for part in PARTS),
            Column("predicted", "MiB", True, "all together, without offloading"),
            Column("capacity", "MiB", True, "what a training may use of the device"),
            Column("share", "%", True),
            Column("Scenario", help="as the memory model derives it"),
            Column("stays when offloaded", "MiB", True, "ZeRO-Offload, stage 3"),
            Column("Evidence"),
        ]
    )
    sources = sorted({need.capacity.source for need in every if need.capacity.source})
    result.notes.append(f"Capacities are {words.listing(sources)}.")
    for need in every:
        share, absent = need.share, need.capacity.device in away and need.row is None
        result.add(
            need.name,
            Value(need.capacity.name, need.capacity.name, badge="not measured" if absent else ""),
            need.backend,
            need.precision,
            *(
                quantity(need.parts.get(part), "its record does not split the prediction", MIB)
                for part in PARTS
            ),
            quantity(need.total_bytes, "", MIB),
            quantity(
                need.capacity.size_bytes,
                "the device's memory is unknown",
                MIB,
                mark="published" if absent else "",
                title="from the data sheet" if absent else "",
            ),
            quantity(share, "the device's memory is unknown", 0.01),
            Value(need.verdict, sort=share or 0.0)
            if need.scenario
            else missing("the device's memory is unknown"),
            quantity(need.offloaded_bytes, "was not offloaded", MIB),
            need.evidence,
            of=need.capacity.rows or None,
        )
    return result
