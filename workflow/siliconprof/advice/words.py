"""Advice in words: the conclusion from the answers, as in section 5.1 of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from siliconprof.advice.parts import MEASURED, PUBLISHED
from siliconprof.analyse import money
from siliconprof.cells.advice_question import Question

if TYPE_CHECKING:
    from siliconprof.advice.ranking import Answer


def conclusion(question: Question, answers: Sequence[Answer], chosen: bool = False) -> list[str]:
    """A few sentences as in section 5.1 of the paper, from these answers alone.

    Args:
        answers: the most useful first.
        chosen: whether the answers cover only chosen devices.
    """
    fitting = [one for one in answers if one.scenario in ("fits", "near-capacity")]
    own = [one for one in fitting if one.candidate.here]
    priced = [one for one in fitting if one.price.usd is not None and one.budget in (None, "yes")]
    cards = [one for one in priced if one.price.of == money.CARD]
    computers = [one for one in priced if one.price.of == money.COMPUTER]
    sentences = []
    if own:
        best = own[0]
        rate = speed_text(best)
        sentences.append(
            f"{best.candidate.name}, which is here already, has enough memory: "
            + (
                f"it needs no purchase and reaches {rate}."
                if rate
                else "its speed is unknown, so time a few steps before you rely on it."
            )
        )
    buying = f"To buy{', of the chosen devices' if chosen else ''}:"
    limit = f" up to {question.budget_usd:,.0f} USD" if question.budget_usd else ""
    buy = [one for one in priced if not one.candidate.here]
    new_cards, new_computers = ([one for one in buy if one in kind] for kind in (cards, computers))
    other = " other" * (len(new_cards) < len(cards))  # than the card that is here
    if new_cards:
        cheapest = min(new_cards, key=lambda one: one.price.usd or 0.0)
        sentences.append(
            f"{buying} the cheapest{other} NVIDIA card with a known price{limit} that holds it is the "
            f"{_short(cheapest)}; a card needs a computer around it."
        )
        dearer = cheapest.price.usd or 0.0
        mac = min(new_computers, key=lambda one: one.price.usd or 0.0, default=None)
        if mac and (mac.price.usd or 0.0) < dearer:
            sentences.append(
                f"The {_short(mac)}, a whole computer, holds it for less: for larger models the "
                "paper calls a Mac the better choice, at a lower speed."
            )
        sentences += _against(cards, computers)
    elif new_computers:
        cheapest = min(new_computers, key=lambda one: one.price.usd or 0.0)
        sentences.append(
            f"{buying} no{other} NVIDIA card with a known price{limit} holds it, but the "
            f"{_short(cheapest)} does: the paper prefers a Mac only for larger models."
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
            way = f" With ZeRO-Offload the {_short(first)} can run it, at an unknown speed."
        elif not fitting:
            ways = ["a smaller batch"] * (question.batch_size > 1)
            ways += ["16 bits"] * (question.precision == "fp32") + ["gradient checkpointing"]
            way = f" Less memory is needed with {' or '.join(ways)}."
        other = " other" * bool(priced)
        sentences.append(f"{buying} no{other} device with a known price{limit} holds it.{way}")
    unpriced = [one for one in fitting if one.price.usd is None and not one.candidate.here]
    if unpriced:
        sentences.append(
            f"{len(unpriced)} more device{'s' * (len(unpriced) != 1)} of the registry would hold "
            f"it; no source gives a price{', so they may cost more' * bool(limit)}; set yours in "
            "report.prices."
        )
    return sentences


def _against(cards: Sequence[Answer], computers: Sequence[Answer]) -> list[str]:
    """The fastest Mac against the fastest card, if evidence of one kind has both."""
    for kind in (MEASURED, PUBLISHED):
        fastest = [
            max(same_kind, key=lambda one: one.samples_per_s or 0.0)
            for group in (cards, computers)
            if (same_kind := [one for one in group if one.step.evidence == kind])
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
    rate = speed_text(one)
    usd = f"{one.price.usd:,.0f} USD" if one.price.usd is not None else "price unknown"
    return f"{one.candidate.name} ({usd}{f', {rate}' if rate else ''})"


def speed_text(one: Answer) -> str:
    """`2.9 samples/s (published)`; empty when unknown."""
    if one.step.value:
        return f"{two_digits(one.batch_size / one.step.value)} samples/s ({one.step.evidence})"
    return ""


def two_digits(value: float) -> str:
    """Two significant digits, without an exponent."""
    return f"{float(f'{value:.2g}'):,.10g}"
