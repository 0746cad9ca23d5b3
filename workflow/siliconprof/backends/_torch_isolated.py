"""The operators of a training step in torch that is traced and not computed, each timed alone.

The step runs on fake tensors, which have shapes and no memory. Each operator is timed on real tensors
of the same layouts.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from time import perf_counter
from typing import Any, NamedTuple
from unittest import mock

from siliconprof.backends import _torch_operators
from siliconprof.backends._isolated import (
    MAPPED_BYTES,
    SMALL_BYTES,
    VALUE,
    Call,
    ColdMemory,
    Reuse,
    give_memory_back,
)

BEFORE_UPDATE = 3  # edges of a step's clock: data, forward and backward pass


class TensorLayout(NamedTuple):
    """Shape, strides and dtype of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any


class OperatorCall(NamedTuple):
    """An operator as it was called."""

    function: Any
    leaves: list[Any]  # its arguments, tensors as their layouts
    tree: Any  # how they are nested
    cold: tuple[bool, ...]  # of each tensor


def calls(backend: Any, workload: Any, batch: Any, clock: Any) -> list[Call]:
    import numpy as np

    torch, shapes = backend.torch, workload.weights.shapes
    workload.weights.initial = lambda seed: (  # without memory
        (name, np.broadcast_to(np.float32(0), shape)) for name, shape in shapes.items()
    )
    with fake_tensors(torch):
        stepper = backend.stepper(workload, 0)
        for weight in stepper.trained.values():
            weight.grad = torch.zeros_like(weight)
        stepper.optimizer.step()  # which makes its state
        stepper.optimizer.zero_grad()
        watched = _RecordedStep(clock)
        clock.start(split=True)
        with (
            _torch_operators.watch(watched.see, "cpu"),
            _torch_operators.TorchProfiler("cpu").describe_step(clock) as operators,
        ):
            stepper.step(batch, clock)
            clock.stop()
    found = []
    cold = cache(lambda dtype: ColdMemory(partial(_flat, torch, dtype), dtype.itemsize))
    for index, (operator, seen) in enumerate(zip(operators, watched.seen, strict=True)):
        fresh = index in watched.lasting

        def alone(seen: OperatorCall = seen, fresh: bool = fresh) -> Callable[[], float]:
            return _alone(torch, seen, fresh, cold)

        found.append(Call(operator, (operator.kind, repr(seen.leaves), seen.cold, fresh), alone))
    return found


class _RecordedStep:
    """Records a step's operators as they are called.

    Attributes:
        lasting: indices of operators whose result lives until the optimizer's update, as gradients do.
            It is freed at the step's end, so that its pages fault in every step.
    """

    def __init__(self, clock: Any) -> None:
        self.seen: list[OperatorCall] = []
        self.lasting: set[int] = set()
        self._clock = clock
        self._reuse = Reuse()
        self._makers: dict[int, int] = {}  # memory -> the operator that made it

    def see(self, function: Any, args: Any, kwargs: Any) -> Any:
        from torch.utils._pytree import tree_flatten

        leaves, tree = tree_flatten((args, kwargs))
        operands = [*map(_memory, filter(_is_tensor, leaves))]
        cold = self._reuse.cold(operands)
        updates = self._clock.n_edges >= BEFORE_UPDATE
        if updates:
            self.lasting |= {self._makers[own] for own in operands if own in self._makers}
        result = function(*args, **kwargs)
        made = [x for x in _torch_operators._tensors(result) if _memory(x) not in operands]
        for tensor in made:
            self._makers.pop(_memory(tensor), None)  # an earlier one's
            if not updates and tensor.untyped_storage().nbytes() >= MAPPED_BYTES:
                self._makers[_memory(tensor)] = len(self.seen)
        moved_bytes = _torch_operators._bytes((args, kwargs)) + _torch_operators._bytes(made)
        self._reuse.used([*operands, *map(_memory, made)], moved_bytes)
        own = [
            TensorLayout(tuple(x.shape), tuple(x.stride()), x.dtype) if _is_tensor(x) else x
            for x in leaves
        ]
        self.seen.append(OperatorCall(function, own, tree, cold))
        return result


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "untyped_storage")


def _memory(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


@contextmanager
def fake_tensors(torch: Any) -> Iterator[None]:
    """Make all tensors in here fake, with shapes and no memory; patch what torch does by values."""
    from torch._subclasses import fake_tensor
    from torch.utils import _foreach_utils
    from transformers import masking_utils

    find_texts = masking_utils.find_packed_sequence_indices
    from_numpy = torch.from_numpy

    def writable(array: Any) -> Any:
        """A writable fake tensor in place of an array without memory."""
        real = from_numpy(array)
        return torch.empty(real.shape, dtype=real.dtype) if 0 in array.strides else real

    def one_text(position_ids: Any) -> None:
        """The result for a batch of whole texts, found without looking at values."""
        with suppress(fake_tensor.DataDependentOutputException):
            find_texts(position_ids)

    patches = (
        (masking_utils, "find_packed_sequence_indices", one_text),
        (torch.nn.Module, "to", _converted),
        (torch, "from_numpy", writable),
        # Gradients are clipped together.
        (_foreach_utils, "_foreach_supported_types", [fake_tensor.FakeTensor, torch.nn.Parameter]),
    )
    fake_tensor.log.disabled = True  # what it cannot do is raised, too
    with ExitStack() as patched:
        patched.enter_context(fake_tensor.FakeTensorMode(allow_non_fake_inputs=True))
        for patch in patches:
            patched.enter_context(mock.patch.object(*patch))
        # transformers loads in several threads, which fake tensors do not bear.
        patched.enter_context(mock.patch.dict(os.environ, HF_DEACTIVATE_ASYNC_LOAD="1"))
        patched.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # an array without memory cannot be written to
        yield


def _converted(model: Any, *_: Any, dtype: Any = None, **__: Any) -> Any:
    """`Module.to` for fake weights, whose data cannot be replaced in place."""
    import torch

    made: dict[int, Any] = {}  # tied ones once
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None and dtype not in (None, weight.dtype):
                new = torch.nn.Parameter(weight.detach().to(dtype), weight.requires_grad)
                module._parameters[name] = made.setdefault(id(weight), new)
    return model


def _flat(torch: Any, dtype: Any, n: int) -> Any:
    return torch.full((n,), VALUE if dtype.is_floating_point else 1, dtype=dtype)


def _alone(
    torch: Any, seen: OperatorCall, fresh: bool, cold: Callable[[Any], ColdMemory]
) -> Callable[[], float]:
    """A function that measures the seconds of a call, in which its result is freed again.

    Args:
        fresh: whether the pages of its result fault.
        cold: gives the memory of cold operands by dtype.
    """
    from torch.utils._pytree import tree_unflatten

    is_cold = iter(seen.cold)
    own = [
        _operand(torch, leaf, cold if next(is_cold) else None)
        if isinstance(leaf, TensorLayout)
        else partial(_as_it_is, leaf)
        for leaf in seen.leaves
    ]

    def seconds() -> float:
        args, kwargs = tree_unflatten([of_call() for of_call in own], seen.tree)
        if fresh:
            give_memory_back()
        with torch.no_grad():
            start = perf_counter()
            seen.function(*args, **kwargs)
            return perf_counter() - start

    return seconds


def _as_it_is(value: Any) -> Any:
    return value


def _operand(
    torch: Any, layout: TensorLayout, cold: Callable[[Any], ColdMemory] | None
) -> Callable[[], Any]:
    """A function that returns the tensor for the next call: a cold one is in a new region each time."""
    shape, stride, dtype = layout
    reach = sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) + 1 if all(shape) else 0
    if cold is None or reach * dtype.itemsize < SMALL_BYTES:
        tensor = _flat(torch, dtype, reach).as_strided(shape, stride)
        return partial(_as_it_is, tensor)

    def region() -> Any:
        flat, start = cold(dtype).region(reach)
        return flat.as_strided(shape, stride, start)

    return region
