"""Whether the node that a scheduler gave has the device that its label stands for.

Checked in the measuring process before it measures, since two nodes of one partition may differ.
Another hostname is fine, another device is not.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from siliconprof.errors import UserError
from siliconprof.store.cell import Cell

WRONG_NODE = "another device than this label stands for"  # how such a failure begins
# A framework, another one and nvidia-smi count a GPU's reserved memory in or not.
MEMORY_TOLERANCE = 0.05


def expectation(device: Mapping[str, Any]) -> dict[str, Any]:
    """What must be found on every node of a label, from the device in its host file.

    A CPU is known by its model: what memory is beside it differs, and is in each record.
    """
    memory = device["memory_bytes"] if device["kind"] == "gpu" else None
    return {"name": device["name"], "memory_bytes": memory}


def require(cell: Cell, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Refuse to measure on a node of another kind.

    Args:
        expected: of `expectation`.
        found: `name` and `memory_bytes` as the backend tells them; `reason` where it has no device.

    Raises:
        UserError: what was expected and found, where, and how to mend it.
    """
    same = expected["name"] == found.get("name")
    memory, told = expected["memory_bytes"], found.get("memory_bytes")
    if same and memory and told:
        same = abs(told - memory) <= MEMORY_TOLERANCE * memory
    if not same:
        raise UserError(
            f"{WRONG_NODE}: expected {_said(expected)}, found {_said(found)} on "
            f"{socket.gethostname()}; narrow cluster.{cell.host}.resources in the config, so that "
            "only nodes of one kind are left, and run again"
        )


def refused(record: Mapping[str, Any]) -> bool:
    """Whether a record says that its node was of another kind."""
    return str(record.get("reason")).startswith(WRONG_NODE)


def _said(device: Mapping[str, Any]) -> str:
    """A device in words."""
    if not device.get("name"):
        return f"none ({device.get('reason') or 'the backend does not name it'})"
    memory = device.get("memory_bytes")
    return f"{device['name']}{f' with {memory / 2**30:.1f} GiB' if memory else ''}"
