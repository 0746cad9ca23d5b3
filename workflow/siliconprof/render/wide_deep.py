"""Wide against deep: two models of equal size and compute, trained on the same data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from siliconprof import words
from siliconprof.render import tables
from siliconprof.render.book import Book, parts
from siliconprof.render.data import Data, grouped
from siliconprof.render.grid_points import MODEL, NO_FORMULA
from siliconprof.render.tables import (
    Column,
    Table,
    Value,
    count,
    median,
    missing,
    number,
    quantity,
    told,
)
from siliconprof.render.variants import Row
from siliconprof.render.wide_deep_curves import column, draw, evaluations, smoothing_note, unusual
from siliconprof.stats import training_course
from siliconprof.stats.training_course import ELEVATED, aspect, pairs

TRAINER = "training_run"
LINES_PER_FIGURE = 8


def trainings(data: Data) -> list[Row]:
    """Whole trainings that were measured, wide models first."""
    rows = data.whole_trainings(TRAINER)
    devices = list(dict.fromkeys((row["source"], row["host"], row["device"]) for row in rows))

    def place(row: Row) -> tuple[int, float]:
        return devices.index((row["source"], row["host"], row["device"])), -aspect(row)

    return sorted(rows, key=place)


def deeper(points: Sequence[Row]) -> str:
    """How many times the wide model's layers the deep one has in every pair; rounded down."""
    ratios = [float(deep["n_layer"]) / float(wide["n_layer"]) for wide, deep in pairs(points)]
    return f"at least {math.floor(10 * min(ratios)) / 10:g}" if ratios else "several"


def add(data: Data, book: Book, prefix: str = "") -> None:
    """Both models, the course of their trainings, and what came out."""
    points = trainings(data)
    failed = [c for c in data.cells if c["trainer"] == TRAINER and c["status"] != "ok"]
    if not points and not failed:
        if not prefix:
            book.heading("Wide against deep", anchor="wide-deep")
            book.note("No whole training of a model is part of these results.")
        return
    book.heading("Wide against deep", anchor=f"{prefix}wide-deep")
    for cell in failed:
        book.note(
            f"{cell['workload']} on {words.backend_name(cell)}, {cell['precision']}: "
            f"{cell['status']}: {cell['reason']}."
        )
    if not points:
        return
    book.table(
        f"{prefix}wide-deep-models", "wide-deep-models", models_table(points), deeper=deeper(points)
    )

    def place(point: Row) -> tuple[str, str]:
        return point["device"], point["precision"]

    for (device, precision), group in grouped(points, place).items():
        figures = parts(f"{prefix}wide-deep-{device}-{precision}", group, LINES_PER_FIGURE)
        for name, part in figures:
            book.figure(
                name,
                "wide-deep",
                partial(draw, data, part),
                device=data.device_name(part[0]),
                precision=precision,
                smoothed=smoothing_note(data, part),
            )
    book.table(f"{prefix}wide-deep-results", "wide-deep-results", results_table(data, points))


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
        return (point["workload"], *(point.get(column_) for column_ in names))

    models = [group[0] for group in grouped(points, name).values()]
    models.sort(key=lambda row: -aspect(row))

    def against_widest(column_: str, row: Row) -> str:
        own, widest = (words.number(model.get(column_)) for model in (row, models[0]))
        if row is models[0] or not own or not widest:
            return ""
        difference = f"{100 * (own / widest - 1):+.2f}".replace("-", "−")
        return f"{difference}{words.THIN}%"

    size, work = (partial(against_widest, column_) for column_ in ("n_parameters", "flops"))
    columns = [
        told("Model", "workload"),
        *(count(column_, column_, UNKNOWN) for column_ in MODEL),
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
        return len(unusual(data, row)) if len(column(data, row, "step_s")) else None

    def elevated(row: Row) -> Value:
        step = elevated_until(data, row)
        if step is None:
            return missing("no norm of every step, or too few steps")
        return Value("never" if not step else str(step), sort=float(step))

    columns = [
        told("Model", "workload"),
        tables.DEVICE,
        tables.BACKEND,
        tables.ONE_PRECISION,
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
    return quantity(row.get("final_loss"), UNKNOWN, digits=4)


def _evaluated(data: Data, row: Row) -> Value:
    """The loss after the last step, and the best."""
    done = evaluations(data, row)
    if not done:
        return missing(NO_EVALUATION)
    best = min(done, key=lambda one: one["loss"])
    below = f"{words.significant(float(best['loss']), 4)} at {int(best['step'])}"
    return replace(quantity(done[-1]["loss"], "not finite", digits=4), below=below)


def elevated_until(data: Data, row: Row) -> int | None:
    """The last step whose gradient norm is well above its later level; None if unknown.

    The norm is a running median, which a lone spike does not move; the level is the median over
    the second half of the run. Steps count from 1; 0 means never.
    """
    course = training_course.elevated_until(column(data, row, "gradient_norm").tolist())
    return None if course is None else int(course.middle)


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
