"""A training's operators as lines of operators.csv, with the framework's own time by phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from siliconprof.session.timing import PHASES
from siliconprof.stats import statistics

# What a phase lasts beyond its operators, and what of it is known to be something else.
FRAMEWORK, BLOCKED, WAITING = "framework", "blocked", "waiting for a core"
OPTIMIZER = "optimizer"
ATTENTION = "attention"
ELEMENTWISE = "elementwise operators"
OTHERS = "other operators"
OPTIMIZER_PHASE = "optimizer_s"
# What an operator does -> how torch's names of it begin, without `aten::`, and MLX's primitives.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "products": ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "Matmul", "AddMM"),
    ATTENTION: ("_scaled_dot_product", "_flash_attention", "_efficient_attention"),
    "convolutions": (
        *("convolution", "_convolution", "cudnn_convolution", "max_pool", "avg_pool"),
        "Convolution",
    ),
    "recurrent layers": ("mkldnn_rnn_layer", "_cudnn_rnn", "_thnn_fused_lstm", "lstm_mps"),
    "norms": ("native_layer_norm", "_fused_rms_norm", "native_batch_norm", "native_group_norm"),
    "softmax and loss": (
        *("_softmax", "_safe_softmax", "_log_softmax", "nll_loss", "log_softmax"),
        *("Softmax", "LogSumExp"),
    ),
    "lookups": (
        *("embedding", "index", "gather", "scatter", "select_backward"),
        *("Gather", "Scatter"),
    ),
    "copies and casts": (
        *("_to_copy", "copy_", "clone", "cat", "stack", "constant_pad", "repeat"),
        *("AsType", "Concatenate", "Flatten", "Full", "Pad", "Reshape", "Slice", "Split"),
    ),
}
# The parts of a step, in the order in which they are shown: groups, small ones taken together.
PARTS = (
    "products",
    "attention",
    "convolutions",
    "recurrent layers",
    ELEMENTWISE,
    OTHERS,
    OPTIMIZER,
    BLOCKED,
    WAITING,
    FRAMEWORK,
)


def group(kind: str, phase: str) -> str:
    """What an operator does; the optimizer's are one group whatever they do."""
    if phase == OPTIMIZER_PHASE:
        return OPTIMIZER
    name = kind.rpartition("::")[2].partition(".")[0]
    for found, names in GROUPS.items():
        for begins in names:
            if name == begins or (len(begins) > 4 and name.startswith(begins)):
                return found
    return ELEMENTWISE


def part_of(row: Mapping[str, Any]) -> str:
    """Which of `PARTS` an operator of a record belongs to."""
    found = group(row["kind"], row["phase"])
    return found if found in PARTS else OTHERS


def timed_phases(point: Mapping[str, Any]) -> dict[str, Sequence[float]]:
    """Phase -> its seconds in the steps that nobody watched; empty where no operator is timed."""
    operators = point.get("operators")
    if operators is None or not any(row["seconds"] for row in operators["rows"]):
        return {}
    phases = operators.get("phases") or point["times"]
    return {phase: phases[phase] for phase in PHASES if phases.get(phase)}


def rows(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of a record, without the cell's key: medians over its steps.

    The lines of a phase sum to the median of that phase in the steps that nobody watched.
    """
    for index, point in enumerate(data["points"]):
        operators = point.get("operators")
        if operators is None:
            continue
        spent_s: dict[str, float] = defaultdict(float)
        for row in operators["rows"]:
            seconds = statistics.median(row["seconds"]) if row["seconds"] else None
            if seconds is not None:
                spent_s[row["phase"]] += seconds
            yield (
                {"point": index, "group": group(row["kind"], row["phase"])}
                | row
                | {
                    "seconds": seconds,
                    "reason": operators["reason"],
                }
            )
        for phase, times in timed_phases(point).items():
            yield {
                "point": index,
                "group": FRAMEWORK,
                "phase": phase,
                "seconds": statistics.median(times) - spent_s[phase],
            }
