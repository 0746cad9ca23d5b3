"""What a workload answers and does: what is trained or computed, and how much work that is.

A workload is one file. Its parameters are described by `PARAMETERS`, a JSON Schema of the keys
that its entries in the config may have; the defaults there are filled in when cells are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from siliconprof.session import Session


class Workload:
    """Base of all workloads."""

    kind: ClassVar[str]  # training: driven by a trainer; kernels: times operations itself
    frameworks: ClassVar[tuple[str, ...]]  # torch, mlx
    PARAMETERS: ClassVar[Mapping[str, Any]] = {}  # name -> JSON Schema, description, default
    REQUIRED: ClassVar[tuple[str, ...]] = ()  # those without a default

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.parameters = parameters

    @classmethod
    def packages(cls, framework: str) -> tuple[str, ...]:
        """Distributions, beside the framework's own, whose version its numbers depend on."""
        return ()

    @classmethod
    def problems(
        cls, parameters: Mapping[str, Any], dataset: Mapping[str, Any] | None
    ) -> list[str]:
        """Mistakes that no schema can say, each `key: what is wrong`.

        All mistakes are told at once, so values that break the schema come here as well: nothing
        about them may be taken for granted.
        """
        return []

    def supports(self, framework: str, precision: str) -> str | None:
        """Why it cannot run so, or None when it can."""
        if framework not in self.frameworks:
            return f"this workload has no {framework} implementation"
        return None

    def memory_bytes(self, precision: str) -> dict[str, int]:
        """Predicted device memory by part, in bytes: weights, gradients, optimizer, activations."""
        return {}


class TrainingWorkload(Workload):
    """A model to train: what the trainers and the backends' steppers ask of it."""

    kind = "training"

    def flops_per_step(self) -> tuple[float, str]:
        """Floating-point operations of one training step, and where the formula is from."""
        raise NotImplementedError

    def n_parameters(self) -> int:
        """Trainable parameters, exact, without building the model."""
        raise NotImplementedError

    def samples_per_step(self) -> int:
        """Training samples in one step."""
        return int(self.parameters["batch_size"])

    def tokens_per_step(self) -> int | None:
        """Tokens in one step, None where the input is not text."""
        return None

    def optimizer_settings(self, precision: str) -> dict[str, Any]:
        """Keyword arguments of AdamW, in torch's names.

        No weight decay and no clipping, so that plain loops, the Trainer and MLX do the same
        arithmetic. Pure fp16 needs a larger epsilon: 1e-8 rounds to zero there.
        """
        return {
            "lr": self.parameters["learning_rate"],
            "betas": [0.9, 0.999],
            "eps": 1e-4 if precision == "fp16" else 1e-8,
            "weight_decay": 0.0,
        }


class KernelWorkload(Workload):
    """Operations timed without a trainer, many points in one process."""

    kind = "kernels"

    def measure(self, session: Session) -> None:
        """Time every point and hand each to `session.add_point`."""
        raise NotImplementedError
