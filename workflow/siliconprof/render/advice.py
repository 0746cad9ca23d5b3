"""Advice: which device would do for the trainings that the config asks about, on what evidence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.advice import ranking
from siliconprof.advice.parts import MEASURED, PREDICTED, PUBLISHED, Estimate, Facts
from siliconprof.advice.ranking import Advice, Answer
from siliconprof.analyse import money
from siliconprof.cells import advice_question
from siliconprof.render import advice_figure
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing, quantity, text

HOUR_S = 3600.0
GIB = 2.0**30
CANNOT = "the device cannot run it"
MOST_SHOWN = 12  # lines that stand open


def add(data: Data, book: Book) -> None:
    """For each question its conclusion and a table; one figure of all."""
    settings = data.matrix["experiment"].get("report", {})
    facts = Facts(data.points, data.energy, data.host, data.published, data.registry)
    advices: list[Advice] = []
    for entry in settings.get("advice") or []:
        question, mistakes = advice_question.read(entry)
        if question is None:  # the config has been checked; an imported matrix may be older
            book.note(
                f"A question was left out: {'; '.join(f'{k} {what}' for k, what in mistakes)}."
            )
            continue
        advices.append(
            ranking.answer(question, facts, settings.get("prices"), settings.get("price_per_kwh"))
        )
    if not advices:
        book.note(
            "The config asks about no training (report.advice is empty); “siliconprof advise "
            "--model gpt2-large --batch 16” asks on the command line."
        )
        return
    book.figure("advice", "advice", partial(advice_figure.draw, advices))
    for index, advice in enumerate(advices, 1):
        book.heading(f"{advice_figure.LETTERS[index - 1]}: {advice.question.title}")
        book.listing(list(advice.conclusion))
        shape = advice.question.shape_assumption()
        if shape:
            book.note(f"{shape}.")
        shown, others = split(advice.answers)
        values = {
            "question": advice.question.title,
            "parameters": words.significant(advice.n_parameters / 1e6),
            "work": words.scaled(advice.flops, "FLOP"),
        }
        book.table(f"advice-{index}", "advice", table(shown), **values)
        if others:
            summary = words.count(len(others), "more device")
            book.table(
                f"advice-{index}-others", "advice-others", table(others), folded=summary, **values
            )


def split(answers: Sequence[Answer]) -> tuple[list[Answer], list[Answer]]:
    """(what stands open, what is folded): open is what is here, priced, measured or published."""
    shown = [
        answer
        for answer in answers
        if answer.candidate.here
        or answer.price.usd is not None
        or answer.step.evidence in (MEASURED, PUBLISHED)
    ] or list(answers[:MOST_SHOWN])
    shown_ids = {id(answer) for answer in shown}
    return shown, [answer for answer in answers if id(answer) not in shown_ids]


def table(answers: Sequence[Answer]) -> Table:
    """A line for each device, the most useful first."""
    result = Table(
        [
            Column("Device"),
            Column("Backend"),
            Column("Scenario", help="by the memory model, as for every cell"),
            Column("memory needed", "GiB", True, "predicted, all of it on the device"),
            Column("usable", "GiB", True, "of the device's memory"),
            Column("speed", "samples/s", True, "one number or a range, by its evidence"),
            Column("time", "h per 1,000 steps", True),
            Column("Evidence", help="of the speed: measured, published, or predicted as a range"),
            Column(
                "energy",
                "kWh per 1,000 steps",
                True,
                "of the scope named below; ≤: bound by the board's power",
                below="scope",
            ),
            Column("electricity", "USD per 1,000 steps", True),
            Column("price", "USD", True, "at launch, or as paid", below="what it buys"),
            Column("Within budget", folds=True),
        ]
    )
    for answer in answers:
        unknown = CANNOT if answer.scenario == "cannot" else answer.step.basis
        rate = answer.step.per(answer.batch_size)
        reason = answer.why if answer.scenario == "cannot" else answer.step.basis
        kind = answer.step.evidence or ("none" if answer.scenario == "cannot" else "unknown")
        result.add(
            Value(
                answer.candidate.name,
                sort=answer.candidate.name,
                badge="this host" if answer.candidate.here else "",
                title=answer.candidate.id,
            ),
            answer.backend,
            Value(
                words_of(answer), sort=ranking.SCENARIOS.index(answer.scenario), title=answer.why
            ),
            quantity(answer.need_bytes, "no memory model", GIB),
            quantity(answer.capacity_bytes, "nobody knows its memory", GIB),
            estimate(rate, unknown),
            estimate(answer.step.times(ranking.STEPS / HOUR_S), unknown),
            Value(kind, sort=kind, mark=MARKS.get(kind, ""), reason=reason),
            *_energy(answer, unknown),
            _price(answer),
            text(answer.budget),
            of=None,
        )
    return result


MARKS = {PUBLISHED: "published", PREDICTED: "computed"}


def words_of(answer: Answer) -> str:
    """`near capacity`; how much of an offloaded training stays is left to the hover text."""
    return {"near-capacity": "near capacity"}.get(answer.scenario, answer.scenario)


def estimate(one: Estimate, unknown: str) -> Value:
    """One number with its mark, a range, or a dash with the reason."""
    mark = MARKS.get(one.evidence or "", "")
    if one.value is not None:
        return Value(words.significant(one.value, 2), sort=one.value, mark=mark, title=one.basis)
    if one.low is None or one.high is None:
        return missing(unknown)
    ends = "–".join(words.significant(end, 2) for end in (one.low, one.high))
    return Value(ends, sort=one.middle, mark=mark, title=one.basis)


def _energy(answer: Answer, unknown: str) -> tuple[Value, Value]:
    """Energy of the widest scope that is known, and its electricity."""
    widest = answer.widest()
    if widest is None:
        why = unknown if answer.scenario == "cannot" else ranking.no_energy(answer)
        return missing(why), missing(why)
    scope, joules = widest
    bound = "≤ " if scope == money.AT_MOST else ""
    amount = joules.value if joules.value is not None else joules.high
    assert amount is not None
    mark = MARKS.get(joules.evidence or "", "")
    kwh, usd = amount * ranking.STEPS / money.J_PER_KWH, answer.cost_usd(amount)
    below = "board's power" if bound else scope
    return (
        Value(f"{bound}{words.significant(kwh, 2)}", kwh, below, joules.basis, mark),
        missing(money.NO_TARIFF)
        if usd is None
        else Value(f"{bound}{words.significant(usd, 2)}", usd, title=joules.basis, mark=mark),
    )


def _price(answer: Answer) -> Value:
    if answer.price.usd is None:
        return missing(answer.price.said)
    usd: Any = answer.price.usd
    return Value(f"{usd:,.0f}".replace(",", words.THIN), usd, answer.price.of, answer.price.said)
