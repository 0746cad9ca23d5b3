"""LoRA: the same model trained with adapters on a frozen rest, beside training all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.render import chart, hover, overall, style, variants
from siliconprof.render.blocks import Finding
from siliconprof.render.book import Book, parts
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.compare import Step, compared, manner, ratio, ratio_words
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing, number, told
from siliconprof.render.training import MS
from siliconprof.render.variants import Row, family, has_no_speed, label, pairs, precision, variant

PHASES = (
    ("forward", "forward"),
    ("backward", "backward"),
    ("optimizer", "optimizer"),
    ("unsplit_step", "whole step, unsplit"),
)
PAIR_IN = (0.38, 0.38)
PAIRS_PER_FIGURE = 16


def both_ways(data: Data) -> list[tuple[Row, Row]]:
    """(training of every parameter, training of adapters): equal but for what is trained."""
    rows = [
        row for row in sorted(data.training(), key=variants.family_order) if not has_no_speed(row)
    ]

    def is_adapted(row: Row) -> bool:
        return bool(row.get("lora_rank"))

    return pairs(rows, "n_trainable_parameters", lambda row: not is_adapted(row), is_adapted)


def finding(data: Data) -> Finding | None:
    """What adapters on a frozen rest save over the training of every parameter."""
    comparisons: list[overall.Comparison] = []
    for full_row, adapted_row in both_ways(data):
        full, adapted = Step.of(full_row), Step.of(adapted_row)
        if not full or not adapted:
            continue
        adapters, name = _adapters(adapted_row), family(full_row).name
        place = f"{name} on {words.backend_name(full_row)} ({manner(full_row)})"
        line = compared(f"{place}, {adapters}: {_comparison_text(full, adapted)}", full, adapted)
        shared = f"{name}, {words.backend_name(full_row)}, {manner(full_row)}"
        names = ("training every parameter", adapters)
        comparisons.append(overall.Comparison(full, adapted, names, shared, line))
    return overall.finding("LoRA", [("", comparisons)], "lora")


def _comparison_text(full: Step, adapted: Step) -> str:
    if full.overlaps(adapted):
        return "no difference beyond noise in the step"
    if adapted.middle < full.middle:
        text = f"it is {ratio_words(full, adapted)} faster than training every parameter"
    else:
        text = f"training every parameter is {ratio_words(adapted, full)} faster"
    shares = [
        f"{name} {words.change(change)}"
        for part, name in PHASES[:3]
        if (change := _relative(full.row, adapted.row, part)) is not None
    ]
    return f"{text} ({', '.join(shares)})"


def _adapters(row: Row) -> str:
    return next(word for word in variant(row) if word.startswith("LoRA"))


def _median(row: Row, part: str) -> float | None:
    return words.number(row.get(f"{part}_median_s"))


def _relative(full: Row, adapted: Row, part: str) -> float | None:
    """Change of a part's median as a share of what it was; None where there is none."""
    before, after = _median(full, part), _median(adapted, part)
    return None if not before or after is None else after / before - 1


def add(data: Data, book: Book, prefix: str = "") -> None:
    """A figure and a table, where any training was measured both ways."""
    all_pairs = both_ways(data)
    if not all_pairs:
        if any(row.get("lora_rank") for row in data.training()):
            book.note(
                "LoRA: no training was measured both with adapters and of every parameter, "
                "equal in everything else."
            )
        return
    book.heading("With and without LoRA", anchor=f"{prefix}lora")
    for name, part in parts(f"{prefix}lora", all_pairs, PAIRS_PER_FIGURE):
        book.figure(name, "lora", partial(draw, part))
    table = Table.of(all_pairs, COLUMNS, about=lambda pair: pair)
    book.table(f"{prefix}lora", "lora", table)


def draw(compared_rows: Sequence[tuple[Row, Row]], narrow: bool) -> Any:
    """One row a pair, one panel a phase: above training all of it, below the adapters alone."""
    legend = [
        (style.swatch(style.shade("grey")), "every parameter is trained"),
        (style.swatch(style.shade("grey", 45)), "LoRA: adapters alone, the rest is frozen"),
    ]
    names = [f"{family(full).name}\n{label(full)}" for full, _ in compared_rows]
    panels = [
        Panel(
            [mark for y, pair in enumerate(compared_rows) for mark in _bars(y, pair, part)],
            Scale("ms", zero=True, most=3, unit=MS),
            labels=names,
            label_rows=compared_rows,
            title=name,
            row_in=PAIR_IN,
        )
        for part, name in PHASES
    ]
    return Chart(panels, legend, columns=(4, 2), same_y=True).figure(narrow)


def _bars(y: int, pair: tuple[Row, Row], part: str) -> Iterator[Mark]:
    """Both medians, the second with the change that adapters make."""
    for row, at, step in ((pair[0], y - 0.19, 100), (pair[1], y + 0.19, 45)):
        value = _median(row, part)
        if value is None:
            yield chart.note(0, at, "not timed", row, style="italic")
            continue
        timed = hover.median if part == "unsplit_step" else hover.quartiles
        text = f"{hover.training(row)}: {dict(PHASES)[part]} {timed(row, part)}"
        written = words.significant(value / MS)
        change = _relative(*pair, part) if row is pair[1] else None
        if change is not None:
            written = words.change(change)
            text += f", {written}"
        yield chart.bar(at, 0, value, row, text, 0.34, color=style.shade(row["backend"], step))
        yield chart.beside(value, at, written, row, color=style.INK)


def _both(part: str, pair: tuple[Row, Row]) -> Value:
    before, after = (_median(row, part) for row in pair)
    if before is None or after is None:
        return missing("one of the two marks no such phase")
    change = _relative(*pair, part)
    text = f"{words.significant(before / MS)} → {words.significant(after / MS)}"
    return Value(text, below="" if change is None else words.change(change))


def _trained(pair: tuple[Row, Row]) -> float:
    return pair[1]["n_trainable_parameters"] / pair[0]["n_parameters"]


NO_STEP = "one of the two has no unsplit step"
MEDIANS = "every parameter trained → LoRA; medians"
ALLOWED = "whole step; what both 95 % intervals allow below"
COLUMNS = (
    told("Model", lambda pair: family(pair[0]).name),
    told("Device", lambda pair: pair[0]["device"], folds=True),
    told("Backend", lambda pair: words.backend_name(pair[0])),
    told("Trainer", lambda pair: pair[0]["trainer"]),
    told("Precision", lambda pair: precision(pair[0])),
    told("Adapters", lambda pair: _adapters(pair[1]), folds=True),
    number("trained", "%", _trained, "", "parameters that the optimizer changes, of all"),
    *(Column(name, "ms", True, MEDIANS, value=partial(_both, part)) for part, name in PHASES),
    Column(
        "full / LoRA",
        "",
        True,
        ALLOWED,
        value=lambda pair: ratio(Step.of(pair[0]), Step.of(pair[1]), NO_STEP),
    ),
)
