"""The quantities that a claim may compare: figures of measured rows with their uncertainty.

Those of operations, training and its course are here; `claims.system` has the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from siliconprof.claims import system
from siliconprof.claims.evidence import BACKENDS, SHAPES, Evidence, Figure, Quantity
from siliconprof.stats import inference, line_fit, training_course
from siliconprof.stats.training_course import Reading
from siliconprof.store.table_files import Row


def _sample_speed(evidence: Evidence, row: Row) -> Figure | str:
    return evidence.timed(row, row.get("samples_per_s"), "no step was timed")


def _fp16_gain(evidence: Evidence, row: Row) -> Figure | str:
    """The rate in fp16 over that of the same operation, place and shape in fp32."""
    if row["precision"] != "fp16":
        return "only a cell in fp16 has a gain from fp16"
    in_fp32 = evidence.in_fp32(row)
    if in_fp32 is None:
        return "the same operation in fp32 was not timed"
    rates = [evidence.timed(r, r.get("flop_per_s"), "no rate is known") for r in (row, in_fp32)]
    fast, slow = rates
    if isinstance(fast, str) or isinstance(slow, str):
        return fast if isinstance(fast, str) else str(slow)
    assert fast.estimate and slow.estimate
    gain = inference.difference(slow.estimate, fast.estimate, fast.basis)
    return Figure(fast.middle / slow.middle, gain, basis=fast.basis)


def _of_products(evidence: Evidence, row: Row) -> Figure | str:
    """FLOP/s of a step over those of the place's fastest matrix product."""
    best = evidence.best_product(row)
    if not best:
        return f"no matrix product in {row['precision']} was timed there"
    if not row.get("flop_per_s"):
        return "no number of operations is known"
    return evidence.timed(row, float(row["flop_per_s"]) / best, "no step was timed")


def _memory_bound(evidence: Evidence, row: Row) -> Figure | str:
    """The share of the memory's bandwidth over the share of the fastest product's rate."""
    if row.get("cache") == "warm":
        return "its data may stay in a cache, so memory does not limit it"
    bandwidth, source = evidence.bandwidth(row)
    best = evidence.best_product(row)
    if bandwidth is None:
        return source
    if not best:
        return f"no matrix product in {row['precision']} was timed there"
    if not row.get("bytes_per_s") or not row.get("flop_per_s"):
        return "its bytes or its operations are not known"
    # Both shares have the same time, whose error cancels; the error of the two ceilings remains.
    times = (row["bytes_per_s"] / bandwidth) / (row["flop_per_s"] / best)
    return evidence.timed(row, times, "no time is known")


OF_OPERATIONS: Mapping[str, Quantity] = {
    "sample_speed": Quantity("training samples", "1/s", _sample_speed, fastest=True),
    "fp16_gain": Quantity("rate in fp16 over that in fp32", "times", _fp16_gain),
    "of_products": Quantity(
        "a step's operations over the fastest product's", "times", _of_products, fastest=True
    ),
    "memory_bound": Quantity(
        "share of memory's bandwidth over share of the fastest product's rate",
        "times",
        _memory_bound,
    ),
}


COUNTED = "counted by the framework's allocator; its spread is unknown"


def _step_s(row: Row) -> float | None:
    step_s = row.get("unsplit_step_median_s") or row.get("step_median_s")
    return float(step_s) if step_s else None


def _inverse(value: Any) -> float | None:
    return 1 / float(value) if value else None


def _epoch_speed(evidence: Evidence, row: Row) -> Figure | str:
    return evidence.timed(row, _inverse(row.get("epoch_s")), "no epoch was timed")


def _step_speed(evidence: Evidence, row: Row) -> Figure | str:
    return evidence.timed(row, _inverse(_step_s(row)), "no step was timed")


def _throughput(evidence: Evidence, row: Row) -> Figure | str:
    rate = row.get("tokens_per_s") or row.get("samples_per_s")
    return evidence.timed(row, rate, "no step was timed")


def _flop_rate(evidence: Evidence, row: Row) -> Figure | str:
    return evidence.timed(row, row.get("flop_per_s"), "no rate of operations is known")


def _over_datasheet(evidence: Evidence, row: Row) -> Figure | str:
    sheet, seconds = evidence.sheets.peak(row, row["precision"]), _step_s(row)
    if sheet.value is None:
        return sheet.reason or "its data sheet gives no peak"
    if not row.get("flops"):
        return "no number of operations is known"
    expected_s = row["flops"] / sheet.value
    return evidence.timed(row, seconds and seconds / expected_s, "no step was timed")


def _epoch_by_peak(evidence: Evidence, row: Row) -> Figure | str:
    sheet, epoch_s = evidence.sheets.peak(row, row["precision"]), row.get("epoch_s")
    if sheet.value is None:
        return sheet.reason or "its data sheet gives no peak"
    return evidence.timed(row, epoch_s and epoch_s * sheet.value, "no epoch was timed")


def _iteration_over_min_run_time(evidence: Evidence, row: Row) -> Figure | str:
    """By torch's blocked_autorange, which repeats nothing when one run exceeds its minimum time."""
    minimum_s, median_s = row.get("autorange_min_run_time_s"), row.get("autorange_median_s")
    if not minimum_s or not median_s:
        return str(row.get("autorange_reason") or "blocked_autorange timed nothing")
    return evidence.timed(row, median_s / minimum_s, "blocked_autorange timed nothing")


def _peak_memory(evidence: Evidence, row: Row) -> Figure | str:
    peak = row.get("device_peak_bytes")
    if not peak:
        return "no counter reports its peak of memory"
    deviation = evidence.noise.deviation(row, "device_peak_bytes")
    if deviation is None:
        return Figure(peak, None, peak, peak, COUNTED)
    estimate = replace(deviation[0], log=math.log(peak), basis=deviation[1])
    return Figure(peak, estimate, basis=deviation[1])


def _read(reading: Reading | None, none: str, basis: str) -> Figure | str:
    if reading is None:
        return none
    return Figure(reading.middle, None, reading.low, reading.high, basis, reading.remark)


def _steady_loss(evidence: Evidence, row: Row) -> Figure | str:
    return _read(
        training_course.settled_loss(evidence.evaluated(row)),
        "fewer than three evaluations have a finite loss, or the loss never fell",
        "by the change of the loss between its last two evaluations; one seed",
    )


def _least_loss(evidence: Evidence, row: Row) -> Figure | str:
    return _read(
        training_course.settled_loss(evidence.evaluated(row), least=True),
        "fewer than three evaluations have a finite loss, or the loss never fell",
        "by the change of the loss between its last two evaluations; one seed",
    )


def _convergence_step(evidence: Evidence, row: Row) -> Figure | str:
    return _read(
        training_course.converged_at(evidence.course(row, "loss")),
        "too few steps with a finite loss, or the loss never fell",
        "by the distance of single steps from the smoothed loss; one seed",
    )


def _norm_elevated_until(evidence: Evidence, row: Row) -> Figure | str:
    return _read(
        training_course.elevated_until(evidence.course(row, "gradient_norm")),
        "too few steps with a finite gradient norm",
        "by the distance of single steps from their running median; one seed",
    )


def _unusual_share(evidence: Evidence, row: Row) -> Figure | str:
    """Share of steps that took far longer than the run's own spread explains."""
    marks = evidence.unusual(row)
    unusual = [bool(mark) for mark in marks if mark is not None]
    if not unusual:
        return "no course of step times, or too few steps"
    n, share = len(unusual), sum(unusual) / len(unusual)
    # Wilson's interval (J. Am. Stat. Assoc. 22, 1927), which holds for shares near 0.
    z = line_fit.NORMAL
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    low, high = max(0.0, middle - reach), middle + reach
    return Figure(share, None, low, high, f"95 % of a share of {n} steps")


def _fixed_share(evidence: Evidence, row: Row) -> Figure | str:
    share = row.get("fixed_share_smallest")
    if share is None:
        return str(row.get("fit_reason") or "no line through its batch sizes")
    low, high = (row.get(f"fixed_share_smallest_{end}") for end in ("low", "high"))
    low, high = (share if low is None else low), (share if high is None else high)
    return Figure(share, None, max(low, 0.0), high, str(row.get("noise_basis") or ""))


def _bound(evidence: Evidence, row: Row) -> Figure | str:
    return "a word, not a number"


def _verdict(evidence: Evidence, row: Row) -> str | None:
    return str(row["verdict"]) if row.get("verdict") else None


QUANTITIES: Mapping[str, Quantity] = {
    "epoch_speed": Quantity("epochs with validation", "1/s", _epoch_speed, fastest=True),
    "step_speed": Quantity("training steps", "1/s", _step_speed, fastest=True),
    "throughput": Quantity("throughput", "tokens/s", _throughput),
    "flop_rate": Quantity("operations", "FLOP/s", _flop_rate),
    "over_datasheet": Quantity("actual over expected time", "times", _over_datasheet),
    "epoch_by_peak": Quantity(
        "operations that the listed peak allows in an epoch", "FLOP", _epoch_by_peak
    ),
    "iteration_over_min_run_time": Quantity(
        "one iteration over min_run_time", "times", _iteration_over_min_run_time
    ),
    "peak_memory": Quantity("peak of device memory", "byte", _peak_memory),
    "steady_loss": Quantity("evaluation loss at the end", "nat", _steady_loss),
    "least_loss": Quantity("lowest evaluation loss", "nat", _least_loss),
    "convergence_step": Quantity(
        "step at which the loss was near its end", "steps", _convergence_step
    ),
    "norm_elevated_until": Quantity(
        "last step with an elevated gradient norm", "steps", _norm_elevated_until
    ),
    "unusual_share": Quantity("share of steps of unusual length", "", _unusual_share),
    "fixed_share": Quantity(
        "share of a step that does not grow with the batch", "", _fixed_share, SHAPES
    ),
    "bound": Quantity("what bounds the grid's steps", "", _bound, BACKENDS, word=_verdict),
    **system.QUANTITIES,
    **OF_OPERATIONS,
}
