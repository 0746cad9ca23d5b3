"""Are the numbers true? Checks before every cell measures, which cells of the same kind share.

The clock is compared with a second one over sleeps of a given length, and the backend's marks with
the clock. A product and a sum are timed as everything is timed, with some work and with twice as
much, and after a timed call their result must be there. A check that fails flags the cell and
changes nothing else.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from siliconprof.errors import in_one_line
from siliconprof.lifetime import PIPELINE_VARIABLE
from siliconprof.probes.interference import FLAG_ABOVE_CORES, ForeignLoad
from siliconprof.session.cell_run import CellRun
from siliconprof.session.reference_kernels import (
    AIM_S,
    CALL_S,
    VECTOR_BYTES,
    ReferenceKernel,
    ReferenceKernels,
)
from siliconprof.stats import statistics
from siliconprof.store import documents, temporary
from siliconprof.store.cell import canonical_sha256

PROPORTIONAL = (1.85, 2.15)  # times as long for twice the work
LAUNCH_S = 1e-4  # more than dispatching work takes, and less than the work that is fitted
ROUNDS, FEWEST_ROUNDS, ROUNDS_S = 30, 3, 0.6  # the first, or as many as last the third
MARK_ROUNDS, MARKS_DIFFER = 5, 0.1  # of the host's clock
LEAST_WAITS = 40  # the marked work lasts so many waits, which one of the two clocks counts
SECOND_CLOCK = "CLOCK_MONOTONIC_RAW"
CLOCKS_DIFFER = 0.01  # of the second clock: NTP may slew a clock by several per cent (chrony.conf)
SLEEP_ASKED_S, SLEEPS = 0.02, 3
SHARE_OF_MEMORY = 1 / 16
WAITED_SHARE = 0.5  # of the time until a result is read, at least, lies inside the timed call
SHARED_FOR_S = 600.0  # seconds that one run's checks count
BUSY_FOR_S = 60.0  # the same where something could not be checked, as on a busy host
COARSEST_S = 1e-5  # resolution and cost of the clock
KERNEL_CHECKS = ("twice_the_work", "synchronisation", "marks")

Check = dict[str, Any]  # `verdict`: ok, failed or not checked; `reason` unless ok; and numbers


def verdict(reason: str | None, **numbers: Any) -> Check:
    """A check that is ok, or failed for a reason."""
    return {"verdict": "failed" if reason else "ok", "reason": reason, **numbers}


def not_checked(reason: str, **numbers: Any) -> Check:
    """A check that could not be made."""
    return {"verdict": "not checked", "reason": reason, **numbers}


def clock_checks(cell_run: CellRun) -> dict[str, Check]:
    """`clock` and `sleep`; either flags the cell with `clock`.

    A second clock measures the sleeps too, since a busy host wakes up late by both. On Linux
    `perf_counter` is CLOCK_MONOTONIC, whose rate NTP adjusts, and that of the second is not
    (clock_gettime(2)). Both count one oscillator: an error of that shows in neither.
    """

    def second() -> float:
        return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)

    readings = [time.perf_counter() for _ in range(2000)]
    resolution_s = time.get_clock_info("perf_counter").resolution
    cost_s = statistics.median([b - a for a, b in zip(readings, readings[1:], strict=False)])
    all_s, second_all_s = list[float](), list[float]()
    for _ in range(SLEEPS):
        start = time.perf_counter(), second()
        time.sleep(SLEEP_ASKED_S)
        all_s.append(time.perf_counter() - start[0])
        second_all_s.append(second() - start[1])
    measured_s = statistics.median(all_s)
    ratio = statistics.median([a / b for a, b in zip(all_s, second_all_s, strict=True)])
    coarse = differs = None
    if max(resolution_s, cost_s) > COARSEST_S:
        coarse = f"it resolves {resolution_s:.1e} s and takes {cost_s:.1e} s to read"
    if measured_s < SLEEP_ASKED_S or abs(ratio - 1) > CLOCKS_DIFFER:
        differs = (
            f"a sleep of {SLEEP_ASKED_S} s was measured as {measured_s:.4f} s, {ratio:.3f} times as "
            f"long as by {SECOND_CLOCK}"
        )
    for reason in (coarse, differs):
        if reason:
            cell_run.flag("clock", reason)
    return {
        "clock": verdict(coarse, resolution_s=resolution_s, reading_cost_s=cost_s),
        "sleep": verdict(
            differs,
            second_clock=SECOND_CLOCK,
            asked_s=SLEEP_ASKED_S,
            measured_s=measured_s,
            ratio=ratio,
            all_s=all_s,
            second_all_s=second_all_s,
        ),
    }


def doubled(
    kernel: str,
    time_one: Callable[[ReferenceKernel], float],
    once: ReferenceKernel,
    twice: ReferenceKernel,
    lasts_s: float,
) -> Check:
    """The check of one kernel, with the raw seconds of both amounts of work in turn.

    The number of rounds is fixed before the first, so that chance does not end them. The lower quartile
    is as good as the median where times scatter evenly, and withstands disturbances, which only make calls
    longer, in up to half of them. Where the quartiles of the rounds' own ratios reach into the
    proportional range, nothing is shown: ratios of launches alone take any size now and then.

    Args:
        lasts_s: seconds of the work once, whatever the timed call waits for.
    """
    for warm in (once, twice):
        time_one(warm)
    n_rounds = min(ROUNDS, max(FEWEST_ROUNDS, int(ROUNDS_S / (3 * lasts_s))))
    once_s, twice_s = [], []
    for _ in range(n_rounds):
        once_s.append(time_one(once))
        twice_s.append(time_one(twice))
    low, high = (statistics.quantile(times, 0.25) for times in (once_s, twice_s))
    ratio = statistics.divided(high, low)
    reason = None
    if not PROPORTIONAL[0] <= (ratio or 0) <= PROPORTIONAL[1] or min(once_s) < LAUNCH_S:
        reason = (
            f"twice the work of a {kernel} took {ratio or 0:.2f} times as long, {high:.2e} s "
            f"against {low:.2e} s"
        )
    numbers: Check = {"kernel": kernel, "ratio": ratio, "flops": once.flops, "bytes": once.bytes}
    numbers |= {"once_s": once_s, "twice_s": twice_s}
    if reason and min(once_s) >= LAUNCH_S:
        of_rounds = [b / a for a, b in zip(once_s, twice_s, strict=True)]
        least, most = (statistics.quantile(of_rounds, share) for share in (0.25, 0.75))
        if least <= PROPORTIONAL[1] and most >= PROPORTIONAL[0]:
            return not_checked(f"{reason}, from {least:.2f} to {most:.2f} times", **numbers)
    return verdict(reason, **numbers)


def marks_check(shop: ReferenceKernels, work: ReferenceKernel, lasts_s: float) -> Check:
    """Whether the backend's marks and the host's clock agree on work of some milliseconds.

    Args:
        lasts_s: seconds of one call of the work.
    """
    wait_s = statistics.median([shop.marked_s(work, 0)[1] for _ in range(MARK_ROUNDS)])
    aim_s = max(AIM_S, min(LEAST_WAITS * wait_s, ROUNDS_S / MARK_ROUNDS))
    launches = math.ceil(aim_s / lasts_s)
    rounds = [shop.marked_s(work, launches) for _ in range(MARK_ROUNDS)]
    ratio = statistics.median([by_marks / wall for by_marks, wall in rounds])
    marks_s, wall_s = ([both[index] for both in rounds] for index in (0, 1))
    numbers = {"ratio": ratio, "wait_s": wait_s, "marks_s": marks_s, "wall_s": wall_s}
    lasts_s = statistics.median(wall_s)
    if lasts_s < CALL_S or wait_s > MARKS_DIFFER / 2 * lasts_s:
        return not_checked(
            f"the work took {lasts_s:.1e} s, {wait_s:.1e} s of them for waiting", **numbers
        )
    differ = (
        f"work of {lasts_s:.2e} s by the host's clock took {ratio:.3g} times as long by the "
        "backend's marks"
    )
    return verdict(differ if abs(ratio - 1) > MARKS_DIFFER else None, **numbers)


def kernel_checks(cell_run: CellRun) -> dict[str, Check]:
    """Run `KERNEL_CHECKS`; a check that fails flags the cell.

    Where each call is waited for, twice the work is `not checked` rather than failed if the memory
    that it may use holds too little work for a call that lasts long enough, or if other processes
    had the processors meanwhile.
    """
    backend, cell = cell_run.backend, cell_run.cell
    memory = cell.device_memory_bytes or backend.memory.recommended_bytes()
    most_bytes = int(memory * SHARE_OF_MEMORY) if memory else VECTOR_BYTES
    shop = ReferenceKernels(backend, cell.seed, most_bytes)
    values, sum_s = shop.fit_sum()
    side, n, product_s = shop.fit_products()
    product = shop.products(side, n)
    kernels = (
        ("product", product, shop.products(side, 2 * n), product_s),
        ("sum", shop.sum(values), shop.sum(2 * values), sum_s),
    )
    waited = {}  # share of the time until a result is read that is inside the timed call
    for kernel, once, _, _ in kernels:
        pairs = [shop.finished(once) for _ in range(3)]
        waited[kernel] = statistics.median([timed_s / (timed_s + s) for timed_s, s in pairs])
    missing = [kernel for kernel, share in waited.items() if share < WAITED_SHARE]
    unfinished = missing and (
        f"only {waited[missing[0]]:.0%} of the time until the result of a {missing[0]} could be "
        "read lay inside the timed call"
    )
    synchronised = verdict(unfinished or None, waited_shares=waited)
    checks = []
    for kernel, once, twice, lasts_s in kernels:
        others, began = ForeignLoad(), time.perf_counter()
        check = doubled(kernel, shop.call_s, once, twice, lasts_s)
        cores = others.cores(time.perf_counter() - began) or 0.0
        if check["verdict"] == "failed" and not missing:
            if lasts_s < CALL_S:
                check |= not_checked(
                    f"a {kernel} of all the memory it may use, {most_bytes} bytes, takes only "
                    f"{lasts_s:.1e} s; {check['reason']}"
                )
            elif cores > FLAG_ABOVE_CORES:
                check |= not_checked(
                    f"other processes used {cores:.2f} cores meanwhile; {check['reason']}"
                )
        checks.append(check)
    marks = marks_check(shop, product, product_s)
    for code, check in (
        ("not_synchronised", synchronised),
        *(("not_proportional", check) for check in checks),
        ("marks_differ", marks),
    ):
        if check["verdict"] == "failed":
            cell_run.flag(code, check["reason"])
    return {
        "twice_the_work": {
            "verdict": worst_verdict(check["verdict"] for check in checks),
            "reason": "; ".join(check["reason"] for check in checks if check["reason"]) or None,
            "kernels": checks,
        },
        "synchronisation": synchronised,
        "marks": marks,
    }


def worst_verdict(verdicts: Iterable[str]) -> str:
    """The verdict of several checks together."""
    distinct = set(verdicts)
    return next((verdict for verdict in ("failed", "not checked") if verdict in distinct), "ok")


def checks_before(cell_run: CellRun) -> dict[str, Check]:
    """The checks before the first measurement; their memory is freed.

    A run's cells of the same device, backend, threads and environment share them for a while.
    """
    shared = _shared(cell_run)
    if taken_over := _taken_over(shared):
        return taken_over
    made, for_s = clock_checks(cell_run), 0.0
    try:
        made |= kernel_checks(cell_run)
        outcome = worst_verdict(check["verdict"] for check in made.values())
        for_s = {"ok": SHARED_FOR_S, "not checked": BUSY_FOR_S}.get(outcome, 0.0)
    except Exception as error:  # out of memory, an operator that the device lacks
        made |= {name: not_checked(in_one_line(error)) for name in KERNEL_CHECKS}
    if shared and for_s:
        cell = cell_run.cell.path.partition("/")[2]  # the host's name may go from the record
        note = {"at_s": time.monotonic(), "for_s": for_s, "cell": cell, "checks": made}
        temporary.write(shared, json.dumps(note))
    cell_run.backend.memory.empty_cache()
    cell_run.backend.memory.reset_peak()
    return made


def _shared(cell_run: CellRun) -> Path | None:
    """The file of the checks that cells like this one share in a run; None outside of a pipeline."""
    cell, pipeline = cell_run.cell, os.environ.get(PIPELINE_VARIABLE)
    own = cell_run.backend.features.environment(cell.device_index, cell.precision, os.environ)
    device = [cell.device, cell.device_index, cell.backend, cell.threads]
    key = canonical_sha256([pipeline, *device, sorted(own.items())])
    folder = Path(tempfile.gettempdir())
    return folder / f"siliconprof-checks-{key[:16]}.json" if pipeline else None


def _taken_over(shared: Path | None) -> dict[str, Check]:
    """The checks of an earlier cell, with its name and their age; empty if none are valid."""
    try:
        found = documents.read(shared) if shared else {}
    except (OSError, ValueError):
        found = {}
    age_s = time.monotonic() - found.get("at_s", -math.inf)
    if not 0 <= age_s < found.get("for_s", 0.0):
        return {}
    origin = {"taken_from": found["cell"], "age_s": age_s}
    return {name: check | origin for name, check in found["checks"].items()}


def precision_check(requested: str, effective: str | None, evidence: Mapping[str, Any]) -> Check:
    """Whether the arithmetic was what the cell asked for."""
    differs = f"asked for {requested}, the arithmetic was {effective}"
    error = evidence.get("product_error")
    facts = {"requested": requested, "effective": effective, "product_error": error}
    return verdict(None if effective == requested else differs, **facts)
