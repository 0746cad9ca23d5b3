"""The verdict on a claim from its cases, and the reason in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from siliconprof.claims import figures
from siliconprof.claims.claims_file import Claim
from siliconprof.claims.figures import AGAINST, AGREES, OPEN, shown

REPRODUCED, CONTRADICTED = "reproduced", "contradicted"
INCONCLUSIVE, NOT_TESTABLE = "inconclusive", "not testable here"
VERDICTS = (REPRODUCED, CONTRADICTED, INCONCLUSIVE, NOT_TESTABLE)
UNDECIDED = "inconclusive"  # the word of an analysis that came to nothing
MULTIPLES = {"most": "largest", "least": "smallest", "mean": "geometric mean"}  # of several cases
MOST_SHOWN = 4  # cases of a finding that its reason lists


@dataclass(frozen=True)
class Outcome:
    """A verdict with its reason and the case that it is based on."""

    verdict: str
    reason: str
    case: Mapping[str, Any]  # with the interval that decides; empty without a figure
    answers: Sequence[str] = ()  # of the cases that are counted


def judge(claim: Claim, cases: pd.DataFrame, missing: Sequence[str]) -> Outcome:
    """The verdict on a claim.

    Args:
        missing: why the answer is not complete; where there are no cases, why not.
    """
    if cases.empty:
        return Outcome(NOT_TESTABLE, "; ".join(missing), {})
    if claim.kind == "finding":
        return _finding(claim, cases, missing)
    if claim.kind == "largest":
        return _largest(claim, cases, missing)
    assert claim.region
    region = claim.region
    cases = _decided(_reduced(cases, "share" if claim.kind == "share" else claim.cases))
    answers = [region.answer(*ends) for ends in zip(cases["low"], cases["high"], strict=True)]
    verdict = _together(answers, claim.cases, missing)
    decisive = {REPRODUCED: AGREES, CONTRADICTED: AGAINST, INCONCLUSIVE: OPEN}.get(verdict)
    every: list[Any] = cases.to_dict("records")
    among = [i for i, answer in enumerate(answers) if decisive in (None, answer)]
    among = among or [*range(len(every))]
    case = every[min(among, key=lambda i: region.favour(every[i]["middle"]))]
    lead = _lead(verdict, answers, case["remark"], missing)
    reason = f"{lead}{case['label']}: {_interval(case)}, claimed {region}"
    return Outcome(verdict, reason, case, answers)


def _decided(cases: pd.DataFrame) -> pd.DataFrame:
    """Cases with the intervals that hold together: each at a higher confidence."""
    low, high = figures.interval(cases, figures.confidence_of_each(len(cases)))
    return cases.assign(low=low, high=high)


def _reduced(cases: pd.DataFrame, how: str) -> pd.DataFrame:
    """Several cases as one where they count together, else as they are."""
    n, middle = len(cases), cases["middle"]
    if how == "share":
        label = f"{n} points, from {middle.min():.2g} to {middle.max():.2g} times"
        return figures.share_above_1(cases).assign(label=label)
    if how not in MULTIPLES or n == 1:
        return cases
    one, label = figures.reduced(cases, how), f"{MULTIPLES[how]} of {n} cases"
    if how != "mean":
        label += ", " + cases["label"][middle.eq(one["middle"].item())].iloc[0]
    return one.assign(label=label)


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


def _interval(case: Mapping[str, Any]) -> str:
    """`1.24 [1.1, 1.4]`."""
    return f"{shown(case['middle'])} [{shown(case['low'])}, {shown(case['high'])}]"


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


def _finding(claim: Claim, cases: pd.DataFrame, missing: Sequence[str]) -> Outcome:
    """The verdict on the words of a finding."""
    words = cases["word"].tolist()
    answers = [
        AGREES if word in claim.words else OPEN if word == UNDECIDED else AGAINST for word in words
    ]
    verdict = _together(answers, claim.cases, missing)
    texts = (cases["label"] + ": " + cases["word"]).tolist()
    more = f" and {len(texts) - MOST_SHOWN} more" if len(texts) > MOST_SHOWN else ""
    leads = {NOT_TESTABLE: _partly(missing), INCONCLUSIVE: "the analysis is undecided: "}
    listed = f"{leads.get(verdict, '')}{'; '.join(texts[:MOST_SHOWN])}{more}"
    reason = f"{listed}, claimed {' or '.join(claim.words)}"
    return Outcome(verdict, reason, {"word": ", ".join(dict.fromkeys(words))}, answers)


def _largest(claim: Claim, cases: pd.DataFrame, missing: Sequence[str]) -> Outcome:
    """The verdict on the workload in which a over b is largest, each by its largest case."""
    groups = cases.groupby("module", sort=False)
    most = pd.concat([_reduced(of, "most").assign(module=name) for name, of in groups])
    most = _decided(most).set_index("module")
    of_modules: Mapping[Any, Any] = most.to_dict("index")
    measured = ", ".join(f"{name} {_interval(case)}" for name, case in of_modules.items())
    if claim.largest not in most.index or len(most) == 1:
        return Outcome(NOT_TESTABLE, f"{_partly(missing)}So far {measured}", {})
    target, others = of_modules[claim.largest], most.drop(claim.largest)
    answers = [
        AGREES if high < target["low"] else AGAINST if low > target["high"] else OPEN
        for low, high in zip(others["low"], others["high"], strict=True)
    ]
    verdict = _together(answers, "most", missing)  # what is missing may be the largest
    leads = {NOT_TESTABLE: f"{_partly(missing)}So far ", INCONCLUSIVE: "overlap of intervals: "}
    reason = f"{leads.get(verdict, '')}{measured}; claimed largest: {claim.largest}"
    return Outcome(verdict, reason, target)
