"""Advice: which device would do for the trainings that the config asks about, on what evidence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from siliconprof import words
from siliconprof.advice import ranking
from siliconprof.advice.parts import PREDICTED, PUBLISHED, Candidate, Estimate, Facts
from siliconprof.advice.ranking import Advice, Answer
from siliconprof.advice.words import speed_text
from siliconprof.analyse import money
from siliconprof.cells import advice_question
from siliconprof.render import chart, style
from siliconprof.render.book import Book
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.money import price_column
from siliconprof.render.tables import Column, Table, Value, missing, number, told

HOUR_S = 3600.0
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" * 4
DASHES = ((1, 0), (4, 1.5), (1, 1), (6, 1, 1, 1))
GIB = 2.0**30
REMARKS = {"fits": "", "near-capacity": " barely", "offload": " offloaded", "unknown": "?"}
WORDS: dict[str, Any] = {  # over the lines
    "color": style.INK,
    "bbox": {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.6},
}
TITLES = {"unified": "Unified memory: usable share", "dedicated": "Memory of the card"}
CANNOT = "the device cannot run it"


def add(data: Data, book: Book) -> None:
    """For each question its conclusion and a table; one figure of all."""
    settings = data.matrix.report
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
    book.figure("advice", "advice", partial(draw, advices))
    for index, advice in enumerate(advices, 1):
        book.heading(f"{LETTERS[index - 1]}: {advice.question.title}")
        book.listing(list(advice.conclusion))
        shape = advice.question.shape_assumption()
        if shape:
            book.note(f"{shape}.")
        book.table(
            f"advice-{index}",
            "advice",
            Table.of(advice.shown, COLUMNS, about=lambda answer: None),
            question=advice.question.title,
            parameters=words.significant(advice.n_parameters / 1e6),
            work=words.scaled(advice.flops, "FLOP"),
        )


MARKS = {PUBLISHED: "published", PREDICTED: "computed"}


def _device(answer: Answer) -> Value:
    one = answer.candidate
    return Value(one.name, one.name, badge="this host" if one.here else "", title=one.id)


def _scenario(answer: Answer) -> Value:
    """`near capacity`; how much of an offloaded training stays is left to the hover text."""
    place = ranking.SCENARIOS.index(answer.scenario)
    return Value(answer.scenario.replace("-", " "), place, title=answer.why)


def _unknown(answer: Answer) -> str:
    """Why there is no speed."""
    return CANNOT if answer.scenario == "cannot" else answer.step.basis


def _evidence(answer: Answer) -> Value:
    cannot = answer.scenario == "cannot"
    kind = answer.step.evidence or ("none" if cannot else "unknown")
    reason = answer.why if cannot else answer.step.basis
    return Value(kind, sort=kind, mark=MARKS.get(kind, ""), reason=reason)


def _speed(answer: Answer) -> Value:
    return estimate(answer.step.per(answer.batch_size), _unknown(answer))


def _hours(answer: Answer) -> Value:
    return estimate(answer.step.times(ranking.STEPS / HOUR_S), _unknown(answer))


def estimate(one: Estimate, unknown: str) -> Value:
    """One number with its mark, or a dash with the reason."""
    if one.value is None:
        return missing(unknown)
    mark = MARKS.get(one.evidence or "", "")
    return Value(words.significant(one.value, 2), sort=one.value, mark=mark, title=one.basis)


def _energy(answer: Answer, as_usd: bool = False) -> Value:
    """Energy of the widest scope that is known, or its electricity."""
    widest = answer.widest()
    if widest is None:
        cannot = answer.scenario == "cannot"
        return missing(_unknown(answer) if cannot else ranking.no_energy(answer))
    scope, joules = widest
    bounded = scope == money.AT_MOST
    amount = joules.value if joules.value is not None else joules.high
    assert amount is not None
    value = answer.cost_usd(amount) if as_usd else amount * ranking.STEPS / money.J_PER_KWH
    if value is None:
        return missing(money.NO_TARIFF)
    text = f"{'≤ ' if bounded else ''}{words.significant(value, 2)}"
    below = "" if as_usd else "board's power" if bounded else scope
    return Value(text, value, below, joules.basis, MARKS.get(joules.evidence or "", ""))


def _electricity(answer: Answer) -> Value:
    return _energy(answer, as_usd=True)


ALL_OF_IT, UNKNOWN = "predicted, all of it on the device", "nobody knows its memory"
OF_SCOPE = "of the scope named below; ≤: bound by the board's power"
COLUMNS = (
    told("Device", _device),
    told("Backend", attrgetter("backend")),
    told("Scenario", _scenario, "by the memory model, as for every cell"),
    number("memory needed", "GiB", attrgetter("need_bytes"), "no memory model", ALL_OF_IT),
    number("usable", "GiB", attrgetter("capacity_bytes"), UNKNOWN, "of the device's memory"),
    Column("speed", "samples/s", True, "by its evidence", value=_speed),
    Column("time", "h per 1,000 steps", True, value=_hours),
    told("Evidence", _evidence, "of the speed: measured, or published"),
    Column("energy", "kWh per 1,000 steps", True, OF_SCOPE, "scope", value=_energy),
    Column("electricity", "USD per 1,000 steps", True, value=_electricity),
    price_column(attrgetter("price"), "at launch, or as paid"),
    told("Within budget", attrgetter("budget"), folds=True),
)


# -- the figure ----------------------------------------------------------------------------------


def draw(advices: Sequence[Advice]) -> Any:
    """Bars of usable memory by vendor, lines at what each question needs, verdicts beside the bars."""
    candidates = [answer.candidate for answer in advices[0].answers]
    groups = grouped(candidates, lambda candidate: candidate.memory_kind)
    panels = [
        _panel(TITLES.get(kind, "This host's memory"), group, advices)
        for kind, group in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]
    legend = [
        (
            style.sample(None, "-", color=style.INK, dashes=DASHES[index % len(DASHES)]),
            f"{LETTERS[index]} needs: {advice.question.title}",
        )
        for index, advice in enumerate(advices)
    ]
    return Chart(panels, legend, columns=2).figure()


def _panel(title: str, group: Sequence[Candidate], advices: Sequence[Advice]) -> Panel:
    """Devices by memory; beside each bar the questions that the device can train, and how."""
    group = sorted(group, key=lambda c: (-(c.memory_bytes or 0), c.id))
    needs = [_needs(advice, group) for advice in advices]
    sizes = [(candidate.capacity()[0] or 0) / GIB for candidate in group]
    low = min([*filter(None, sizes), *filter(None, needs)], default=2) / 2
    shown: list[Mark] = []
    for index, need in enumerate(needs):
        if need:
            text = f"{LETTERS[index]} needs {words.significant(need)} GiB here"
            look = {"color": style.INK, "linewidth": 0.8, "dashes": DASHES[index % len(DASHES)]}
            shown.append(chart.upright(need, None, text, **look))
    for y, (candidate, size) in enumerate(zip(group, sizes, strict=True)):
        answers = [
            one for advice in advices for one in advice.answers if one.candidate.id == candidate.id
        ]
        said = [
            f"{letter} {hover_text(one)}" for letter, one in zip(LETTERS, answers, strict=False)
        ]
        text = "; ".join([f"{candidate.name}: {words.significant(size)} GiB usable", *said])
        look = {"facecolor": style.shade("grey", 45)}
        shown.append(chart.bar(y, low, max(size, low), None, text, 0.62, **look))
        verdicts = grouped(zip(LETTERS, answers, strict=False), lambda one: one[1].scenario)
        said = [
            f"{' '.join(letter for letter, _ in verdicts[scenario])}{remark}"
            for scenario, remark in REMARKS.items()
            if scenario in verdicts
        ]
        shown.append(chart.beside(max(size, low), y, ", ".join(said), hover=text, **WORDS))
    return Panel(
        shown,
        Scale("memory that a training may use / GiB", log=10, ends=(low, None)),
        labels=[*map(_label, group)],
        title=title,
        row_in=0.16,
    )


def _label(candidate: Candidate) -> str:
    """The name without its vendor; a star where it is this host's own."""
    name = candidate.name.removeprefix("Apple ").removeprefix("NVIDIA ").removeprefix("GeForce ")
    name = words.shortened(name.replace(" GPU cores", " cores"), 24)
    return f"★ {name}" if candidate.here else name


def _needs(advice: Advice, group: Sequence[Candidate]) -> float | None:
    """GiB that the training needs on most of these devices; the backends differ a little."""
    ids = {candidate.id for candidate in group}
    needs = sorted(
        one.need_bytes for one in advice.answers if one.candidate.id in ids and one.need_bytes
    )
    return needs[len(needs) // 2] / GIB if needs else None


def hover_text(answer: Answer) -> str:
    """What the pointer shows of one device and question."""
    need = words.significant((answer.need_bytes or 0) / GIB)
    rate = speed_text(answer)
    return f"{answer.scenario.replace('-', ' ')}, needs {need} GiB{f', {rate}' if rate else ''}"
