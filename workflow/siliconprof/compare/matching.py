"""Which cell and which point of one result set answers which of the other.

Cells are the same when backend, workload, scenario, precision and trainer are, and host and
device too, as far as these are not what is compared. Points are the same when their parameters
are. What one side lacks is said, never passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from siliconprof import plugins
from siliconprof.compare.result_sets import Measured, ResultSet

SHARED_AXES = ("workload", "scenario", "precision", "module", "trainer")
Figures = list[tuple[str, float]]  # (when, figure), a process each


@dataclass(frozen=True)
class Unmatched:
    """Something that only one side has figures of."""

    side: str  # the side that has it: A or B
    path: str
    reason: str
    broken: bool = False  # A has it, and B tried and failed


@dataclass(frozen=True)
class Identity:
    """What of a cell must agree, given what is compared."""

    host: bool
    device: bool
    kind: bool  # CPU or GPU

    @classmethod
    def of(cls, a: ResultSet, b: ResultSet) -> Identity:
        """What follows from two result sets and the conditions that made them."""
        compared = {key for key in a.conditions if key in b.conditions}
        hosts_a, hosts_b = a.values("host"), b.values("host")
        host = not ("host" in compared or len(hosts_a) == len(hosts_b) == 1)
        other_hosts = not host and hosts_a != hosts_b
        device = not ("device" in compared or other_hosts)
        return cls(host, device, "device" not in compared)

    def key(self, measured: Measured) -> tuple[Any, ...]:
        """Equal for cells that answer each other.

        Where the device is what is compared, its backend is too: of the same framework, so that
        torch on Metal answers torch on CUDA.
        """
        cell = measured.cell
        parts = [cell[axis] for axis in SHARED_AXES]
        if self.host:
            parts.append(cell["host"])
        if self.device:
            return (*parts, cell["device"], cell["backend"])
        if self.kind:
            parts.append(cell["device_kind"])
        return (*parts, plugins.load("backends", cell["backend"]).framework)


def cells(a: ResultSet, b: ResultSet) -> tuple[list[tuple[Measured, Measured]], list[Unmatched]]:
    """(cells that answer each other, everything else)."""
    identity = Identity.of(a, b)
    of_a: dict[tuple[Any, ...], list[Measured]] = {}
    of_b: dict[tuple[Any, ...], list[Measured]] = {}
    for found, results in ((of_a, a), (of_b, b)):
        for measured in results.cells:
            found.setdefault(identity.key(measured), []).append(measured)
    pairs = []
    unmatched = []
    for key in [*of_a, *(key for key in of_b if key not in of_a)]:
        left, right = of_a.get(key, []), of_b.get(key, [])
        if len(left) > 1 or len(right) > 1:
            why = "several cells answer it; narrow with --where-a and --where-b, by device say"
            unmatched += [Unmatched("A", cell.path, why) for cell in left]
            unmatched += [Unmatched("B", cell.path, why) for cell in right]
        elif not right or not left:
            side, only = ("A", left) if left else ("B", right)
            other = "B" if left else "A"
            unmatched += [Unmatched(side, cell.path, f"{other} has no such cell") for cell in only]
        else:
            problem = _refusal(left[0], right[0])
            if problem:
                unmatched.append(problem)
            else:
                pairs.append((left[0], right[0]))
    return pairs, unmatched


def _refusal(a: Measured, b: Measured) -> Unmatched | None:
    """Why two cells that answer each other cannot be compared."""
    if not a.processes or not b.processes:
        without, side = (b, "A") if a.processes else (a, "B")
        status, reason = without.newest["status"], without.newest["reason"]
        broken = bool(a.processes) and status in ("oom", "failed", "timeout")
        other = "B" if side == "A" else "A"
        return Unmatched(side, a.path, f"{other} is {status}: {reason}", broken)
    differences = list(_differences(a, b))
    if differences:
        return Unmatched("A", a.path, f"B is another cell: {'; '.join(differences)}")
    return None


def _differences(a: Measured, b: Measured) -> Iterator[str]:
    """What was asked for and differs.

    A parameter that one side does not know came with another version, and is said in the notes.
    What a workload sweeps, and a kernel's lists, are points, which are matched one by one.
    """
    if a.machine == b.machine and a.cell["threads"] != b.cell["threads"]:
        yield f"threads {a.cell['threads']} against {b.cell['threads']}"
    ours, theirs = a.cell["parameters"], b.cell["parameters"]
    try:
        swept = plugins.load("workloads", a.cell["module"]).swept
    except LookupError:  # of another version
        swept = ()
    for name in sorted(ours.keys() & theirs.keys()):
        sweep = name in swept or (a.cell["trainer"] is None and isinstance(ours[name], list))
        if ours[name] != theirs[name] and not sweep:
            yield f"{name} {ours[name]} against {theirs[name]}"


def notes(a: Measured, b: Measured) -> list[str]:
    """What differs beside what is compared, or may have disturbed a side."""
    ours, theirs = _surroundings(a), _surroundings(b)
    found = [
        f"{what}: {ours[what]} against {theirs[what]}"
        for what in ours
        if ours[what] != theirs[what]
    ]
    one_sided = (a.cell["parameters"].keys() ^ b.cell["parameters"].keys()) - {"capture"}
    if one_sided:
        found.append(f"only one side knows {', '.join(sorted(one_sided))}")
    for name, side in (("A", a), ("B", b)):
        of = len(side.records)
        if of > len(side.processes):
            found.append(f"{of - len(side.processes)} of {of} processes of {name} are not ok")
        flags = [{flag["code"] for flag in data["flags"]} for data in side.processes]
        for code in sorted(set().union(*flags)):
            found.append(f"{code} in {sum(code in f for f in flags)} of {len(flags)} of {name}")
    return found


def _surroundings(side: Measured) -> dict[str, Any]:
    """What a cell's figures may depend on beside the cell."""
    newest = side.newest
    return {
        "threads": side.cell["threads"],
        "scenario": newest["scenario"].get("applied"),
        "power": newest["environment"].get("power_source"),
        "data": ((newest["dataset"] or {}).get("data_sha256") or "none")[:12],
    }


def points(
    a: Measured, b: Measured, memory: bool
) -> tuple[list[tuple[str, str, Figures, Figures]], list[Unmatched]]:
    """(points with figures of both sides as (point of A, metric, A, B), all others)."""
    ours, theirs = a.figures(memory), b.figures(memory)
    found = []
    left_over = dict(theirs)
    unmatched = []
    for (point, metric), values in ours.items():
        twin = _twin(point, metric, theirs)
        if twin is None:
            unmatched.append(Unmatched("A", a.path, f"B has no {metric} at {label(point)}"))
        else:
            found.append(
                (point, metric, values, left_over.pop((twin, metric), theirs[twin, metric]))
            )
    for point, metric in left_over:
        unmatched.append(Unmatched("B", b.path, f"A has no {metric} at {label(point)}"))
    return found, unmatched


def _twin(point: str, metric: str, others: Mapping[tuple[str, str], Figures]) -> str | None:
    """The other side's name for a point: the same, or the one with all shared parameters equal."""
    if (point, metric) in others:
        return point
    params = json.loads(point)
    fits = []
    for candidate, of in others:
        theirs = json.loads(candidate)
        shared = params.keys() & theirs.keys()
        if of == metric and shared and all(params[key] == theirs[key] for key in shared):
            fits.append(candidate)
    return fits[0] if len(fits) == 1 else None


def label(point: str) -> str:
    """A point's parameters for a person: `batch=1 m=64 k=64 n=64`."""
    params: Mapping[str, Any] = json.loads(point)
    shown: Sequence[str] = list(params)
    if "batch_size" in params and "n_layer" not in params:  # of a training, see its cell
        shown = ["batch_size"]
    return " ".join(f"{key}={params[key]}" for key in shown) or "-"
