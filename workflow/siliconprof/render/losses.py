"""Losses on top of each other: do the frameworks compute the same training?

Only losses of equal data (by checksum), seed, weights and work are ever held against each other;
what an offloaded training computes is held against the plain one, on a CPU too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from siliconprof import words
from siliconprof.render import hover, marks, strokes, style
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.variants import (
    PRECISION_ORDER,
    WORK,
    Row,
    as_slug,
    family,
    label,
    variant,
    work_apart,
)

LINES_PER_FIGURE = 20
# What losses depend on and the time of a step does not, with the words for it.
SETTINGS = {"learning_rate": "learning rate", "lora_alpha": "LoRA alpha"}


def loss_groups(data: Data) -> list[list[Row]]:
    """Training points that must give equal losses: same data, seed, weights, work, settings."""
    groups: dict[tuple, list[Row]] = {}
    for point in data.training():
        if point["data_sha256"] is None or not point["training_steps"]:
            continue
        same = tuple(point.get(name) for name in (*WORK, *SETTINGS))
        groups.setdefault(same, []).append(point)
    return [sorted(group, key=_baseline_first) for group in groups.values()]


def _baseline_first(point: Row) -> tuple:
    """Plain torch in fp32 is what the others are held against."""
    ranked = point["precision"] in PRECISION_ORDER
    return (
        PRECISION_ORDER.index(point["precision"]) if ranked else len(PRECISION_ORDER),
        not point["backend"].startswith("torch"),
        point["trainer"] != "plain",
        variant(point),
        point["source"] != "this host",
        point["host"],
        point["device"],
        point["backend"],
    )


def relative_differences(data: Data, point: Row, baseline: Row) -> np.ndarray:
    """|loss / baseline - 1| at each step that both have taken."""
    ours = np.array(data.traces.series(point, "loss"), dtype=float)
    theirs = np.array(data.traces.series(baseline, "loss"), dtype=float)
    n = min(len(ours), len(theirs))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(ours[:n] == theirs[:n], 0.0, np.abs(ours[:n] / theirs[:n] - 1))


def diverged_at(values: Sequence[float | None]) -> int | None:
    """The first step, counted from 1, whose loss was NaN or infinite; None where none was.

    A record has neither, so that its tables miss such a loss.
    """
    finite = np.isfinite(np.array(values, dtype=float))
    return None if finite.all() else int(finite.argmin()) + 1


def divergence(values: Sequence[float | None]) -> str:
    """`diverged: NaN or infinite at step 13`; empty where every loss is finite."""
    step = diverged_at(values)
    return "" if step is None else f"diverged: NaN or infinite at step {step}"


def remark(values: Sequence[float | None]) -> str:
    """` (diverged at step 13)`, after the name of a line; empty where every loss is finite."""
    step = diverged_at(values)
    return "" if step is None else f" (diverged at step {step})"


def add(data: Data, book: Book, prefix: str = "") -> None:
    """Losses by step, and how far each is from the baseline; one figure a device."""
    groups = loss_groups(data)
    for group in groups:
        kind, baseline = family(group[0]), group[0]
        sha = baseline["data_sha256"][:12]
        for device in dict.fromkeys(point["device"] for point in group):
            others = [p for p in group[1:] if p["device"] == device]
            where = "" if baseline["device"] == device else f" on {data.device_name(baseline)}"
            for start in range(0, len(others), LINES_PER_FIGURE):
                part = others[start : start + LINES_PER_FIGURE]
                apart = work_apart(baseline) + _settings_apart(baseline, groups)
                slug = kind.slug + as_slug(apart)
                name = f"{prefix}loss-{slug}-{device}-{sha}"
                book.figure(
                    f"{name}-{start // LINES_PER_FIGURE + 1}" if start else name,
                    "losses",
                    partial(draw, data, [baseline, *part]),
                    family=f"{kind.label}{apart}, {data.device_name(part[0])}",
                    baseline=label(baseline) + where,
                    sha=sha,
                    dataset=baseline["dataset"],
                )


def _settings_apart(baseline: Row, groups: Sequence[Sequence[Row]]) -> str:
    """`, learning rate 0.0003` where groups of one family differ in it; else empty."""
    kind = (family(baseline), work_apart(baseline))
    alike = [group[0] for group in groups if (family(group[0]), work_apart(group[0])) == kind]
    return "".join(
        f", {phrase} {baseline[name]:g}"
        for name, phrase in SETTINGS.items()
        if baseline.get(name) is not None and len({row.get(name) for row in alike}) > 1
    )


def draw(data: Data, group: Sequence[Row], narrow: bool) -> Any:
    """Left (above): the losses, nearly one line; right (below): relative differences."""
    width = style.width_in(narrow)
    baseline, others = group[0], group[1:]
    series = [relative_differences(data, point, baseline) for point in others]
    left, foot, head, gap = 0.46, 0.4, 0.28, 0.56
    labels = [
        label(point) + _remark(data, point, values)
        for point, values in zip(others, series, strict=True)
    ]
    inks = [(style.colour(p), style.dashes(p)) for p in others]
    entries: list[style.Entry] = []
    right = 0.1
    if narrow:  # too small for names at the ends of lines
        entries = [
            (style.sample(None, "-", color=ink, dashes=dash), name)
            for name, (ink, dash) in zip(labels, inks, strict=True)
        ]
    else:
        right = max(map(style.text_in, labels)) * style.SMALL_PT / style.TEXT_PT + 0.36
    below = style.legend_height(entries, width) if entries else 0.0
    height = max(1.7, 0.125 * len(others))
    first = width - left - 0.1 if narrow else (width - left - gap - right) * 0.42
    second = width - left - right if narrow else (width - left - gap - right) * 0.58
    figure = style.canvas(width, (head + height + foot) * (2 if narrow else 1) + below)
    style.write(figure, 0, 0.14, "Loss", weight="bold", va="center")
    ax = style.axes(figure, left, head, first, height)
    for index, point in enumerate(group):
        values = data.traces.series(point, "loss")
        line = ax.plot(
            range(1, len(values) + 1),
            values,
            color=style.colour(point),
            dashes=style.dashes(point),
            linewidth=0.8 + min(0.4, 2 / len(group)) * (len(group) - index - 1),
            solid_capstyle="round",
        )
        course = " to ".join(words.significant(v, 4) for v in (*values[:1], *values[-1:]))
        text = f"{hover.training(point)}: loss {course} nat in {words.count(len(values), 'step')}"
        if divergence(values):
            text += f", {divergence(values)}"
            line += strokes.end_cross(ax, values, style.colour(point))
        marks.tag(line, point, text)
    _show_end(ax, [data.traces.series(point, "loss") for point in group])
    ax.set_xlabel("training step", size=style.SMALL_PT)
    ax.set_ylabel("cross-entropy / nat", size=style.SMALL_PT)
    style.plain_ticks(ax.xaxis, 4)
    style.linear_scale(ax, [v for point in group for v in data.traces.series(point, "loss")])
    ax.grid(axis="y")
    top, x = (head + height + foot, left) if narrow else (0.0, left + first + gap)
    style.write(
        figure,
        0 if narrow else x - 0.4,
        top + 0.14,
        "Relative difference",
        weight="bold",
        va="center",
    )
    ax = style.axes(figure, x, top + head, second, height)
    ends = _differences(ax, data, others, series)
    if entries:
        style.legend(figure, entries, top + head + height + foot)
    else:
        drawn = strokes.end_labels(ax, ends, labels, inks, height, second, log=True)
        for of_line, point in zip(drawn, others, strict=True):
            marks.tag(of_line, point)
    return figure


def _show_end(ax: Any, series: Sequence[Sequence[float]]) -> None:
    """Give steps without a loss their room, and say it where the baseline has diverged.

    Args:
        series: losses, those of the baseline first.
    """
    steps = [diverged_at(values) for values in series]
    if any(steps):
        ax.set_xlim(1, max(2, *map(len, series)))
    if steps[0]:
        ax.text(
            1,
            0.97,
            f"the baseline\ndiverged at step {steps[0]}",
            transform=ax.transAxes,
            ha="right",
            va="top",
            size=style.SMALL_PT,
            color=style.MUTED,
        )


def _remark(data: Data, point: Row, differences: np.ndarray) -> str:
    """What the name of a line says of it: that it diverged and when, or that it is the baseline's."""
    # Of a baseline that diverged at once there is nothing to say.
    equal = " (equal)" if len(differences) and (differences == 0).all() else ""
    return remark(data.traces.series(point, "loss")) or equal


def _differences(
    ax: Any, data: Data, others: Sequence[Row], series: Sequence[np.ndarray]
) -> list[tuple[float, float]]:
    """Draw lines on a log axis, without steps of exact equality; give the ends of the lines."""
    shown = [np.where(values > 0, values, np.nan) for values in series]
    finite = [values[np.isfinite(values)] for values in shown]
    positive = np.concatenate([values for values in finite if len(values)] or [np.array([])])
    if len(positive):
        low, top = 10 ** np.floor(np.log10(positive.min())), positive.max() * 2
    else:
        low, top = 1e-9, 1e-6
        all_finite = all(np.isfinite(values).all() for values in series)
        ax.text(
            0.5,
            0.5,
            "all losses are equal" if all_finite else "equal where both are finite",
            transform=ax.transAxes,
            ha="center",
            size=style.SMALL_PT,
            color=style.MUTED,
        )
    ax.set_yscale("log")
    ax.set_ylim(low, top)
    longest = max((len(values) for values in series), default=1)
    ax.set_xlim(1, max(longest, 2))
    for point, values in zip(others, shown, strict=True):
        ink, dashes = style.colour(point), style.dashes(point)
        line = ax.plot(range(1, len(values) + 1), values, color=ink, linewidth=1.0, dashes=dashes)
        if divergence(data.traces.series(point, "loss")):
            line += strokes.end_cross(ax, values.tolist(), ink)
        most = words.scientific(float(np.nanmax(values))) if np.isfinite(values).any() else "0"
        marks.tag(line, point, f"{hover.training(point)}: differs by at most {most} of the loss")
    ends: list[tuple[float, float]] = [
        (len(values), float(drawn[-1]) if len(drawn) else low)
        for values, drawn in zip(series, finite, strict=True)
    ]
    ax.set_xlabel("training step", size=style.SMALL_PT)
    style.plain_ticks(ax.xaxis, 4)
    style.log_ticks(ax.yaxis, low, top)
    ax.yaxis.set_major_formatter(
        style.FuncFormatter(lambda v, _: words.scientific(v).replace("1.0 × ", ""))
    )
    ax.grid(axis="y")
    return ends
