"""Which memory situation a cell is in: the paper's scenarios 1, 2 and 3 (seed 001, Figure 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NEAR_CAPACITY_ABOVE = 0.8  # share of the device's memory; our reading, the paper gives none


def derive_scenario(predicted_bytes: int | None, device_bytes: int | None) -> str | None:
    """`fits`, `near-capacity` or `offload`; None when either number is unknown."""
    if predicted_bytes is None or not device_bytes:
        return None
    if predicted_bytes > device_bytes:
        return "offload"
    return "near-capacity" if predicted_bytes > NEAR_CAPACITY_ABOVE * device_bytes else "fits"


def scenario(
    requested: str, parts_bytes: Mapping[str, int], device_bytes: int | None
) -> dict[str, Any]:
    """The scenario part of a record: what was asked, what follows from the memory model."""
    predicted = sum(parts_bytes.values()) if parts_bytes else None
    return {
        "requested": requested,
        "derived": derive_scenario(predicted, device_bytes),
        "predicted_bytes": predicted,
        "predicted_parts_bytes": dict(parts_bytes),
        "device_memory_bytes": device_bytes,
    }


def conflict(scenario: Mapping[str, Any]) -> str | None:
    """Why a cell cannot be measured in the scenario it asks for, or None."""
    requested, derived = scenario["requested"], scenario["derived"]
    if "offload" in (requested, derived) and requested in ("auto", "offload"):
        need, have = scenario["predicted_bytes"], scenario["device_memory_bytes"]
        sizes = (
            f" (predicted {need / 2**30:.2f} GiB, the device has {have / 2**30:.2f} GiB)"
            if need and have
            else ""
        )
        return f"scenario offload{sizes}: no trainer of this version offloads"
    if requested != "auto" and derived is not None and requested != derived:
        return f"asked for scenario {requested}, the memory model says {derived}"
    return None
