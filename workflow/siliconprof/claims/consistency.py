"""Whether a statement agrees with the numbers that its own source printed. No verdict.

No number is entered here: each comes from `config/published` or from the registry, and a statement
that may contradict another is compared with that claim's expectation. Three kinds of check:

- ratio: one printed number over another (or alone), against the value that the statement expects;
- one_value: rows about the same thing have one value;
- claim: the statement and another claim can both hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from siliconprof.analyse.published_values import NAMES, Number, Published, Unknown
from siliconprof.claims.claims_file import Claim
from siliconprof.claims.figures import AGREES, Region, shown
from siliconprof.errors import UserError

CONSISTENT, INCONSISTENT = "consistent", "inconsistent"
NO_CHECK = "no published table covers it"
MOST_SHOWN = 4  # pairs that a reason lists
NEARLY = 1e-9  # relative: printed decimals are not exact in binary
OF_THE_CLAIM = "claim"  # stands for the claim's own expectation or number
Check = Mapping[str, Any]


class Answer(NamedTuple):
    """Whether the tables agree with a statement; `word` is empty where no check exists."""

    word: str
    reason: str


def answers(claims: Sequence[Claim], published: Published, where: str) -> dict[str, Answer]:
    """Claim id -> its answer.

    Args:
        where: the claims file, for error lines.

    Raises:
        UserError: checks refer to missing tables, rows or claims; one line each.
    """
    by_id = {claim.id: claim for claim in claims}
    by_claim, mistakes = {}, []
    for claim in claims:
        if isinstance(claim.consistency, Mapping):
            by_claim[claim.id] = Answer("", claim.consistency["none"])
            continue
        checked = []
        for index, check in enumerate(claim.consistency):
            try:
                if check["kind"] == "one_value":
                    checked.append(_one_value(check, published))
                elif check["kind"] == "claim":
                    checked.append(_claim(claim, check["id"], by_id))
                else:
                    checked.append(_ratio(claim, check, published))
            except Unknown as error:
                mistakes.append(f"{where}: {claim.id}.consistency.{index}{error}")
        checked.sort(key=lambda answer: answer.word != INCONSISTENT)
        reason = "; ".join(answer.reason for answer in checked) or NO_CHECK
        by_claim[claim.id] = Answer(checked[0].word if checked else "", reason)
    if mistakes:
        raise UserError("\n".join(mistakes))
    return by_claim


# -- numbers ---------------------------------------------------------------------------------------


def _ratio(claim: Claim, check: Check, published: Published) -> Answer:
    """Compares every pair of printed numbers with the expected region."""
    region = _region(claim, check)
    agree: list[str] = []
    against: list[str] = []
    for names, a, b in _pairs(check, published):
        times = a.value / b.value if b else a.value
        text = f"{names}: {a.shown} over {b.shown} = {shown(times)}" if b else f"{names}: {a.shown}"
        (agree if region.answer(times, times) == AGREES else against).append(text)
    n = len(agree) + len(against)
    if not n:
        raise Unknown(": no two rows belong together")
    enough = 2 * len(agree) > n if check.get("cases") == "most" else not against
    texts = [*agree, *against] if enough else [*against, *agree]
    more = f" and {n - MOST_SHOWN} more" if n > MOST_SHOWN else ""
    counted = f" ({len(agree)} of {n} agree)" if n > 1 else ""
    what = f"{check['says']}: " if "says" in check else ""
    low, _, high = str(region).partition(" to ")
    stated = low if low == high else str(region)
    return Answer(
        CONSISTENT if enough else INCONSISTENT,
        f"{what}{'; '.join(texts[:MOST_SHOWN])}{more}; stated: {stated}{counted}",
    )


def _region(claim: Claim, check: Check) -> Region:
    """What a check expects; ends that agree are widened so that they do by their own decimals."""
    if check["expect"] == OF_THE_CLAIM:
        if claim.region is None:
            raise Unknown(".expect: the claim itself expects nothing")
        return claim.region
    value = claim.value if check.get("value") == OF_THE_CLAIM else check.get("value")
    if value is None and "value" in check:
        raise Unknown(".value: the claim itself has no number")
    region = Region.of(check["expect"], value, check.get("tolerance", 0.0))
    if region.strict or region.apart:
        return region
    return replace(region, low=region.low * (1 - NEARLY), high=region.high * (1 + NEARLY))


def _pairs(check: Check, published: Published) -> Iterator[tuple[str, Number, Number | None]]:
    """(label, a, b) of the numbers that belong together, each once."""
    join, seen = check.get("join", ()), set()
    for row in published.chosen(check["each"]) if "each" in check else [None]:
        for a in published.numbers(check["a"], row):
            if "b" not in check:
                yield published.label(row or a.row), a, None
                continue
            for b in published.numbers(check["b"], row):
                together = all(a.row[name] == b.row[name] for name in join)
                if not together or not _similar_price(check, published, a, b):
                    continue
                names = published.label(row) if row else _names(published, a.row, b.row, join)
                if (names, a.shown, b.shown) not in seen:
                    seen.add((names, a.shown, b.shown))
                    yield names, a, b


def _names(
    published: Published, a: Mapping[str, str], b: Mapping[str, str], join: Sequence[str]
) -> str:
    """The label of two rows; of the columns that they share, it has only `join`."""
    if published.label(a) == published.label(b):
        return published.label(a)
    shared = {name for name in NAMES if a.get(name) == b.get(name)}
    apart = [published.label(row, shared) for row in (a, b)]
    if all(apart):
        joined = published.label({name: a[name] for name in join})
        return ": ".join(filter(None, [joined, " against ".join(apart)]))
    common = published.label(a, set(NAMES) - shared)
    return ", ".join(filter(None, [common, *apart]))


def _similar_price(check: Check, published: Published, a: Number, b: Number) -> bool:
    """Whether two devices cost about the same by the paper's own list of prices, where that counts."""
    if "similar_price" not in check:
        return True
    listed = published.rows("table1_devices")
    prices = {row["device"]: float(row["launch_price_usd"]) for row in listed}
    low, high = sorted(prices.get(number.row["device"], math.nan) for number in (a, b))
    return high <= float(check["similar_price"]) * low


def _one_value(check: Check, published: Published) -> Answer:
    """Checks that rows that agree in some columns have one value in another."""
    sources: dict[str, dict[str, str]] = {}  # what a row is about -> its values, and their source
    for row in published.chosen(check):
        name = published.label({column: row.get(column, "") for column in check["of"]})
        sources.setdefault(name, {})[row[check["column"]]] = row["source"]
    column = check["column"].replace("_", " ")
    alike, split = [], []
    for name, of in sources.items():
        values = [f"{value} in {source}" for value, source in of.items()]
        if len(of) == 1:
            alike.append(f"{name}: {column} {next(iter(of))}")
        elif len(set(of.values())) == 1:  # a source that all share comes once
            split.append(f"{name}: {column} {' and '.join([*of][:-1])} and {values[-1]}")
        else:
            split.append(f"{name}: {column} " + f" and {column} ".join(values))
    return Answer(INCONSISTENT, "; ".join(split)) if split else Answer(CONSISTENT, "; ".join(alike))


# -- another statement -----------------------------------------------------------------------------


def _claim(claim: Claim, name: str, by_id: Mapping[str, Claim]) -> Answer:
    """Checks that two statements about one quantity can both hold."""
    if name not in by_id:
        raise Unknown(f".id: no claim '{name}'")
    other = by_id[name]
    if claim.quantity != other.quantity:
        raise Unknown(f".id: '{name}' compares another quantity")
    if claim.region and other.region:
        compatible = claim.region.meets(other.region)
    else:
        compatible = bool(set(claim.words) & set(other.words))
    return Answer(
        CONSISTENT if compatible else INCONSISTENT,
        f"“{other.text}” ({other.source}) states {other.expected}, this one {claim.expected}",
    )
