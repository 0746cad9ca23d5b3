"""Memory of every device, and what becomes of each question's training on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from siliconprof import words
from siliconprof.advice.parts import Candidate
from siliconprof.advice.ranking import Advice, Answer
from siliconprof.advice.words import speed_text
from siliconprof.render import marks, strokes, style

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" * 4
GIB = 2.0**30
ROW_IN, TITLE_IN, FOOT_IN, COLUMN_IN = 0.16, 0.36, 0.42, 0.15
LOOKS = {  # scenario -> marker, step of the ramp or None, words
    "fits": ("o", 3, "fits"),
    "near-capacity": ("D", 0, "near capacity"),
    "offload": ("^", 5, "with ZeRO-Offload"),
    "unknown": ("_", None, "memory unknown"),
    "cannot": ("x", None, "cannot"),
}


def draw(advices: Sequence[Advice], narrow: bool) -> Any:
    """Bars of usable memory by vendor; beside each bar a mark per question, lines at its need."""
    groups = _groups(advices[0].answers)
    width = style.width_in(narrow)
    entries = _entries(advices)
    head = style.legend_height(entries, width) + 0.05
    columns = 1 if narrow else 2
    column_in = (width - 0.3 * (columns - 1)) / columns
    places, tops = [], [head] * columns
    for _, group in groups:
        column = tops.index(min(tops))
        places.append((column, tops[column]))
        tops[column] += TITLE_IN + len(group) * ROW_IN + FOOT_IN
    figure = style.canvas(width, max(tops))
    style.legend(figure, entries, 0.0)
    for (title, group), (column, top) in zip(groups, places, strict=True):
        _panel(figure, title, group, advices, column * (column_in + 0.3), top, column_in)
    return figure


def _groups(answers: Sequence[Answer]) -> list[tuple[str, list[Candidate]]]:
    """(title, devices by memory): unified, dedicated, and this host's memory that is neither."""
    titles = {"unified": "Unified memory: usable share", "dedicated": "Memory of the card"}
    groups: dict[str, list[Candidate]] = {}
    for answer in answers:
        groups.setdefault(answer.candidate.memory_kind, []).append(answer.candidate)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [
        (
            titles.get(kind, "This host's memory"),
            sorted(group, key=lambda c: (-(c.memory_bytes or 0), c.id)),
        )
        for kind, group in ordered
    ]


def _entries(advices: Sequence[Advice]) -> list[style.Entry]:
    used = {answer.scenario for advice in advices for answer in advice.answers}
    mark_entries = [
        (style.sample(marker, **_look(scenario)), name)
        for scenario, (marker, _, name) in LOOKS.items()
        if scenario in used
    ]
    lines = [
        (
            style.sample(None, "-", color=style.INK, dashes=_dashes(index)),
            f"{LETTERS[index]} needs: {advice.question.title}",
        )
        for index, advice in enumerate(advices)
    ]
    return [*mark_entries, *lines]


def _dashes(index: int) -> tuple[float, ...]:
    return ((1, 0), (4, 1.5), (1, 1), (6, 1, 1, 1))[index % 4]


def _look(scenario: str) -> dict[str, Any]:
    """How a mark of a scenario is drawn; shape and lightness tell them apart, not colour alone."""
    step = LOOKS[scenario][1]
    ink = style.FAINT if step is None else style.RAMP[step][0]
    return {"color": ink, "markersize": 3.6, "markeredgewidth": 0.9}


def _panel(
    figure: Any,
    title: str,
    group: Sequence[Candidate],
    advices: Sequence[Advice],
    left: float,
    top: float,
    width: float,
) -> None:
    labels = [_label(candidate) for candidate in group]
    margin = style.labels_in(labels, True) + 0.08
    side = len(advices) * COLUMN_IN + 0.05
    height = len(group) * ROW_IN
    style.write(figure, left, top + 0.1, title, weight="bold", va="center")
    ax = style.axes(figure, left + margin, top + TITLE_IN, width - margin - side - 0.05, height)
    by_id = [{answer.candidate.id: answer for answer in advice.answers} for advice in advices]
    sizes = [(candidate.capacity()[0] or 0) / GIB for candidate in group]
    needs = [_needs(advice, group) for advice in advices]
    ends = [*sizes, *(need for need in needs if need)]
    ax.set_xscale("log")
    ax.set_xlim(min(size for size in ends if size) / 2 if any(ends) else 1, max(ends) * 1.3 or 2)
    for y, (candidate, size) in enumerate(zip(group, sizes, strict=True)):
        bar = ax.barh(y, size, height=0.62, facecolor=style.shade("grey", 45), linewidth=0)
        marks.tag(bar, None, f"{candidate.name}: {words.significant(size)} GiB usable")
        for index, answers in enumerate(by_id):
            answer = answers[candidate.id]
            marker = LOOKS[answer.scenario][0]
            x = 1 + (0.1 + index * COLUMN_IN) / (width - margin - side - 0.05)
            dot = ax.plot(
                [x],
                [y],
                marker,
                transform=ax.get_yaxis_transform(),
                clip_on=False,
                **_look(answer.scenario),
            )
            marks.tag(dot, None, f"{LETTERS[index]} on {candidate.name}: {hover_text(answer)}")
    for index, need in enumerate(needs):
        x = 1 + (0.1 + index * COLUMN_IN) / (width - margin - side - 0.05)
        ax.text(
            x,
            1 + 0.04 / height,
            LETTERS[index],
            transform=ax.transAxes,
            ha="center",
            va="bottom",
            size=style.SMALL_PT,
            clip_on=False,
        )
        if need:
            line = ax.axvline(need, color=style.INK, linewidth=0.8, dashes=_dashes(index))
            marks.tag(line, None, f"{LETTERS[index]} needs {words.significant(need)} GiB here")
    lettered = [(need, LETTERS[index]) for index, need in enumerate(needs) if need]
    low, high = map(math.log, ax.get_xlim())
    positions = [(math.log(need) - low) / (high - low) for need, _ in lettered]
    gap = 0.09 / (width - margin - side - 0.05)  # letters apart, where lines are not
    for at, (_, letter) in zip(strokes.spread(positions, gap, 0.0, 1.0), lettered, strict=True):
        ax.text(
            at,
            1 + 0.04 / height,
            letter,
            transform=ax.transAxes,
            ha="center",
            va="bottom",
            size=style.SMALL_PT,
        )
    ax.set_ylim(len(group) - 0.5, -0.6)
    ax.set_yticks(range(len(group)), labels)
    ax.tick_params(axis="y", length=0, labelsize=style.SMALL_PT, labelcolor=style.INK)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("memory that a training may use / GiB", size=style.SMALL_PT)
    style.log_ticks(ax.xaxis, *ax.get_xlim())
    ax.grid(axis="x")


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
    return f"{LOOKS[answer.scenario][2]}, needs {need} GiB{f', {rate}' if rate else ''}"
