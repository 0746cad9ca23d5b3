"""The parts of advice: devices, their known properties, and numbers with their ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from siliconprof.analyse import prediction
from siliconprof.analyse.equal_work import has_no_speed
from siliconprof.analyse.prediction import Training
from siliconprof.analyse.throughputs import step_s
from siliconprof.hosts import registry
from siliconprof.memory import memory_model
from siliconprof.store.records import HERE
from siliconprof.store.table_files import KEY

Row = Mapping[str, Any]
MEASURED, PUBLISHED, PREDICTED = "measured", "published", "predicted"
SCOPES = ("wall", "soc", "gpu", "cpu-package")  # of energy, the widest first


@dataclass(frozen=True)
class Estimate:
    """A number with its range and its basis, or the reason why there is none."""

    low: float | None = None
    value: float | None = None  # None where only a bound is known
    high: float | None = None
    evidence: str | None = None
    basis: str = ""  # the cell, table or rate that it is from, or why it is unknown

    def times(self, factor: float) -> Estimate:
        """The estimate times a factor."""
        low, value, high = (
            None if n is None else factor * n for n in (self.low, self.value, self.high)
        )
        return Estimate(low, value, high, self.evidence, self.basis)

    def per(self, amount: float) -> Estimate:
        """An amount over this time: a rate, whose low end is from the high end here."""
        low, value, high = (amount / n if n else None for n in (self.high, self.value, self.low))
        return Estimate(low, value, high, self.evidence, self.basis)


@dataclass(frozen=True)
class Candidate:
    """A device that advice considers: of the registry, of this host, or both."""

    id: str
    name: str
    kind: str
    backends: tuple[str, ...]
    memory_kind: str
    memory_bytes: int | None
    entry: Row | None = None  # the registry's
    here: bool = False
    working_set_bytes: int | None = None
    own_ids: tuple[str, ...] = ()  # its ids in records, besides the registry's id

    def capacity(self) -> tuple[int | None, str]:
        """(bytes that a training may use, their source), as for every cell."""
        device = {
            "kind": self.kind,
            "memory_kind": self.memory_kind,
            "memory_bytes": self.memory_bytes,
            "working_set_bytes": self.working_set_bytes,
        }
        return memory_model.capacity(None, memory_model.usable(device), self.memory_bytes)


@dataclass(frozen=True)
class Facts:
    """All measured facts, of any host; every field may be empty."""

    points: Sequence[Row]  # of cells that are ok, with the cell's columns
    energy: Sequence[Row]  # of energy.csv
    host: Row | None  # the host file's content
    published: Mapping[str, Sequence[Row]]
    registry: Mapping[str, Any]
    timed: Sequence[Training] | None = None  # of timed operators; None where nobody predicts

    def trainings(self) -> Iterable[Row]:
        """The points of trainings whose times are meaningful."""
        for point in self.points:
            timed = point.get("trainer") in ("plain", "hf") and step_s(point)
            if timed and not has_no_speed(point):
                yield point

    @cached_property
    def predictions(self) -> list[dict[str, Any]]:
        """Lines of predicted.csv: the timed trainings, each predicted by the others."""
        return prediction.lines(self.timed or ())

    @cached_property
    def candidates(self) -> list[Candidate]:
        """Every device of the registry, and those of the host that are not in it.

        The memory that a host detects replaces the registry's figure.
        """
        by_id: dict[str, Candidate] = {}
        for device_id, entry in self.registry["devices"].items():
            printed = entry["memory_gib"]
            by_id[device_id] = Candidate(
                device_id,
                entry["name"],
                entry["kind"],
                tuple(entry["backends"]),
                entry["memory_kind"],
                int(printed["value"] * registry.GIB) if printed else None,
                entry,
            )
        for device in (self.host or {}).get("devices", []):
            in_registry = device["registry_id"] in by_id
            own_id = device["registry_id"] if in_registry else device["id"]
            earlier = by_id.get(own_id)
            if earlier is not None and earlier.here:
                continue  # the second of a kind
            by_id[own_id] = Candidate(
                own_id,
                earlier.name if earlier else device["name"],
                device["kind"],
                tuple(device["backends"]) or (earlier.backends if earlier else ()),
                device["memory_kind"],
                device["memory_bytes"],
                earlier.entry if earlier else None,
                True,
                device.get("working_set_bytes"),
                (device["id"],),
            )
        return list(by_id.values())


def of_candidate(point: Row, candidate: Candidate) -> bool:
    """Whether a point was measured on such a device; this host's records have its own ids."""
    device = str(point["device"])
    if point["source"] == HERE and device in candidate.own_ids:
        return True
    if candidate.entry is None:
        return False  # another host's CPU may have the same name and another memory
    return candidate.id in (device, registry.kind_of(device))


def record_name(point: Row) -> str:
    """The name of a point's record in texts: its path below results/records, without the source."""
    return "/".join(str(point[axis]) for axis in KEY[1:])
