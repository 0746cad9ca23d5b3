"""What every framework asks of NVIDIA's driver: which GPUs a process sees, and libcuda."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from device import CARDS, Card


def cards(spec: dict[str, Any]) -> list[tuple[Card, str]]:
    """(card, uuid) of the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order.

    Up to the first wrong name: CUDA programming guide, "CUDA Environment Variables".
    """
    gpus, variable = spec["gpus"], os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = gpus if variable is None else []
    for name in (part.strip() for part in (variable or "").split(",")):
        if name.isdigit() and int(name) < len(gpus):
            chosen.append(gpus[int(name)])
            continue
        named = [gpu for gpu in gpus if name and gpu["uuid"].startswith(name)]
        if len(named) != 1:
            break
        chosen += named
    return [(CARDS[gpu["name"]], gpu["uuid"]) for gpu in chosen]


def stand_in(libcuda: Any) -> None:
    """Have `ctypes.CDLL` give that for CUDA's driver."""

    real = ctypes.CDLL

    class Library(real):  # type: ignore[misc, valid-type]
        def __new__(cls, name: Any = None, *more: Any, **settings: Any) -> Any:
            return libcuda if name == "libcuda.so.1" else super().__new__(cls)

    ctypes.CDLL = Library  # type: ignore[misc]
