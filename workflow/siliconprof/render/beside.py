"""Our measurements beside a published number: the same training, and with what it was done.

A published row names a model, a device and a batch size. What was measured with other work, or by
other means where the row names its means, is not comparable and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from siliconprof import words
from siliconprof.analyse.published_values import model_and_size
from siliconprof.memory import memory_model
from siliconprof.render.data import Data, grouped
from siliconprof.render.tables import Value, missing
from siliconprof.render.traces import key as key_of
from siliconprof.render.variants import Row, as_usual, has_no_speed

NOT_MEASURED = "no cell of this device, workload and setting is among the results"
NOT_DERIVED = "no cell of this device and workload, by the Trainer, is among the results"
NOT_PRINTED = "neither its length nor whether it has the optimizer is printed"
SCENARIO_OF = {"fits": "1", "offload": "2", "near-capacity": "3"}  # the paper's numbers for ours


def n_parameters(data: Data, workload: str) -> int | None:
    """Exact parameter count of a published workload that this project has, else None."""
    for row in data.models:
        if (row["model"], row["size"]) == model_and_size(workload):
            return int(row["n_parameters"])
    return None


def measured(data: Data, device: str, module: str | None = None, **wanted: Any) -> list[Row]:
    """Measured points of a published device, from any source, that agree with `wanted`."""
    return [
        point
        for point in data.points
        if point["device"] == device
        and module in (None, point["module"])
        and all(point[name] == value for name, value in wanted.items())
    ]


def shown(points: Sequence[Row], show: Callable[[Row], str], reason: str = NOT_MEASURED) -> Value:
    """All matching measurements in one cell, each with where it is from."""
    if not points:
        return missing(reason)
    texts = (f"{show(point)} {origin(point)}" for point in points)
    return Value("; ".join(texts), mark="measured")


def origin(row: Row) -> str:
    """`[here: desk]`."""
    return f"[{words.SOURCE_BADGES.get(row['source'], 'here')}: {row['host']}]"


def length(row: Row) -> str:
    """How long one sample of a training is: `128 tokens`, `30 s clips, 128 tokens`."""
    clip_s = words.number(row.get("clip_seconds"))
    tokens = words.number(row.get("target_len" if clip_s else "seq_len"))
    parts = [f"{clip_s:g} s clips"] if clip_s else []
    parts += [f"{tokens:g} tokens"] if tokens else []
    return ", ".join(parts) or "length not recorded"


def memory_and_length(row: Row) -> str:
    """What its memory depends on: `checkpointed, 30 s clips, 128 tokens`."""
    return f"{'checkpointed, ' if row.get('gradient_checkpointing') else ''}{length(row)}"


def trainings(data: Data, row: Row, **wanted: Any) -> list[Row]:
    """Measured trainings of every parameter of a published model, at its device and batch size.

    Some parameters may be fixed, as Whisper's positions are; trainings of adapters do not count.
    """
    module, _ = model_and_size(row["workload"])
    count = n_parameters(data, row["workload"])
    return [
        point
        for point in measured(data, row["device"], module, **wanted)
        if point["trainer"]
        and as_usual(point)
        and count is not None
        and point["n_parameters"] == count
        and not point["lora_rank"]
        and not has_no_speed(point)
        and point["batch_size"] == float(row["batch_size"])
    ]


class Pass(NamedTuple):
    """A row of the paper's Table 4: seconds of one batch, whose they are, and the pointer's text."""

    seconds: float
    label: str
    text: str


def passes(data: Data, points: Iterable[Row]) -> list[Pass]:
    """The printed passes of the model and batch that some trainings have, fastest first.

    They are without the Trainer and in fp32, so of such trainings only.
    """
    alike = {
        (point["module"], point["n_parameters"], point["batch_size"])
        for point in points
        if (point["trainer"], point["precision"]) == ("plain", "fp32") and not point["lora_rank"]
    }
    found = []
    for row in data.published["table4_pass_time"]:
        module, _ = model_and_size(row["workload"])
        batch, seconds = float(row["batch_size"]), float(row["pass_time_s"])
        if (module, n_parameters(data, row["workload"]), batch) in alike:
            whose = f"{data.listed_name(row['device'])} · {row['backend']}"
            text = f"published, Table 4: {row['workload']}, {whose}, {seconds:g} s one pass"
            found.append(Pass(seconds, whose, f"{text} of batch {batch:g}; {NOT_PRINTED}"))
    return sorted(found)


def gpu_energy(data: Data) -> dict[tuple, list[Row]]:
    """Key of a training -> its lines of energy.csv of which the scope is that of Table 5."""
    counted = (line for line in data.energy if line.get("scope") == "gpu")
    return grouped((r for r in counted if words.number(r.get("energy_per_step_j"))), key_of)


def planned(data: Data, row: Row, trainer: str) -> list[Row]:
    """Cells of a published workload, device and batch size, measured or not."""
    counts = {key_of(point): point["n_parameters"] for point in data.points}
    wanted = n_parameters(data, row["workload"])
    return [
        cell
        for cell in data.cells
        if (cell["device"], cell["trainer"]) == (row["device"], trainer)
        and (cell["module"], cell.get("size")) == model_and_size(row["workload"])
        and not cell.get("lora_rank")
        and as_usual(cell)
        and words.number(cell.get("batch_size")) == float(row["batch_size"])
        and counts.get(key_of(cell), wanted) == wanted  # not with a vocabulary of its own
    ]


def derived(cells: Sequence[Row]) -> Value:
    """The scenario that our memory model derives, with the precisions and lengths it holds for."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for cell in cells:
        scenario = cell["scenario_derived"]
        if scenario and cell.get("capacity_source") != memory_model.BUDGET_SOURCE:
            group = (scenario, memory_and_length(cell), origin(cell))
            groups.setdefault(group, []).append(cell["precision"])
    lines = [
        f"{SCENARIO_OF[scenario]} {scenario} ({', '.join(dict.fromkeys(precisions))}; {what}) {where}"
        for (scenario, what, where), precisions in groups.items()
    ]
    return Value("; ".join(lines), mark="measured") if lines else missing(NOT_DERIVED)


def step(point: Row) -> str:
    """The time of a whole training step."""
    seconds = words.number(point["unsplit_step_median_s"]) or words.number(point["step_median_s"])
    return words.duration(seconds) if seconds else words.DASH
