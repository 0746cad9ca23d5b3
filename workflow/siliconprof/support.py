"""Whether a cell can be measured at all, asked without importing any framework."""

from __future__ import annotations

from typing import Any

from siliconprof import memory_model, plugins
from siliconprof.cell import Cell


def parts(cell: Cell) -> tuple[Any, Any, Any]:
    """(backend class, workload, trainer or None) of a cell."""
    backend = plugins.load("backends", cell.backend)
    workload = plugins.load("workloads", cell.module)(cell.parameters)
    trainer = plugins.load("trainers", cell.trainer)() if cell.trainer else None
    return backend, workload, trainer


def scenario(cell: Cell) -> dict[str, Any]:
    """The scenario part of the cell's record."""
    _, workload, _ = parts(cell)
    return memory_model.scenario(
        cell.scenario, workload.memory_bytes(cell.precision), cell.device_memory_bytes
    )


def unsupported(cell: Cell) -> str | None:
    """Why this cell cannot run anywhere of its kind, or None."""
    backend, workload, trainer = parts(cell)
    reason = backend.precisions.get(cell.precision)
    if reason:
        return reason
    reason = workload.supports(backend.framework, cell.precision)
    if reason:
        return reason
    if trainer is not None:
        reason = trainer.supports(backend.framework, cell.device_kind, cell.precision)
        if reason:
            return reason
    return memory_model.conflict(scenario(cell))
