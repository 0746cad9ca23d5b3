"""How long a cell should take: as long as last time, else what its process and its budgets come to.

Nobody knows beforehand how fast a device is: where a step lasts longer than the budget, so does the cell.
"""

from __future__ import annotations

from siliconprof.cells import matrix
from siliconprof.session.energy import LEAST_WINDOW_S, SETTLE_S
from siliconprof.session.timing import GPU_WARM_UP_S
from siliconprof.session.trial import Trial
from siliconprof.store.contents import Record

# Seconds as seen on two cores of a server.
PROCESS_S = 0.7  # a job of Snakemake, its supervisor, and a process that is forked and ends
INTERPRETER_S = 0.3  # of its own
IMPORTS_S = {  # by their names in `Trial.imports`
    "torch": 1.9,
    "torch._dynamo": 1.2,
    "transformers.modeling_utils": 1.6,
    "Trainer": 1.5,
    "deepspeed": 1.0,
    "mlx_audio.stt.models.whisper.whisper": 0.5,
    "peft": 0.4,
}
OTHER_IMPORT_S = 0.1


def seconds(planned: matrix.PlannedCell, earlier: Record | None) -> float:
    """Seconds that a cell should take.

    Args:
        earlier: its last record, if there is one.
    """
    if earlier and (last_s := earlier.accounting.get("child_wall_s")):
        return float(last_s)
    cell, trial, timing = planned.cell, planned.trial, planned.cell.timing
    work_s = trial.workload.planned_s(timing["warmup_budget_s"] + timing["budget_s"])
    window_s = timing["energy_window_s"]
    if trial.trains and cell.device_kind == "gpu" and window_s >= LEAST_WINDOW_S:
        work_s += window_s + 2 * (SETTLE_S + timing["energy_idle_s"])
    if cell.device_kind == "gpu":
        work_s += GPU_WARM_UP_S
    own_s = 0.0 if planned.forked else INTERPRETER_S + sum(map(import_s, names(trial)))
    if fresh := 0 if trial.trains else trial.workload.fresh_processes:
        once = 1 if planned.forked else fresh
        work_s += once * (INTERPRETER_S + import_s(trial.backend.framework))
    return cell.parameters.get("repeats", 1) * (PROCESS_S + own_s + work_s)


def names(trial: Trial) -> list[str]:
    """What its process imports."""
    return [name for name, _ in trial.imports()]


def import_s(name: str) -> float:
    """Seconds of one of these imports."""
    return IMPORTS_S.get(name, OTHER_IMPORT_S)
