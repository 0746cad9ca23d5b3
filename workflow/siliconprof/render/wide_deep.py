"""Wide against deep: two models of equal size and compute, trained on the same data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from siliconprof import words
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.grid_points import MODEL
from siliconprof.render.tables import Column, Table, Value, integer, missing, quantity, ranged
from siliconprof.render.variants import Row
from siliconprof.render.wide_deep_curves import MIB, MS, column, draw, smoothing_note, unusual
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
    groups: dict[tuple[str, str], list[Row]] = {}
    for point in points:
        groups.setdefault((point["device"], point["precision"]), []).append(point)
    for (device, precision), group in groups.items():
        for start in range(0, len(group), LINES_PER_FIGURE):
            part = group[start : start + LINES_PER_FIGURE]
            name = f"{prefix}wide-deep-{device}-{precision}"
            book.figure(
                f"{name}-{start // LINES_PER_FIGURE + 1}" if start else name,
                "wide-deep",
                partial(draw, data, part),
                device=data.device_name(part[0]),
                precision=precision,
                smoothed=smoothing_note(data, part),
            )
    book.table(f"{prefix}wide-deep-results", "wide-deep-results", results_table(data, points))


# -- tables ------------------------------------------------------------------------------------


def models_table(points: Sequence[Row]) -> Table:
    """What each model is made of, and by how much the deep one misses the wide one's size."""
    columns = [Column(head, "", True) for head in (*MODEL, "batch")]
    result = Table(
        [
            Column("Model"),
            *columns,
            Column(
                "parameters",
                "",
                True,
                "exact, by the size estimator; below against the widest",
                "against the widest",
            ),
            Column(
                "operations",
                "10⁹ a step",
                True,
                "forward and backward, by the formula; below against the widest",
                "against the widest",
            ),
        ]
    )
    models: dict[tuple, Row] = {}
    for point in points:
        model_key = (
            point["workload"],
            *(point.get(n) for n in (*MODEL, "batch_size", "n_parameters")),
        )
        models.setdefault(model_key, point)
    ordered = sorted(models.values(), key=lambda row: -aspect(row))
    widest = ordered[0]
    for row in ordered:
        result.add(
            row["workload"],
            *(_count(row.get(column_)) for column_ in (*MODEL, "batch_size")),
            _matched(_count(row.get("n_parameters")), row, widest, "n_parameters"),
            _matched(
                quantity(row.get("flops"), "no formula for its operations", 1e9, 4),
                row,
                widest,
                "flops",
            ),
            of=[point for point in points if point["workload"] == row["workload"]],
        )
    return result


def _count(value: Any) -> Value:
    return integer(value, "not recorded")


def _matched(value: Value, row: Row, widest: Row, column_: str) -> Value:
    """A value with its distance from the widest model's below."""
    own, reference = words.number(row.get(column_)), words.number(widest.get(column_))
    if row is widest or not own or not reference:
        return value
    difference = f"{100 * (own / reference - 1):+.2f}".replace("-", "−")
    return Value(value.text, value.sort, f"{difference}{words.THIN}%")


def results_table(data: Data, points: Sequence[Row]) -> Table:
    """The results of each training, and what it took."""
    result = Table(
        [
            Column("Model"),
            Column("Device", folds=True),
            Column("Backend"),
            Column("Precision", folds=True),
            Column("steps", "", True, "taken"),
            Column("final loss", "nat", True, "training, mean over the last tenth of the steps"),
            Column(
                "evaluation loss",
                "nat",
                True,
                "after the last step; the best and its step below",
                "best",
            ),
            Column("perplexity", "", True, "exp of the evaluation loss after the last step"),
            Column(
                "norm elevated until",
                "step",
                True,
                "the last one whose gradient norm, as a "
                f"running median, is over {ELEVATED:g} times its median over the second half",
            ),
            Column("step", "ms", True, "median and quartiles"),
            Column("tokens", "1/s", True),
            Column("over slowest", "×", True, "times as fast as the slowest of the same model"),
            Column("unusual steps", "", True, "far longer than the run's own spread explains"),
            Column(
                "peak",
                "MiB",
                True,
                "of device memory; predicted over measured below",
                "predicted / measured",
            ),
            Column("Checkpoints"),
            Column("Resumed", folds=True),
        ]
    )
    slowest: dict[str, float] = {}
    for row in points:
        if (step := words.number(row.get("unsplit_step_median_s"))) is not None:
            slowest[row["workload"]] = max(slowest.get(row["workload"], 0.0), step)
    for row in points:
        step = words.number(row.get("unsplit_step_median_s"))
        result.add(
            row["workload"],
            row["device"],
            words.backend_name(row),
            row["precision"],
            integer(row.get("training_steps"), "not recorded"),
            _final(row),
            *_evaluated(data, row),
            _elevated(data, row),
            ranged(row, "unsplit_step", MS, "no step was timed", digits=3),
            quantity(row.get("tokens_per_s"), "no step was timed"),
            quantity(slowest[row["workload"]] / step if step else None, "no step was timed"),
            Value(str(len(unusual(data, row))), float(len(unusual(data, row))))
            if len(column(data, row, "step_s"))
            else missing("no step was timed"),
            _peak(row),
            _checkpoints(row),
            _resumed(row),
            of=row,
        )
    return result


def _final(row: Row) -> Value:
    if str(row.get("diverged")) in ("True", "1", "1.0"):
        why = str(row.get("outcome_reason") or "diverged")
        return Value("diverged", sort=float("inf"), mark="bad", reason=why)
    return quantity(row.get("final_loss"), "not recorded", digits=4)


def _evaluated(data: Data, row: Row) -> list[Value]:
    """Loss and perplexity after the last step."""
    frame = data.traces.evaluated(row)
    finite = None if frame is None else frame[frame["loss"].notna()]
    if finite is None or finite.empty:
        return [missing("no evaluation came to a finite loss")] * 2
    last, best = finite.iloc[-1], finite.iloc[int(finite["loss"].to_numpy().argmin())]
    loss = quantity(last["loss"], "not finite", digits=4)
    below = f"{words.significant(float(best['loss']), 4)} at {int(best['step'])}"
    return [
        Value(loss.text, loss.sort, below),
        quantity(last["perplexity"], "beyond what a number can hold", digits=4),
    ]


def elevated_until(data: Data, row: Row) -> int | None:
    """The last step whose gradient norm is well above its later level; None if unknown.

    The norm is a running median, which a lone spike does not move; the level is the median over
    the second half of the run. Steps count from 1; 0 means never.
    """
    course = training_course.elevated_until(column(data, row, "gradient_norm").tolist())
    return None if course is None else int(course.middle)


def _elevated(data: Data, row: Row) -> Value:
    step = elevated_until(data, row)
    if step is None:
        return missing("no norm of every step, or too few steps")
    return Value("never" if not step else str(step), sort=float(step))


def _peak(row: Row) -> Value:
    value = quantity(row.get("device_peak_bytes"), "nothing counts it on this backend", MIB)
    predicted = words.number(row.get("predicted_peak_bytes")) or words.number(
        row.get("predicted_memory_bytes")
    )
    measured = words.number(row.get("device_peak_bytes"))
    if value.reason or not predicted or not measured:
        return value
    ratio = predicted / measured
    return Value(value.text, value.sort, words.significant(ratio, 3))


def _checkpoints(row: Row) -> Value:
    latest, best, size = (
        words.number(row.get(f"checkpoint_{part}"))
        for part in ("latest_step", "best_step", "bytes")
    )
    parts = [
        f"{name} after {step:g}"
        for name, step in (("latest", latest), ("best", best))
        if step is not None
    ]
    if not parts:
        return missing("none was kept: no folder was given for them")
    return Value(", ".join(parts), below=f"{words.mebibytes(size)} each" if size else "")


def _resumed(row: Row) -> Value:
    steps = str(row.get("resumed_at") or "")
    if not steps:
        return Value("never", sort="")
    return Value(f"after step {words.listing(steps.split(';'))}", sort=steps)
