"""Tests published claims with these results.

    python -m siliconprof.claims.judge --matrix results/matrix.json --tables results/tables \
        --registry config/devices.yaml --claims config/claims.yaml \
        --published config/published --output-dir results/tables

`claims.csv`: one line per statement of config/claims.yaml with its verdict: reproduced,
contradicted, inconclusive or not testable here. A claim that names devices is decided by those
devices alone, wherever they were measured; one that names none by this host's cells. The columns
`analogue_…` have what other devices show, which changes no verdict. `consistency` says whether the
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
from siliconprof.claims.cases import Case, QuestionResult
from siliconprof.claims.claims_file import Claim, Question
from siliconprof.claims.consistency import Answer
from siliconprof.claims.evidence import Evidence
from siliconprof.claims.quantities import QUANTITIES
from siliconprof.claims.region import Region
from siliconprof.claims.verdicts import NOT_TESTABLE, Outcome
from siliconprof.errors import stage
from siliconprof.hosts import registry
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.store import columns, left_out, matrix_file, noise_floors, table_files
from siliconprof.store.records import HERE
from siliconprof.store.results import Results
from siliconprof.store.table_files import Row

Counts = Callable[[Row], bool]  # whether a row counts, by its source
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
# The result of an analogue is no verdict, so it has other words.
ANALOGUE_WORDS = {
    verdicts.REPRODUCED: "agrees",
    verdicts.CONTRADICTED: "disagrees",
    verdicts.INCONCLUSIVE: "undecided",
    NOT_TESTABLE: "in part",
}
UNITS = {kind: "times" for kind in ("ratio", "direction", "trend", "largest")} | {
    "share": "of the points",
    "finding": "",
}
VENDORS = {"apple": "Apple", "nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
NO_CASE = "no two of its cells did the same work in the same way"


def row_of(claim: Claim, evidence: Evidence, tables: Answer) -> Row:
    """A claim's line of claims.csv.

    Args:
        tables: whether the sources' own numbers agree with it.
    """
    compare = claim.compare
    row: Row = columns.blank("claims") | {
        "id": claim.id,
        "statement": claim.text,
        "source": claim.source,
        "note": claim.note or None,
        "published_devices": ";".join(claim.devices) or None,
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
    outcome = own_outcome(claim, evidence)
    row |= {"verdict": outcome.verdict, "reason": outcome.reason} | _columns("measured", outcome)
    other = analogue(claim, evidence)
    if other is not None:
        row |= {"analogue_says": ANALOGUE_WORDS[other.verdict], "analogue_reason": other.reason}
        row |= _columns("analogue", other)
    return row


def _unit(claim: Claim) -> str:
    """The unit of the measured and claimed values."""
    own = QUANTITIES[claim.compare["quantity"]].unit
    if "over_printed" in claim.compare:
        return "times the printed"
    if claim.unit == claims_file.PERCENT:
        return "times"
    return UNITS.get(claim.compare["kind"], claim.unit or own)


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _columns(prefix: str, outcome: Outcome) -> Row:
    agree, against, open_ = outcome.counts
    sides = dict.fromkeys(f"{words.where(row)}" for row in outcome.rows)
    records = dict.fromkeys(str(row["record"]) for row in outcome.rows)
    values = (
        outcome.value,
        outcome.low,
        outcome.high,
        outcome.word or None,
        outcome.label or None,
        outcome.basis or None,
        agree,
        against,
        open_,
        "; ".join(sides) or None,
        ";".join(records) or None,
    )
    return {f"{prefix}_{name}": value for name, value in zip(MEASURED, values, strict=True)}


# -- whose cells decide ----------------------------------------------------------------------------


def own_outcome(claim: Claim, evidence: Evidence) -> Outcome:
    """The verdict from the devices that a claim names, else from this host's cells."""
    names_devices = bool(claim.devices)

    def counts(row: Row) -> bool:
        return names_devices or row["source"] == HERE

    cases: list[Case] = []
    missing: dict[str, None] = {}
    unmeasured = _absent(evidence, claim.devices)
    if unmeasured:
        names = [evidence.sheets.registry["devices"][name]["name"] for name in unmeasured]
        missing[_not_measured(names)] = None
    for question in claim.questions:
        result = claim_cases.of(evidence, claim.compare, question, counts, lambda rows: True)
        cases += result.cases
        if result.cases:
            missing |= dict.fromkeys(_batches(question, result))
        elif not set(question.devices) & set(unmeasured):
            missing[_why_none(evidence, question, result, counts)] = None
    return verdicts.judge(claim.compare, claim.mark, cases, list(missing))


def analogue(claim: Claim, evidence: Evidence) -> Outcome | None:
    """The outcome on other devices, or other hosts where a claim names no device; None without."""
    if "over_printed" in claim.compare:
        return None  # no number is printed for other devices
    like = any("like" in side for q in claim.questions for side in q.sides.values())
    if not claim.devices and not like:
        return _elsewhere(claim, claim.questions, evidence, lambda row: row["source"] != HERE)
    questions = []
    for question in claim.questions:
        sides = {name: claim_cases.analogous(side) for name, side in question.sides.items()}
        known_sides = {name: side for name, side in sides.items() if side is not None}
        if len(known_sides) == len(sides):
            other = replace(question, sides=known_sides)
            if other not in questions:
                questions.append(other)
    return _elsewhere(claim, questions, evidence, lambda row: True)


def _elsewhere(
    claim: Claim, questions: Iterable[Question], evidence: Evidence, counts: Counts
) -> Outcome | None:
    cases: list[Case] = []
    missing: dict[str, None] = {}
    claimed_devices = set(claim.devices)
    claimed_sides = [list(question.sides.values()) for question in claim.questions]

    def decides(rows: Sequence[Row]) -> bool:
        """Whether the verdict is based on these rows."""
        if claimed_devices:
            return all({row["device"], row["registry_id"]} & claimed_devices for row in rows)
        here = all(row["source"] == HERE for row in rows)
        return here and any(
            all(claim_cases.fits(row, side) for row, side in zip(rows, sides, strict=True))
            for sides in claimed_sides
        )

    for question in questions:
        sides = list(question.sides.values())
        ordered = len(sides) > 1 and sides[0] == sides[1]

        def keep(rows: Sequence[Row], ordered: bool = ordered) -> bool:
            return not decides(rows) and (not ordered or _stronger(evidence, *rows))

        result = claim_cases.of(evidence, claim.compare, question, counts, keep)
        cases += result.cases
        missing |= dict.fromkeys(_batches(question, result))
    if not cases:
        return None
    return verdicts.judge(claim.compare, claim.mark, cases, list(missing))


def _stronger(evidence: Evidence, one: Row, other: Row) -> bool:
    """Whether the first has the higher listed peak, as the claim's first device has."""
    peaks = [evidence.sheets.peak(row, row["precision"]).value for row in (one, other)]
    return bool(peaks[0] and peaks[1] and peaks[0] > peaks[1])


# -- what is missing -------------------------------------------------------------------------------


def _absent(evidence: Evidence, devices: Iterable[str]) -> list[str]:
    """The named devices that have no cell."""
    measured = {cell[name] for cell in evidence.cells for name in ("device", "registry_id")}
    return [name for name in devices if name not in measured]


def _not_measured(names: Sequence[str]) -> str:
    if len(names) > 2:  # names contain commas, and a long list is cut at its end
        return f"not measured: {'; '.join(names)}"
    return f"{' and '.join(names)} {'was' if len(names) == 1 else 'were'} not measured"


def _batches(question: Question, result: QuestionResult) -> list[str]:
    """The reason, if any, that batch sizes of the question are missing."""
    if not result.cases or not question.batch_sizes:
        return []
    measured = {
        (r["module"], int(claim_cases.batch_of(r))) for case in result.cases for r in case.rows
    }
    missing: dict[str, list[str]] = {}
    for module in question.workloads:
        for batch in question.batch_sizes:
            if (module, batch) not in measured:
                missing.setdefault(module, []).append(str(batch))
    texts = [f"{module} with batch {', '.join(batches)}" for module, batches in missing.items()]
    return [f"not measured on both sides: {'; '.join(texts)}"] if texts else []


def _why_none(
    evidence: Evidence, question: Question, result: QuestionResult, counts: Counts
) -> str:
    """The backend, workload, setting or figure that is missing where there is no case."""
    cells = [cell for cell in evidence.cells if counts(cell)]
    devices = evidence.sheets.registry["devices"]
    modules = " or ".join(question.workloads)
    for side in question.sides.values():
        device_keys = {k: v for k, v in side.items() if k in claim_cases.OF_A_DEVICE}
        on_device = [cell for cell in cells if claim_cases.fits(cell, device_keys)]
        of_module = [cell for cell in on_device if cell["module"] in question.workloads]
        side_words = _side_words(device_keys, devices)
        if not of_module:
            return f"no {modules} cell{side_words} is part of these results"
        if not any(cell["status"] == "ok" for cell in of_module):
            failed = sorted({f"{c['status']}: {c['reason']}" for c in of_module})
            return f"{modules}{side_words}: {'; '.join(failed)}"
        fitting = [cell for cell in of_module if claim_cases.fits(cell, _setting(side))]
        if not fitting:
            setting = ", ".join(_setting_words(k, v) for k, v in _setting(side).items())
            return f"no {modules} cell{side_words} with {setting} is part of these results"
    if result.reasons:
        return "; ".join(result.reasons)
    shapes = {str(side["shape_size"]) for side in question.sides.values() if "shape_size" in side}
    if shapes and not question.batch_sizes:
        return f"no {' and no '.join(sorted(shapes))} shape of {modules} was timed on both sides"
    if question.batch_sizes:
        return f"no cell of {modules} has batch {', '.join(map(str, question.batch_sizes))}"
    return NO_CASE


def _setting(side: Mapping[str, Any]) -> dict[str, Any]:
    other_keys = (*claim_cases.OF_A_DEVICE, *claim_cases.WORD_LEVEL)
    return {k: v for k, v in side.items() if k not in other_keys}


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
    elif "vendor" in side:
        text = f" of a device of {VENDORS.get(side['vendor'], side['vendor'])}"
    elif "device_kind" in side:
        text = f" of a {side['device_kind'].upper()}"
    if "framework" in side and "backend" not in side:
        return f"{text} by {side['framework']}"
    return f"{text} by {side['backend']}" if "backend" in side else text


def write(results: Results, arguments: argparse.Namespace) -> None:
    """Compute and write: the table."""
    devices = registry.load(arguments.registry)
    published = Published(arguments.published, devices)
    claims = claims_file.load(arguments.claims, devices, published, QUANTITIES)
    consistent = consistency.answers(claims, published, str(arguments.claims))
    matrix = matrix_file.read(arguments.matrix)
    floors = {floor.host: floor for floor in map(noise_floors.read, arguments.noise_floors)}
    evidence = Evidence.of(QUANTITIES, results, DataSheets(devices, matrix["host"]), Noise(floors))
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    lines = [row_of(claim, evidence, consistent[claim.id]) for claim in claims]
    table_files.write(arguments.output_dir / "claims.csv", lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Write claims.csv."""
    parser = argparse.ArgumentParser(
        prog="siliconprof.claims.judge",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--matrix", type=Path, required=True)
    parser.add_argument("--tables", type=Path, required=True, help="folder of the results' tables")
    parser.add_argument("--registry", type=Path, required=True)
    parser.add_argument("--claims", type=Path, required=True, help="config/claims.yaml")
    parser.add_argument("--published", type=Path, required=True, help="folder of published tables")
    parser.add_argument("--noise-floors", type=Path, nargs="*", default=[], help="of any hosts")
    parser.add_argument("--output-dir", type=Path, required=True)
    left_out.guarded("claims", write, parser.parse_args(argv))
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
