"""The operators of a training step in MLX: its graph, and the step run primitive by primitive.

MLX computes a step as one graph, inside of which nothing can be timed. `mx.export_function` tells
every primitive with its arguments, so the step is run again on the same arrays, each primitive
evaluated before the next is built. Evaluating costs 5 to 90 microseconds by itself, as much as for
primitives that only view an array, whose mean is taken off each time. On a GPU that is more than
most primitives last, so there each is run in bursts, see `_bursts`; those of one burst may overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import Any

from siliconprof.backends import _bursts
from siliconprof.backends._mlx_calls import PLAIN_PRIMITIVES, Primitive, UnknownPrimitive, call
from siliconprof.backends._step import Operator
from siliconprof.backends.base import Profiler, Unsupported
from siliconprof.errors import in_one_line

FORWARD, BACKWARD, OTHER_PHASE, OPTIMIZER_PHASE = (
    "forward_s",
    "backward_s",
    "other_s",
    "optimizer_s",
)
# Primitives that compute nothing and copy nothing.
VIEWS = ("Broadcast", "Transpose", "Squeeze", "ExpandDims", "Unflatten", "AsStrided")
# Primitives whose result is laid out in memory as their operands are, if those agree.
ELEMENTWISE = {*PLAIN_PRIMITIVES, "AsType", "Sqrt"} - {"Matmul"}
# An array's axes from the outermost in memory to the innermost; None where it is not dense.
MemoryOrder = tuple[int, ...] | None


class MlxProfiler(Profiler):
    """Lists and times the primitives of a step's graph, without views; the stepper runs them."""

    def __init__(self, mx: Any, on_gpu: bool, memory: Any) -> None:
        self.mx, self.on_gpu, self.memory = mx, on_gpu, memory
        self.watched: list[Any] | None = None  # filled by the step that is under way
        self.describes = False  # whether it lists its operators, else it times them
        self.untimed: str | None = None  # why the operators of this process's step cannot be timed

    def describe_step(self, clock: Any) -> AbstractContextManager[list[Operator]]:
        """The primitives of its graph, views left out."""
        return self._watch(True)

    def time_step(self) -> AbstractContextManager[list[tuple[str, float]]]:
        if self.untimed:
            raise Unsupported(self.untimed)
        return self._watch(False)

    def describe_call(self, launch: Callable[[], Any]) -> list[Operator]:
        """The call returns arrays that are not evaluated yet."""
        from mlx.utils import tree_flatten

        events: list[dict[str, Any]] = []
        try:
            self.mx.export_function(events.append, lambda: [a for _, a in tree_flatten(launch())])
        except (ValueError, RuntimeError) as error:
            raise Unsupported(f"MLX does not tell the call's graph: {in_one_line(error)}") from None
        told = [event for event in events if event["type"] == "primitive"]
        kinds, _ = _kinds(told, _repeats(told))
        return [
            _primitive(event, "", {}, kind).operator
            for event, kind in zip(told, kinds, strict=True)
            if event["name"] not in VIEWS
        ]

    def count_launches(self, step: Callable[[], Any]) -> int | None:
        """The primitives of its graph on that GPU; None where one of them is unknown."""
        if not self.on_gpu:
            return None
        with self._watch(True) as operators:
            step()
        return len(operators) or None

    @contextmanager
    def _watch(self, describes: bool) -> Iterator[list[Any]]:
        """A list that the step inside fills; its memory does not count in the peak."""
        peak_bytes = self.memory.peak_bytes()
        self.watched, self.describes = [], describes
        try:
            yield self.watched
        finally:
            self.watched = None
            self.memory.reset_peak(peak_bytes)


class StepGraph:
    """The graph of a stepper's whole step; raises `UnknownPrimitive` where MLX does not export it."""

    def __init__(self, stepper: Any, arrays: Any) -> None:
        from mlx.utils import tree_flatten, tree_unflatten

        mx = self.mx = stepper.backend.mx
        self._in_bursts = stepper.backend.device.type != mx.cpu
        parameters, state = stepper.parameters, stepper.optimizer.state
        names, values = zip(*tree_flatten([parameters, state, arrays]), strict=True)
        self._results: list[str] = []  # names of what a step leaves behind

        def whole(*values: Any) -> list[Any]:
            step = stepper.whole(*tree_unflatten(list(zip(names, values, strict=True))))
            results = tree_flatten([step.parameters, step.state, step.scalars])
            self._results = [name for name, _ in results]
            gradients = [value for _, value in tree_flatten([step.gradients, step.clipped])]
            return [step.scalars[0], *gradients, *(value for _, value in results)]

        events: list[dict[str, Any]] = []
        high, low = mx.random.state[0].tolist()
        try:
            with _loss_spelled_out(mx):
                mx.export_function(events.append, whole, *values)
        except ValueError as error:  # of what is computed again in the backward pass, for one
            raise UnknownPrimitive(
                f"MLX does not tell the step's graph: {in_one_line(error)}"
            ) from None
        finally:
            mx.random.seed((high << 32) + low)  # tracing has drawn no random numbers
            stepper.optimizer.state = state
            stepper.model.update(parameters)
        parts = {event["type"]: event for event in events if event["type"] != "primitive"}
        self.inputs = {name: layout for name, *layout in parts["inputs"]["inputs"]}
        self.constants = dict(parts["constants"]["constants"])
        outputs = [name for name, *_ in parts["outputs"]["outputs"]]
        clipped = 1 + len(tree_flatten(parameters))
        left = 2 * clipped - 1
        self.wanted = outputs[left:]
        ends = {
            FORWARD: outputs[:1],
            BACKWARD: outputs[1:clipped],
            OTHER_PHASE: outputs[clipped:left],
        }
        told = [event for event in events if event["type"] == "primitive"]
        repeats = _repeats(told)
        kinds, self.orders = _kinds(told, repeats)
        self.primitives = [
            _primitive(event, phase, repeats, kind)
            for event, phase, kind in zip(told, _phases(told, ends), kinds, strict=True)
        ]
        self.operators = [p.operator for p in self.primitives if p.name not in VIEWS]
        self.kept = {*self.wanted, *self.inputs, *self.constants}  # no primitive writes into them

    def run(self, stepper: Any, arrays: Any) -> tuple[list[Any], list[tuple[str, float]]]:
        """([weights, optimizer's state, scalars] after a step, seconds of each operator)."""
        from mlx.utils import tree_flatten, tree_unflatten

        mx = self.mx
        inputs = tree_flatten([stepper.parameters, stepper.optimizer.state, arrays])
        values = [value for _, value in inputs]
        kept = self.kept
        last = {name: i for i, p in enumerate(self.primitives) for name in p.inputs}
        known = dict(zip(self.inputs, values, strict=True)) | self.constants
        times: list[float] = []
        burst_s: dict[tuple[str, ...], float] = {}
        for index, primitive in enumerate(self.primitives):
            arguments = [known[name] for name in primitive.inputs]
            for name in primitive.inputs:  # MLX may write into what is not used again
                if last[name] == index and name not in kept:
                    known.pop(name, None)
            asked = (primitive.name, str(primitive.arguments), primitive.operator.inputs)
            if self._in_bursts and primitive.name not in VIEWS and asked not in burst_s:
                burst_s[asked] = self._burst_s(primitive, arguments)
            made = call(mx, primitive, arguments)
            del arguments
            start = perf_counter()
            mx.eval(made)
            times.append(burst_s.get(asked, 0.0) if self._in_bursts else perf_counter() - start)
            for (name, shape, dtype), array in zip(primitive.outputs, made, strict=True):
                if array.shape != shape or array.dtype != dtype:
                    raise UnknownPrimitive(
                        f"{primitive.name} gives {array.dtype}{list(array.shape)} here"
                    )
                if name in last or name in kept:
                    known[name] = array
        results = zip(self._results, (known[name] for name in self.wanted), strict=True)
        return tree_unflatten(list(results)), self._net(times)

    def _burst_s(self, primitive: Primitive, arguments: Sequence[Any]) -> float:
        """Seconds of a primitive among others like it; building their graph is left out."""

        def burst(calls: int) -> float:
            made = [call(self.mx, primitive, arguments) for _ in range(calls)]
            start = perf_counter()
            self.mx.eval(made)
            return perf_counter() - start

        return _bursts.seconds_each(burst)

    def _net(self, times: Sequence[float]) -> list[tuple[str, float]]:
        """Kind and seconds of each operator, less the cost of `mx.eval` itself.

        That cost scatters by far more than small operators last, so a difference may be negative. Cut off
        at 0, or with the median of the cost, many small operators would sum to a multiple of their time.
        """
        by_primitive = list(zip(self.primitives, times, strict=True))
        views = [seconds for primitive, seconds in by_primitive if primitive.name in VIEWS]
        cost_s = sum(views) / len(views) if views else 0.0
        return [
            (primitive.operator.kind, seconds - cost_s)
            for primitive, seconds in by_primitive
            if primitive.name not in VIEWS
        ]

    def differs(self, stepper: Any, made: Sequence[Any]) -> str | None:
        """How the results of `run` differ from those of the stepper's own step; None where not."""
        from mlx.utils import tree_flatten

        mx, own = self.mx, dict(tree_flatten(stepper.parameters))
        for name, value in tree_flatten(made[0]):
            alike = mx.allclose(value, own[name], rtol=1e-3, atol=1e-5, equal_nan=True)
            if not alike.item():
                return f"run one by one, a step's operators give another {name}"
        return None


@contextmanager
def _loss_spelled_out(mx: Any) -> Iterator[None]:
    """Trace cross entropy as the primitives that it consists of.

    On a GPU `nn.losses.cross_entropy` takes `mx.fast.cross_entropy`, whose primitive
    `mx.export_function` does not know (mlx/export.cpp, PrimitiveFactory).
    """

    def spelled_out(logits: Any, targets: Any) -> Any:
        logits = logits.astype(mx.float32)
        score = mx.take_along_axis(logits, mx.expand_dims(targets, -1), -1).squeeze(-1)
        return mx.logsumexp(logits, -1) - score

    fused, mx.fast.cross_entropy = mx.fast.cross_entropy, spelled_out
    try:
        yield
    finally:
        mx.fast.cross_entropy = fused


def _phases(told: Sequence[Mapping[str, Any]], ends: Mapping[str, Sequence[str]]) -> list[str]:
    """The phase of each primitive: the first whose outputs need its result."""
    maker = {name: i for i, event in enumerate(told) for name, *_ in event["outputs"]}
    phases: dict[int, str] = {}
    for phase, outputs in ends.items():
        needed = [maker[name] for name in outputs if name in maker]
        while needed:
            index = needed.pop()
            if index not in phases:
                phases[index] = phase
                inputs = (name for name, *_ in told[index]["inputs"])
                needed += [maker[name] for name in inputs if name in maker]
    return [phases.get(index, OPTIMIZER_PHASE) for index in range(len(told))]


def _repeats(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Broadcast array -> the array that it repeats."""
    return {e["outputs"][0][0]: e["inputs"][0] for e in told if e["name"] == "Broadcast"}


def _primitive(
    event: Mapping[str, Any], phase: str, repeats: Mapping[str, Any], kind: str
) -> Primitive:
    """A primitive of a phase; of a broadcast operand the array that it repeats is read."""
    name, outputs = event["name"], event["outputs"]
    read = [repeats.get(array[0], array) for array in event["inputs"]]
    texts = [f"{dtype}{list(shape)}".removeprefix("mlx.core.") for _, shape, dtype in read]
    moved = sum(math.prod(s) * t.size for _, s, t in (*read, *outputs))
    shapes = [shape for _, shape, _ in event["inputs"]]
    flops = _flops(name, shapes, outputs[0][1])
    operator = Operator(kind, "", phase, " ".join(texts), flops, moved)
    inputs = [name for name, *_ in event["inputs"]]
    return Primitive(name, event["arguments"], inputs, outputs, operator)


def _kinds(
    told: Sequence[Mapping[str, Any]], repeats: Mapping[str, Any]
) -> tuple[list[str], dict[str, MemoryOrder]]:
    """(kind of each primitive, array -> its order in memory where it may not be row by row).

    A primitive's kind is its name, but where MLX's loops on a CPU depend on more than its sizes. A
    weight's gradient is transposed, and so is what is computed of it element by element; adding that to
    a moment, which is not, takes sixteen times as long as adding two that are laid out alike. A dilated
    convolution takes plain loops, others are products: 2 against 50 GFLOP/s.
    """
    orders: dict[str, MemoryOrder] = {}

    def order(array: Sequence[Any]) -> MemoryOrder:
        name, shape, _ = array
        return orders.get(name, tuple(range(len(shape))))

    def dense(array: Sequence[Any]) -> MemoryOrder:
        """Its order without axes of one element, which lie anywhere."""
        found = order(array)
        return found and tuple(axis for axis in found if array[1][axis] > 1)

    def kind(event: Mapping[str, Any]) -> str:
        name, arguments, inputs = event["name"], event["arguments"], event["inputs"]
        result, *_ = event["outputs"][0]
        if name == "Transpose":
            axes, seen = list(arguments[0]), order(inputs[0])
            orders[result] = seen and tuple(map(axes.index, seen))
        elif name == "AsStrided":
            orders[result] = None
        elif name in ELEMENTWISE:
            whole = [x for x in inputs if math.prod(repeats.get(x[0], x)[1]) > 1]
            if len(set(map(dense, whole))) > 1:
                return f"{name}, unlike strides"
            if whole and order(whole[0]):
                orders[result] = order(whole[0])
        elif name == "Reshape":
            seen = dense(inputs[0])
            if seen is None or list(seen) != sorted(seen):
                return "Reshape, copied"
        elif name == "Convolution" and any(n != 1 for dilation in arguments[3:5] for n in dilation):
            return "Convolution, dilated"
        return name

    return [kind(event) for event in told], orders


def _flops(name: str, shapes: Sequence[Sequence[int]], result: Sequence[int]) -> int | None:
    """A multiplication and an addition for each term of a product; None of other primitives."""
    if name in ("Matmul", "AddMM"):
        return 2 * math.prod(result) * shapes[0][-1]
    if name == "Convolution":  # the weight: output channels, then all that one result is summed of
        return 2 * math.prod(result) * math.prod(shapes[1][1:])
    return None
