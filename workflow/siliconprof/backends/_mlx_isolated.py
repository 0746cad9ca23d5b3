"""The operators of a training step in MLX of which nothing is computed, and each of them alone.

Weights are one value, repeated by a view; the step's graph is told without evaluating it. What a
primitive is timed on are arrays of its own, seen through the views that it has in the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from statistics import median
from time import perf_counter
from typing import Any

from siliconprof.backends._isolated import SMALL_BYTES, VALUE, Call, ColdMemory, Reuse
from siliconprof.backends._mlx_calls import Primitive, UnknownPrimitive, call
from siliconprof.backends._mlx_operators import VIEWS, MemoryOrder, StepGraph
from siliconprof.backends.base import Unsupported

EVALUATIONS = 200  # whose median is what evaluating costs by itself


def calls(backend: Any, workload: Any, batch: Any) -> list[Call]:
    """See `Backend.isolated_calls`."""
    mx, shapes = backend.mx, workload.weight_shapes()
    workload.initial_weights = lambda seed: (
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
    alone = _Alone(mx, makers, layouts, graph.orders, graph.constants)
    reuse, found = Reuse(), []
    for primitive in graph.primitives:
        if primitive.name in VIEWS:
            continue
        operands = [alone.operand(name) for name in primitive.inputs]
        cold = reuse.cold(operands)
        results = [name for name, *_ in primitive.outputs]
        reuse.used([*operands, *results], primitive.operator.bytes)
        seen = [alone.seen(name) for name in primitive.inputs]
        own = str(primitive.arguments), primitive.operator.inputs, *seen
        whole = {name for name, is_cold in zip(operands, cold, strict=True) if is_cold}

        def timed(one: Primitive = primitive, cold: Any = whole) -> Callable[[], float]:
            return alone.timed(one, cold)

        found.append(Call(primitive.operator, (primitive.name, *own, cold), timed))
    return found


class _Alone:
    """Primitives of a step's graph, each on arrays of its own.

    Args:
        makers: array -> the primitive that makes it.
        layouts: array -> shape, dtype.
        orders: array -> its order in memory where it may not be row by row.
    """

    def __init__(
        self,
        mx: Any,
        makers: Mapping[str, Primitive],
        layouts: Mapping[str, Sequence[Any]],
        orders: Mapping[str, MemoryOrder],
        constants: Mapping[str, Any],
    ) -> None:
        self.mx, self.makers, self.layouts, self.orders = mx, makers, layouts, orders
        self.constants = constants
        self.evaluating_s = cache(self._evaluating_s)
        self.cold_memory = cache(lambda dtype: ColdMemory(partial(self._flat, dtype), dtype.size))

    def _is_view(self, name: str) -> bool:
        return name in self.makers and self.makers[name].name in VIEWS

    def operand(self, name: str) -> str:
        """The array that is seen through views."""
        while self._is_view(name):
            name = self.makers[name].inputs[0]
        return name

    def _laid_out(self, name: str, flat: Any) -> Any:
        """An operand of values in memory."""
        shape, _ = self.layouts[name]
        order = self.orders.get(name) or tuple(range(len(shape)))
        in_memory = flat.reshape([shape[axis] for axis in order])
        return in_memory.transpose([order.index(axis) for axis in range(len(shape))])

    def seen(self, name: str) -> str:
        """The views through which an array is seen, and how it lies in memory, in words."""
        words = []
        while self._is_view(name):
            maker = self.makers[name]
            words.append(f"{maker.name}{maker.arguments}")
            name = maker.inputs[0]
        return f"{' '.join(words)} {name in self.constants} {self.orders.get(name)}"

    def _evaluating_s(self) -> float:
        values, times = self.mx.array([VALUE]), []
        for _ in range(EVALUATIONS):
            view = self.mx.expand_dims(values, 0)
            start = perf_counter()
            self.mx.eval(view)
            times.append(perf_counter() - start)
        return median(times)

    def timed(self, primitive: Primitive, cold: set[str]) -> Callable[[], float]:
        """Measures seconds of a call, less what evaluating costs.

        Args:
            cold: operands that come from memory.
        """
        mx, operands = self.mx, {*map(self.operand, primitive.inputs)}
        cold = {
            name for name in (cold & operands).difference(self.constants) if self._is_large(name)
        }
        kept = {name: self._kept(name) for name in operands - cold}
        mx.eval(list(kept.values()))

        def seconds() -> float:
            made = kept | {name: self._region(name) for name in cold}
            arguments = [self._seen(name, made) for name in primitive.inputs]
            mx.eval(arguments)
            results = call(mx, primitive, arguments)
            start = perf_counter()
            mx.eval(results)
            return perf_counter() - start - self.evaluating_s()

        return seconds

    def _is_large(self, name: str) -> bool:
        shape, dtype = self.layouts[name]
        return bool(math.prod(shape) * dtype.size >= SMALL_BYTES)

    def _flat(self, dtype: Any, n: int) -> Any:
        value = VALUE if self.mx.issubdtype(dtype, self.mx.floating) else 1
        flat = self.mx.full((n,), value, dtype)
        self.mx.eval(flat)
        return flat

    def _kept(self, name: str) -> Any:
        """An operand that is the same in each call."""
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
