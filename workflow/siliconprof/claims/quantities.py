"""The quantities that a claim may compare: figures of measured rows with their uncertainty.

A quantity is a function of the evidence and a row, which raises `Missing` with the reason where the
row has none.
"""

from __future__ import annotations

import math
import statistics as plain
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from siliconprof.analyse.throughputs import place, step_s
from siliconprof.claims.evidence import (
    BACKENDS,
    CELLS,
    SHAPES,
    Evidence,
    Missing,
    Quantity,
    operation,
)
from siliconprof.claims.figures import Figure, ratio
from siliconprof.stats import inference, line_fit, statistics, training_course
from siliconprof.store.table_files import Row, point_key

BYTES_PER_PARAMETER = 16  # fp32 weight, gradient and AdamW's two moments, as in the paper's Table 2
LEAST_SAMPLES = 9  # three in each third of a course
# Relative error of an IQR estimated from n normal values: 1.57 sigma / sqrt(n) over 1.349 sigma
# (Kendall and Stuart, The Advanced Theory of Statistics 1, 14.10-14.12, for sample quantiles).
IQR_ERROR = 1.165
ENERGY_SCOPES = {"gpu": "gpu", "cpu": "cpu-package"}  # device kind -> scope of its energy
NO_SAMPLES = "too few samples of memory after the warm-up"
NO_FAULTS = "its record has no page faults of single steps"
NO_STEP, NO_EPOCH = "no step was timed", "no epoch was timed"
SPREAD_OF_THIRDS = "by the 95 % intervals of the medians of its first and last third; one process"
Read = Callable[[Evidence, Row], Figure]
QUANTITIES: dict[str, Quantity] = {}


def _quantity(words: str, unit: str, **how: Any) -> Callable[[Read], Read]:
    """Registers a function as the quantity of its name."""

    def register(read: Read) -> Read:
        QUANTITIES[read.__name__] = Quantity(words, unit, read, **how)
        return read

    return register


def _finding(words: str, rows_of: str) -> Callable[[Callable[[Evidence, Row], Any]], None]:
    """Registers a function that gives a word about a row, or None, as the finding of its name."""

    def register(word: Callable[[Evidence, Row], Any]) -> None:
        def read(evidence: Evidence, row: Row) -> Figure:
            if not (answer := word(evidence, row)):
                raise Missing(f"{words} could not be determined")
            return Figure(math.nan, word=str(answer))

        QUANTITIES[word.__name__] = Quantity(words, "", read, rows_of, finding=True)

    return register


def _known(value: Any, none: str) -> float:
    """A value of a row; the reason where it has none."""
    if not value:
        raise Missing(none)
    return float(value)


# -- speed -----------------------------------------------------------------------------------------


def _inverse(value: Any) -> float | None:
    return 1 / float(value) if value else None


@_quantity("training samples", "1/s", fastest=True)
def sample_speed(evidence: Evidence, row: Row) -> Figure:
    return evidence.timed(row, row.get("samples_per_s"), NO_STEP)


@_quantity("epochs with validation", "1/s", fastest=True)
def epoch_speed(evidence: Evidence, row: Row) -> Figure:
    return evidence.timed(row, _inverse(row.get("epoch_s")), NO_EPOCH)


@_quantity("training steps", "1/s", fastest=True)
def step_speed(evidence: Evidence, row: Row) -> Figure:
    return evidence.timed(row, _inverse(step_s(row)), NO_STEP)


@_quantity("throughput", "tokens/s")
def throughput(evidence: Evidence, row: Row) -> Figure:
    return evidence.timed(row, row.get("tokens_per_s") or row.get("samples_per_s"), NO_STEP)


@_quantity("operations", "FLOP/s")
def flop_rate(evidence: Evidence, row: Row) -> Figure:
    return evidence.timed(row, row.get("flop_per_s"), "no rate of operations is known")


@_quantity("rate in fp16 over that in fp32", "times")
def fp16_gain(evidence: Evidence, row: Row) -> Figure:
    """The rate in fp16 over that of the same operation, place and shape in fp32."""
    if row["precision"] != "fp16":
        raise Missing("only a cell in fp16 has a gain from fp16")
    other = evidence.in_fp32.get(operation(row))
    if other is None:
        raise Missing("the same operation in fp32 was not timed")
    fast, slow = (
        evidence.timed(each, each.get("flop_per_s"), "no rate is known") for each in (row, other)
    )
    return replace(ratio(fast, slow), basis=fast.basis)


def _product(evidence: Evidence, row: Row) -> float:
    """FLOP/s of the fastest matrix product of a row's place and precision."""
    precision = row["precision"]
    best = evidence.products.get((*place(row), precision))
    return _known(best, f"no matrix product in {precision} was timed there")


@_quantity("a step's operations over the fastest product's", "times", fastest=True)
def of_products(evidence: Evidence, row: Row) -> Figure:
    """FLOP/s of a step over those of the place's fastest matrix product."""
    best = _product(evidence, row)
    rate = _known(row.get("flop_per_s"), "no number of operations is known")
    return evidence.timed(row, rate / best, NO_STEP)


@_quantity("share of memory's bandwidth over share of the fastest product's rate", "times")
def memory_bound(evidence: Evidence, row: Row) -> Figure:
    """The share of the memory's bandwidth over the share of the fastest product's rate."""
    if row.get("cache") == "warm":
        raise Missing("its data may stay in a cache, so memory does not limit it")
    bandwidth, _ = evidence.bandwidth(row)
    best = _product(evidence, row)
    moved, done = (
        _known(row.get(f"{what}_per_s"), "its bytes or its operations are not known")
        for what in ("bytes", "flop")
    )
    # Both shares have the same time, whose error cancels; the error of the two ceilings remains.
    return evidence.timed(row, (moved / bandwidth) / (done / best), "no time is known")


def _peak(evidence: Evidence, row: Row) -> float:
    sheet = evidence.sheets.peak(row, row["precision"])
    return _known(sheet.value, sheet.reason or "its data sheet gives no peak")


@_quantity("actual over expected time", "times")
def over_datasheet(evidence: Evidence, row: Row) -> Figure:
    peak, seconds = _peak(evidence, row), step_s(row)
    expected_s = _known(row.get("flops"), "no number of operations is known") / peak
    return evidence.timed(row, seconds and seconds / expected_s, NO_STEP)


@_quantity("operations that the listed peak allows in an epoch", "FLOP")
def epoch_by_peak(evidence: Evidence, row: Row) -> Figure:
    peak, epoch_s = _peak(evidence, row), row.get("epoch_s")
    return evidence.timed(row, epoch_s and epoch_s * peak, NO_EPOCH)


@_quantity("one iteration over min_run_time", "times")
def iteration_over_min_run_time(evidence: Evidence, row: Row) -> Figure:
    """By torch's blocked_autorange, which repeats nothing when one run exceeds its minimum time."""
    none = "blocked_autorange timed nothing"
    minimum_s, median_s = (
        _known(row.get(f"autorange_{name}_s"), str(row.get("autorange_reason") or none))
        for name in ("min_run_time", "median")
    )
    return evidence.timed(row, median_s / minimum_s, none)


@_quantity("quartile range of the step times over their median", "")
def step_spread(evidence: Evidence, row: Row) -> Figure:
    n, middle, low, high = (
        row.get(f"unsplit_step_{end}") for end in ("n", "median_s", "q25_s", "q75_s")
    )
    if not n or n < LEAST_SAMPLES or not middle or low is None or high is None or high <= low:
        raise Missing("too few whole steps to estimate their spread")
    share, basis = (high - low) / middle, f"of {n:.0f} steps of one process"
    estimate = inference.Estimate(math.log(share), IQR_ERROR / math.sqrt(n), n - 1, basis)
    return Figure(share, estimate, basis=basis)


@_quantity("share of steps of unusual length", "")
def unusual_share(evidence: Evidence, row: Row) -> Figure:
    """Share of steps that took far longer than the run's own spread explains."""
    (marks,) = evidence.lines("curves", row, ("unusual",), of_point=True)
    known = [bool(mark) for mark in marks if mark == mark]  # which no NaN does
    n = len(known)
    if not n:
        raise Missing("no course of step times, or too few steps")
    share = sum(known) / n
    # Wilson's interval (J. Am. Stat. Assoc. 22, 1927), which holds for shares near 0.
    z = line_fit.NORMAL
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    basis = f"95 % of a share of {n} steps"
    return Figure(share, None, max(0.0, middle - reach), middle + reach, basis)


@_quantity("share of a step that does not grow with the batch", "", rows=SHAPES)
def fixed_share(evidence: Evidence, row: Row) -> Figure:
    share = row.get("fixed_share_smallest")
    if share is None:
        raise Missing(str(row.get("fit_reason") or "no line through its batch sizes"))
    low, high = (row.get(f"fixed_share_smallest_{end}") for end in ("low", "high"))
    low, high = (share if low is None else low), (share if high is None else high)
    return Figure(share, None, max(low, 0.0), high)


# -- the course of a training ----------------------------------------------------------------------


def _read(reading: training_course.Reading | None, none: str, basis: str) -> Figure:
    if reading is None:
        raise Missing(none)
    return Figure(reading.middle, None, reading.low, reading.high, basis, reading.remark)


def _settled(evidence: Evidence, row: Row, least: bool = False) -> Figure:
    reading = training_course.settled_loss(evidence.course(row, "evaluations", "loss"), least)
    none = "fewer than three evaluations have a finite loss, or the loss never fell"
    basis = "by the change of the loss between its last two evaluations; one seed"
    return _read(reading, none, basis)


@_quantity("evaluation loss at the end", "nat")
def steady_loss(evidence: Evidence, row: Row) -> Figure:
    return _settled(evidence, row)


@_quantity("lowest evaluation loss", "nat")
def least_loss(evidence: Evidence, row: Row) -> Figure:
    return _settled(evidence, row, least=True)


@_quantity("step at which the loss was near its end", "steps")
def convergence_step(evidence: Evidence, row: Row) -> Figure:
    reading = training_course.converged_at(evidence.course(row, "curves", "loss"))
    none = "too few steps with a finite loss, or the loss never fell"
    basis = "by the distance of single steps from the smoothed loss; one seed"
    return _read(reading, none, basis)


@_quantity("last step with an elevated gradient norm", "steps")
def norm_elevated_until(evidence: Evidence, row: Row) -> Figure:
    reading = training_course.elevated_until(evidence.course(row, "curves", "gradient_norm"))
    none = "too few steps with a finite gradient norm"
    basis = "by the distance of single steps from their running median; one seed"
    return _read(reading, none, basis)


# -- memory ----------------------------------------------------------------------------------------


def _device_peak(row: Row) -> float:
    return _known(row.get("device_peak_bytes"), "no counter reports its peak of memory")


def _n_parameters(row: Row) -> float:
    return _known(row.get("n_parameters"), "no number of parameters is known")


@_quantity("peak of device memory", "byte")
def peak_memory(evidence: Evidence, row: Row) -> Figure:
    return Figure.exact(_device_peak(row), "counted by the framework's allocator")


@_quantity("parameters", "million")
def parameters(evidence: Evidence, row: Row) -> Figure:
    return Figure.exact(_n_parameters(row) / 1e6, "counted")


@_quantity("peak of device memory over 16 byte a parameter", "times")
def memory_over_theory(evidence: Evidence, row: Row) -> Figure:
    times = _device_peak(row) / (BYTES_PER_PARAMETER * _n_parameters(row))
    return Figure.exact(times, "counted by the framework's allocator")


@_quantity("largest resident memory over 16 byte a parameter", "times")
def rss_over_theory(evidence: Evidence, row: Row) -> Figure:
    theory = BYTES_PER_PARAMETER * _n_parameters(row)
    _, values = evidence.sampled(row, "rss_bytes")
    if not values:
        raise Missing(NO_SAMPLES)
    return Figure.exact(max(values) / theory, "the largest sample")


def _thirds(values: Sequence[float], none: str) -> tuple[Sequence[float], Sequence[float]]:
    """The first and the last third of a course."""
    if len(values) < LEAST_SAMPLES:
        raise Missing(none)
    third = len(values) // 3
    return values[:third], values[-third:]


def _growth(values: Sequence[float], above: float, none: str) -> Figure:
    """The median of a course's last third over that of its first, each less `above`."""
    first, last = _thirds([value - above for value in values], none)
    (a_low, a_high), (b_low, b_high) = map(statistics.median_interval, (first, last))
    middle = plain.median(first)
    if a_low <= 0 or middle <= 0:
        raise Missing("its memory did not exceed what it used before the training")
    times = plain.median(last) / middle
    return Figure(times, None, b_low / a_high, b_high / a_low, SPREAD_OF_THIRDS)


@_quantity("last third over first of the resident memory", "times")
def rss_growth(evidence: Evidence, row: Row) -> Figure:
    _, values = evidence.sampled(row, "rss_bytes")
    return _growth(values, float(row.get("rss_at_start_bytes") or 0.0), NO_SAMPLES)


@_quantity("last third over first of the device memory", "times")
def device_memory_growth(evidence: Evidence, row: Row) -> Figure:
    _, values = evidence.sampled(row, "device_memory_bytes")
    return _growth(values, 0.0, "no counter samples the memory of its device")


@_quantity("growth of the resident memory", "byte/s")
def rss_growth_rate(evidence: Evidence, row: Row) -> Figure:
    """Growth of the resident set in bytes a second, from the first third to the last."""
    seconds, values = evidence.sampled(row, "rss_bytes")
    ends, times = _thirds(values, NO_SAMPLES), _thirds(seconds, NO_SAMPLES)
    span_s = plain.median(times[1]) - plain.median(times[0])
    if span_s <= 0:
        raise Missing(NO_SAMPLES)
    (a_low, a_high), (b_low, b_high) = map(statistics.median_interval, ends)
    middle = plain.median(ends[1]) - plain.median(ends[0])
    low, high = (b_low - a_high) / span_s, (b_high - a_low) / span_s
    return Figure(middle / span_s, None, low, high, SPREAD_OF_THIRDS)


@_quantity("page faults of a step", "faults")
def faults_per_step(evidence: Evidence, row: Row) -> Figure:
    """Page faults, minor and major, of each unsplit step."""
    columns = ("kind", "minor_faults", "major_faults")
    kinds, minor, major = evidence.lines("training_steps", row, columns)
    faults = (minor + major)[kinds == "unsplit"].astype(float)
    counts = faults[abs(faults) < math.inf].tolist()
    if not counts:
        raise Missing(NO_FAULTS)
    low, high = statistics.median_interval(counts)
    basis = f"95 % interval of the median of {len(counts)} steps; one process"
    return Figure(plain.median(counts), None, low, high, basis)


@_quantity("page faults' share of the memory's bandwidth", "")
def fault_traffic(evidence: Evidence, row: Row) -> Figure:
    """Bytes/s of all faulted pages during training, over the bandwidth of memory."""
    parts = [row.get(f"{kind}_faulted_bytes_per_step") for kind in ("minor", "major")]
    seconds = step_s(row)
    if any(part is None for part in parts) or not seconds:
        raise Missing(NO_FAULTS)
    bandwidth, source = evidence.bandwidth(row)
    share = sum(float(part or 0) for part in parts) / seconds / bandwidth
    if not share:
        return Figure.exact(0.0, "no step had a page fault")
    timed = evidence.timed(row, share, NO_STEP)
    return replace(timed, basis=f"of {source}; {timed.basis}")


# -- energy, launches ------------------------------------------------------------------------------


@_quantity("energy of a sample", "J")
def energy_per_sample(evidence: Evidence, row: Row) -> Figure:
    """Joules per sample of the GPU alone, or on a CPU of its package."""
    scope = ENERGY_SCOPES.get(str(row.get("device_kind")), "gpu")
    every = evidence.energies.get(point_key(row), [])
    lines = [line for line in every if line["scope"] == scope]
    measured = [line for line in lines if line["energy_per_sample_j"]]
    if not measured:
        reasons = [str(line["reason"]) for line in lines or every if line["reason"]]
        why = reasons[0] if reasons else "the record has none"
        raise Missing(f"no energy of its {scope}: {why}")
    timed = evidence.timed(row, float(measured[0]["energy_per_sample_j"]), "no energy was measured")
    basis = f"{measured[0]['name']}; its power is assumed to be steady; its time: {timed.basis}"
    return replace(timed, basis=basis)


@_quantity("power of the host beside its GPU", "W")
def host_power(evidence: Evidence, row: Row) -> Figure:
    """Watts of the CPU's package, without memory, while a GPU trains."""
    every = evidence.energies.get(point_key(row), [])
    lines = [line for line in every if line["scope"] == "cpu-package"]
    if row.get("device_kind") != "gpu" or not lines or not lines[0]["energy_j"]:
        raise Missing("no energy of the CPU was measured beside a GPU's")
    watts = float(lines[0]["energy_j"]) / float(lines[0]["window_s"])
    return Figure.exact(watts, f"{lines[0]['name']} over one window")


@_quantity("cold launch", "s")
def cold_launch(evidence: Evidence, row: Row) -> Figure:
    middle, low, high = (float(row.get(f"cold_{x}_s") or 0.0) for x in ("median", "low", "high"))
    if not middle or not low:
        raise Missing(str(row.get("cold_reason") or "no cold launch was timed"))
    n = int(row.get("cold_n") or 0)
    return Figure(middle, None, low, high, f"95 % interval of the median of {n} processes")


@_quantity("launch and wait", "s")
def followup_launch(evidence: Evidence, row: Row) -> Figure:
    """Seconds of launch and wait; the paper does not say which time it means."""
    middle = row.get("launch_and_wait_median_s")
    return evidence.timed(row, middle, "no launch was timed", "launch_and_wait_s")


@_quantity("cold launch over launch and wait", "times")
def cold_over_followup(evidence: Evidence, row: Row) -> Figure:
    return ratio(cold_launch(evidence, row), followup_launch(evidence, row))


# -- words -----------------------------------------------------------------------------------------


@_finding("what bounds the grid's steps", BACKENDS)
def bound(evidence: Evidence, row: Row) -> Any:
    return row.get("verdict")


@_finding("whether it throttled", CELLS)
def heat(evidence: Evidence, row: Row) -> str | None:
    """Whether the hardware throttled, for heat or its protection, while a cell ran."""
    probes, values = evidence.lines("probes", row, ("probe", "throttled"))
    throttled = next(iter(values[probes == "clocks"]), math.nan)
    return None if throttled != throttled else "throttled" if throttled else "not throttled"


@_finding("memory scenario by our model", CELLS)
def scenario(evidence: Evidence, row: Row) -> Any:
    return row.get("scenario_derived")


@_finding("whether the precision is there", CELLS)
def support(evidence: Evidence, row: Row) -> str | None:
    """Whether a precision is supported; None after any other failure."""
    return {"ok": "supported", "unsupported": "unsupported"}.get(str(row["status"]))
