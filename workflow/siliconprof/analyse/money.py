"""What training costs: time, energy and electricity of 1,000 steps, and what the device cost.

Energy has a scope (GPU, SoC, CPU package, wall), and so has every cost of it: scopes stand beside
each other and are never added up. The price of an NVIDIA card is that of the card alone, of an
Apple chip that of a whole computer, since neither is sold otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from siliconprof.analyse import throughputs
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.store.table_files import KEY, grouped, point_key

Row = Mapping[str, Any]
J_PER_KWH = 3.6e6
STEPS = 1000.0
SAMPLES = 1e6
CARD, COMPUTER, PAID = "card alone", "whole computer", "as paid"
AT_MOST = "at most"  # in place of a scope: a bound by the board's power
NO_TARIFF = "not computed: report.price_per_kwh is not set"
HOW_TO_PRICE = "no source gives its price; report.prices takes what you paid"
# Prices count as similar where the dearer is at most so many times the cheaper: the paper says
# "similar price" without a rule, and its own pair of M2 Ultra and A6000 is 1.42 times apart.
SIMILAR_PRICE = 1.5
CLAIMED_SLOWER = (3.0, 4.0)  # Feng et al. 2025, section 5.1: a Mac against a GPU of similar price


@dataclass(frozen=True)
class Price:
    """What a device costs, what is bought for it, and who says so."""

    usd: float | None
    of: str = ""  # card alone, whole computer, as paid
    said: str = HOW_TO_PRICE


def price_of(entry: Row | None, ids: Iterable[str], prices: Mapping[str, float]) -> Price:
    """The price of a device; what was paid goes before what is listed.

    Args:
        entry: of the registry, None when it has none.
        ids: what the device is called, by any of which `prices` may name it.
    """
    whole = COMPUTER if entry and entry["memory_kind"] == "unified" else CARD
    for name in ids:
        if name in prices:
            return Price(float(prices[name]), whole if entry else PAID, "report.prices: as paid")
    listed = entry.get("price_usd") if entry else None
    if not listed:
        return Price(None)
    note = f"; {listed['note']}" if listed.get("note") else ""
    source = f"{listed['source']}, {listed.get('date') or 'no date'}{note}"
    return Price(float(listed["value"]), whole, source)


def price(sheets: DataSheets, row: Row, prices: Mapping[str, float]) -> Price:
    """What the device of a row of any table costs: as paid, else as listed.

    Args:
        prices: see `price_of`; by the device's own id or by that of the registry.
    """
    entry = sheets.entry(row)
    listed = [name for name, other in sheets.registry["devices"].items() if other is entry]
    return price_of(entry, [row["device"], *listed], prices)


def electricity_usd(
    joules: float | None, times: float, price_per_kwh: float | None
) -> float | None:
    """USD of so many times these joules; None where the energy or the tariff is unknown."""
    if joules is None or price_per_kwh is None:
        return None
    return joules * times / J_PER_KWH * price_per_kwh


def rows(
    points: Sequence[Row],
    energy: Sequence[Row],
    prices: Mapping[tuple, Price],
    price_per_kwh: float | None,
) -> Iterator[dict[str, Any]]:
    """A line for each training and each source of its energy; one line where it has none.

    Args:
        points: of points.csv, trainings.
        energy: of energy.csv.
        prices: key of a point -> price of its device.

    Returns:
        The key; `point`; `step_s`, `seconds_per_1000_steps`, `samples_per_s`; `price`,
        `samples_per_s_per_1000_usd`; `source_name`, `scope`, `quality`, and of that scope alone
        `kwh_per_1000_steps`, `usd_per_1000_steps`, `usd_per_million_samples`; with
        `_with_host` appended, with what the paper assumes for the host of an NVIDIA GPU;
        `energy_reason` where there is no energy.
    """
    lines_of = grouped(energy, point_key)
    for point in points:
        seconds = throughputs.step_s(point)
        samples = point.get("samples_per_step")
        price = prices[point_key(point)]
        rate = point.get("samples_per_s")
        base = {axis: point[axis] for axis in KEY} | {
            "point": point,
            "step_s": seconds,
            "seconds_per_1000_steps": STEPS * seconds if seconds else None,
            "samples_per_s": rate,
            "price": price,
            "samples_per_s_per_1000_usd": rate / price.usd * 1000 if rate and price.usd else None,
        }
        lines = lines_of.get(point_key(point), [])
        with_energy = [line for line in lines if line.get("energy_per_step_j") is not None]
        reasons = dict.fromkeys(str(one["reason"]) for one in lines if one.get("reason"))
        why = None if with_energy else "; ".join(reasons) or "no energy in its record"
        for line in with_energy or [{}]:
            yield base | _spent(line, samples, price_per_kwh) | {"energy_reason": why}


def _spent(line: Row, samples: float | None, tariff: float | None) -> dict[str, Any]:
    """The part of a line that is about one source of energy; an empty one is about none."""
    columns: dict[str, Any] = {
        "source_name": line.get("name"),
        "scope": line.get("scope"),
        "quality": line.get("quality"),
    }
    for end, name in (("", "step_j"), ("_with_host", "step_plus_assumed_host_j")):
        amount = line.get(f"energy_per_{name}")
        per_sample = amount / samples if amount is not None and samples else None
        columns |= {
            f"kwh_per_1000_steps{end}": None if amount is None else amount * STEPS / J_PER_KWH,
            f"usd_per_1000_steps{end}": electricity_usd(amount, STEPS, tariff),
            f"usd_per_million_samples{end}": electricity_usd(per_sample, SAMPLES, tariff),
        }
    return columns


@dataclass(frozen=True)
class Offer:
    """A speed at a price: one mark of the price-performance figure."""

    name: str
    device: str
    backend: str
    samples_per_s: float
    price: Price
    published: bool
    row: Row  # what it is about: device, backend, workload, precision


def pairs(offers: Sequence[Offer]) -> list[tuple[Offer, Offer]]:
    """(computer, card) of similar price, whose speeds the statement of section 5.1 compares."""
    comparable = [
        (computer, card)
        for card in offers
        for computer in offers
        if card.price.of == CARD
        and computer.price.of == COMPUTER
        and card.published == computer.published
        and similar(card.price.usd, computer.price.usd)
    ]
    return sorted(comparable, key=lambda pair: (pair[1].device, pair[0].device, pair[0].backend))


def similar(a_usd: float | None, b_usd: float | None, times: float = SIMILAR_PRICE) -> bool:
    """Whether both prices are known, and the dearer is at most so many times the other."""
    low, high = sorted((a_usd or 0.0, b_usd or 0.0))
    return bool(low) and high <= times * low


def verdict(slower: float) -> str:
    """How many times slower, against the statement's 3 to 4."""
    low, high = CLAIMED_SLOWER
    if slower < low:
        return "not that slow"
    return "as stated" if slower <= high else "slower than stated"
