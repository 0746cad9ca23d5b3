"""Whether a statement agrees with the numbers that its own source printed. No verdict.

Nothing is typed in: a number is looked up in `config/published` or in the registry, and a statement
that another contradicts is held against that other claim's own expectation. Three kinds of check:

- ratio: one printed number over another (or alone), against what the statement expects of it;
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
NO_CHECK = "no table speaks of it"
MOST_TOLD = 4  # pairs that a reason names on either side
NEARLY = 1e-9  # of a number: printed decimals are not exact in binary
ALL, MOST, ANY = "all", "most", "any"
OF_THE_CLAIM = "claim"  # what the claim itself expects, or its number


@dataclass(frozen=True)
class Answer:
    """What the tables say of a statement; no word where they say nothing."""

    word: str
    reason: str


def answers(claims: Sequence[Claim], published: Published, where: str) -> dict[str, Answer]:
    """Claim id -> its answer.

    Args:
        where: the claims file, for what is said of a mistake in it.

    Raises:
        UserError: checks that name what is not there, one line each.
    """
    by_id = {claim.id: claim for claim in claims}
    found, mistakes = {}, []
    for claim in claims:
        if isinstance(claim.consistency, Mapping):
            found[claim.id] = Answer("", str(claim.consistency["none"]))
            continue
        told = []
        for index, check in enumerate(claim.consistency):
            try:
                told.append(_answer(claim, check, by_id, published))
            except Unknown as error:
                mistakes.append(f"{where}: {claim.id}.consistency.{index}{error}")
        against = [one for one in told if one.word == INCONSISTENT]
        word = INCONSISTENT if against else CONSISTENT if told else ""
        reasons = [one.reason for one in (*against, *(one for one in told if one not in against))]
        found[claim.id] = Answer(word, "; ".join(reasons) or NO_CHECK)
    if mistakes:
        raise UserError("\n".join(mistakes))
    return found


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
    """Every pair of printed numbers against what is expected of it."""
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
        told = f"{names}: {a.shown} over {b.shown} = {shown(times)}" if b else f"{names}: {a.shown}"
        (agree if region.answer(times, times) == AGREES else against).append(told)
    how = check.get("cases", ALL)
    enough = {ALL: not against, MOST: 2 * len(agree) > len(pairs), ANY: bool(agree)}[how]
    said = [*(against if not enough else agree), *(agree if not enough else against)]
    more = f" and {len(said) - MOST_TOLD} more" if len(said) > MOST_TOLD else ""
    counted = f" ({len(agree)} of {len(pairs)} agree)" if len(pairs) > 1 else ""
    what = f"{check['says']}: " if "says" in check else ""
    return Answer(
        CONSISTENT if enough else INCONSISTENT,
        f"{what}{'; '.join(said[:MOST_TOLD])}{more}; stated: {_plain(region)}{counted}",
    )


def _value(claim: Claim, check: Mapping[str, Any]) -> float | None:
    if check.get("value") == OF_THE_CLAIM:
        if claim.value is None:
            raise Unknown(".value: the claim itself has no number")
        return claim.value
    return float(check["value"]) if "value" in check else None


def _widened(region: Region) -> Region:
    """The same with ends that meet their own decimals."""
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
    """(what they are about, a, b) of the numbers that belong together."""
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
    """What two numbers are about: of what their rows share only what joins them is said, once."""
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
    """Rows that agree in some columns have one value in another."""
    if "of" not in check or "column" not in check or "table" not in check:
        raise Unknown(": one_value needs table, of and column")
    values: dict[str, dict[str, str]] = {}
    for row in published.chosen(check):
        name = published.label({column: row.get(column, "") for column in check["of"]})
        values.setdefault(name, {})[row[check["column"]]] = row["source"]
    split = {name: found for name, found in values.items() if len(found) > 1}
    column = check["column"].replace("_", " ")
    if split:
        told = [f"{name}: {_split(column, found)}" for name, found in split.items()]
        return Answer(INCONSISTENT, "; ".join(told))
    said = "; ".join(f"{name}: {column} {next(iter(found))}" for name, found in values.items())
    return Answer(CONSISTENT, said)


def _split(column: str, found: Mapping[str, str]) -> str:
    """`scenario 2 in seed 001 and scenario 3 in seed 002`; one source of all is said once."""
    sources = set(found.values())
    if len(sources) == 1:
        return f"{column} {' and '.join(found)} in {sources.pop()}"
    return " and ".join(f"{column} {value} in {source}" for value, source in found.items())


# -- another statement -----------------------------------------------------------------------------


def _claim(claim: Claim, check: Mapping[str, Any], by_id: Mapping[str, Claim]) -> Answer:
    """Whether both statements can hold, by what each expects of the same quantity."""
    other = by_id.get(check.get("id", ""))
    if other is None:
        raise Unknown(f".id: no claim '{check.get('id')}'")
    one, two = claim.compare, other.compare
    if one.get("quantity") != two.get("quantity") or ("words" in one) != ("words" in two):
        raise Unknown(f".id: '{other.id}' compares another quantity, or neither compares one")
    if "words" in one:
        meets = bool(set(one["words"]) & set(two["words"]))
        said = [" or ".join(compare["words"]) for compare in (one, two)]
    else:
        regions = [Region.of(c.compare, c.mark) for c in (claim, other)]
        meets = regions[0].meets(regions[1])
        said = [str(region) for region in regions]
    return Answer(
        CONSISTENT if meets else INCONSISTENT,
        f"“{other.text}” ({other.source}) states {said[1]}, this one {said[0]}",
    )
