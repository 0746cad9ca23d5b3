"""Money: what 1,000 steps cost in time, energy and electricity, and what speed costs to buy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from matplotlib.patches import Rectangle

from siliconprof import words
from siliconprof.analyse import money
from siliconprof.analyse.money import Offer, Price
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.render import chart, style
from siliconprof.render.book import Book
from siliconprof.render.chart import ROW_IN, Chart, Mark, Panel, Scale
from siliconprof.render.data import Data
from siliconprof.render.energy import ASSUMED, NO_HOST, WITH_HOST
from siliconprof.render.tables import Column, Table, Value, missing, number, published, told, usd
from siliconprof.render.training import NAMES
from siliconprof.render.variants import Row, as_usual, model
from siliconprof.store.table_files import point_key

NO_TIME = "no step time in its record"
STEPS = "USD per 1,000 steps"
ALONE = "of that scope alone"
MOST_PANELS = 4
CHIP = {money.CARD: "torch-cuda", money.COMPUTER: "mlx"}  # whose colour a data sheet's bar has


def add(data: Data, book: Book) -> None:
    """The cost of every measured training; price against performance, the statement tested."""
    settings = data.matrix.report
    prices, tariff = settings.get("prices") or {}, settings.get("price_per_kwh")
    points = data.with_speed()
    listed = {point_key(point): price(data, point, prices) for point in points}
    rows = list(money.rows(points, data.energy, listed, tariff))
    book.note(
        f"Electricity at {tariff:g} USD a kWh (report.price_per_kwh)."
        if tariff is not None
        else f"Electricity: {money.NO_TARIFF}."
    )
    if rows:
        book.table("money", "money", table(rows), counted="line")
    else:
        book.note("No training cell was measured, so there is no cost of training to give.")
    unpriced = {p["device"]: data.device_name(p) for p in points if not listed[point_key(p)].usd}
    if unpriced:
        names = words.listing(dict.fromkeys(unpriced.values()))
        book.note(
            f"No purchase price is known of {names}, so no speed per dollar: "
            f"report.prices in the config gives one, such as {next(iter(unpriced))}: 1200."
        )
    unknown = sorted(set(prices) - _ids(data))
    if unknown:
        book.note(
            f"report.prices names {words.listing(unknown)}, which is no device of the "
            "registry nor of these results."
        )
    groups = offers(data, points, listed)
    book.figure(
        "price-performance", "price-performance", partial(draw, groups, sheet(data, prices))
    )
    pairs = [Pair(title, *pair) for title, group in groups.items() for pair in money.pairs(group)]
    if pairs:
        book.table("price-pairs", "price-pairs", Table.of(pairs, PAIRS, attrgetter("about")))
    else:
        book.note("No pair of similar price has both speeds, so the statement is not tested.")


def _ids(data: Data) -> set[str]:
    """Every device that a price could be given for."""
    ids_here = {device["id"] for device in data.host["devices"]}
    return ids_here | set(data.registry["devices"]) | {cell["device"] for cell in data.cells}


def price(data: Data, row: Row, prices: Mapping[str, float]) -> Price:
    """What the device of a row costs: as paid, else as listed."""
    return money.price(DataSheets(data.registry, data.host), row, prices)


# -- what training costs -------------------------------------------------------------------------


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each training and scope of energy; no two scopes are added up."""

    def why(row: Row) -> str:
        return row["energy_reason"] or "not recorded"

    def why_no_cost(row: Row) -> str:
        return row["energy_reason"] or money.NO_TARIFF

    def why_no_host(row: Row) -> str:
        return NO_HOST if row["scope"] else why(row)

    def scope(row: Row) -> Value | str:
        return f"{row['scope']} ({row['source_name']})" if row["scope"] else missing(why(row))

    columns = (
        *NAMES,
        number("time", "h per 1,000 steps", "seconds_per_1000_steps", NO_TIME),
        told("Scope", scope, "what the energy was spent in, by the named source"),
        number("energy", "kWh per 1,000 steps", "kwh_per_1000_steps", why, ALONE),
        number("electricity", STEPS, "usd_per_1000_steps", why_no_cost, ALONE),
        number("electricity", "USD per 10⁶ samples", "usd_per_million_samples", why_no_cost, ALONE),
        number(WITH_HOST, STEPS, "usd_per_1000_steps_with_host", why_no_host, ASSUMED, folds=True),
        price_column(itemgetter("price"), "of what is named below"),
        number(
            "speed per price",
            "samples/s per 1,000 USD",
            "samples_per_s_per_1000_usd",
            lambda row: NO_TIME if row["price"].usd else row["price"].said,
        ),
    )
    return Table.of([row["point"] | row for row in rows], columns)


def price_column(of: Callable[[Any], Price], help: str) -> Column:
    """A column of prices, and below each what it buys."""

    def value(row: Any) -> Value:
        price = of(row)
        if price.usd is None:
            return missing(price.said)
        return usd(price.usd, below=price.of, title=price.said)

    return Column("price", "USD", True, help, "what it buys", value=value)


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
        bought, rate = listed[point_key(point)], words.number(point.get("samples_per_s"))
        offloaded = point.get("scenario_applied") == "offload"
        if bought.usd and rate and not offloaded and as_usual(point):
            best = groups.setdefault(f"{work(point)} · {point['precision']}", {})
            name, device, backend = data.device_name(point), point["device"], point["backend"]
            place = (device, point["host"], backend)
            if place not in best or rate > best[place].samples_per_s:
                best[place] = Offer(name, device, backend, rate, bought, False, point)
    of_the_paper = (
        name
        for name in groups
        if name.startswith("gpt2-large, ") and "fp32" in name and "LoRA" not in name
    )
    title = next(of_the_paper, "gpt2-large · fp32")
    for row in data.published["table4_pass_time"]:
        device, backend = row["device"], row["backend"]
        entry = data.registry["devices"].get(device)
        bought = money.price_of(entry, [device], {})
        if entry and bought.usd:
            rate = float(row["batch_size"]) / float(row["pass_time_s"])
            offer = Offer(entry["name"], device, backend, rate, bought, True, row)
            groups.setdefault(title, {})[device, "", backend] = offer
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


class Pair(NamedTuple):
    """A computer and a card of similar price that train the same."""

    title: str
    computer: Offer
    card: Offer

    @property
    def slower(self) -> float:
        """How many times as fast the card trains a sample."""
        return self.card.samples_per_s / self.computer.samples_per_s

    @property
    def about(self) -> list[Any] | None:
        """Both sides, where they were measured."""
        return None if self.card.published else [self.card.row, self.computer.row]


def _evidence(pair: Pair) -> Value:
    printed = published("published", "Feng et al. 2025, Table 4")
    return printed if pair.card.published else Value("measured", sort="measured")


def _paid(side: str) -> Column:
    def value(pair: Pair) -> Value:
        price = getattr(pair, side).price
        return usd(price.usd, title=price.said)

    return Column(f"price of the {side}", "USD", True, value=value)


def _speed(side: str) -> Column:
    def value(pair: Pair) -> Value:
        speed, printed = getattr(pair, side).samples_per_s, pair.card.published
        look = {"title": "published: Table 4, per sample", "mark": "published"} if printed else {}
        return Value(words.significant(speed), speed, **look)

    return Column(side, "samples/s", True, value=value)


def _slower(pair: Pair) -> Value:
    mark = "computed" if pair.card.published else ""
    return Value(words.significant(pair.slower), pair.slower, mark=mark)


STATED = "stated: {:g} to {:g}".format(*money.CLAIMED_SLOWER)
PAIRS = (
    told("Training", attrgetter("title")),
    told("NVIDIA card", attrgetter("card.name")),
    told("Apple computer", attrgetter("computer.name")),
    told("Backend", attrgetter("computer.backend"), "of the Apple computer"),
    told("Evidence", _evidence),
    *map(_paid, ("card", "computer")),
    *map(_speed, ("card", "computer")),
    Column("computer slower", "times", True, STATED, value=_slower),
    told("Against the statement", lambda pair: money.verdict(pair.slower)),
)


# -- the figure ----------------------------------------------------------------------------------


def short(name: str) -> str:
    """`M2 Ultra` of `Apple M2 Ultra, 76 GPU cores`; `RTX A6000` of `NVIDIA RTX A6000`."""
    first = name.split(",")[0]
    for vendor in ("Apple ", "NVIDIA GeForce ", "NVIDIA "):
        first = first.removeprefix(vendor)
    return first


def draw(
    groups: Mapping[str, Sequence[Offer]],
    sheet: Sequence[tuple[str, str, float, Price]],
) -> Any:
    """A panel for each training, then the bars of the data sheets; beside each other on a desk."""
    shown = sorted(groups.items(), key=lambda item: -_devices(item[1]))[:MOST_PANELS]
    shown = [item for item in shown if _devices(item[1]) > 1] or shown[:1]
    panels = [_panel(title, group) for title, group in shown]
    panels += [_bars(sheet)] if sheet else []
    backends = dict.fromkeys(offer.backend for _, group in shown for offer in group)
    low, high = money.CLAIMED_SLOWER
    legend = [
        *((style.sample("o", color=style.shade(name), markersize=3.6), name) for name in backends),
        (style.swatch("none", style.PUBLISHED_HATCH), "published, or of a data sheet"),
        (
            style.swatch(style.shade("grey", 25)),
            f"stated: {low:g} to {high:g} times slower at a similar price",
        ),
    ]
    return Chart(panels, legend, columns=2).figure()


def _devices(group: Sequence[Offer]) -> int:
    return len({offer.device for offer in group})


def _panel(title: str, group: Sequence[Offer]) -> Panel:
    """Speeds against prices; boxes where the paper puts a Mac of a card's price."""
    cards = [offer for offer in group if offer.price.of == money.CARD]
    named = {offer.device: offer for offer in sorted(group, key=lambda one: one.samples_per_s)}
    shown = [*map(_box, cards), *map(_dot, group), *map(_name, named.values())]
    return Panel(
        shown,
        Scale("purchase price / USD", log=10),
        Scale("samples per second", log=10),
        title=title,
        high=2.1,
        grid="both",
    )


def _box(card: Offer) -> Mark:
    low, high = money.CLAIMED_SLOWER
    usd, near = card.price.usd or 1.0, money.SIMILAR_PRICE
    xs, ys = [usd / near, usd * near], [card.samples_per_s / high, card.samples_per_s / low]
    grey = style.shade("grey", 25)

    def draw(ax: Any) -> Any:
        size = (xs[1] - xs[0], ys[1] - ys[0])
        return ax.add_patch(Rectangle((xs[0], ys[0]), *size, facecolor=grey, linewidth=0))

    text = f"where the paper puts a Mac of a price like that of {card.name}"
    return Mark(draw, None if card.published else card.row, text, xs, ys)


def _dot(offer: Offer) -> Mark:
    """A marker, hatched where it is published."""
    usd, speed, marker = (
        offer.price.usd or 1.0,
        offer.samples_per_s,
        style.device_mark(offer.device),
    )
    text = (
        f"{offer.name}, {offer.backend}: {words.significant(speed)} samples/s "
        f"({'published' if offer.published else 'measured'}), {usd:,.0f} USD, {offer.price.of}"
    )
    if offer.published:
        return chart.published(usd, speed, text, marker, backend=offer.backend)
    return chart.dot(usd, speed, offer.row, text, marker, 5.8, color=style.shade(offer.backend))


def _name(offer: Offer) -> Mark:
    """The device's name beside its fastest marker; names of cards, left of it, meet no others."""
    row = None if offer.published else offer.row
    usd, speed, name = offer.price.usd or 1.0, offer.samples_per_s, short(offer.name)
    if offer.price.of != money.CARD:
        return chart.beside(usd, speed, name, row, shift=(6, 0), color=style.INK)
    mark = chart.note(usd, speed, name, row, (-6, 0), ha="right", color=style.INK)
    return replace(mark, xs=[usd / 2.2])  # room for it, of a scale of about a decade


def _bars(sheet: Sequence[tuple[str, str, float, Price]]) -> Panel:
    """Listed fp32 operations for what a device costs: data sheets, nothing measured."""
    shown = []
    for y, (_, name, value, bought) in enumerate(sheet):
        number = words.significant(value)
        text = f"{name}: {number} TFLOPS per 1,000 USD by its data sheet, {bought.usd:,.0f} USD, "
        look = style.published(CHIP.get(bought.of, "other"))
        shown.append(chart.bar(y, 0, value, None, text + bought.of, **look))
        shown.append(chart.beside(value, y, number, color=style.INK, hover=text + bought.of))
    return Panel(
        shown,
        Scale("listed TFLOPS per 1,000 USD", zero=True, most=4),
        labels=[short(name) for _, name, _, _ in sheet],
        title="Data sheets: fp32 peak for the money",
        row_in=ROW_IN,
    )
