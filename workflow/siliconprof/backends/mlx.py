"""MLX on whichever kind the device is: Metal or CUDA GPU, or a CPU.

MLX is lazy: a phase ends when its results have been evaluated. `value_and_grad` builds the
backward graph before anything runs; that time is `trace_s`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

from siliconprof.backends import _cuda_driver, _isolated, _metal, _mlx_isolated
from siliconprof.backends._kernels import DRAWN, SAMPLED_VALUES, MlxKernels
from siliconprof.backends._mlx_operators import MlxProfiler
from siliconprof.backends._mlx_stepper import MlxStepper
from siliconprof.backends._step import Stepper
from siliconprof.backends.base import Arrays, Backend, Clock, Features, Memory, Unsupported
from siliconprof.hosts import blas, caches
from siliconprof.memory.footprint import MemoryProfile
from siliconprof.store.cell import PRECISIONS

# mlx/backend/cuda/allocator.cpp: `unified_malloc`.
MANAGED = "MLX's build for CUDA takes memory for arrays by cudaMallocManaged or cudaMallocHost"


class MlxClock(Clock):
    """The host's clock, read once pending results are computed."""

    means = "perf_counter after mx.eval of each phase's results and mx.synchronize()"

    def __init__(self, mx: Any) -> None:
        self.mx = mx
        self.pending: Any = None  # an array

    def synchronize(self) -> None:
        if self.pending is not None:
            self.mx.eval(self.pending)
            self.pending = None
        self.mx.synchronize()


class MlxMemory(Memory):
    """As MLX's allocator counts it."""

    prefix = "mlx"
    means = (
        "mlx: active = live arrays, cache = freed and kept for reuse, peak = the most that was "
        "active since the last reset"
    )
    peak_means = "mx.get_peak_memory over all steps, those that compile left out"
    limit_yields = (
        "by MLX's documentation mx.set_memory_limit is a guideline during the evaluation of a graph; "
        "it raises only once the memory and swap of the machine are spent"
    )
    _earlier_bytes = 0

    def __init__(self, mx: Any, gpu: Mapping[str, Any]) -> None:
        self.mx, self.gpu = mx, gpu  # what MLX tells of the GPU; empty on a CPU

    def allocated_bytes(self) -> int:
        return self.mx.get_active_memory()

    def peak_bytes(self) -> int:
        return max(self._earlier_bytes, self.mx.get_peak_memory())

    def reset_peak(self, earlier_bytes: int = 0) -> None:
        """An earlier peak that still counts may be given."""
        self._earlier_bytes = earlier_bytes
        self.mx.reset_peak_memory()

    def empty_cache(self) -> None:
        self.mx.clear_cache()

    def set_limit(self, limit_bytes: int) -> str | None:
        """On a CPU only the system can."""
        if not self.gpu:
            return None
        self.mx.set_memory_limit(limit_bytes)
        return "mx.set_memory_limit, beyond which MLX frees its cache and waits for running work"

    def counters(self, driver: bool = True) -> dict[str, int | None]:
        return {
            "active_bytes": self.mx.get_active_memory(),
            "cache_bytes": self.mx.get_cache_memory(),
            "peak_bytes": self.peak_bytes(),
        }

    def recommended_bytes(self) -> int | None:
        """CUDA's has no recommendation."""
        return self.gpu.get("max_recommended_working_set_size") or self.gpu.get("total_memory")

    def last_level_cache(self) -> tuple[int | None, str]:
        return super().last_level_cache() if self.gpu else caches.last_level_bytes()


class MlxArrays(Arrays):
    """MLX arrays; a product is computed when the clock waits, if not before."""

    def __init__(self, mx: Any, clock: MlxClock, dtype: Any, compute_dtype: Any) -> None:
        self.mx, self.clock = mx, clock
        self.dtype, self.compute_dtype = dtype, compute_dtype

    def normal(self, shape: Sequence[int], seed: int) -> Any:
        drawn = self.mx.random.normal(tuple(shape), key=self.mx.random.key(seed))
        value = drawn.astype(self.dtype)
        self.mx.eval(value)
        return value

    def matmul(self, a: Any, b: Any) -> Any:
        """The product is pending, so that `synchronize` computes it."""
        if self.compute_dtype != self.dtype:
            a, b = a.astype(self.compute_dtype), b.astype(self.compute_dtype)
        self.clock.pending = a @ b
        return self.clock.pending

    def vjp(self, a: Any, b: Any, cotangent: Any, forward: bool) -> Callable[[], Any]:
        """Evaluating the gradients alone leaves the product uncomputed: `mx.vjp` is lazy."""
        mx = self.mx

        def launch() -> Any:
            products, gradients = mx.vjp(mx.matmul, [a, b], [cotangent])
            self.clock.pending = products + gradients if forward else gradients
            return self.clock.pending

        return launch

    def copy(self, value: Any) -> Any:
        """An array of an array would share its memory."""
        copy = value + 0
        self.mx.eval(copy)
        return copy

    def eval(self, value: Any) -> None:
        self.mx.eval(value)

    def async_eval(self, value: Any) -> None:
        self.mx.async_eval(value)

    def relative_error(self, result: Any, reference: Callable[..., Any], *inputs: Any) -> float:
        """Float64 exists on MLX's CPU only."""
        mx = self.mx
        with mx.stream(mx.cpu):
            wide = reference(*(value.astype(mx.float64) for value in inputs))
            error = mx.sqrt(mx.mean(mx.square(result.astype(mx.float64) - wide)))
            scale = mx.sqrt(mx.mean(mx.square(wide))).item() or 1.0
            return error.item() / scale

    def from_host(self, values: list[Any]) -> Any:
        return self.mx.array(values, dtype=self.dtype)

    def sampled(self, array: Any) -> Any:
        import numpy as np

        flat = array.reshape(-1)
        return np.array(flat[:: -(-flat.size // SAMPLED_VALUES) or 1].astype(self.mx.float32))

    def repeated_normal(self, count: int) -> Any:
        value = self.mx.tile(self.normal((DRAWN,), 0), -(-count // DRAWN))[:count]
        self.mx.eval(value)
        return value


class MlxFeatures(Features):
    offload = "DeepSpeed, which offloads, has no MLX"
    # Counted on a CPU; a GPU's own kernels for norm and loss keep less. Fitted: the work, because
    # results wait in a queue until they have been computed, the logits of a step that is evaluated
    # as a whole, the update, whose new weights replace the old ones one by one, and checkpointed
    # layers, of which more than one is computed again at a time.
    memory_profile = MemoryProfile(
        stream_fp32=False,
        keeps_norm_input=False,
        keeps_scores=True,
        split_copies=1,
        gelu_saved=3,
        rotated=1,
        angles=2,
        swiglu_saved=4,
        loss_fp32=True,
        casts_stay=True,
        logits=5,
        logits_narrow=1,
        work_d=10,
        work_ff=5,
        work_scores=2,
        recomputed=1.7,
        recomputed_gated=2.4,
        update_all=0.5,
        update_at_once=20,  # MLX_BFS_MAX_WIDTH: where more wait, the evaluator goes depth first
        update_largest=1.5,
        update_two=2.8,
    )
    # tf32 on a GPU: `open` refuses it on a CPU; amp-bf16 by hand, see `describe`.
    precisions = {
        **dict.fromkeys(PRECISIONS),
        "amp-fp16": "MLX has no autocast and no gradient scaler",
    }

    def environment(
        self, index: int, precision: str, inherited: Mapping[str, str]
    ) -> dict[str, str]:
        """Read when MLX is imported; fp32 means fp32, and of NVIDIA's GPUs it sees its own."""
        tf32 = {"MLX_ENABLE_TF32": "1" if precision == "tf32" else "0"}
        return _cuda_driver.only(index, inherited) | tf32

    def cannot_compile(self, device_kind: str) -> str | None:
        """mlx/backend/cpu/jit_compiler.cpp calls g++ by that name."""
        if device_kind != "cpu" or shutil.which("g++"):
            return None
        return "mx.compile needs a C++ compiler on a CPU: g++"

    def emulates_on_cpu(self, dtype: str, system: str) -> bool:
        """mlx/backend/cpu/gemms: Apple's BNNS on a Mac, else loops of its own (`simd_gemm.h`)."""
        return system != "Darwin" and dtype in ("fp16", "bf16")


class Plugin(Backend):
    """mlx"""

    name = "mlx"
    framework = "mlx"
    device_kind = None
    features = MlxFeatures()
    aborts = _metal.ABORTS
    packages = ("mlx",)
    LIBRARIES = ("mlx", "mlx-cpu", "mlx-metal", "mlx-cuda-12", "mlx-cuda-13")

    def import_framework(self) -> None:
        """A fast BLAS is loaded first, as in `available`."""
        blas.load_for_mlx()
        import mlx.core  # noqa: F401

    def available(self) -> tuple[bool, str]:
        """On Linux a fast BLAS is loaded first, see `blas`."""
        try:
            blas.load_for_mlx()
        except ValueError as error:
            return False, str(error)
        try:
            import mlx.core as mx
        except Exception as error:
            return False, f"mlx cannot be imported: {error}"
        return True, f"mlx {metadata.version('mlx')}, default device {mx.default_device()}"

    def identity(self, device_kind: str, index: int) -> dict[str, Any]:
        if device_kind == "cpu":
            return super().identity(device_kind, index)
        import mlx.core as mx

        info = mx.device_info(mx.Device(mx.gpu, self._visible_index(index)))
        facts = {
            "name": info.get("device_name"),
            "memory_bytes": info.get("total_memory", info.get("memory_size")),
            "working_set_bytes": info.get("max_recommended_working_set_size"),  # Metal only
        }
        if "compute_capability_major" in info:  # CUDA only, mlx/backend/cuda/device_info.cpp
            major, minor = (info[f"compute_capability_{part}"] for part in ("major", "minor"))
            facts["compute_capability"] = f"{major}.{minor}"
        return facts

    def n_gpus(self) -> int:
        import mlx.core as mx

        return mx.device_count(mx.gpu)

    def open(self, device_kind: str, index: int, threads: int, precision: str) -> None:
        import mlx.core as mx

        if precision == "tf32" and device_kind == "cpu":
            raise Unsupported("tf32: a GPU format; MLX on a CPU has none")
        self.mx = mx
        self.precision = precision
        place = 0 if device_kind == "cpu" else self._visible_index(index)
        self.device = mx.Device(mx.cpu if device_kind == "cpu" else mx.gpu, place)
        mx.set_default_device(self.device)
        self.dtype = {"fp16": mx.float16, "bf16": mx.bfloat16}.get(precision, mx.float32)
        self.compute_dtype = mx.bfloat16 if precision == "amp-bf16" else self.dtype
        self.clock = clock = MlxClock(mx)
        self.kernels = MlxKernels(mx, self.device, self.dtype)
        self.arrays = MlxArrays(mx, clock, self.dtype, self.compute_dtype)
        self.gpu = {} if self.device.type == mx.cpu else dict(mx.device_info(self.device))
        self.memory = memory = MlxMemory(mx, self.gpu)
        self.profiler = MlxProfiler(mx, bool(self.gpu), memory)
        self.wired_limit_bytes: int | None = None
        self.gpu_address = None
        if self.gpu:
            uuid = str(self.gpu.get("uuid", "unknown to MLX"))
            self.gpu_address = ("apple", "") if mx.metal.is_available() else ("nvidia", uuid)
        if device_kind == "cpu" and mx.cuda.is_available():  # in every build for CUDA
            self.caveat = ("managed_memory", MANAGED)

    def describe(self) -> dict[str, Any]:
        return {
            "framework": "mlx",
            "framework_version": metadata.version("mlx"),  # not every build has `__version__`
            "device": str(self.device),
            "device_name": self.gpu.get("device_name"),
            "wired_limit_bytes": self.wired_limit_bytes,
            "enable_tf32": os.environ.get("MLX_ENABLE_TF32"),
            **(blas.blas_of_mlx() if self.device.type == self.mx.cpu else {"blas": None}),
            "amp_method": "manual: fp32 master weights, bf16 compute, fp32 loss"
            if self.precision == "amp-bf16"
            else None,
        }

    def isolated_calls(self, workload: Any, batch: Any, clock: Any) -> list[_isolated.Call]:
        """By the step's graph, of which nothing is evaluated."""
        return _mlx_isolated.calls(self, workload, batch)

    def stepper(self, workload: Any, seed: int) -> Stepper:
        """On Metal its memory stays resident, as mlx-lm's trainer sets it."""
        mx = self.mx
        if self.device.type == mx.gpu and mx.metal.is_available():
            self.wired_limit_bytes = self.memory.recommended_bytes()
            mx.set_wired_limit(self.wired_limit_bytes)
        return MlxStepper(self, workload, seed)
