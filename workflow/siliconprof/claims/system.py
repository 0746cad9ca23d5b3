"""The quantities below a training: memory, page faults, energy, launches, heat."""

from __future__ import annotations

import math
import statistics as plain
from collections.abc import Mapping, Sequence

from siliconprof.claims.evidence import CELLS, Evidence, Figure, Quantity
from siliconprof.stats import inference, statistics
from siliconprof.store.table_files import Row

BYTES_PER_PARAMETER = 16  # fp32 weight, gradient and AdamW's two moments, as in the paper's Table 2
LEAST_SAMPLES = 9  # three in each third of a course
# Relative error of an IQR estimated from n normal values: 1.57 sigma / sqrt(n) over 1.349 sigma
# (Kendall and Stuart, The Advanced Theory of Statistics 1, 14.10-14.12, for sample quantiles).
IQR_ERROR = 1.165
ENERGY_SCOPES = {"gpu": "gpu", "cpu": "cpu-package"}  # device kind -> scope of its energy
NO_SAMPLES = "too few samples of memory after the warm-up"
SPREAD_OF_THIRDS = "by the 95 % intervals of the medians of its first and last third; one process"


def _thirds(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]] | None:
    """The first and the last third of a course; None where it is too short."""
    third = len(values) // 3
    return (values[:third], values[-third:]) if len(values) >= LEAST_SAMPLES else None


def _growth(values: Sequence[float], above: float, none: str) -> Figure | str:
    """The median of a course's last third over that of its first, each less `above`."""
    ends = _thirds([value - above for value in values])
    if ends is None:
        return none
    first, last = ends
    (a_low, a_high), (b_low, b_high) = map(statistics.median_interval, (first, last))
    middle = plain.median(first)
    if a_low <= 0 or middle <= 0:
        return "its memory did not exceed what it used before the training"
    return Figure(
        plain.median(last) / middle, None, b_low / a_high, b_high / a_low, SPREAD_OF_THIRDS
    )


def _rss_growth(evidence: Evidence, row: Row) -> Figure | str:
    _, values = evidence.sampled(row, "rss_bytes")
    return _growth(values, float(row.get("rss_at_start_bytes") or 0.0), NO_SAMPLES)


def _device_growth(evidence: Evidence, row: Row) -> Figure | str:
    _, values = evidence.sampled(row, "device_memory_bytes")
    return _growth(values, 0.0, "no counter samples the memory of its device")


def _rss_rate(evidence: Evidence, row: Row) -> Figure | str:
    """Growth of the resident set in bytes a second, from the first third to the last."""
    seconds, values = evidence.sampled(row, "rss_bytes")
    ends, times = _thirds(values), _thirds(seconds)
    if ends is None or times is None:
        return NO_SAMPLES
    span_s = plain.median(times[1]) - plain.median(times[0])
    if span_s <= 0:
        return NO_SAMPLES
    (a_low, a_high), (b_low, b_high) = map(statistics.median_interval, ends)
    middle = plain.median(ends[1]) - plain.median(ends[0])
    return Figure(
        middle / span_s,
        None,
        (b_low - a_high) / span_s,
        (b_high - a_low) / span_s,
        SPREAD_OF_THIRDS,
    )


def _theoretical_bytes(row: Row) -> float | None:
    """Bytes of a model trained in fp32 by AdamW, by the paper's formula."""
    n = row.get("n_parameters")
    return BYTES_PER_PARAMETER * float(n) if n else None


def _over_theory(evidence: Evidence, row: Row) -> Figure | str:
    peak, theory = row.get("device_peak_bytes"), _theoretical_bytes(row)
    if not peak:
        return "no counter reports its peak of memory"
    if not theory:
        return "no number of parameters is known"
    times = float(peak) / theory
    return Figure(times, None, times, times, "counted by the framework's allocator")


def _rss_over_theory(evidence: Evidence, row: Row) -> Figure | str:
    _, values = evidence.sampled(row, "rss_bytes")
    theory = _theoretical_bytes(row)
    if not theory:
        return "no number of parameters is known"
    if not values:
        return NO_SAMPLES
    times = max(values) / theory
    return Figure(times, None, times, times, "the largest sample")


def _parameters(evidence: Evidence, row: Row) -> Figure | str:
    n = row.get("n_parameters")
    if not n:
        return "no number of parameters is known"
    return Figure(float(n) / 1e6, None, float(n) / 1e6, float(n) / 1e6, "counted")


def _faults_per_step(evidence: Evidence, row: Row) -> Figure | str:
    counts = evidence.faults(row)
    if not counts:
        return "its record has no page faults of single steps"
    low, high = statistics.median_interval(counts)
    return Figure(
        plain.median(counts),
        None,
        low,
        high,
        f"95 % interval of the median of {len(counts)} steps; one process",
    )


def _fault_traffic(evidence: Evidence, row: Row) -> Figure | str:
    """Bytes/s of all faulted pages during training, over the bandwidth of memory."""
    parts = [row.get(f"{kind}_faulted_bytes_per_step") for kind in ("minor", "major")]
    seconds = row.get("unsplit_step_median_s") or row.get("step_median_s")
    bandwidth, source = evidence.bandwidth(row)
    if any(part is None for part in parts) or not seconds:
        return "its record has no page faults of single steps"
    if bandwidth is None:
        return source
    share = sum(float(part or 0) for part in parts) / seconds / bandwidth
    if not share:
        return Figure(0.0, None, 0.0, 0.0, "no step had a page fault")
    timed = evidence.timed(row, share, "no step was timed")
    if isinstance(timed, str):
        return timed
    return Figure(share, timed.estimate, basis=f"of {source}; {timed.basis}")


def _step_spread(evidence: Evidence, row: Row) -> Figure | str:
    n, middle, low, high = (
        row.get(f"unsplit_step_{end}") for end in ("n", "median_s", "q25_s", "q75_s")
    )
    if not n or n < LEAST_SAMPLES or not middle or low is None or high is None or high <= low:
        return "too few whole steps to estimate their spread"
    share = (high - low) / middle
    error = IQR_ERROR / math.sqrt(n)
    basis = f"of {n:.0f} steps of one process"
    estimate = inference.Estimate(math.log(share), error, n - 1, basis)
    return Figure(share, estimate, basis=basis)


def _energy(evidence: Evidence, row: Row) -> Figure | str:
    """Joules per sample of the GPU alone, or on a CPU of its package."""
    scope = ENERGY_SCOPES.get(str(row.get("device_kind")), "gpu")
    lines = [line for line in evidence.energies(row) if line.get("scope") == scope]
    measured = [line for line in lines if line.get("energy_per_sample_j")]
    if not measured:
        reasons = [
            str(line["reason"]) for line in lines or evidence.energies(row) if line.get("reason")
        ]
        return f"no energy of its {scope}: {reasons[0] if reasons else 'the record has none'}"
    timed = evidence.timed(row, float(measured[0]["energy_per_sample_j"]), "no energy was measured")
    if isinstance(timed, str):
        return timed
    return Figure(
        timed.middle,
        timed.estimate,
        basis=f"{measured[0]['name']}; its power is assumed to be steady; its time: {timed.basis}",
    )


def _host_power(evidence: Evidence, row: Row) -> Figure | str:
    """Watts of the CPU's package, without memory, while a GPU trains."""
    lines = [line for line in evidence.energies(row) if line.get("scope") == "cpu-package"]
    if row.get("device_kind") != "gpu" or not lines or not lines[0].get("energy_j"):
        return "no energy of the CPU was measured beside a GPU's"
    watts = float(lines[0]["energy_j"]) / float(lines[0]["window_s"])
    return Figure(watts, None, watts, watts, f"{lines[0]['name']} over one window")


def _cold_launch(evidence: Evidence, row: Row) -> Figure | str:
    middle, low, high = (float(row.get(f"cold_{x}_s") or 0.0) for x in ("median", "low", "high"))
    if not middle or not low:
        return str(row.get("cold_reason") or "no cold launch was timed")
    n = int(row.get("cold_n") or 0)
    return Figure(middle, None, low, high, f"95 % interval of the median of {n} processes")


def _followup_launch(evidence: Evidence, row: Row) -> Figure | str:
    """Seconds of launch and wait; the paper does not say which time it means."""
    middle = row.get("launch_and_wait_median_s")
    return evidence.timed(row, middle, "no launch was timed", "launch_and_wait_s")


def _cold_over_followup(evidence: Evidence, row: Row) -> Figure | str:
    cold, warm = _cold_launch(evidence, row), _followup_launch(evidence, row)
    if isinstance(cold, str) or isinstance(warm, str):
        return cold if isinstance(cold, str) else str(warm)
    low, high = warm.interval(inference.CONFIDENCE)
    return Figure(
        cold.middle / warm.middle,
        None,
        cold.low / high,
        cold.high / low,
        f"{cold.basis}; {warm.basis}",
    )


def _word_only(evidence: Evidence, row: Row) -> Figure | str:
    return "a word, not a number"


def _heat(evidence: Evidence, row: Row) -> str | None:
    """Whether the hardware throttled, for heat or its protection, while a cell ran."""
    probe = evidence.probe(row, "clocks")
    throttled = probe.get("throttled") if probe else None
    return None if throttled is None else "throttled" if throttled else "not throttled"


def _scenario(evidence: Evidence, row: Row) -> str | None:
    scenario = row.get("scenario_derived")
    return str(scenario) if scenario else None


def _support(evidence: Evidence, row: Row) -> str | None:
    """Whether a precision is supported; None after any other failure."""
    return {"ok": "supported", "unsupported": "unsupported"}.get(str(row["status"]))


QUANTITIES: Mapping[str, Quantity] = {
    "rss_growth": Quantity("last third over first of the resident memory", "times", _rss_growth),
    "device_memory_growth": Quantity(
        "last third over first of the device memory", "times", _device_growth
    ),
    "rss_growth_rate": Quantity("growth of the resident memory", "byte/s", _rss_rate),
    "memory_over_theory": Quantity(
        "peak of device memory over 16 byte a parameter", "times", _over_theory
    ),
    "rss_over_theory": Quantity(
        "largest resident memory over 16 byte a parameter", "times", _rss_over_theory
    ),
    "parameters": Quantity("parameters", "million", _parameters),
    "faults_per_step": Quantity("page faults of a step", "faults", _faults_per_step),
    "fault_traffic": Quantity("page faults' share of the memory's bandwidth", "", _fault_traffic),
    "step_spread": Quantity("quartile range of the step times over their median", "", _step_spread),
    "energy_per_sample": Quantity("energy of a sample", "J", _energy),
    "host_power": Quantity("power of the host beside its GPU", "W", _host_power),
    "cold_launch": Quantity("cold launch", "s", _cold_launch),
    "followup_launch": Quantity("launch and wait", "s", _followup_launch),
    "cold_over_followup": Quantity(
        "cold launch over launch and wait", "times", _cold_over_followup
    ),
    "heat": Quantity("whether it throttled", "", _word_only, CELLS, word=_heat),
    "scenario": Quantity("memory scenario by our model", "", _word_only, CELLS, word=_scenario),
    "support": Quantity("whether the precision is there", "", _word_only, CELLS, word=_support),
}
