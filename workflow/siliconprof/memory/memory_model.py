"""Which memory situation a cell is in: the paper's scenarios 1, 2 and 3 (Feng et al. 2025, Figure 2).

A cell's need is predicted (`footprint`, through the workload) and compared with the capacity: the
cell's own budget, else its device's memory. All functions here are pure; `session.resolved_cell` calls
them for a cell. Also the paper's theoretical memory, for every model size and without a model.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from siliconprof import plugins

NEAR_CAPACITY_ABOVE = 0.88  # share of the capacity; our reading, the paper gives none
# A cell that asks to be near capacity reaches at least this much of the share that it aims at.
AIM_REACHED = 0.9
# Of an Apple device's memory, where Metal's own recommendation is unknown. Seen as 75 % in
# gpustack/gpustack issue 1375, as 74 % on an M3 with 16 GiB in AlexsJones/llmfit pull request 754,
# as "65-75 %" in sgl-project/sglang pull request 29949; Apple documents no share.
UNIFIED_SHARE = 0.75
# Of a card's own memory, what the driver's context and the libraries' kernels take before the first array.
# It grows with the multiprocessors: 0.73 GiB were seen on an H200, with 132 of them and torch 2.13, and a
# card of 8 GB has 24 to 36, so half a GiB is room enough where it matters.
CONTEXT_BYTES = 2**29
UNIFIED_SOURCE = "75 % of the unified memory, an assumption: Metal's recommendation is unknown"
RECOMMENDED_SOURCE = "Metal's recommended working-set size"
DEVICE_SOURCE = "the device's memory"
CONTEXT_SOURCE = f"the device's memory but {CONTEXT_BYTES / 2**30:g} GiB for its context"
BUDGET_SOURCE = "memory_budget_gib of the workload"
MOST_SAMPLES = 2**20  # a batch that no search goes beyond

BYTES_PER_PARAMETER = 16  # fp32 or AMP with AdamW: Rajbhandari et al. 2020, ZeRO, section 3.1
VOCAB_SIZE = 1024  # in the table of models, of the data that our own sizes are made for
LORA_RANK = 8  # in the table of models


def usable(device: Mapping[str, Any]) -> dict[str, Any] | None:
    """The memory that a training may use on a device that cannot give all of it; None = all.

    For a GPU that shares the host's memory it is Metal's recommended working-set size, beyond which
    macOS pages; for one with its own, all but the context's.

    Args:
        device: an entry of the host file.
    """
    if device["kind"] != "gpu" or device.get("memory_kind") not in ("unified", "dedicated"):
        return None
    if device["memory_kind"] == "dedicated":
        left = (device["memory_bytes"] or 0) - CONTEXT_BYTES
        return {"bytes": left, "source": CONTEXT_SOURCE} if left > 0 else None
    recommended = device.get("working_set_bytes")
    if recommended:
        return {"bytes": int(recommended), "source": RECOMMENDED_SOURCE}
    if device["memory_bytes"] is None:
        return None
    return {"bytes": int(UNIFIED_SHARE * device["memory_bytes"]), "source": UNIFIED_SOURCE}


def capacity_of(cell: Any) -> tuple[int | None, str]:
    """(bytes that a `store.cell.Cell` may use, None when unknown; source of that number)."""
    budget = cell.parameters.get("memory_budget_gib")
    if isinstance(budget, Mapping):  # one for each kind of device
        budget = budget.get(cell.device_kind)
    if budget is not None:
        return int(budget * 2**30), BUDGET_SOURCE
    if cell.device_usable is not None:
        return cell.device_usable["bytes"], cell.device_usable["source"]
    return cell.device_memory_bytes or None, DEVICE_SOURCE


def near_above(share: float) -> float:
    """The share of the capacity from which a cell that aims at one counts as near it."""
    return min(NEAR_CAPACITY_ABOVE, AIM_REACHED * share)


def derive_scenario(
    predicted_bytes: int | None, capacity_bytes: int | None, near: float = NEAR_CAPACITY_ABOVE
) -> str | None:
    """`fits`, `near-capacity` or `offload`; None when either number is unknown.

    Args:
        near: the share of the capacity above which a cell is near it.
    """
    if predicted_bytes is None or not capacity_bytes:
        return None
    if predicted_bytes > capacity_bytes:
        return "offload"
    return "near-capacity" if predicted_bytes >= near * capacity_bytes else "fits"


def largest_batch(predict: Callable[[int], int], allowed_bytes: float) -> int:
    """The most samples per step whose prediction stays within a limit; 0 = not even one.

    Args:
        predict: bytes that a batch of that size needs; never falls as the batch grows.
    """
    return bisect_right(range(1, MOST_SAMPLES + 1), allowed_bytes, key=predict)


@dataclass(frozen=True)
class ScenarioInputs:
    """Everything on which `decide` bases a cell's scenario."""

    requested: str
    predicted_bytes: int | None
    capacity_bytes: int | None
    capacity_source: str = DEVICE_SOURCE
    offloaded_bytes: int | None = None  # predicted on the device when offloading
    cannot_offload: str | None = None  # why the backend cannot
    on_cpu: bool = False
    trains: bool = True
    force: bool | float = False  # a number: up to that many times the capacity
    share: float = 0.9  # of the capacity, at which near-capacity aims
    largest_batch: int | None = None  # the largest within that share; None when unknown
    would_do: tuple[str, ...] = ()  # settings with which it would fit
    auto_batch: bool = False  # the cell takes that batch instead of one of its own

    def forced(self, need_bytes: int) -> bool:
        """Whether the cell runs although it needs more than the capacity."""
        if isinstance(self.force, bool):
            return self.force
        return bool(self.capacity_bytes) and need_bytes <= self.force * (self.capacity_bytes or 0)


@dataclass(frozen=True)
class ScenarioChoice:
    """The scenario to run; `status` and `reason` when the cell does not run."""

    applied: str
    status: str | None = None
    reason: str | None = None


def decide(question: ScenarioInputs) -> ScenarioChoice:
    """Decide on a cell: `auto` follows the derivation, the other scenarios override it."""
    derived = derive_scenario(question.predicted_bytes, question.capacity_bytes)
    requested = question.requested
    if not question.trains and requested in ("offload", "near-capacity"):
        return ScenarioChoice(
            requested, "unsupported", f"{requested} is a scenario of trainings only"
        )
    if requested == "near-capacity":
        return _near_capacity(question)
    if requested == "offload":
        if question.cannot_offload:
            return ScenarioChoice("offload", "unsupported", question.cannot_offload)
        return _offload(question)
    if derived == "offload":
        if requested == "auto" and not question.on_cpu and not question.cannot_offload:
            return _offload(question)
        obstacle = question.cannot_offload
        if question.on_cpu:
            obstacle = "a CPU has no other memory to offload to"
        because = "" if requested == "fits" else f", and {obstacle}"
        if question.predicted_bytes is not None and question.forced(question.predicted_bytes):
            return ScenarioChoice("fits")
        smaller = f"; batch_size {batch} would do" if (batch := question.largest_batch) else ""
        others = (
            f"; it would fit with {' or '.join(question.would_do)}" if question.would_do else ""
        )
        reason = f"{_sizes(question)}: it does not fit{because}{smaller}; force: true measures it all the same{others}"
        return ScenarioChoice("fits", "skipped", reason)
    return ScenarioChoice("fits" if requested == "fits" else derived or "fits")


def _offload(question: ScenarioInputs) -> ScenarioChoice:
    """Offload, if the part that stays on the device fits."""
    need, have = question.offloaded_bytes, question.capacity_bytes
    if need is None or not have or need <= have or question.forced(need):
        return ScenarioChoice("offload")
    reason = f"even offloaded it is {_sizes(question, need)}; force: true measures it all the same"
    return ScenarioChoice("offload", "skipped", reason)


def _near_capacity(question: ScenarioInputs) -> ScenarioChoice:
    """Run with the batch that fills the capacity to its share, or with the cell's own if it does."""
    need, have = question.predicted_bytes, question.capacity_bytes
    if need is None or not have:
        unknown = "no memory model" if need is None else "the device's memory is unknown"
        return ScenarioChoice(
            "near-capacity", "skipped", f"near-capacity needs both numbers: {unknown}"
        )
    least = near_above(question.share)
    if question.auto_batch:
        if question.largest_batch and need >= least * have:
            return ScenarioChoice("near-capacity")
        allowed = f"near-capacity is {least:.0%} to {question.share:.0%} of it here"
        batch = question.largest_batch or 1
        more = ", and one sample more is too many" if question.largest_batch else ""
        reason = f"a batch of {batch} is {_sizes(question)}{more}; {allowed}"
        return ScenarioChoice("near-capacity", "skipped", reason)
    if least * have <= need <= have or (need > have and question.forced(need)):
        return ScenarioChoice("near-capacity")
    would = "not even a batch of 1 would do"
    if question.largest_batch:
        would = f"batch_size {question.largest_batch} would do, as would batch_size: auto"
    reason = f"{need / have:.0%} of it, near-capacity is {least:.0%} to 100%; {would}"
    return ScenarioChoice("near-capacity", "skipped", f"{_sizes(question)}: {reason}")


def _sizes(question: ScenarioInputs, need: int | None = None) -> str:
    """`predicted 1.5 GiB, the device has 1.2 GiB`."""
    need = question.predicted_bytes if need is None else need
    assert need is not None and question.capacity_bytes is not None
    whose = "the budget is" if question.capacity_source == BUDGET_SOURCE else "the device has"
    return f"predicted {gibibytes(need)}, {whose} {gibibytes(question.capacity_bytes)}"


def gibibytes(n_bytes: float) -> str:
    """A size in GiB, for a message."""
    return f"{n_bytes / 2**30:.3g} GiB" if n_bytes < 100 * 2**30 else f"{n_bytes / 2**30:.0f} GiB"


def theoretical_memory(n_parameters: int) -> dict[str, float]:
    """Weights, gradients and AdamW's state at 16 bytes a parameter, by both formulas.

    `theoretical_gib`: bytes over 2³⁰. `paper_gib`: the paper's, millions of parameters times 16
    over 1024, which mixes 10⁶ with 2¹⁰ and is 4.9 % more.
    """
    return {
        "theoretical_gib": n_parameters * BYTES_PER_PARAMETER / 2**30,
        "paper_gib": n_parameters / 1e6 * BYTES_PER_PARAMETER / 1024,
    }


def model_table() -> list[dict[str, Any]]:
    """Every model and size with its parameters and theoretical memory; nothing is allocated.

    Sizes without a vocabulary of their own count with `VOCAB_SIZE`.
    """
    rows = []
    for model in plugins.names("workloads"):
        plugin = plugins.load("workloads", model)
        if plugin.kind != "training":
            continue
        defaults = plugin.defaults()
        for size in plugin.vocab_sizes:
            own = defaults | {"size": size, "batch_size": 1, "dataset_vocab_size": VOCAB_SIZE}
            workload = plugin(own)
            lora = None
            if "lora_rank" in defaults:
                lora = plugin(own | {"lora_rank": LORA_RANK}).weights.n_trainable_parameters()
            rows.append(
                {
                    "model": model,
                    "size": size,
                    "n_parameters": workload.weights.n_parameters(),
                    "lora_trainable": lora,
                    **theoretical_memory(workload.weights.n_parameters()),
                }
            )
    return rows
