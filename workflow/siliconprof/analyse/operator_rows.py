"""A training's operators as lines of operators.csv, with the framework's own time by phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from siliconprof.session.timing import PHASES
from siliconprof.stats import statistics
from siliconprof.store.table_files import KEY

if TYPE_CHECKING:
    import pandas as pd

FRAMEWORK = "framework"  # what a phase lasts beyond its operators
OPTIMIZER = "optimizer"
ELEMENTWISE = "elementwise operators"
OTHERS = "other operators"
OPTIMIZER_PHASE = "optimizer_s"
# What an operator does -> how torch's names of it begin, without `aten::`, and MLX's primitives.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "products": ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "Matmul", "AddMM"),
    "attention": ("_scaled_dot_product", "_flash_attention", "_efficient_attention"),
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


def parts(frame: pd.DataFrame) -> dict[tuple, dict[str, float]]:
    """Key of a training's point -> each of `PARTS` that it has -> seconds of a step.

    Only of trainings whose operators are timed.

    Args:
        frame: operators.csv.
    """
    found: dict[tuple, dict[str, float]] = {}
    if frame.empty:
        return found
    timed = frame[frame["seconds"].notna()]
    part = timed["group"].where(timed["group"].isin(PARTS), OTHERS).rename("part")
    sums = timed.groupby([*KEY, "point", part], sort=False)["seconds"].sum()
    for name, seconds in sums.items():
        *place, index, part_name = cast(tuple, name)
        found.setdefault((*place, int(index)), {})[part_name] = float(seconds)
    return found


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
        phases = operators.get("phases") or point["times"]
        for phase in PHASES if spent_s else ():
            if not phases.get(phase):
                continue
            yield {
                "point": index,
                "group": FRAMEWORK,
                "phase": phase,
                "seconds": statistics.median(phases[phase]) - spent_s[phase],
            }
