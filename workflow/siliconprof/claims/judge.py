"""Tests published claims with these results.

`claims.csv`: one line per statement of config/claims.yaml with its verdict: reproduced,
contradicted, inconclusive or not testable here. A claim that names devices is decided by those
devices alone, wherever they were measured; one that names none by this host's cells. The columns
`analogue_…` have what other devices show, which changes no verdict.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from siliconprof.claims import cases, claims_file, verdicts
from siliconprof.claims.cases import OF_A_DEVICE, Asked, Case
from siliconprof.claims.claims_file import Claim, Question, Side
from siliconprof.claims.evidence import CELLS, Evidence
from siliconprof.claims.quantities import QUANTITIES
from siliconprof.claims.verdicts import NOT_TESTABLE
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.store import table_files
from siliconprof.store.records import HERE
from siliconprof.store.results import Results
from siliconprof.store.table_files import Row

# The result of an analogue is no verdict, so it has other words.
ANALOGUE_WORDS = {
    verdicts.REPRODUCED: "agrees",
    verdicts.CONTRADICTED: "disagrees",
    verdicts.INCONCLUSIVE: "undecided",
    NOT_TESTABLE: "in part",
}
VENDORS = {"apple": "Apple", "nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
NO_CASE = "no two of its cells did the same work in the same way"
OF_POINTS = ("model", "shape_size")  # keys of a side that no cell has


def row_of(claim: Claim) -> Row:
    """What a claim's line of claims.csv says of the claim itself."""
    row: Row = {
        "id": claim.id,
        "statement": claim.text,
        "source": claim.source,
        "note": claim.note or None,
        "published_devices": ";".join(claim.devices) or None,
        "published_value": claim.printed or None,
        "published_unit": claim.printed_unit if claim.printed else None,
        "consistency": claim.consistency,
        "consistency_reason": claim.consistency_reason,
    }
    if not claim.kind:
        return row | {"verdict": NOT_TESTABLE, "reason": claim.untestable}
    row |= {
        "kind": claim.kind,
        "compared": QUANTITIES[claim.quantity].words,
        "unit": claim.unit or None,
        "tolerance": claim.tolerance,
        "tolerance_reason": claim.tolerance_reason,
        "claimed": claim.expected,
    }
    if claim.region:
        ends = {"claimed_low": claim.region.low, "claimed_high": claim.region.high}
        row |= {name: end for name, end in ends.items() if abs(end) < float("inf")}
    return row


def judged(claim: Claim, every: Sequence[Asked], evidence: Evidence) -> Row:
    """The verdict on a claim, or what others show instead of one, with its figures and rows."""
    cases = [case for asked in every for case in asked.cases]
    is_analogue = not every or every[0].is_analogue
    if is_analogue and not cases:
        return {}
    missing = _missing(claim, every, evidence)
    verdict, reason, case = verdicts.judge(claim, cases, list(dict.fromkeys(missing)))
    if is_analogue:
        return {"analogue_says": ANALOGUE_WORDS[verdict], "analogue_reason": reason}
    devices = dict.fromkeys(place for one in cases for place in one.places)
    case = case or Case()
    return {
        "verdict": verdict,
        "reason": reason,
        "measured_value": case.middle,
        **{f"measured_{name}": getattr(case, name) for name in ("low", "high", "word", "basis")},
        "measured_devices": "; ".join(devices) or None,
    }


# -- whose cells decide ----------------------------------------------------------------------------


def _own(claim: Claim, evidence: Evidence) -> list[Asked]:
    """The questions to the devices that a claim names, else to this host."""
    table = evidence.rows(QUANTITIES[claim.quantity].rows)
    counts = None if claim.devices else table.has("source", [HERE])
    return [cases.ask(evidence, claim, question, counts) for question in claim.questions]


def _analogue(claim: Claim, evidence: Evidence) -> list[Asked]:
    """The questions to other devices, or to other hosts where a claim names no device."""
    questions, counts = list(claim.questions), None
    if claim.over_printed:
        return []  # no number is printed for other devices
    if claim.devices or any("like" in side for q in questions for side in q.sides):
        questions = [of for question in questions for of in _analogous(question)]
    else:
        counts = ~evidence.rows(QUANTITIES[claim.quantity].rows).has("source", [HERE])
    unlike = [q for index, q in enumerate(questions) if q not in questions[:index]]
    return [cases.ask(evidence, claim, question, counts, is_analogue=True) for question in unlike]


def _analogous(question: Question) -> list[Question]:
    """The same question of other devices; none where the claim does not say of which.

    The keys of `like` replace the device, its backend, and the same keys of a side; a key that is
    null there may have any value.
    """
    sides = []
    for side in question.sides:
        if "like" in side:
            kept = {k: v for k, v in side.items() if k not in OF_A_DEVICE} | dict(side["like"])
            side = {name: value for name, value in kept.items() if value is not None}
        elif "device" in side:
            return []
        sides.append(side)
    return [replace(question, sides=sides)]


# -- what is missing -------------------------------------------------------------------------------


def _missing(claim: Claim, every: Sequence[Asked], evidence: Evidence) -> list[str]:
    """Why the answer is not complete; of analogues, batch sizes alone may be missing."""
    unmeasured = [name for name in claim.devices if name not in evidence.devices]
    devices = evidence.sheets.registry["devices"]
    missing = (
        [] if every[0].is_analogue else _not_measured([devices[n]["name"] for n in unmeasured])
    )
    for asked in every:
        if asked.cases:
            missing += _batches(asked)
        elif not asked.is_analogue and not set(asked.question.devices) & set(unmeasured):
            missing.append(_why_none(asked, evidence))
    return missing


def _not_measured(names: Sequence[str]) -> list[str]:
    """The reason, if any, that devices have no cell."""
    if len(names) > 2:  # names contain commas, and a long list is cut at its end
        return [f"not measured: {'; '.join(names)}"]
    was = "was" if len(names) == 1 else "were"
    return [f"{' and '.join(names)} {was} not measured"] if names else []


def _batches(asked: Asked) -> list[str]:
    """The reason, if any, that batch sizes of the question are missing."""
    question, measured = asked.question, {size for case in asked.cases for size in case.sizes}
    texts = []
    for module in question.workloads:
        absent = [str(b) for b in question.batch_sizes if (module, b) not in measured]
        texts += [f"{module} with batch {', '.join(absent)}"] if absent else []
    return [f"not measured on both sides: {'; '.join(texts)}"] if texts else []


def _why_none(asked: Asked, evidence: Evidence) -> str:
    """The backend, workload, setting or figure that is missing where there is no case."""
    question = asked.question
    cells = evidence.rows(CELLS)
    counted = cells.has("module", question.workloads)
    if not asked.claim.devices:
        counted = counted & cells.has("source", [HERE])
    modules = " or ".join(question.workloads)
    for side in question.sides:
        device = {k: v for k, v in side.items() if k in OF_A_DEVICE}
        setting = {k: v for k, v in side.items() if k not in (*device, *OF_POINTS)}
        name = _side_words(device, evidence.sheets.registry["devices"])
        on_device = counted & cells.fits(device)
        if not on_device.any():
            return f"no {modules} cell{name} is part of these results"
        if not (on_device & cells.has("status", ["ok"])).any():
            failed = cells.frame[on_device]
            texts = sorted({*(failed["status"] + ": " + failed["reason"].fillna("None"))})
            return f"{modules}{name}: {'; '.join(texts)}"
        if not (on_device & cells.fits(setting)).any():
            asked_for = ", ".join(_setting_words(k, v) for k, v in setting.items())
            return f"no {modules} cell{name} with {asked_for} is part of these results"
    if asked.reasons:
        return "; ".join(asked.reasons)
    if question.batch_sizes:
        return f"no cell of {modules} has batch {', '.join(map(str, question.batch_sizes))}"
    shapes = sorted({str(side["shape_size"]) for side in question.sides if "shape_size" in side})
    if shapes:
        return f"no {' and no '.join(shapes)} shape of {modules} was timed on both sides"
    return NO_CASE


def _setting_words(name: str, value: Any) -> str:
    """`size medium or large`, `gradient_checkpointing True`."""
    if name == "lora":
        return "LoRA" if value else "all parameters trained"
    shown = " or ".join(value) if isinstance(value, list) else str(value)
    return f"{name.removesuffix('_applied')} {shown}"


def _side_words(side: Side, devices: Mapping[str, Any]) -> str:
    """` of Apple M4, 10 GPU cores, by torch-mps`; empty for a side that names nothing."""
    text = ""
    if "device" in side:
        text = f" of {devices[side['device']]['name']}"
    elif "vendor" in side:
        text = f" of a device of {VENDORS.get(side['vendor'], side['vendor'])}"
    elif "device_kind" in side:
        text = f" of a {side['device_kind'].upper()}"
    return f"{text} by {side['backend']}" if "backend" in side else text


def write(results: Results, sheets: DataSheets, arguments: argparse.Namespace) -> None:
    """Compute and write: the table."""
    claims = claims_file.load(arguments.claims, sheets.registry, arguments.published)
    evidence = Evidence(results, sheets)
    tested = [claim for claim in claims if claim.kind]
    asked = [(claim, of(claim, evidence)) for claim in tested for of in (_own, _analogue)]
    cases.fill(evidence, [question for _, questions in asked for question in questions])
    lines = {claim.id: row_of(claim) for claim in claims}
    for claim, questions in asked:
        lines[claim.id] |= judged(claim, questions, evidence)
    table_files.write_frame(arguments.output_dir / "claims.csv", pd.DataFrame(lines.values()))
