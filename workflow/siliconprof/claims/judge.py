"""Tests published claims with these results.

`claims.csv`: one line per statement of config/claims.yaml with its verdict: reproduced,
contradicted, inconclusive or not testable here. A claim that names devices is decided by those
devices alone, wherever they were measured; one that names none by this host's cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from siliconprof.analyse.frames import Frames
from siliconprof.claims import cases, claims_file, verdicts
from siliconprof.claims.cases import WHICH_DEVICE, QuestionWithCases
from siliconprof.claims.claims_file import Claim
from siliconprof.claims.evidence import Evidence, fits
from siliconprof.claims.verdicts import NOT_TESTABLE
from siliconprof.store.record import HERE
from siliconprof.store.table_files import Row

NO_CASE = "no two of its cells did the same work in the same way"
OF_POINTS = ("model", "shape_size")  # keys of a side that no cell has


def row_of(claim: Claim) -> Row:
    """What a claim's line of claims.csv says of the claim itself."""
    entry, compare = claim.entry, claim.entry.compare
    row: Row = {
        "id": entry.id,
        "statement": entry.text,
        "source": claim.source,
        "note": claim.note or None,
        "published_devices": ";".join(claim.devices) or None,
        "published_value": claim.printed or None,
        "published_unit": claim.printed_unit if claim.printed else None,
        "consistency": entry.consistency,
        "consistency_reason": entry.consistency_reason,
    }
    if compare is None:
        return row | {"verdict": NOT_TESTABLE, "reason": entry.untestable}
    row |= {
        "kind": compare.kind,
        "compared": claim.quantity.label,
        "unit": claim.unit or None,
        "tolerance": compare.tolerance,
        "tolerance_reason": compare.tolerance_reason,
        "claimed": str(claim.region) if claim.region else " or ".join(compare.words or ()),
    }
    if claim.region:
        ends = {"claimed_low": claim.region.low, "claimed_high": claim.region.high}
        row |= {name: end for name, end in ends.items() if abs(end) < float("inf")}
    return row


def judged(claim: Claim, evidence: Evidence) -> Row:
    """The verdict on a claim with its figures."""
    every = cases.questions_of_claim(evidence, claim)
    found = [case for asked in every for case in asked.cases]
    missing = dict.fromkeys(_missing(claim, every, evidence))
    verdict, reason, case = verdicts.judge(claim, found, [*missing])
    devices = dict.fromkeys(place for one in found for place in one.places)
    return {
        "verdict": verdict,
        "reason": reason,
        "measured_value": case.middle,
        **{f"measured_{name}": getattr(case, name) for name in ("low", "high", "word", "basis")},
        "measured_devices": "; ".join(devices) or None,
    }


def _missing(claim: Claim, every: Sequence[QuestionWithCases], evidence: Evidence) -> list[str]:
    """Why the answer is not complete."""
    unmeasured = [name for name in claim.devices if name not in evidence.devices]
    devices = evidence.frames.sheets.registry["devices"]
    names = "; ".join(devices[name]["name"] for name in unmeasured)  # which contain commas
    missing = [f"not measured: {names}"] if names else []
    for asked in every:
        if asked.cases:
            missing += _batches(asked)
        elif not set(asked.question.devices) & set(unmeasured):
            missing.append(_why_none(claim, asked, evidence))
    return missing


def _batches(asked: QuestionWithCases) -> list[str]:
    """The reason, if any, that batch sizes of the question are missing."""
    question, measured = asked.question, {size for case in asked.cases for size in case.sizes}
    texts = []
    for module in question.workloads:
        absent = [str(b) for b in question.batch_sizes if (module, b) not in measured]
        texts += [f"{module} with batch {', '.join(absent)}"] if absent else []
    return [f"not measured on both sides: {'; '.join(texts)}"] if texts else []


def _why_none(claim: Claim, asked: QuestionWithCases, evidence: Evidence) -> str:
    """The backend, workload, setting or figure that is missing where there is no case."""
    question, cells = asked.question, evidence.cells
    counted = cells[cells["module"].isin(question.workloads)]
    if not claim.devices:
        counted = counted[counted["source"] == HERE]
    modules = " or ".join(question.workloads)
    for side in question.sides:
        device = {k: v for k, v in side.items() if k in (*WHICH_DEVICE, "backend")}
        setting = {k: v for k, v in side.items() if k not in (*device, *OF_POINTS)}
        name = _side_words(device, evidence.frames.sheets.registry["devices"])
        there = counted[fits(counted, device)]
        if there.empty:
            return f"no {modules} cell{name} is part of these results"
        if not there["status"].eq("ok").any():
            texts = sorted({*(there["status"] + ": " + there["reason"].fillna("None"))})
            return f"{modules}{name}: {'; '.join(texts)}"
        if not fits(there, setting).any():
            asked_for = ", ".join(_setting_words(k, v) for k, v in setting.items())
            return f"no {modules} cell{name} with {asked_for} is part of these results"
    if asked.reasons:
        return "; ".join(asked.reasons)
    if question.batch_sizes:
        return f"no cell of {modules} has batch {', '.join(map(str, question.batch_sizes))}"
    return NO_CASE


def _setting_words(name: str, value: Any) -> str:
    """`size medium or large`, `gradient_checkpointing True`."""
    if name == "lora":
        return "LoRA" if value else "all parameters trained"
    shown = " or ".join(value) if isinstance(value, list) else str(value)
    return f"{name.removesuffix('_applied')} {shown}"


def _side_words(side: Mapping[str, Any], devices: Mapping[str, Any]) -> str:
    """` of Apple M4, 10 GPU cores, by torch-mps`; empty for a side that names nothing."""
    text = ""
    if "device" in side:
        text = f" of {devices[side['device']]['name']}"
    elif "device_kind" in side:
        text = f" of a {side['device_kind'].upper()}"
    return f"{text} by {side['backend']}" if "backend" in side else text


def write(frames: Frames, claims: Path) -> None:
    """Compute and write: the table."""
    evidence = Evidence(frames)
    lines = [
        row_of(claim) | (judged(claim, evidence) if claim.questions else {})
        for claim in claims_file.load(claims, frames.sheets.registry, frames.published_folder)
    ]
    frames.write("claims", pd.DataFrame(lines))
