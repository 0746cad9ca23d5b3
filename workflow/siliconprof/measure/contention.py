"""Whether a training that other processes disturbed is measured once more, and which of the two stays."""

from __future__ import annotations

import time

from siliconprof.probes import interference
from siliconprof.store.contents import Record

DISTURBED = "contended"  # flag
MECHANISM_ONLY_CODE = "offload_on_cpu"  # flag of what no table compares
LOOKS_S = 0.5  # at the load of now


def is_over(record: Record, budget_s: float) -> bool:
    """Whether a disturbed training is to be measured again: within the budget, on an idle host.

    Trainings whose batch size was found are not, since nothing is compared with them, nor those with
    `capture`, whose files would be overwritten.
    """
    cell, accounting = record.cell, record.accounting
    took_s = (accounting.wall_s or 0.0) - (accounting.waited_for_lock_s or 0.0)
    if not cell.trainer or cell.parameters.get("capture") or took_s > budget_s:
        return False
    if DISTURBED not in record.codes or MECHANISM_ONLY_CODE in record.codes:
        return False
    if record.status != "ok" or record.scenario.batch_size_found:
        return False
    load = interference.ForeignLoad()
    time.sleep(LOOKS_S)
    return (load.cores(LOOKS_S) or 0.0) <= interference.FLAG_ABOVE_CORES


def is_less(one: Record, other: Record) -> bool:
    """Whether a record is less disturbed than another.

    Times do not decide: of two equally good records the faster one would always win.
    """
    return one.status == "ok" and _disturbance(one) < _disturbance(other)


def _disturbance(record: Record) -> tuple[bool, float]:
    return DISTURBED in record.codes, record.probed("interference", "foreign_load_cores") or 0.0
