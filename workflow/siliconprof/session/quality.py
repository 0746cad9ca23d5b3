"""Checks of a cell's figures once it has been measured; each problem flags the cell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from siliconprof.session.cell_run import CellRun
from siliconprof.session.self_checks import Check, not_checked, verdict
from siliconprof.session.timing import OVERRUN, changing, drifting, noise, order, wandering
from siliconprof.stats import statistics

SERIES = ("whole_step_s", "step_s", "launch_and_wait_s")  # the first stands for its point
WORK_DIFFERS_ABOVE = 0.05  # of what is counted; the formulas of trainings leave small terms out
SPLIT_DIFFERS_ABOVE = 0.05  # of the whole step, for steps of at least the following
SPLIT_CHECKED_FROM_S = 0.020
# Without a backward pass to come, less is saved and MLX builds a smaller graph: a forward pass by
# itself is somewhat faster. The rest of this is room for noise.
FORWARD_DIFFERS_ABOVE = 0.25


def label(cell_run: CellRun, point: Mapping[str, Any]) -> str:
    """A point's parameters as ` (batch=1 k=64 …)`; empty for a training's only one."""
    if cell_run.workload.kind == "training" and len(cell_run.points) == 1:
        return ""
    declared = cell_run.workload.POINT
    own = {k: v for k, v in point["params"].items() if k not in declared or not declared[k].derived}
    return f" ({' '.join(f'{key}={value}' for key, value in own.items())})"


def noise_flags(cell_run: CellRun) -> None:
    """Flag points whose times scatter."""
    for point in cell_run.points:
        for name in SERIES:
            problem = noise(point["times"].get(name) or [])
            if problem:
                cell_run.flag("noisy", f"{name}{label(cell_run, point)} {problem}")


def disturbed_flags(cell_run: CellRun) -> None:
    """Flag a cell some of whose points other processes disturbed, or that took too long."""
    overran = f"ended after {OVERRUN} times its budget, with fewer repeats than were asked for"
    for code, why in (
        ("points_disturbed", lambda point: point.get("disturbed")),
        ("fewer_repeats", lambda point: point.get("stopped_by") == "overrun" and overran),
    ):
        reasons = [
            f"{label(cell_run, point)} {why(point)}" for point in cell_run.points if why(point)
        ]
        if reasons:
            first = reasons[0].strip()
            cell_run.flag(code, f"{len(reasons)} of {len(cell_run.points)} points: {first}")


def order_flags(cell_run: CellRun) -> Check:
    """Add `drift` and `change_point` to each point and flag those that matter; the check `drift`."""
    assessed, ratios, retried = 0, [], 0
    reasons = []
    for point in cell_run.points:
        name = next((name for name in SERIES if point["times"].get(name)), None)
        if name is None:
            continue
        if "drift" not in point:
            point |= order(point["times"][name])
        retried += len(point.get("attempts") or [])
        assessed += point["drift"] is not None
        if point["drift"]:
            ratios.append(point["drift"]["ratio"])
        drifts, changes = drifting(point), changing(point)
        drifts = drifts or wandering(point["times"][name])
        if drifts and changes:
            drifts = f"{drifts}; it {changes}"
        if problem := drifts or changes:
            reasons.append(f"{name}{label(cell_run, point)} {problem}")
            cell_run.flag("drift" if drifts else "change_point", reasons[-1])
    numbers = {
        "points": assessed,
        "worst_ratio": max(ratios, key=lambda ratio: abs(math.log(ratio)), default=None),
        "given_up": retried,
    }
    if not assessed:
        reason = f"fewer than {statistics.FEWEST_IN_ORDER} repeats tell nothing of their order"
        return not_checked(reason, **numbers)
    return verdict("; ".join(reasons) or None, **numbers)


def work_check(cell_run: CellRun) -> Check:
    """Check that the observed operators do as many operations as the points claim; flag where not."""
    compared, reasons = 0, []
    for point in cell_run.points:
        counted, said = counted_flops(cell_run, point), point.get("flops")
        if not counted or not said or cell_run.workload.parameters.get("gradient_checkpointing"):
            continue
        compared += 1
        if abs(said / counted - 1) > WORK_DIFFERS_ABOVE:
            text = f"{said:.4g} operations are said, {counted:.4g} are counted"
            reasons.append(f"{text}{label(cell_run, point)}")
    if reasons:
        cell_run.flag("work_differs", f"{len(reasons)} of {compared} points: {reasons[0]}")
    if not compared:
        return not_checked("nothing counts the operations", points=0)
    return verdict("; ".join(reasons[:1]) or None, points=compared)


def counted_flops(cell_run: CellRun, point: Mapping[str, Any]) -> int | None:
    """FLOPs of a point's operators, where the framework's own counter knows all; else None."""
    if observed := point.get("observed"):
        return observed["flops"]
    profiler = cell_run.backend.profiler
    if not profiler.counts_flops:  # a formula of ours would prove nothing
        return None
    rows = (point.get("operators") or {}).get("rows", ())
    return profiler.total_flops((r["kind"], r["flops"], r["count"]) for r in rows)


def split_flags(cell_run: CellRun) -> None:
    """Flag a training whose phases do not sum to its step, or whose forward pass differs alone."""
    for point in cell_run.points:
        times = point["times"]
        if times.get("step_s") and times.get("whole_step_s"):
            whole = statistics.median(times["whole_step_s"])
            differs = statistics.median(times["step_s"]) / whole - 1
            if whole >= SPLIT_CHECKED_FROM_S and abs(differs) > SPLIT_DIFFERS_ABOVE:
                cell_run.flag(
                    "split_differs",
                    f"the sum of the phases{label(cell_run, point)} differs from the whole step by "
                    f"{differs:+.1%}",
                )
        ratio = point.get("forward_only_over_forward")
        forward = times.get("forward_s")
        if ratio and forward and statistics.median(forward) >= SPLIT_CHECKED_FROM_S:
            if abs(ratio - 1) > FORWARD_DIFFERS_ABOVE:
                cell_run.flag(
                    "forward_differs",
                    f"a forward pass by itself{label(cell_run, point)} takes {ratio:.2f} times as long as inside "
                    "a step",
                )


def diverged(cell_run: CellRun) -> None:
    """Flag losses that are NaN or infinite; a record holds None for them."""
    for point in cell_run.points:
        losses = point.get("loss") or []
        if invalid := sum(loss is None or not math.isfinite(loss) for loss in losses):
            text = f"{invalid} of {len(losses)} losses are NaN or infinite"
            cell_run.flag("loss_not_finite", text)
