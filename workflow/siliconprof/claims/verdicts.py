"""The verdict on a claim from its cases, and the reason in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from siliconprof.claims.cases import Case, reduced
from siliconprof.claims.evidence import Figure
from siliconprof.claims.region import AGAINST, AGREES, OPEN, Region, shown
from siliconprof.stats import inference
from siliconprof.store.table_files import Row

REPRODUCED, CONTRADICTED = "reproduced", "contradicted"
INCONCLUSIVE, NOT_TESTABLE = "inconclusive", "not testable here"
VERDICTS = (REPRODUCED, CONTRADICTED, INCONCLUSIVE, NOT_TESTABLE)
ALL, TYPICAL, REDUCTIONS = "all", "typical", ("most", "least", "mean")


@dataclass(frozen=True)
class Outcome:
    """A verdict with its reason and the figures that it is based on."""

    verdict: str
    reason: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    basis: str = ""
    label: str = ""
    word: str = ""
    rows: Sequence[Row] = ()
    counts: tuple[int, int, int] = (0, 0, 0)  # cases that agree, are against it, are open


def interval_words(figure: Figure, low: float, high: float) -> str:
    """`1.24 [1.1, 1.4]`."""
    return f"{shown(figure.middle)} [{shown(low)}, {shown(high)}]"


def judge(
    compare: Mapping[str, Any], value: float | None, cases: Sequence[Case], missing: Sequence[str]
) -> Outcome:
    """The verdict on a claim.

    Args:
        value: the claim's number, None where it has none.
        missing: why the answer is not complete; where there are no cases, why not.
    """
    if not cases:
        return Outcome(NOT_TESTABLE, "; ".join(missing))
    kind, how = compare["kind"], compare.get("cases", ALL)
    if kind == "finding":
        return _finding(compare, cases, missing)
    if kind == "largest":
        return _largest(compare, cases, missing)
    rows = _rows(cases)
    if how in REDUCTIONS:
        cases = [reduced(cases, how)]
    region = Region.of(compare, value)
    confidence = 1 - (1 - inference.CONFIDENCE) / len(cases)
    ends = [case.figure.interval(confidence) for case in cases]
    answers = [region.answer(*end) for end in ends]
    verdict = _together(answers, how, missing)
    decisive = {CONTRADICTED: AGAINST, INCONCLUSIVE: OPEN}.get(verdict)
    among = [i for i, answer in enumerate(answers) if decisive in (None, answer)]
    index = min(among or range(len(cases)), key=lambda i: region.favour(cases[i].figure))
    case, (low, high) = cases[index], ends[index]
    measured = f"{case.label}: {interval_words(case.figure, low, high)}"
    counts = _counts(answers)
    return Outcome(
        verdict,
        _reason(verdict, measured, case.figure, region, counts, missing),
        case.figure.middle,
        low,
        high,
        case.figure.basis,
        case.label,
        "",
        rows,
        counts,
    )


def _rows(cases: Sequence[Case]) -> list[Row]:
    return list({id(row): row for case in cases for row in case.rows}.values())


def _counts(answers: Sequence[str]) -> tuple[int, int, int]:
    return answers.count(AGREES), answers.count(AGAINST), answers.count(OPEN)


def _together(answers: Sequence[str], how: str, missing: Sequence[str]) -> str:
    """The verdict on all cases together."""
    agree, against, _ = _counts(answers)
    many = len(answers) / 2
    if how == TYPICAL:
        contradicted = against > many and not agree
        reproduced = agree > many and not against
    else:
        # One case against `all` decides, whatever is missing; a mean or a largest may still change.
        contradicted = against > 0 and (how == ALL or not missing)
        reproduced = agree == len(answers)
    if contradicted:
        return CONTRADICTED
    if missing:
        return NOT_TESTABLE
    return REPRODUCED if reproduced else INCONCLUSIVE


def _reason(
    verdict: str,
    measured: str,
    figure: Figure,
    region: Region,
    counts: tuple[int, int, int],
    missing: Sequence[str],
) -> str:
    agree, against, open_ = counts
    n = sum(counts)
    of_cases = f"{n} cases" if n > 1 else "the case"
    if verdict == NOT_TESTABLE:
        return f"only in part: {'; '.join(missing)}. So far {measured}, claimed {region}"
    if verdict == REPRODUCED:
        lead = f"{agree} of {of_cases} agree, the least clearly " if n > 1 else ""
        return f"{lead}{measured}, claimed {region}"
    if verdict == CONTRADICTED:
        lead = f"{against} of {of_cases} against it, the most clearly " if n > 1 else ""
        return f"{lead}{measured}, claimed {region}"
    if agree and against:
        return (
            f"cases differ beyond noise: {agree} agree, {against} are against it, {open_} are open; "
            f"{measured}, claimed {region}"
        )
    if figure.remark:
        return f"{figure.remark}; {measured}, claimed {region}"
    lead = f"{agree} of {of_cases} agree, {against} are against it; " if n > 1 else ""
    if not (agree or against) and n > 1:
        lead = f"none of {of_cases} decides; "
    return f"{lead}noise: the interval overlaps the bound: {measured}, claimed {region}"


def _finding(compare: Mapping[str, Any], cases: Sequence[Case], missing: Sequence[str]) -> Outcome:
    """The verdict on the words of a finding."""
    unclear = compare.get("unclear", ())
    answers = [
        AGREES if c.word in compare["words"] else OPEN if c.word in unclear else AGAINST
        for c in cases
    ]
    verdict = _together(answers, compare.get("cases", ALL), missing)
    words = list(dict.fromkeys(case.word for case in cases))
    words_by_case = "; ".join(f"{case.label}: {case.word}" for case in cases[:4])
    more = f" and {len(cases) - 4} more" if len(cases) > 4 else ""
    lead = f"only in part: {'; '.join(missing)}. " if verdict == NOT_TESTABLE else ""
    lead = "the analysis is undecided: " if verdict == INCONCLUSIVE else lead
    return Outcome(
        verdict,
        f"{lead}{words_by_case}{more}, claimed {' or '.join(compare['words'])}",
        word=", ".join(words),
        rows=_rows(cases),
        counts=_counts(answers),
    )


def _largest(compare: Mapping[str, Any], cases: Sequence[Case], missing: Sequence[str]) -> Outcome:
    """The verdict on the workload in which a over b is largest, each by its largest case."""
    by_module: dict[str, list[Case]] = {}
    for case in cases:
        by_module.setdefault(case.rows[0]["module"], []).append(case)
    most = {
        module: reduced(cases_of_module, "most") for module, cases_of_module in by_module.items()
    }
    rows, texts = _rows(cases), []
    confidence = 1 - (1 - inference.CONFIDENCE) / len(most)
    ends = {module: case.figure.interval(confidence) for module, case in most.items()}
    for module, case in most.items():
        texts.append(f"{module} {interval_words(case.figure, *ends[module])}")
    measured, target = ", ".join(texts), compare["largest"]
    others = [module for module in most if module != target]
    if target not in most or not others:
        return Outcome(
            NOT_TESTABLE, f"only in part: {'; '.join(missing)}. So far {measured}", rows=rows
        )
    figure, (low, high) = most[target].figure, ends[target]
    if any(ends[module][0] > high for module in others):
        verdict, why = CONTRADICTED, ""
    elif missing:
        verdict, why = NOT_TESTABLE, f"only in part: {'; '.join(missing)}. So far "
    elif all(ends[module][1] < low for module in others):
        verdict, why = REPRODUCED, ""
    else:
        verdict, why = INCONCLUSIVE, "overlap of intervals: "
    return Outcome(
        verdict,
        f"{why}{measured}; claimed largest: {target}",
        figure.middle,
        low,
        high,
        figure.basis,
        most[target].label,
        "",
        rows,
    )
