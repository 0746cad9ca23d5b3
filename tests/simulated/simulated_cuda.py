"""A `torch.cuda` over CPU tensors: torch's own Python, with NVIDIA GPUs simulated below it.

Tensors are those of tensors.py: every operator on one is computed on the CPU, its results take
memory on the card and its time goes to the card's queue (see device.py). What torch's Python takes
from `torch._C._cuda_*` is simulated by `Driver`, what its C++ takes by cuda.cpp.
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
from device import KERNEL_S, Block, Card, Memory, OutOfMemory, Timeline
from nvidia import cards, stand_in
from tensors import Call, Played
from torch.utils.flop_counter import flop_registry

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
# aten/src/ATen/cuda/CublasHandlePool.cpp: parseChosenWorkspaceSize, per handle and stream
HOPPER_WORKSPACE, WORKSPACE = 2**25, (2 * 4096 + 8 * 16) * 2**10
CYCLES_RATE = 1.7e9  # of a card's clock, a second
GONE = "CUDA error: unspecified launch failure"


class Gpu:
    """One GPU as the process sees it."""

    def __init__(self, index: int, card: Card, uuid: str, line: Timeline) -> None:
        self.index, self.card, self.uuid, self.line = index, card, uuid, line
        self.place = torch.device("cuda", index)
        self.memory = Memory(card.memory_bytes - card.context_bytes)
        self.held: WeakValueDictionary[int, Block] = WeakValueDictionary()  # by CPU storage
        self.workspaces: dict[int, Block] = {}  # by thread

    def allocate(self, n_bytes: int) -> Block:
        """Memory of the card, or torch's own error."""
        try:
            return self.memory.allocate(n_bytes)
        except OutOfMemory:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {n_bytes / 2**20:.2f} MiB. GPU "
                f"{self.index} has a total capacity of {self.card.memory_bytes / 2**30:.2f} GiB; "
                f"{self.memory.allocated / 2**20:.2f} MiB is allocated by PyTorch"
            ) from None

    def taken(self) -> int:
        """All that is taken on the card: the context too."""
        return self.memory.reserved + self.card.context_bytes

    def multiplies(self) -> None:
        """A product needs this thread's workspace."""
        thread = threading.get_ident()
        if thread not in self.workspaces:
            size = HOPPER_WORKSPACE if self.card.capability[0] == 9 else WORKSPACE
            self.workspaces[thread] = self.allocate(size)


class Driver:
    """The GPUs, and what `torch._C` offers of them."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.library = ctypes.CDLL(spec["library"])
        self.lost_after = spec.get("lost_after")
        self.kernels = 0
        self.line = Timeline()
        self.seen = cards(spec)
        self.gpus = [Gpu(i, card, uuid, self.line) for i, (card, uuid) in enumerate(self.seen)]

    def check(self) -> None:
        """Raise what every call raises after the card was lost."""
        if self.lost_after is not None and self.kernels >= self.lost_after:
            raise torch.AcceleratorError(GONE)

    def synchronize(self, index: int | None = None) -> None:
        self.check()
        self.line.wait()
        self.check()

    def current(self) -> int:
        return self.library.simulated_device(-1)

    def gpu(self, index: int | None = None) -> Gpu:
        return self.gpus[self.current() if index is None or index < 0 else index]

    def statistics(self, index: int) -> dict[str, Any]:
        """As `torch._C._cuda_memoryStats`, those parts that are simulated."""
        held = self.gpu(index).memory

        def all_of(current: int, peak: int) -> dict[str, Any]:
            counts = {"current": current, "peak": peak, "allocated": 0, "freed": 0}
            return {pool: counts for pool in ("all", "small_pool", "large_pool")}

        return {
            "allocated_bytes": all_of(held.allocated, held.peak_allocated),
            "active_bytes": all_of(held.allocated, held.peak_allocated),
            "requested_bytes": all_of(held.allocated, held.peak_allocated),
            "reserved_bytes": all_of(held.reserved, held.peak_reserved),
            "num_ooms": 0,
            "num_alloc_retries": 0,
        }

    def info(self, index: int) -> tuple[int, int]:
        """Bytes that are free, and all."""
        gpu = self.gpu(index)
        self.check()
        return gpu.card.memory_bytes - gpu.taken(), gpu.card.memory_bytes

    def properties(self, index: int) -> SimpleNamespace:
        gpu = self.gpu(index)
        card = gpu.card
        self.check()
        return SimpleNamespace(
            name=card.name,
            major=card.capability[0],
            minor=card.capability[1],
            total_memory=card.memory_bytes,
            multi_processor_count=card.multiprocessors,
            L2_cache_size=card.l2_bytes,
            uuid=gpu.uuid[len("GPU-") :],
            gcnArchName=card.name,
            is_integrated=0,
            is_multi_gpu_board=0,
            warp_size=32,
            max_threads_per_multi_processor=2048,
            regs_per_multiprocessor=65536,
            shared_memory_per_block=49152,
            shared_memory_per_block_optin=232448,
            shared_memory_per_multiprocessor=233472,
        )

    # -- operators -------------------------------------------------------------------------------

    def run(self, *asked: Any) -> Any:
        """An operator, as long as the card's roofline says."""
        self.check()
        with self.line.computing():
            call = Call(*asked)
            gpu = self._place(call)
            if call.copies:
                return self._copy(call, gpu)
            if call.name in PRODUCTS:
                gpu.multiplies()
            computed = product(call) if call.name in PRODUCTS else call.compute()
            result = computed if call.to_host else call.wrapped(computed, gpu)
            if call.launches:
                self._launch(call, gpu, computed)
        if call.waited:
            self.line.wait()
        return result

    def _place(self, call: Call) -> Gpu:
        """The card that works."""
        if call.place is not None and not call.to_host:
            return self.gpu(call.place.index)
        return next((t.on for t in call.given.values()), None) or self.gpu()

    def _copy(self, call: Call, gpu: Gpu) -> Any:
        """Between host and device: from and to page-locked memory it may run on by itself."""
        to, source = call.args[:2] if call.name == "copy_" else (None, call.args[0])
        self.line.launch(source.nbytes / gpu.card.link_rate)
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
                self.line.later(lambda: to.copy_(arriving))
            else:
                to.copy_(source)
        else:
            self.line.wait()
            to.copy_(source)
        return call.into

    def _launch(self, call: Call, gpu: Gpu, computed: Any) -> None:
        """Queue an operator."""
        self.kernels += 1
        flops = 0
        count = flop_registry.get(call.func.overloadpacket)
        if count is not None:
            flops = count(*call.args, **call.kwargs, out_val=computed)
        dtype = next((v.dtype for v in call.args if isinstance(v, torch.Tensor)), torch.float32)
        high = torch.get_float32_matmul_precision() == "high"
        rate = gpu.card.flop_rates["half" if dtype.itemsize == 2 else "tf32" if high else "fp32"]
        self.line.launch(kernel_s(gpu.card, call.moved_bytes, flops, rate))


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


def kernel_s(card: Card, n_bytes: float, flops: float, rate: float) -> float:
    """Seconds of a kernel: its arithmetic if it is a product, else its bytes; and a constant."""
    return KERNEL_S + (flops / rate if flops else n_bytes / card.bytes_rate)


def rounded(value: torch.Tensor) -> torch.Tensor:
    """fp32 values with tf32's ten bits of mantissa, to nearest."""
    bits = value.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


driver: Driver


# -- what torch.cuda takes from torch._C ---------------------------------------------------------


class Event:
    """`torch.cuda.Event`: its moment on the card's own clock, which resolves half a microsecond."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **more: Any) -> None:
        self.timed, self.moment = enable_timing, None

    def record(self, stream: Any = None) -> None:
        driver.check()
        driver.line.launch(0.0)
        self.moment = driver.line.end

    def query(self) -> bool:
        return self.moment is None or driver.line.now() >= self.moment

    def synchronize(self) -> None:
        driver.check()
        if self.moment is not None:
            driver.line.wait(self.moment)

    def wait(self, stream: Any = None) -> None:
        """One stream: in order anyway."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds.

        Raises:
            RuntimeError: as in CUDA, without timing, not recorded, or still under way.
        """
        driver.check()
        if not (self.timed and end.timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self.moment is None or end.moment is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end.query()):
            raise torch.AcceleratorError("CUDA error: device not ready")
        return round((end.moment - self.moment) * 2e6) / 2e3


class Stream:
    """The one stream that there is."""

    cuda_stream = 0
    stream_id = 0

    def __init__(self, device: Any = None, priority: int = 0, **more: Any) -> None:
        self.device = torch.device("cuda", driver.current() if device is None else 0)

    def synchronize(self) -> None:
        driver.synchronize()

    def wait_stream(self, stream: Any) -> None:
        """In order anyway."""

    wait_event = wait_stream

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record()
        return event


class Runtime:
    """`torch.cuda.cudart()`."""

    class cudaError:
        success = 0

    def cudaMemGetInfo(self, index: int) -> tuple[int, int]:
        return driver.info(index)


class Launcher:
    """`libcuda.so.1` beside torch: a kernel of one's own is launched on the simulated card."""

    def cuCtxGetCurrent(self, to: Any) -> int:
        to._obj.value = 1 if torch.cuda.is_initialized() else None
        return 0

    def cuModuleLoadData(self, to: Any, image: bytes) -> int:
        to._obj.value = 2
        return 0 if b".visible .entry" in image else 218  # CUDA_ERROR_INVALID_PTX

    def cuModuleGetFunction(self, to: Any, module: Any, name: bytes) -> int:
        to._obj.value = 3
        return 0

    def cuLaunchKernel(self, *arguments: Any) -> int:
        if driver.lost_after is not None and driver.kernels >= driver.lost_after:
            return 719  # CUDA_ERROR_LAUNCH_FAILED
        with driver.line.computing():
            driver.line.launch(KERNEL_S)
            driver.kernels += 1
        return 0

    def cuGetErrorName(self, code: int, to: Any) -> int:
        to._obj.value = b"CUDA_ERROR_LAUNCH_FAILED"
        return 0

    def cuGetErrorString(self, code: int, to: Any) -> int:
        to._obj.value = b"unspecified launch failure"
        return 0


def install(spec: dict[str, Any], module: Any) -> None:
    """Have torch find the GPUs of `spec`."""
    global driver
    driver = Driver(spec)
    driver.line.patch()
    count = len(driver.gpus)
    callback = ctypes.CFUNCTYPE(None, ctypes.c_int)(driver.synchronize)
    driver.callback = callback  # type: ignore[attr-defined]  # must outlive the library's use
    driver.library.simulated_install(count, callback)
    stand_in(Launcher())
    torch.version.cuda = "13.0"
    cuda = torch.cuda

    def initialise() -> None:
        if not count:
            raise RuntimeError("No CUDA GPUs are available")
        driver.check()
        cuda.default_generators = tuple(torch.Generator() for _ in driver.gpus)
        cuda._get_device_properties = driver.properties

    def exchange(index: int) -> int:
        return driver.library.simulated_device(index)

    def fraction(share: float, index: int) -> None:
        driver.gpu(index).memory.limit_bytes = share * driver.gpu(index).card.memory_bytes

    def empty_cache() -> None:
        driver.check()
        driver.gpu().memory.empty_cache()

    simulated: dict[str, Callable[..., Any]] = {
        "init": initialise,
        "isInBadFork": lambda: False,
        "getDeviceCount": lambda: count,
        "getDevice": driver.current,
        "setDevice": exchange,
        "exchangeDevice": exchange,
        "maybeExchangeDevice": exchange,
        "synchronize": driver.synchronize,
        "sleep": lambda cycles: driver.line.launch(cycles / CYCLES_RATE),
        "memoryStats": driver.statistics,
        "resetPeakMemoryStats": lambda index: driver.gpu(index).memory.reset_peak(),
        "resetAccumulatedMemoryStats": lambda index: None,
        "emptyCache": empty_cache,
        "setMemoryFraction": fraction,
        "getArchFlags": lambda: "sm_75 sm_80 sm_90",
        "getCompiledVersion": lambda: 13000,
        "clearCublasWorkspaces": lambda: driver.gpu().workspaces.clear(),
        "getAllocatorBackend": lambda: "native",
        "ipc_collect": lambda: None,
        "getCurrentRawStream": lambda index: 0,
    }
    for name, function in simulated.items():
        setattr(torch._C, f"_cuda_{name}", function)
    cuda._cudart = Runtime()
    cuda._exchange_device = cuda._maybe_exchange_device = exchange
    cuda._is_in_bad_fork = lambda: False
    for name, value in (("Event", Event), ("Stream", Stream)):
        setattr(cuda, name, value)
        setattr(cuda.streams, name, value)
    cuda.current_stream = cuda.default_stream = Stream
    cuda._device_count_nvml = lambda: -1
    torch.backends.cudnn.version = lambda: 91300
    from torch.optim import optimizer

    optimizer._foreach_supported_types.append(Played)
    tensors.install("CUDA", driver.run, made, attention)


def made(place: torch.device | None, make: Callable[[], torch.Tensor]) -> Played:
    """A new tensor on a card."""
    driver.check()
    with driver.line.computing():
        return Played.of(make(), driver.gpu(None if place is None else place.index))


def attention(
    query: Any, key: Any, value: Any, mask: Any, dropout_p: float, causal: bool,
    scale: float | None, enable_gqa: bool,
) -> Any:  # fmt: skip
    """Without an n x n matrix, as flash attention: torch's own for CPUs has its rule."""
    if enable_gqa:
        math = torch.ops.aten._scaled_dot_product_attention_math
        return math(query, key, value, mask, dropout_p, causal, scale=scale, enable_gqa=True)[0]
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -torch.inf)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return flash(query, key, value, dropout_p, causal, attn_mask=mask, scale=scale)[0]
