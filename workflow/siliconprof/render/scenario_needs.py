"""What trainings are predicted to need against what devices have, by the memory model.

This run's trainings as their records hold it, the paper's four models as the formulas of
`footprint` give it now, which build no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from siliconprof import plugins, words
from siliconprof.analyse.record_rows import PARTS
from siliconprof.hosts import registry
from siliconprof.memory import footprint, memory_model
from siliconprof.render.beside import SCENARIO_OF
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


class Model(NamedTuple):
    """One of the paper's trainings."""

    name: str
    module: str
    size: str
    batch_size: int
    checkpointed: bool = False

    @property
    def label(self) -> str:
        """`Whisper-medium, batch 4`."""
        return f"{self.name}, batch {self.batch_size}" + (
            ", checkpointed" if self.checkpointed else ""
        )

    @property
    def title(self) -> str:
        """The same over a panel, where a dagger stands for checkpointing."""
        return f"{self.name}, batch {self.batch_size}{' †' if self.checkpointed else ''}"


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
    rows: tuple[Row, ...] = ()  # cells of it, for the filter; none of a device that is not here
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
    def rows(self) -> tuple[Row, ...] | None:
        """The cells that it is about; None of a device that is not here."""
        return self.capacity.rows or None

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
        trained.label,
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
    for device, rows in grouped(sorted(data.cells, key=order), lambda row: row["device"]).items():
        sized = (row for row in rows if words.number(row["capacity_bytes"]))
        unlimited = (row for row in sized if row["capacity_source"] != memory_model.BUDGET_SOURCE)
        whole = next(unlimited, None)
        row = whole or rows[0]
        size = words.number((whole or {}).get("capacity_bytes"))
        known = {row["backend"] for row in rows} & set(plugins.names("backends"))
        if known:
            capacities.append(
                Capacity(
                    device,
                    data.device_name(row),
                    min(known, key=backend_place),
                    size or words.number(row["device_memory_bytes"]),
                    (row["capacity_source"] if size else None) or memory_model.DEVICE_SOURCE,
                    tuple(rows),
                    row["device_kind"] == "cpu",
                )
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
    alike = grouped(
        every,
        lambda need: (
            need.name,
            need.precision,
            need.total_bytes,
            need.capacity[:1],
            need.capacity[2:4],
        ),
    )
    chosen = [
        next((need for need in needs if need.evidence == MEASURED), needs[0])
        for needs in alike.values()
    ]
    return sorted(chosen, key=lambda need: -(need.share or 0.0))


def _need(data: Data, cell: Row) -> Need:
    """What the record of a training says that it was predicted to need."""
    values = {part: words.number(cell.get(f"predicted_{part}_bytes")) for part in PARTS}
    batch = words.number(cell["batch_size"])
    apart = [label for label in variant(cell) if not label.startswith("near capacity")]
    capacity = Capacity(
        cell["device"],
        data.device_name(cell),
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
