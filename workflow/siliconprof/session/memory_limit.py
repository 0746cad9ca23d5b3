"""A cell's capacity, enforced: by the framework on a GPU, by a memory cgroup on a CPU.

The measuring process sets the limit after its imports and before its model is built (`apply`). On
a CPU it moves itself into a cgroup of its own; what it held before stays charged to the old one, so
that the limit applies to what the training allocates. Its supervisor reads that cgroup's counters
and removes it, however the process ended.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from siliconprof.backends.base import Memory
from siliconprof.hosts import cgroups
from siliconprof.memory import memory_model
from siliconprof.session.cell_run import CellRun

CONFIRMED_WITHIN = 0.15  # of the prediction, which is what the memory model promises
MODEL_ONLY = "model only"
AT_LEAST = "a lower bound of the peak"  # which lies between samples, and waits for no thread
REHEARSAL = {
    "warmup_iterations": 1,
    "warmup_budget_s": 0,
    "iterations": 2,
    "max_iterations": 2,
    "budget_s": 0,
    "energy_window_s": 0,
}
M_MMAP_THRESHOLD = -3  # malloc.h
MMAP_THRESHOLD_BYTES = 2**17  # glibc's own at the start
GIVES_BACK = "glibc's mmap threshold is kept at 128 KiB, so that freed memory is returned"

# -- in the measuring process --------------------------------------------------------------------


def enforce(memory: Memory, limit_bytes: int, give_back: bool = True) -> dict[str, Any]:
    """Limit allocations from here on; return the record's `limit`.

    Args:
        memory: of an open backend.
        give_back: whether to have the C library return freed memory.

    Returns:
        `enforced`, `how`, `limit_bytes`, and the `reason` where it is not enforced.
    """
    how = memory.set_limit(limit_bytes)
    if how is not None:
        return _limit(memory.limit_yields is None, how, limit_bytes, memory.limit_yields)
    try:
        group = cgroups.enter(limit_bytes, os.getsid(0))
    except OSError as error:
        return _limit(False, MODEL_ONLY, limit_bytes, f"no memory cgroup of its own: {error}")
    how = group.version.how
    # By default glibc raises that threshold, mallopt(3), as blocks are freed, up to 32 MiB, and keeps
    # smaller blocks in a heap with holes: a training that needs 120 MB was charged 205 MB.
    with suppress(AttributeError):  # another C library
        if give_back and ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) == 1:
            how += f"; {GIVES_BACK}"
    return _limit(True, how, group.limit_bytes or limit_bytes)


def _limit(enforced: bool, how: str, n_bytes: int, reason: str | None = None) -> dict[str, Any]:
    return {"enforced": enforced, "how": how, "limit_bytes": n_bytes, "reason": reason}


def apply(cell_run: CellRun, train: Callable[[CellRun], None]) -> None:
    """Enforce the run's limit, where its scenario is near capacity or has a budget.

    On a CPU the smallest model of the kind trains a few steps before that: imports and set-up on
    first use are not part of the training.

    Args:
        train: trains the workload of a run.
    """
    cell, scenario = cell_run.cell, cell_run.scenario
    budgeted = scenario["capacity_source"] == memory_model.BUDGET_SOURCE
    limit_bytes = scenario["capacity_bytes"]
    if limit_bytes is None or not (budgeted or scenario["applied"] == "near-capacity"):
        return
    if cell.device_kind == "cpu":
        if cell_run.offloads:
            reason = "offloaded on a CPU: the device's memory and the host's are the same"
            scenario["limit"] = _limit(False, MODEL_ONLY, limit_bytes, reason)
            return
        rehearse(cell_run, train)
    give_back = cell.parameters.get("allocator") != "retain"
    scenario["limit"] = enforce(cell_run.backend.memory, limit_bytes, give_back)


def rehearse(cell_run: CellRun, train: Callable[[CellRun], None]) -> None:
    """Train the smallest model of the run's kind for a few steps and discard the times."""
    workload = cell_run.workload
    cell_run.progress("rehearse, before the memory is limited", 0)
    cell = replace(cell_run.cell, timing=REHEARSAL)
    small = type(cell_run)(cell, cell_run.backend, workload.smallest(), lambda _: None)
    small.scenario = {"applied": "fits"}
    train(small)
    del small
    gc.collect()


def peak_of_step(
    cell_run: CellRun, step: Callable[[], Any] | None, persistent: Sequence[Any]
) -> Any:
    """Return a point's peak memory of a training step, in bytes; note it where there is a limit.

    A cgroup's own peak is read first and its limit lifted, since counting may need memory itself.

    Args:
        step: one more, untimed training step; None if it cannot be repeated alone.
        persistent: the training's arrays that exist between steps.
    """
    scenario = cell_run.scenario
    limit = scenario.get("limit") or {}
    group = cgroups.existing(os.getsid(0)) if limit.get("enforced") else None
    if group is not None:
        if group.peak_bytes is not None:
            _note(scenario, group.peak_bytes, group.peak_means)
        group.lift()
    peak_bytes, means = cell_run.backend.memory.step_peak_bytes(step, persistent)
    if limit and scenario["confirmed_peak_bytes"] is None and peak_bytes is not None:
        _note(scenario, peak_bytes, means)
    return {"device_peak_bytes": peak_bytes, "device_peak_means": means}


def sampled(
    cell_run: CellRun, summary: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]
) -> None:
    """Use the largest sample as the peak where the framework does not count one.

    A point of a sweep takes the largest sample of its own time window, or none if it has none.

    Args:
        summary: of the memory probe.
        samples: of all probes, on the clock of `CellRun.windows`.
    """
    most = summary.get("device_peak_sampled_bytes")
    if most is None:
        return
    means = f"the largest of {summary['samples']} samples, {AT_LEAST}; {summary['device_means']}"
    # A sweep's points have windows, but for those that failed.
    points = [] if cell_run.workload.swept else cell_run.points
    everything = [(point, -math.inf, math.inf) for point in points]
    for point, began_s, ended_s in cell_run.windows or everything:
        inside = (sample for sample in samples if began_s <= sample["t_s"] <= ended_s)
        sizes = (sample.get("device_memory_bytes") for sample in inside)
        readings = [n_bytes for n_bytes in sizes if n_bytes is not None]
        if readings and point["memory"].get("device_peak_bytes") is None:
            own = f"the largest of {len(readings)} samples, {AT_LEAST}; {summary['device_means']}"
            point["memory"] |= {"device_peak_bytes": max(readings), "device_peak_means": own}
    if cell_run.scenario["limit"] and cell_run.scenario["confirmed_peak_bytes"] is None:
        _note(cell_run.scenario, most, means)


def check(cell_run: CellRun) -> None:
    """Flag a cell near capacity that used much less than predicted, or more than the capacity.

    A cgroup counts more than arrays, so only falling short of the prediction contradicts it.
    """
    scenario = cell_run.scenario
    confirmed = scenario["confirmed_share"]
    if scenario["applied"] != "near-capacity" or confirmed is None:
        return
    predicted = scenario["share"]
    if confirmed < (1 - CONFIRMED_WITHIN) * predicted or confirmed > max(1, predicted):
        cell_run.flag(
            "near_capacity_missed",
            f"{predicted:.0%} of the memory was predicted, {confirmed:.0%} was used",
        )


def _note(scenario: dict[str, Any], peak_bytes: int, means: str) -> None:
    scenario["confirmed_peak_bytes"] = peak_bytes
    scenario["confirmed_share"] = peak_bytes / scenario["capacity_bytes"]
    scenario["confirmed_by"] = means


# -- in its supervisor ----------------------------------------------------------------------------


def evidence(group: cgroups.Group) -> str | None:
    """Evidence that the process of a cgroup ran out of the memory it was allowed, or None."""
    if not group.kills:
        return None
    used, allowed = group.peak_bytes, group.limit_bytes
    known = None not in (used, allowed)
    how_much = f": it used {used} bytes of {allowed} allowed" if known else ""
    return f"the oom_kill counter of its own cgroup rose to {group.kills}{how_much}"


def read_into(scenario: dict[str, Any], group: cgroups.Group) -> dict[str, Any]:
    """A scenario with a cgroup's readings, for a process that died before it could add them."""
    n_bytes = group.limit_bytes or scenario["capacity_bytes"]
    scenario["limit"] = _limit(True, group.version.how, n_bytes)
    if group.peak_bytes is not None:
        _note(scenario, group.peak_bytes, group.peak_means)
    return scenario
