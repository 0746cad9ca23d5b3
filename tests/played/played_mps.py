"""A `torch.mps` over CPU tensors: torch's own Python, with the GPU of an M2 played below it.

Tensors are those of tensors.py: every operator on one is computed on the CPU, its results take
memory from the heaps, and the time that computing took goes to the queue (see device.py). What
torch's Python takes from `torch._C._mps_*` is played by `functions`, what its C++ takes by metal.cpp.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import tensors
import torch
from device import KERNEL_S, Timeline
from tensors import Call, Played

GIB, MIB = 2**30, 2**20
# aten/src/ATen/mps/MPSAllocator.h: an array of up to so many bytes comes from heaps of that size
HEAPS = ((MIB, 8 * MIB), (10 * MIB - 1, 32 * MIB), (GIB // 2 - 1, GIB))
ROUND_LARGE, ROUND = 2 * MIB, 256
HIGH_WATERMARK = 1.7  # default_high_watermark_ratio

real_clock = time.perf_counter


# -- memory --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Heap:
    """Memory that Metal gave in one piece, for arrays of one kind."""

    kind: int
    total: int
    available: int


class Memory:
    """Torch's allocator for MPS: buffers from heaps, kept for reuse when they are free."""

    def __init__(self, recommended_bytes: int) -> None:
        self.recommended_bytes = recommended_bytes
        self.allowed_bytes: float = HIGH_WATERMARK * recommended_bytes
        self.heaps: list[Heap] = []
        self.cached: list[tuple[int, Heap]] = []  # buffers that nobody uses
        self.allocated = self.peak = 0

    @property
    def driver_bytes(self) -> int:
        """All that Metal holds."""
        return sum(heap.total for heap in self.heaps)

    def allocate(self, n_bytes: int) -> Buffer:
        """A buffer, or torch's own error."""
        size = max(-(-n_bytes // ROUND) * ROUND, ROUND)
        heap = self._from(size)
        if heap is None:
            self.empty_cache()
            heap = self._from(size)
        if heap is None:
            other = f"MPS allocated: {self.driver_bytes / GIB:.2f} GiB, other allocations: 0 bytes"
            raise RuntimeError(
                f"MPS backend out of memory ({other}, max allowed: "
                f"{self.allowed_bytes / GIB:.2f} GiB). Tried to allocate {size / MIB:.2f} MiB on "
                "private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for "
                "memory allocations (may cause system failure)."
            )
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        return Buffer(self, heap, size)

    def _from(self, size: int) -> Heap | None:
        """A heap that now has one buffer of that size more, as `alloc_buffer_block` finds it.

        Whatever is asked for counts against the limit, also what a heap has room for.
        """
        if self.driver_bytes + size > self.allowed_bytes:
            return None
        kind, total = next(
            ((i, t) for i, (most, t) in enumerate(HEAPS) if size <= most),
            (len(HEAPS), -(-size // ROUND_LARGE) * ROUND_LARGE),
        )
        fits = [(s, h) for s, h in self.cached if h.kind == kind and size <= s <= size + 32 * MIB]
        if fits:
            found = min(fits, key=lambda entry: entry[0])
            self.cached.remove(found)
            found[1].available += found[0]
            heap = found[1]
        else:
            free = (h for h in self.heaps if h.kind == kind and h.available >= size)
            heap = next(free, None) or Heap(kind, total, total)
            if heap not in self.heaps:
                self.heaps.append(heap)
        heap.available -= size
        return heap

    def empty_cache(self) -> None:
        """Give Metal back the heaps that nobody uses."""
        for size, heap in self.cached:
            heap.available += size
        self.cached = []
        self.heaps = [heap for heap in self.heaps if heap.available < heap.total]


class Buffer:
    """A piece of a heap; it goes back when nothing refers to it any more."""

    def __init__(self, memory: Memory, heap: Heap, size: int) -> None:
        self.memory, self.heap, self.size = memory, heap, size

    def __del__(self) -> None:
        self.memory.cached.append((self.size, self.heap))
        self.memory.allocated -= self.size


# -- operators -----------------------------------------------------------------------------------


class Gpu:
    """The GPU: its queue, its memory, and how it runs an operator."""

    place = torch.device("mps", 0)

    def __init__(self, recommended_bytes: int) -> None:
        self.line = Timeline()
        self.memory = Memory(recommended_bytes)
        self.allocate = self.memory.allocate
        self.held: WeakValueDictionary[int, Buffer] = WeakValueDictionary()  # by CPU storage

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
                result = call.wrapped(computed, self)
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
        if f" {name}(" not in self.source:
            raise AttributeError(name)

        def launch(*arguments: Any) -> None:
            assert all(isinstance(argument, Played) for argument in arguments)
            with gpu.line.computing():
                gpu.line.launch(KERNEL_S)

        return launch


def functions() -> dict[str, Callable[..., Any]]:
    """By name, without `_mps_`."""
    memory = gpu.memory

    def fraction(share: float) -> None:
        memory.allowed_bytes = share * memory.recommended_bytes if share else math.inf

    return {
        "is_available": lambda: True,
        "is_in_bad_fork": lambda: False,
        "is_on_macos_or_newer": lambda major, minor: (major, minor) <= (15, 5),
        "deviceSynchronize": gpu.line.wait,
        "get_default_generator": lambda: torch.default_generator,  # the CPU computes
        "get_name": lambda: "Apple M2",
        "emptyCache": memory.empty_cache,
        "setMemoryFraction": fraction,
        "currentAllocatedMemory": lambda: memory.allocated,
        "driverAllocatedMemory": lambda: memory.driver_bytes,
        "recommendedMaxMemory": lambda: memory.recommended_bytes,
        "compileShader": Shader,
    }


def statistics(*device: Any) -> dict[str, int]:
    """`torch.accelerator.memory_stats`, those parts that are played."""
    memory = gpu.memory
    return {
        "allocated_bytes.all.current": memory.allocated,
        "allocated_bytes.all.peak": memory.peak,
        "reserved_bytes.all.current": memory.driver_bytes,
    }


def reset_peak(*device: Any) -> None:
    """`torch.accelerator.reset_peak_memory_stats`."""
    gpu.memory.peak = gpu.memory.allocated


def install(spec: dict[str, Any], module: Any) -> None:
    """Have torch find the GPU of `spec`."""
    global gpu
    gpu = Gpu(spec["recommended_bytes"])
    gpu.line.patch()
    callback = ctypes.CFUNCTYPE(None)(gpu.line.wait)
    gpu.callback = callback  # type: ignore[attr-defined]  # must outlive the library's use
    ctypes.CDLL(spec["library"]).played_install(callback)
    torch._C._has_mps = True
    for name, function in functions().items():
        setattr(torch._C, f"_mps_{name}", function)
    torch.mps._is_in_bad_fork = lambda: False
    torch.accelerator.memory_stats = statistics
    torch.accelerator.reset_peak_memory_stats = reset_peak
    tensors.install("MPS", gpu.run, made, attention)


def made(place: torch.device | None, make: Callable[[], torch.Tensor]) -> Played:
    """A new tensor on the GPU."""
    with gpu.line.computing():
        return Played.of(make(), gpu)


def attention(*given: Any, **more: Any) -> Any:
    """With an n x n matrix: what MPS fuses is not for training."""
    return torch.ops.aten._scaled_dot_product_attention_math(*given, **more)[0]
