"""PyTorch on an NVIDIA GPU: phases are read from CUDA events after the step."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from siliconprof.backends import _cuda_driver
from siliconprof.backends._cuda_operators import CudaProfiler
from siliconprof.backends._kernels import TorchGpuKernels
from siliconprof.backends._torch import TorchBackend, TorchClock, TorchFeatures, TorchPart, compiler
from siliconprof.backends.base import Memory
from siliconprof.memory.footprint import MemoryProfile

# cuBLAS's workspaces come out of torch's allocator, one for each handle and stream, and a thread has
# a handle of its own: the forward pass's and autograd's. cuBLASLt uses the same by default. From
# aten/src/ATen/cuda/CublasHandlePool.cpp: `parseChosenWorkspaceSize` (32 MiB on Hopper and
# Blackwell, else ":4096:2:16:8"), `setWorkspaceForHandle`, `unified_cublas_and_lt_workspaces`.
HANDLES = 2
WORKSPACE_BYTES = 2**25
SMALLER_WORKSPACE_BYTES = (2 * 4096 + 8 * 16) * 2**10  # before compute capability 9.0


class CudaClock(TorchClock):
    """CUDA events."""

    means = (
        "split steps: CUDA events at phase edges, read after the step; "
        "whole steps: perf_counter between two synchronisations"
    )
    works_beside = True

    def synchronize(self) -> None:
        self.torch.cuda.synchronize(self.device)

    def mark(self) -> Any:
        """An event on the current stream: reading it later perturbs nothing now."""
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, start: Any, end: Any) -> float:
        """Both events are done once the step is synchronised."""
        return start.elapsed_time(end) / 1e3  # the API returns milliseconds


class CudaMemory(TorchPart, Memory):
    """As torch's caching allocator and the driver count it."""

    means = (
        "torch.cuda: allocated = live tensors, reserved = with the allocator's cache, driver = "
        "all that is taken on the GPU (cudaMemGetInfo), other processes included"
    )
    peak_means = "torch.cuda.max_memory_allocated over all steps, those that compile left out"

    def allocated_bytes(self) -> int:
        return self.torch.cuda.memory_allocated(self.device)

    def peak_bytes(self) -> int:
        return self.torch.cuda.max_memory_allocated(self.device)

    def reset_peak(self) -> None:
        self.torch.cuda.reset_peak_memory_stats(self.device)

    def empty_cache(self) -> None:
        self.torch.cuda.empty_cache()

    def set_limit(self, limit_bytes: int) -> str:
        total = self.torch.cuda.get_device_properties(self.device).total_memory
        share = limit_bytes / total
        if share >= 1:
            return "the GPU's own memory: CUDA raises when it is used up"
        self.torch.cuda.set_per_process_memory_fraction(share, self.device)
        return (
            f"torch.cuda.set_per_process_memory_fraction({share:.4f}): beyond it the allocator "
            "raises; what it reserves counts, CUDA's own context does not"
        )

    def counters(self, driver: bool = True) -> dict[str, int | None]:
        statistics = self.torch.cuda.memory_stats_as_nested_dict(self.device)
        free, total = self.torch.cuda.mem_get_info(self.device) if driver else (0, 0)
        return {
            "allocated_bytes": statistics["allocated_bytes"]["all"]["current"],
            "reserved_bytes": statistics["reserved_bytes"]["all"]["current"],
            "driver_bytes": total - free if driver else None,
        }

    def recommended_bytes(self) -> int:
        return self.torch.cuda.mem_get_info(self.device)[1]

    def last_level_cache(self) -> tuple[int | None, str]:
        properties = self.torch.cuda.get_device_properties(self.device)
        size = getattr(properties, "L2_cache_size", None)
        if not size:
            return None, "this torch does not tell the GPU's L2_cache_size"
        return size, "torch.cuda.get_device_properties: L2_cache_size"


class CudaKernels(TorchGpuKernels):
    """torch's kernels, and an empty one by the driver."""

    # Seen by others, not documented: forums.developer.nvidia.com/t/68937
    queue_depth = 1000

    def empty(self) -> tuple[Callable[[], Any] | None, str]:
        """In torch's own context and on its current stream."""
        self.torch.zeros(1, device=self.device)  # makes the context, if nothing has yet
        stream = self.torch.cuda.current_stream(self.device).cuda_stream
        try:
            return _cuda_driver.empty_kernel(stream), "CUDA, PTX compiled by the driver"
        except (_cuda_driver.CudaError, OSError, AttributeError) as error:
            return None, f"the CUDA driver made no empty kernel: {error}"


class CudaFeatures(TorchFeatures):
    # Its AdamW walks all tensors at once.
    memory_profile = MemoryProfile(
        cubes_fp32=True,
        rms_fused=True,  # `_fused_rms_norm` of torch's derivatives.yaml
        update_all=1,
        update_largest=0,
        workspace_bytes=HANDLES * WORKSPACE_BYTES,
    )
    usual_adamw = "foreach"  # torch/optim/optimizer.py: _default_to_fused_or_foreach
    attentions = ("math", "efficient", "flash", "cudnn")

    def memory_profile_on(self, capability: str | None) -> MemoryProfile:
        """An unknown GPU counts with the larger workspaces."""
        if capability is None or int(capability.split(".")[0]) >= 9:
            return self.memory_profile
        return replace(self.memory_profile, workspace_bytes=HANDLES * SMALLER_WORKSPACE_BYTES)

    def cannot_compile(self, device_kind: str) -> str | None:
        """Triton compiles the launcher of each kernel in C."""
        if find_spec("triton") is None:
            return "torch.compile needs Triton, which torch's CUDA wheels for Linux bring"
        if not compiler("CC", "gcc", "clang"):
            return "Triton needs a C compiler: gcc or clang, or one program that CC names"
        header = Path(sysconfig.get_path("include"), "Python.h")
        return None if header.exists() else f"Triton needs Python's headers: {header} is missing"

    def environment(
        self, index: int, precision: str, inherited: Mapping[str, str]
    ) -> dict[str, str]:
        """One GPU and no other, since the Trainer takes all it sees. A library that asks torch while it
        is imported whether CUDA is there opens nothing, so that the process can be forked.
        """
        return _cuda_driver.only(index, inherited) | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}

    def may_fork(self, device_kind: str) -> bool:
        """torch opens the device at its first use (`torch.cuda._lazy_init`)."""
        return True

    def bad_fork(self) -> bool:
        """The driver says so itself: torch does not know of a library that has called it directly."""
        return not _cuda_driver.initialises()

    def refuses_attention(self, name: str, precision: str, capability: str | None) -> str | None:
        """sdp_utils.cpp has formats and architectures, and the order in which torch takes the kernels by
        default: on Hopper and Blackwell cuDNN's comes first.
        """
        if name not in ("flash", "cudnn"):
            return None
        if "16" not in precision:
            return f"has no kernel for {precision} on CUDA"
        if capability and float(capability) < 8:
            return f"needs compute capability 8.0, this GPU has {capability}"
        return None


class Plugin(TorchBackend):
    """torch-cuda"""

    name = "torch-cuda"
    device_kind = "gpu"
    torch_device = "cuda"
    pins = True
    features = CudaFeatures()

    def _available(self, torch: Any) -> tuple[bool, str]:
        if torch.version.cuda is None:
            return False, f"torch {torch.__version__} is built without CUDA"
        if not torch.cuda.is_available():
            return False, "torch finds no CUDA device (driver missing, too old, or no GPU)"
        return True, f"torch {torch.__version__}, {torch.cuda.device_count()} CUDA device(s)"

    def identity(self, device_kind: str, index: int) -> dict[str, Any]:
        import torch

        properties = torch.cuda.get_device_properties(self._visible_index(index))
        return {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
        }

    def n_gpus(self) -> int:
        import torch

        torch.cuda.init()  # raises with the driver's message where `is_available` only says False
        return torch.cuda.device_count()

    def open(self, device_kind: str, index: int, threads: int, precision: str) -> None:
        import torch

        super().open(device_kind, self._visible_index(index), threads, precision)
        torch.cuda.set_device(self.device)
        self.clock = CudaClock(torch, self.device)
        self.memory = CudaMemory(torch, self.device)
        self.profiler = CudaProfiler(torch.cuda)
        self.kernels = CudaKernels(torch, self.device)
        # NVML's UUID has a prefix that torch leaves out; a slice is known by its name.
        properties = torch.cuda.get_device_properties(self.device)
        uuid = str(getattr(properties, "uuid", ""))
        if uuid and not uuid.startswith(("GPU-", "MIG-")):
            uuid = f"{'MIG' if ' MIG ' in properties.name else 'GPU'}-{uuid}"
        self.gpu_address = ("nvidia", uuid)

    def describe(self) -> dict[str, Any]:
        properties = self.torch.cuda.get_device_properties(self.device)
        return super().describe() | {
            "device_name": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "cuda_runtime": self.torch.version.cuda,
            "cudnn": self.torch.backends.cudnn.version(),
        }
