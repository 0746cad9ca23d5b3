"""The verdict on a claim from its cases, and the reason in one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from siliconprof.claims.cases import Case
from siliconprof.claims.claims_file import Claim
from siliconprof.claims.figures import AGAINST, AGREES, OPEN, Figure, reduced, share_above_1, shown
from siliconprof.stats import inference
from siliconprof.store.table_files import Row

REPRODUCED, CONTRADICTED = "reproduced", "contradicted"
INCONCLUSIVE, NOT_TESTABLE = "inconclusive", "not testable here"
VERDICTS = (REPRODUCED, CONTRADICTED, INCONCLUSIVE, NOT_TESTABLE)
UNDECIDED = "inconclusive"  # the word of an analysis that came to nothing
MULTIPLES = {"most": "largest", "least": "smallest", "mean": "geometric mean"}  # of several cases
MOST_SHOWN = 4  # cases of a finding that its reason lists


@dataclass(frozen=True)
class Outcome:
    """A verdict with its reason and the figures that it is based on."""

    verdict: str
    reason: str
    figure: Figure | None = None  # with the interval that decides
    label: str = ""
    rows: Sequence[Row] = ()
    answers: Sequence[str] = ()  # of the cases that are counted


def judge(claim: Claim, cases: Sequence[Case], missing: Sequence[str]) -> Outcome:
    """The verdict on a claim.

    Args:
        missing: why the answer is not complete; where there are no cases, why not.
    """
    if not cases:
        return Outcome(NOT_TESTABLE, "; ".join(missing))
    rows = list({id(row): row for case in cases for row in case.rows}.values())
    if claim.kind == "finding":
        return _finding(claim, cases, missing, rows)
    if claim.kind == "largest":
        return _largest(claim, cases, missing, rows)
    assert claim.region
    region, cases = claim.region, _reduced(cases, "share" if claim.kind == "share" else claim.cases)
    figures = _decided([case.figure for case in cases])
    answers = [region.answer(figure.low, figure.high) for figure in figures]
    verdict = _together(answers, claim.cases, missing)
    decisive = {REPRODUCED: AGREES, CONTRADICTED: AGAINST, INCONCLUSIVE: OPEN}.get(verdict)
    among = [i for i, answer in enumerate(answers) if decisive in (None, answer)]
    index = min(among or range(len(cases)), key=lambda i: region.favour(figures[i].middle))
    figure, label = figures[index], cases[index].label
    lead = _lead(verdict, answers, figure.remark, missing)
    reason = f"{lead}{label}: {_interval(figure)}, claimed {region}"
    return Outcome(verdict, reason, figure, label, rows, answers)


def _decided(figures: Sequence[Figure]) -> list[Figure]:
    """Figures with the intervals that hold together: each at a higher confidence."""
    confidence = 1 - (1 - inference.CONFIDENCE) / len(figures)
    ends = [figure.interval(confidence) for figure in figures]
    return [replace(f, low=low, high=high) for f, (low, high) in zip(figures, ends, strict=True)]


def _reduced(cases: Sequence[Case], how: str) -> Sequence[Case]:
    """Several cases as one where they count together, else as they are."""
    rows, figures, n = cases[0].rows, [case.figure for case in cases], len(cases)
    if how == "share":
        sizes = sorted(figure.middle for figure in figures)
        label = f"{n} points, from {sizes[0]:.2g} to {sizes[-1]:.2g} times"
        return [Case(label, rows, share_above_1(figures))]
    if how not in MULTIPLES or n == 1:
        return cases
    figure, label = reduced(figures, how), f"{MULTIPLES[how]} of {n} cases"
    chosen = [case.label for case in cases if case.figure.middle == figure.middle]
    return [Case(label if how == "mean" else f"{label}, {chosen[0]}", rows, figure)]


def _together(answers: Sequence[str], how: str, missing: Sequence[str]) -> str:
    """The verdict on all cases together."""
    agree, against, many = answers.count(AGREES), answers.count(AGAINST), len(answers) / 2
    if how == "typical":
        contradicted, reproduced = against > many and not agree, agree > many and not against
    else:
        contradicted, reproduced = against > 0, agree == len(answers)
    # One case against `all` decides, whatever is missing, which may turn any other answer.
    if contradicted and (how == "all" or not missing):
        return CONTRADICTED
    return NOT_TESTABLE if missing else REPRODUCED if reproduced else INCONCLUSIVE


def _interval(figure: Figure) -> str:
    """`1.24 [1.1, 1.4]`."""
    return f"{shown(figure.middle)} [{shown(figure.low)}, {shown(figure.high)}]"


def _partly(missing: Sequence[str]) -> str:
    return f"only in part: {'; '.join(missing)}. "


def _lead(verdict: str, answers: Sequence[str], remark: str, missing: Sequence[str]) -> str:
    """How the reason for a verdict begins, before the case that decides."""
    agree, against, n = answers.count(AGREES), answers.count(AGAINST), len(answers)
    if verdict == NOT_TESTABLE:
        return f"{_partly(missing)}So far "
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
    claim: Claim, cases: Sequence[Case], missing: Sequence[str], rows: Sequence[Row]
) -> Outcome:
    """The verdict on the words of a finding."""
    found = [case.figure.word for case in cases]
    answers = [
        AGREES if word in claim.words else OPEN if word == UNDECIDED else AGAINST for word in found
    ]
    verdict = _together(answers, claim.cases, missing)
    shown_cases = "; ".join(f"{case.label}: {case.figure.word}" for case in cases[:MOST_SHOWN])
    more = f" and {len(cases) - MOST_SHOWN} more" if len(cases) > MOST_SHOWN else ""
    leads = {NOT_TESTABLE: _partly(missing), INCONCLUSIVE: "the analysis is undecided: "}
    reason = f"{leads.get(verdict, '')}{shown_cases}{more}, claimed {' or '.join(claim.words)}"
    word = Figure(math.nan, word=", ".join(dict.fromkeys(found)))
    return Outcome(verdict, reason, word, rows=rows, answers=answers)


def _largest(
    claim: Claim, cases: Sequence[Case], missing: Sequence[str], rows: Sequence[Row]
) -> Outcome:
    """The verdict on the workload in which a over b is largest, each by its largest case."""
    modules = list(dict.fromkeys(case.rows[0]["module"] for case in cases))
    most = [_reduced([c for c in cases if c.rows[0]["module"] == m], "most")[0] for m in modules]
    figures = dict(zip(modules, _decided([case.figure for case in most]), strict=True))
    measured = ", ".join(f"{module} {_interval(figures[module])}" for module in modules)
    target = figures.get(claim.largest)
    others = [figures[module] for module in modules if module != claim.largest]
    if target is None or not others:
        return Outcome(NOT_TESTABLE, f"{_partly(missing)}So far {measured}", rows=rows)
    answers = [
        AGREES if other.high < target.low else AGAINST if other.low > target.high else OPEN
        for other in others
    ]
    verdict = _together(answers, "most", missing)  # what is missing may be the largest
    leads = {NOT_TESTABLE: f"{_partly(missing)}So far ", INCONCLUSIVE: "overlap of intervals: "}
    reason = f"{leads.get(verdict, '')}{measured}; claimed largest: {claim.largest}"
    return Outcome(verdict, reason, target, most[modules.index(claim.largest)].label, rows)
