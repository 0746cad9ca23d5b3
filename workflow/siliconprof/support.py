"""Whether and how a cell can be measured, asked without importing any framework."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from siliconprof import footprint, memory_model, plugins
from siliconprof.cell import Cell
from siliconprof.errors import UserError
from siliconprof.probes import page_faults

AUTO = "auto"  # a batch size that the memory model finds


def parts(cell: Cell) -> tuple[Any, Any, Any]:
    """(backend class, workload, trainer or None) of a cell, its batch size found if it has none.

    Raises:
        UserError: the batch size is `auto` in a scenario that does not say how large it should be.
    """
    backend = plugins.load("backends", cell.backend)
    trainer = plugins.load("trainers", cell.trainer)() if cell.trainer else None
    workload = _workload(cell, _found_batch(cell) or 1 if _batch_is_found(cell) else None)
    return backend, workload, trainer


def lacking(cell: Cell) -> list[str]:
    """Distributions that a cell's workload and trainer import and this Python has not."""
    backend, workload, trainer = parts(cell)
    names = {*workload.packages(backend.framework)}
    if trainer is not None:
        names |= {*trainer.packages(backend.framework)}
    return sorted(name for name in names if find_spec(name.replace("-", "_")) is None)


def _workload(cell: Cell, batch_size: int | None = None) -> Any:
    """The cell's workload, with another batch size if one is given.

    A cell written by hand need not name what has a default.
    """
    own = {} if batch_size is None else {"batch_size": batch_size}
    plugin = plugins.load("workloads", cell.module)
    defaults = {k: v["default"] for k, v in plugin.PARAMETERS.items() if "default" in v}
    return plugin({**defaults, **cell.parameters, **own})


def _batch_is_found(cell: Cell) -> bool:
    """Whether the memory model has to find the batch size.

    Raises:
        UserError: it cannot, in this scenario.
    """
    if cell.parameters.get("batch_size") != AUTO:
        return False
    if cell.scenario != "near-capacity":
        raise UserError(
            f"--cell: batch_size is 'auto' in scenario {cell.scenario}; expected an integer, or "
            "scenario near-capacity"
        )
    return True


def _capacity(cell: Cell) -> tuple[int | None, str]:
    """(bytes that the cell may use, where that is from)."""
    budget = cell.parameters.get("memory_budget_gib")
    return memory_model.capacity(budget, cell.device_usable, cell.device_memory_bytes)


def _found_batch(cell: Cell) -> int | None:
    """The largest batch within the cell's share of the capacity; 0 = none, None = unknown."""
    capacity, _ = _capacity(cell)
    if not capacity or not _predicted(cell, 1):
        return None
    return memory_model.largest_batch(
        lambda batch_size: footprint.total(_predicted(cell, batch_size)),
        cell.parameters["near_capacity_share"] * capacity,
    )


def _predicted(cell: Cell, batch_size: int | None = None) -> Mapping[str, int]:
    return _workload(cell, batch_size).memory_bytes(cell.precision, cell.backend)


def _question(cell: Cell) -> memory_model.Question:
    """What decides the cell's scenario."""
    backend, workload, _ = parts(cell)
    predicted = workload.memory_bytes(cell.precision, cell.backend)
    capacity, source = _capacity(cell)
    trains = workload.kind == "training"
    near = trains and cell.scenario == "near-capacity"
    offloaded = workload.offloaded_memory_bytes(cell.precision, cell.backend) if trains else {}
    return memory_model.Question(
        requested=cell.scenario,
        predicted_bytes=footprint.total(predicted) if predicted else None,
        capacity_bytes=capacity,
        capacity_source=source,
        offloaded_bytes=footprint.total(offloaded) if offloaded else None,
        cannot_offload=backend.offload if trains else "only a training can be offloaded",
        on_cpu=cell.device_kind == "cpu",
        trains=trains,
        force=cell.parameters.get("force", False),
        share=cell.parameters["near_capacity_share"] if near else 1.0,
        found_batch=_found_batch(cell) if near else None,
        batch_is_found=_batch_is_found(cell),
    )


def offloads(cell: Cell) -> bool:
    """Whether the cell is trained under ZeRO-Offload, as it asks or as the memory model derives."""
    return bool(cell.trainer) and memory_model.decide(_question(cell)).applied == "offload"


def scenario(cell: Cell) -> dict[str, Any]:
    """The scenario part of the cell's record, as far as it is known before anything runs."""
    _, workload, _ = parts(cell)
    question = _question(cell)
    decision = memory_model.decide(question)
    need, have = question.predicted_bytes, question.capacity_bytes
    trains = workload.kind == "training"
    offloads = trains and decision.applied == "offload"
    return {
        "requested": cell.scenario,
        "derived": memory_model.derive_scenario(
            need,
            have,
            memory_model.near_above(question.share)
            if cell.scenario == "near-capacity"
            else memory_model.NEAR_CAPACITY_ABOVE,
        ),
        "applied": decision.applied,
        "batch_size": workload.samples_per_step() if trains else None,
        "batch_size_found": question.batch_is_found,
        "predicted_bytes": need,
        "predicted_parts_bytes": workload.memory_bytes(cell.precision, cell.backend),
        "offloaded_parts_bytes": workload.offloaded_memory_bytes(cell.precision, cell.backend)
        if offloads
        else None,
        "device_memory_bytes": cell.device_memory_bytes,
        "capacity_bytes": have,
        "capacity_source": question.capacity_source,
        "share": need / have if need is not None and have else None,
        "reason": decision.reason,
        "limit": None,
        "confirmed_peak_bytes": None,
        "confirmed_share": None,
        "confirmed_by": None,
    }


def _allocator_refusal(cell: Cell) -> str | None:
    """Why this host cannot keep freed memory in the process, where a cell asks for that."""
    if cell.parameters.get("allocator") != "retain":
        return None
    why = page_faults.allocator_environment()[1]
    return why and f"allocator retain: {why}; leave it at default"


def refusal(cell: Cell) -> tuple[str, str] | None:
    """(status, reason) of a cell that is not to be measured, or None.

    `unsupported`: nothing of its kind can run so. `skipped`: it would not fit, by prediction.
    """
    backend, workload, trainer = parts(cell)
    reason = backend.precisions.get(cell.precision) or workload.supports(
        backend.framework, cell.precision
    )
    if not reason and trainer is not None:
        reason = trainer.supports(backend.framework, cell.device_kind, cell.precision)
    reason = reason or _allocator_refusal(cell)
    if reason:
        return "unsupported", reason
    decision = memory_model.decide(_question(cell))
    if not decision.status:
        return None
    said = backend.habits.unchecked if decision.status == "skipped" else None
    return decision.status, f"{decision.reason}{f' ({said})' if said else ''}"
