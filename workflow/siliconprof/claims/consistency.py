"""Whether a statement agrees with the numbers that its own source printed. No verdict.

No number is entered here: each comes from `config/published` or from the registry, and a statement
that may contradict another is compared with that claim's expectation. Three kinds of check:

- ratio: one printed number over another (or alone), against the value that the statement expects;
- one_value: rows about the same thing have one value;
- claim: the statement and another claim can both hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from siliconprof.analyse.published_values import NAMES, Number, Published, Unknown
from siliconprof.claims.claims_file import Claim
from siliconprof.claims.region import AGREES, Region, shown
from siliconprof.errors import UserError

CONSISTENT, INCONSISTENT = "consistent", "inconsistent"
NO_CHECK = "no published table covers it"
MOST_SHOWN = 4  # pairs that a reason lists
NEARLY = 1e-9  # relative: printed decimals are not exact in binary
ALL, MOST, ANY = "all", "most", "any"
OF_THE_CLAIM = "claim"  # stands for the claim's own expectation or number


@dataclass(frozen=True)
class Answer:
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
            by_claim[claim.id] = Answer("", str(claim.consistency["none"]))
            continue
        checked = []
        for index, check in enumerate(claim.consistency):
            try:
                checked.append(_answer(claim, check, by_id, published))
            except Unknown as error:
                mistakes.append(f"{where}: {claim.id}.consistency.{index}{error}")
        disagreeing = [answer for answer in checked if answer.word == INCONSISTENT]
        word = INCONSISTENT if disagreeing else CONSISTENT if checked else ""
        ordered = sorted(checked, key=lambda answer: answer.word != INCONSISTENT)
        reasons = [answer.reason for answer in ordered]
        by_claim[claim.id] = Answer(word, "; ".join(reasons) or NO_CHECK)
    if mistakes:
        raise UserError("\n".join(mistakes))
    return by_claim


def _answer(
    claim: Claim, check: Mapping[str, Any], by_id: Mapping[str, Claim], published: Published
) -> Answer:
    kind = check["kind"]
    if kind == "one_value":
        return _one_value(check, published)
    if kind == "claim":
        return _claim(claim, check, by_id)
    return _ratio(claim, check, published)


# -- numbers ---------------------------------------------------------------------------------------


def _ratio(claim: Claim, check: Mapping[str, Any], published: Published) -> Answer:
    """Compares every pair of printed numbers with the expected region."""
    if "a" not in check or "expect" not in check:
        raise Unknown(": a ratio needs a and expect")
    if check["expect"] == OF_THE_CLAIM and "expect" not in claim.compare:
        raise Unknown(".expect: the claim itself expects nothing")
    region = (
        Region.of(claim.compare, claim.mark)
        if check["expect"] == OF_THE_CLAIM
        else _widened(Region.of(check, _value(claim, check)))
    )
    pairs = list(_pairs(check, published))
    if not pairs:
        raise Unknown(": no two rows belong together")
    agree: list[str] = []
    against: list[str] = []
    for names, a, b in pairs:
        times = a.value / b.value if b else a.value
        text = f"{names}: {a.shown} over {b.shown} = {shown(times)}" if b else f"{names}: {a.shown}"
        (agree if region.answer(times, times) == AGREES else against).append(text)
    how = check.get("cases", ALL)
    enough = {ALL: not against, MOST: 2 * len(agree) > len(pairs), ANY: bool(agree)}[how]
    texts = [*(against if not enough else agree), *(agree if not enough else against)]
    more = f" and {len(texts) - MOST_SHOWN} more" if len(texts) > MOST_SHOWN else ""
    counted = f" ({len(agree)} of {len(pairs)} agree)" if len(pairs) > 1 else ""
    what = f"{check['says']}: " if "says" in check else ""
    return Answer(
        CONSISTENT if enough else INCONSISTENT,
        f"{what}{'; '.join(texts[:MOST_SHOWN])}{more}; stated: {_plain(region)}{counted}",
    )


def _value(claim: Claim, check: Mapping[str, Any]) -> float | None:
    if check.get("value") == OF_THE_CLAIM:
        if claim.value is None:
            raise Unknown(".value: the claim itself has no number")
        return claim.value
    return float(check["value"]) if "value" in check else None


def _widened(region: Region) -> Region:
    """The region, widened so that its ends agree with their own decimals."""
    if region.strict or region.apart:
        return region
    return Region(region.low * (1 - NEARLY), region.high * (1 + NEARLY))


def _plain(region: Region) -> str:
    text = str(region)
    low, _, high = text.partition(" to ")
    return low if low == high else text


def _pairs(
    check: Mapping[str, Any], published: Published
) -> Iterator[tuple[str, Number, Number | None]]:
    """(label, a, b) of the numbers that belong together."""
    beside = published.chosen(check["each"]) if "each" in check else [None]
    join = check.get("join", ())
    seen = set()
    for row in beside:
        for a in published.numbers(check["a"], row):
            if "b" not in check:
                yield published.label(row or a.row), a, None
                continue
            for b in published.numbers(check["b"], row):
                if any(a.row[name] != b.row[name] for name in join):
                    continue
                if "similar_price" in check and not _similar(check, published, a, b):
                    continue
                names = _names(published, a, b, row, join)
                if (names, a.shown, b.shown) not in seen:
                    seen.add((names, a.shown, b.shown))
                    yield names, a, b


def _names(
    published: Published, a: Number, b: Number, row: Mapping[str, str] | None, join: Sequence[str]
) -> str:
    """The label of two numbers; of the columns that their rows share, it has only `join`."""
    if row:
        return published.label(row)
    sides = [published.label(number.row) for number in (a, b)]
    if sides[0] == sides[1]:
        return sides[0]
    shared = {name for name in NAMES if a.row.get(name) == b.row.get(name)}
    apart = [published.label(number.row, shared) for number in (a, b)]
    if all(apart):
        joined = published.label({name: a.row[name] for name in join})
        return ": ".join(filter(None, [joined, " against ".join(apart)]))
    common = published.label(a.row, set(NAMES) - shared)
    return ", ".join(filter(None, [common, " against ".join(filter(None, apart))]))


def _similar(check: Mapping[str, Any], published: Published, a: Number, b: Number) -> bool:
    """Whether two devices cost about the same by the paper's own list of prices."""
    prices = {
        row["device"]: float(row["launch_price_usd"]) for row in published.rows("table1_devices")
    }
    both = [prices.get(number.row["device"]) for number in (a, b)]
    low, high = sorted(price or 0.0 for price in both)
    return bool(low) and high <= float(check["similar_price"]) * low


def _one_value(check: Mapping[str, Any], published: Published) -> Answer:
    """Checks that rows that agree in some columns have one value in another."""
    if "of" not in check or "column" not in check or "table" not in check:
        raise Unknown(": one_value needs table, of and column")
    values: dict[str, dict[str, str]] = {}
    for row in published.chosen(check):
        name = published.label({column: row.get(column, "") for column in check["of"]})
        values.setdefault(name, {})[row[check["column"]]] = row["source"]
    split = {name: sources for name, sources in values.items() if len(sources) > 1}
    column = check["column"].replace("_", " ")
    if split:
        texts = [f"{name}: {_split(column, sources)}" for name, sources in split.items()]
        return Answer(INCONSISTENT, "; ".join(texts))
    text = "; ".join(f"{name}: {column} {next(iter(sources))}" for name, sources in values.items())
    return Answer(CONSISTENT, text)


def _split(column: str, sources_by_value: Mapping[str, str]) -> str:
    """`batch size 8 in Table 3 and 16 in Table 4`; a source that all share comes once."""
    sources = set(sources_by_value.values())
    if len(sources) == 1:
        return f"{column} {' and '.join(sources_by_value)} in {sources.pop()}"
    return " and ".join(
        f"{column} {value} in {source}" for value, source in sources_by_value.items()
    )


# -- another statement -----------------------------------------------------------------------------


def _claim(claim: Claim, check: Mapping[str, Any], by_id: Mapping[str, Claim]) -> Answer:
    """Checks that two statements about one quantity can both hold."""
    other = by_id.get(check.get("id", ""))
    if other is None:
        raise Unknown(f".id: no claim '{check.get('id')}'")
    one, two = claim.compare, other.compare
    if one.get("quantity") != two.get("quantity") or ("words" in one) != ("words" in two):
        raise Unknown(f".id: '{other.id}' compares another quantity, or neither compares one")
    if "words" in one:
        compatible = bool(set(one["words"]) & set(two["words"]))
        expectations = [" or ".join(compare["words"]) for compare in (one, two)]
    else:
        regions = [Region.of(c.compare, c.mark) for c in (claim, other)]
        compatible = regions[0].meets(regions[1])
        expectations = [str(region) for region in regions]
    return Answer(
        CONSISTENT if compatible else INCONSISTENT,
        f"“{other.text}” ({other.source}) states {expectations[1]}, this one {expectations[0]}",
    )
