"""Lines and columns of whole trainings and of sweeps of models: curves, evaluations, texts, epochs.

What `record_rows` is to every record, this is to those of the transformer studies and of the
small networks. A point that was not measured has a row with its status and reason; one that lacks
what tells it from others is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from siliconprof import declarations, plugins
from siliconprof.stats import statistics
from siliconprof.store import columns
from siliconprof.store.table_files import Block


def lacking(module: str, named: Mapping[str, Any]) -> list[str]:
    """The parameters that a point lacks of those that tell its workload's points apart.

    Args:
        named: its parameters, `POINT`'s names alone.
    """
    if module not in plugins.names("workloads"):
        return []
    declared = plugins.load("workloads", module).POINT.items()
    return [name for name, one in declared if one.identifies and named.get(name) is None]


def flags(data: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """A flag for a record with points left out, since nothing says what they measured."""
    module, settings = data["cell"]["module"], common_settings(data["cell"])
    nameless = [
        names for point in data["points"] if (names := lacking(module, settings | point["params"]))
    ]
    if nameless:
        absent = ", ".join(sorted({name for names in nameless for name in names}))
        yield {
            "code": "incomplete",
            "detail": f"{len(nameless)} of {len(data['points'])} points left out: no {absent}",
        }


Columns = dict[str, Any]

# Tukey's outer fence (Exploratory Data Analysis, 1977, section 2D): what lies more than three
# inter-quartile ranges above the third quartile is "far out". Where steps hardly differ, that is
# near the median, so a step must also take a quarter longer than the median to be worth a mark.
FENCE_IQRS = 3.0
LEAST_EXCESS = 1.25
FEWEST_STEPS = 12  # below which quartiles say little of a run


def point_columns(data: Mapping[str, Any], point: Mapping[str, Any]) -> Columns:
    """Columns of points.csv, None where a point is of another kind."""
    memory, outcome = point["memory"], point.get("outcome") or {}
    test = point.get("test") or {}
    return {
        "point_status": point.get("status", "ok"),
        "point_reason": point.get("reason"),
        "predicted_peak_bytes": memory.get("predicted_bytes"),
        **_autorange(point),
        **_epoch(point.get("epoch")),
        **_checkpoints(point),
        "test_accuracy": test.get("accuracy"),
        "test_loss": test.get("loss"),
        "test_samples": test.get("samples"),
        "test_trained_steps": test.get("trained_steps"),
        "diverged": outcome.get("diverged"),
        "outcome_reason": outcome.get("reason"),
        "final_loss": outcome.get("final_loss"),
    }


def common_settings(cell: Mapping[str, Any]) -> Columns:
    """Columns for the parameters of all workloads' points, with what a cell's points share.

    None for what its workload does not declare or does not have as one value.
    """
    columns: Columns = dict.fromkeys(declarations.parameters())
    if cell["module"] not in plugins.names("workloads"):
        return columns
    plugin = plugins.load("workloads", cell["module"])
    shared = plugin.common_settings(cell["parameters"])
    return columns | {name: single(shared.get(name)) for name in plugin.POINT}


def single(value: Any) -> Any:
    """A value, or None for a list of them: a sweep's cell has no one value to show."""
    return value if isinstance(value, str | int | float) else None


def _autorange(point: Mapping[str, Any]) -> Columns:
    """torch's own timing of the same iteration, and over ours; None where it is not asked for."""
    autorange = point.get("blocked_autorange") or {}
    times = autorange.get("times_s") or []
    middle = statistics.median(times) if times else None
    ours = ours_s(point)
    return {
        "autorange_median_s": middle,
        "autorange_iqr_s": statistics.iqr(times) if times else None,
        "autorange_blocks": len(times) or None,
        "autorange_number": autorange.get("number_per_run"),
        "autorange_min_run_time_s": autorange.get("min_run_time_s"),
        "autorange_shorter_than_iteration": autorange.get("shorter_than_one_iteration"),
        "autorange_reason": autorange.get("reason"),
        "autorange_over_ours": statistics.over(middle or None, ours),
    }


def ours_s(point: Mapping[str, Any]) -> float | None:
    """Median of the whole steps by our own timing, None where there is none."""
    for name in ("unsplit_step_s", "step_s"):
        if values := point["times"].get(name):
            return statistics.median(values)
    return None


def _epoch(epoch: Mapping[str, Any] | None) -> Columns:
    """A pass over the data: the median of those that were made, or what was extrapolated."""
    measured = epoch or {}

    def median(name: str) -> float | None:
        return statistics.median(measured[name]) if measured.get(name) else None

    return {
        "epoch_s": median("epoch_s"),
        "epoch_train_s": median("train_s"),
        "epoch_validation_s": median("validation_s"),
        "epoch_means": measured.get("means"),
        "epoch_steps": measured.get("steps"),
        "epoch_measured_steps": measured.get("measured_steps"),
        "epoch_validation_steps": measured.get("validation_steps"),
        "epoch_measured_validation_steps": measured.get("measured_validation_steps"),
    }


def _checkpoints(point: Mapping[str, Any]) -> Columns:
    """Checkpoints of a whole training, and after which steps it went on when it had been killed."""
    checkpoints, resumed = point.get("checkpoints") or {}, point.get("resumed_at")
    latest, best = (checkpoints.get(name) or {} for name in ("latest", "best"))
    return {
        "checkpoint_latest_step": latest.get("step"),
        "checkpoint_best_step": best.get("step"),
        "checkpoint_bytes": latest.get("bytes"),
        "resumed_at": ";".join(map(str, resumed)) if resumed else None,
    }


def curve_blocks(data: Mapping[str, Any]) -> Iterator[Block]:
    """Lines of curves.csv without the cell's key: one per step of a whole training."""
    for index, point in enumerate(data["points"]):
        curve = point.get("curve")
        if not curve:
            continue
        steps = len(curve["loss"])
        times = step_times(point, steps)
        tokens = point["params"].get("tokens_per_step")
        step_s: Sequence[float | None] = times or [None] * steps
        yield (
            {"point": index},
            {
                "step": range(steps),
                "loss": curve["loss"],
                "gradient_norm": [at(curve["gradient_norm"], step) for step in range(steps)],
                "learning_rate": [at(curve["learning_rate"], step) for step in range(steps)],
                "step_s": step_s,
                "tokens_per_s": [statistics.over(tokens or None, time_s) for time_s in step_s],
                "unusual": unusual(times) or [None] * steps,
            },
        )


def at(values: Sequence[Any], index: int) -> Any:
    """An entry of a list that may be shorter than the one beside it; None beyond its end."""
    return values[index] if index < len(values) else None


def step_times(point: Mapping[str, Any], steps: int) -> list[float] | None:
    """Seconds of every step of a curve; None where not every step's time is known."""
    for name in ("unsplit_step_s", "step_s"):
        values = point["times"].get(name) or []
        if len(values) == steps:
            return list(values)
    return None


def unusual(times: Sequence[float] | None) -> list[bool] | None:
    """Whether each step took far longer than the run's own spread explains; None = too few.

    See `FENCE_IQRS`. The quartiles are of the whole run, so a slow spell shows as long as it is
    less than a quarter of it.
    """
    if not times or len(times) < FEWEST_STEPS:
        return None
    fence = statistics.quantile(times, 0.75) + FENCE_IQRS * statistics.iqr(times)
    limit = max(fence, LEAST_EXCESS * statistics.median(times))
    return [value > limit for value in times]


def evaluation_rows(data: Mapping[str, Any]) -> Iterator[Columns]:
    """Lines of evaluations.csv without the cell's key."""
    for index, point in enumerate(data["points"]):
        for evaluation in point.get("evaluations") or []:
            yield columns.besides_key("evaluations") | {"point": index} | evaluation


def text_rows(data: Mapping[str, Any]) -> Iterator[Columns]:
    """Lines of texts.csv without the cell's key: what the trained model wrote."""
    for index, point in enumerate(data["points"]):
        for text in point.get("texts") or []:
            yield columns.besides_key("texts") | {"point": index} | text
