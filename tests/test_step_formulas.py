"""The formula for the operators of a step, held against what torch and MLX really do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import defaults, opened
from siliconprof import plugins
from siliconprof.analyse import step_work
from siliconprof.backends import _torch_operators
from siliconprof.session.timing import PhaseClock

QUIET = (
    "aten::empty",
    "aten::new_empty",
    "aten::_local_scalar_dense",
    "aten::lift_fresh",
)
# MLX's operations that only look at their input in another way.
VIEWS = set(
    "AsStrided Broadcast Copy ExpandDims Flatten Reshape Slice Split Squeeze StopGradient "
    "Transpose Unflatten".split()
)
LM = {"seq_len": 16, "batch_size": 2, "dataset_vocab_size": 64, "vocab_size": 64}
LM |= {"n_embd": 32, "n_head": 4, "d_ff": 48}
AGAIN = {"gradient_checkpointing": True}
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("fp32", LM | {"n_layer": 1}),
    ("fp32", LM | {"n_layer": 3}),
    ("fp32", LM | {"n_layer": 3} | AGAIN),
    ("amp-bf16", LM | {"n_layer": 2} | AGAIN),
    ("bf16", LM | {"n_layer": 2}),
]


def stepping(backend_name: str, precision: str, parameters: dict[str, Any]) -> Callable[[], None]:
    """What runs the second step of a small model on a backend's CPU."""
    workload = plugins.load("workloads", "transformer_lm")(parameters)
    backend = opened(backend_name, precision, 1)
    stepper = backend.stepper(workload, 0)
    ids = np.zeros((2, 16), np.int32)
    clock = PhaseClock(backend.clock)
    clock.split = False

    def step() -> None:
        stepper.step({"input_ids": ids, "labels": ids}, clock)

    step()
    return step


def dispatched_by_torch(step: Callable[[], Any]) -> Counter[str]:
    """Operators that a step hands to torch, without what only looks at memory."""
    found: Counter[str] = Counter()

    def count(operator: Any, args: Any, kwargs: Any) -> Any:
        found[operator.name()] += not operator.name().startswith(QUIET)
        return operator(*args, **kwargs)

    with _torch_operators.watch(count, "cpu"):
        step()
    return found


def evaluated_by_mlx(step: Callable[[], Any], graph: Path) -> Counter[str]:
    """Operators in the graphs that a step has MLX evaluate, without views."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    found: Counter[str] = Counter()
    real = mx.eval

    def looked_at(*values: Any) -> None:
        mx.export_to_dot(str(graph), *(v for _, v in tree_flatten(values) if hasattr(v, "shape")))
        found.update(re.findall(r'label ?= ?"([A-Za-z]\w*)"', graph.read_text()))
        real(*values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx, "eval", looked_at)
        step()
    return Counter({name: number for name, number in found.items() if name not in VIEWS})


@pytest.mark.parametrize("backend", ["torch-cpu", "mlx"])
@pytest.mark.parametrize(("precision", "own"), KINDS)
def test_formula_counts_what_a_framework_does(
    precision: str, own: dict[str, Any], backend: str, tmp_path: Path
) -> None:
    parameters = defaults("transformer_lm", **own)
    step = stepping(backend, precision, parameters)
    if backend == "mlx":
        found = evaluated_by_mlx(step, tmp_path / "graph.dot")
    else:
        found = dispatched_by_torch(step)
    again = parameters["gradient_checkpointing"]
    told = step_work.launches(backend, parameters["n_layer"], precision, again)
    assert told == pytest.approx(found.total(), rel=0.03), (
        found
    )  # another version may fuse one more
