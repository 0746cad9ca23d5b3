"""Kernels and transfers that move many bytes and compute little, in torch and in MLX.

The bytes counted are those that an operation reads and writes. On a CPU a store that misses the
cache may read its line first (write-allocate); that traffic cannot be counted from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

SCALE = 0.5  # of the triad, a = b + SCALE * c
SUMMED = 64  # values that a reduction adds up
DRAWN = 1_000_003  # values drawn for a long array; a prime, so that no two parts of it are alike
HOST_TO_DEVICE = "host-to-device"
DEVICE_TO_HOST = "device-to-host"


class Stream(NamedTuple):
    """A kernel that moves many bytes and computes little, in one framework."""

    view: Callable[[Any], Any]  # how it sees a flat array; nothing is copied
    run: Callable[..., Any]  # (into, *views) -> result; `into` is written to where it is used
    reference: Callable[..., Any]  # of the views in float64, see `Backend.relative_error`
    flops_per_value: int  # of one input
    means: str


class Transfer(NamedTuple):
    """A copy between the host's memory and the device's."""

    launch: Callable[[], Any]  # starts it and returns the array that arrives
    arrived: Callable[[Any], bool]  # whether that equals the array that was sent, bit by bit


def sum_blocks(count: int) -> tuple[int, int, int]:
    """A reduction's shape, whose middle axis is summed: in order in memory, exact enough in 16 bit."""
    return (count // SUMMED**2, SUMMED, SUMMED)


def torch_stream(torch: Any, kernel: str) -> Stream:
    """All write into memory that exists already."""
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


def torch_transfer(
    torch: Any, device: Any, direction: str, pinned: bool, count: int, seed: int
) -> tuple[Transfer, str]:
    """For a device with tensors of its own."""
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


def mlx_stream(mx: Any, dtype: Any, kernel: str) -> Stream:
    """Arrays are immutable: each result is a new one, in recycled memory.

    MLX has no plain copy, and the scaling of a triad would be a pass of its own. Their substitutes
    move the same bytes. The copy works on integers: 16-bit floats cost a CPU arithmetic.
    """
    bits = mx.int32 if dtype == mx.float32 else mx.int16
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


def mlx_transfer(mx: Any, direction: str, count: int, seed: int) -> tuple[Transfer, str]:
    import numpy as np

    drawn = mx.random.normal((count,), key=mx.random.key(seed))
    host = np.array(drawn)

    def arrived(received: Any) -> bool:
        return np.array_equal(np.array(received), host)

    if direction == HOST_TO_DEVICE:
        means = "mx.array(numpy array): a copy into new unified memory"
        return Transfer(lambda: mx.array(host), arrived), means
    means = "np.array(mlx array): a copy into new host memory, its page faults included"
    return Transfer(lambda: np.array(drawn), arrived), means
