"""A `torch.mps` over CPU tensors: torch's own Python, with the GPU of an M2 simulated below it.

Tensors are those of tensors.py: every operator on one is computed on the CPU, its results take
memory from the heaps, and the time that computing took goes to the queue (see device.py). What
torch's Python takes from `torch._C._mps_*` is simulated by `install`, what its C++ takes by device.cpp.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import tensors
import torch
from device import KERNEL_S, Block, Memory, OutOfMemory, Timeline
from tensors import Call, Played

HIGH_WATERMARK = 1.7  # default_high_watermark_ratio

real_clock = time.perf_counter


# -- operators -----------------------------------------------------------------------------------


class Gpu:
    """The GPU: its queue, its memory, and how it runs an operator."""

    place = torch.device("mps", 0)

    def __init__(self, recommended_bytes: int) -> None:
        self.line = Timeline()
        self.recommended_bytes = recommended_bytes
        self.memory = Memory(HIGH_WATERMARK * recommended_bytes)
        self.held: WeakValueDictionary[int, Block] = WeakValueDictionary()  # by CPU storage

    def allocate(self, n_bytes: int) -> Block:
        """Memory of the GPU, or torch's own error."""
        try:
            return self.memory.allocate(n_bytes)
        except OutOfMemory:
            raise RuntimeError(
                f"MPS backend out of memory (MPS allocated: {self.memory.reserved / 2**30:.2f} GiB, "
                f"max allowed: {self.memory.limit_bytes / 2**30:.2f} GiB). Tried to allocate "
                f"{n_bytes / 2**20:.2f} MiB on private pool."
            ) from None

    def run(self, *asked: Any) -> Any:
        """An operator, as long as the CPU takes for it."""
        with self.line.computing():
            call = Call(*asked)
            began = real_clock()
            computed = call.compute()
            took = real_clock() - began
            if call.launches:
                self.line.launch(took + KERNEL_S)
            if call.to_host:
                result = call.into if call.name == "copy_" else computed
            else:
                result = call.wrapped(computed)
        if call.waited or call.copies:
            self.line.wait()
        return result


gpu: Gpu


# -- what torch.mps takes from torch._C ------------------------------------------------------------


class Shader:
    """A compiled library: every kernel that its source names, and does nothing."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __getattr__(self, name: str) -> Callable[..., None]:
        assert f" {name}(" in self.source

        def launch(*arguments: Any) -> None:
            assert all(isinstance(argument, Played) for argument in arguments)
            with gpu.line.computing():
                gpu.line.launch(KERNEL_S)

        return launch


def install(spec: dict[str, Any], module: Any) -> None:
    """Have torch find the GPU of `spec`."""
    global gpu
    gpu = Gpu(spec["recommended_bytes"])
    gpu.line.patch()
    callback = ctypes.CFUNCTYPE(None)(gpu.line.wait)
    gpu.callback = callback  # type: ignore[attr-defined]  # must outlive the library's use
    ctypes.CDLL(spec["library"]).simulated_install(1, callback)
    memory = gpu.memory

    def fraction(share: float) -> None:
        memory.limit_bytes = share * gpu.recommended_bytes if share else math.inf

    simulated: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "is_in_bad_fork": lambda: False,
        "is_on_macos_or_newer": lambda major, minor: (major, minor) <= (15, 5),
        "deviceSynchronize": gpu.line.wait,
        "get_default_generator": lambda: torch.default_generator,  # the CPU computes
        "get_name": lambda: "Apple M2",
        "emptyCache": memory.empty_cache,
        "setMemoryFraction": fraction,
        "currentAllocatedMemory": lambda: memory.allocated,
        "driverAllocatedMemory": lambda: memory.reserved,
        "recommendedMaxMemory": lambda: gpu.recommended_bytes,
        "compileShader": Shader,
    }
    for name, function in simulated.items():
        setattr(torch._C, f"_mps_{name}", function)
    torch._C._has_mps = True
    torch.mps._is_in_bad_fork = lambda: False
    torch.accelerator.memory_stats = lambda *device: {
        "allocated_bytes.all.current": memory.allocated,
        "allocated_bytes.all.peak": memory.peak_allocated,
        "reserved_bytes.all.current": memory.reserved,
    }
    torch.accelerator.reset_peak_memory_stats = lambda *device: memory.reset_peak()
    tensors.install("MPS", gpu, attention)


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, **more: Any,
) -> Any:  # fmt: skip
    """With an n x n matrix: what MPS fuses is not for training."""
    math = torch.ops.aten._scaled_dot_product_attention_math
    return math(query, key, value, attn_mask, dropout_p, is_causal, **more)[0]
