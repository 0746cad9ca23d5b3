"""LoRA: the same model trained with adapters on a frozen rest, beside training all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.render import hover, marks, overall, style
from siliconprof.render.blocks import Finding
from siliconprof.render.book import Book
from siliconprof.render.compare import Step, compared, manner, ratio_words
from siliconprof.render.data import Data
from siliconprof.render.tables import Column, Table, Value, missing
from siliconprof.render.training import MS
from siliconprof.render.variants import (
    Row,
    family,
    family_order,
    has_no_speed,
    label,
    precision,
    twins,
    variant,
)

PARTS = (
    ("forward", "forward"),
    ("backward", "backward"),
    ("optimizer", "optimizer"),
    ("unsplit_step", "whole step, unsplit"),
)
PAIR_IN = 0.38
PAIRS_PER_FIGURE = 16


def pairs(data: Data) -> Iterator[tuple[Row, Row]]:
    """(training of every parameter, training of adapters): equal but for what is trained."""
    points = sorted(data.training(), key=family_order)
    like = twins(points, "n_trainable_parameters")
    for full in points:
        if not full.get("lora_rank") and not has_no_speed(full):
            for adapted in like(full):
                if adapted.get("lora_rank") and not has_no_speed(adapted):
                    yield full, adapted


def finding(data: Data) -> Finding | None:
    """What adapters on a frozen rest save over the training of every parameter."""
    comparisons: list[overall.Comparison] = []
    for full_row, adapted_row in pairs(data):
        full, adapted = Step.of(full_row), Step.of(adapted_row)
        if not full or not adapted:
            continue
        adapters = _adapters(adapted_row)
        line = compared(
            f"{_place(full_row)}, {adapters}: {_comparison_text(full, adapted)}", full, adapted
        )
        shared = f"{family(full_row).name}, {words.backend_name(full_row)}, {manner(full_row)}"
        names = ("training every parameter", adapters)
        comparisons.append(overall.Comparison(full, adapted, names, shared, line))
    return overall.finding("LoRA", [("", comparisons)], "lora")


def _comparison_text(full: Step, adapted: Step) -> str:
    if full.overlaps(adapted):
        return "no difference beyond noise in the step"
    if adapted.middle < full.middle:
        text = f"training every parameter takes {ratio_words(full, adapted)} as long"
    else:
        text = f"it takes {ratio_words(adapted, full)} as long as training every parameter"
    shares = [
        f"{name} {_change(change)}"
        for part, name in PARTS[:3]
        if (change := _relative(full.row, adapted.row, part)) is not None
    ]
    return f"{text} ({', '.join(shares)})"


def _place(row: Row) -> str:
    return f"{family(row).name} on {words.backend_name(row)} ({manner(row)})"


def _adapters(row: Row) -> str:
    return next(word for word in variant(row) if word.startswith("LoRA"))


def _median(row: Row, part: str) -> float | None:
    return words.number(row.get(f"{part}_median_s"))


def _relative(full: Row, adapted: Row, part: str) -> float | None:
    """Change of a part's median as a share of what it was; None where there is none."""
    before, after = _median(full, part), _median(adapted, part)
    return None if not before or after is None else after / before - 1


def _change(share: float) -> str:
    return f"{'+' if share > 0 else '−'}{words.whole_percent(abs(share))}"


def add(data: Data, book: Book, prefix: str = "") -> None:
    """A figure and a table, where any training was measured both ways."""
    all_pairs = list(pairs(data))
    if not all_pairs:
        if any(row.get("lora_rank") for row in data.training()):
            book.note(
                "LoRA: no training was measured both with adapters and of every parameter, "
                "equal in everything else."
            )
        return
    book.heading("With and without LoRA", anchor=f"{prefix}lora")
    for start in range(0, len(all_pairs), PAIRS_PER_FIGURE):
        part = all_pairs[start : start + PAIRS_PER_FIGURE]
        name = f"{prefix}lora" + (f"-{start // PAIRS_PER_FIGURE + 1}" if start else "")
        book.figure(name, "lora", partial(draw, part))
    book.table(f"{prefix}lora", "lora", table(all_pairs))


def draw(pairs: Sequence[tuple[Row, Row]], narrow: bool) -> Any:
    """One row a pair, one panel a phase: above training all of it, below the adapters alone."""
    width = style.width_in(narrow)
    names = [f"{family(full).name}\n{label(full)}" for full, _ in pairs]
    left = style.labels_in(names, True) + 0.12
    columns = 2 if narrow else 4
    rows = -(-len(PARTS) // columns)
    entries = [
        (style.swatch(style.shade("grey")), "every parameter is trained"),
        (style.swatch(style.shade("grey", 45)), "LoRA: adapters alone, the rest is frozen"),
    ]
    head, title, foot, gap = style.legend_height(entries, width) + 0.05, 0.22, 0.4, 0.14
    height = len(pairs) * PAIR_IN
    figure = style.canvas(width, head + rows * (title + height + foot))
    style.legend(figure, entries, 0.0)
    panel = (width - left - 0.05 - gap * (columns - 1)) / columns
    for index, (part, name) in enumerate(PARTS):
        row, column = divmod(index, columns)
        top = head + row * (title + height + foot)
        x = left + column * (panel + gap)
        style.write(figure, x, top + 0.14, name, weight="bold", va="center", size=style.SMALL_PT)
        ax = style.axes(figure, x, top + title, panel, height)
        _panel(ax, pairs, part, panel)
        ax.set_yticks(range(len(pairs)), names if column == 0 else [])
        marks.tag_labels(ax.yaxis, pairs)
        ax.set_xlabel("ms", size=style.SMALL_PT)
    return figure


def _panel(ax: Any, pairs: Sequence[tuple[Row, Row]], part: str, width: float) -> None:
    longest = max(
        (value for pair in pairs for row in pair if (value := _median(row, part))), default=1.0
    )
    for y, pair in enumerate(pairs):
        for row, offset, step in ((pair[0], -0.19, 100), (pair[1], 0.19, 45)):
            value = _median(row, part)
            if value is None:
                marks.tag(
                    ax.text(
                        0,
                        y + offset,
                        " not timed",
                        va="center",
                        size=style.SMALL_PT,
                        color=style.MUTED,
                        style="italic",
                    ),
                    row,
                )
                continue
            change = _relative(*pair, part) if row is pair[1] else None
            label = words.significant(value / MS) if change is None else _change(change)
            bar = ax.barh(
                y + offset,
                value,
                height=0.34,
                linewidth=0,
                facecolor=style.shade(row["backend"], step),
            )
            marks.tag(bar.patches, row, _hover(row, part, change))
            marks.tag(
                ax.text(
                    value + longest * 0.03, y + offset, label, va="center", size=style.SMALL_PT
                ),
                row,
            )
    room = style.text_in("+000 %", style.SMALL_PT) / width
    ax.set_xlim(0, longest / max(1 - room, 0.4))
    ax.set_ylim(len(pairs) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0, labelsize=style.SMALL_PT, labelcolor=style.INK)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="x")
    style.plain_ticks(ax.xaxis, 3, MS)


def _hover(row: Row, part: str, change: float | None) -> str:
    """A bar's value, and the change that adapters make where it is theirs."""
    timed = hover.median if part == "unsplit_step" else hover.quartiles
    text = f"{hover.training(row)}: {dict(PARTS)[part]} {timed(row, part)}"
    return text if change is None else f"{text}, {_change(change)}"


def table(pairs: Sequence[tuple[Row, Row]]) -> Table:
    """Both medians and the change, phase by phase; a whole step's change with its interval."""
    result = Table(
        [
            Column("Model"),
            Column("Device", folds=True),
            Column("Backend"),
            Column("Trainer"),
            Column("Precision"),
            Column("Adapters", folds=True),
            Column("trained", "%", True, "parameters that the optimizer changes, of all"),
            *(
                Column(name, "ms", True, "every parameter trained → LoRA; medians")
                for _, name in PARTS
            ),
            Column("full / LoRA", "", True, "whole step; what both 95 % intervals allow below"),
        ]
    )
    for full, adapted in pairs:
        share = adapted["n_trainable_parameters"] / full["n_parameters"]
        result.add(
            family(full).name,
            full["device"],
            words.backend_name(full),
            full["trainer"],
            precision(full),
            _adapters(adapted),
            Value(words.significant(100 * share), 100 * share),
            *(_both(full, adapted, part) for part, _ in PARTS),
            _ratio(full, adapted),
            of=(full, adapted),
        )
    return result


def _both(full: Row, adapted: Row, part: str) -> Value:
    before, after = _median(full, part), _median(adapted, part)
    if before is None or after is None:
        return missing("one of the two marks no such phase")
    change = _relative(full, adapted, part)
    text = f"{words.significant(before / MS)} → {words.significant(after / MS)}"
    return Value(text, below="" if change is None else _change(change))


def _ratio(full: Row, adapted: Row) -> Value:
    slow, fast = Step.of(full), Step.of(adapted)
    if not slow or not fast:
        return missing("one of the two has no unsplit step")
    ratio = slow.middle / fast.middle
    low, high = slow.low / fast.high, slow.high / fast.low
    return Value(
        words.significant(ratio), ratio, f"{words.significant(low)}–{words.significant(high)}"
    )
