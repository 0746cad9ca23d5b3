"""Advice in words: what follows from the answers, in the spirit of section 5.1 of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from siliconprof.advice.parts import MEASURED, PREDICTED, PUBLISHED
from siliconprof.analyse import money
from siliconprof.cells.advice_question import Question

if TYPE_CHECKING:
    from siliconprof.advice.ranking import Answer


WIDE = 3.0  # times from one end of a predicted range to the other, from which on it is told


def conclusion(question: Question, answers: Sequence[Answer], chosen: bool = False) -> list[str]:
    """A sentence or two in the spirit of section 5.1, from these answers alone.

    Args:
        chosen: only some devices were asked about, so that nothing is said of the others.
    """
    able = [one for one in answers if one.scenario in ("fits", "near-capacity")]
    own = [one for one in able if one.candidate.here]
    priced = [one for one in able if one.price.usd is not None and one.budget in (None, "yes")]
    cards = [one for one in priced if one.price.of == money.CARD]
    computers = [one for one in priced if one.price.of == money.COMPUTER]
    said = []
    if own:
        best = own[0]
        rate = speed_said(best)
        said.append(
            f"What is here already, {best.candidate.name}, has memory enough: "
            + (
                f"going ahead with it costs no purchase, at {rate}."
                if rate
                else "whether it is fast enough is unknown, so time a few steps before you rely on it."
            )
        )
    buying = f"To buy{', of the devices asked about' if chosen else ''}:"
    limit = f" up to {question.budget_usd:,.0f} USD" if question.budget_usd else ""
    buy = [one for one in priced if not one.candidate.here]
    if cards and not all(one.candidate.here for one in cards):
        cheapest = min(cards, key=lambda one: one.price.usd or 0.0)
        said.append(
            f"{buying} the cheapest NVIDIA card with a known price{limit} that holds it is the "
            f"{_short(cheapest)}; a card needs a computer around it."
        )
        dearer = cheapest.price.usd or 0.0
        mac = min(computers, key=lambda one: one.price.usd or 0.0, default=None)
        if mac and (mac.price.usd or 0.0) < dearer and not mac.candidate.here:
            said.append(
                f"The {_short(mac)}, a whole computer, holds it for less: for larger models the "
                "paper calls a Mac the better choice, at a lower speed."
            )
        said += _against(cards, computers)
    elif computers:
        cheapest = min(computers, key=lambda one: one.price.usd or 0.0)
        said.append(
            f"{buying} no NVIDIA card with a known price{limit} holds it, but the {_short(cheapest)} "
            "does: the one case, larger models, in which the paper prefers a Mac."
        )
    elif not buy and not (chosen and all(one.candidate.here for one in answers)):
        offloads = [
            one
            for one in answers
            if one.scenario == "offload"
            and one.price.usd is not None
            and one.budget in (None, "yes")
        ]
        way = ""
        if offloads:
            first = min(offloads, key=lambda one: one.price.usd or 0.0)
            way = f" With ZeRO-Offload the {_short(first)} would do, at an unknown speed."
        elif not able:
            ways = ["a smaller batch"] * (question.batch_size > 1)
            ways += ["16 bits"] * (question.precision == "fp32") + ["gradient checkpointing"]
            way = f" Less memory is needed with {' or '.join(ways)}."
        said.append(f"{buying} no device with a known price{limit} holds it.{way}")
    unpriced = [one for one in able if one.price.usd is None and not one.candidate.here]
    if unpriced:
        said.append(
            f"{len(unpriced)} more device{'s' * (len(unpriced) != 1)} of the registry would hold "
            f"it; no source gives a price{', so they may cost more' * bool(limit)}, and "
            "report.prices takes yours."
        )
    widths = [
        one.step.high / one.step.low
        for one in able
        if one.step.high and one.step.low and one.step.evidence == PREDICTED
    ]
    if widths and max(widths) >= WIDE:
        said.append(
            f"Predicted ranges are up to {two_digits(max(widths))} times wide: where two of them "
            "overlap, they do not tell which device is faster. The order is by their slow ends."
        )
    return said


def _against(cards: Sequence[Answer], computers: Sequence[Answer]) -> list[str]:
    """How the fastest Mac compares with the fastest card, where one sort of evidence has both."""
    for kind in (MEASURED, PUBLISHED):
        fastest = [
            max(known, key=lambda one: one.samples_per_s or 0.0)
            for group in (cards, computers)
            if (known := [one for one in group if one.step.evidence == kind])
        ]
        if len(fastest) == 2:
            card, mac = fastest
            ratio = (mac.samples_per_s or 0.0) / (card.samples_per_s or 1.0)
            return [
                f"By what was {kind}, the {mac.candidate.name} reaches {ratio:.3g} times the speed "
                f"of the {card.candidate.name}, per sample."
            ]
    return []


def _short(one: Answer) -> str:
    rate = speed_said(one)
    usd = f"{one.price.usd:,.0f} USD" if one.price.usd is not None else "price unknown"
    return f"{one.candidate.name} ({usd}{f', {rate}' if rate else ''})"


def speed_said(one: Answer) -> str:
    """`2.9 samples/s (published)`; empty when unknown."""
    if one.step.value:
        return f"{two_digits(one.batch_size / one.step.value)} samples/s ({one.step.evidence})"
    if one.step.low and one.step.high:
        slow, fast = (two_digits(one.batch_size / end) for end in (one.step.high, one.step.low))
        return f"{slow} to {fast} samples/s ({one.step.evidence})"
    return ""


def two_digits(value: float) -> str:
    """Two significant digits, never in powers of ten where a person would not write one."""
    return f"{float(f'{value:.2g}'):,.10g}"
