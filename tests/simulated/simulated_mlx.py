"""MLX's GPU branches over its CPU: `mlx.core` with what a build for Metal or for CUDA has.

MLX is lazy by itself, and runs what it was handed in threads of its own: a value that nobody waited
for has not been computed. So its clock and its memory are left as they are; the device, its facts,
its limits, its kernels of one's own, and its loss are simulated.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import mlx
import mlx.core as mx
import nvidia


class Gpus:
    """The GPUs, and what is set on them.

    Attributes:
        infos: by index, what the build tells of a GPU.
        lost_in: a function of the package in which the device is lost; None = it never is.
    """

    LOST: str
    LOST_AGAIN: str

    def __init__(self, infos: list[dict[str, Any]], lost_in: str | None) -> None:
        self.infos = infos
        self.default = mx.Device(mx.gpu, 0)
        self.lost_in, self.lost = lost_in, False
        self.real = {
            name: getattr(mx, name)
            for name in ("set_default_device", "device_info", "eval", "async_eval", "synchronize")
        }

    def set_default_device(self, device: Any) -> None:
        self.default = device if isinstance(device, mx.Device) else mx.Device(device, 0)
        self.real["set_default_device"](mx.cpu)

    def default_device(self) -> Any:
        return self.default

    def device_info(self, device: Any = None) -> dict[str, Any]:
        device = self.default if device is None else device
        kind = device.type if isinstance(device, mx.Device) else device
        if kind != mx.gpu:
            return self.real["device_info"](mx.cpu)
        number = re.search(r"\d+", str(device)) if isinstance(device, mx.Device) else None
        return dict(self.infos[int(number[0]) if number else 0])

    def kernel(
        self, name: str, input_names: list[str], output_names: list[str], source: str, **more: Any
    ) -> Callable[..., list[Any]]:
        """A kernel that writes nothing; its outputs are new arrays, lazy as any."""

        def launch(*, inputs: Any, grid: Any, threadgroup: Any, output_shapes: Any, output_dtypes: Any, **more: Any) -> list[Any]:  # fmt: skip
            assert len(inputs) == len(input_names) and len(output_shapes) == len(output_names)
            assert self.default.type == mx.gpu, "a kernel of one's own only supports the GPU"
            return [mx.zeros(s, d) for s, d in zip(output_shapes, output_dtypes, strict=True)]

        return launch

    def checked(self, name: str) -> Callable[..., None]:
        """A call that raises where the device is lost."""

        def call(*values: Any) -> None:
            if self.lost:
                raise RuntimeError(self.LOST_AGAIN)
            self.real[name](*values)
            frame = sys._getframe() if self.lost_in else None
            while frame is not None and not self.lost:
                self.lost = frame.f_code.co_name == self.lost_in
                frame = frame.f_back
            if self.lost:
                raise RuntimeError(self.LOST)

        return call

    def install(self) -> None:
        """Have MLX find the GPUs, the first of which is its default device then."""
        for name in ("set_default_device", "default_device", "device_info"):
            setattr(mx, name, getattr(self, name))
        for name in ("eval", "async_eval", "synchronize"):
            setattr(mx, name, self.checked(name))
        mx.device_count = lambda kind=mx.gpu: len(self.infos)
        mlx.emulated_device = mx.emulated_device = (
            "simulated by tests/simulated"  # siliconprof reads it
        )


class Cuda(Gpus):
    """NVIDIA's: mlx/backend/cuda/device_info.cpp, and errors as cuda/utils.cpp words them."""

    LOST = LOST_AGAIN = "cudaStreamSynchronize(stream_) failed: unspecified launch failure"

    def install(self) -> None:
        super().install()
        mx.cuda.is_available = lambda: True
        mx.fast.cuda_kernel = self.kernel


class Metal(Gpus):
    """A Mac's: mlx/backend/metal, whose errors are those of command buffers."""

    FAILED = "[METAL] Command buffer execution failed: "
    LOST = f"{FAILED}Caused GPU Hang Error (00000003:kIOGPUCommandBufferCallbackErrorHang)."
    LOST_AGAIN = (
        f"{FAILED}Ignored (for causing prior/excessive GPU errors) "
        "(00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)."
    )
    wired_bytes = 0

    def set_wired_limit(self, limit: int) -> int:
        """mlx/backend/metal/allocator.cpp."""
        if limit > self.infos[0]["max_recommended_working_set_size"]:
            raise ValueError(
                "[metal::set_wired_limit] Setting a wired limit larger than the maximum working set "
                "size is not allowed."
            )
        before, self.wired_bytes = self.wired_bytes, limit
        return before

    def install(self) -> None:
        super().install()
        mx.set_wired_limit = self.set_wired_limit
        mx.metal.is_available = lambda: True
        mx.fast.metal_kernel = self.kernel


def install(spec: dict[str, Any], module: Any) -> None:
    """Have MLX find the GPUs of `spec`."""
    lost_in = spec.get("lost_in")
    if "gpus" in spec:
        seen = nvidia.cards(spec)
        infos: list[dict[str, Any]] = [
            {
                "device_name": card.name,
                "uuid": uuid,
                "architecture": "sm_{}{}".format(*card.capability),
                "pci_bus_id": f"0000:{index + 1:02x}:00.0",
                "compute_capability_major": card.capability[0],
                "compute_capability_minor": card.capability[1],
                "free_memory": card.memory_bytes - card.context_bytes,
                "total_memory": card.memory_bytes,
            }
            for index, (card, uuid) in enumerate(seen)
        ]
        Cuda(infos, lost_in).install()
        return
    recommended = spec["recommended_bytes"]
    info = {
        "device_name": "Apple M2",
        "architecture": "applegpu_g14g",
        "max_buffer_length": recommended,
        "max_recommended_working_set_size": recommended,
        "memory_size": spec["memory_bytes"],
        "resource_limit": 499_000,
    }
    Metal([info], lost_in).install()
