"""A training's state as one safetensors file: the same names and the same checks in torch and MLX.

A trained weight stands under its own name, so that any reader of safetensors finds the model; its
AdamW moments follow as `optimizer.{name}.exp_avg` and `….exp_avg_sq`. The metadata hold the number
of steps and of updates. Format: huggingface.co/docs/safetensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from siliconprof.errors import UserError, in_one_line

MOMENTS = ("exp_avg", "exp_avg_sq")  # torch's names; MLX calls them m and v
STEPS = "siliconprof.steps"
UPDATES = "siliconprof.updates"  # of the weights: fewer than steps where a scaler skipped some
SCALER = "siliconprof.scaler"  # of torch's gradient scaler, as JSON
WIDTHS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def moment(name: str, kind: str) -> str:
    """The name under which a weight's part of the optimizer's state is stored."""
    return f"optimizer.{name}.{kind}"


def metadata(steps: int, updates: int, scaler: str | None = None) -> dict[str, str]:
    """A file's metadata: the number of steps and updates, the scaler's state."""
    own = {STEPS: str(steps), UPDATES: str(updates)}
    return {**own, **({SCALER: scaler} if scaler else {})}


def read_metadata(path: Path, weights: Mapping[str, tuple[Sequence[int], str]]) -> dict[str, str]:
    """The metadata of a file of these weights, name -> (shape, dtype), or a `UserError`."""
    from safetensors import SafetensorError, safe_open

    expected = {name: (tuple(shape), WIDTHS[dtype]) for name, (shape, dtype) in weights.items()}
    try:
        with safe_open(str(path), framework="numpy") as file:  # its header; no array is read
            saved = dict(file.metadata() or {})
            updates = int(saved[STEPS]) and int(saved[UPDATES])
            names = set(file.keys())
            if updates:
                expected |= {moment(n, kind): expected[n] for n in weights for kind in MOMENTS}
            stored = {}
            for name in names & expected.keys():
                array = file.get_slice(name)
                stored[name] = (tuple(array.get_shape()), array.get_dtype())
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{path}: no checkpoint that can be read ({in_one_line(error)})") from None
    for name, array_kind in expected.items():
        if stored.get(name) != array_kind:
            raise UserError(
                f"{path}: the checkpoint of another model: {name} is "
                f"{stored.get(name, 'missing')}, this one has {array_kind}"
            )
    return saved
