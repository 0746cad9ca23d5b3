"""How each primitive of MLX's graphs is called from Python, on arrays of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from siliconprof.backends._step import Operator

# Primitives that are called like their function, but for upper case and underscores.
PLAIN_PRIMITIVES = (
    *("Abs", "Add", "Cos", "Cosh", "Divide", "Equal", "Erf", "Exp", "Greater", "GreaterEqual"),
    *("Less", "LessEqual", "Log", "LogAddExp", "LogicalAnd", "LogicalNot", "LogicalOr", "Matmul"),
    *("Maximum", "Minimum", "Multiply", "Negative", "NotEqual", "Power", "Select", "Sigmoid"),
    *("Sign", "Sin", "Sinh", "Square", "Subtract", "Tanh"),
)
REDUCTIONS = ("all", "any", "sum", "prod", "min", "max")  # by mlx/primitives.h, Reduce::ReduceType
SUM, REPLACES = 2, 4  # Scatter::ReduceType, of the sum and of none


class Primitive(NamedTuple):
    """One primitive of a graph; arrays are named."""

    name: str
    arguments: Sequence[Any]
    inputs: Sequence[str]
    outputs: Sequence[tuple[str, tuple[int, ...], Any]]  # name, shape, dtype
    operator: Operator


class UnknownPrimitive(Exception):
    """A primitive that cannot be called from Python, or gives another result; the message names it."""


def call(mx: Any, primitive: Primitive, inputs: Sequence[Any]) -> list[Any]:
    """The results of a primitive, not evaluated; `UnknownPrimitive` where Python cannot call it."""
    name, own = primitive.name, primitive.arguments
    _, shape, dtype = primitive.outputs[0]
    if name in PLAIN_PRIMITIVES:
        words = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)[1:]
        renamed = {"log_add_exp": "logaddexp", "select": "where"}
        return [getattr(mx, renamed.get(words, words))(*inputs)]
    x: Any = inputs[0] if inputs else None
    match name:
        case "AddMM":
            made = mx.addmm(inputs[2], inputs[0], inputs[1], *own)
        case "LayerNorm" | "RMSNorm":
            made = _norm(mx, name, own)(*inputs)
        case "LayerNormVJP" | "RMSNormVJP":
            *primals, cotangent = inputs
            norm = _norm(mx, name.removesuffix("VJP"), own)
            return list(mx.vjp(norm, primals, [cotangent])[1])
        case "Arange":
            made = mx.arange(*own, dtype=dtype)
        case "AsStrided":
            made = mx.as_strided(x, *own)
        case "AsType":
            made = x.astype(own[0])
        case "Broadcast":
            made = mx.broadcast_to(x, shape)
        case "Concatenate":
            made = mx.concatenate(list(inputs), own[0])
        case "Convolution":
            strides, low, high, *dilations_groups_flip = own
            made = mx.conv_general(*inputs, strides, (low, high), *dilations_groups_flip)
        case "ExpandDims" | "Squeeze" | "Transpose":
            function = {"ExpandDims": "expand_dims"}.get(name, name.lower())
            made = getattr(mx, function)(x, own[0])
        case "Flatten" | "Unflatten":
            made = getattr(mx, name.lower())(x, *own)
        case "Full":
            made = mx.full(shape, x)
        case "Gather" if list(own[0]) == [0] and own[1][0] == 1:
            made = mx.expand_dims(mx.take(x, inputs[1], 0), inputs[1].ndim)
        case "GatherAxis":
            made = mx.take_along_axis(x, inputs[1], own[0])
        case "LogSumExp":
            made = mx.logsumexp(x, -1, keepdims=True)
        case "Pad":
            widths = [(0, 0)] * x.ndim
            for axis, low, high in zip(*own, strict=True):
                widths[axis] = (low, high)
            made = mx.pad(x, widths, constant_values=inputs[1])
        case "RandomBits" if own[1] == 4 and math.prod(shape) % 2 == 0:
            made = mx.random.split(x, math.prod(shape) // 2).reshape(shape)  # as many bits
        case "Reduce":
            kept = len(shape) == x.ndim
            made = getattr(mx, REDUCTIONS[own[0]])(x, own[1], keepdims=kept)
        case "Reshape":
            made = mx.reshape(x, shape)
        case "Scatter" if own[0] == SUM and list(own[1]) == [0]:
            made = x.at[inputs[1]].add(inputs[2].squeeze(inputs[1].ndim))
        case "RoPE":
            made = _rope(mx, own, inputs)
        case "ScaledDotProductAttention" if len(primitive.outputs) == 1 and len(inputs) == 3:
            scale, causal = own[:2]
            mask = "causal" if causal else None
            made = mx.fast.scaled_dot_product_attention(*inputs, scale=scale, mask=mask)
        case "ScatterAxis":
            made = mx.put_along_axis(x, inputs[1], inputs[2], own[1])
        case "Slice":
            made = x[_slices(*own)]
        case "SliceUpdate" if own[0] == REPLACES:
            made = mx.array(x)
            made[_slices(*own[1:])] = inputs[1]
        case "Softmax":
            made = mx.softmax(x, -1, precise=own[0])
        case "Split":
            return list(mx.split(x, list(own[0]), own[1]))
        case "Sqrt":
            made = mx.rsqrt(x) if own[0] else mx.sqrt(x)
        case _:
            raise UnknownPrimitive(
                f"{name}({', '.join(map(str, own))}) cannot be called from Python"
            )
    return [made]


def _norm(mx: Any, name: str, own: Sequence[Any]) -> Callable[..., Any]:
    """A norm as a function of its array, its weight and its bias, if it has one."""
    function = {"LayerNorm": mx.fast.layer_norm, "RMSNorm": mx.fast.rms_norm}[name]
    return lambda *arrays: function(*(a if a.ndim else None for a in arrays), *own)


def _rope(mx: Any, own: Sequence[Any], inputs: Sequence[Any]) -> Any:
    """Rotated positions; backwards, they are the gradient of the same, which is linear."""
    dims, traditional, base, scale, forward = own

    def rotated(x: Any) -> Any:
        return mx.fast.rope(
            x, dims, traditional=traditional, base=base, scale=scale, offset=inputs[1]
        )

    if len(inputs) > 2:
        raise UnknownPrimitive("RoPE with frequencies of its own cannot be called from Python")
    return rotated(inputs[0]) if forward else mx.vjp(rotated, [inputs[0]], [inputs[0]])[1][0]


def _slices(starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> tuple[slice, ...]:
    return tuple(map(slice, starts, stops, steps))
