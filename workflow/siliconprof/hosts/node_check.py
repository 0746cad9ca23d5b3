"""Checks that the node that a scheduler assigned has the device that its label stands for.

Checked in the measuring process before it measures, since two nodes of one partition may differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from siliconprof.errors import UserError
from siliconprof.store.cell import Cell

WRONG_NODE = "another device than this label stands for"  # how the reason of such a failure begins
# Frameworks and nvidia-smi differ in whether they count a GPU's reserved memory.
NODE_MEMORY_TOLERANCE = 0.05


def expectation(device: Mapping[str, Any]) -> dict[str, Any]:
    """Return what every node of a label must have, by the device in its host file."""
    # A CPU is known by its model alone: the memory beside it may differ, and each record has it.
    memory = device["memory_bytes"] if device["kind"] == "gpu" else None
    return {"name": device["name"], "memory_bytes": memory}


def require(cell: Cell, expected: Mapping[str, Any], detected: Mapping[str, Any]) -> None:
    """Refuse to measure on a node with another device.

    Args:
        expected: from `expectation`.
        detected: `name` and `memory_bytes` from the backend; `reason` where it has no device.
    """
    same = expected["name"] == detected.get("name")
    memory, detected_memory = expected["memory_bytes"], detected.get("memory_bytes")
    if same and memory and detected_memory:
        same = abs(detected_memory - memory) <= NODE_MEMORY_TOLERANCE * memory
    if not same:
        raise UserError(
            f"{WRONG_NODE}: expected {_describe(expected)}, found {_describe(detected)} on "
            f"{cell.host}; narrow cluster.{cell.host}.resources in the config, so that "
            "only nodes of one kind are left, and run again"
        )


def refused(reason: str | None) -> bool:
    """Whether a record failed because its node was of another kind, by its reason."""
    return str(reason).startswith(WRONG_NODE)


def _describe(device: Mapping[str, Any]) -> str:
    """A device's name and memory, or why there is none."""
    if not device.get("name"):
        return f"none ({device.get('reason') or 'the backend does not name it'})"
    memory = device.get("memory_bytes")
    return f"{device['name']}{f' with {memory / 2**30:.1f} GiB' if memory else ''}"
