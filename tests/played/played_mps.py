"""A `torch.mps` over CPU tensors: torch's own Python, with the GPU of an M2 played below it.

A tensor on `mps` is a wrapper that says so and holds a CPU tensor. Every operator on one comes
through `Played.__torch_dispatch__`, which computes it, gives its results memory from the heaps and
queues the time that computing took (see device.py). What torch's Python takes from `torch._C._mps_*`
is played by `functions`, what its C++ takes by metal.cpp.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from device import KERNEL_S, Timeline
from torch.utils._pytree import tree_map

GIB, MIB = 2**30, 2**20
# aten/src/ATen/mps/MPSAllocator.h: an array of up to so many bytes comes from heaps of that size
HEAPS = ((MIB, 8 * MIB), (10 * MIB - 1, 32 * MIB), (GIB // 2 - 1, GIB))
ROUND_LARGE, ROUND = 2 * MIB, 256
HIGH_WATERMARK = 1.7  # default_high_watermark_ratio
# Operators that take tensors of the host beside those of the device
MIXED = ("copy_", "_to_copy", "index", "index_put_", "_index_put_impl_")
# ... and those whose result the host waits for
READ = ("nonzero", "masked_select", "_unique2", "_local_scalar_dense", "equal")
COPIES = ("copy_", "_to_copy")

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

    def __init__(self, recommended_bytes: int) -> None:
        self.line = Timeline()
        self.memory = Memory(recommended_bytes)
        self.buffers: WeakValueDictionary[int, Buffer] = WeakValueDictionary()  # by CPU storage
        self.captured: str | None = None

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator with at least one tensor of the GPU."""
        name = func.overloadpacket.__name__
        given: dict[int, Played] = {}
        hosts: list[torch.Tensor] = []

        def unwrapped(value: Any) -> Any:
            if isinstance(value, Played):
                given[id(value.inner)] = value
                return value.inner
            if isinstance(value, torch.Tensor):
                hosts.append(value)
            return value

        def wrapped(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            same = given.get(id(value))
            return Played.of(value) if same is None else same

        with self.line.computing():
            inner, more = tree_map(unwrapped, args), tree_map(unwrapped, kwargs)
            if name not in MIXED and any(host.dim() for host in hosts):
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two "
                    "devices, mps:0 and cpu!"
                )
            to_host = name == "copy_" and not isinstance(args[0], Played)
            if (asked := more.get("device")) is not None:
                to_host = torch.device(asked).type == "cpu"
                more["device"] = torch.device("cpu")
            began = real_clock()
            result = func(*inner, **more)
            took = real_clock() - began
            if not func.is_view and name not in ("detach", "alias"):
                self.line.launch(took + KERNEL_S)
            if to_host:
                result = args[0] if name == "copy_" else result
            else:
                result = tree_map(wrapped, result)
        if to_host or name in READ or (name in COPIES and hosts):
            self.line.wait()
        return result


class Played(torch.Tensor):
    """A tensor on the GPU: `inner` on the CPU, `buffer` in a heap."""

    inner: torch.Tensor
    buffer: Buffer | None

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def of(inner: torch.Tensor) -> Played:
        """A tensor on the GPU; a view of another shares its memory."""
        storage = inner.untyped_storage()
        key = storage._cdata
        buffer = gpu.buffers.get(key)
        if buffer is None and storage.nbytes():
            buffer = gpu.buffers[key] = gpu.memory.allocate(storage.nbytes())
        made = torch.Tensor._make_wrapper_subclass(
            Played,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("mps", 0),
        )
        made.inner, made.buffer = inner, buffer
        return made

    def untyped_storage(self) -> Any:
        """The host's memory below: whoever asks wants to know which tensors share theirs."""
        return self.inner.untyped_storage()

    def data_ptr(self) -> int:
        """See `untyped_storage`."""
        return self.inner.data_ptr()

    def __repr__(self) -> str:
        return f"{self.inner!r} on mps:0"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return gpu.run(func, args, dict(kwargs or {}))


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
    memory, generator = gpu.memory, torch.Generator()

    def fraction(share: float) -> None:
        memory.allowed_bytes = share * memory.recommended_bytes if share else math.inf

    def start_capture(name: str) -> None:
        gpu.captured = f"0000-{name}.gputrace"
        Path(gpu.captured).mkdir()

    def stop_capture() -> None:
        gpu.captured = None

    return {
        "is_available": lambda: True,
        "is_in_bad_fork": lambda: False,
        "is_on_macos_or_newer": lambda major, minor: (major, minor) <= (15, 5),
        "deviceSynchronize": gpu.line.wait,
        "get_default_generator": lambda: generator,
        "get_name": lambda: "Apple M2",
        "emptyCache": memory.empty_cache,
        "setMemoryFraction": fraction,
        "currentAllocatedMemory": lambda: memory.allocated,
        "driverAllocatedMemory": lambda: memory.driver_bytes,
        "recommendedMaxMemory": lambda: memory.recommended_bytes,
        "compileShader": Shader,
        "isCaptureEnabled": lambda: True,
        "isCapturing": lambda: gpu.captured is not None,
        "startCapture": start_capture,
        "stopCapture": stop_capture,
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


kernels = torch.library.Library("aten", "IMPL", "MPS")


def install(library: str, recommended_bytes: int) -> None:
    """Have torch find the GPU.

    Args:
        library: metal.cpp, compiled; loaded before torch was imported.
    """
    global gpu
    gpu = Gpu(recommended_bytes)
    gpu.line.patch()
    callback = ctypes.CFUNCTYPE(None)(gpu.line.wait)
    gpu.callback = callback  # type: ignore[attr-defined]  # must outlive the library's use
    ctypes.CDLL(library).played_install(callback)
    torch._C._has_mps = True
    for name, function in functions().items():
        setattr(torch._C, f"_mps_{name}", function)
    torch.mps._is_in_bad_fork = lambda: False
    torch.accelerator.memory_stats = statistics
    torch.accelerator.reset_peak_memory_stats = reset_peak
    torch.emulated_device = "played by tests/played"  # the mark that siliconprof reads
    # A parameter that moves to the GPU stays the same object, as it does where its data is set.
    torch.__future__.set_swap_module_params_on_conversion(True)

    def made(make: Callable[[], torch.Tensor]) -> Played:
        with gpu.line.computing():
            return Played.of(make())

    def empty(size: Any, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):  # fmt: skip
        order = memory_format or torch.contiguous_format
        return made(lambda: torch.empty(size, dtype=dtype, memory_format=order))

    def empty_strided(size: Any, stride: Any, *, dtype=None, layout=None, device=None, pin_memory=None):  # fmt: skip
        return made(lambda: torch.empty_strided(size, stride, dtype=dtype))

    def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):  # fmt: skip
        """With an n x n matrix: what MPS fuses is not for training."""
        given = (query, key, value, attn_mask, dropout_p, is_causal)
        if not isinstance(query, Played):
            return attend(*given, scale=scale, enable_gqa=enable_gqa)
        by_hand = torch.ops.aten._scaled_dot_product_attention_math
        return by_hand(*given, scale=scale, enable_gqa=enable_gqa)[0]

    attend = torch.nn.functional.scaled_dot_product_attention
    torch.nn.functional.scaled_dot_product_attention = attention
    kernels.impl("empty.memory_format", empty)
    kernels.impl("empty_strided", empty_strided)
