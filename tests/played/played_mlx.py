"""MLX's GPU branches over its CPU: `mlx.core` with what a build for Metal has on an M2.

MLX is lazy by itself, and runs what it was handed in threads of its own: a value that nobody waited
for has not been computed. So its clock and its memory are left as they are; the device, its facts,
its limits, its kernels of one's own and its captures are played.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx
import mlx.core as mx

NAME = "Apple M2"


class Metal:
    """What is set on the device, for a test to look at."""

    def __init__(self, memory_bytes: int, recommended_bytes: int) -> None:
        self.default = mx.Device(mx.gpu, 0)
        # mlx/backend/metal/device_info.cpp
        self.info = {
            "device_name": NAME,
            "architecture": "applegpu_g14g",
            "max_buffer_length": recommended_bytes,
            "max_recommended_working_set_size": recommended_bytes,
            "memory_size": memory_bytes,
            "resource_limit": 499_000,
        }
        self.wired_bytes = 0
        self.capturing: str | None = None
        self.real = {name: getattr(mx, name) for name in ("set_default_device", "device_info")}

    def set_default_device(self, device: Any) -> None:
        self.default = device if isinstance(device, mx.Device) else mx.Device(device, 0)
        self.real["set_default_device"](mx.cpu)

    def default_device(self) -> Any:
        return self.default

    def device_info(self, device: Any = None) -> dict[str, Any]:
        device = self.default if device is None else device
        kind = device.type if isinstance(device, mx.Device) else device
        return dict(self.info) if kind == mx.gpu else self.real["device_info"](mx.cpu)

    def set_wired_limit(self, limit: int) -> int:
        """mlx/backend/metal/allocator.cpp."""
        if limit > self.info["max_recommended_working_set_size"]:
            raise ValueError(
                "[metal::set_wired_limit] Setting a wired limit larger than the maximum working set "
                "size is not allowed."
            )
        before, self.wired_bytes = self.wired_bytes, limit
        return before

    def metal_kernel(
        self, name: str, input_names: list[str], output_names: list[str], source: str, **more: Any
    ) -> Callable[..., list[Any]]:
        """A kernel that writes nothing; its outputs are new arrays, lazy as any."""

        def launch(*, inputs: Any, grid: Any, threadgroup: Any, output_shapes: Any, output_dtypes: Any, **more: Any) -> list[Any]:  # fmt: skip
            assert len(inputs) == len(input_names) and len(output_shapes) == len(output_names)
            assert self.default.type == mx.gpu, "[metal_kernel] Only supports the GPU."
            return [mx.zeros(s, d) for s, d in zip(output_shapes, output_dtypes, strict=True)]

        return launch

    def start_capture(self, path: str) -> None:
        if not path.endswith(".gputrace") or Path(path).exists():
            raise RuntimeError(f"[metal::start_capture] Failed to start: {path}")
        self.capturing = path

    def stop_capture(self) -> None:
        assert self.capturing is not None
        Path(self.capturing).mkdir()
        self.capturing = None


metal: Metal


def install(spec: dict[str, Any], module: Any) -> None:
    """Have MLX find the GPU, which is its default device then."""
    global metal
    metal = Metal(spec["memory_bytes"], spec["recommended_bytes"])
    for name in ("set_default_device", "default_device", "device_info", "set_wired_limit"):
        setattr(mx, name, getattr(metal, name))
    mx.device_count = lambda kind=mx.gpu: 1
    mx.metal.is_available = lambda: True
    mx.metal.start_capture, mx.metal.stop_capture = metal.start_capture, metal.stop_capture
    mx.fast.metal_kernel = metal.metal_kernel
    mlx.emulated_device = mx.emulated_device = "played by tests/played"  # that siliconprof reads
