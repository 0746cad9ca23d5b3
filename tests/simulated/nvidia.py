"""What every framework asks of NVIDIA's driver: which GPUs a process sees, and libcuda's answers."""

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


class Libcuda:
    """`libcuda.so.1` as ctypes sees it: what it tells of the GPUs."""

    def __init__(self, seen: list[tuple[Card, str]]) -> None:
        self.seen = seen

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, to: Any, index: int) -> int:
        to._obj.value = index
        return 0 if index < len(self.seen) else 101  # CUDA_ERROR_INVALID_DEVICE

    def cuDeviceGetAttribute(self, to: Any, attribute: int, device: Any) -> int:
        assert attribute == 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
        to._obj.value = self.seen[device.value][0].l2_bytes
        return 0


def stand_in(libcuda: Libcuda) -> None:
    """Have `ctypes.CDLL` give that for CUDA's driver."""

    real = ctypes.CDLL

    class Library(real):  # type: ignore[misc, valid-type]
        def __new__(cls, name: Any = None, *more: Any, **settings: Any) -> Any:
            return libcuda if name == "libcuda.so.1" else super().__new__(cls)

    ctypes.CDLL = Library  # type: ignore[misc]
