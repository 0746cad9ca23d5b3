"""Wide against deep: two models of equal size and compute, trained on the same data.

Of the course of a training losses, gradient norms, step times, throughput and memory are drawn. One
line is one training: colour is the backend, dashes are the model. All of them begin with the same
batches, so curves of one model on two backends should lie on each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from siliconprof import words
from siliconprof.analyse.throughputs import device_of
from siliconprof.render import chart, hover, losses, strokes, style, tables
from siliconprof.render.book import Book, parts
from siliconprof.render.chart import RING, Chart, Mark, Panel, Scale
from siliconprof.render.data import Data, grouped
from siliconprof.render.grid_points import MODEL, NO_FORMULA
from siliconprof.render.tables import Column, Table, Value, count, median, missing, number, told
from siliconprof.render.variants import Row
from siliconprof.stats import training_course
from siliconprof.stats.training_course import ELEVATED, aspect, pairs, stretch

TRAINER = "training_run"
LINES_PER_FIGURE = 8
MS, MIB = 1e-3, 2.0**20
MOST_POINTS = 400  # of one line in one panel
DASHES = ((1, 0), (4, 1.5), (1, 1), (6, 1, 1, 1))  # of models, the widest first
STEP, TIME = "training step", "time since the cell began / s"


def trainings(data: Data) -> list[Row]:
    """Whole trainings that were measured, wide models first."""
    rows = data.whole_trainings(TRAINER)
    devices = list(dict.fromkeys(device_of(row) for row in rows))

    def place(row: Row) -> tuple[int, float]:
        return devices.index(device_of(row)), -aspect(row)

    return sorted(rows, key=place)


def deeper(points: Sequence[Row]) -> str:
    """How many times the wide model's layers the deep one has in every pair; rounded down."""
    ratios = [float(deep["n_layer"]) / float(wide["n_layer"]) for wide, deep in pairs(points)]
    return f"at least {math.floor(10 * min(ratios)) / 10:g}" if ratios else "several"


def add(data: Data, book: Book) -> None:
    """Both models, the course of their trainings, and what came out."""
    book.heading("Wide against deep", anchor="wide-deep")
    points = trainings(data)
    failed = [c for c in data.cells if c["trainer"] == TRAINER and c["status"] != "ok"]
    if not points and not failed:
        book.note("No whole training of a model is part of these results.")
        return
    for cell in failed:
        book.note(
            f"{cell['workload']} on {words.backend_name(cell)}, {cell['precision']}: "
            f"{cell['status']}: {cell['reason']}."
        )
    if not points:
        return
    book.table("wide-deep-models", "wide-deep-models", models_table(points), deeper=deeper(points))

    def place(point: Row) -> tuple:
        return device_of(point), point["precision"]

    for (_, precision), group in grouped(points, place).items():
        figures = parts(f"wide-deep-{data.slug_of(group[0])}-{precision}", group, LINES_PER_FIGURE)
        for name, part in figures:
            book.figure(
                name,
                "wide-deep",
                partial(draw, data, part),
                device=data.place(part[0]),
                precision=precision,
                smoothed=smoothing_note(data, part),
            )
    book.table("wide-deep-results", "wide-deep-results", results_table(data, points))


# -- figure ------------------------------------------------------------------------------------


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

    def line(self, xs: Sequence[float], ys: Sequence[float], text: str, **look: Any) -> Mark:
        """A line in its look."""
        look = {"color": self.ink(), "linewidth": 1.1, "dashes": self.dashes, **look}
        return chart.line(xs, ys, self.row, text, **look)


def draw(data: Data, points: Sequence[Row]) -> Any:
    """Panels of what was recorded: losses, norms, times, tokens, memory."""
    models = list(dict.fromkeys(point["workload"] for point in points))
    trainings = [Training(data, point, models.index(point["workload"])) for point in points]
    legend: list[style.Entry] = [
        (
            style.sample(None, "-", color=one.ink(), dashes=one.dashes),
            name(one.row) + losses.remark(data.traces.curve_values(one.row, "loss").tolist()),
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
    return Chart(panels, legend, 2).figure()


def evaluations(data: Data, point: Row) -> list[dict[Any, Any]]:
    """The evaluations of a training that came to a finite loss, in order."""
    frame = data.traces.evaluated(point)
    return [] if frame is None else frame[frame["loss"].notna()].to_dict("records")


def smoothing_note(data: Data, points: Sequence[Row]) -> str:
    """A note on the strong lines where they are smoothed; empty where none is."""
    longest = max((len(data.traces.curve_values(point, "loss")) for point in points), default=0)
    if stretch(longest) == 1:
        return ""
    return f" Strong lines are means over {stretch(longest)} steps, pale ones the single steps."


def unusual(data: Data, point: Row) -> list[int]:
    """The steps of unusual length, counted from 0."""
    frame = data.traces.curve(point)
    if frame is None or "unusual" not in frame:
        return []
    return np.flatnonzero(frame["unusual"].fillna(False).to_numpy(bool)).tolist()


# -- marks of one training ---------------------------------------------------------------------

Marks = Callable[[Training], Iterator[Mark]]


def _course(column: str, unit: str = "", scale: float = 1.0) -> Marks:
    """One column of the curves: single steps pale, their means strong, a cross where it diverged."""

    def marks(one: Training) -> Iterator[Mark]:
        values = one.data.traces.curve_values(one.row, column) / scale
        if not np.isfinite(values).any():
            return
        if stretch(len(values)) > 1:
            single = strokes.thin_course(values, MOST_POINTS)
            yield chart.line(*single, one.row, color=one.ink(25), linewidth=0.5, zorder=1)
        means = np.array(training_course.smoothed(values.tolist()))
        finite = means[np.isfinite(means)]
        ends = " to ".join(words.significant(float(finite[i]), 4) for i in (0, -1))
        text = one.hover(f"{ends}{unit}")
        yield one.line(*strokes.thin_course(means, MOST_POINTS), text)
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
    yield one.line(steps, ends, one.hover(text), marker="o", markersize=2.4)


def _step_times(one: Training) -> Iterator[Mark]:
    """Every step as a dot; those of unusual length ringed."""
    values = one.data.traces.curve_values(one.row, "step_s") / MS
    xs, ys = strokes.thin_course(values, MOST_POINTS)
    if not xs:
        return
    text = one.hover(f"step {hover.quartiles(one.row, 'unsplit_step')}")
    yield chart.dots(xs, ys, one.row, text, color=one.ink(45 if one.model else 100))
    ringed = unusual(one.data, one.row)
    text = one.hover("steps of unusual length")
    look = {"linewidth": 0, "marker": "o", "markersize": 4, "color": style.INK, **RING}
    yield chart.line([i + 1 for i in ringed], values[ringed].tolist(), one.row, text, **look)


def _sampled(column: str) -> Marks:
    """A probe over time, in MiB."""

    def marks(one: Training) -> Iterator[Mark]:
        seconds, sizes = one.data.traces.sampled_values(one.row, column)
        if len(sizes) < 2:
            return
        values = (sizes / MIB).tolist()
        xs, ys = strokes.thin(seconds.tolist(), values, MOST_POINTS)
        yield one.line(xs, ys, one.hover(hover.of_several(values, "MiB")))

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


# -- tables ------------------------------------------------------------------------------------

UNTIMED, UNKNOWN = "no step was timed", "not recorded"
UNCOUNTED = "nothing counts it on this backend"
FINAL = "training, mean over the last tenth of the steps"
BEST = "after the last step; the best and its step below"
PERPLEXITY = "exp of the evaluation loss after the last step"
ELEVATED_UNTIL = (
    "the last one whose gradient norm, as a running median, is over "
    f"{ELEVATED:g} times its median over the second half"
)
SLOWEST = "× faster than the slowest of the same model"
UNUSUAL = "far longer than the run's own spread explains"
PEAK, RATIO = "of device memory; predicted over measured below", "predicted / measured"
NO_EVALUATION = "no evaluation came to a finite loss"
MATCHED = "against the widest"
SIZE = f"exact, by the size estimator; below {MATCHED}"
WORK = f"forward and backward, by the formula; below {MATCHED}"


def models_table(points: Sequence[Row]) -> Table:
    """What each model is made of, and by how much the deep one misses the wide one's size."""

    def name(point: Row) -> tuple:
        names = (*MODEL, "batch_size", "n_parameters")
        return (point["workload"], *(point.get(column) for column in names))

    models = [group[0] for group in grouped(points, name).values()]
    models.sort(key=lambda row: -aspect(row))

    def against_widest(column: str, row: Row) -> str:
        own, widest = (words.number(model.get(column)) for model in (row, models[0]))
        if row is models[0] or not own or not widest:
            return ""
        difference = f"{100 * (own / widest - 1):+.2f}".replace("-", "−")
        return f"{difference}{words.THIN}%"

    size, work = (partial(against_widest, column) for column in ("n_parameters", "flops"))
    columns = [
        told("Model", "workload"),
        *(count(column, column, UNKNOWN) for column in MODEL),
        count("batch", "batch_size", UNKNOWN),
        count("parameters", "n_parameters", UNKNOWN, SIZE, under=size, below=MATCHED),
        number("operations", "10⁹ a step", "flops", NO_FORMULA, WORK, 4, under=work, below=MATCHED),
    ]

    def trained(row: Row) -> list[Row]:
        return [point for point in points if point["workload"] == row["workload"]]

    return Table.of(models, columns, about=trained)


def results_table(data: Data, points: Sequence[Row]) -> Table:
    """The results of each training, and what it took."""
    steps = grouped(points, lambda row: row["workload"])

    def step_s(row: Row) -> float | None:
        return words.number(row.get("unsplit_step_median_s"))

    def over_slowest(row: Row) -> float | None:
        times = [step for one in steps[row["workload"]] if (step := step_s(one)) is not None]
        own = step_s(row)
        return max(times) / own if own else None

    def perplexity(row: Row) -> float | None:
        return next((one["perplexity"] for one in reversed(evaluations(data, row))), None)

    def why_none(row: Row) -> str:
        return "beyond what a number can hold" if evaluations(data, row) else NO_EVALUATION

    def n_unusual(row: Row) -> int | None:
        return len(unusual(data, row)) if len(data.traces.curve_values(row, "step_s")) else None

    def elevated(row: Row) -> Value:
        norms = data.traces.curve_values(row, "gradient_norm").tolist()
        course = training_course.elevated_until(norms)
        if course is None:
            return missing("no norm of every step, or too few steps")
        step = int(course.middle)  # from 1; 0 is never
        return Value(str(step) if step else "never", sort=float(step))

    columns = [
        told("Model", "workload"),
        *tables.ONE_PLACE,
        count("steps", "training_steps", UNKNOWN, "taken"),
        Column("final loss", "nat", True, FINAL, value=_final),
        Column("evaluation loss", "nat", True, BEST, "best", value=partial(_evaluated, data)),
        number("perplexity", "", perplexity, why_none, PERPLEXITY, 4),
        Column("norm elevated until", "step", True, ELEVATED_UNTIL, value=elevated),
        median("step", "ms", "unsplit_step", UNTIMED, "median and quartiles", digits=3),
        number("tokens", "1/s", "tokens_per_s", UNTIMED),
        number("over slowest", "×", over_slowest, UNTIMED, SLOWEST),
        count("unusual steps", n_unusual, UNTIMED, UNUSUAL),
        number("peak", "MiB", "device_peak_bytes", UNCOUNTED, PEAK, under=_predicted, below=RATIO),
        told("Checkpoints", _checkpoints),
        told("Resumed", _resumed, folds=True),
    ]
    return Table.of(points, columns)


def _final(row: Row) -> Value:
    if row.get("diverged"):
        why = str(row.get("outcome_reason") or "diverged")
        return Value("diverged", sort=float("inf"), mark="bad", reason=why)
    return tables.quantity(row.get("final_loss"), UNKNOWN, digits=4)


def _evaluated(data: Data, row: Row) -> Value:
    """The loss after the last step, and the best."""
    done = evaluations(data, row)
    if not done:
        return missing(NO_EVALUATION)
    best = min(done, key=lambda one: one["loss"])
    below = f"{words.significant(float(best['loss']), 4)} at {int(best['step'])}"
    return replace(tables.quantity(done[-1]["loss"], "not finite", digits=4), below=below)


def _predicted(row: Row) -> str:
    names = ("predicted_peak_bytes", "predicted_memory_bytes", "device_peak_bytes")
    peak, memory, measured = (words.number(row.get(name)) for name in names)
    foretold = peak or memory
    return words.significant(foretold / measured) if foretold and measured else ""


def _checkpoints(row: Row) -> Value:
    latest, best, size = (
        words.number(row.get(f"checkpoint_{part}"))
        for part in ("latest_step", "best_step", "bytes")
    )
    steps = {"latest": latest, "best": best}
    kept = [f"{name} after {step:g}" for name, step in steps.items() if step is not None]
    if not kept:
        return missing("none was kept: no folder was given for them")
    return Value(", ".join(kept), below=f"{words.mebibytes(size)} each" if size else "")


def _resumed(row: Row) -> Value:
    steps = str(row.get("resumed_at") or "")
    if not steps:
        return Value("never", sort="")
    return Value(f"after step {words.listing(steps.split(';'))}", sort=steps)
