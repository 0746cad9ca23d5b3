"""What every framework asks of NVIDIA's driver: whether a process sees the card, and libcuda."""

from __future__ import annotations

import ctypes
import os
from typing import Any

UUID = "fa4e0000-0000-0000-0000-000000000000"  # fake_nvml.cpp has it too


def visible() -> bool:
    """Whether CUDA_VISIBLE_DEVICES leaves the card."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0") == "0"


def stand_in(libcuda: Any) -> None:
    """Have `ctypes.CDLL` give that for CUDA's driver."""
    real = ctypes.CDLL

    class Library(real):  # type: ignore[misc, valid-type]
        def __new__(cls, name: Any = None, *more: Any, **settings: Any) -> Any:
            return libcuda if name == "libcuda.so.1" else super().__new__(cls)

    ctypes.CDLL = Library  # type: ignore[misc]
