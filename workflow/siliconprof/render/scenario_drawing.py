"""The paper's Figure 2 from our memory model: what a training needs against what a device has.

Scenario 1 fits, 2 needs offload, 3 is near capacity. Every bar is a prediction: of this run's
trainings as their records hold it, of the paper's four models as the formulas of `footprint` give
it now, which build no weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from siliconprof import plugins, words
from siliconprof.analyse.record_rows import PARTS
from siliconprof.analyse.throughputs import device_of
from siliconprof.hosts import registry
from siliconprof.memory import footprint, memory_model
from siliconprof.render import chart, style
from siliconprof.render.beside import SCENARIO_OF
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.variants import Row, backend_place, model, order, precision, variant

MEANING = {"fits": "fits", "offload": "needs offload", "near-capacity": "near capacity"}
ALONE = "does not fit, and a CPU has no other memory"
PRECISION = "fp32"
PREDICTED = "predicted"
MEASURED = "predicted, then measured"
# Table 3, trained as config/paper.yaml has it: the paper states neither sequence nor clip lengths,
# and without checkpointing Whisper-large at its batch would need five times an M2 Max.
LENGTHS = {"gpt2": {"seq_len": 128}, "whisper": {"target_len": 128, "dataset_clip_seconds": 30}}
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
    """One figure; a note says what cannot be drawn."""
    own, here, paper = trainings(data), own_devices(data), paper_devices(data)
    if not (own or here or paper):
        book.note(
            "No scenarios are drawn: no training has a prediction, and the registry has no "
            "device of the paper."
        )
        return
    left_out = ""
    if len(own) > MOST_TRAININGS:
        left_out = (
            f" Of {len(own)} different trainings the {MOST_TRAININGS} that come nearest to their "
            "capacity are drawn."
        )
    if len(here) > MOST_DEVICES:
        left_out += f" Of {len(here)} devices of this run the first {MOST_DEVICES} are drawn."
    if not own:
        left_out += " This run has no training with a prediction, so there is no panel of its own."
    shown = partial(draw, own[:MOST_TRAININGS], here[:MOST_DEVICES], paper)
    book.figure("scenarios", "scenarios", shown, left_out=left_out)


# -- needs and capacities ----------------------------------------------------------------------


class Model(NamedTuple):
    """One of the paper's trainings."""

    name: str
    module: str
    size: str
    batch_size: int
    checkpointed: bool = False

    def label(self, checkpointed: str = ", checkpointed") -> str:
        """`Whisper-medium, batch 4`."""
        return f"{self.name}, batch {self.batch_size}" + checkpointed * self.checkpointed


PAPER = (
    Model("Whisper-medium", "whisper", "medium", 4),
    Model("GPT2-large", "gpt2", "large", 16),
    Model("GPT2-XL", "gpt2", "xl", 16),
    Model("Whisper-large", "whisper", "large", 32, checkpointed=True),
)


class Capacity(NamedTuple):
    """A device and what a training may use of it."""

    device: str
    name: str
    backend: str
    size_bytes: float | None
    source: str
    rows: tuple[Row, ...] | None = None  # cells of it; None of a device that is not here
    on_cpu: bool = False


@dataclass(frozen=True)
class Need:
    """What a training is predicted to need, by part, against a capacity; all in bytes."""

    name: str
    capacity: Capacity
    precision: str
    parts: Mapping[str, float]  # at the step's largest moment; empty where only the sum is known
    total_bytes: float
    offloaded_bytes: float | None  # what would stay on the device
    evidence: str
    row: Row | None = None

    @property
    def share(self) -> float | None:
        """Of the capacity; None where the capacity is unknown."""
        return self.total_bytes / self.capacity.size_bytes if self.capacity.size_bytes else None

    @property
    def scenario(self) -> str | None:
        """`fits`, `offload` or `near-capacity`, as the memory model derives it."""
        size = self.capacity.size_bytes
        if self.row is not None and self.row["scenario_derived"]:
            return str(self.row["scenario_derived"])
        return memory_model.derive_scenario(round(self.total_bytes), round(size) if size else None)

    @property
    def number(self) -> str:
        """`2`, of the paper's scenarios; `?` where the capacity is unknown."""
        return SCENARIO_OF[self.scenario] if self.scenario else "?"

    @property
    def backend(self) -> str:
        """What the backend is called: with the BLAS of the cell where that is a slow one."""
        return words.backend_name(self.row) if self.row else self.capacity.backend

    @property
    def verdict(self) -> str:
        """`2 needs offload`."""
        kind = self.scenario
        if kind is None:
            return "capacity unknown"
        alone = kind == "offload" and self.capacity.on_cpu
        return f"{SCENARIO_OF[kind]} {ALONE if alone else MEANING[kind]}"

    @property
    def hover_text(self) -> str:
        """What is shown beside the pointer."""
        size, share = self.capacity.size_bytes, self.share
        of = f" of {words.mebibytes(size)} ({words.percent(share)})" if size and share else ""
        stays = (
            f"; offloaded, {words.mebibytes(self.offloaded_bytes)} would stay on it"
            if self.scenario == "offload" and self.offloaded_bytes
            else ""
        )
        return (
            f"{self.name} on {self.capacity.name}, {self.capacity.backend} {self.precision}: "
            f"predicted {words.mebibytes(self.total_bytes)}{of}, {self.verdict}{stays}"
        )

    def hover_text_of(self, part: str) -> str:
        """The same of one of its parts."""
        share = words.percent(self.share_of(self.parts[part]))
        return f"{self.name}: {part} {words.mebibytes(self.parts[part])}, {share} of the prediction"

    def share_of(self, size_bytes: float) -> float:
        """The share of the whole prediction; 0 where that is 0."""
        return size_bytes / self.total_bytes if self.total_bytes else 0.0


def needs(trained: Model, capacity: Capacity) -> Need:
    """One of the paper's trainings on a device, by the memory model of the device's backend."""
    plugin = plugins.load("workloads", trained.module)
    defaults = {key: v["default"] for key, v in plugin.PARAMETERS.items() if "default" in v}
    own = {"size": trained.size, "batch_size": trained.batch_size, "zero_stage": 3}
    own |= {"gradient_checkpointing": trained.checkpointed, **LENGTHS[trained.module]}
    workload = plugin(defaults | own | {"dataset_vocab_size": memory_model.VOCAB_SIZE})
    parts = workload.memory_bytes(PRECISION, capacity.backend)
    offloaded = workload.offloaded_memory_bytes(PRECISION, capacity.backend)
    return Need(
        trained.label(),
        capacity,
        PRECISION,
        {part: parts[part] for part in PARTS},
        footprint.total(parts),
        footprint.total(offloaded) if offloaded else None,
        PREDICTED,
    )


def own_devices(data: Data) -> list[Capacity]:
    """Every device with cells, and what its cells may use where no budget limits them."""
    capacities = []
    for rows in grouped(sorted(data.cells, key=order), device_of).values():
        known = {row["backend"] for row in rows} & set(plugins.names("backends"))
        sized = (row for row in rows if words.number(row["capacity_bytes"]))
        unlimited = [r for r in sized if r["capacity_source"] != memory_model.BUDGET_SOURCE]
        row = (unlimited or rows)[0]
        size = words.number(row["capacity_bytes"] if unlimited else row["device_memory_bytes"])
        source = (row["capacity_source"] if unlimited else None) or memory_model.DEVICE_SOURCE
        if known:
            name, first = data.place(row), min(known, key=backend_place)
            on_cpu = row["device_kind"] == "cpu"
            capacities.append(
                Capacity(row["device"], name, first, size, source, tuple(rows), on_cpu)
            )
    return capacities


def paper_devices(data: Data) -> list[Capacity]:
    """The devices of the paper's Table 1 as the registry has them."""
    capacities = []
    for printed in data.published["table1_devices"]:
        entry = data.registry["devices"].get(printed["device"])
        if entry is None or not entry["memory_gib"] or not entry["backends"]:
            continue
        memory = int(entry["memory_gib"]["value"] * registry.GIB)
        host = {"kind": entry["kind"], "memory_kind": entry["memory_kind"], "memory_bytes": memory}
        size, source = memory_model.capacity(None, memory_model.usable(host), memory)
        capacities.append(
            Capacity(printed["device"], entry["name"], entry["backends"][0], size, source)
        )
    return capacities


def trainings(data: Data) -> list[Need]:
    """What the trainings of this run were predicted to need, each once, the fullest first."""
    cells = sorted((cell for cell in data.cells if cell["trainer"]), key=order)
    every = [
        _need(data, cell)
        for cell in cells
        if words.number(cell["predicted_memory_bytes"]) is not None
    ]

    def work(need: Need) -> tuple:
        of = need.capacity
        return (need.name, need.precision, need.total_bytes, of.name, of.backend, of.size_bytes)

    chosen = [
        next((need for need in needs if need.evidence == MEASURED), needs[0])
        for needs in grouped(every, work).values()
    ]
    return sorted(chosen, key=lambda need: -(need.share or 0.0))


def _need(data: Data, cell: Row) -> Need:
    """What the record of a training says that it was predicted to need."""
    values = {part: words.number(cell.get(f"predicted_{part}_bytes")) for part in PARTS}
    batch = words.number(cell["batch_size"])
    apart = [label for label in variant(cell) if not label.startswith("near capacity")]
    capacity = Capacity(
        cell["device"],
        data.place(cell),
        cell["backend"],
        words.number(cell["capacity_bytes"]),
        str(cell["capacity_source"] or ""),
        (cell,),
        cell["device_kind"] == "cpu",
    )
    return Need(
        ", ".join([model(cell), *([f"batch {batch:.0f}"] if batch else []), *apart]),
        capacity,
        precision(cell),
        {part: value for part, value in values.items() if value is not None},
        words.number(cell["predicted_memory_bytes"]) or 0.0,
        words.number(cell["predicted_offloaded_bytes"]),
        MEASURED if cell["status"] == "ok" else f"{PREDICTED}; {cell['status']}",
        cell,
    )


# -- figure ------------------------------------------------------------------------------------


def draw(own: Sequence[Need], here: Sequence[Capacity], paper: Sequence[Capacity]) -> Any:
    """This run's trainings; the paper's models on this run's devices, and on the paper's."""
    legend = [
        *((style.swatch(COLOUR_OF_PART[part]), part) for part in PARTS),
        (style.swatch(style.RULE), "capacity"),
        (style.swatch("none", style.PUBLISHED_HATCH), "capacity as published"),
    ]
    charts = [_trainings(own)] if own else []
    for devices, heading, away in (
        (here, "The paper’s models on this run’s devices: predicted", False),
        (paper, "The paper’s devices: predicted, not measured", True),
    ):
        if devices:
            panels = [_model(trained, devices, away) for trained in PAPER]
            charts.append(Chart(panels, (), len(PAPER), same_y=True, heading=heading, quiet=away))
    return chart.stacked([replace(charts[0], legend=legend), *charts[1:]])


def _limits() -> list[Mark]:
    """Lines where a training is near the capacity, and where it has reached it."""
    near = chart.upright(memory_model.NEAR_CAPACITY_ABOVE, dashes=(1.5, 1.5), zorder=3)
    return [near, chart.upright(1.0, zorder=3)]


def _bar(y: float, need: Need, reach: float, printed: bool) -> Iterator[Mark]:
    """The capacity behind, the parts end to end; cut, with an arrow, where it goes beyond."""
    size, share, rows, whole = (
        need.capacity.size_bytes,
        need.share,
        need.capacity.rows,
        need.hover_text,
    )
    if not size or share is None:
        return
    behind = {"facecolor": style.RULE, "edgecolor": style.FAINT, "linewidth": 0.6}
    if printed:
        behind = style.published("grey") | {"hatch": "///", "edgecolor": style.FAINT}
    yield chart.bar(y, 0, 1, rows, whole, 0.78, zorder=1, **behind)
    start = 0.0
    for part, value in (need.parts or {"": need.total_bytes}).items():
        end = min(start + value / size, reach)
        if end > start:
            text = need.hover_text_of(part) if part else whole
            ink = COLOUR_OF_PART.get(part, style.MUTED)
            yield chart.bar(y, start, end, rows, text, 0.47, zorder=2, color=ink)
        start += value / size
    if share > reach:
        arrow: dict[str, Any] = {"color": style.INK, "clip_on": False, "zorder": 4}
        yield chart.dot(reach, y, rows, whole, ">", 3.5, **arrow)


def _trainings(own: Sequence[Need]) -> Chart:
    """Against the capacity on the left, where the bytes go on the right."""
    several = len({need.capacity.device for need in own}) > 1
    names = [
        f"{need.name} · {f'{need.capacity.device} · ' if several else ''}"
        f"{need.backend} · {need.precision}"
        for need in own
    ]
    shown = [*_limits(), *(mark for y, need in enumerate(own) for mark in _row(y, need))]
    capacity = Panel(
        shown,
        Scale("share of the capacity, %", ends=(0, REACH_TRAININGS), most=4, unit=0.01),
        labels=names,
        side_in=1.35,
    )
    parts = [mark for y, need in enumerate(own) for mark in _parts(y, need)]
    of_prediction = Scale("share of the prediction, %", ends=(0, 1), most=4, unit=0.01)
    split = Panel(parts, of_prediction, labels=names)
    panels = [capacity] if not parts else [capacity, split]
    return Chart(panels, columns=2, same_y=True, heading="This run’s trainings")


def _row(y: int, need: Need) -> Iterator[Mark]:
    """The bar of one of this run's trainings, with its bytes and its scenario."""
    size, share = need.capacity.size_bytes, need.share
    of = f" / {words.mebibytes(size)}" if size else ""
    text = f"{words.mebibytes(need.total_bytes)}{of} · {need.number}"
    look: dict[str, Any] = {"hover": need.hover_text, "color": style.INK}
    yield from _bar(y, need, REACH_TRAININGS, False)
    yield chart.note(REACH_TRAININGS, y, text, need.capacity.rows, **look)
    if share and share < 0.65:  # beside a bar that may be too short to see
        look |= {"size": style.SMALL_PT - 0.5, "zorder": 5, "color": style.MUTED}
        yield chart.note(share, y, words.percent(share), need.capacity.rows, **look)


def _parts(y: int, need: Need) -> Iterator[Mark]:
    start = 0.0
    for part, value in need.parts.items():
        end, text = start + need.share_of(value), need.hover_text_of(part)
        yield chart.bar(y, start, end, need.capacity.rows, text, color=COLOUR_OF_PART[part])
        start = end


def _model(trained: Model, devices: Sequence[Capacity], away: bool) -> Panel:
    """One of the paper's models, a row for each device."""
    # without what their vendor's products share
    noise = re.compile("NVIDIA |GeForce |Apple | GPU cores")
    names = [noise.sub("", device.name) for device in devices]
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
            place = (REACH_MODELS, y, text, need.capacity.rows, (26, 0), need.hover_text)
            shown.append(chart.note(*place, **look))
    return Panel(
        shown,
        Scale("of capacity, %", ends=(0, REACH_MODELS), most=4, unit=0.01),
        labels=[words.shortened(name, 28) for name in names],
        title=trained.label(" †"),
        quiet=away,
        side_in=0.48,
    )
