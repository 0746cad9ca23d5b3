"""The course of whole trainings: losses, gradient norms, step times, throughput and memory.

One line is one training. Colour is the backend, dashes are the model. All of them begin with the
same batches, so curves of one model on two backends should lie on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from siliconprof import words
from siliconprof.render import chart, hover, losses, strokes, style
from siliconprof.render.chart import RING, Chart, Mark, Panel, Scale
from siliconprof.render.data import Data
from siliconprof.render.variants import Row
from siliconprof.stats import training_course
from siliconprof.stats.training_course import stretch

MS, MIB = 1e-3, 2.0**20
MOST_POINTS = 400  # of one line in one panel
DASHES = ((1, 0), (4, 1.5), (1, 1), (6, 1, 1, 1))  # of models, the widest first
STEP, TIME = "training step", "time since the cell began / s"


def name(row: Row) -> str:
    """`lm-wide · torch-cpu`."""
    return f"{row['workload']} · {words.backend_name(row)}"


class Training(NamedTuple):
    """One training as it is drawn: the model's place among all."""

    data: Data
    row: Row
    model: int

    @property
    def dashes(self) -> tuple[float, ...]:
        """Those of the model."""
        return DASHES[self.model % len(DASHES)]

    def ink(self, step: int = 100) -> str:
        """The colour of the backend."""
        return style.shade(self.row["backend"], step)

    def hover(self, text: str) -> str:
        """What stands beside the pointer."""
        return f"{name(self.row)} {self.row['precision']}: {text}"


def draw(data: Data, points: Sequence[Row], narrow: bool) -> Any:
    """Panels of what was recorded: losses, norms, times, tokens, memory."""
    models = list(dict.fromkeys(point["workload"] for point in points))
    trainings = [Training(data, point, models.index(point["workload"])) for point in points]
    legend: list[style.Entry] = [
        (
            style.sample(None, "-", color=one.ink(), dashes=one.dashes),
            name(one.row) + losses.remark(column(data, one.row, "loss").tolist()),
        )
        for one in trainings
    ]
    if any(unusual(data, point) for point in points):
        ring = style.sample("o", color=style.INK, markersize=4, **RING)
        legend.append((ring, "step of unusual length"))
    panels = [
        Panel(shown, Scale(across, zero=True), scale, title=title)
        for title, across, scale, marks in PANELS
        if (shown := [mark for one in trainings for mark in marks(one)])
    ]
    return Chart(panels, legend, (2, 1)).figure(narrow)


def column(data: Data, point: Row, column_: str) -> np.ndarray:
    """One column of a training's curve by step; empty when there is none."""
    frame = data.traces.curve(point)
    if frame is None or column_ not in frame:
        return np.array([])
    return frame[column_].to_numpy(dtype=float)


def evaluations(data: Data, point: Row) -> list[dict[Any, Any]]:
    """The evaluations of a training that came to a finite loss, in order."""
    frame = data.traces.evaluated(point)
    return [] if frame is None else frame[frame["loss"].notna()].to_dict("records")


def smoothing_note(data: Data, points: Sequence[Row]) -> str:
    """A note on the strong lines where they are smoothed; empty where none is."""
    longest = max((len(column(data, point, "loss")) for point in points), default=0)
    if stretch(longest) == 1:
        return ""
    return f" Strong lines are means over {stretch(longest)} steps, pale ones the single steps."


def unusual(data: Data, point: Row) -> list[int]:
    """The steps of unusual length, counted from 0."""
    frame = data.traces.curve(point)
    if frame is None or "unusual" not in frame:
        return []
    return np.flatnonzero(frame["unusual"].fillna(False).to_numpy(bool)).tolist()


def _thinned(values: np.ndarray) -> tuple[list[float], list[float]]:
    """Steps counted from 1 and their finite values, at most about MOST_POINTS."""
    places = np.flatnonzero(np.isfinite(values))
    return strokes.thin((places + 1).tolist(), values[places].tolist(), MOST_POINTS)


# -- marks of one training ---------------------------------------------------------------------

Marks = Callable[[Training], Iterator[Mark]]


def _course(column_: str, unit: str = "", scale: float = 1.0) -> Marks:
    """One column of the curves: single steps pale, their means strong, a cross where it diverged."""

    def marks(one: Training) -> Iterator[Mark]:
        values = column(one.data, one.row, column_) / scale
        if not np.isfinite(values).any():
            return
        if stretch(len(values)) > 1:
            yield chart.line(*_thinned(values), one.row, color=one.ink(25), linewidth=0.5, zorder=1)
        means = np.array(training_course.smoothed(values.tolist()))
        finite = means[np.isfinite(means)]
        ends = " to ".join(words.significant(float(finite[i]), 4) for i in (0, -1))
        text = one.hover(f"{ends}{unit}")
        xs, ys = _thinned(means)
        yield chart.line(xs, ys, one.row, text, color=one.ink(), linewidth=1.1, dashes=one.dashes)
        if losses.divergence(values.tolist()):  # a loss or a norm
            last = int(np.flatnonzero(np.isfinite(values))[-1])
            look = {"color": one.ink(), "clip_on": False}
            yield chart.dot(last + 1, float(values[last]), one.row, text, "x", 5, **look)

    return marks


def _evaluations(one: Training) -> Iterator[Mark]:
    done = evaluations(one.data, one.row)
    if not done:
        return
    steps, ends = [each["step"] for each in done], [float(each["loss"]) for each in done]
    text = f"evaluation loss {words.significant(ends[-1], 4)} nat after step {int(steps[-1])}"
    look = {"marker": "o", "markersize": 2.4, "linewidth": 1.1, "dashes": one.dashes}
    yield chart.line(steps, ends, one.row, one.hover(text), color=one.ink(), **look)


def _step_times(one: Training) -> Iterator[Mark]:
    """Every step as a dot; those of unusual length ringed."""
    values = column(one.data, one.row, "step_s") / MS
    xs, ys = _thinned(values)
    if not xs:
        return
    text = one.hover(f"step {hover.quartiles(one.row, 'unsplit_step')}")
    yield chart.dots(xs, ys, one.row, text, color=one.ink(45 if one.model else 100))
    ringed = unusual(one.data, one.row)
    text = one.hover("steps of unusual length")
    look = {"linewidth": 0, "marker": "o", "markersize": 4, "color": style.INK, **RING}
    yield chart.line([i + 1 for i in ringed], values[ringed].tolist(), one.row, text, **look)


def _sampled(column_: str) -> Marks:
    """A probe over time, in MiB."""

    def marks(one: Training) -> Iterator[Mark]:
        frame = one.data.traces.sampled(one.row)
        if frame is None or column_ not in frame or frame[column_].notna().sum() < 2:
            return
        samples = frame[frame[column_].notna()]
        values = (samples[column_] / MIB).tolist()
        xs, ys = strokes.thin(samples["t_s"].tolist(), values, MOST_POINTS)
        text = one.hover(hover.of_several(values, "MiB"))
        yield chart.line(xs, ys, one.row, text, color=one.ink(), linewidth=1.1, dashes=one.dashes)

    return marks


LOSS, MEMORY = Scale("cross-entropy / nat"), Scale("MiB", zero=True)
TOKENS, NORM, TIMES = Scale("thousand tokens / s"), Scale(log=10), Scale("ms", zero=True)
PANELS: tuple[tuple[str, str, Scale, Marks], ...] = (
    ("Training loss", STEP, LOSS, _course("loss", " nat")),
    ("Evaluation loss, held-out data", STEP, LOSS, _evaluations),
    ("Gradient norm before clipping", STEP, NORM, _course("gradient_norm")),
    ("Step time", STEP, TIMES, _step_times),
    ("Throughput", STEP, TOKENS, _course("tokens_per_s", " thousand tokens/s", 1e3)),
    ("Resident memory", TIME, MEMORY, _sampled("rss_bytes")),
    ("Device memory", TIME, MEMORY, _sampled("device_memory_bytes")),
)
