"""Matches the cells and points of two result sets.

Cells match when backend, workload, scenario, precision and trainer are equal, and host and device
too, unless these are what is compared. Points match when their parameters are equal. What one side
lacks is always reported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from siliconprof import plugins
from siliconprof.compare.result_sets import Figures, Measured, ResultSet
from siliconprof.store.table_files import grouped

SHARED_AXES = ("workload", "scenario", "precision", "module", "trainer")


@dataclass(frozen=True)
class Unmatched:
    """A cell or point that only one side has figures of."""

    side: str  # the side that has it: A or B
    path: str
    reason: str
    broken: bool = False  # A has it, and B failed


Pairs = tuple[list[tuple[Measured, Measured]], list[Unmatched]]  # that match, and all others


def _key_of(a: ResultSet, b: ResultSet) -> Callable[[Measured], tuple[Any, ...]]:
    """What is equal for cells that match: all that two result sets do not compare.

    Where devices are compared, only the framework of the backend must be equal, so that torch on
    Metal matches torch on CUDA; where they are not named, a CPU is compared with a CPU.
    """
    compared = {key for key in a.conditions if key in b.conditions}
    hosts_a, hosts_b = a.values("host"), b.values("host")
    any_host = "host" in compared or len(hosts_a) == len(hosts_b) == 1
    any_device = "device" in compared or (any_host and hosts_a != hosts_b)
    axes = [*SHARED_AXES, *([] if any_host else ["host"])]
    axes += [] if "device" in compared else ["device_kind"] if any_device else ["device", "backend"]

    def key(measured: Measured) -> tuple[Any, ...]:
        parts = [getattr(measured.cell, axis) for axis in axes]
        if "backend" not in axes:
            parts.append(plugins.load("backends", measured.cell.backend).framework)
        return tuple(parts)

    return key


def cells(a: ResultSet, b: ResultSet) -> Pairs:
    """Pairs of matching cells, and all others."""
    key = _key_of(a, b)
    of_a, of_b = grouped(a.cells, key), grouped(b.cells, key)
    candidates, unmatched = [], []
    for name in of_a | of_b:
        group = {"A": of_a.get(name, []), "B": of_b.get(name, [])}
        if len(group["A"]) == len(group["B"]) == 1:
            candidates.append((group["A"][0], group["B"][0]))
            continue
        several = "several cells match; narrow with --where-a and --where-b, such as device=X"
        for side, other in ("AB", "BA"):
            reason = several if len(group["A"] + group["B"]) > 1 else f"{other} has no such cell"
            unmatched += [Unmatched(side, cell.path, reason) for cell in group[side]]
    return _comparable(candidates, unmatched)


def across(a: ResultSet, b: ResultSet) -> Pairs:
    """Pairs of cells of different devices that do the same work by any backend, and all others.

    Where both sides are the same cells, a pair stands once.
    """
    once = (a.source, a.conditions) == (b.source, b.conditions)
    candidates = [
        (left, right)
        for left in a.cells
        for right in b.cells
        if all(getattr(left.cell, axis) == getattr(right.cell, axis) for axis in SHARED_AXES)
        and left.device != right.device
        and not (once and left.path > right.path)
    ]
    seen = {cell.path for pair in candidates for cell in pair}
    unmatched = [
        Unmatched(side, cell.path, "no other device has it")
        for side, cells_ in (("A", a.cells), ("B", () if once else b.cells))
        for cell in cells_
        if cell.path not in seen and cell.processes
    ]
    return _comparable(candidates, unmatched)


def _comparable(
    candidates: Sequence[tuple[Measured, Measured]], unmatched: list[Unmatched]
) -> Pairs:
    """The pairs that can be compared; the others join the unmatched, unless neither has figures."""
    pairs = []
    for left, right in candidates:
        if not left.processes and not right.processes:
            continue
        if problem := _refusal(left, right):
            unmatched.append(problem)
        else:
            pairs.append((left, right))
    return pairs, unmatched


def _refusal(a: Measured, b: Measured) -> Unmatched | None:
    """Why two matching cells cannot be compared; None where they can."""
    if not a.processes or not b.processes:
        without, side = (b, "A") if a.processes else (a, "B")
        status, reason = without.newest.status, without.newest.reason
        broken = bool(a.processes) and status in ("oom", "failed", "timeout")
        other = "B" if side == "A" else "A"
        return Unmatched(side, a.path, f"{other} is {status}: {reason}", broken)
    differences = list(_differences(a, b))
    if differences:
        return Unmatched("A", a.path, f"B is another cell: {'; '.join(differences)}")
    return None


def _differences(a: Measured, b: Measured) -> Iterator[str]:
    """The settings that differ, one text each.

    A parameter that only one side has came with another version, and is in the notes instead. The
    values that a workload sweeps, and a kernel's lists, are points, which are matched one by one.
    """
    alike = a.machine == b.machine and a.device == b.device
    if alike and a.cell.threads != b.cell.threads:
        yield f"threads {a.cell.threads} against {b.cell.threads}"
    params_a, params_b = a.cell.parameters, b.cell.parameters
    try:
        swept = plugins.load("workloads", a.cell.module).swept
    except LookupError:  # of another version
        swept = ()
    for name in sorted(params_a.keys() & params_b.keys()):
        sweep = name in swept or (a.cell.trainer is None and isinstance(params_a[name], list))
        if params_a[name] != params_b[name] and not sweep:
            yield f"{name} {params_a[name]} against {params_b[name]}"


def notes(a: Measured, b: Measured) -> list[str]:
    """Other differences between two cells, and what may have disturbed a side."""
    facts_a, facts_b = _surroundings(a), _surroundings(b)
    lines = [
        f"{fact}: {facts_a[fact]} against {facts_b[fact]}"
        for fact in facts_a
        if facts_a[fact] != facts_b[fact]
    ]
    one_sided = a.cell.parameters.keys() ^ b.cell.parameters.keys()
    if one_sided:
        lines.append(f"only one side has the parameter {', '.join(sorted(one_sided))}")
    for name, side in (("A", a), ("B", b)):
        total = len(side.records)
        if total > len(side.processes):
            lines.append(f"{total - len(side.processes)} of {total} processes of {name} are not ok")
        codes = {code for data in side.processes for code in data.codes}
        for code in sorted(codes):
            lines.append(f"{code} in {side.flags(code)} of {len(side.processes)} of {name}")
    return lines


def _surroundings(side: Measured) -> dict[str, int | str | None]:
    """What a cell's figures may depend on besides the cell."""
    newest = side.newest
    return {
        "threads": side.cell.threads,
        "scenario": newest.scenario.applied,
        "power": newest.environment.power_source,
        "data": (newest.dataset.data_sha256 or "none")[:12],
    }


def points(
    a: Measured, b: Measured, memory: bool
) -> tuple[list[tuple[tuple[str, str], str, Figures, Figures]], list[Unmatched]]:
    """(points with figures of both sides as (its names in A and B, metric, A, B), all others)."""
    figures_a, figures_b = a.figures(memory), b.figures(memory)
    shared_points = []
    unmatched_b = dict(figures_b)
    unmatched = []
    for (point, metric), values in figures_a.items():
        counterpart = _counterpart(point, metric, figures_b)
        if counterpart is None or _counterpart(counterpart, metric, figures_a) != point:
            unmatched.append(Unmatched("A", a.path, f"B has no {metric} at {label(point)}"))
        else:
            names = point, counterpart
            shared_points.append((names, metric, values, figures_b[counterpart, metric]))
            unmatched_b.pop((counterpart, metric), None)
    for point, metric in unmatched_b:
        unmatched.append(Unmatched("B", b.path, f"A has no {metric} at {label(point)}"))
    return shared_points, unmatched


def _counterpart(point: str, metric: str, others: Mapping[tuple[str, str], Figures]) -> str | None:
    """The other side's matching point: the same, or the only one with equal shared parameters.

    A match counts where it is one both ways: a point is not that of two which differ in what it lacks.
    """
    if (point, metric) in others:
        return point
    params = json.loads(point)
    matches = []
    for other, other_metric in others:
        other_params = json.loads(other)
        shared = params.keys() & other_params.keys()
        if other_metric == metric and shared and all(params[k] == other_params[k] for k in shared):
            matches.append(other)
    return matches[0] if len(matches) == 1 else None


def label(point: str) -> str:
    """A point's parameters as text: `batch=1 m=64 k=64 n=64`."""
    params: Mapping[str, Any] = json.loads(point)
    shown: Sequence[str] = list(params)
    if "batch_size" in params and "n_layer" not in params:  # of a training, see its cell
        shown = ["batch_size"]
    return " ".join(f"{key}={params[key]}" for key in shown) or "-"
