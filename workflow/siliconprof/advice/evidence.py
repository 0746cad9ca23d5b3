"""The speed and energy of a training on a device, each with its evidence.

Three kinds of evidence, in this order: the same cell was `measured` (here, on another host, in a
reference bundle); the same model was `published` (the paper's Tables 4 and 5); or the value is
`predicted` as operations over a rate, always as a range. A rate is one of these:

1. the device's own rate in its nearest trainings;
2. its data sheet's peak times the share of its peak (MFU) that another device reached in its
   nearest training with the same backend and number format;
3. its data sheet's peak times the MFU that Table 4 implies, a range (`advice.published`).

Nearest is by operations of one step; more than `FARTHEST` times as many or as few are too far.
Without any rate the answer is unknown, and the reason says what to measure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from siliconprof.advice.parts import (
    MEASURED,
    PREDICTED,
    Candidate,
    Estimate,
    Facts,
    Row,
    of_candidate,
    record_name,
    seconds,
)
from siliconprof.advice.published import TABLE4_LENGTHS, Share
from siliconprof.analyse.equal_work import as_usual, checkpointed
from siliconprof.analyse.record_rows import KEY
from siliconprof.cells.advice_question import CLIP_SECONDS, Question, millions
from siliconprof.hosts import registry
from siliconprof.hosts.datasheet import TERA
from siliconprof.store.records import HERE, REFERENCE

FARTHEST = 30.0  # times the operations of a step; small steps are bound by something else
NEAREST = 3  # measured trainings that make a range
SAME_MODEL = 0.2  # relative: a small model's parameters depend on the data's vocabulary
# Factors that widen a predicted range at either end: assumptions, larger for another device.
SAME_DEVICE_SPREAD, OTHER_DEVICE_SPREAD = 1.25, 2.0
WHERE = {HERE: "here", REFERENCE: "in a reference bundle"}  # else on another host


# -- the same cell -------------------------------------------------------------------------------


def same_training(question: Question, workload: Any, point: Row) -> bool:
    """Whether a point is the question's own training: model, batch, lengths, adapters, trainer."""
    own_length = point.get("target_len") if question.module == "whisper" else point.get("seq_len")
    clip = point.get("clip_seconds")
    return (
        point["module"] == question.module
        and point.get("size") == question.size
        and point["trainer"] == question.trainer
        and point["precision"] == question.precision
        and _equal(point.get("samples_per_step"), question.batch_size)
        and _equal(own_length, question.seq_len)
        and _equal(point.get("lora_rank") or 0, question.lora_rank)
        and _as_large(point.get("n_parameters"), workload.n_parameters(), bool(question.model))
        and (question.module != "whisper" or _equal(clip, CLIP_SECONDS))
        and not checkpointed(point)
        and as_usual(point)
    )


def _as_large(measured_n: Any, expected_n: int, is_named: bool) -> bool:
    """Whether sizes are equal, or nearly for a named model: its vocabulary may be the data's."""
    if measured_n is None:
        return False
    return abs(float(measured_n) - expected_n) <= (SAME_MODEL * expected_n if is_named else 0)


def _equal(a: Any, b: Any) -> bool:
    return a is not None and float(a) == float(b)


def measured(
    question: Question,
    workload: Any,
    candidate: Candidate,
    backend: str,
    scenario: str,
    facts: Facts,
) -> tuple[Estimate, Row] | None:
    """Seconds of a step of the same cell in that scenario, and its point, this host's first."""
    points = [
        point
        for point in facts.trainings()
        if point["backend"] == backend
        and of_candidate(point, candidate)
        and same_training(question, workload, point)
        and (point.get("scenario_applied") == "offload") == (scenario == "offload")
    ]
    if not points:
        return None
    point = min(points, key=lambda p: (p["source"] != HERE, p["source"] != REFERENCE, p["host"]))
    value, ends = seconds(point), []
    for end in ("low", "high"):
        bound = point.get(f"unsplit_step_{end}_s") or point.get(f"step_{end}_s")
        ends.append(float(bound) if bound else value)
    where = WHERE.get(point["source"], "on another host")
    basis = f"measured {where}: {record_name(point)}"
    if not _equal(point.get("n_parameters"), workload.n_parameters()):
        basis += f", with the vocabulary of its data: {millions(float(point['n_parameters']))} parameters"
    return Estimate(ends[0], value, ends[1], MEASURED, basis), point


def measured_energy(point: Row, facts: Facts) -> dict[str, Estimate]:
    """Joules of a step of a measured cell: scope -> estimate; scopes are never added up."""
    by_scope: dict[str, Estimate] = {}
    for row in facts.energy:
        same = all(row[axis] == point[axis] for axis in KEY)
        joules = row.get("energy_per_step_j")
        if same and joules and _better(row, by_scope.get(row["scope"])):
            basis = f"{row['name']} ({row['scope']}, {row['quality']}): {record_name(point)}"
            by_scope[row["scope"]] = Estimate(None, float(joules), None, MEASURED, basis)
    return by_scope


def _better(row: Row, before: Estimate | None) -> bool:
    """Whether a line replaces the earlier one of its scope: a counter replaces an integral."""
    return before is None or row["quality"] == "counter"


# -- operations over a rate ----------------------------------------------------------------------


def predicted(
    question: Question,
    workload: Any,
    candidate: Candidate,
    backend: str,
    facts: Facts,
    shares_of_table4: Mapping[str, Sequence[Share]],
) -> Estimate:
    """Seconds of a step as a range, or why it is unknown."""
    flops, peak = workload.flops_per_step()[0], candidate.peak(question.precision)
    number_format = registry.PEAK_OF_PRECISION[question.precision]
    near, too_far = _near(question, flops, backend, facts)
    own_points = [point for point in near if of_candidate(point, candidate)][:NEAREST]
    if own_points:
        rates = [float(point["flop_per_s"]) for point in own_points]
        spread = SAME_DEVICE_SPREAD
        basis = f"this device's own rate in {_names(own_points)}, ± a factor of {spread:g}"
        return _range(flops, min(rates) / spread, max(rates) * spread, peak, basis)
    if peak is None:
        reason = (
            f"no source gives its peak in {number_format}"
            if candidate.entry
            else ("it is not in the registry of data sheets")
        )
        return Estimate(
            basis=f"unknown: {reason}, and no training near this one was measured on it"
        )
    shares = [(mfu, point) for point in near if (mfu := _mfu(point, facts)) is not None]
    alike = [pair for pair in shares if _like(pair[1], candidate, facts)]
    if alike:
        mfu, point = alike[0]
        spread = OTHER_DEVICE_SPREAD
        basis = (
            f"peak × {100 * mfu:.1f} %, the share that {point['device']} reached in {_names([point])}, "
            f"± a factor of {spread:g}"
        )
        return _range(flops, peak * mfu / spread, peak * mfu * spread, peak, basis)
    implied = shares_of_table4.get(backend) if question.precision == "fp32" else None
    if implied:
        neighbours = _beside(implied, peak)
        if all(1 / FARTHEST <= flops / share.flops <= FARTHEST for share in neighbours):
            low, high = min(s.low for s in neighbours), max(s.high for s in neighbours)
            basis = (
                f"peak × {100 * low:.1f} % to {100 * high:.1f} %, the share that Table 4 of Feng "
                f"et al. 2025 implies for {' and '.join(share.name for share in neighbours)} with "
                f"{TABLE4_LENGTHS[0]} to {neighbours[0].longest} tokens"
            )
            return _range(flops, peak * low, peak * high, peak, basis)
        too_far = True
    too_far_text = (
        f"; the others do over {FARTHEST:g} times more or less work per step" if too_far else ""
    )
    return Estimate(
        basis=f"unknown: no measured or published training near this one with {backend} in "
        f"{number_format}{too_far_text}"
    )


def _beside(implied: Sequence[Share], peak: float) -> list[Share]:
    """The rows of Table 4 with the next lower and next higher peak, or only one at its ends."""
    lower = [one for one in implied if one.peak <= peak]
    higher = [one for one in implied if one.peak >= peak]
    ends = [max(lower, key=lambda one: one.peak)] if lower else []
    ends += [min(higher, key=lambda one: one.peak)] if higher else []
    return list(dict.fromkeys(ends))


def _near(question: Question, flops: float, backend: str, facts: Facts) -> tuple[list[Row], bool]:
    """(measured trainings in the same number format, nearest first; whether others are too far)."""
    number_format = registry.PEAK_OF_PRECISION[question.precision]
    amp = question.precision.startswith("amp-")
    by_distance = [
        (abs(math.log(float(point["flops"]) / flops)), index, point)
        for index, point in enumerate(facts.trainings())
        if point["backend"] == backend
        and float(point.get("flops") or 0) > 0
        and point.get("flop_per_s")
        and registry.PEAK_OF_PRECISION[point["precision"]] == number_format
        and point["precision"].startswith("amp-") == amp
        and point.get("scenario_applied") != "offload"
    ]
    near = [point for far, _, point in sorted(by_distance) if far <= math.log(FARTHEST)]
    return near, len(near) < len(by_distance)


def _mfu(point: Row, facts: Facts) -> float | None:
    """The share of its own device's peak that a training reached."""
    entry = _entry(point, facts)
    peak = registry.peak_tflops(entry, point["precision"]) if entry else None
    share = float(point["flop_per_s"]) / (peak * TERA) if peak else None
    return share if share is not None and share <= 1 else None


def _entry(point: Row, facts: Facts) -> Row | None:
    """The registry's entry of a point's device."""
    for candidate in facts.candidates:
        if candidate.entry is not None and of_candidate(point, candidate):
            return candidate.entry
    return None


def _like(point: Row, candidate: Candidate, facts: Facts) -> bool:
    """Whether a share applies to the candidate: both devices have the same vendor and kind."""
    entry = _entry(point, facts)
    own = candidate.entry
    return bool(entry and own and (entry["vendor"], entry["kind"]) == (own["vendor"], own["kind"]))


def _names(points: Sequence[Row]) -> str:
    return ", ".join(f"{point['workload']} ({point['precision']})" for point in points)


def _range(flops: float, slow: float, fast: float, peak: float | None, basis: str) -> Estimate:
    """Seconds at two rates in FLOP/s, neither above the peak."""
    fast = fast if peak is None else min(fast, peak)
    return Estimate(flops / fast, None, flops / min(slow, fast), PREDICTED, basis)
