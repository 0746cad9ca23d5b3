"""The interface of a training step in a framework, and its state as a file.

A training's state is one safetensors file with the same names in torch and MLX. A trained weight has its
own name, so that any reader of safetensors finds the model; its AdamW moments are
`optimizer.{name}.exp_avg` and `….exp_avg_sq`. The metadata hold the number of steps and of updates.
Format: huggingface.co/docs/safetensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from siliconprof.errors import UserError, in_one_line

MOMENT_NAMES = ("exp_avg", "exp_avg_sq")  # torch's names; MLX calls them m and v
STEPS_KEY = "siliconprof.steps"
UPDATES = "siliconprof.updates"  # of the weights: fewer than steps where a scaler skipped some
SCALER = "siliconprof.scaler"  # of torch's gradient scaler, as JSON


class Compilation(NamedTuple):
    """What a framework's compiler has done in this process so far."""

    graphs: int  # compiled, those that replace an earlier one included
    recompilations: int  # of what had been compiled before, for arguments of another kind
    graph_breaks: int  # places where compiled code goes back to Python


class Operator(NamedTuple):
    """One operator of a training step, as the framework hands it to the device."""

    kind: str  # the framework's name of it
    role: str  # its module, layers together: `h.*.attn`, or optimizer; "" where unknown
    phase: str  # `timing.PHASES` names them
    inputs: str  # dtype, shape, and strides where not row by row, of each
    flops: int | None  # None where no formula is known: what is no product
    bytes: int  # read and written, each operand once


class Inference:
    """Forward passes of a model that a `Stepper` trains; they change nothing of the training."""

    def evaluate(self, batch: Any) -> float:
        """The loss on a batch without dropout."""
        raise NotImplementedError

    def outputs(self, batch: Any) -> Any:
        """The model's output on a batch without dropout: a float32 numpy array."""
        raise NotImplementedError

    def forward(self, batch: Any) -> Callable[[], None]:
        """A launcher of the forward pass and its loss on a batch, which is on the device by then."""
        raise NotImplementedError

    def dtypes(self, batch: Any) -> dict[str, Any]:
        """`trained_parameters`, and dtypes of `master_weights` and `activations` in a real pass."""
        raise NotImplementedError


class Stepper:
    """One training step in a framework, whole or split into its phases.

    `step(batch, clock)` marks the end of every phase by `clock.edge(phase)`; a whole step runs
    the same code with a clock that ignores it. The step returns a callable that fetches the loss
    as a float, to be called after the clock has stopped.
    """

    inference: Inference

    def step(self, batch: Any, clock: Any) -> Callable[[], float]:
        """Run one step on a batch: name -> numpy array whose first axis is the batch."""
        raise NotImplementedError

    def compilation(self) -> Compilation | None:
        """What was compiled for its steps so far; None where they run eagerly."""
        return None

    def updates(self) -> int | None:
        """Steps without those that a gradient scaler has skipped; None without a scaler. It may wait."""
        return None

    def gradient_norm(self) -> float | None:
        """Joint norm of the last step's gradients before clipping; None where nothing is clipped."""
        raise NotImplementedError

    def save(self, path: Path) -> None:
        """Write trained weights, the optimizer's state and the number of steps as safetensors."""
        raise NotImplementedError

    def load(self, path: Path) -> None:
        """Restore what `save` wrote for the same model; a `UserError` where it is damaged."""
        raise NotImplementedError

    def weights(self) -> Mapping[str, Any]:
        """The current trained weights by name; empty where they cannot be read."""
        return {}

    def persistent_arrays(self) -> list[Any]:
        """Arrays that exist between two steps: weights, buffers, the optimizer's state."""
        return []


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
