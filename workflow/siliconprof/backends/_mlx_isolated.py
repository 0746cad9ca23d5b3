"""The operators of a training step in MLX that is traced and not computed, each timed alone.

Weights are one value, broadcast; the step's graph is read without evaluating it. Each primitive is timed
on arrays of its own, seen through the same views as in the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from time import perf_counter
from typing import Any

from siliconprof.backends._isolated import (
    MAPPED_BYTES,
    SMALL_BYTES,
    VALUE,
    Call,
    ColdMemory,
    Reuse,
    give_memory_back,
)
from siliconprof.backends._mlx_calls import Primitive, UnknownPrimitive, call
from siliconprof.backends._mlx_operators import (
    ELEMENTWISE,
    OPTIMIZER_PHASE,
    VIEWS,
    MemoryOrder,
    StepGraph,
)
from siliconprof.backends.base import Unsupported

# They write into an operand that nothing else uses, the first ones a part of it alone.
PARTLY = {"Scatter", "ScatterAxis", "SliceUpdate"}
IN_PLACE = {*ELEMENTWISE, *PARTLY, "Softmax"}


def calls(backend: Any, workload: Any, batch: Any) -> list[Call]:
    mx, shapes = backend.mx, workload.weights.shapes
    workload.weights.initial = lambda seed: (
        (name, mx.broadcast_to(mx.array(VALUE), shape)) for name, shape in shapes.items()
    )
    stepper = backend.stepper(workload, 0)
    try:
        graph = StepGraph(stepper, stepper.arrays(batch))
    except UnknownPrimitive as error:
        raise Unsupported(str(error)) from None
    makers = {name: one for one in graph.primitives for name, *_ in one.outputs}
    layouts = {name: layout for one in graph.primitives for name, *layout in one.outputs}
    layouts |= graph.inputs | {name: (x.shape, x.dtype) for name, x in graph.constants.items()}
    reuse = Reuse()
    alone = _Alone(mx, makers, layouts, graph.orders, graph.constants, reuse.cache_bytes)
    last = {alone.operand(n): i for i, one in enumerate(graph.primitives) for n in one.inputs}
    spent = [
        {n for n in map(alone.operand, one.inputs) if last[n] == i and n not in graph.kept}
        for i, one in enumerate(graph.primitives)
    ]
    lasting = alone.lasting(graph, spent)
    found = []
    for primitive, own_spent in zip(graph.primitives, spent, strict=True):
        if primitive.name in VIEWS:
            continue
        operands = [alone.operand(name) for name in primitive.inputs]
        cold = reuse.cold(operands)
        results = [name for name, *_ in primitive.outputs]
        reuse.used([*operands, *results], primitive.operator.bytes)
        fresh = not lasting.isdisjoint(results)
        views = [alone.view_text(name) for name in primitive.inputs]
        own = str(primitive.arguments), primitive.operator.inputs, *views
        whole = {name for name, is_cold in zip(operands, cold, strict=True) if is_cold}
        alike = primitive.name, *own, cold, tuple(name in own_spent for name in operands), fresh
        timed = partial(alone.timed, primitive, whole, own_spent, fresh)
        found.append(Call(primitive.operator, alike, timed))
    return found


class _Alone:
    """Times the primitives of a step's graph, each on arrays of its own.

    Args:
        makers: array -> the primitive that makes it.
        layouts: array -> shape, dtype.
        orders: array -> its order in memory where it may not be row by row.
        cache_bytes: of the last level.
    """

    def __init__(
        self,
        mx: Any,
        makers: Mapping[str, Primitive],
        layouts: Mapping[str, Sequence[Any]],
        orders: Mapping[str, MemoryOrder],
        constants: Mapping[str, Any],
        cache_bytes: int,
    ) -> None:
        self.mx, self.makers, self.layouts, self.orders = mx, makers, layouts, orders
        self.constants = constants
        self.cache_bytes = cache_bytes
        self.value = mx.array([VALUE])
        self.cold_memory = cache(lambda dtype: ColdMemory(partial(self._flat, dtype), dtype.size))

    def _is_view(self, name: str) -> bool:
        return name in self.makers and self.makers[name].name in VIEWS

    def operand(self, name: str) -> str:
        """The array below an array's views."""
        while self._is_view(name):
            name = self.makers[name].inputs[0]
        return name

    def lasting(self, graph: StepGraph, spent: Sequence[set[str]]) -> set[str]:
        """Results that live until the optimizer's update, or longer: gradients, moments, weights.

        Their memory is free again when the next step ends, and is returned to the system in between, so that
        their pages fault.

        Args:
            spent: for each primitive, operands that nothing uses later; its result may take their memory.
        """
        first: dict[str, str] = {}  # array -> the one that was first in its memory
        before_update, found = set[str](), set[str]()
        for primitive, own_spent in zip(graph.primitives, spent, strict=True):
            operands, (result, *_) = [*map(self.operand, primitive.inputs)], primitive.outputs[0]
            if primitive.operator.phase == OPTIMIZER_PHASE:
                found |= {first[x] for x in operands if x in before_update}
            else:
                before_update.add(result)
            is_view = primitive.operator.kind == "Reshape"  # one that copies is another kind
            writable = own_spent if primitive.name in IN_PLACE else ()
            reused = [x for x in operands if is_view or x in writable]
            kept = next((x for x in reused if self._bytes(x) == self._bytes(result)), None)
            if primitive.name not in VIEWS:
                first[result] = first.get(kept, kept) if kept else result
        found |= {first[x] for x in map(self.operand, graph.wanted) if x in first}
        return {name for name in found if self._bytes(name) >= MAPPED_BYTES}

    def _laid_out(self, name: str, flat: Any) -> Any:
        """A flat array as the operand, in its order in memory."""
        shape, _ = self.layouts[name]
        order = self.orders.get(name) or tuple(range(len(shape)))
        in_memory = flat.reshape([shape[axis] for axis in order])
        return in_memory.transpose([order.index(axis) for axis in range(len(shape))])

    def view_text(self, name: str) -> str:
        """The views through which an array is seen, and its order in memory."""
        words = []
        while self._is_view(name):
            maker = self.makers[name]
            words.append(f"{maker.name}{maker.arguments}")
            name = maker.inputs[0]
        return f"{' '.join(words)} {name in self.constants} {self.orders.get(name)}"

    def _evaluating_s(self) -> float:
        """Seconds of `mx.eval` itself, measured on a view."""
        view = self.mx.expand_dims(self.value, 0)
        start = perf_counter()
        self.mx.eval(view)
        return perf_counter() - start

    def timed(
        self, primitive: Primitive, cold: set[str], spent: set[str], fresh: bool
    ) -> Callable[[], float]:
        """A function that measures the seconds of a call, less those of `mx.eval` itself.

        Args:
            cold: operands that come from memory.
            spent: those that nothing uses later, so that MLX may write its result there.
            fresh: whether the pages of its result fault.
        """
        mx, operands = self.mx, {*map(self.operand, primitive.inputs)}
        large = {
            name for name in operands.difference(self.constants) if self._bytes(name) >= SMALL_BYTES
        }
        in_memory = {name for name in large if self._bytes(name) >= self.cache_bytes}
        if primitive.name not in PARTLY:
            spent = spent - (cold - in_memory)  # made right before, it would come from a cache
        spent = spent & large
        cold = cold & large - spent
        kept = {name: self._made(name) for name in operands - cold - spent}
        mx.eval(list(kept.values()))

        def seconds() -> float:
            made = kept | {name: self._region(name) for name in cold}
            made |= {name: self._made(name) for name in spent}
            arguments = [self._seen(name, made) for name in primitive.inputs]
            mx.eval(arguments)
            results = call(mx, primitive, arguments)
            del made, arguments  # which MLX would not write into while they are held
            if fresh:
                mx.clear_cache()  # of memory that MLX keeps for the next arrays
                give_memory_back()
            start = perf_counter()
            mx.eval(results)
            took_s = perf_counter() - start
            return took_s - self._evaluating_s()

        return seconds

    def _bytes(self, name: str) -> int:
        shape, dtype = self.layouts[name]
        return int(math.prod(shape) * dtype.size)

    def _flat(self, dtype: Any, n: int) -> Any:
        value = VALUE if self.mx.issubdtype(dtype, self.mx.floating) else 1
        flat = self.mx.full((n,), value, dtype)
        self.mx.eval(flat)
        return flat

    def _made(self, name: str) -> Any:
        """An operand with memory of its own."""
        if name in self.constants:
            return self.constants[name]
        shape, dtype = self.layouts[name]
        return self._laid_out(name, self._flat(dtype, math.prod(shape)))

    def _region(self, name: str) -> Any:
        """An operand that comes from memory."""
        shape, dtype = self.layouts[name]
        flat, start = self.cold_memory(dtype).region(math.prod(shape))
        return self._laid_out(name, flat[start : start + math.prod(shape)])

    def _seen(self, name: str, made: Mapping[str, Any]) -> Any:
        """An operand through its views."""
        if name in made:
            return made[name]
        maker = self.makers[name]
        arrays = [self._seen(one, made) for one in maker.inputs]
        return call(self.mx, maker, arrays)[0]
