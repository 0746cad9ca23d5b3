"""A training's time and energy by the paper's Tables 4 and 5, and the MFU that Table 4 implies.

Table 4 prints no sequence length, so the share of the peak that it implies is a range: from 128
tokens, our assumption (config/paper.yaml), to the longest power of two with which all of the
table's trainings fit their devices by our memory model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from siliconprof import plugins
from siliconprof.advice.parts import PUBLISHED, Candidate, Estimate, Facts, Row, candidates
from siliconprof.cells.advice_question import SEQ_LEN, Question
from siliconprof.memory import footprint

TABLE4_LENGTHS = (128, 256, 512, 1024)


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
        if row["device"] != candidate.id or row["backend"] != backend:
            continue
        if row["workload"].lower() == question.model:
            batch = int(row["batch_size"])
            scaled = (
                "" if batch == question.batch_size else f", scaled from batch {batch} by samples"
            )
            basis = (
                f"{row['source']}: {row['pass_time_s']} s a pass at batch {batch}{scaled}; its "
                f"sequence length is not printed ({SEQ_LEN} tokens are assumed, as for the slow ends "
                "of predicted ranges), nor is whether it includes the optimizer"
            )
            per_step = float(row["pass_time_s"]) / batch * question.batch_size
            return Estimate(None, per_step, None, PUBLISHED, basis)
    return None


def published_energy(question: Question, candidate: Candidate, facts: Facts) -> dict[str, Estimate]:
    """Joules of a step by Table 5, by scope, scaled by samples."""
    if question.lora_rank:
        return {}
    for row in facts.published.get("table5_energy", ()):
        same = row["workload"].lower() == question.model and row["precision"] == question.precision
        if row["device"] == candidate.id and same:
            batch = int(row["batch_size"])
            scaled = (
                "" if batch == question.batch_size else f", scaled from batch {batch} by samples"
            )
            basis = f"{row['source']}: {row['energy_per_iteration_j']} J at batch {batch}{scaled}"
            joules = float(row["energy_per_iteration_j"]) / batch * question.batch_size
            return {"gpu": Estimate(None, joules, None, PUBLISHED, f"{basis} ({row['scope']})")}
    return {}


# -- what Table 4 implies ------------------------------------------------------------------------


def _table4(row: Row, seq_len: int) -> Any:
    plugin = plugins.load("workloads", "gpt2")
    own = {k: v["default"] for k, v in plugin.PARAMETERS.items() if "default" in v}
    size = row["workload"].lower().removeprefix("gpt2-")
    return plugin(own | {"size": size, "batch_size": int(row["batch_size"]), "seq_len": seq_len})


def longest_of_table4(facts: Facts) -> int:
    """The longest sequence with which every training of Table 4 fits its device, in tokens."""
    by_id = {candidate.id: candidate for candidate in candidates(facts.registry["devices"], None)}
    longest = TABLE4_LENGTHS[0]
    for seq_len in TABLE4_LENGTHS[1:]:
        for row in facts.published["table4_pass_time"]:
            needed = footprint.total(_table4(row, seq_len).memory_bytes("fp32", row["backend"]))
            capacity = by_id[row["device"]].capacity()[0] if row["device"] in by_id else None
            if capacity is not None and needed > capacity:
                return longest
        longest = seq_len
    return longest


@dataclass(frozen=True)
class Share:
    """The share of its device's peak that a row of Table 4 implies, as a range from 0 to 1."""

    name: str
    low: float
    high: float
    peak: float  # FLOP/s
    flops: float  # of a pass: the geometric mean of both ends
    longest: int  # tokens


def table4_shares(facts: Facts) -> dict[str, list[Share]]:
    """Backend -> the shares that its rows imply."""
    by_backend: dict[str, list[Share]] = {}
    if not facts.published.get("table4_pass_time"):
        return by_backend
    by_id = {candidate.id: candidate for candidate in facts.candidates}
    longest = longest_of_table4(facts)
    for row in facts.published["table4_pass_time"]:
        candidate = by_id.get(row["device"])
        peak = candidate.peak("fp32") if candidate else None
        if candidate is None or peak is None:
            continue
        work = [_table4(row, n).flops_per_step()[0] for n in (TABLE4_LENGTHS[0], longest)]
        low, high = (n / float(row["pass_time_s"]) / peak for n in work)
        by_backend.setdefault(row["backend"], []).append(
            Share(candidate.name, low, high, peak, math.sqrt(work[0] * work[1]), longest)
        )
    return by_backend
