"""Whose the primitives of a step in MLX are: its graph knows no modules.

So the step is traced once more, each array that goes into a module or comes out of it multiplied by
a mark: ones that nothing else reads. The gradient of such a product is a product with the same
mark, so in both passes all between two marks is one module's. The marked graph is never run; a
primitive has the role of the one that computes the same there. As sums of gradients are added up in
another order, a part of a sum that stands in one graph alone has the role of what it adds. What
several modules share is that of the module that calls them, and what no module computes, as the
loss, is outside of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

from siliconprof.backends.base import OUTSIDE, role_of

if TYPE_CHECKING:
    from siliconprof.backends._mlx_operators import Graph, Primitive

Scope = tuple[str, ...]  # roles of the modules under way, the innermost last
Crossing = tuple[Scope, Scope]  # of a marked array in the forward pass: from, into
METHODS = ("__call__", "as_linear")  # an embedding is a model's head by the latter


@contextmanager
def marks(model: Any, ones: Any, crossings: list[Crossing]) -> Iterator[None]:
    """Mark what goes into a model's modules and what comes out of them.

    Args:
        ones: an array of one 1, of which the marks are views.
        crossings: gets that of each mark; the mark's offset is the place in it.
    """
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_map

    roles = _roles(model)
    scope: Scope = ()

    def marked(values: Any, crossing: Crossing) -> Any:
        def mark(value: Any) -> Any:
            if not isinstance(value, mx.array):
                return value
            crossings.append(crossing)
            view = (value.shape, [0] * value.ndim, len(crossings) - 1)
            return value * mx.as_strided(ones.astype(value.dtype), *view)

        return tree_map(mark, values, is_leaf=lambda value: isinstance(value, nn.Module))

    def marking(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal scope
            outer, inner = scope, (*scope, roles.get(id(module), type(module).__name__))
            args, kwargs = marked((args, kwargs), (outer, inner))
            scope = inner
            try:
                result = method(module, *args, **kwargs)
            finally:
                scope = outer
            return marked(result, (inner, outer))

        return call

    classes = {kind for module in model.modules() for kind in type(module).__mro__}
    with ExitStack() as restored:
        for kind in classes:
            for name in METHODS:
                if name in vars(kind):
                    method = vars(kind)[name]
                    restored.callback(setattr, kind, name, method)
                    setattr(kind, name, marking(method))
        yield


def _roles(model: Any) -> dict[int, str]:
    """Id of a module -> role; layers of a `Sequential` are numbered, as in torch."""
    import mlx.nn as nn

    modules = dict(model.named_modules())

    def is_list_of_layers(parts: Sequence[str], place: int) -> bool:
        parent = modules.get(".".join(parts[:place]))
        return parts[place] == "layers" and isinstance(parent, nn.Sequential)

    roles = {}
    for name, module in modules.items():
        parts = name.split(".")
        kept = [part for i, part in enumerate(parts) if not is_list_of_layers(parts, i)]
        roles[id(module)] = role_of(".".join(kept), type(module).__name__)
    return roles


def roles(
    graph: Graph, marked: Graph, crossings: Sequence[Crossing], passes: Sequence[str]
) -> list[str]:
    """The role of each primitive of a graph; "" where it belongs to none of the passes.

    Args:
        marked: the same graph with marks, whose ones are its last input.
        passes: phases in which modules compute, the forward pass first.
    """
    numbers: dict[Any, int] = {}
    scopes: dict[int, list[Scope]] = {}
    primitives, found = _scopes(marked, crossings, passes)
    for number, scope in zip(_numbered(marked, primitives, numbers), found, strict=True):
        scopes.setdefault(number, []).append(scope)
    here: dict[str, Scope] = {}  # an array -> where it is made
    own = []
    for number, p in zip(
        _numbered(graph, graph.primitives, numbers), graph.primitives, strict=True
    ):
        around = scopes.get(number, ())
        if p.name == "Add" and not around:  # a part of a sum that is added up otherwise there
            around = [here[name] for name in p.inputs if name in here]
        role = ""
        if around and p.operator.phase in passes:
            scope = _shared(around)
            here |= {name: scope for name, *_ in p.outputs}
            role = scope[-1] if scope else OUTSIDE
        own.append(role)
    return own


def _scopes(
    marked: Graph, crossings: Sequence[Crossing], passes: Sequence[str]
) -> tuple[list[Primitive], list[Scope]]:
    """The passes' primitives without marks, and the scopes of what they read, or who reads them."""
    ones = {marked.inputs[-1]}  # and what is made of them
    offsets: dict[str, int] = {}  # of the marks
    unmarked: dict[str, str] = {}  # a marked array -> what it was
    here: dict[str, Scope] = {}  # an array -> where it is
    primitives: list[Primitive] = []
    own: list[Scope | None] = []
    reading: dict[str, list[Scope]] = {}  # an array -> where it is read
    for p in marked.primitives:
        (name, *_), *_ = p.outputs
        if p.inputs and ones.issuperset(p.inputs):
            ones.add(name)
            if p.name == "AsStrided":
                offsets[name] = p.arguments[-1]
        elif mark := offsets.keys() & set(p.inputs):
            (value,) = set(p.inputs) - mark
            source, target = crossings[offsets[mark.pop()]]
            if p.operator.phase != passes[0]:
                source, target = target, source
            unmarked[name], here[name] = unmarked.get(value, value), target
            reading.setdefault(value, []).append(source)
        elif p.operator.phase in passes:
            around = [here[value] for value in p.inputs if value in here]
            scope = _shared(around) if around else None
            if scope is not None:
                here |= {output: scope for output, *_ in p.outputs}
            primitives.append(p)
            own.append(scope)
    for place in reversed(range(len(primitives))):
        p, scope = primitives[place], own[place]
        if scope is None:
            around = [scope for output, *_ in p.outputs for scope in reading.get(output, ())]
            own[place] = scope = _shared(around) if around else ()
        for value in p.inputs:
            reading.setdefault(value, []).append(scope)
    plain = [p._replace(inputs=[unmarked.get(v, v) for v in p.inputs]) for p in primitives]
    return plain, [scope or () for scope in own]


def _shared(scopes: Sequence[Scope]) -> Scope:
    """The innermost scope in which all of these are; layers of one role are taken together."""
    if len({scope[-1:] for scope in scopes}) == 1:
        return scopes[0]
    return tuple(commonprefix(scopes))


def _numbered(
    graph: Graph, primitives: Iterable[Primitive], numbers: dict[Any, int]
) -> Iterator[int]:
    """A number for each primitive, in all graphs the same for what computes the same."""
    arrays: dict[str, Any] = {}
    terms: dict[Any, Counter[Any]] = {}  # of a sum, however it is added up
    for kind, names in (("input", graph.inputs), ("constant", graph.constants)):
        arrays |= {name: (kind, place) for place, name in enumerate(names)}
    for p in primitives:
        inputs = [arrays[name] for name in p.inputs]
        what: tuple[Any, ...] = (p.name, str(p.arguments), *inputs)
        if p.name == "Add":
            total = sum((terms.get(array, Counter([array])) for array in inputs), Counter())
            what = (p.name, frozenset(total.items()))
        number = numbers.setdefault((*what, str([made[1:] for made in p.outputs])), len(numbers))
        if p.name == "Add":
            terms[number, 0] = total
        arrays |= {name: (number, place) for place, (name, *_) in enumerate(p.outputs)}
        yield number
