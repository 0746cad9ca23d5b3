"""The operators of a training step in torch: their modules, their operands, how long they take.

A dispatch mode sees every operator below autograd; views, which move nothing, are left out, as is on a
GPU what works in the host's memory alone. Hooks find an operator's module: in the forward pass the
innermost that runs, in the backward pass the one in which its autograd node was made, or whose
weight's gradient it accumulates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from siliconprof.backends import _bursts
from siliconprof.backends._step import Operator
from siliconprof.backends.base import Clock, Profiler

FUSED_ATTENTION = "_scaled_dot_product"  # how the names of its operators begin
SDPA = f"aten::{FUSED_ATTENTION}_flash_attention_for_cpu"
# An LSTM's operators -> the arguments that are its input and its weights, from the first to the last;
# backwards each product has one for either factor.
LSTM: Mapping[str, tuple[int, int, int]] = {
    "aten::mkldnn_rnn_layer": (0, 1, 2),
    "aten::mkldnn_rnn_layer_backward": (0, 1, 2),
    "aten::_cudnn_rnn": (0, 1, 1),
    "aten::_cudnn_rnn_backward": (0, 1, 1),
    "aten::_lstm_mps": (0, 2, 2),
    "aten::lstm_mps_backward": (5, 8, 8),
}
OUTSIDE = "outside the model"  # the role of an operator that no module calls
OPTIMIZER_ROLE = "optimizer"
COPIED_AT_MOST_BYTES = 2**28  # of an operator's operands


class TorchProfiler(Profiler):
    """Lists and times the operators that torch dispatches.

    Args:
        place: the device's type, see `watch`.
    """

    counts_flops = True

    def __init__(self, place: str) -> None:
        self.place = place

    @contextmanager
    def describe_step(self, clock: Any) -> Iterator[list[Operator]]:
        found: list[Operator] = []
        edges: list[int] = []  # of the clock before each
        roles = _Roles()

        def describe(operator: Any, args: Any, kwargs: Any) -> Any:
            one, result = _run(operator, args, kwargs)
            found.append(one._replace(role=roles.current()))
            edges.append(clock.n_edges)
            return result

        try:
            with watch(describe, self.place):
                yield found
        finally:
            roles.leave()
        for index, n_edges in enumerate(edges):
            phase = clock.phase_at(n_edges)
            role = OPTIMIZER_ROLE if phase == "optimizer_s" else found[index].role
            found[index] = found[index]._replace(phase=phase, role=role)

    @contextmanager
    def time_step(self) -> Iterator[list[tuple[str, float]]]:
        """On a CPU; the seconds include the operator's dispatch below autograd."""
        found: list[tuple[str, float]] = []

        def measure(operator: Any, args: Any, kwargs: Any) -> Any:
            start = perf_counter()
            result = operator(*args, **kwargs)
            end = perf_counter()
            found.append((operator.name(), end - start))
            return result

        with watch(measure, self.place):
            yield found

    def describe_call(self, launch: Callable[[], Any]) -> list[Operator]:
        found: list[Operator] = []

        def describe(operator: Any, args: Any, kwargs: Any) -> Any:
            one, result = _run(operator, args, kwargs)
            found.append(one)
            return result

        with watch(describe, self.place):
            launch()
        return found

    def count_launches(self, step: Callable[[], Any]) -> int | None:
        return None if self.place == "cpu" else len(self.describe_call(step))

    def total_flops(self, operators: Iterable[tuple[str, int | None, int]]) -> int | None:
        """By `torch.utils.flop_counter`, which knows no LSTM.

        One of the five products in the backward pass of a fused attention computes the scores again, which
        is no work of the model.
        """
        known = [*operators]
        if any(kind in LSTM for kind, *_ in known):
            return None
        again = (FUSED_ATTENTION, "_backward")
        return super().total_flops(
            (
                kind,
                flops * 4 // 5 if flops and all(part in kind for part in again) else flops,
                count,
            )
            for kind, flops, count in known
        )

    def implementations(self, operators: Sequence[Operator]) -> dict[str, str]:
        """By the operators that torch dispatches.

        Only fused attention is an operator of its own (aten/src/ATen/native/native_functions.yaml);
        torch's "math" is its products and a softmax, as is a model's own attention.
        """
        seen = {operator.kind.removeprefix("aten::").split(".")[0] for operator in operators}
        attention = sorted(
            name
            for name in seen
            if name.startswith(FUSED_ATTENTION) and not name.endswith("backward")
        )
        adamw = "for-loop"
        if "_fused_adamw_" in seen:
            adamw = "fused"
        elif any(name.startswith("_foreach") for name in seen):
            adamw = "foreach"
        found = {"adamw": adamw}
        if attention or {"_softmax", "_safe_softmax"} & seen:
            found["attention"] = ", ".join(attention) or "math"
        return found


class MpsProfiler(TorchProfiler):
    """Times operators on a device without a clock of its own."""

    def __init__(self, clock: Clock, memory: Any) -> None:
        super().__init__("mps")
        self.clock, self.memory = clock, memory

    @contextmanager
    def time_step(self) -> Iterator[list[tuple[str, float]]]:
        """At its first call with given shapes an operator is timed in bursts, see `_bursts`.

        One that writes into its operands runs on copies of them; if these are large it is timed in a
        single call instead, waiting included. The copies do not count in the peak.
        """
        synchronize, peak_bytes = self.clock.synchronize, self.memory.peak_bytes()
        found: list[tuple[str, float]] = []
        known: dict[tuple[str, str], float] = {}

        def measure(operator: Any, args: Any, kwargs: Any) -> Any:
            key = operator.name(), _call_text(args, kwargs)
            writes, arguments = operator._schema.is_mutable, (args, kwargs)
            single = key not in known and writes and _bytes(arguments) > COPIED_AT_MOST_BYTES
            if key not in known and not single:
                own_args, own_kwargs = _copies(arguments) if writes else arguments

                def burst(calls: int) -> float:
                    start = perf_counter()
                    for _ in range(calls):
                        operator(*own_args, **own_kwargs)
                    synchronize()
                    return perf_counter() - start

                synchronize()  # what the step dispatched before
                with _same_random_numbers(operator):
                    known[key] = _bursts.seconds_each(burst)
            if single:
                synchronize()
            start = perf_counter()
            result = operator(*args, **kwargs)
            if single:
                synchronize()
                known[key] = perf_counter() - start
            found.append((operator.name(), known[key]))
            return result

        with watch(measure, self.place):
            yield found
        self.memory.reset_peak(peak_bytes)


def _run(operator: Any, args: Any, kwargs: Any) -> tuple[Operator, Any]:
    """Run an operator: (its description, without role and phase; its result)."""
    inputs = " ".join(tensor_text(tensor) for tensor in _tensors((args, kwargs)))
    read_bytes = _bytes((args, kwargs))
    result = operator(*args, **kwargs)
    flops = _flops(operator, args, kwargs, result)
    moved = read_bytes + _bytes(_written(operator, args) if result is None else result)
    return Operator(operator.name(), "", "", inputs, flops, moved), result


def watch(see: Callable[[Any, Any, Any], Any], place: str) -> Any:
    """A dispatch mode under which `see` runs every operator that moves or computes anything.

    Args:
        place: the device's type. An operator that has neither operand nor result on a GPU is left out:
            AdamW's counts of steps, a batch that is made ready to be copied.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            view = func.is_view or func.name() == "aten::_unsafe_view"  # by its schema it is none
            if view or func.namespace in ("prim", "profiler") or not _works_on(place, args, kwargs):
                return func(*args, **kwargs)
            return see(func, args, kwargs)

    return Watch()


def _works_on(place: str, args: Any, kwargs: Mapping[str, Any]) -> bool:
    if place == "cpu":
        return True
    places = [str(kwargs.get("device")), *(str(x.device) for x in _tensors((args, kwargs)))]
    return any(one.startswith(place) for one in places)


class _Roles:
    """Finds the module of each operator, from its creation until `leave`."""

    def __init__(self) -> None:
        from torch.nn.modules.module import (
            register_module_forward_hook,
            register_module_forward_pre_hook,
        )

        self.stack: list[str] = []
        self.names: dict[Any, str] = {}  # module or parameter -> name in the model
        self.spans: list[tuple[int, int, str]] = []  # of nodes made in a module, inner ones first
        self.begun: list[int] = []
        self.hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def leave(self) -> None:
        for hook in self.hooks:
            hook.remove()

    def _enter(self, module: Any, *_: Any) -> None:
        if not self.stack and module not in self.names:
            self._name(module)
        self.stack.append(self.names.get(module, type(module).__name__))
        self.begun.append(_next_node())

    def _leave(self, module: Any, *_: Any) -> None:
        self.spans.append((self.begun.pop(), _next_node(), self.stack.pop()))

    def _name(self, model: Any) -> None:
        """Name a model's modules, and its weights after the module that has them."""
        for name, module in model.named_modules():
            # A model with peft's adapters has the names that it has without them.
            # `h.3.attn` -> `h.*.attn`: layers do the same work; without a word it is its type
            own = name.removeprefix("base_model.model").removeprefix(".")
            role = re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", own)
            self.names[module] = role if role.strip("*.") else type(module).__name__
            for weight in module.parameters(recurse=False):
                self.names.setdefault(weight, self.names[module])

    def current(self) -> str:
        """The role of the operator that is about to run."""
        from torch._C import _current_autograd_node

        node = _current_autograd_node()
        if self.stack or node is None:
            return self.stack[-1] if self.stack else OUTSIDE
        variable = getattr(node, "variable", None)  # of a node that adds up a weight's gradient
        if variable is not None:
            return self.names.get(variable, OUTSIDE)
        number = node._sequence_nr()
        return next((name for low, high, name in self.spans if low <= number < high), OUTSIDE)


def _next_node() -> int:
    from torch._C._autograd import _get_sequence_nr

    return int(_get_sequence_nr())


def tensor_text(tensor: Any) -> str:
    """`float32[4, 64]`, and its strides where it is not laid out row by row: `float32[64, 4]/1, 64`."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    text = f"{dtype}{list(tensor.shape)}"
    return text if tensor.is_contiguous() else f"{text}/{', '.join(map(str, tensor.stride()))}"


def _call_text(args: Any, kwargs: Any) -> str:
    """What an operator is called with: tensors as `tensor_text`, other values as they are."""
    from torch.utils._pytree import tree_leaves

    leaves = tree_leaves((args, kwargs))
    return " ".join(tensor_text(x) if hasattr(x, "untyped_storage") else repr(x) for x in leaves)


def _copies(values: Any) -> Any:
    """The same values, tensors cloned."""
    from torch.utils._pytree import tree_map

    return tree_map(lambda x: x.clone() if hasattr(x, "untyped_storage") else x, values)


@contextmanager
def _same_random_numbers(operator: Any) -> Iterator[None]:
    """Restore the state of random numbers afterwards, if an operator draws any."""
    import torch

    if torch.Tag.nondeterministic_seeded not in operator.tags:
        yield
        return
    state = torch.mps.get_rng_state()
    try:
        yield
    finally:
        torch.mps.set_rng_state(state)


def _tensors(values: Any) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    return [value for value in tree_leaves(values) if hasattr(value, "untyped_storage")]


def _written(operator: Any, args: Any) -> list[Any]:
    """The operands that an operator may write into, by its schema."""
    schema = zip(operator._schema.arguments, args, strict=False)
    return [value for own, value in schema if own.alias_info and own.alias_info.is_write]


def _bytes(values: Any) -> int:
    """Bytes of all tensors among the values; expanded ones count once."""
    total = 0
    for tensor in _tensors(values):
        distinct = 1
        for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
            distinct *= length if stride else min(length, 1)
        total += distinct * tensor.element_size()
    return total


def _flops(operator: Any, args: Any, kwargs: Any, result: Any) -> int | None:
    """A multiplication and an addition for each term of a product; None of other operators."""
    from torch.utils import flop_counter

    name = operator.name()
    if name == SDPA:
        return flop_counter.sdpa_flop_count(*(tensor.shape for tensor in args[:3]))
    if name == f"{SDPA}_backward":
        return flop_counter.sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4]))
    if name in LSTM:
        values, first, last = LSTM[name]
        steps = args[values].shape[0] * args[values].shape[1]  # times and sequences
        matrices = (w for w in _tensors(args[first : last + 1]) if w.dim() == 2)
        products = 2 if name.endswith("_backward") else 1
        return 2 * products * int(steps) * sum(int(matrix.numel()) for matrix in matrices)
    if name in ("aten::linear", "aten::linear_backward"):  # of MPS; others have it multiplied
        values, weight = args[0], args[1 if name == "aten::linear" else 2]
        products = 1 if name == "aten::linear" else sum(args[3][:2])
        return 2 * products * int(values.numel()) * int(weight.shape[0])
    formula = flop_counter.flop_registry.get(operator.overloadpacket)
    return int(formula(*args, **kwargs, out_val=result)) if formula else None
