"""The price-performance figure: speed against price, and what data sheets list for a dollar."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from siliconprof import words
from siliconprof.analyse import money
from siliconprof.analyse.money import Offer, Price
from siliconprof.render import marks, strokes, style

MOST_PANELS = 4
PANEL_IN, TITLE_IN, FOOT_IN, BAR_IN = 2.1, 0.26, 0.42, 0.2
NAME_IN = 0.12  # from one name to the next
CHIP = {money.CARD: "torch-cuda", money.COMPUTER: "mlx"}  # whose colour a data sheet's bar has


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
    width = style.width_in(narrow)
    entries = _entries([offer for _, group in shown for offer in group])
    head = style.legend_height(entries, width) + 0.05
    bars = len(sheet) * BAR_IN
    block = TITLE_IN + PANEL_IN + FOOT_IN
    below = TITLE_IN + bars + FOOT_IN
    columns = 1 if narrow else 2
    column_in = (width - 0.3 * (columns - 1)) / columns
    heights = [block] * len(shown) + [below] * bool(sheet)
    places, tops = [], [head] * columns
    for height in heights:
        column = tops.index(min(tops))
        places.append((column, tops[column]))
        tops[column] += height
    figure = style.canvas(width, max(tops))
    style.legend(figure, entries, 0.0)
    for (title, group), (column, top) in zip(shown, places, strict=False):
        left = column * (column_in + 0.3)
        _panel(figure, title, group, left, top, column_in)
    if sheet:
        column, top = places[-1]
        _bars(figure, sheet, column * (column_in + 0.3), top, column_in, bars)
    return figure


def _devices(group: Sequence[Offer]) -> int:
    return len({offer.device for offer in group})


def _entries(offers: Sequence[Offer]) -> list[style.Entry]:
    backends = {offer.backend: None for offer in offers}
    low, high = money.CLAIMED_SLOWER
    return [
        *((style.sample("o", color=style.shade(name), markersize=3.6), name) for name in backends),
        (style.swatch("none", style.PUBLISHED_HATCH), "published, or of a data sheet"),
        (
            style.swatch(style.shade("grey", 25)),
            f"stated: {low:g} to {high:g} times slower at a similar price",
        ),
    ]


def _panel(
    figure: Any, title: str, group: Sequence[Offer], left: float, top: float, width: float
) -> None:
    from matplotlib.patches import Rectangle

    style.write(figure, left, top + 0.12, title, weight="bold", va="center")
    margin = 0.42
    ax = style.axes(figure, left + margin, top + TITLE_IN, width - margin - 0.1, PANEL_IN)
    prices = [offer.price.usd or 1.0 for offer in group]
    speeds = [offer.samples_per_s for offer in group]
    low, high = money.CLAIMED_SLOWER
    cards = [offer for offer in group if offer.price.of == money.CARD]
    floor = min([*speeds, *(card.samples_per_s / high for card in cards)])
    near = money.SIMILAR_PRICE
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(min(prices) / 1.9, max(prices) * 2.2)
    ax.set_ylim(floor / 1.5, max(speeds) * 1.7)
    for card in cards:
        usd = card.price.usd or 1.0
        box = ax.add_patch(
            Rectangle(
                (usd / near, card.samples_per_s / high),
                usd * near - usd / near,
                card.samples_per_s / low - card.samples_per_s / high,
                facecolor=style.shade("grey", 25),
                linewidth=0,
            )
        )
        box_text = f"where the paper puts a Mac of a price like that of {card.name}"
        marks.tag(box, None if card.published else card.row, box_text)
    name_shifts = _apart(group, ax.get_ylim())
    for offer in sorted(group, key=lambda item: item.samples_per_s):
        ink = style.shade(offer.backend)
        look: dict[str, Any] = {"color": ink, "linewidths": 0}
        if offer.published:
            look = {
                "facecolor": "none",
                "edgecolor": ink,
                "linewidths": 0.7,
                "hatch": style.PUBLISHED_HATCH * 2,
            }
        mark = ax.scatter(
            [offer.price.usd],
            [offer.samples_per_s],
            s=34,
            marker=style.device_mark(offer.device),
            zorder=3,
            **look,
        )
        right = offer.price.of != money.CARD  # names of both kinds would else meet
        name = ax.annotate(
            short(offer.name),
            (offer.price.usd, offer.samples_per_s),
            xytext=(6 if right else -6, name_shifts[id(offer)]),
            textcoords="offset points",
            ha="left" if right else "right",
            va="center",
            size=style.SMALL_PT,
        )
        kind = "published" if offer.published else "measured"
        hover_text = (
            f"{offer.name}, {offer.backend}: {words.significant(offer.samples_per_s)} samples/s "
            f"({kind}), {offer.price.usd:,.0f} USD, {offer.price.of}"
        )
        marks.tag([mark, name], None if offer.published else offer.row, hover_text)
    ax.set_xlabel("purchase price / USD", size=style.SMALL_PT)
    ax.set_ylabel("samples per second", size=style.SMALL_PT)
    style.log_ticks(ax.xaxis, *ax.get_xlim())
    style.log_ticks(ax.yaxis, *ax.get_ylim())
    ax.grid(True)


def _apart(group: Sequence[Offer], limits: tuple[float, float]) -> dict[int, float]:
    """Points by which each name is moved up, so that names of one price do not overlap."""
    low, high = map(math.log, limits)
    columns: dict[tuple, list[Offer]] = {}
    for offer in group:
        columns.setdefault((offer.price.of == money.CARD, offer.price.usd), []).append(offer)
    shifts = {}
    for offers in columns.values():
        heights = [(math.log(one.samples_per_s) - low) / (high - low) for one in offers]
        gap = NAME_IN / PANEL_IN
        up = strokes.spread(heights, gap, 0.03, 0.97)
        down = strokes.spread([1 - at for at in heights], gap, 0.03, 0.97)
        for offer, at, high_, low_ in zip(offers, heights, up, down, strict=True):
            shifts[id(offer)] = ((high_ + 1 - low_) / 2 - at) * PANEL_IN * 72  # as far up as down
    return shifts


def _bars(
    figure: Any,
    sheet: Sequence[tuple[str, str, float, Price]],
    left: float,
    top: float,
    width: float,
    height: float,
) -> None:
    """Listed fp32 operations for what a device costs: data sheets, nothing measured."""
    style.write(
        figure, left, top + 0.12, "Data sheets: fp32 peak for the money", weight="bold", va="center"
    )
    labels = [short(name) for _, name, _, _ in sheet]
    margin = style.labels_in(labels) + 0.08
    ax = style.axes(figure, left + margin, top + TITLE_IN, width - margin - 0.35, height)
    for y, (_, name, value, bought) in enumerate(sheet):
        bar = ax.barh(y, value, height=0.6, **style.published(CHIP.get(bought.of, "other")))
        number = ax.annotate(
            words.significant(value),
            (value, y),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            size=style.SMALL_PT,
        )
        hover_text = (
            f"{name}: {words.significant(value)} TFLOPS per 1,000 USD by its data sheet, "
            f"{bought.usd:,.0f} USD, {bought.of}"
        )
        marks.tag([bar, number], None, hover_text)
    ax.set_yticks(range(len(sheet)), labels)
    ax.set_ylim(len(sheet) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0, labelsize=style.TEXT_PT, labelcolor=style.INK)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("listed TFLOPS per 1,000 USD", size=style.SMALL_PT)
    style.plain_ticks(ax.xaxis, 4)
    ax.grid(axis="x")
