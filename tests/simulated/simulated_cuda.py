"""A `torch.cuda` over CPU tensors: torch's own Python, with an NVIDIA GPU simulated below it.

Tensors are those of tensors.py: every operator on one is computed on the CPU, its results take
memory on the card and its time goes to the card's queue (see device.py). What torch's Python takes
from `torch._C._cuda_*` is simulated by `Gpu`, what its C++ takes by device.cpp.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import tensors
import torch
from device import H200, KERNEL_S, Block, Memory, OutOfMemory, Timeline
from nvidia import UUID, stand_in, visible
from tensors import Call, Played
from torch.utils.flop_counter import flop_registry

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
# aten/src/ATen/cuda/CublasHandlePool.cpp: parseChosenWorkspaceSize, per handle and stream
HOPPER_WORKSPACE = 2**25
CYCLES_RATE = 1.7e9  # of a card's clock, a second
STREAM = 0x5EED00000001  # torch's current one
GONE = "CUDA error: unspecified launch failure"


class Gpu:
    """The GPU: its queue, its memory, how it runs an operator, and what `torch._C` tells of it."""

    place = torch.device("cuda", 0)

    def __init__(self, lost_after: int | None) -> None:
        self.card = H200
        self.line = Timeline()
        self.memory = Memory(H200.memory_bytes - H200.context_bytes)
        self.held: WeakValueDictionary[int, Block] = WeakValueDictionary()  # by CPU storage
        self.workspaces: dict[int, Block] = {}  # by thread
        self.lost_after = lost_after
        self.kernels = 0

    def allocate(self, n_bytes: int) -> Block:
        """Memory of the card, or torch's own error."""
        try:
            return self.memory.allocate(n_bytes)
        except OutOfMemory:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {n_bytes / 2**20:.2f} MiB. GPU 0 has a "
                f"total capacity of {self.card.memory_bytes / 2**30:.2f} GiB; "
                f"{self.memory.allocated / 2**20:.2f} MiB is allocated by PyTorch"
            ) from None

    def check(self) -> None:
        """Raise what every call raises after the card was lost."""
        if self.lost():
            raise torch.AcceleratorError(GONE)

    def lost(self) -> bool:
        return self.lost_after is not None and self.kernels >= self.lost_after

    def synchronize(self) -> None:
        self.check()
        self.line.wait()
        self.check()

    def statistics(self, index: int) -> dict[str, Any]:
        """As `torch._C._cuda_memoryStats`, those parts that are simulated."""
        held = self.memory
        return {
            "allocated_bytes": {"all": {"current": held.allocated, "peak": held.peak_allocated}},
            "reserved_bytes": {"all": {"current": held.reserved, "peak": held.peak_reserved}},
        }

    def info(self, index: int) -> tuple[int, int]:
        """Bytes that are free, and all."""
        self.check()
        total = self.card.memory_bytes
        return total - self.card.context_bytes - self.memory.reserved, total

    def properties(self, index: int) -> SimpleNamespace:
        self.check()
        return SimpleNamespace(
            name=self.card.name,
            major=self.card.capability[0],
            minor=self.card.capability[1],
            total_memory=self.card.memory_bytes,
            multi_processor_count=self.card.multiprocessors,
            L2_cache_size=self.card.l2_bytes,
            uuid=UUID,
        )

    # -- operators -------------------------------------------------------------------------------

    def run(self, *asked: Any) -> Any:
        """An operator, as long as the card's roofline says."""
        self.check()
        with self.line.computing():
            call = Call(*asked)
            if call.copies:
                return self._copy(call)
            if call.name in PRODUCTS and (thread := threading.get_ident()) not in self.workspaces:
                self.workspaces[thread] = self.allocate(HOPPER_WORKSPACE)
            computed = product(call) if call.name in PRODUCTS else call.compute()
            result = computed if call.to_host else call.wrapped(computed)
            if call.launches:
                self._launch(call, computed)
        if call.waited:
            self.line.wait()
        return result

    def _copy(self, call: Call) -> Any:
        """Between host and device: from and to page-locked memory it may run on by itself."""
        to, source = call.args[:2] if call.name == "copy_" else (None, call.args[0])
        self.line.launch(source.nbytes / self.card.link_rate)
        self.kernels += 1
        if to is None:  # to the host: page-locked only where a trainer's hook asks for it
            result = call.compute()
            self.line.wait()
            return result
        asynchronous = call.kwargs.get("non_blocking") or (len(call.args) > 2 and call.args[2])
        host = to if call.to_host else source
        if asynchronous and host.is_pinned():
            if call.to_host:
                arriving = source.clone()
                self.line.when_waited.append(lambda: to.copy_(arriving))
            else:
                to.copy_(source)
        else:
            self.line.wait()
            to.copy_(source)
        return call.into

    def _launch(self, call: Call, computed: Any) -> None:
        """Queue an operator."""
        self.kernels += 1
        flops = 0
        count = flop_registry.get(call.func.overloadpacket)
        if count is not None:
            flops = count(*call.args, **call.kwargs, out_val=computed)
        dtype = next((v.dtype for v in call.args if isinstance(v, torch.Tensor)), torch.float32)
        high = torch.get_float32_matmul_precision() == "high"
        rate = self.card.flop_rates["half" if dtype.itemsize == 2 else "tf32" if high else "fp32"]
        arithmetic_s, moving_s = flops / rate, call.moved_bytes / self.card.bytes_rate
        self.line.launch(KERNEL_S + (arithmetic_s if flops else moving_s))


def product(call: Call) -> Any:
    """With the rounding of the card's units: 16 bit are added up in fp32, tf32 has 10 bits."""
    first = next(value for value in call.args if isinstance(value, torch.Tensor))
    if first.dtype in (torch.float16, torch.bfloat16) and not call.kwargs:
        wide = [v.float() if isinstance(v, torch.Tensor) else v for v in call.args]
        return call.func(*wide).to(first.dtype)
    if first.dtype == torch.float32 and torch.get_float32_matmul_precision() == "high":
        rough = (rounded(v) if isinstance(v, torch.Tensor) else v for v in call.args)
        return call.func(*rough, **call.kwargs)
    return call.compute()


def rounded(value: torch.Tensor) -> torch.Tensor:
    """fp32 values with tf32's ten bits of mantissa, to nearest."""
    bits = value.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


gpu: Gpu


# -- what torch.cuda takes from torch._C ---------------------------------------------------------


class Event:
    """`torch.cuda.Event`: its moment on the card's own clock, which resolves half a microsecond."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.moment: float | None = None

    def record(self) -> None:
        gpu.check()
        gpu.line.launch(0.0)
        self.moment = gpu.line.end

    def query(self) -> bool:
        return self.moment is None or gpu.line.now() >= self.moment

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds; both must be over, as in CUDA."""
        gpu.check()
        if not (self.query() and end.query()):
            raise torch.AcceleratorError("CUDA error: device not ready")
        return round((end.moment - self.moment) * 2e6) / 2e3


class Launcher:
    """`libcuda.so.1` beside torch: a kernel of one's own is launched on the simulated card."""

    def cuInit(self, flags: int) -> int:
        return 0

    def cuCtxGetCurrent(self, to: Any) -> int:
        to._obj.value = 1 if torch.cuda.is_initialized() else None
        return 0

    def cuModuleLoadData(self, to: Any, image: bytes) -> int:
        to._obj.value = 2
        return 0 if b".visible .entry" in image else 218  # CUDA_ERROR_INVALID_PTX

    def cuModuleGetFunction(self, to: Any, module: Any, name: bytes) -> int:
        to._obj.value = 3
        return 0

    def cuLaunchKernel(self, kernel: Any, *arguments: Any) -> int:
        *one, shared, stream, parameters, extra = (argument.value for argument in arguments)
        assert (kernel.value, one, shared, stream) == (3, [1] * 6, 0, STREAM)
        assert parameters is extra is None
        if gpu.lost():
            return 719  # CUDA_ERROR_LAUNCH_FAILED
        with gpu.line.computing():
            gpu.line.launch(KERNEL_S)
            gpu.kernels += 1
        return 0

    def cuGetErrorName(self, code: int, to: Any) -> int:
        to._obj.value = b"CUDA_ERROR_LAUNCH_FAILED"
        return 0

    def cuGetErrorString(self, code: int, to: Any) -> int:
        to._obj.value = b"unspecified launch failure"
        return 0


def install(spec: dict[str, Any], module: Any) -> None:
    """Have torch find the GPU of `spec`."""
    global gpu
    gpu = Gpu(spec.get("lost_after"))
    gpu.line.patch()
    count = int(visible())
    callback = ctypes.CFUNCTYPE(None)(gpu.synchronize)
    gpu.callback = callback  # type: ignore[attr-defined]  # must outlive the library's use
    ctypes.CDLL(spec["library"]).simulated_install(count, callback)
    stand_in(Launcher())
    torch.version.cuda = "13.0"
    cuda = torch.cuda

    def initialise() -> None:
        if not count:
            raise RuntimeError("No CUDA GPUs are available")
        gpu.check()
        cuda.default_generators = (torch.Generator(),)
        cuda._get_device_properties = gpu.properties

    def fraction(share: float, index: int) -> None:
        gpu.memory.limit_bytes = share * gpu.card.memory_bytes

    def empty_cache() -> None:
        gpu.check()
        gpu.memory.empty_cache()

    simulated: dict[str, Callable[..., Any]] = {
        "init": initialise,
        "isInBadFork": lambda: False,
        "getDeviceCount": lambda: count,
        "getDevice": lambda: 0,
        "setDevice": lambda index: None,
        "synchronize": gpu.synchronize,
        "sleep": lambda cycles: gpu.line.launch(cycles / CYCLES_RATE),
        "memoryStats": gpu.statistics,
        "resetPeakMemoryStats": lambda index: gpu.memory.reset_peak(),
        "emptyCache": empty_cache,
        "setMemoryFraction": fraction,
        "getArchFlags": lambda: "sm_90",
        "getCompiledVersion": lambda: 13000,
        "getCurrentRawStream": lambda index: 0,
    }
    for name, function in simulated.items():
        setattr(torch._C, f"_cuda_{name}", function)
    cuda._cudart = SimpleNamespace(cudaMemGetInfo=gpu.info, cudaError=SimpleNamespace(success=0))
    cuda._exchange_device = cuda._maybe_exchange_device = lambda index: 0
    cuda._is_in_bad_fork = lambda: False
    cuda.Event = cuda.streams.Event = Event
    cuda.current_stream = lambda device=None: SimpleNamespace(cuda_stream=STREAM)
    cuda._device_count_nvml = lambda: -1
    torch.backends.cudnn.version = lambda: 91300
    from torch.optim import optimizer

    optimizer._foreach_supported_types.append(Played)
    tensors.install("CUDA", gpu, attention)


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Without an n x n matrix, as flash attention: torch's own for CPUs has its rule."""
    assert not enable_gqa
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return flash(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
