"""MLX's GPU branches over its CPU: `mlx.core` with what a build for Metal or for CUDA has.

MLX is lazy by itself, and runs what it was handed in threads of its own: a value that nobody waited
for has not been computed. So its clock and its memory are left as they are; the device, its facts,
its limits and its kernels of one's own are simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx
import mlx.core as mx
import nvidia
from device import H200


class Gpu:
    """The GPU, and what is set on it.

    Attributes:
        info: what the build tells of it; None where it is hidden.
    """

    def __init__(self, info: dict[str, Any] | None) -> None:
        self.info = info
        self.default = mx.Device(mx.gpu, 0)
        self.wired_bytes = 0
        self.real_set_default_device, self.real_device_info = mx.set_default_device, mx.device_info

    def set_default_device(self, device: Any) -> None:
        self.default = device if isinstance(device, mx.Device) else mx.Device(device, 0)
        self.real_set_default_device(mx.cpu)

    def device_info(self, device: Any = None) -> dict[str, Any]:
        device = self.default if device is None else device
        kind = device.type if isinstance(device, mx.Device) else device
        return dict(self.info or {}) if kind == mx.gpu else self.real_device_info(mx.cpu)

    def kernel(
        self, name: str, input_names: list[str], output_names: list[str], source: str, **more: Any
    ) -> Callable[..., list[Any]]:
        """A kernel that writes nothing; its outputs are new arrays, lazy as any."""

        def launch(*, inputs: Any, grid: Any, threadgroup: Any, output_shapes: Any, output_dtypes: Any, **more: Any) -> list[Any]:  # fmt: skip
            assert len(inputs) == len(input_names) and len(output_shapes) == len(output_names)
            assert self.default.type == mx.gpu, "a kernel of one's own only supports the GPU"
            return [mx.zeros(s, d) for s, d in zip(output_shapes, output_dtypes, strict=True)]

        return launch

    def set_wired_limit(self, limit: int) -> int:
        """mlx/backend/metal/allocator.cpp, which raises for a limit beyond the working set."""
        assert self.info and limit <= self.info["max_recommended_working_set_size"]
        before, self.wired_bytes = self.wired_bytes, limit
        return before

    def install(self) -> None:
        """Have MLX find the GPU, which is its default device then."""
        for name in ("set_default_device", "device_info"):
            setattr(mx, name, getattr(self, name))
        mx.default_device = lambda: self.default
        mx.device_count = lambda kind=mx.gpu: int(self.info is not None)
        mlx.simulated_device = mx.simulated_device = (
            "simulated by tests/simulated"  # siliconprof reads it
        )


def install(spec: dict[str, Any], module: Any) -> None:
    """Have MLX find the GPU of `spec`."""
    if "recommended_bytes" not in spec:  # mlx/backend/cuda/device_info.cpp
        info = {
            "device_name": H200.name,
            "uuid": f"GPU-{nvidia.UUID}",
            "compute_capability_major": H200.capability[0],
            "compute_capability_minor": H200.capability[1],
            "total_memory": H200.memory_bytes,
        }
        gpu = Gpu(info if nvidia.visible() else None)
        gpu.install()
        mx.cuda.is_available = lambda: True
        mx.fast.cuda_kernel = gpu.kernel
        return
    info = {
        "device_name": "Apple M2",
        "max_recommended_working_set_size": spec["recommended_bytes"],
        "memory_size": spec["memory_bytes"],
    }
    gpu = Gpu(info)
    gpu.install()
    mx.set_wired_limit = gpu.set_wired_limit
    mx.metal.is_available = lambda: True
    mx.fast.metal_kernel = gpu.kernel
