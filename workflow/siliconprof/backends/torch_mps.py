"""PyTorch on an Apple GPU: synchronise at every edge and read the host's clock.

MPS events have hung and come out reversed in some versions of torch, so they are not used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from siliconprof.backends import _metal
from siliconprof.backends._kernels import TorchGpuKernels, Transfer
from siliconprof.backends._torch import TorchBackend, TorchClock, TorchFeatures, TorchPart
from siliconprof.backends._torch_operators import MpsProfiler
from siliconprof.backends.base import Memory, Unsupported
from siliconprof.memory.footprint import MemoryProfile

COUNTS_SINCE = (2, 13)  # of torch, whose allocator on MPS counts a peak from then on
# torch's limit counts whole heaps, used or not: one of each kind may be empty but for one array.
# kXLargeHeap, kLargeHeap and kSmallHeap of aten/src/ATen/mps/MPSAllocator.h.
HEAPS_BYTES = 2**30 + 2**25 + 2**23
EMPTY_KERNEL_SOURCE = "kernel void siliconprof_empty(device float* x) {}"


class MpsClock(TorchClock):
    means = "torch.mps.synchronize() and perf_counter at phase edges and around steps"
    works_beside = True

    def synchronize(self) -> None:
        self.torch.mps.synchronize()


class MpsMemory(TorchPart, Memory):
    """As torch's allocator and Metal count it."""

    means = (
        "torch.mps: allocated = live tensors, driver = all that Metal holds for this process; the "
        "limit is recommended_max_memory()"
    )
    peak_means = (
        "torch.accelerator.max_memory_allocated over all steps, those that compile left out"
    )
    _earlier_bytes = 0

    def allocated_bytes(self) -> int:
        return self.torch.mps.current_allocated_memory()

    def peak_bytes(self) -> int:
        """The count that `current_allocated_memory` reads."""
        peak_bytes = self.torch.accelerator.memory_stats()["allocated_bytes.all.peak"]
        return max(self._earlier_bytes, peak_bytes)

    def reset_peak(self, earlier_bytes: int = 0) -> None:
        """An earlier peak that still counts may be given."""
        self._earlier_bytes = earlier_bytes
        self.torch.accelerator.reset_peak_memory_stats()

    def empty_cache(self) -> None:
        self.torch.mps.empty_cache()

    def set_limit(self, limit_bytes: int) -> str:
        """A share of Metal's recommended working-set size, of which torch takes at most twice."""
        share = min((limit_bytes + HEAPS_BYTES) / self.torch.mps.recommended_max_memory(), 2.0)
        self.torch.mps.set_per_process_memory_fraction(share)
        return (
            f"torch.mps.set_per_process_memory_fraction({share:.4f}) of Metal's recommended "
            "working-set size: beyond it the allocator raises; it counts whole heaps of "
            f"{HEAPS_BYTES / 2**20:.0f} MiB together, one of each kind, so it is that much more"
        )

    def counters(self, driver: bool = True) -> dict[str, int | None]:
        """torch.mps has no count of what it reserved."""
        return {
            "allocated_bytes": self.torch.mps.current_allocated_memory(),
            "driver_bytes": self.torch.mps.driver_allocated_memory() if driver else None,
        }

    def recommended_bytes(self) -> int:
        return self.torch.mps.recommended_max_memory()


class MpsKernels(TorchGpuKernels):
    """torch's kernels, and an empty one in Metal."""

    def transfer(
        self, direction: str, pinned: bool, count: int, seed: int
    ) -> tuple[Transfer | None, str]:
        """Pinned memory differs from CUDA's, so it is not timed.

        Some versions of torch return a tensor on the GPU for it (pytorch issue 181374); later
        ones return a view of memory that host and GPU share.
        """
        if pinned:
            return None, "memory is unified: torch-mps has no page-locked memory as CUDA has"
        return super().transfer(direction, pinned, count, seed)

    def empty(self) -> tuple[Callable[[], Any] | None, str]:
        """Looking a kernel up by its name makes its pipeline."""
        try:
            library = self.torch.mps.compile_shader(EMPTY_KERNEL_SOURCE)
        except Exception as error:
            return None, f"torch could not compile an empty Metal kernel: {error}"
        one = self.torch.tensor([0.0]).to(self.device)  # copied: no kernel runs for it
        kernel = library.siliconprof_empty  # looked up once, not in every launch
        return (lambda: kernel(one)), "Metal, compiled by torch.mps.compile_shader"


class MpsFeatures(TorchFeatures):
    offload = "the device's memory is the host's: there is nothing to offload to"
    # Attention that trains is not fused there; counted on a CPU with attention of that kind.
    memory_profile = MemoryProfile(
        keeps_scores=True, scores_fp32=True, cubes_fp32=True, work_scores=2
    )
    precisions = {
        **TorchFeatures.precisions,
        "tf32": "tf32 is an NVIDIA tensor-core format; an Apple GPU has none",
    }


class Plugin(TorchBackend):
    """torch-mps"""

    name = "torch-mps"
    device_kind = "gpu"
    torch_device = "mps"
    features = MpsFeatures()
    gpu_address = ("apple", "")
    compile_caveat = (
        "torch.compile for Apple's GPUs is young: what it cannot do yet is in "
        "github.com/pytorch/pytorch/issues/150121"
    )
    aborts = _metal.ABORTS

    def _available(self, torch: Any) -> tuple[bool, str]:
        if not torch.backends.mps.is_built():
            return False, f"torch {torch.__version__} is built without MPS"
        if not torch.backends.mps.is_available():
            return False, "torch finds no Metal GPU (macOS 12.3 or later on Apple silicon)"
        if tuple(map(int, torch.__version__.split(".")[:2])) < COUNTS_SINCE:
            return (
                False,
                f"torch {torch.__version__} counts no memory on MPS: pip install torch==2.13.0",
            )
        return super()._available(torch)

    def identity(self, device_kind: str, index: int) -> dict[str, Any]:
        import torch

        recommended = {"working_set_bytes": int(torch.mps.recommended_max_memory())}
        return super().identity(device_kind, index) | recommended

    def n_gpus(self) -> int:
        works, reason = self.available()
        if not works:
            raise RuntimeError(reason)
        return 1

    def open(self, device_kind: str, index: int, threads: int, precision: str) -> None:
        import torch

        if "bf16" in precision and not torch.backends.mps.is_macos_or_newer(14, 0):
            raise Unsupported(f"{precision}: bfloat16 on MPS needs macOS 14 or later")
        super().open(device_kind, index, threads, precision)
        self.clock = MpsClock(torch, self.device)
        self.memory = MpsMemory(torch, self.device)
        self.profiler = MpsProfiler(self.clock, self.memory)
        self.kernels = MpsKernels(torch, self.device)
