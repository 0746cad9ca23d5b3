"""How long a cell should take: as long as last time, else what its process and its budgets come to.

Nobody knows beforehand how fast a device is: the least number of steps of a large model may last
longer than the budgets, of which a processor's cores give a rough idea.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from siliconprof import formatting
from siliconprof.cells import matrix
from siliconprof.cells.of_model import MODEL_TRAINERS
from siliconprof.session.energy import LEAST_WINDOW_S, SETTLE_S
from siliconprof.session.resolved_cell import ResolvedCell
from siliconprof.session.timing import FEWEST_REPEATS, GPU_WARM_UP_S, overran
from siliconprof.store.contents import Record

# Seconds as seen on two cores of a server.
PROCESS_S = 0.7  # a job of Snakemake, its supervisor, and a process that is forked and ends
INTERPRETER_S = 0.3  # of its own
IMPORTS_S = {  # by their names in `ResolvedCell.imports`
    "torch": 1.9,
    "torch._dynamo": 1.2,
    "transformers.modeling_utils": 1.6,
    "Trainer": 1.5,
    "deepspeed": 1.0,
    "mlx_audio.stt.models.whisper.whisper": 0.5,
    "peft": 0.4,
}
OTHER_IMPORT_S = 0.1
CORE_FLOP_PER_S = 2e10  # of a training; 12 and 26 GFLOP/s were seen under MLX and torch
STEPS_BESIDE = 10  # what is read beside the timed ones takes as long as so many


def seconds(planned: matrix.PlannedCell, earlier: Record | None) -> float:
    """Seconds that a cell should take.

    Args:
        earlier: its last record, if there is one.
    """
    if earlier and (last_s := earlier.accounting.child_wall_s):
        return float(last_s)
    cell, resolved, timing = planned.cell, planned.resolved, planned.cell.timing
    work_s = resolved.workload.planned_s(timing["warmup_budget_s"] + timing["budget_s"])
    if cell.device_kind == "cpu" and cell.trainer in MODEL_TRAINERS:
        work_s = max(work_s, _least_s(resolved, cell.threads, timing))
    window_s = timing["energy_window_s"]
    if resolved.trains and cell.device_kind == "gpu" and window_s >= LEAST_WINDOW_S:
        work_s += window_s + 2 * (SETTLE_S + timing["energy_idle_s"])
    if cell.device_kind == "gpu":
        work_s += GPU_WARM_UP_S
    own_s = (
        0.0
        if planned.forked
        else INTERPRETER_S + sum(import_s(name) for name, _ in resolved.imports())
    )
    if fresh := 0 if resolved.trains else resolved.workload.fresh_processes:
        once = 1 if planned.forked else fresh
        work_s += once * (INTERPRETER_S + import_s(resolved.backend.framework))
    return cell.parameters.get("repeats", 1) * (PROCESS_S + own_s + work_s)


def _least_s(resolved: ResolvedCell, threads: int, timing: Mapping[str, Any]) -> float:
    """Return the seconds that the least number of steps takes on this many cores."""
    step_s = resolved.workload.flops_per_step()[0] / (threads * CORE_FLOP_PER_S)
    iterations = timing["iterations"]
    if overran(2 * iterations * step_s, timing["budget_s"]):
        iterations = FEWEST_REPEATS
    return float(step_s * (timing["warmup_iterations"] + 2 * iterations + STEPS_BESIDE))


def announced(due: Sequence[matrix.PlannedCell]) -> list[str]:
    """Return the lines before these cells are measured: what models need, and how long it takes."""
    minutes = sum(seconds(one, None) for one in due if not one.resolved.refusal()) / 60
    about = f"about {minutes:.0f} min" if minutes >= 1 else "under a minute"
    labels = {one.cell.host for one in due}
    cells = (
        f"{formatting.count(len(due), 'cell')} to measure on {formatting.listing(labels)}: {about}"
    )
    return [line.replace(formatting.NARROW, " ") for line in (*_needs_of_models(due), cells)]


def _needs_of_models(due: Sequence[matrix.PlannedCell]) -> Iterator[str]:
    """`smollm2-135m-1x128: 134.5 M parameters, 2,269 to 2,471 MiB of 23.5 GiB` of each and each device."""
    needs: dict[tuple[str, str], list[matrix.PlannedCell]] = {}
    for one in due:
        if one.cell.module == "causal_lm":
            name = one.cell.workload.removesuffix(f"-{one.cell.trainer}")
            needs.setdefault((name, one.cell.device), []).append(one)
    for (name, device), cells in needs.items():
        scenarios = [one.resolved.scenario() for one in cells]
        predicted = sorted({one["predicted_bytes"] for one in scenarios if one["predicted_bytes"]})
        ends = dict.fromkeys(
            formatting.mebibytes(bound) for bound in [*predicted[:1], *predicted[-1:]]
        )
        capacity = scenarios[0]["capacity_bytes"]
        of = f" of {formatting.mebibytes(capacity)}" if capacity else ""
        millions = cells[0].resolved.workload.weights.n_parameters() / 1e6
        parameters = f"{formatting.significant(millions, 4)} M parameters"
        yield f"{name}: {parameters}, {' to '.join(ends)}{of} on {device}"


def import_s(name: str) -> float:
    """Seconds of one of these imports."""
    return IMPORTS_S.get(name, OTHER_IMPORT_S)
