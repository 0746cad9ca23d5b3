"""PyTorch on the CPU: eager and synchronous, so the host's clock needs no waiting."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from siliconprof.backends._torch import TorchBackend, compiler
from siliconprof.backends.base import Memory


class CpuMemory(Memory):
    """Which only torch's profiler sees."""

    means = "torch counts no memory on a CPU; the resident set stands for it"
    peak_means = (
        "what stands between steps, and the most that the allocator's events of one more, untimed "
        "step sum to (torch.autograd.profiler)"
    )

    def step_peak_bytes(
        self, step: Callable[[], Any] | None, standing: Sequence[Any]
    ) -> tuple[int | None, str]:
        """The step runs here, once more, under torch's profiler.

        The CPU allocator reports every allocation and release to the profiler. Memory that the
        libraries below torch allocate themselves is not counted.
        """
        from torch.autograd.profiler import profile  # torch.profiler's imports the compiler too

        if step is None:
            return None, "torch counts no memory on a CPU, and this step cannot be repeated alone"
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in standing}
        with profile(profile_memory=True) as profiler:
            step()
        events = profiler.kineto_results.events()
        changes = sorted(
            ((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"),
            key=lambda change: change[0],
        )
        above = max(accumulate((n_bytes for _, n_bytes in changes), initial=0))
        return sum(storages.values()) + above, self.peak_means


class Plugin(TorchBackend):
    """torch-cpu"""

    name = "torch-cpu"
    device_kind = "cpu"
    torch_device = "cpu"
    precisions = {
        **TorchBackend.precisions,
        "tf32": "tf32 is an NVIDIA tensor-core format; a CPU has none",
    }
    attentions = ("math", "flash")  # aten/src/ATen/native/transformers/sdp_utils_cpp.cpp

    @classmethod
    def environment(
        cls, index: int, precision: str, inherited: Mapping[str, str]
    ) -> dict[str, str]:
        """DeepSpeed takes a GPU that it finds when it is imported, unless it is told otherwise."""
        return {"DS_ACCELERATOR": "cpu"}

    @classmethod
    def cannot_compile(cls, device_kind: str) -> str | None:
        """torch/_inductor/config.py says which compiler it takes."""
        usual = "clang++" if sys.platform == "darwin" else "g++"
        wanted = f"torch.compile needs a C++ compiler: {usual}, or one program that CXX names"
        return None if compiler("CXX", usual) else wanted

    def open(self, device_kind: str, index: int, threads: int, precision: str) -> None:
        super().open(device_kind, index, threads, precision)
        self.memory = CpuMemory()

    def describe(self) -> dict[str, Any]:
        capability = self.torch.backends.cpu.get_cpu_capability()
        return super().describe() | {"cpu_capability": capability}
