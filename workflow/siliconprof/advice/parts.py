"""What advice is made of: devices, what is known of them, numbers with the range they lie in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from siliconprof.analyse.record_rows import KEY
from siliconprof.hosts import registry
from siliconprof.hosts.datasheet import TERA
from siliconprof.memory import memory_model
from siliconprof.store.records import HERE

Row = Mapping[str, Any]
MEASURED, PUBLISHED, PREDICTED = "measured", "published", "predicted"
SCOPES = ("wall", "soc", "gpu", "cpu-package")  # of energy; the widest that there is counts
NO_SPEED_FLAG = "offload_on_cpu"


@dataclass(frozen=True)
class Estimate:
    """A number with the range it may lie in; what it is from, or why there is none."""

    low: float | None = None
    value: float | None = None  # None where only a range is known
    high: float | None = None
    evidence: str | None = None
    said: str = ""  # which cell, which table, which rate; or why it is unknown

    @property
    def middle(self) -> float | None:
        """For sorting: the value, else the range's geometric mean."""
        if self.value is not None or self.low is None or self.high is None:
            return self.value
        return math.sqrt(self.low * self.high)

    def times(self, factor: float) -> Estimate:
        """The same of so many."""
        low, value, high = (
            None if n is None else factor * n for n in (self.low, self.value, self.high)
        )
        return Estimate(low, value, high, self.evidence, self.said)

    def per(self, amount: float) -> Estimate:
        """So much in this time: a rate, whose low end is the high end here."""
        low, value, high = (amount / n if n else None for n in (self.high, self.value, self.low))
        return Estimate(low, value, high, self.evidence, self.said)


@dataclass(frozen=True)
class Candidate:
    """A device that could do it: of the registry, of this host, or both."""

    id: str
    name: str
    kind: str
    backends: tuple[str, ...]
    memory_kind: str
    memory_bytes: int | None
    entry: Row | None = None  # the registry's
    here: bool = False
    working_set_bytes: int | None = None
    own_ids: tuple[str, ...] = ()  # what records call it, beside the registry's id

    def capacity(self) -> tuple[int | None, str]:
        """Bytes that a training may use, and where that is from; as for every cell."""
        device = {
            "kind": self.kind,
            "memory_kind": self.memory_kind,
            "memory_bytes": self.memory_bytes,
            "working_set_bytes": self.working_set_bytes,
        }
        return memory_model.capacity(None, memory_model.usable(device), self.memory_bytes)

    def peak(self, precision: str) -> float | None:
        """The data sheet's peak in FLOP/s."""
        rate = registry.peak_tflops(self.entry, precision) if self.entry else None
        return None if rate is None else rate * TERA


@dataclass(frozen=True)
class Results:
    """What was measured, anywhere; all of it may be empty."""

    points: Sequence[Row] = ()  # of cells that are ok, with the cell's own columns beside them
    energy: Sequence[Row] = ()  # of energy.csv
    host: Row | None = None  # the host file's content
    published: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    registry: Mapping[str, Any] = field(default_factory=dict)

    def trainings(self) -> Iterable[Row]:
        """Points of trainings whose times say something of speed."""
        for point in self.points:
            timed = point.get("trainer") in ("plain", "hf") and seconds(point)
            if timed and NO_SPEED_FLAG not in (point.get("flags") or "").split(";"):
                yield point

    @cached_property
    def candidates(self) -> list[Candidate]:
        """Every device that advice can name."""
        return candidates(self.registry.get("devices", {}), self.host)


def candidates(devices: Mapping[str, Any], host: Row | None) -> list[Candidate]:
    """Every device of the registry, and of the host what is not in it.

    A host's own memory, as it is found there, goes before what the registry prints.
    """
    found: dict[str, Candidate] = {}
    for device_id, entry in devices.items():
        printed = entry["memory_gib"]
        found[device_id] = Candidate(
            device_id,
            entry["name"],
            entry["kind"],
            tuple(entry["backends"]),
            entry["memory_kind"],
            int(printed["value"] * registry.GIB) if printed else None,
            entry,
        )
    for device in (host or {}).get("devices", []):
        known = device["registry_id"] in found
        own_id = device["registry_id"] if known else device["id"]
        before = found.get(own_id)
        if before is not None and before.here:
            continue  # the second of a kind
        found[own_id] = Candidate(
            own_id,
            before.name if before else device["name"],
            device["kind"],
            tuple(device["backends"]) or (before.backends if before else ()),
            device["memory_kind"],
            device["memory_bytes"],
            before.entry if before else None,
            True,
            device.get("working_set_bytes"),
            (device["id"],),
        )
    return list(found.values())


def seconds(point: Row) -> float | None:
    """Of one unsplit step, else of a split one."""
    value = point.get("unsplit_step_median_s") or point.get("step_median_s")
    return float(value) if value else None


def of_candidate(point: Row, candidate: Candidate) -> bool:
    """Whether a point was measured on such a device; on this host by the name that it has here."""
    device = str(point["device"])
    if point["source"] == HERE and device in candidate.own_ids:
        return True
    if candidate.entry is None:
        return False  # another host's CPU may have the same name by chance, and another memory
    return candidate.id in (device, device.rpartition("-")[0])


def record_name(point: Row) -> str:
    """`results/records/…` in short: how a record is named in words."""
    return "/".join(str(point[axis]) for axis in KEY[1:])
