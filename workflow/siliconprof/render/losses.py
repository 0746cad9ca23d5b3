"""Losses on top of each other: do the frameworks compute the same training?

Only losses of equal data (by checksum), seed, weights and work are ever held against each other;
what an offloaded training computes is held against the plain one, on a CPU too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from siliconprof import words
from siliconprof.analyse.throughputs import device_of
from siliconprof.render import chart, hover, strokes, style, variants
from siliconprof.render.book import Book, parts
from siliconprof.render.chart import Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.variants import PRECISION_ORDER, WORK, Row, family, label, work_apart

LINES_PER_FIGURE = 20
# What losses depend on and the time of a step does not, with the words for it.
SETTINGS = {"learning_rate": "learning rate", "lora_alpha": "LoRA alpha"}


def loss_groups(data: Data) -> list[list[Row]]:
    """Training points that must give equal losses: same data, seed, weights, work, settings."""
    points = [p for p in data.training() if p["data_sha256"] is not None and p["training_steps"]]
    alike = grouped(points, lambda point: tuple(map(point.get, (*WORK, *SETTINGS))))
    return [sorted(group, key=_baseline_first) for group in alike.values()]


def _baseline_first(point: Row) -> tuple:
    """Plain torch in fp32 is what the others are held against."""
    ranked = point["precision"] in PRECISION_ORDER
    return (
        PRECISION_ORDER.index(point["precision"]) if ranked else len(PRECISION_ORDER),
        not point["backend"].startswith("torch"),
        point["trainer"] != "plain",
        variants.variant(point),
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


def add(data: Data, book: Book) -> None:
    """Losses by step, and how far each is from the baseline; one figure a device."""
    groups = loss_groups(data)
    for group in groups:
        baseline = group[0]
        kind, sha = family(baseline), baseline["data_sha256"][:12]
        apart = work_apart(baseline) + _settings_apart(baseline, groups)
        for device, rows in grouped(group, device_of).items():
            others = [row for row in rows if row is not baseline]
            where = "" if device_of(baseline) == device else f" on {data.place(baseline)}"
            name = f"loss-{kind.slug}{variants.as_slug(apart)}-{data.slug_of(rows[0])}-{sha}"
            for figure, part in parts(name, others, LINES_PER_FIGURE):
                book.figure(
                    figure,
                    "losses",
                    partial(draw, data, [baseline, *part]),
                    family=f"{kind.label}{apart}, {data.place(part[0])}",
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


def draw(data: Data, group: Sequence[Row]) -> Any:
    """Left: the losses, nearly one line; right: relative differences."""
    baseline, *others = group
    differences = [relative_differences(data, point, baseline) for point in others]
    names = [
        label(point) + _remark(data, point, values)
        for point, values in zip(others, differences, strict=True)
    ]
    apart = _apart(data, others, differences, names)
    return Chart([_losses(data, group), apart], columns=2).figure()


def _look(point: Row) -> dict[str, Any]:
    return {"color": style.colour(point), "dashes": style.dashes(point)}


def _losses(data: Data, group: Sequence[Row]) -> Panel:
    """A line a training, the first the thickest; what diverged ends in a cross."""
    shown: list[Mark] = []
    series = [data.traces.series(point, "loss") for point in group]
    for index, (point, values) in enumerate(zip(group, series, strict=True)):
        width = 0.8 + min(0.4, 2 / len(group)) * (len(group) - index - 1)
        look = {"linewidth": width, "solid_capstyle": "round", **_look(point)}
        course = " to ".join(words.significant(v, 4) for v in (*values[:1], *values[-1:]))
        text = f"{hover.training(point)}: loss {course} nat in {words.count(len(values), 'step')}"
        if end := divergence(values):
            text += f", {end}"
            shown += _cross(values, point, text)
        shown.append(chart.line(range(1, len(values) + 1), values, point, text, **look))
    if step := diverged_at(series[0]):
        shown.append(chart.corner(f"the baseline\ndiverged at step {step}", y=0.97))
    longest = max(2, *map(len, series))
    steps = Scale("training step", ends=(1, longest), most=4)
    loss = Scale("cross-entropy / nat")
    return Panel(shown, steps, loss, title="Loss", high=_high(len(group) - 1))


def _high(lines: int) -> float:
    """Inches that the names of so many lines need."""
    return max(1.7, 0.125 * lines)


def _cross(values: Sequence[float], point: Row, text: str) -> list[Mark]:
    """A cross at the last finite value of a training that diverged; steps count from 1."""
    finite = [(step, value) for step, value in enumerate(values, 1) if math.isfinite(value)]
    return [chart.cross(*last, point, text) for last in finite[-1:]]


def _remark(data: Data, point: Row, differences: np.ndarray) -> str:
    """What the name of a line says of it: that it diverged and when, or that it is the baseline's."""
    # Of a baseline that diverged at once there is nothing to say.
    equal = " (equal)" if len(differences) and (differences == 0).all() else ""
    return remark(data.traces.series(point, "loss")) or equal


def _apart(
    data: Data, others: Sequence[Row], differences: Sequence[np.ndarray], names: Sequence[str]
) -> Panel:
    """Lines on a logarithmic scale, without steps of exact equality; on a desk with their names."""
    shown: list[Mark] = []
    above_zero = [np.where(values > 0, values, np.nan) for values in differences]
    for point, values in zip(others, above_zero, strict=True):
        finite = values[np.isfinite(values)]
        most = words.scientific(float(finite.max())) if len(finite) else "0"
        text = f"{hover.training(point)}: differs by at most {most} of the loss"
        ys = values.tolist()
        shown.append(
            chart.line(range(1, len(ys) + 1), ys, point, text, linewidth=1.0, **_look(point))
        )
        if divergence(data.traces.series(point, "loss")):
            shown += _cross(ys, point, text)
    positive = np.concatenate(above_zero)
    positive = positive[np.isfinite(positive)]
    low, high = 1e-9, 1e-6
    if len(positive):
        low, high = 10 ** math.floor(math.log10(positive.min())), positive.max() * 2
    else:
        all_finite = all(np.isfinite(values).all() for values in differences)
        equal = "all losses are equal" if all_finite else "equal where both are finite"
        shown.append(chart.corner(equal, x=0.5, y=0.5, ha="center"))
    ends = [
        strokes.End(len(values), _last(values, low), name, _look(point), point)
        for point, values, name in zip(others, above_zero, names, strict=bool(names))
    ]
    longest = max(2, *map(len, differences))
    return Panel(
        shown,
        Scale("training step", ends=(1, longest), most=4),
        Scale(log=10, ends=(low, high), ticks=chart.powers),
        title="Relative difference",
        high=_high(len(others)),
        side_in=max((style.text_in(n, style.SMALL_PT) + 0.36 for n in names), default=0.0),
        finish=partial(strokes.end_labels, ends) if ends else None,
    )


def _last(values: np.ndarray, otherwise: float) -> float:
    """The last finite value."""
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else otherwise
