"""PyTorch on the CPU: eager and synchronous, so the host's clock needs no waiting."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from siliconprof.backends._torch import TorchBackend, TorchFeatures, compiler


class CpuFeatures(TorchFeatures):
    precisions = {
        **TorchFeatures.precisions,
        "tf32": "tf32 is an NVIDIA tensor-core format; a CPU has none",
    }
    attentions = ("math", "flash")  # aten/src/ATen/native/transformers/sdp_utils_cpp.cpp

    def environment(
        self, index: int, precision: str, inherited: Mapping[str, str]
    ) -> dict[str, str]:
        """DeepSpeed takes a GPU that it finds when it is imported, unless it is told otherwise."""
        return {"DS_ACCELERATOR": "cpu"}

    def cannot_compile(self, device_kind: str) -> str | None:
        """torch/_inductor/config.py says which compiler it takes."""
        usual = "clang++" if sys.platform == "darwin" else "g++"
        wanted = f"torch.compile needs a C++ compiler: {usual}, or one program that CXX names"
        return None if compiler("CXX", usual) else wanted


class Plugin(TorchBackend):
    """torch-cpu"""

    name = "torch-cpu"
    device_kind = "cpu"
    torch_device = "cpu"
    features = CpuFeatures()

    def describe(self) -> dict[str, Any]:
        capability = self.torch.backends.cpu.get_cpu_capability()
        return super().describe() | {"cpu_capability": capability}
