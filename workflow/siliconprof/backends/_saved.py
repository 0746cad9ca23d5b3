"""A training's state as one safetensors file: the same names and the same checks in torch and MLX.

A trained weight `embedding.weight` stands under its own name, so that any reader of safetensors
finds the model; AdamW's moments of it follow as `optimizer.embedding.weight.exp_avg` and
`….exp_avg_sq`. The metadata hold the number of steps and of updates, and the caller's facts.
Format: huggingface.co/docs/safetensors; it holds arrays and text, no code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from siliconprof.errors import UserError, in_one_line

MOMENTS = ("exp_avg", "exp_avg_sq")  # torch's names; MLX calls them m and v
STEPS = "siliconprof.steps"
UPDATES = "siliconprof.updates"  # of the weights: fewer than steps where a scaler skipped some
SCALER = "siliconprof.scaler"  # of torch's gradient scaler, as JSON
OWN = (STEPS, UPDATES, SCALER)
WIDTHS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def moment(name: str, kind: str) -> str:
    """Under which name a weight's part of the optimizer's state stands."""
    return f"optimizer.{name}.{kind}"


def metadata(
    steps: int, updates: int, facts: Mapping[str, str], scaler: str | None = None
) -> dict[str, str]:
    """A file's metadata: the caller's facts and ours."""
    own = {STEPS: str(steps), UPDATES: str(updates)}
    return {**facts, **own, **({SCALER: scaler} if scaler else {})}


def read_metadata(path: Path, weights: Mapping[str, tuple[Sequence[int], str]]) -> dict[str, str]:
    """The metadata of a file that holds these weights, and their moments once it has trained.

    Args:
        weights: name -> (shape, dtype's name).

    Raises:
        UserError: it is missing, damaged, or of another model.
    """
    from safetensors import SafetensorError, safe_open

    wanted = {name: (tuple(shape), WIDTHS[dtype]) for name, (shape, dtype) in weights.items()}
    try:
        with safe_open(str(path), framework="numpy") as file:  # its header; no array is read
            told = dict(file.metadata() or {})
            updates = int(told[STEPS]) and int(told[UPDATES])
            names = set(file.keys())
            if updates:
                wanted |= {moment(n, kind): wanted[n] for n in weights for kind in MOMENTS}
            found = {}
            for name in names & wanted.keys():
                array = file.get_slice(name)
                found[name] = (tuple(array.get_shape()), array.get_dtype())
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{path}: no checkpoint that can be read ({in_one_line(error)})") from None
    for name, has in wanted.items():
        if found.get(name) != has:
            raise UserError(
                f"{path}: the checkpoint of another model: {name} is "
                f"{found.get(name, 'missing')}, this one has {has}"
            )
    return told


def facts(told: Mapping[str, str]) -> dict[str, str]:
    """The caller's part of the metadata."""
    return {name: value for name, value in told.items() if name not in OWN}
