"""Kernels and transfers that are timed by the byte, or by the launch, in torch and in MLX.

The bytes counted are those that a stream reads and writes. On a CPU a store that misses the
cache may read its line first (write-allocate); that traffic cannot be counted from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

SCALE = 0.5  # of the triad, a = b + SCALE * c
SUMMED = 64  # values that a reduction adds up
DRAWN = 1_000_003  # values drawn for a long array; a prime, so that no two parts of it are alike
SAMPLED_VALUES = 2**16  # values that `Arrays.sampled` takes
HOST_TO_DEVICE = "host-to-device"
DEVICE_TO_HOST = "device-to-host"


class Stream(NamedTuple):
    """A kernel that moves many bytes and computes little, in one framework."""

    view: Callable[[Any], Any]  # how it sees a flat array; nothing is copied
    run: Callable[..., Any]  # (into, *views) -> result; `into` is written to where it is used
    reference: Callable[..., Any]  # of the views in float64, see `Arrays.relative_error`
    flops_per_value: int  # of one input
    means: str


class Transfer(NamedTuple):
    """A copy between the host's memory and the device's."""

    launch: Callable[[], Any]  # starts it and returns the array that arrives
    arrived: Callable[[Any], bool]  # whether that equals the array that was sent, bit by bit


def sum_blocks(count: int) -> tuple[int, int, int]:
    """A reduction's shape, whose middle axis is summed: in order in memory, exact enough in 16 bit."""
    return (count // SUMMED**2, SUMMED, SUMMED)


class Kernels(Protocol):
    """Kernels and transfers that are timed by the byte, or by the launch."""

    writes_into: ClassVar[bool] = True  # a `Stream` writes into memory that exists already
    queue_depth: ClassVar[int | None] = None  # launches under way before one waits; None = no end
    # Why a kernel is compiled within its first launch; None = it is compiled before.
    compiles_at_launch: ClassVar[str | None] = None

    def stream(self, kernel: str) -> Stream:
        """This backend's `copy`, `triad` (two arrays in, one out) or `reduction` (sums)."""

    def transfer(
        self, direction: str, pinned: bool, count: int, seed: int
    ) -> tuple[Transfer | None, str]:
        """(a transfer or None, how it is done or why there is none).

        Args:
            direction: `host-to-device` or `device-to-host`.
            count: number of fp32 values.
            pinned: whether the host's memory is page-locked.
        """
        return None, "the device works in the host's memory: there is nothing to transfer"

    def add_one(self, value: Any) -> Any:
        """A trivial operator, handed to the device without waiting: dispatch cost."""

    def empty(self) -> tuple[Callable[[], Any] | None, str]:
        """(a launcher of a compiled, loaded, empty kernel, its kind), or (None, the reason)."""
        return None, "this device launches no kernels of one's own"


class TorchKernels(Kernels):
    """torch's kernels, on a CPU."""

    def __init__(self, torch: Any, device: Any) -> None:
        self.torch, self.device = torch, device

    def stream(self, kernel: str) -> Stream:
        """All write into memory that exists already."""
        torch = self.torch
        return {
            "copy": Stream(
                view=lambda flat: flat,
                run=lambda into, a: into.copy_(a),
                reference=lambda a: a,
                flops_per_value=0,
                means="into.copy_(a)",
            ),
            "triad": Stream(
                view=lambda flat: flat,
                run=lambda into, b, c: torch.add(b, c, alpha=SCALE, out=into),
                reference=lambda b, c: b + SCALE * c,
                flops_per_value=2,
                means=f"torch.add(b, c, alpha={SCALE}, out=into), one pass",
            ),
            "reduction": Stream(
                view=lambda flat: flat.view(sum_blocks(flat.numel())),
                run=lambda into, a: torch.sum(a, 1, out=into.view(a.shape[0], a.shape[2])),
                reference=lambda a: a.sum(1),
                flops_per_value=1,
                means=f"torch.sum(a, 1, out=into), a in blocks of {SUMMED} x {SUMMED}",
            ),
        }[kernel]

    def add_one(self, value: Any) -> Any:
        return value.add_(1)


class TorchGpuKernels(TorchKernels):
    """torch's kernels on a GPU, and transfers."""

    def transfer(
        self, direction: str, pinned: bool, count: int, seed: int
    ) -> tuple[Transfer | None, str]:
        torch, device = self.torch, self.device
        sent = torch.randn(count, generator=torch.Generator().manual_seed(seed))
        if direction == HOST_TO_DEVICE:
            source = sent.pin_memory() if pinned else sent
            into = torch.zeros_like(sent, device=device)
        else:
            source = sent.to(device)
            into = torch.zeros(count, pin_memory=pinned)
        transfer = Transfer(
            launch=lambda: into.copy_(source, non_blocking=pinned),
            arrived=lambda received: torch.equal(received.cpu(), sent),
        )
        return transfer, f"into.copy_(source, non_blocking={pinned}), both exist already"


class MlxKernels(Kernels):
    """MLX's kernels, each of which makes a new array, and an empty one in Metal or CUDA."""

    writes_into = False
    # With more than ten tasks under way `async_eval` waits for one (mlx/transforms.cpp), and a launch
    # is one at most: behind a slow product 20 were handed over at once on a CPU, 30 were not.
    queue_depth = 10
    compiles_at_launch = "MLX does it at the kernel's first launch, which is in compile and load"

    def __init__(self, mx: Any, device: Any, dtype: Any) -> None:
        self.mx, self.device, self.dtype = mx, device, dtype

    def stream(self, kernel: str) -> Stream:
        """Arrays are immutable: each result is a new one, in recycled memory.

        MLX has no plain copy, and the scaling of a triad would be a pass of its own. Their substitutes
        move the same bytes. The copy works on integers: 16-bit floats cost a CPU arithmetic.
        """
        mx = self.mx
        bits = mx.int32 if self.dtype == mx.float32 else mx.int16
        return {
            "copy": Stream(
                view=lambda flat: flat.view(bits),
                run=lambda into, a: -a,
                reference=lambda a: -a,
                flops_per_value=0,
                means="-a of the values' bits as integers, since MLX has no copy: reads n, writes n",
            ),
            "triad": Stream(
                view=lambda flat: flat,
                run=lambda into, b, c: b + c,
                reference=lambda b, c: b + c,
                flops_per_value=1,
                means="b + c (STREAM's add), since scaling is another pass: reads 2 n, writes n",
            ),
            "reduction": Stream(
                view=lambda flat: flat.reshape(sum_blocks(flat.size)),
                run=lambda into, a: a.sum(1),
                reference=lambda a: a.sum(1),
                flops_per_value=1,
                means=f"a.sum(1), a in blocks of {SUMMED} x {SUMMED}",
            ),
        }[kernel]

    def transfer(
        self, direction: str, pinned: bool, count: int, seed: int
    ) -> tuple[Transfer | None, str]:
        import numpy as np

        if self.device.type != self.mx.gpu:
            return super().transfer(direction, pinned, count, seed)
        if pinned:
            return None, "MLX has no page-locked host memory that arrays are copied from or to"
        drawn = self.mx.random.normal((count,), key=self.mx.random.key(seed))
        host = np.array(drawn)

        def arrived(received: Any) -> bool:
            return np.array_equal(np.array(received), host)

        if direction == HOST_TO_DEVICE:
            means = "mx.array(numpy array): a copy into new unified memory"
            return Transfer(lambda: self.mx.array(host), arrived), means
        means = "np.array(mlx array): a copy into new host memory, its page faults included"
        return Transfer(lambda: np.array(drawn), arrived), means

    def add_one(self, value: Any) -> Any:
        """MLX arrays are immutable, so a new one is handed on."""
        result = value + 1
        self.mx.async_eval(result)
        return result

    def empty(self) -> tuple[Callable[[], Any] | None, str]:
        mx = self.mx
        if self.device.type == mx.cpu:
            return None, "MLX on a CPU compiles no kernels of its own to launch"
        metal = mx.metal.is_available()
        make = mx.fast.metal_kernel if metal else mx.fast.cuda_kernel
        # The source is a body, around which MLX generates the signature.
        kernel = make(name="siliconprof_empty", input_names=[], output_names=["out"], source="")

        def launch() -> Any:
            out = kernel(
                inputs=[],
                grid=(1, 1, 1),
                threadgroup=(1, 1, 1),
                output_shapes=[(1,)],
                output_dtypes=[mx.float32],
            )
            mx.async_eval(out)
            return out

        return launch, f"{'Metal' if metal else 'CUDA'}, by mx.fast"
