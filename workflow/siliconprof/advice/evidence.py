"""The speed and energy of a training on a device, each with its evidence.

Three kinds of evidence, in this order: the same cell was `measured` (here, on another host, in a
reference bundle); the same model was `published` (the paper's Tables 4 and 5); or the step is
`predicted` from the operators of other trainings on the device, see `analyse.prediction`, as exactly
as such predictions are of trainings that were measured there. Otherwise the answer is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from siliconprof.advice.parts import (
    MEASURED,
    PREDICTED,
    PUBLISHED,
    Candidate,
    Estimate,
    Facts,
    Row,
    of_candidate,
    record_name,
)
from siliconprof.analyse import prediction
from siliconprof.analyse.equal_work import as_usual, checkpointed
from siliconprof.analyse.operator_rows import group
from siliconprof.analyse.throughputs import step_s
from siliconprof.cells.advice_question import CLIP_SECONDS, SEQ_LEN, Question, millions
from siliconprof.errors import UserError
from siliconprof.session import inventory
from siliconprof.store.records import HERE, REFERENCE
from siliconprof.store.table_files import KEY, point_key

SAME_MODEL = 0.2  # relative: a small model's parameters depend on the data's vocabulary
SPEECH = {"dataset_clip_seconds": CLIP_SECONDS, "dataset_n_mels": 80}
WHERE = {HERE: "here", REFERENCE: "in a reference bundle"}  # else on another host
UNASKED = "unknown: not measured, not published; “siliconprof advise” predicts it where it can"
UNTIMED = (
    "unknown: not measured, not published, and no training there has operators that were timed"
)


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
    value = step_s(point)
    low, high = (
        point.get(f"unsplit_step_{end}_s") or point.get(f"step_{end}_s") or value
        for end in ("low", "high")
    )
    where = WHERE.get(point["source"], "on another host")
    basis = f"measured {where}: {record_name(point)}"
    if not _equal(point.get("n_parameters"), workload.n_parameters()):
        basis += f", with the vocabulary of its data: {millions(float(point['n_parameters']))} parameters"
    return Estimate(low, value, high, MEASURED, basis), point


def measured_energy(point: Row, facts: Facts) -> dict[str, Estimate]:
    """Joules of a step of a measured cell: scope -> estimate; scopes are never added up."""
    by_scope: dict[str, Estimate] = {}
    for row in facts.energy:
        same = all(row[axis] == point[axis] for axis in KEY)
        joules, scope = row.get("energy_per_step_j"), row["scope"]
        # A counter replaces an integral.
        if same and joules and (scope not in by_scope or row["quality"] == "counter"):
            basis = f"{row['name']} ({scope}, {row['quality']}): {record_name(point)}"
            by_scope[scope] = Estimate(None, float(joules), None, MEASURED, basis)
    return by_scope


# -- Tables 4 and 5 of the paper -----------------------------------------------------------------


def published(
    question: Question, candidate: Candidate, backend: str, facts: Facts
) -> Estimate | None:
    """Seconds of a step by Table 4: the same model and trainer, scaled by samples.

    The table prints no sequence length, so this covers only the length that we assume, `SEQ_LEN`.
    """
    settings = (question.precision, question.trainer, question.lora_rank, question.seq_len)
    if settings != ("fp32", "plain", 0, SEQ_LEN):
        return None
    for row in facts.published.get("table4_pass_time", ()):
        same = row["workload"].lower() == question.model and row["backend"] == backend
        if row["device"] == candidate.id and same:
            seconds_, basis = _scaled(row, "pass_time_s", "s a pass", question)
            basis += (
                f"; its sequence length is not printed ({SEQ_LEN} tokens are assumed), nor is "
                "whether it includes the optimizer"
            )
            return Estimate(None, seconds_, None, PUBLISHED, basis)
    return None


def published_energy(question: Question, candidate: Candidate, facts: Facts) -> dict[str, Estimate]:
    """Joules of a step by Table 5, by scope, scaled by samples."""
    if question.lora_rank:
        return {}
    for row in facts.published.get("table5_energy", ()):
        same = row["workload"].lower() == question.model and row["precision"] == question.precision
        if row["device"] == candidate.id and same:
            joules, basis = _scaled(row, "energy_per_iteration_j", "J", question)
            return {"gpu": Estimate(None, joules, None, PUBLISHED, f"{basis} ({row['scope']})")}
    return {}


def _scaled(row: Row, column: str, unit: str, question: Question) -> tuple[float, str]:
    """A printed number for the question's batch, and what it rests on."""
    batch = int(row["batch_size"])
    basis = f"{row['source']}: {row[column]} {unit} at batch {batch}"
    if batch != question.batch_size:
        basis += f", scaled from batch {batch} by samples"
    return float(row[column]) / batch * question.batch_size, basis


# -- operators of other trainings ----------------------------------------------------------------


@cache
def operators(question: Question, backend: str, threads: int) -> Sequence[dict[str, Any]]:
    """The operators of a step, read from one on this host, which is not timed.

    Raises:
        UserError: this host has no memory for it.
    """
    workload = question.workload()
    inventory.require_memory(workload, question.precision, backend)
    parameters = SPEECH | workload.parameters
    step = inventory.Training(workload, parameters, backend, question.precision, threads)
    return [row | {"group": group(row["kind"], row["phase"])} for row in step.operators()]


def predicted(
    question: Question, workload: Any, candidate: Candidate, backend: str, facts: Facts
) -> Estimate:
    """Seconds of a step by the operators of other trainings, or why it is unknown."""
    if facts.timed is None:
        return Estimate(basis=UNASKED)
    there = [
        training
        for training in facts.timed
        if training.point["backend"] == backend and of_candidate(training.point, candidate)
    ]
    if not there:
        return Estimate(basis=UNTIMED)
    first = min(there, key=lambda training: training.point["source"] != HERE).place
    there = [training for training in there if training.place == first]
    most = prediction.REACH * max(training.point["flops"] or 0.0 for training in there)
    if workload.flops_per_step()[0] > most:
        return Estimate(
            basis=f"unknown: its step has more than {prediction.REACH:g} times the operations of any "
            "training there whose operators were timed"
        )
    try:
        rows = operators(question, backend, int(there[0].point["threads"]))
    except UserError as error:
        return Estimate(basis=f"unknown: {error}")
    model = (question.module, question.trainer, question.lora_rank or None)
    found = prediction.Timed(there).predict(rows, model)
    if found.refusal:
        return Estimate(basis=f"unknown: {found.refusal}")
    keys = {point_key(training.point) for training in there}
    errors = prediction.errors(line for line in facts.predictions if point_key(line) in keys)
    off = errors.median_size if errors else 0.0
    basis = (
        f"predicted from the operators of {len(there)} other trainings there; such predictions are "
    )
    basis += f"{errors}" if errors else "untried"
    ends = (found.seconds / (1 + off), found.seconds * (1 + off))
    return Estimate(ends[0], found.seconds, ends[1], PREDICTED, basis)
