"""A training's operators as lines of operators.csv, with the framework's own time by phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from statistics import fmean

from siliconprof.session.timing import PHASES
from siliconprof.stats import statistics
from siliconprof.store import columns
from siliconprof.store.contents import Point
from siliconprof.store.point import OfProcess, Operator, Series
from siliconprof.store.table_files import Row

# Parts of the time in which a phase runs no operator: the rest, and what is known of it.
FRAMEWORK, BLOCKED, WAITING = "framework", "blocked", "waiting for a core"
OPTIMIZER_PART = "optimizer"
ATTENTION = "attention"
ELEMENTWISE = "elementwise operators"
OPTIMIZER_PHASE = "optimizer_s"
# What an operator does -> how torch's names of it begin, without `aten::`, and MLX's primitives.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "products": (
        *("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "linear"),
        *("Matmul", "AddMM"),
    ),
    ATTENTION: ("_scaled_dot_product", "_flash_attention", "_efficient_attention"),
    "convolutions": (
        *("convolution", "_convolution", "cudnn_convolution", "max_pool", "avg_pool"),
        "Convolution",
    ),
    "recurrent layers": (
        *("mkldnn_rnn_layer", "_cudnn_rnn", "_thnn_fused_lstm", "_lstm_mps", "lstm_mps"),
    ),
    "norms": ("native_layer_norm", "_fused_rms_norm", "native_batch_norm", "native_group_norm"),
    "softmax and loss": (
        *("_softmax", "_safe_softmax", "_log_softmax", "nll_loss", "log_softmax"),
        *("Softmax", "LogSumExp"),
    ),
    "lookups": (
        *("embedding", "index", "gather", "scatter", "select_backward", "Gather", "Scatter"),
    ),
    "copies and casts": (
        *("_to_copy", "copy_", "clone", "cat", "stack", "constant_pad", "repeat"),
        *("AsType", "Concatenate", "Flatten", "Full", "Pad", "Reshape", "Slice", "Split"),
    ),
}
# The parts of a step, in the order in which they are shown.
OPERATOR_PARTS = (*GROUPS, ELEMENTWISE, OPTIMIZER_PART)
PARTS = (*OPERATOR_PARTS, BLOCKED, WAITING, FRAMEWORK)


def group(kind: str, phase: str) -> str:
    """The group of an operator by what it does; all of the optimizer's are one group."""
    if phase == OPTIMIZER_PHASE:
        return OPTIMIZER_PART
    name = kind.rpartition("::")[2].partition(".")[0]
    for found, names in GROUPS.items():
        for begins in names:
            if name == begins or (len(begins) > 4 and name.startswith(begins)):
                return found
    return ELEMENTWISE


def timed_phases(process: OfProcess) -> dict[str, Series]:
    """Phase -> its seconds in steps whose operators were not watched; empty if no operator was timed."""
    operators = process.operators
    if operators is None or not any(operator.seconds for operator in operators.rows):
        return {}
    phases = operators.phases or process.times
    return {phase: phases[phase] for phase in PHASES if phases.get(phase)}


def slowdown(process: OfProcess) -> float:
    """The median step of the training over that of the steps among which operators were timed."""
    own = process.series("whole_step_s")
    if process.operators is None or not process.operators.whole_step_s or not own:
        return 1.0
    return statistics.median(own) / statistics.median(process.operators.whole_step_s)


def operators_of_point(point: Point) -> Iterator[Row]:
    """Lines of operators.csv: what a training's step is made of; medians over its steps.

    The lines of a phase sum to its median in the steps whose operators were not watched, scaled by
    `slowdown`. Several processes are averaged.
    """
    if point.operators is None:
        return
    of_processes: defaultdict[Hashable, list[float]] = defaultdict(list)
    framework_s: defaultdict[str, list[float]] = defaultdict(list)
    for process in point.processes:
        spent_s: defaultdict[str, float] = defaultdict(float)
        times, timed = slowdown(process), process.operators
        for operator in timed.rows if timed else ():
            if operator.seconds:
                seconds = times * statistics.median(operator.seconds)
                of_processes[_own(operator)].append(seconds)
                spent_s[operator.phase] += seconds
        for phase, phase_s in timed_phases(process).items():
            framework_s[phase].append(times * statistics.median(phase_s) - spent_s[phase])
    for operator in point.operators.rows:
        yield {
            "group": group(operator.kind, operator.phase),
            **columns.row(operator),
            "seconds": fmean(found) if (found := of_processes[_own(operator)]) else None,
            "reason": point.operators.reason,
        }
    for phase, seconds_of in framework_s.items():
        yield {"group": FRAMEWORK, "phase": phase, "seconds": fmean(seconds_of)}


def _own(operator: Operator) -> Hashable:
    """The key of an operator in its step, which is the same in each process."""
    one = operator
    return one.phase, one.kind, one.role, one.inputs, one.bytes, one.flops
