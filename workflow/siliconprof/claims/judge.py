"""Tests published claims with these results.

`claims.csv`: one line per statement of config/claims.yaml with its verdict: reproduced,
contradicted, inconclusive or not testable here. A claim that names devices is decided by those
devices alone, wherever they were measured; one that names none by this host's cells. The columns
`analogue_…` have what other devices show, which changes no verdict. `consistency` says whether the
printed numbers themselves agree with the statement, and is no verdict either.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from siliconprof.analyse.published_values import Published
from siliconprof.claims import cases as claim_cases
from siliconprof.claims import claims_file, consistency, verdicts
from siliconprof.claims.cases import Case
from siliconprof.claims.claims_file import Claim, Question, Side
from siliconprof.claims.consistency import Answer
from siliconprof.claims.evidence import Evidence
from siliconprof.claims.figures import AGAINST, AGREES, OPEN
from siliconprof.claims.quantities import QUANTITIES
from siliconprof.claims.verdicts import NOT_TESTABLE, Outcome
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.store import columns, table_files
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


def row_of(claim: Claim, evidence: Evidence, tables: Answer) -> Row:
    """A claim's line of claims.csv.

    Args:
        tables: whether the sources' own numbers agree with it.
    """
    row: Row = columns.blank("claims") | {
        "id": claim.id,
        "statement": claim.text,
        "source": claim.source,
        "note": claim.note or None,
        "published_devices": ";".join(claim.devices) or None,
        "published_value": claim.printed or None,
        "published_unit": claim.printed_unit if claim.printed else None,
        "consistency": tables.word or None,
        "consistency_reason": tables.reason,
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
        low, high = claim.region.low, claim.region.high
        row["claimed_low"] = low if abs(low) < float("inf") else None
        row["claimed_high"] = high if abs(high) < float("inf") else None
    own, other = own_outcome(claim, evidence), analogue(claim, evidence)
    row |= {"verdict": own.verdict, "reason": own.reason} | _columns("measured", own)
    if other is not None:
        row |= {"analogue_says": ANALOGUE_WORDS[other.verdict], "analogue_reason": other.reason}
        row |= _columns("analogue", other)
    return row


def _columns(prefix: str, outcome: Outcome) -> Row:
    figure = outcome.figure
    number = figure if figure and not figure.word else None
    values = {
        "value": number and number.middle,
        "low": number and number.low,
        "high": number and number.high,
        "word": figure and figure.word or None,
        "case": outcome.label or None,
        "basis": number and number.basis or None,
        "cases_agree": outcome.answers.count(AGREES),
        "cases_against": outcome.answers.count(AGAINST),
        "cases_open": outcome.answers.count(OPEN),
        "devices": "; ".join(dict.fromkeys(map(claim_cases.where, outcome.rows))) or None,
        "records": ";".join(dict.fromkeys(str(row["record"]) for row in outcome.rows)) or None,
    }
    return {f"{prefix}_{name}": value for name, value in values.items()}


# -- whose cells decide ----------------------------------------------------------------------------


def own_outcome(claim: Claim, evidence: Evidence) -> Outcome:
    """The verdict from the devices that a claim names, else from this host's cells."""

    named = claim.devices

    def counts(row: Row) -> bool:
        return bool(named) or row["source"] == HERE

    cases: list[Case] = []
    unmeasured = [name for name in named if name not in evidence.devices]
    missing = _not_measured([evidence.sheets.registry["devices"][n]["name"] for n in unmeasured])
    for question in claim.questions:
        more, reasons = claim_cases.of(evidence, claim, question, counts)
        cases += more
        if more:
            missing += _batches(question, more)
        elif not set(question.devices) & set(unmeasured):
            missing.append(_why_none(evidence, question, reasons, counts))
    return verdicts.judge(claim, cases, list(dict.fromkeys(missing)))


def analogue(claim: Claim, evidence: Evidence) -> Outcome | None:
    """The outcome on other devices, or other hosts where a claim names no device; None without."""
    if claim.over_printed:
        return None  # no number is printed for other devices
    questions = list(claim.questions)
    elsewhere = not claim.devices and not any("like" in s for q in questions for s in q.sides)
    if not elsewhere:
        questions = list(filter(None, map(_analogous, questions)))
    cases: list[Case] = []
    missing: list[str] = []

    def counts(row: Row) -> bool:
        return not elsewhere or row["source"] != HERE

    for index, question in enumerate(questions):
        if question in questions[:index]:
            continue
        ordered = len(question.sides) > 1 and question.sides[0] == question.sides[1]

        def keep(rows: Sequence[Row], ordered: bool = ordered) -> bool:
            return not _decides(claim, rows) and (not ordered or _stronger(evidence, *rows))

        more, _ = claim_cases.of(evidence, claim, question, counts, keep)
        cases += more
        missing += _batches(question, more)
    return verdicts.judge(claim, cases, list(dict.fromkeys(missing))) if cases else None


def _analogous(question: Question) -> Question | None:
    """The same question of other devices; None where the claim does not say of which."""
    sides = [side for side in map(claim_cases.analogous, question.sides) if side is not None]
    return replace(question, sides=sides) if len(sides) == len(question.sides) else None


def _decides(claim: Claim, rows: Sequence[Row]) -> bool:
    """Whether the verdict is based on these rows."""
    if claim.devices:
        return all({row["device"], row["registry_id"]} & set(claim.devices) for row in rows)
    return all(row["source"] == HERE for row in rows) and any(
        all(map(claim_cases.fits, rows, question.sides)) for question in claim.questions
    )


def _stronger(evidence: Evidence, one: Row, other: Row) -> bool:
    """Whether the first has the higher listed peak, as the claim's first device has."""
    peaks = [evidence.sheets.peak(row, row["precision"]).value for row in (one, other)]
    return bool(peaks[0] and peaks[1] and peaks[0] > peaks[1])


# -- what is missing -------------------------------------------------------------------------------


def _not_measured(names: Sequence[str]) -> list[str]:
    """The reason, if any, that devices have no cell."""
    if len(names) > 2:  # names contain commas, and a long list is cut at its end
        return [f"not measured: {'; '.join(names)}"]
    was = "was" if len(names) == 1 else "were"
    return [f"{' and '.join(names)} {was} not measured"] if names else []


def _batches(question: Question, cases: Sequence[Case]) -> list[str]:
    """The reason, if any, that batch sizes of the question are missing."""
    if not cases or not question.batch_sizes:
        return []
    measured = {(r["module"], int(claim_cases.batch_of(r))) for case in cases for r in case.rows}
    texts = []
    for module in question.workloads:
        absent = [str(b) for b in question.batch_sizes if (module, b) not in measured]
        texts += [f"{module} with batch {', '.join(absent)}"] if absent else []
    return [f"not measured on both sides: {'; '.join(texts)}"] if texts else []


def _why_none(
    evidence: Evidence, question: Question, reasons: Sequence[str], counts: Callable[[Row], bool]
) -> str:
    """The backend, workload, setting or figure that is missing where there is no case."""
    cells = [c for c in evidence.cells if counts(c) and c["module"] in question.workloads]
    modules = " or ".join(question.workloads)
    for side in question.sides:
        device = {k: v for k, v in side.items() if k in claim_cases.OF_A_DEVICE}
        setting = {k: v for k, v in side.items() if k not in (*device, *OF_POINTS)}
        name = _side_words(device, evidence.sheets.registry["devices"])
        on_device = [cell for cell in cells if claim_cases.fits(cell, device)]
        if not on_device:
            return f"no {modules} cell{name} is part of these results"
        if not any(cell["status"] == "ok" for cell in on_device):
            failed = sorted({f"{cell['status']}: {cell['reason']}" for cell in on_device})
            return f"{modules}{name}: {'; '.join(failed)}"
        if not any(claim_cases.fits(cell, setting) for cell in on_device):
            asked = ", ".join(_setting_words(k, v) for k, v in setting.items())
            return f"no {modules} cell{name} with {asked} is part of these results"
    if reasons:
        return "; ".join(reasons)
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
    devices = sheets.registry
    published = Published(arguments.published, devices)
    claims = claims_file.load(arguments.claims, devices, published)
    consistent = consistency.answers(claims, published, str(arguments.claims))
    evidence = Evidence(results, sheets)
    lines = [row_of(claim, evidence, consistent[claim.id]) for claim in claims]
    table_files.write(arguments.output_dir / "claims.csv", lines)
