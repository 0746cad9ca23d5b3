"""Published claims, and what these results say of each.

    python -m siliconprof.claims.judge --matrix results/matrix.json --tables results/tables \
        --registry config/devices.yaml --claims config/claims.yaml \
        --published config/published --output-dir results/tables

`claims.csv`: one line per statement of config/claims.yaml with its verdict: reproduced,
contradicted, inconclusive or not testable here. A claim that names devices is decided by those very
devices alone, wherever they were measured; one that names none by this host's cells. What others
show stands in the columns `analogue_…` and changes no verdict. `consistency` tells whether the
printed numbers themselves agree with the statement, and is no verdict either.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from siliconprof.analyse.published_values import Published
from siliconprof.analyse.throughputs import Noise
from siliconprof.claims import cases as claim_cases
from siliconprof.claims import claims_file, consistency, verdicts, words
from siliconprof.claims.cases import Case, Found
from siliconprof.claims.claims_file import Claim, Question
from siliconprof.claims.consistency import Answer
from siliconprof.claims.evidence import Evidence
from siliconprof.claims.quantities import QUANTITIES
from siliconprof.claims.region import Region
from siliconprof.claims.verdicts import NOT_TESTABLE, Outcome
from siliconprof.errors import stage
from siliconprof.hosts import registry
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.store import matrix_file, noise_floors, table_files
from siliconprof.store.records import HERE
from siliconprof.store.table_files import Row

Counts = Callable[[Row], bool]  # whose rows count
TABLES = (
    "cells",
    "points",
    "scaling",
    "curves",
    "evaluations",
    "energy",
    "probes",
    "ceilings",
    "samples",
    "training_steps",
)
LONG = ("samples", "training_steps")  # which stay frames
MEASURED = (
    "value",
    "low",
    "high",
    "word",
    "case",
    "basis",
    "cases_agree",
    "cases_against",
    "cases_open",
    "devices",
    "records",
)
# What an analogue says is no verdict, and has words of its own.
ANALOGUE_WORDS = {
    verdicts.REPRODUCED: "agrees",
    verdicts.CONTRADICTED: "disagrees",
    verdicts.INCONCLUSIVE: "undecided",
    NOT_TESTABLE: "in part",
}
COLUMNS = (
    "id",
    "statement",
    "source",
    "note",
    "kind",
    "compared",
    "verdict",
    "reason",
    "consistency",
    "consistency_reason",
    "published_devices",
    "published_value",
    "published_unit",
    "claimed",
    "claimed_low",
    "claimed_high",
    "unit",
    "tolerance",
    "tolerance_reason",
    *(f"measured_{name}" for name in MEASURED),
    "analogue_says",
    "analogue_reason",
    *(f"analogue_{name}" for name in MEASURED),
)
UNITS = {kind: "times" for kind in ("ratio", "direction", "trend", "largest")} | {
    "share": "of the points",
    "finding": "",
}
VENDORS = {"apple": "Apple", "nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
NO_CASE = "no two of its cells did the same work in the same way"


def row_of(claim: Claim, evidence: Evidence, tables: Answer) -> Row:
    """A claim's line of claims.csv.

    Args:
        tables: what the sources' own numbers say of it.
    """
    compare = claim.compare
    row: Row = dict.fromkeys(COLUMNS) | {
        "id": claim.id,
        "statement": claim.text,
        "source": claim.source,
        "note": claim.note or None,
        "published_devices": ";".join(claim.named) or None,
        "published_value": claim.printed or None,
        "published_unit": claim.unit if claim.printed else None,
        "consistency": tables.word or None,
        "consistency_reason": tables.reason,
    }
    if not compare:
        return row | {"verdict": NOT_TESTABLE, "reason": claim.untestable}
    row |= {
        "kind": compare["kind"],
        "compared": QUANTITIES[compare["quantity"]].words,
        "unit": _unit(claim) or None,
        "tolerance": compare.get("tolerance"),
        "tolerance_reason": compare.get("tolerance_reason"),
    }
    if "expect" in compare:
        region = Region.of(compare, claim.mark)
        row |= {"claimed": str(region)}
        row |= {"claimed_low": _finite(region.low), "claimed_high": _finite(region.high)}
    else:
        row["claimed"] = " or ".join(compare.get("words", ())) or compare["largest"]
    found = decided(claim, evidence)
    row |= {"verdict": found.verdict, "reason": found.reason} | _columns("measured", found)
    other = analogue(claim, evidence)
    if other is not None:
        row |= {"analogue_says": ANALOGUE_WORDS[other.verdict], "analogue_reason": other.reason}
        row |= _columns("analogue", other)
    return row


def _unit(claim: Claim) -> str:
    """What measured and claimed values are in."""
    own = QUANTITIES[claim.compare["quantity"]].unit
    if "over_printed" in claim.compare:
        return "times the printed"
    if claim.unit == claims_file.PERCENT:
        return "times"
    return UNITS.get(claim.compare["kind"], claim.unit or own)


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _columns(prefix: str, found: Outcome) -> Row:
    agree, against, open_ = found.counts
    sides = dict.fromkeys(f"{words.where(row)}" for row in found.rows)
    records = dict.fromkeys(str(row["record"]) for row in found.rows)
    values = (
        found.value,
        found.low,
        found.high,
        found.word or None,
        found.label or None,
        found.basis or None,
        agree,
        against,
        open_,
        "; ".join(sides) or None,
        ";".join(records) or None,
    )
    return {f"{prefix}_{name}": value for name, value in zip(MEASURED, values, strict=True)}


# -- whose cells decide ----------------------------------------------------------------------------


def decided(claim: Claim, evidence: Evidence) -> Outcome:
    """The verdict, from the devices that a claim names, else from this host's cells."""
    named = bool(claim.named)

    def counts(row: Row) -> bool:
        return named or row["source"] == HERE

    cases: list[Case] = []
    missing: dict[str, None] = {}
    absent = _absent(evidence, claim.named)
    if absent:
        names = [evidence.sheets.registry["devices"][name]["name"] for name in absent]
        missing[_not_measured(names)] = None
    for question in claim.questions:
        found = claim_cases.of(evidence, claim.compare, question, counts, lambda rows: True)
        cases += found.cases
        if found.cases:
            missing |= dict.fromkeys(_batches(question, found))
        elif not set(question.devices) & set(absent):
            missing[_why_none(evidence, question, found, counts)] = None
    return verdicts.judge(claim.compare, claim.mark, cases, list(missing))


def analogue(claim: Claim, evidence: Evidence) -> Outcome | None:
    """What other devices show, or other hosts where a claim names no device; None for nothing."""
    if "over_printed" in claim.compare:
        return None  # of other devices no number is printed
    like = any("like" in side for q in claim.questions for side in q.sides.values())
    if not claim.named and not like:
        return _elsewhere(claim, claim.questions, evidence, lambda row: row["source"] != HERE)
    questions = []
    for question in claim.questions:
        sides = {name: claim_cases.analogous(side) for name, side in question.sides.items()}
        kept = {name: side for name, side in sides.items() if side is not None}
        if len(kept) == len(sides):
            other = replace(question, sides=kept)
            if other not in questions:
                questions.append(other)
    return _elsewhere(claim, questions, evidence, lambda row: True)


def _elsewhere(
    claim: Claim, questions: Iterable[Question], evidence: Evidence, counts: Counts
) -> Outcome | None:
    cases: list[Case] = []
    missing: dict[str, None] = {}
    named = set(claim.named)
    own = [list(question.sides.values()) for question in claim.questions]

    def decides(rows: Sequence[Row]) -> bool:
        """Whether rows are among those that the verdict rests on."""
        if named:
            return all({row["device"], row["registry_id"]} & named for row in rows)
        here = all(row["source"] == HERE for row in rows)
        return here and any(
            all(claim_cases.fits(row, side) for row, side in zip(rows, sides, strict=True))
            for sides in own
        )

    for question in questions:
        sides = list(question.sides.values())
        ordered = len(sides) > 1 and sides[0] == sides[1]

        def keep(rows: Sequence[Row], ordered: bool = ordered) -> bool:
            return not decides(rows) and (not ordered or _stronger(evidence, *rows))

        found = claim_cases.of(evidence, claim.compare, question, counts, keep)
        cases += found.cases
        missing |= dict.fromkeys(_batches(question, found))
    if not cases:
        return None
    return verdicts.judge(claim.compare, claim.mark, cases, list(missing))


def _stronger(evidence: Evidence, one: Row, other: Row) -> bool:
    """Whether the first has the higher listed peak, as the claim's own first device has."""
    peaks = [evidence.sheets.peak(row, row["precision"]).value for row in (one, other)]
    return bool(peaks[0] and peaks[1] and peaks[0] > peaks[1])


# -- what is missing -------------------------------------------------------------------------------


def _absent(evidence: Evidence, devices: Iterable[str]) -> list[str]:
    """Named devices of which there is no cell."""
    known = {cell[name] for cell in evidence.cells for name in ("device", "registry_id")}
    return [name for name in devices if name not in known]


def _not_measured(names: Sequence[str]) -> str:
    if len(names) > 2:  # names have commas of their own, and a long list is cut at its end
        return f"not measured: {'; '.join(names)}"
    return f"{' and '.join(names)} {'was' if len(names) == 1 else 'were'} not measured"


def _batches(question: Question, found: Found) -> list[str]:
    """Which batch sizes a whole answer lacks."""
    if not found.cases or not question.batch_sizes:
        return []
    known = {(r["module"], int(claim_cases.batch_of(r))) for case in found.cases for r in case.rows}
    lacking: dict[str, list[str]] = {}
    for module in question.workloads:
        for batch in question.batch_sizes:
            if (module, batch) not in known:
                lacking.setdefault(module, []).append(str(batch))
    said = [f"{module} with batch {', '.join(batches)}" for module, batches in lacking.items()]
    return [f"not measured on both sides: {'; '.join(said)}"] if said else []


def _why_none(evidence: Evidence, question: Question, found: Found, counts: Counts) -> str:
    """Which backend, workload, setting or figure is missing where no case was found."""
    cells = [cell for cell in evidence.cells if counts(cell)]
    devices = evidence.sheets.registry["devices"]
    wanted = " or ".join(question.workloads)
    for side in question.sides.values():
        own = {k: v for k, v in side.items() if k in claim_cases.OF_A_DEVICE}
        there = [cell for cell in cells if claim_cases.fits(cell, own)]
        of_module = [cell for cell in there if cell["module"] in question.workloads]
        whose = _side_words(own, devices)
        if not of_module:
            return f"no {wanted} cell{whose} is part of these results"
        if not any(cell["status"] == "ok" for cell in of_module):
            failed = sorted({f"{c['status']}: {c['reason']}" for c in of_module})
            return f"{wanted}{whose}: {'; '.join(failed)}"
        fitting = [cell for cell in of_module if claim_cases.fits(cell, _setting(side))]
        if not fitting:
            setting = ", ".join(_setting_words(k, v) for k, v in _setting(side).items())
            return f"no {wanted} cell{whose} with {setting} is part of these results"
    if found.reasons:
        return "; ".join(found.reasons)
    shapes = {str(side["shape_size"]) for side in question.sides.values() if "shape_size" in side}
    if shapes and not question.batch_sizes:
        return f"no {' and no '.join(sorted(shapes))} shape of {wanted} was timed on both sides"
    if question.batch_sizes:
        return f"no cell of {wanted} has batch {', '.join(map(str, question.batch_sizes))}"
    return NO_CASE


def _setting(side: Mapping[str, Any]) -> dict[str, Any]:
    left_out = (*claim_cases.OF_A_DEVICE, *claim_cases.WORD_LEVEL)
    return {k: v for k, v in side.items() if k not in left_out}


def _setting_words(name: str, value: Any) -> str:
    """`size medium or large`, `gradient_checkpointing True`."""
    if name == "lora":
        return "LoRA" if value else "all parameters trained"
    shown = " or ".join(value) if isinstance(value, list) else str(value)
    return f"{name.removesuffix('_applied')} {shown}"


def _side_words(side: Mapping[str, Any], devices: Mapping[str, Any]) -> str:
    """` of Apple M4, 10 GPU cores, by torch-mps`; empty for a side that names nothing."""
    said = ""
    if "device" in side:
        said = f" of {devices[side['device']]['name']}"
    elif "vendor" in side:
        said = f" of a device of {VENDORS.get(side['vendor'], side['vendor'])}"
    elif "device_kind" in side:
        said = f" of a {side['device_kind'].upper()}"
    if "framework" in side and "backend" not in side:
        return f"{said} by {side['framework']}"
    return f"{said} by {side['backend']}" if "backend" in side else said


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table."""
    parser = argparse.ArgumentParser(
        prog="siliconprof.claims.judge",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--matrix", type=Path, required=True)
    parser.add_argument("--tables", type=Path, required=True, help="of aggregate and of expected")
    parser.add_argument("--registry", type=Path, required=True)
    parser.add_argument("--claims", type=Path, required=True, help="config/claims.yaml")
    parser.add_argument("--published", type=Path, required=True, help="folder of published tables")
    parser.add_argument("--noise-floors", type=Path, nargs="*", default=[], help="of any hosts")
    parser.add_argument("--output-dir", type=Path, required=True)
    arguments = parser.parse_args(argv)
    devices = registry.load(arguments.registry)
    published = Published(arguments.published, devices)
    claims = claims_file.load(arguments.claims, devices, published, QUANTITIES)
    consistent = consistency.answers(claims, published, str(arguments.claims))
    matrix = matrix_file.read(arguments.matrix)
    frames = {name: table_files.read(arguments.tables / f"{name}.csv") for name in TABLES}
    tables = {name: table_files.rows(frames[name]) for name in TABLES if name not in LONG}
    floors = {floor.host: floor for floor in map(noise_floors.read, arguments.noise_floors)}
    evidence = Evidence.of(
        QUANTITIES,
        tables,
        {name: frames[name] for name in LONG},
        DataSheets(devices, matrix["host"]),
        Noise(floors),
    )
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    lines = [row_of(claim, evidence, consistent[claim.id]) for claim in claims]
    table_files.write(arguments.output_dir / "claims.csv", lines, COLUMNS)
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
