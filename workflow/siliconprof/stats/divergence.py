"""How a whole training ended: what its losses say of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

LAST_SHARE = 10  # the last tenth of the steps stands for the end: single losses scatter


def final_loss(losses: Sequence[float]) -> float:
    """Mean over the last tenth of the steps, one at least."""
    last = losses[-max(1, len(losses) // LAST_SHARE) :]
    return math.fsum(last) / len(last) if all(map(math.isfinite, last)) else math.nan


def outcome(losses: Sequence[float]) -> dict[str, Any]:
    """`diverged`, `reason` and `final_loss` of a training, the losses of its steps in order.

    A loss that is not finite, or an end above the beginning: divergence is what came out, not a
    failure.
    """
    final, reason = final_loss(losses), None
    lost = next((step for step, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if lost is not None:
        reason = f"the loss of step {lost} is not finite"
    elif final > losses[0]:
        reason = (
            f"the mean loss of the last tenth of the steps, {final:.4g}, is above the first one, "
            f"{losses[0]:.4g}"
        )
    return {
        "diverged": reason is not None,
        "reason": reason,
        "final_loss": final if math.isfinite(final) else None,
    }
