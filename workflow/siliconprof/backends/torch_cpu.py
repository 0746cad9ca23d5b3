"""PyTorch on the CPU: eager and synchronous, so the host's clock needs no waiting."""

from __future__ import annotations

from typing import Any

from siliconprof.backends._torch import TorchBackend


class Plugin(TorchBackend):
    """torch-cpu"""

    name = "torch-cpu"
    device_kind = "cpu"
    torch_device = "cpu"
    time_method = "perf_counter at phase edges; eager and synchronous, nothing to wait for"
    precisions = {
        "fp32": None,
        "tf32": "tf32 is an NVIDIA tensor-core format; a CPU has none",
        "fp16": None,
        "bf16": None,
        "amp-fp16": None,
        "amp-bf16": None,
    }

    def available(self) -> tuple[bool, str]:
        """See `Backend.available`."""
        try:
            import torch
        except Exception as error:  # a broken install raises more than ImportError
            return False, f"torch cannot be imported: {error}"
        return True, f"torch {torch.__version__}"

    def describe(self) -> dict[str, Any]:
        """See `Backend.describe`; with the instruction set that torch dispatches to."""
        capability = self.torch.backends.cpu.get_cpu_capability()
        return super().describe() | {"cpu_capability": capability}
