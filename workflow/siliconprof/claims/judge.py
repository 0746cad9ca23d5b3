"""Tests published claims with these results.

`claims.csv`: one line per statement of config/claims.yaml with its verdict: reproduced,
contradicted, inconclusive or not testable here. A claim that names devices is decided by those
devices alone, wherever they were measured; one that names none by this host's cells. The columns
`analogue_…` have what other devices show, which changes no verdict. `consistency` says whether the
printed numbers themselves agree with the statement, and is no verdict either.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from siliconprof.analyse.published_values import Published
from siliconprof.claims import cases as claim_cases
from siliconprof.claims import claims_file, consistency, verdicts
from siliconprof.claims.cases import batch_of, fits
from siliconprof.claims.claims_file import Claim, Question, Side
from siliconprof.claims.consistency import Answer
from siliconprof.claims.evidence import Evidence
from siliconprof.claims.figures import AGAINST, AGREES, OPEN
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


def row_of(claim: Claim, evidence: Evidence, tables: Answer) -> Row:
    """A claim's line of claims.csv.

    Args:
        tables: whether the sources' own numbers agree with it.
    """
    row: Row = {
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
        ends = {"claimed_low": claim.region.low, "claimed_high": claim.region.high}
        row |= {name: end for name, end in ends.items() if abs(end) < float("inf")}
    verdict, reason, measured = _judged(claim, evidence, *_own(claim, evidence), "measured")
    row |= {"verdict": verdict, "reason": reason} | measured
    cases, missing = _analogue(claim, evidence)
    if cases:
        verdict, reason, measured = _judged(claim, evidence, cases, missing, "analogue")
        row |= {"analogue_says": ANALOGUE_WORDS[verdict], "analogue_reason": reason} | measured
    return row


def _judged(
    claim: Claim,
    evidence: Evidence,
    cases: Sequence[pd.DataFrame],
    missing: Iterable[str],
    prefix: str,
) -> tuple[str, str, Row]:
    """(verdict, reason, the columns of its figures and rows)."""
    every = pd.concat(cases, ignore_index=True) if cases else pd.DataFrame()
    outcome = verdicts.judge(claim, every, list(dict.fromkeys(missing)))
    labels = dict.fromkeys(label for labels in every.get("rows", ()) for label in labels)
    rows = evidence.all_rows(QUANTITIES[claim.quantity].rows).loc[[*labels]]
    fields = {"value": "middle", "word": "word", "case": "label"}
    fields |= {name: name for name in ("low", "high", "basis")}
    values = {name: outcome.case.get(field) for name, field in fields.items()}
    values |= {
        "cases_agree": outcome.answers.count(AGREES),
        "cases_against": outcome.answers.count(AGAINST),
        "cases_open": outcome.answers.count(OPEN),
        "devices": "; ".join(rows["where"].unique()) or None,
        "records": ";".join(rows["record"].astype("str").unique()) or None,
    }
    columns = {f"{prefix}_{name}": value for name, value in values.items()}
    return outcome.verdict, outcome.reason, columns


# -- whose cells decide ----------------------------------------------------------------------------


def _all(rows: pd.DataFrame) -> pd.Series:
    return pd.Series(True, rows.index)


def _own(claim: Claim, evidence: Evidence) -> tuple[list[pd.DataFrame], list[str]]:
    """The cases of the devices that a claim names, else of this host, and what is missing."""
    unmeasured = [name for name in claim.devices if name not in evidence.devices]
    missing = _not_measured([evidence.sheets.registry["devices"][n]["name"] for n in unmeasured])
    cases = []

    def counts(rows: pd.DataFrame) -> pd.Series:
        return _all(rows) if claim.devices else rows["source"] == HERE

    for question in claim.questions:
        more, reasons = claim_cases.of(evidence, claim, question, counts, lambda of: _all(of[0]))
        if len(more):
            cases.append(more)
            missing += _batches(evidence, claim, question, more)
        elif not set(question.devices) & set(unmeasured):
            missing.append(_why_none(evidence, question, reasons, counts(evidence.cells)))
    return cases, missing


def _analogue(claim: Claim, evidence: Evidence) -> tuple[list[pd.DataFrame], list[str]]:
    """The cases of other devices, or of other hosts where a claim names no device."""
    if claim.over_printed:
        return [], []  # no number is printed for other devices
    questions = list(claim.questions)
    elsewhere = not claim.devices and not any("like" in s for q in questions for s in q.sides)
    if not elsewhere:
        questions = list(filter(None, map(_analogous, questions)))
    cases, missing = [], []

    def counts(rows: pd.DataFrame) -> pd.Series:
        return rows["source"] != HERE if elsewhere else _all(rows)

    for index, question in enumerate(questions):
        if question in questions[:index]:
            continue
        ordered = len(question.sides) > 1 and question.sides[0] == question.sides[1]

        def keep(of: Sequence[pd.DataFrame], ordered: bool = ordered) -> pd.Series:
            """Those that decide nothing, with the higher listed peak first as the claim has it."""
            is_stronger = of[0]["peak"] > of[-1]["peak"] if ordered else _all(of[0])
            return is_stronger & ~_decides(claim, of)

        more, _ = claim_cases.of(evidence, claim, question, counts, keep)
        if len(more):
            cases.append(more)
            missing += _batches(evidence, claim, question, more)
    return cases, missing


def _analogous(question: Question) -> Question | None:
    """The same question of other devices; None where the claim does not say of which."""
    sides = [side for side in map(claim_cases.analogous, question.sides) if side is not None]
    return replace(question, sides=sides) if len(sides) == len(question.sides) else None


def _decides(claim: Claim, of: Sequence[pd.DataFrame]) -> pd.Series:
    """Whether the verdict is based on these rows, of one frame a side."""
    if claim.devices:
        named = {"device": claim.devices}
        return np.logical_and.reduce([fits(rows, named) for rows in of])
    here = np.logical_and.reduce([rows["source"] == HERE for rows in of])
    asked = [
        np.logical_and.reduce(list(map(fits, of, question.sides))) for question in claim.questions
    ]
    return here & np.logical_or.reduce(asked)


# -- what is missing -------------------------------------------------------------------------------


def _not_measured(names: Sequence[str]) -> list[str]:
    """The reason, if any, that devices have no cell."""
    if len(names) > 2:  # names contain commas, and a long list is cut at its end
        return [f"not measured: {'; '.join(names)}"]
    was = "was" if len(names) == 1 else "were"
    return [f"{' and '.join(names)} {was} not measured"] if names else []


def _batches(
    evidence: Evidence, claim: Claim, question: Question, cases: pd.DataFrame
) -> list[str]:
    """The reason, if any, that batch sizes of the question are missing."""
    if not question.batch_sizes:
        return []
    rows = evidence.rows(QUANTITIES[claim.quantity].rows, question.workloads)
    rows = rows.loc[[label for labels in cases["rows"] for label in labels]]
    measured = set(zip(rows["module"], batch_of(rows).astype(int), strict=True))
    texts = []
    for module in question.workloads:
        absent = [str(b) for b in question.batch_sizes if (module, b) not in measured]
        texts += [f"{module} with batch {', '.join(absent)}"] if absent else []
    return [f"not measured on both sides: {'; '.join(texts)}"] if texts else []


def _why_none(
    evidence: Evidence, question: Question, reasons: Sequence[str], counted: pd.Series
) -> str:
    """The backend, workload, setting or figure that is missing where there is no case."""
    cells = evidence.cells[counted & evidence.cells["module"].isin(question.workloads)]
    modules = " or ".join(question.workloads)
    for side in question.sides:
        device = {k: v for k, v in side.items() if k in claim_cases.OF_A_DEVICE}
        setting = {k: v for k, v in side.items() if k not in (*device, *OF_POINTS)}
        name = _side_words(device, evidence.sheets.registry["devices"])
        on_device = cells[fits(cells, device)]
        if on_device.empty:
            return f"no {modules} cell{name} is part of these results"
        if not on_device["status"].eq("ok").any():
            failed = sorted({*(on_device["status"] + ": " + on_device["reason"].fillna("None"))})
            return f"{modules}{name}: {'; '.join(failed)}"
        if not fits(on_device, setting).any():
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
    table_files.write_frame(arguments.output_dir / "claims.csv", pd.DataFrame(lines))
