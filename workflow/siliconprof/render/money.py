"""Money: what 1,000 steps cost in time, energy and electricity, and what speed costs to buy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.analyse import money
from siliconprof.analyse.money import Offer, Price
from siliconprof.render import price_figure
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.energy import NO_HOST
from siliconprof.render.tables import Column, Table, Value, missing, published, quantity
from siliconprof.render.training import NAMES, names
from siliconprof.render.variants import Row, as_usual, has_no_speed, model

HOUR_S = 3600.0
FOLD_ABOVE = 16
NO_TIME = "no step time in its record"
TRAINER_OF_TABLE4 = "plain"


def add(data: Data, book: Book) -> None:
    """The cost of every measured training; price against performance, the statement tested."""
    settings = data.matrix["experiment"].get("report", {})
    prices, tariff = settings.get("prices") or {}, settings.get("price_per_kwh")
    points = [point for point in data.training() if not has_no_speed(point)]
    listed = {money.key(point): price(data, point, prices) for point in points}
    rows = list(money.rows(points, data.energy, listed, tariff))
    book.note(
        f"Electricity at {tariff:g} USD a kWh (report.price_per_kwh)."
        if tariff is not None
        else f"Electricity: {money.NO_TARIFF}."
    )
    if rows:
        fold = words.count(len(rows), "line") if len(rows) > FOLD_ABOVE else ""
        book.table("money", "money", table(rows, tariff), folded=fold)
    else:
        book.note("No training cell was measured, so there is no cost of training to give.")
    unpriced = list(
        dict.fromkeys(data.device_name(p) for p in points if listed[money.key(p)].usd is None)
    )
    if unpriced:
        book.note(
            f"No purchase price is known of {words.listing(unpriced)}, so no speed per dollar: "
            f"report.prices in the config gives one, such as {_unpriced_id(points, listed)}: 1200."
        )
    unknown = sorted(set(prices) - _ids(data))
    if unknown:
        book.note(
            f"report.prices names {words.listing(unknown)}, which is no device of the "
            "registry nor of these results."
        )
    groups = offers(data, points, listed)
    book.figure(
        "price-performance",
        "price-performance",
        partial(price_figure.draw, groups, sheet(data, prices)),
    )
    pairs = [(title, pair) for title, group in groups.items() for pair in money.pairs(group)]
    if pairs:
        book.table("price-pairs", "price-pairs", pairs_table(data, pairs))
    else:
        book.note("No pair of similar price has both speeds, so the statement is not tested.")


def _ids(data: Data) -> set[str]:
    """Every device that a price could be given for."""
    ids_here = {device["id"] for device in data.host["devices"]}
    return ids_here | set(data.registry["devices"]) | {cell["device"] for cell in data.cells}


def _unpriced_id(points: Sequence[Row], listed: Mapping[tuple, Price]) -> str:
    return next(p["device"] for p in points if listed[money.key(p)].usd is None)


def price(data: Data, row: Row, prices: Mapping[str, float]) -> Price:
    """What the device of a row costs: as paid, else as listed."""
    entry = data.device(row)
    registry_ids = [
        key for key, candidate in data.registry["devices"].items() if candidate is entry
    ]
    return money.price_of(entry, [row["device"], *registry_ids], prices)


# -- what training costs -------------------------------------------------------------------------


def table(rows: Sequence[Mapping[str, Any]], tariff: float | None) -> Table:
    """A line for each training and scope of energy; no two scopes are added up."""
    result = Table(
        [
            *NAMES,
            Column("time", "h per 1,000 steps", True),
            Column("Scope", help="what the energy was spent in, by the named source"),
            Column("energy", "kWh per 1,000 steps", True, "of that scope alone"),
            Column("electricity", "USD per 1,000 steps", True, "of that scope alone"),
            Column("electricity", "USD per 10⁶ samples", True, "of that scope alone"),
            Column(
                "with 70 W assumed",
                "USD per 1,000 steps",
                True,
                "the paper adds 70 W for the host of an NVIDIA GPU: an assumption, measured "
                "nowhere",
                folds=True,
            ),
            Column("price", "USD", True, "of what is named below", below="what it buys"),
            Column("speed per price", "samples/s per 1,000 USD", True),
        ]
    )
    for row in rows:
        why = row["energy_reason"] or "not recorded"
        cost = why if row["energy_reason"] else money.NO_TARIFF
        point, bought = row["point"], row["price"]
        scope = f"{row['scope']} ({row['source_name']})" if row["scope"] else None
        result.add(
            *names(point),
            quantity(row["seconds_per_1000_steps"], NO_TIME, HOUR_S),
            Value(scope, sort=scope) if scope else missing(why),
            quantity(row["kwh_per_1000_steps"], why),
            quantity(row["usd_per_1000_steps"], cost),
            quantity(row["usd_per_million_samples"], cost),
            quantity(row["usd_per_1000_steps_with_host"], NO_HOST if row["scope"] else why),
            _price(bought),
            quantity(row["samples_per_s_per_1000_usd"], bought.said if not bought.usd else NO_TIME),
            of=point,
        )
    return result


def _price(bought: Price) -> Value:
    if bought.usd is None:
        return missing(bought.said)
    return Value(
        f"{bought.usd:,.0f}".replace(",", words.THIN),
        sort=bought.usd,
        below=bought.of,
        title=bought.said,
    )


# -- what speed costs ----------------------------------------------------------------------------


def offers(
    data: Data, points: Sequence[Row], listed: Mapping[tuple, Price]
) -> dict[str, list[Offer]]:
    """Model and precision -> speeds per sample of priced devices, measured and published ones.

    Of a device's cells on one backend the fastest stands for it: batches may differ, as they do in
    the paper's Table 4.
    """
    groups: dict[str, dict[tuple, Offer]] = {}
    for point in points:
        bought, rate = listed[money.key(point)], words.number(point.get("samples_per_s"))
        offloaded = point.get("scenario_applied") == "offload"
        if not bought.usd or not rate or offloaded or not as_usual(point):
            continue
        title = f"{work(point)} · {point['precision']}"
        place = (point["device"], point["host"], point["backend"], False)
        best = groups.setdefault(title, {}).get(place)
        if best is None or rate > best.samples_per_s:
            groups[title][place] = Offer(
                data.device_name(point),
                point["device"],
                point["backend"],
                rate,
                bought,
                False,
                point,
            )
    title = next(
        (
            name
            for name in groups
            if name.startswith("gpt2-large, ") and "fp32" in name and "LoRA" not in name
        ),
        "gpt2-large · fp32",
    )
    for row in data.published["table4_pass_time"]:
        entry = data.registry["devices"].get(row["device"])
        bought = money.price_of(entry, [row["device"]], {})
        if entry and bought.usd:
            about = {
                "device": row["device"],
                "backend": row["backend"],
                "workload": row["workload"],
                "precision": "fp32",
            }
            rate = float(row["batch_size"]) / float(row["pass_time_s"])
            place = (row["device"], "", row["backend"], True)
            groups.setdefault(title, {})[place] = Offer(
                entry["name"], row["device"], row["backend"], rate, bought, True, about
            )
    return {name: list(by_place.values()) for name, by_place in groups.items()}


def work(point: Row) -> str:
    """`gpt2-large, 128 tokens, LoRA 8`: what is equal in samples that are compared."""
    parts = [model(point)]
    samples = words.number(point.get("samples_per_step"))
    if samples and point.get("audio_s_per_step"):
        parts.append(f"{point['audio_s_per_step'] / samples:g} s of audio")
    elif samples and point.get("tokens_per_step"):
        parts.append(f"{point['tokens_per_step'] / samples:g} tokens")
    if point.get("lora_rank"):
        parts.append(f"LoRA {int(point['lora_rank'])}")
    if point.get("gradient_checkpointing"):
        parts.append("checkpointed")
    return ", ".join(parts)


def sheet(data: Data, prices: Mapping[str, float]) -> list[tuple[str, str, float, Price]]:
    """(id, name, listed fp32 TFLOPS per 1,000 USD, price) of every device with both, best first."""
    rows = []
    for device, entry in data.registry["devices"].items():
        bought, peak = money.price_of(entry, [device], prices), entry["peak_tflops"]["fp32"]
        if bought.usd and peak:
            rows.append((device, entry["name"], peak["value"] / bought.usd * 1000, bought))
    return sorted(rows, key=lambda row: -row[2])


def pairs_table(data: Data, pairs: Sequence[tuple[str, tuple[Offer, Offer]]]) -> Table:
    """Each pair of similar price: how many times as fast the card trains a sample."""
    low, high = money.CLAIMED_SLOWER
    result = Table(
        [
            Column("Training"),
            Column("NVIDIA card"),
            Column("Apple computer"),
            Column("Backend", help="of the Apple computer"),
            Column("Evidence"),
            Column("price of the card", "USD", True),
            Column("price of the computer", "USD", True),
            Column("card", "samples/s", True),
            Column("computer", "samples/s", True),
            Column("computer slower", "times", True, f"stated: {low:g} to {high:g}"),
            Column("Against the statement"),
        ]
    )
    for title, (computer, card) in pairs:
        slower = card.samples_per_s / computer.samples_per_s

        def shown(value: float, source: Offer = card) -> Value:
            text = words.significant(value)
            if not source.published:
                return Value(text, sort=value)
            return Value(text, sort=value, mark="published", title="published: Table 4, per sample")

        result.add(
            title,
            card.name,
            computer.name,
            computer.backend,
            published("published", "seeds 001 and 002, Table 4")
            if card.published
            else Value("measured", sort="measured"),
            *(
                Value(
                    f"{offer.price.usd:,.0f}".replace(",", words.THIN),
                    sort=offer.price.usd,
                    title=offer.price.said,
                )
                for offer in (card, computer)
            ),
            shown(card.samples_per_s),
            shown(computer.samples_per_s),
            Value(
                words.significant(slower), sort=slower, mark="computed" if card.published else ""
            ),
            money.verdict(slower),
            of=None if card.published else [card.row, computer.row],
        )
    return result
