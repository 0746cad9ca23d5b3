"""Expected against actual time of a grid's points, and how its steps scale with the batch.

`expected.csv`: for every measured point of a `transformer_grid`, its FLOP over the data sheet's peak
(the wide/deep report's expectation) and over the fastest product measured on the same device, backend
and number format.

`scaling.csv`: of each model shape the part of its step that does not grow with the batch, from a
straight line over batch sizes; the launches of a step times what a launch was measured to cost; and
the bytes that a step must move at least over the measured bandwidth; and a verdict of them.
The wide/deep report asks whether a system is held back by its memory or by many small launches.

- Launch-bound: at the smallest batch at least `BOUND` of the step does not grow with the batch (lower
  end of its 95 % interval), and launches times their cost take as much of it; or they take it at up
  to `LOW_BY` times that cost, while the bytes of weights and optimizer, taken as many times, leave
  that much of the step unexplained.
- Memory-bound: the bytes that must move at least take `BOUND` of the step at the measured bandwidth,
  at the smallest or the largest batch.
- Not bound: the fixed part is certainly less, or the estimate is below `CLEAR`. An estimate between
  the two, or above `IMPOSSIBLE` steps, decides nothing.
- A backend is bound where any of its model shapes is.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from siliconprof.analyse import step_work, throughputs
from siliconprof.analyse.throughputs import DEVICE, PLACE, nonzero, step_number
from siliconprof.hosts import caches
from siliconprof.hosts.registry import PEAK_OF_PRECISION
from siliconprof.stats import inference, line_fit
from siliconprof.store import table_files
from siliconprof.store.table_files import KEY, Row

SHAPE = ("n_layer", "n_embd", "n_head", "head_dim", "d_ff", "seq_len", "vocab_size", "n_parameters")
LAUNCH_SHARE = "launch_share_smallest"
FIXED_SHARE = "fixed_share_smallest"  # fixed part of the step at the smallest batch
LINE = (
    *("fixed_s", "per_sample_s", "fit_reason"),
    *(f"{FIXED_SHARE}{end}" for end in ("", "_low", "_high")),
)
LEAST_ERROR = 1e-3  # of a step: the interval of a few equal times is too narrow
GRID = "transformer_grid"
ABOUT_SHAPE, ABOUT_BACKEND = "model shape", "backend"
DISPATCH, AMORTISED = "dispatch", "amortised"  # launches of an operator in a row
BATCHES = ("smallest", "largest")
YES, NO, UNKNOWN = "yes", "no", "unknown"
INCONCLUSIVE, LAUNCH_BOUND, MEMORY_BOUND = "inconclusive", "launch-bound", "memory-bound"
VERDICTS = ("both", LAUNCH_BOUND, MEMORY_BOUND, "neither")
NO_MEASURED_POINT = "no point of it was measured"
# Removing a third of a step makes it at most 1.5 times as fast (Amdahl 1967).
BOUND = 1 / 3
# Both estimates are too low. Eager operators move up to five times the least bytes (counted, see
# `step_work.least_bytes`). An operator of a training also pays for its module and autograd, which the
# measured launch of a + 1 does not; this is assumed to be at most five times as much. Below `CLEAR`,
# five times the estimate is still no third.
LOW_BY = step_work.EAGER_TRAFFIC
CLEAR = BOUND / LOW_BY
IMPOSSIBLE = 1.25  # of a step: an estimate further above it does not describe the step
MOST_RESIDUAL = 0.25  # of a step: beyond it, steps do not lie on a line


def points_of_grids(points: pd.DataFrame, ceilings: pd.DataFrame) -> pd.DataFrame:
    """The points of grids, with `seconds` of a step and the fastest product in their format."""
    points = points[points["module"] == GRID]
    seconds = step_number(points, "median_s")
    seconds = seconds.where(points["point_status"].fillna("ok").eq("ok") & nonzero(seconds))
    points = points.assign(seconds=seconds, format=points["precision"].map(PEAK_OF_PRECISION))
    products = throughputs.ceilings_of(ceilings, "matmul")
    return points.merge(products, "left", [*PLACE, "format"])


def expected(points: pd.DataFrame) -> pd.DataFrame:
    """Lines of expected.csv.

    Args:
        points: see `points_of_grids`.
    """
    points = points[points["seconds"].notna()]
    flops = points["flops"].where(nonzero(points["flops"]))
    return points.assign(
        actual_s=points["seconds"],
        expected_datasheet_s=flops / points["peak"],
        expected_ceiling_s=flops / points["ceiling"],
    )


def lines(points: pd.DataFrame, ceilings: pd.DataFrame) -> pd.DataFrame:
    """Lines of scaling.csv: of each grid its model shapes and then its backend.

    Args:
        points: see `points_of_grids`.
    """
    key = [*KEY, *SHAPE]
    points = points.assign(shape=points.groupby(key, dropna=False, sort=False).ngroup())
    shapes = points.drop_duplicates("shape").set_index("shape")[key]
    measured = points[points["seconds"].notna()]
    measured = measured.sort_values(["shape", "batch_size"], kind="stable")
    of_shape = measured.groupby("shape")
    both = (of_shape.head(1).set_index("shape"), of_shape.tail(1).set_index("shape"))
    ends = dict(zip(BATCHES, both, strict=True))
    batches = pd.DataFrame({f"{end}_batch": of["batch_size"] for end, of in ends.items()})
    parts = [batches, _lines(measured), _launches(ends["smallest"], ceilings)]
    shapes = shapes.join([*parts, _memory(ends, ceilings)])
    shapes = shapes.assign(about=ABOUT_SHAPE, cell=shapes.groupby([*KEY], sort=False).ngroup())
    by = ["cell", "n_parameters", "seq_len"]
    shapes = shapes.sort_values(by, kind="stable", na_position="first", ignore_index=True)
    shapes = judged(shapes)
    backends = verdicts_of_backends(shapes).assign(about=ABOUT_BACKEND)
    backends["cell"] = backends.index
    return pd.concat([shapes, backends], ignore_index=True).sort_values("cell", kind="stable")


def _lines(measured: pd.DataFrame) -> pd.DataFrame:
    of_shape = measured.assign(error_s=_errors(measured)).groupby("shape")
    found = {shape: _line(of) for shape, of in of_shape}
    return pd.DataFrame([*found.values()], [*found], [*LINE])


def _errors(measured: pd.DataFrame) -> pd.Series:
    """Standard errors of steps in seconds."""
    log = np.log(step_number(measured, "high_s") / step_number(measured, "low_s"))
    reach = inference.half_width_factor(inference.degrees_of_freedom(measured["processes"]))
    errors = measured["seconds"] * log / 2 / reach
    return errors.fillna(0.0).clip(LEAST_ERROR * measured["seconds"])


def _line(of_shape: pd.DataFrame) -> Row:
    """The straight line over batch sizes, with the errors of its points."""
    batches = of_shape["batch_size"].astype(float).tolist()
    line = line_fit.fit(batches, of_shape["seconds"].tolist(), of_shape["error_s"].tolist())
    if line is None:
        return {"fit_reason": f"one batch size only, {batches[0]:.0f}"}
    found: Row = {"fixed_s": line.fixed_s, "per_sample_s": line.per_sample_s}
    if line.residual is not None and line.residual > MOST_RESIDUAL:
        why = f"steps lie {line.residual:.0%} off a straight line over the batch"
        return found | {"fit_reason": why}
    share = line.fixed_share(batches[0])
    return found | {
        FIXED_SHARE: share.value,
        f"{FIXED_SHARE}_low": share.low,
        f"{FIXED_SHARE}_high": share.high,
    }


def _launches(points: pd.DataFrame, ceilings: pd.DataFrame) -> pd.DataFrame:
    """Launches of a step, and their share of it at the measured time of one launch."""
    counted = [
        int(row["device_launches"])
        if row["device_launches"]
        else step_work.launches(
            row["backend"],
            int(row["n_layer"]),
            row["precision"],
            bool(row["gradient_checkpointing"]),
            row["max_gradient_norm"] is not None,
        )
        for row in table_files.rows(points)
    ]
    launches = pd.Series(counted, points.index, float)
    dispatched = ceilings[ceilings["quantity"] == AMORTISED].set_index(PLACE)["value"]
    cost_s = points[PLACE].join(dispatched, PLACE)["value"]
    share = launches * cost_s / points["seconds"]
    return pd.DataFrame({"launches": launches, LAUNCH_SHARE: share})


def _memory(ends: Mapping[str, pd.DataFrame], ceilings: pd.DataFrame) -> pd.DataFrame:
    """The share of each step that moving its least bytes through memory takes.

    Args:
        ends: the points of shapes at their smallest and at their largest batch.
    """
    of_device = throughputs.bandwidths(ceilings).set_index(DEVICE)
    points = ends["smallest"][[*DEVICE, "cache_bytes"]].join(of_device, DEVICE)
    bandwidth = points["ceiling"]
    cached = points["cache_bytes"].fillna(caches.beyond_bytes(None) / 2)
    found = {"last_level_cache_bytes": points["cache_bytes"]}
    for end, of in ends.items():
        bytes_ = [step_work.least_bytes(row) for row in table_files.rows(of)]
        least = pd.DataFrame(bytes_, of.index, step_work.Bytes._fields)
        # A cache holds so much of what a step works on from one step to the next at most.
        share = (1 - cached / least["working_set"]).clip(lower=0)
        moved = share * (least["fixed"] + least["activations"])
        found[f"memory_share_{end}"] = moved / bandwidth / of["seconds"]
    # Operators that each go through memory move so much for the weights at most.
    weights_s = step_work.EAGER_TRAFFIC * least["fixed"] / bandwidth
    found["fixed_memory_share_most"] = weights_s / ends["smallest"]["seconds"]
    return pd.DataFrame(found)


def judged(shapes: pd.DataFrame) -> pd.DataFrame:
    """Shapes with `launch_bound` and `memory_bound`: yes, no, unknown."""
    not_measured = shapes["smallest_batch"].isna()
    low, high, share = (
        shapes[name] for name in (f"{FIXED_SHARE}_low", f"{FIXED_SHARE}_high", LAUNCH_SHARE)
    )
    # of the step, by operators whose bytes do not explain it
    left, left_low = (
        (shapes[name] - shapes["fixed_memory_share_most"]).clip(lower=0)
        for name in (FIXED_SHARE, f"{FIXED_SHARE}_low")
    )
    can_explain = left_low.ge(BOUND) & (LOW_BY * share).ge(left)
    is_bound = low.ge(BOUND) & (share.ge(BOUND) | can_explain)
    is_nothing = share.isna() | share.gt(IMPOSSIBLE)
    of_launches = [not_measured, high.lt(BOUND), is_nothing, share.lt(CLEAR), is_bound]
    most = shapes[[f"memory_share_{end}" for end in BATCHES]].max(axis=1)
    is_clear = most.lt(CLEAR) & nonzero(shapes["last_level_cache_bytes"])
    of_memory = [not_measured, most.between(BOUND, IMPOSSIBLE), is_clear]
    return shapes.assign(
        launch_bound=np.select(of_launches, [UNKNOWN, NO, UNKNOWN, NO, YES], UNKNOWN),
        memory_bound=np.select(of_memory, [UNKNOWN, YES, NO], UNKNOWN),
        fit_reason=shapes["fit_reason"].mask(not_measured, NO_MEASURED_POINT),
    )


def verdicts_of_backends(shapes: pd.DataFrame) -> pd.DataFrame:
    """Verdicts on each grid's backend from its `judged` shapes: columns of scaling.csv."""
    key = [*KEY]
    bounds = ["launch_bound", "memory_bound"]
    backends = shapes[key].drop_duplicates()
    measured = shapes[shapes["smallest_batch"].notna()].groupby(key)
    of_any = backends.join(measured[bounds].agg(_any), key).reset_index(drop=True)
    of_any = of_any.fillna(dict.fromkeys(bounds, UNKNOWN))
    is_bound, is_not = of_any[bounds] == YES, of_any[bounds] == NO
    rules = [is_bound.all(axis=1), *(is_bound[name] for name in bounds), is_not.all(axis=1)]
    return of_any.assign(verdict=np.select(rules, VERDICTS, INCONCLUSIVE))


def _any(answers: pd.Series) -> str:
    """Yes where any shape says so, no where all deny it."""
    return YES if answers.eq(YES).any() else NO if answers.eq(NO).all() else UNKNOWN
