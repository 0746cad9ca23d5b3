"""The course of whole trainings: losses, gradient norms, step times, throughput and memory.

One line is one training. Colour is the backend, dashes are the model. All of them begin with the
same batches, so curves of one model on two backends should lie on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from siliconprof import words
from siliconprof.render import hover, losses, marks, strokes, style
from siliconprof.render.data import Data
from siliconprof.render.variants import Row
from siliconprof.stats import training_course
from siliconprof.stats.training_course import stretch

MS, MIB = 1e-3, 2.0**20
MOST_POINTS = 400  # of one line in one panel
DASHES = ((1, 0), (4, 1.5), (1, 1), (6, 1, 1, 1))  # of models, the widest first


class Panel(NamedTuple):
    """One quantity over the course of the trainings."""

    title: str
    unit: str
    across: str
    draw: Callable[[Any, Data, Sequence[Row], dict[str, int]], bool]  # whether anything was there


def name(row: Row) -> str:
    """`lm-wide · torch-cpu`."""
    return f"{row['workload']} · {words.backend_name(row)}"


def draw(data: Data, points: Sequence[Row], narrow: bool) -> Any:
    """Panels of what was recorded: losses, norms, times, tokens, memory."""
    width = style.width_in(narrow)
    looks = {
        model: index for index, model in enumerate(dict.fromkeys(p["workload"] for p in points))
    }
    entries = [
        (
            style.sample(None, "-", color=style.shade(p["backend"]), dashes=_dash(looks, p)),
            name(p) + losses.remark(column(data, p, "loss").tolist()),
        )
        for p in points
    ]
    if any(unusual(data, point) for point in points):
        entries.append(
            (
                style.sample(
                    "o", color=style.INK, markersize=4, markerfacecolor="none", markeredgewidth=0.8
                ),
                "step of unusual length",
            )
        )
    shown = [panel for panel in PANELS if _has(panel, data, points, looks)]
    columns = 1 if narrow or len(shown) == 1 else 2
    rows = max(1, -(-len(shown) // columns))
    top = style.legend_height(entries, width) + 0.06
    left, head, foot, high, gap = 0.5, 0.28, 0.42, 1.45, 0.3
    panel_in = (width - gap * (columns - 1)) / columns
    pitch = head + high + foot
    figure = style.canvas(width, top + rows * pitch)
    style.legend(figure, entries, 0.0)
    for index, panel in enumerate(shown):
        row, place = divmod(index, columns)
        x, y = place * (panel_in + gap), top + row * pitch
        style.write(figure, x, y + 0.15, panel.title, weight="bold", va="center")
        ax = style.axes(figure, x + left, y + head, panel_in - left - 0.08, high)
        panel.draw(ax, data, points, looks)
        ax.set_ylabel(panel.unit, size=style.SMALL_PT)
        ax.set_xlabel(panel.across, size=style.SMALL_PT)
        style.plain_ticks(ax.xaxis, 5)
        ax.grid(axis="y")
    return figure


def _has(panel: Panel, data: Data, points: Sequence[Row], looks: dict[str, int]) -> bool:
    """Whether a panel would show anything; tried on axes that are thrown away."""
    figure = style.canvas(1, 1)
    return panel.draw(style.axes(figure, 0, 0, 1, 1), data, points, looks)


def _dash(looks: dict[str, int], row: Row) -> tuple[float, ...]:
    return DASHES[looks[row["workload"]] % len(DASHES)]


def column(data: Data, point: Row, column_: str) -> np.ndarray:
    """One column of a training's curve by step; empty when there is none."""
    frame = data.traces.curve(point)
    if frame is None or column_ not in frame:
        return np.array([])
    return frame[column_].to_numpy(dtype=float)


def smoothed(values: np.ndarray) -> np.ndarray:
    """The mean over a stretch of steps around each; at both ends over what there is of it."""
    return np.array(training_course.smoothed(values.tolist()))


def smoothing_note(data: Data, points: Sequence[Row]) -> str:
    """A note on the strong lines where they are smoothed; empty where none is."""
    longest = max((len(column(data, point, "loss")) for point in points), default=0)
    if stretch(longest) == 1:
        return ""
    return f" Strong lines are means over {stretch(longest)} steps, pale ones the single steps."


def _training_text(point: Row) -> str:
    return f"{name(point)} {point['precision']}"


def _course(column_: str, unit: str = "", log: bool = False, scale: float = 1.0) -> Any:
    """A panel's drawing of one column of the curves: single steps pale, their means strong."""

    def draw_(ax: Any, data: Data, points: Sequence[Row], looks: dict[str, int]) -> bool:
        finite_values: list[np.ndarray] = []
        for pale in (True, False):
            for point in points:
                values = column(data, point, column_) / scale
                if not np.isfinite(values).any():
                    continue
                if pale and stretch(len(values)) == 1:
                    continue
                shown = values if pale else smoothed(values)
                xs, ys = _thinned(shown)
                line = ax.plot(
                    xs,
                    ys,
                    color=style.shade(point["backend"], 25 if pale else 100),
                    linewidth=0.5 if pale else 1.1,
                    dashes=(1, 0) if pale else _dash(looks, point),
                )
                if not pale and losses.divergence(values.tolist()):  # a loss or a norm
                    ax.set_xlim(0, max(ax.get_xlim()[1], len(values)))
                    line += strokes.end_cross(ax, values.tolist(), style.shade(point["backend"]))
                finite = shown[np.isfinite(shown)]
                ends = " to ".join(words.significant(float(finite[i]), 4) for i in (0, -1))
                marks.tag(line, point, "" if pale else f"{_training_text(point)}: {ends}{unit}")
                finite_values.append(values[np.isfinite(values)])
        if not finite_values:
            return False
        together = np.concatenate(finite_values)
        _scale(ax, together, log)
        return True

    return draw_


def _thinned(values: np.ndarray) -> tuple[list[float], list[float]]:
    """Steps counted from 1 and their finite values, at most about MOST_POINTS."""
    places = np.flatnonzero(np.isfinite(values))
    return strokes.thin((places + 1).tolist(), values[places].tolist(), MOST_POINTS)


def _scale(ax: Any, values: np.ndarray, log: bool) -> None:
    low, high = float(values.min()), float(values.max())
    if log and low > 0:
        ax.set_yscale("log")
        ax.set_ylim(low / 1.15, high * 1.15)
        style.log_ticks(ax.yaxis, low / 1.15, high * 1.15)
        if high / low < 4:
            ax.yaxis.set_major_locator(style.MaxNLocator(4))
            ax.yaxis.set_major_formatter(style.FuncFormatter(lambda v, _: f"{v:g}"))
        return
    style.linear_scale(ax, values)


def _evaluations(ax: Any, data: Data, points: Sequence[Row], looks: dict[str, int]) -> bool:
    all_losses = []
    for point in points:
        frame = data.traces.evaluated(point)
        if frame is None or not frame["loss"].notna().any():
            continue
        finite = frame[frame["loss"].notna()]
        ink = style.shade(point["backend"])
        losses = finite["loss"].to_numpy(dtype=float)
        line = ax.plot(
            finite["step"].tolist(),
            losses.tolist(),
            "-o",
            color=ink,
            markersize=2.4,
            linewidth=1.1,
            dashes=_dash(looks, point),
        )
        marks.tag(
            line,
            point,
            f"{_training_text(point)}: evaluation loss "
            f"{words.significant(float(losses[-1]), 4)} nat after step "
            f"{int(finite['step'].iloc[-1])}",
        )
        all_losses.append(losses)
    if all_losses:
        _scale(ax, np.concatenate(all_losses), False)
    return bool(all_losses)


def unusual(data: Data, point: Row) -> list[int]:
    """The steps of unusual length, counted from 0."""
    frame = data.traces.curve(point)
    if frame is None or "unusual" not in frame:
        return []
    is_unusual = frame["unusual"].astype(str).isin(("True", "1", "1.0"))
    return np.flatnonzero(is_unusual.to_numpy()).tolist()


def _step_times(ax: Any, data: Data, points: Sequence[Row], looks: dict[str, int]) -> bool:
    """Every step as a dot, from zero; those of unusual length ringed."""
    highest = 0.0
    for point in points:
        values = column(data, point, "step_s") / MS
        xs, ys = _thinned(values)
        if not xs:
            continue
        filled = looks[point["workload"]] == 0
        drawn = strokes.dots(
            ax, xs, ys, 1.8, color=style.shade(point["backend"], 100 if filled else 45)
        )
        marks.tag(
            drawn, point, f"{_training_text(point)}: step {hover.quartiles(point, 'unsplit_step')}"
        )
        marked = unusual(data, point)
        rung = [(step + 1, float(values[step])) for step in marked]
        rings = ax.plot(
            [x for x, _ in rung],
            [y for _, y in rung],
            "o",
            markersize=4,
            color=style.INK,
            markerfacecolor="none",
            markeredgewidth=0.7,
        )
        marks.tag(rings, point, f"{_training_text(point)}: steps of unusual length")
        highest = max(highest, max(ys))
    if highest:
        ax.set_ylim(0, highest * 1.08)
        style.plain_ticks(ax.yaxis, 5)
    return bool(highest)


def _sampled(column_: str) -> Any:
    """A panel's drawing of a probe over time."""

    def draw_(ax: Any, data: Data, points: Sequence[Row], looks: dict[str, int]) -> bool:
        highest = end = 0.0
        for point in points:
            frame = data.traces.sampled(point)
            if frame is None or column_ not in frame or frame[column_].notna().sum() < 2:
                continue
            samples = frame[frame[column_].notna()]
            values = (samples[column_] / MIB).tolist()
            xs, ys = strokes.thin(samples["t_s"].tolist(), values, MOST_POINTS)
            line = ax.plot(xs, ys, color=style.shade(point["backend"]), dashes=_dash(looks, point))
            marks.tag(line, point, f"{_training_text(point)}: " + hover.of_several(values, "MiB"))
            highest, end = max(highest, max(ys)), max(end, xs[-1])
        if highest:
            ax.set_ylim(0, highest * 1.06)
            ax.set_xlim(0, end or 1)
            style.plain_ticks(ax.yaxis, 5)
        return bool(highest)

    return draw_


STEP, TIME = "training step", "time since the cell began / s"
PANELS = (
    Panel("Training loss", "cross-entropy / nat", STEP, _course("loss", " nat")),
    Panel("Evaluation loss, held-out data", "cross-entropy / nat", STEP, _evaluations),
    Panel("Gradient norm before clipping", "", STEP, _course("gradient_norm", log=True)),
    Panel("Step time", "ms", STEP, _step_times),
    Panel(
        "Throughput",
        "thousand tokens / s",
        STEP,
        _course("tokens_per_s", " thousand tokens/s", scale=1e3),
    ),
    Panel("Resident memory", "MiB", TIME, _sampled("rss_bytes")),
    Panel("Device memory", "MiB", TIME, _sampled("device_memory_bytes")),
)
