"""A cell: one point of device × backend × workload × scenario × precision, one process, one record."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from siliconprof.errors import UserError
from siliconprof.store.names import LABEL

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "amp-fp16", "amp-bf16")
SCENARIOS = ("auto", "fits", "offload", "near-capacity")
AXES = ("host", "device", "backend", "workload", "scenario", "precision")
NOTE_KEYS = ("note",)  # parameters of a point that only describe it: not part of its name
UNMEASURED_KEYS = ("time_limit_s",)  # of a cell's `timing`: changes none of its numbers
# A record's path below `records/`; a file named otherwise is not a record.
RECORD = re.compile(
    rf"{LABEL}/{LABEL}/{LABEL}/{LABEL}/(?:{'|'.join(SCENARIOS)})/(?:{'|'.join(PRECISIONS)})\.json"
)


def canonical_json(value: Any) -> str:
    """The canonical JSON of a value, for comparing and hashing: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_sha256(value: Any) -> str:
    """Hex SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def point_name(params: Mapping[str, Any]) -> str:
    """Parameters as canonical JSON: what tells a point from the others of its cell."""
    return canonical_json({k: v for k, v in params.items() if k not in NOTE_KEYS})


def identity(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a cell that decides what is measured and how: all but its time limit.

    Args:
        cell: as in a record, or the attributes of a `Cell`.
    """
    timing = {key: value for key, value in cell["timing"].items() if key not in UNMEASURED_KEYS}
    return {**cell, "timing": timing}


@dataclass(frozen=True)
class Cell:
    """Everything that defines one measurement; nothing that changes by itself.

    An attribute with a description is a column of the tables.
    """

    host: Annotated[str, "label of the host"]
    device: Annotated[str, "id of the device"]  # in the registry, or a generic one
    backend: Annotated[str, "the software path to the device"]  # plug-in name
    workload: Annotated[str, "entry in the config"]
    scenario: Annotated[str, "the memory situation that was asked for"]  # not the one derived
    precision: Annotated[str, "the precision that was asked for"]  # not the effective one
    module: Annotated[str, "workload plug-in"]
    trainer: Annotated[str | None, "trainer plug-in; empty for what is no training"]
    device_kind: Annotated[str, "cpu or gpu"]
    device_index: int  # which of the host's devices of that vendor
    device_memory_bytes: int | None
    threads: Annotated[int, "CPU threads of the frameworks"]
    seed: Annotated[int, "seed of weights and data order"]
    dataset: str | None  # folder of prepared arrays, relative to the checkout
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the workload, defaults filled
    timing: Mapping[str, Any] = field(default_factory=dict)  # see timing.Plan
    device_usable: Mapping[str, Any] | None = None  # see memory_model.usable; None = all memory
    device_capability: str | None = None  # compute capability of an NVIDIA GPU, where known

    @property
    def path(self) -> str:
        """`host/device/backend/workload/scenario/precision`, the record's path without suffix."""
        return "/".join([getattr(self, axis) for axis in AXES])

    def to_json(self) -> str:
        """The canonical JSON of all attributes."""
        return canonical_json(vars(self))

    @classmethod
    def from_json(cls, text: str) -> Cell:
        """The cell of a JSON text.

        Raises:
            UserError: it is not a JSON object, or a key is missing or unknown.
        """
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise UserError(
                f"--cell must be the JSON object that `siliconprof plan --json` prints: {error}"
            ) from None
