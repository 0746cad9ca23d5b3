"""PyTorch on an Apple GPU: synchronise at every edge and read the host's clock.

MPS events have hung and come out reversed in some versions of torch, so they are not used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from siliconprof.backends._torch import TorchBackend, refuse

EMPTY_KERNEL = "kernel void siliconprof_empty(device float* x) {}"


class Plugin(TorchBackend):
    """torch-mps"""

    name = "torch-mps"
    device_kind = "gpu"
    torch_device = "mps"
    time_method = "torch.mps.synchronize() and perf_counter at phase edges and around steps"
    precisions = {
        "fp32": None,
        "tf32": "tf32 is an NVIDIA tensor-core format; an Apple GPU has none",
        "fp16": None,
        "bf16": None,
        "amp-fp16": None,
        "amp-bf16": None,
    }

    def available(self) -> tuple[bool, str]:
        """See `Backend.available`."""
        try:
            import torch
        except Exception as error:
            return False, f"torch cannot be imported: {error}"
        if not torch.backends.mps.is_built():
            return False, f"torch {torch.__version__} is built without MPS"
        if not torch.backends.mps.is_available():
            return False, "torch finds no Metal GPU (macOS 12.3 or later on Apple silicon)"
        return True, f"torch {torch.__version__}"

    def open(self, device_kind: str, index: int, threads: int, precision: str) -> None:
        """See `Backend.open`; bf16 needs macOS 14."""
        import torch

        if "bf16" in precision and not torch.backends.mps.is_macos_or_newer(14, 0):
            refuse(precision, "bfloat16 on MPS needs macOS 14 or later")
        super().open(device_kind, index, threads, precision)

    def synchronize(self) -> None:
        """See `Backend.synchronize`."""
        self.torch.mps.synchronize()

    def memory_bytes(self) -> int:
        """See `Backend.memory_bytes`: what the Metal driver holds for this process."""
        return self.torch.mps.driver_allocated_memory()

    def empty_kernel(self) -> tuple[Callable[[], Any] | None, str]:
        """See `Backend.empty_kernel`."""
        try:
            library = self.torch.mps.compile_shader(EMPTY_KERNEL)
        except Exception as error:
            return None, f"torch could not compile an empty Metal kernel: {error}"
        one = self.torch.zeros(1, device="mps")
        kernel = library.siliconprof_empty  # looked up once, not in every launch
        return (lambda: kernel(one)), "Metal by torch.mps; the cold launch makes the pipeline too"
