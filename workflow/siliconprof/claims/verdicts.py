"""The verdict on a claim from its cases, and the reason in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from siliconprof.claims.cases import MULTIPLES, Case
from siliconprof.claims.claims_file import Claim, Compare
from siliconprof.claims.figures import AGAINST, AGREES, OPEN, joined, shown

REPRODUCED, CONTRADICTED = "reproduced", "contradicted"
INCONCLUSIVE, NOT_TESTABLE = "inconclusive", "not testable here"
CLAIM_VERDICTS = (REPRODUCED, CONTRADICTED, INCONCLUSIVE, NOT_TESTABLE)
UNDECIDED = "inconclusive"  # the word of an analysis that came to nothing
MOST_SHOWN = 4  # cases of a finding that its reason lists


def judge(claim: Claim, cases: Sequence[Case], missing: Sequence[str]) -> tuple[str, str, Case]:
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
