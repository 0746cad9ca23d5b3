"""A training's state as one safetensors file, of the same names in torch and MLX.

A trained weight stands under its own name, so that any reader of safetensors finds the model; its
AdamW moments follow as `optimizer.{name}.exp_avg` and `….exp_avg_sq`. The metadata hold the number
of steps and of updates. Format: huggingface.co/docs/safetensors.
"""

from __future__ import annotations

from pathlib import Path

from siliconprof.errors import UserError, in_one_line

MOMENT_NAMES = ("exp_avg", "exp_avg_sq")  # torch's names; MLX calls them m and v
STEPS_KEY = "siliconprof.steps"
UPDATES = "siliconprof.updates"  # of the weights: fewer than steps where a scaler skipped some
SCALER = "siliconprof.scaler"  # of torch's gradient scaler, as JSON


def moment(name: str, kind: str) -> str:
    """The name under which a weight's part of the optimizer's state is stored."""
    return f"optimizer.{name}.{kind}"


def metadata(steps: int, updates: int, scaler: str | None = None) -> dict[str, str]:
    """A file's metadata: the number of steps and updates, the scaler's state."""
    own = {STEPS_KEY: str(steps), UPDATES: str(updates)}
    return {**own, **({SCALER: scaler} if scaler else {})}


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a file, or a `UserError` where it is no such file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as file:  # its header; no array is read
            return dict(file.metadata())
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: no checkpoint that can be read ({in_one_line(error)})") from None
