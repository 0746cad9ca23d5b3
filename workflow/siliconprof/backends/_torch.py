"""What the torch backends share; each device adds its clock, its memory and its kernels."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar

from siliconprof.backends import _isolated, _torch_isolated
from siliconprof.backends._kernels import DRAWN, SAMPLED_VALUES, TorchKernels
from siliconprof.backends._step import Stepper
from siliconprof.backends._torch_operators import TorchProfiler
from siliconprof.backends._torch_stepper import ADAMW, TorchStepper
from siliconprof.backends.base import Arrays, Backend, Clock, Features, Memory
from siliconprof.hosts import caches
from siliconprof.store.cell import PRECISIONS

SDP_KERNELS = {
    "math": "MATH",
    "efficient": "EFFICIENT_ATTENTION",
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}


class TorchPart:
    """A part of a backend on a torch device."""

    def __init__(self, torch: Any, device: Any) -> None:
        self.torch, self.device = torch, device


class TorchClock(TorchPart, Clock):
    """The host's clock, for a CPU."""

    def blocked_autorange(
        self, operation: Callable[[], Any], min_run_time_s: float
    ) -> dict[str, Any]:
        """The Timer itself waits for an accelerator."""
        from torch.utils.benchmark import Timer

        timer = Timer(
            "operation()",
            globals={"operation": operation},
            num_threads=self.torch.get_num_threads(),
        )
        measurement = timer.blocked_autorange(min_run_time=min_run_time_s)
        return {
            "reason": None,
            "min_run_time_s": min_run_time_s,
            "number_per_run": measurement.number_per_run,
            "times_s": [float(seconds) for seconds in measurement.times],
        }


class CpuMemory(Memory):
    """The memory of a CPU, of which only torch's profiler knows."""

    means = "torch counts no memory on a CPU; the resident set stands for it"
    peak_means = (
        "what stands between steps, and the most that the allocator's events of one more, untimed "
        "step sum to (torch.autograd.profiler)"
    )

    def last_level_cache(self) -> tuple[int | None, str]:
        return caches.last_level_bytes()

    def step_peak_bytes(
        self, step: Callable[[], Any] | None, persistent: Sequence[Any]
    ) -> tuple[int | None, str]:
        """The step runs here, once more, under torch's profiler.

        The CPU allocator reports every allocation and release to the profiler. Memory that the
        libraries below torch allocate themselves is not counted.
        """
        from torch.autograd.profiler import profile  # torch.profiler's imports the compiler too

        if step is None:
            return None, "torch counts no memory on a CPU, and this step cannot be repeated alone"
        storages = {
            x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in persistent
        }
        with profile(profile_memory=True) as profiler:
            step()
        events = profiler.kineto_results.events()
        changes = sorted(
            ((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"),
            key=lambda change: change[0],
        )
        above = max(accumulate((n_bytes for _, n_bytes in changes), initial=0))
        return sum(storages.values()) + above, self.peak_means


class TorchArrays(TorchPart, Arrays):
    def __init__(self, torch: Any, device: Any, dtype: Any, autocast: Callable[[], Any]) -> None:
        super().__init__(torch, device)
        self.dtype, self.autocast = dtype, autocast

    def normal(self, shape: Sequence[int], seed: int) -> Any:
        """Drawn on the CPU, so that it is the same on every device."""
        generator = self.torch.Generator().manual_seed(seed)
        drawn = self.torch.randn(*shape, generator=generator)
        return drawn.to(device=self.device, dtype=self.dtype)

    def matmul(self, a: Any, b: Any) -> Any:
        with self.autocast():
            return self.torch.matmul(a, b)

    def vjp(self, a: Any, b: Any, cotangent: Any, forward: bool) -> Callable[[], Any]:
        """Without `forward`, every launch walks one retained graph backwards."""
        torch = self.torch
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()  # the same memory
        if not forward:
            product = torch.matmul(a, b)
            return lambda: torch.autograd.grad(product, (a, b), cotangent, retain_graph=True)

        def launch() -> Any:
            product = torch.matmul(a, b)
            return product.detach(), *torch.autograd.grad(product, (a, b), cotangent)

        return launch

    def copy(self, value: Any) -> Any:
        return value.clone()

    def relative_error(self, result: Any, reference: Callable[..., Any], *inputs: Any) -> float:
        wide = reference(*(value.cpu().double() for value in inputs))
        error = result.cpu() - wide
        scale = float(wide.square().mean().sqrt()) or 1.0
        return float(error.square().mean().sqrt()) / scale

    def from_host(self, values: list[Any]) -> Any:
        return self.torch.tensor(values, dtype=self.dtype).to(self.device)

    def sampled(self, array: Any) -> Any:
        flat = array.detach().reshape(-1)
        return flat[:: -(-flat.numel() // SAMPLED_VALUES) or 1].float().cpu().numpy().copy()

    def repeated_normal(self, count: int) -> Any:
        return self.normal((DRAWN,), 0).repeat(-(-count // DRAWN))[:count]


class TorchFeatures(Features):
    precisions: ClassVar[Mapping[str, str | None]] = dict.fromkeys(PRECISIONS)
    adamws = tuple(ADAMW)


class TorchBackend(Backend):
    """PyTorch on one device."""

    features: Features = TorchFeatures()
    framework = "torch"
    packages: ClassVar[Sequence[str]] = ("torch",)
    LIBRARIES: ClassVar[Sequence[str]] = ("torch", "triton")
    torch_device: ClassVar[str]
    # Whether a batch is copied from page-locked memory: from other memory the host waits for it.
    pins: ClassVar[bool] = False

    def import_framework(self) -> None:
        import torch  # noqa: F401

    def available(self) -> tuple[bool, str]:
        try:
            import torch
        except Exception as error:  # a broken install raises more than ImportError
            return False, f"torch cannot be imported: {error}"
        return self._available(torch)

    def _available(self, torch: Any) -> tuple[bool, str]:
        """`available`, once torch has been imported."""
        return True, f"torch {torch.__version__}"

    def open(self, device_kind: str, index: int, threads: int, precision: str) -> None:
        """TF32 and reduced-precision fp32 are pinned, never a default."""
        import torch

        self.torch = torch
        self.precision = precision
        torch.set_num_threads(threads)
        device = self.torch_device
        self.device = torch.device(device, index) if device == "cuda" else torch.device(device)
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        self.dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision, torch.float32)
        self.autocast_dtype = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}.get(precision)
        self.autocast: Callable[[], Any] = nullcontext  # makes the context of a forward pass
        if self.autocast_dtype:
            self.autocast = partial(torch.autocast, self.device.type, dtype=self.autocast_dtype)
        self.clock = TorchClock(torch, self.device)
        self.memory = CpuMemory()
        self.profiler = TorchProfiler(self.device.type)
        self.kernels = TorchKernels(torch, self.device)
        self.arrays = TorchArrays(torch, self.device, self.dtype, self.autocast)

    def describe(self) -> dict[str, Any]:
        torch = self.torch
        return {
            "framework": "torch",
            "framework_version": torch.__version__,
            "device": str(self.device),
            "device_name": None,
            "threads": torch.get_num_threads(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
            "autocast_dtype": str(self.autocast_dtype) if self.autocast_dtype else None,
        }

    def isolated_calls(self, workload: Any, batch: Any, clock: Any) -> list[_isolated.Call]:
        """By a step on fake tensors, on a CPU."""
        return _torch_isolated.calls(self, workload, batch, clock)

    def choose_attention(self, name: str) -> None:
        """For good, since a process trains one cell."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        self._attention = sdpa_kernel(getattr(SDPBackend, SDP_KERNELS[name]))
        self._attention.__enter__()

    def stepper(self, workload: Any, seed: int) -> Stepper:
        return TorchStepper(self, workload, seed)


def compiler(variable: str, *commands: str) -> bool:
    """Whether the compiler that an environment variable names exists, else one of these commands."""
    own = os.environ.get(variable)
    return any(map(shutil.which, [own] if own else commands))
