"""Lines and columns of whole trainings and of sweeps of models: curves, evaluations, texts, epochs.

What `record_rows` is to every record, this is to those of the transformer studies and of the
small networks. A point that was not measured has a row with its status and reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from siliconprof import declarations, plugins
from siliconprof.stats import statistics
from siliconprof.store import contents
from siliconprof.store.cell import Cell
from siliconprof.store.contents import Point, Record
from siliconprof.store.point import WHOLE, Series
from siliconprof.store.table_files import Block, Row

T = TypeVar("T")


# Tukey's outer fence (Exploratory Data Analysis, 1977, section 2D): what lies more than three
# inter-quartile ranges above the third quartile is "far out". Where steps hardly differ, that is
# near the median, so a step must also take a quarter longer than the median to be worth a mark.
FENCE_IQRS = 3.0
LEAST_EXCESS = 1.25
FEWEST_STEPS = 12  # below which quartiles say little of a run


def point_columns(point: Point) -> Row:
    """Columns of points.csv, None where a point is of another kind."""
    autorange, epoch = point.blocked_autorange, point.epoch
    return {
        "point_status": point.status,
        "point_reason": point.reason,
        "predicted_peak_bytes": point.memory.predicted_bytes,
        "autorange_median_s": _median(autorange.times_s),
        "autorange_min_run_time_s": autorange.min_run_time_s,
        "autorange_reason": autorange.reason,
        "epoch_s": _median(epoch.epoch_s),
        **contents.columns(epoch, "epoch_", without=("epoch_s", "train_s", "validation_s")),
        "resumed_at": ";".join(map(str, point.resumed_at)) or None,
        **contents.columns(point.test, "test_"),
        "diverged": point.outcome.diverged,
        "outcome_reason": point.outcome.reason,
        "final_loss": point.outcome.final_loss,
    }


def _median(values: Series) -> float | None:
    return statistics.median(values) if values else None


def common_settings(cell: Cell) -> Row:
    """Columns for the parameters of all workloads' points, with what a cell's points share.

    None for what its workload does not declare or does not have as one value.
    """
    columns: Row = dict.fromkeys(declarations.parameters())
    if cell.module not in plugins.names("workloads"):
        return columns
    plugin = plugins.load("workloads", cell.module)
    shared = plugin.common_settings(cell.parameters)
    return columns | {name: single(shared.get(name)) for name in plugin.POINT}


def single(value: Any) -> Any:
    """A value, or None for a list of them: a sweep's cell has no one value to show."""
    return value if isinstance(value, str | int | float) else None


def curve_blocks(record: Record) -> Iterator[Block]:
    """Lines of curves.csv: one per step of a whole training."""
    for index, point in enumerate(record.points):
        if (curve := point.curve) is None:
            continue
        steps = len(curve.loss)
        series = (point.series(name) for name in WHOLE)
        times = next((values for values in series if values and len(values) == steps), None)
        step_s: Sequence[float | None] = times or [None] * steps
        tokens = point.params.get("tokens_per_step")
        amount = tokens if isinstance(tokens, int | float) else None
        yield (
            {"point": index},
            {
                "step": range(steps),
                "loss": curve.loss,
                "gradient_norm": filled(curve.gradient_norm, steps),
                "learning_rate": filled(curve.learning_rate, steps),
                "step_s": step_s,
                "tokens_per_s": [statistics.over(amount or None, time_s) for time_s in step_s],
                "unusual": unusual(times) or [None] * steps,
            },
        )


def filled(values: Sequence[T], length: int) -> list[T | None]:
    """A list of this length; None beyond the end of one that is shorter."""
    return [*values[:length], *[None] * (length - len(values))]


def unusual(times: Series | None) -> list[bool] | None:
    """Whether each step took far longer than the run's own spread explains; None = too few.

    See `FENCE_IQRS`. The quartiles are of the whole run, so a slow spell shows as long as it is
    less than a quarter of it.
    """
    if not times or len(times) < FEWEST_STEPS:
        return None
    fence = statistics.quantile(times, 0.75) + FENCE_IQRS * statistics.iqr(times)
    limit = max(fence, LEAST_EXCESS * statistics.median(times))
    return [value > limit for value in times]


def evaluation_rows(record: Record) -> Iterator[Row]:
    """Lines of evaluations.csv: the loss on held-out data on the way of whole trainings."""
    for index, point in enumerate(record.points):
        for evaluation in point.evaluations:
            yield {"point": index, **contents.columns(evaluation)}


def text_rows(record: Record) -> Iterator[Row]:
    """Lines of texts.csv: what trained models wrote."""
    for index, point in enumerate(record.points):
        for text in point.texts:
            yield {"point": index, **contents.columns(text)}
