"""How well a network in training tells the classes of a part of the data: loss and accuracy."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from siliconprof.session.session import Session


@dataclass
class Judged:
    """What the network made of a part of the data, or of its first batches."""

    batch_s: list[float]  # of every batch
    samples: int
    loss: float | None  # mean; None of no samples
    accuracy: float | None


def judged(session: Session, stepper: Any, part: str, most: int | None) -> Judged:
    """Put a part's batches through the network without training it.

    Args:
        most: batches; None = all.
    """
    workload: Any = session.workload
    batches = session.data.part_batches(part, workload.batch_size)
    batch_s: list[float] = []
    losses_sum, right, samples = 0.0, 0, 0
    while most is None or len(batch_s) < most:
        session.progress(part, len(batch_s))
        start = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        losses, hits = compared(stepper.outputs(batch), batch["labels"])
        batch_s.append(time.perf_counter() - start)
        losses_sum, right = losses_sum + losses, right + hits
        samples += len(batch["labels"])
    session.timed(sum(batch_s))
    if not samples:
        return Judged(batch_s, 0, None, None)
    return Judged(batch_s, samples, losses_sum / samples, right / samples)


def compared(logits: np.ndarray, labels: np.ndarray) -> tuple[float, int]:
    """(sum of the cross-entropies, number of right answers).

    Args:
        logits: (B, classes), float32.
        labels: (B,).
    """
    import numpy as np

    logits = logits.astype(np.float64)
    highest = logits.max(axis=1)
    logarithms = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1))
    losses = logarithms - logits[np.arange(len(labels)), labels]
    return float(losses.sum()), int((logits.argmax(axis=1) == labels).sum())
