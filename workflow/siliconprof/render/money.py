"""Money: what 1,000 steps cost in time, energy and electricity, and what speed costs to buy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.patches import Rectangle

from siliconprof import words
from siliconprof.analyse import money
from siliconprof.analyse.money import Offer, Price
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.render import chart, strokes, style
from siliconprof.render.book import Book
from siliconprof.render.chart import ROW_IN, Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.energy import ASSUMED, NO_HOST, WITH_HOST
from siliconprof.render.tables import Column, Table, Value, missing, number, published, told, usd
from siliconprof.render.training import NAMES
from siliconprof.render.variants import Row, as_usual, has_no_speed, model

HOUR_S = 3600.0
NO_TIME = "no step time in its record"
STEPS = "USD per 1,000 steps"
ALONE = "of that scope alone"
MOST_PANELS = 4
PANEL_IN = 2.1
NAME_IN = 0.12  # from one name to the next
CHIP = {money.CARD: "torch-cuda", money.COMPUTER: "mlx"}  # whose colour a data sheet's bar has


def add(data: Data, book: Book) -> None:
    """The cost of every measured training; price against performance, the statement tested."""
    settings = data.matrix.report
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
        book.table("money", "money", table(rows), counted="line")
    else:
        book.note("No training cell was measured, so there is no cost of training to give.")
    unpriced = {p["device"]: data.device_name(p) for p in points if not listed[money.key(p)].usd}
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
    pairs = [(title, pair) for title, group in groups.items() for pair in money.pairs(group)]
    if pairs:
        book.table("price-pairs", "price-pairs", pairs_table(pairs))
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
        number("time", "h per 1,000 steps", _hours, NO_TIME),
        told("Scope", scope, "what the energy was spent in, by the named source"),
        number("energy", "kWh per 1,000 steps", "kwh_per_1000_steps", why, ALONE),
        number("electricity", STEPS, "usd_per_1000_steps", why_no_cost, ALONE),
        number("electricity", "USD per 10⁶ samples", "usd_per_million_samples", why_no_cost, ALONE),
        number(WITH_HOST, STEPS, "usd_per_1000_steps_with_host", why_no_host, ASSUMED, folds=True),
        Column(
            "price",
            "USD",
            True,
            "of what is named below",
            "what it buys",
            value=lambda row: priced(row["price"]),
        ),
        number(
            "speed per price",
            "samples/s per 1,000 USD",
            "samples_per_s_per_1000_usd",
            lambda row: NO_TIME if row["price"].usd else row["price"].said,
        ),
    )
    return Table.of([row["point"] | row for row in rows], columns)


def _hours(row: Row) -> float | None:
    seconds = row["seconds_per_1000_steps"]
    return None if seconds is None else seconds / HOUR_S


def priced(price: Price) -> Value:
    """A price, and below it what it buys."""
    if price.usd is None:
        return missing(price.said)
    return usd(price.usd, below=price.of, title=price.said)


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


def pairs_table(pairs: Sequence[tuple[str, tuple[Offer, Offer]]]) -> Table:
    """Each pair of similar price: how many times as fast the card trains a sample."""
    rows = [
        {
            "title": title,
            "card": card,
            "computer": computer,
            "slower": card.samples_per_s / computer.samples_per_s,
        }
        for title, (computer, card) in pairs
    ]

    def about(row: Row) -> list[Row] | None:
        return None if row["card"].published else [row["card"].row, row["computer"].row]

    return Table.of(rows, PAIRS, about)


def _evidence(row: Row) -> Value:
    printed = published("published", "Feng et al. 2025, Table 4")
    return printed if row["card"].published else Value("measured", sort="measured")


def _paid(row: Row, side: str) -> Value:
    price = row[side].price
    return usd(price.usd, title=price.said)


def _speed(row: Row, side: str) -> Value:
    speed = row[side].samples_per_s
    if not row["card"].published:
        return Value(words.significant(speed), speed)
    title = "published: Table 4, per sample"
    return Value(words.significant(speed), speed, title=title, mark="published")


def _slower(row: Row) -> Value:
    mark = "computed" if row["card"].published else ""
    return Value(words.significant(row["slower"]), row["slower"], mark=mark)


STATED = "stated: {:g} to {:g}".format(*money.CLAIMED_SLOWER)
PAIRS = (
    told("Training", "title"),
    told("NVIDIA card", lambda row: row["card"].name),
    told("Apple computer", lambda row: row["computer"].name),
    told("Backend", lambda row: row["computer"].backend, "of the Apple computer"),
    told("Evidence", _evidence),
    Column("price of the card", "USD", True, value=partial(_paid, side="card")),
    Column("price of the computer", "USD", True, value=partial(_paid, side="computer")),
    Column("card", "samples/s", True, value=partial(_speed, side="card")),
    Column("computer", "samples/s", True, value=partial(_speed, side="computer")),
    Column("computer slower", "times", True, STATED, value=_slower),
    told("Against the statement", lambda row: money.verdict(row["slower"])),
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
    narrow: bool,
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
    return Chart(panels, legend, columns=(2, 1)).figure(narrow)


def _devices(group: Sequence[Offer]) -> int:
    return len({offer.device for offer in group})


def _panel(title: str, group: Sequence[Offer]) -> Panel:
    """Speeds against prices; boxes where the paper puts a Mac of a card's price."""
    cards = [offer for offer in group if offer.price.of == money.CARD]
    speeds = sorted(group, key=lambda offer: offer.samples_per_s)
    shown = [*map(_box, cards), *(mark for offer in speeds for mark in _marks(offer, group))]
    return Panel(
        shown,
        Scale("purchase price / USD", log=10),
        Scale("samples per second", log=10),
        title=title,
        high=PANEL_IN,
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


def _marks(offer: Offer, group: Sequence[Offer]) -> Iterator[Mark]:
    """A marker, hatched where it is published, and the device's name."""
    usd, ink = offer.price.usd or 1.0, style.shade(offer.backend)
    row = None if offer.published else offer.row
    look: dict[str, Any] = {"color": ink, "linewidths": 0}
    if offer.published:
        look = {"facecolor": "none", "edgecolor": ink, "linewidths": 0.7}
        look["hatch"] = style.PUBLISHED_HATCH * 2
    text = (
        f"{offer.name}, {offer.backend}: {words.significant(offer.samples_per_s)} samples/s "
        f"({'published' if offer.published else 'measured'}), {usd:,.0f} USD, {offer.price.of}"
    )

    def dot(ax: Any) -> Any:
        marker = style.device_mark(offer.device)
        return ax.scatter([usd], [offer.samples_per_s], s=34, marker=marker, zorder=3, **look)

    right = offer.price.of != money.CARD  # names of both kinds would else meet

    def name(ax: Any) -> Any:
        shift = (6 if right else -6, _moved_up(offer, group, ax.get_ylim()))
        return ax.annotate(
            short(offer.name),
            (usd, offer.samples_per_s),
            shift,
            textcoords="offset points",
            ha="left" if right else "right",
            va="center",
            size=style.SMALL_PT,
        )

    room = style.text_in(short(offer.name), style.SMALL_PT) + 0.15
    # what stands left of a mark needs as much, of a scale of about a decade and three inches
    yield Mark(name, row, text, [usd if right else usd / 2.2], beside_in=room * right)
    yield Mark(dot, row, text, [usd], [offer.samples_per_s])


def _moved_up(offer: Offer, group: Sequence[Offer], limits: tuple[float, float]) -> float:
    """Points by which a name is moved up, so that names of one price do not overlap."""
    low, high = map(math.log, limits)
    columns = grouped(group, lambda one: (one.price.of == money.CARD, one.price.usd))
    column = columns[offer.price.of == money.CARD, offer.price.usd]
    heights = [(math.log(one.samples_per_s) - low) / (high - low) for one in column]
    gap, place = NAME_IN / PANEL_IN, column.index(offer)
    up = strokes.spread(heights, gap, 0.03, 0.97)[place]
    down = strokes.spread([1 - at for at in heights], gap, 0.03, 0.97)[place]
    return ((up + 1 - down) / 2 - heights[place]) * PANEL_IN * style.POINTS_PER_IN


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
        row_in=(ROW_IN, ROW_IN),
    )
