"""PyTorch on an NVIDIA GPU: phases are read from CUDA events after the step."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from siliconprof.backends._streams import Transfer, torch_transfer
from siliconprof.backends._torch import TorchBackend, refuse
from siliconprof.memory.footprint import UNCHECKED, Habits

EMPTY_KERNEL = 'extern "C" __global__ void siliconprof_empty() {}'


class Plugin(TorchBackend):
    """torch-cuda"""

    name = "torch-cuda"
    device_kind = "gpu"
    torch_device = "cuda"
    time_method = (
        "split steps: CUDA events at phase edges, read after the step; "
        "unsplit steps: perf_counter between two synchronisations"
    )
    # Its AdamW walks all tensors at once; 8 MiB: cuBLAS's default workspace (32 on Hopper), from
    # docs.nvidia.com/cuda/cublas, section 2.1.9, `cublasSetWorkspace`.
    habits = Habits(
        cubes_fp32=True,
        rms_fused=True,  # `_fused_rms_norm` of torch's derivatives.yaml
        update_all=1,
        update_largest=0,
        workspace_bytes=2**23,
        unchecked=UNCHECKED,
    )
    precisions = dict.fromkeys(("fp32", "tf32", "fp16", "bf16", "amp-fp16", "amp-bf16"))
    memory_means = (
        "torch.cuda: allocated = live tensors, reserved = with the allocator's cache, driver = "
        "all that is taken on the GPU (cudaMemGetInfo), other processes included"
    )
    peak_means = "torch.cuda.max_memory_allocated over all steps"
    capture_ranges = ("cuda-profiler",)
    # Seen by others, not documented: forums.developer.nvidia.com/t/68937
    queue_depth = 1000

    @classmethod
    def environment(
        cls, index: int, precision: str, inherited: Mapping[str, str]
    ) -> dict[str, str]:
        """See `Backend.environment`: one GPU and no other, since the Trainer takes all it sees."""
        visible = inherited.get("CUDA_VISIBLE_DEVICES", "")
        names = [name.strip() for name in visible.split(",") if name.strip()]
        return {"CUDA_VISIBLE_DEVICES": names[index] if index < len(names) else str(index)}

    def available(self) -> tuple[bool, str]:
        """See `Backend.available`."""
        try:
            import torch
        except Exception as error:
            return False, f"torch cannot be imported: {error}"
        if torch.version.cuda is None:
            return False, f"torch {torch.__version__} is built without CUDA"
        if not torch.cuda.is_available():
            return False, "torch finds no CUDA device (driver missing, too old, or no GPU)"
        return True, f"torch {torch.__version__}, {torch.cuda.device_count()} CUDA device(s)"

    def identity(self, device_kind: str, index: int) -> dict[str, Any]:
        """See `Backend.identity`; the process sees this one GPU only, see `environment`."""
        import torch

        properties = torch.cuda.get_device_properties(0)
        return {"name": properties.name, "memory_bytes": properties.total_memory}

    def open(self, device_kind: str, index: int, threads: int, precision: str) -> None:
        """See `Backend.open`; the process sees this one GPU only, see `environment`."""
        import torch

        index = 0
        major, minor = torch.cuda.get_device_capability(index)
        reason = None
        if precision == "tf32" and major < 8:
            reason = f"tf32 needs compute capability 8.0, this GPU has {major}.{minor}"
        if precision in ("bf16", "amp-bf16") and major < 8:
            reason = f"bf16 needs compute capability 8.0, this GPU has {major}.{minor}"
        refuse(precision, reason)
        super().open(device_kind, index, threads, precision)
        torch.cuda.set_device(self.device)

    def describe(self) -> dict[str, Any]:
        """See `Backend.describe`."""
        properties = self.torch.cuda.get_device_properties(self.device)
        return super().describe() | {
            "compute_capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "cuda_runtime": self.torch.version.cuda,
            "cudnn": self.torch.backends.cudnn.version(),
        }

    def device_name(self) -> str:
        """The product name that the driver gives."""
        return self.torch.cuda.get_device_name(self.device)

    def synchronize(self) -> None:
        """See `Backend.synchronize`."""
        self.torch.cuda.synchronize(self.device)

    def mark(self) -> Any:
        """An event on the current stream: reading it later perturbs nothing now."""
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, start: Any, end: Any) -> float:
        """See `Backend.seconds_between`; both events are done once the step is synchronised."""
        return start.elapsed_time(end) / 1e3  # the API returns milliseconds

    def memory_bytes(self) -> int:
        """See `Backend.memory_bytes`: live tensors, not the cache."""
        return self.torch.cuda.memory_allocated(self.device)

    def peak_memory_bytes(self) -> int:
        """See `Backend.peak_memory_bytes`."""
        return self.torch.cuda.max_memory_allocated(self.device)

    def reset_peak_memory(self) -> None:
        """See `Backend.reset_peak_memory`."""
        self.torch.cuda.reset_peak_memory_stats(self.device)

    def release_memory(self) -> None:
        """See `Backend.release_memory`."""
        self.torch.cuda.empty_cache()

    def limit_memory(self, limit_bytes: int) -> str:
        """See `Backend.limit_memory`."""
        total = self.torch.cuda.get_device_properties(self.device).total_memory
        share = limit_bytes / total
        if share >= 1:
            return "the GPU's own memory: CUDA raises when it is used up"
        self.torch.cuda.set_per_process_memory_fraction(share, self.device)
        return (
            f"torch.cuda.set_per_process_memory_fraction({share:.4f}): beyond it the allocator "
            "raises; CUDA's own context is not counted"
        )

    def memory_counters(self) -> dict[str, int | None]:
        """See `Backend.memory_counters`."""
        statistics = self.torch.cuda.memory_stats_as_nested_dict(self.device)
        free, total = self.torch.cuda.mem_get_info(self.device)
        return {
            "allocated_bytes": statistics["allocated_bytes"]["all"]["current"],
            "reserved_bytes": statistics["reserved_bytes"]["all"]["current"],
            "driver_bytes": total - free,
        }

    def memory_limit_bytes(self) -> int:
        """See `Backend.memory_limit_bytes`."""
        return self.torch.cuda.mem_get_info(self.device)[1]

    def last_level_cache(self) -> tuple[int | None, str]:
        """See `Backend.last_level_cache`: the GPU's level 2."""
        properties = self.torch.cuda.get_device_properties(self.device)
        size = getattr(properties, "L2_cache_size", None)
        if not size:
            return None, "this torch does not tell the GPU's L2_cache_size"
        return size, "torch.cuda.get_device_properties: L2_cache_size"

    def transfer(
        self, direction: str, pinned: bool, count: int, seed: int
    ) -> tuple[Transfer | None, str]:
        """See `Backend.transfer`."""
        transfer = torch_transfer(self.torch, self.device, direction, pinned, count, seed)
        return transfer, transfer.means

    def gpu_address(self) -> tuple[str, str]:
        """See `Backend.gpu_address`; torch leaves out the prefix that NVML's UUIDs have."""
        uuid = str(self.torch.cuda.get_device_properties(self.device).uuid)
        return "nvidia", uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"

    def capture_range(self, kind: str, path: str) -> AbstractContextManager[Any]:
        """See `Backend.capture_range`: cudaProfilerStart and cudaProfilerStop."""
        return self.torch.cuda.profiler.profile()

    def launch_means(self) -> dict[str, str]:
        """See `Backend.launch_means`.

        Lazy loading and what ends it are described in the CUDA programming guide, section 4.7:
        `cuModuleGetFunction`, which torch calls when it compiles a kernel, loads it.
        """
        loading = os.environ.get("CUDA_MODULE_LOADING", "not set, lazy from CUDA 12.2 on")
        return {
            "enqueue": "the driver's enqueue (cuLaunchKernel), with Python and torch's dispatcher "
            "before it; for the empty kernel Python and ctypes",
            "cold": "the operator comes compiled with torch and, where loading is lazy "
            f"(CUDA_MODULE_LOADING: {loading}), is loaded in it; the empty kernel has been "
            "compiled and loaded before",
        }

    def empty_kernel(self) -> tuple[Callable[[], Any] | None, str]:
        """See `Backend.empty_kernel`. Torch's function that compiles it is private, may vanish."""
        try:
            kernel = self.torch.cuda._compile_kernel(EMPTY_KERNEL, "siliconprof_empty")
        except Exception as error:
            return None, f"torch could not compile an empty CUDA kernel: {error}"
        return (lambda: kernel(grid=(1, 1, 1), block=(1, 1, 1), args=[])), "CUDA, compiled by NVRTC"
