"""Tensors of a simulated device in torch: a wrapper that says where it is and holds a CPU tensor.

An operator on one comes to the device, and as a `Call` it is computed on the CPU. There is one
kind of simulated device in a process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import setitem
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from device import Timeline
from torch.utils._pytree import tree_map

# Operators that take tensors of the host beside those of the device
MIXED = ("copy_", "_to_copy", "index", "index_put_", "_foreach_copy_", "_index_put_impl_")
# ... and those for whose result the host waits: only the device knows its size or its value
WAITED = ("nonzero", "masked_select", "_unique2", "_local_scalar_dense", "equal")
COPIES = ("copy_", "_to_copy")
SAME_MEMORY = ("detach", "alias", "_unsafe_view")


class Device(Protocol):
    """The one device of the process."""

    place: torch.device
    line: Timeline
    held: WeakValueDictionary[int, Any]  # its memory, by the CPU storage below

    def allocate(self, n_bytes: int) -> Any:
        """Memory that goes back when nothing refers to it, or torch's own error."""

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator."""


device: Device  # set by `install`


class Played(torch.Tensor):
    """A tensor on a simulated device: `inner` on the CPU, `memory` on the device."""

    inner: torch.Tensor
    memory: Any

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def of(inner: torch.Tensor) -> Played:
        """A tensor on the device; a view of another shares its memory."""
        storage = inner.untyped_storage()
        memory = device.held.get(storage._cdata)
        if memory is None and storage.nbytes():
            memory = device.held[storage._cdata] = device.allocate(storage.nbytes())
        made = torch.Tensor._make_wrapper_subclass(
            Played,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=device.place,
        )
        made.inner, made.memory = inner, memory
        return made

    def untyped_storage(self) -> Any:
        """The host's memory below: whoever asks wants to know which tensors share theirs."""
        return self.inner.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return device.run(func, args, dict(kwargs or {}))


class Call:
    """An operator's call with at least one tensor of a device, or that makes such a tensor.

    Attributes:
        args, kwargs: as the CPU computes it.
        given: the tensors of the device, by id of the CPU's.
        hosts: those of the host.
        to_host: whether the result is the host's.
        moved_bytes: of the device's tensors that it takes, and of those that it makes.
        waited: whether the host reads something of the result.

    Raises:
        RuntimeError: torch's own, for tensors of host and device.
    """

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func, self.name = func, func.overloadpacket.__name__
        self.given: dict[int, Played] = {}
        self.hosts: list[torch.Tensor] = []
        self.moved_bytes = 0
        self.waited = self.name in WAITED
        self.into = args[0] if args else None
        self.args, self.kwargs = tree_map(self._unwrapped, args), tree_map(self._unwrapped, kwargs)
        if self.given and any(host.dim() for host in self.hosts) and self.name not in MIXED:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{device.place} and cpu!"
            )
        self.kwargs.pop("pin_memory", None)
        asked = self.kwargs.get("device")
        if asked is not None:
            self.kwargs["device"] = torch.device("cpu")
            self.to_host = torch.device(asked).type == "cpu"
        else:
            self.to_host = self.name == "copy_" and not isinstance(self.into, Played)

    def _unwrapped(self, value: Any) -> Any:
        if isinstance(value, Played):
            self.given[id(value.inner)] = value
            self.moved_bytes += value.inner.nbytes
            return value.inner
        if isinstance(value, torch.Tensor):
            self.hosts.append(value)
        return value

    @property
    def copies(self) -> bool:
        """Whether it moves values between host and device."""
        return self.name in COPIES and (bool(self.hosts) or self.to_host)

    @property
    def launches(self) -> bool:
        """Whether the device has anything to do."""
        return not self.func.is_view and self.name not in SAME_MEMORY

    def compute(self) -> Any:
        """What it makes, on the CPU."""
        return self.func(*self.args, **self.kwargs)

    def wrapped(self, result: Any) -> Any:
        """The result as tensors on the device; what is written in place stays the same object."""

        def wrap(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                self.waited |= isinstance(value, bool | int | float)
                return value
            if (mine := self.given.get(id(value))) is not None:
                return mine
            self.moved_bytes += value.nbytes
            return Played.of(value)

        return tree_map(wrap, result)


def made(make: Callable[[], torch.Tensor]) -> Played:
    """A new tensor on the device, of a maker of the CPU's; all other factories fill one of these."""
    with device.line.computing():
        return Played.of(make())


def install(key: str, of: Device, attention: Callable[..., Any]) -> None:
    """Have torch make tensors of the device, and mark them as simulated.

    Args:
        key: its dispatch key.
        attention: on the device, with the arguments of torch's own.
    """
    global device
    device = of
    torch.simulated_device = "simulated by tests/simulated"  # the mark that siliconprof reads
    # A parameter that moves to the device stays the same object, as where its data is set.
    torch.__future__.set_swap_module_params_on_conversion(True)

    # What a device computes takes one thread of the host: two would wait for each other on busy
    # cores, thousands of times.
    threads = [torch.get_num_threads()]
    torch.set_num_threads(1)
    torch.set_num_threads, torch.get_num_threads = partial(setitem, threads, 0), lambda: threads[0]

    def empty(size: Any, *, dtype=None, memory_format=None, **more: Any) -> Played:
        order = memory_format or torch.contiguous_format
        return made(lambda: torch.empty(size, dtype=dtype, memory_format=order))

    def empty_strided(size: Any, stride: Any, *, dtype=None, **more: Any) -> Played:
        return made(lambda: torch.empty_strided(size, stride, dtype=dtype))

    def copy(to: Any, source: Any, non_blocking: bool = False) -> Any:
        return of.run(torch.ops.aten.copy_.default, (to, source, non_blocking), {})

    kernels.impl("empty.memory_format", empty, key)
    kernels.impl("empty_strided", empty_strided, key)
    kernels.impl("copy_", copy, key)  # torch.tensor copies without asking a wrapper
    hosts_own = torch.nn.functional.scaled_dot_product_attention

    def attend(query: Any, *given: Any, **more: Any) -> Any:
        own = attention if isinstance(query, Played) else hosts_own
        return own(query, *given, **more)

    torch.nn.functional.scaled_dot_product_attention = attend


kernels = torch.library.Library("aten", "IMPL")
