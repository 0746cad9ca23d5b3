"""What a trainer, which drives the loop of a training workload, answers and does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from siliconprof.timing import StepTimes
from siliconprof.workloads.base import TrainingWorkload

if TYPE_CHECKING:
    from siliconprof.session import Session


class Trainer:
    """Base of all trainers."""

    frameworks: ClassVar[tuple[str, ...]]

    @classmethod
    def packages(cls, framework: str) -> tuple[str, ...]:
        """Distributions whose version its numbers depend on."""
        return ()

    def supports(self, framework: str, device_kind: str, precision: str) -> str | None:
        """Why it cannot run so, or None when it can."""
        if framework not in self.frameworks:
            return f"this trainer drives {' and '.join(self.frameworks)} only"
        return None

    def run(self, session: Session) -> None:
        """Train, time, and hand one point to `session.add_point`."""
        raise NotImplementedError


def training_point(
    session: Session, times: StepTimes, losses: list[float], **extra: Any
) -> dict[str, Any]:
    """The point of a training cell; every list of times has one entry per iteration."""
    workload = session.workload
    assert isinstance(workload, TrainingWorkload)
    flops, source = workload.flops_per_step()
    return {
        "params": {
            "batch_size": workload.parameters["batch_size"],
            "n_parameters": workload.n_parameters(),
            "samples_per_step": workload.samples_per_step(),
            "tokens_per_step": workload.tokens_per_step(),
        },
        "times": {
            "warmup_step_s": times.warmup_step_s,
            "step_s": times.step_s,
            "unsplit_step_s": times.unsplit_step_s,
            **times.phases,
            **extra,
        },
        "flops": flops,
        "flops_source": source,
        "bytes": None,
        "loss": losses,
        "memory": session.memory(),
    }
