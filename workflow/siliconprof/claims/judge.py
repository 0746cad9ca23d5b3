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
from siliconprof.claims import cases, claims_file
from siliconprof.claims.cases import MULTIPLES, WHICH_DEVICE, Case, QuestionWithCases
from siliconprof.claims.claims_file import Claim, Compare
from siliconprof.claims.evidence import Evidence, fits
from siliconprof.claims.figures import AGAINST, AGREES, OPEN, joined, shown
from siliconprof.store import table_files
from siliconprof.store.record import HERE
from siliconprof.store.table_files import Row, Tables

REPRODUCED, CONTRADICTED = "reproduced", "contradicted"
INCONCLUSIVE, NOT_TESTABLE = "inconclusive", "not testable here"
CLAIM_VERDICTS = (REPRODUCED, CONTRADICTED, INCONCLUSIVE, NOT_TESTABLE)
UNDECIDED = "inconclusive"  # the word of an analysis that came to nothing
MOST_SHOWN = 4  # cases of a finding that its reason lists
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
    verdict, reason, case = decided(claim, found, [*missing])
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


def decided(claim: Claim, cases: Sequence[Case], missing: Sequence[str]) -> tuple[str, str, Case]:
    """(the verdict on a claim, its reason, the case that it is based on, empty for none).

    Args:
        missing: why the answer is not complete; where there are no cases, why not.
    """
    if not cases:
        return NOT_TESTABLE, "; ".join(missing), Case()
    region = claim.region
    if region is None:
        return _finding(claim.compare, cases, missing)
    cases = _reduced(cases, claim.compare.cases)
    answers = [region.answer(case.low, case.high) for case in cases]
    verdict = _together(answers, claim.compare.cases, missing)
    decisive = {REPRODUCED: AGREES, CONTRADICTED: AGAINST, INCONCLUSIVE: OPEN}.get(verdict)
    among = [c for c, answer in zip(cases, answers, strict=True) if answer == decisive] or cases
    case = min(among, key=lambda case: region.favour(case.middle))
    lead = _lead(verdict, answers, case.remark, missing)
    interval = f"{shown(case.middle)} [{shown(case.low)}, {shown(case.high)}]"
    return verdict, f"{lead}{case.label}: {interval}, claimed {region}", case


def _reduced(cases: Sequence[Case], how: str) -> Sequence[Case]:
    """Several cases as one where they count together, else as they are."""
    if how not in MULTIPLES or len(cases) == 1:
        return cases
    name, combine = MULTIPLES[how]
    middles = [case.middle for case in cases]
    label = f"{name} of {len(cases)} cases"
    if how != "mean":
        label += f", {cases[middles.index(combine(middles))].label}"
    return [
        Case(
            label,
            middle=combine(middles),
            low=combine([case.low for case in cases]),
            high=combine([case.high for case in cases]),
            basis=joined(case.basis for case in cases),
            remark=joined(case.remark for case in cases),
        )
    ]


def _together(answers: Sequence[str], how: str, missing: Sequence[str]) -> str:
    agree, against, many = answers.count(AGREES), answers.count(AGAINST), len(answers) / 2
    if how == "typical":
        contradicted, reproduced = against > many and not agree, agree > many and not against
    else:
        contradicted, reproduced = against > 0, agree == len(answers)
    # One case against `all` decides, whatever is missing, which may turn any other answer.
    if contradicted and (how == "all" or not missing):
        return CONTRADICTED
    return NOT_TESTABLE if missing else REPRODUCED if reproduced else INCONCLUSIVE


def _lead(verdict: str, answers: Sequence[str], remark: str, missing: Sequence[str]) -> str:
    """How the reason for a verdict begins, before the case that decides."""
    agree, against, n = answers.count(AGREES), answers.count(AGAINST), len(answers)
    if verdict == NOT_TESTABLE:
        return f"only in part: {'; '.join(missing)}. So far "
    if verdict == REPRODUCED:
        return f"{agree} of {n} cases agree, the least clearly " if n > 1 else ""
    if verdict == CONTRADICTED:
        return f"{against} of {n} cases against it, the most clearly " if n > 1 else ""
    both = f"{agree} agree, {against} are against it"
    if agree and against:
        return f"cases differ beyond noise: {both}, {n - agree - against} are open; "
    if remark:
        return f"{remark}; "
    some = f"{agree} of {n} cases agree, {against} are against it; "
    counted = some if agree or against else f"none of {n} cases decides; "
    return f"{counted if n > 1 else ''}noise: the interval overlaps the bound: "


def _finding(
    compare: Compare, cases: Sequence[Case], missing: Sequence[str]
) -> tuple[str, str, Case]:
    claimed, words = compare.words or (), [case.word for case in cases]
    answers = [
        AGREES if word in claimed else OPEN if word == UNDECIDED else AGAINST for word in words
    ]
    verdict = _together(answers, compare.cases, missing)
    more = f" and {len(cases) - MOST_SHOWN} more" if len(cases) > MOST_SHOWN else ""
    partly = f"only in part: {'; '.join(missing)}. "
    leads = {NOT_TESTABLE: partly, INCONCLUSIVE: "the analysis is undecided: "}
    texts = "; ".join(f"{case.label}: {case.word}" for case in cases[:MOST_SHOWN])
    reason = f"{leads.get(verdict, '')}{texts}{more}, claimed {' or '.join(claimed)}"
    return verdict, reason, Case(word=", ".join(dict.fromkeys(words)))


def write(frames: Frames, claims: Path, output: Tables) -> None:
    """Compute and write claims.csv."""
    evidence = Evidence(frames)
    lines = [
        row_of(claim) | (judged(claim, evidence) if claim.questions else {})
        for claim in claims_file.load(claims, frames.sheets.registry, frames.published_folder)
    ]
    table_files.write_frame(table_files.path(output, "claims"), pd.DataFrame(lines))
