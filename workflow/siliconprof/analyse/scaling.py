"""Expected against actual time of a grid's points, and how its steps scale with the batch.

`expected.csv`: for every measured point of a `transformer_grid` its operations over the data
sheet's peak (the wide/deep report's expectation) and over the fastest product that we measured on the same
device, backend and number format.

`scaling.csv`: of each model shape the part of its step that does not grow with the batch, from a
straight line over batch sizes; the launches of a step times what a launch was measured to cost; and
the bytes that a step must move at least over the measured bandwidth. `bound` makes a verdict of
them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from siliconprof.analyse import bound, step_work, throughputs
from siliconprof.analyse.bound import ENDS
from siliconprof.analyse.throughputs import DEVICE, PLACE, known, of_step, reach_of
from siliconprof.hosts import caches
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.hosts.registry import PEAK_OF_PRECISION
from siliconprof.stats import line_fit
from siliconprof.store import columns, table_files
from siliconprof.store.table_files import KEY, Row

SHAPE = ("n_layer", "n_embd", "n_head", "head_dim", "d_ff", "seq_len", "vocab_size", "n_parameters")
SUMMARY = ("n", "median_s", "q25_s", "q75_s", "low_s", "high_s")
READ = (
    *("point_status", "processes", "gradient_checkpointing", "max_gradient_norm", "cache_bytes"),
    *(f"{of}step_{part}" for of in ("", "unsplit_") for part in SUMMARY),
)
LINE = (
    *("fixed_s", "fixed_low_s", "fixed_high_s", "per_sample_s", "residual", "fit_reason"),
    *(f"fixed_share_smallest{end}" for end in ("", "_low", "_high")),
)
LEAST_ERROR = 1e-3  # of a step: no interval of a few equal times is as narrow as it looks
GRID = "transformer_grid"
NO_FLOPS = "the point has no number of operations"
NO_PRODUCT = "no product was measured on this device and backend in this number format"
ABOUT_SHAPE, ABOUT_BACKEND = "model shape", "backend"
DISPATCH, AMORTISED = "dispatch", "amortised"  # launches of an operator in a row
LAUNCHES = (AMORTISED, "launch_and_wait")  # the second is in ceilings.csv whatever was measured
NO_BANDWIDTH = "no bandwidth of this device's memory was measured"
NO_LAUNCH = "no launch was measured on this device and backend"


def points_of_grids(points: pd.DataFrame, ceilings: pd.DataFrame) -> pd.DataFrame:
    """With `seconds` of a step where it was measured, and the fastest product in their format."""
    names = [name for name in columns.own("expected") if name in points]
    points = points.loc[points["module"] == GRID, [*names, *READ]]
    seconds = of_step(points, "median_s")
    seconds = seconds.where(points["point_status"].fillna("ok").eq("ok") & known(seconds))
    points = points.assign(seconds=seconds, format=points["precision"].map(PEAK_OF_PRECISION))
    products = throughputs.ceilings_of(ceilings, "matmul")
    return points.merge(products, "left", [*PLACE, "format"])


def expected(points: pd.DataFrame, sheets: DataSheets) -> pd.DataFrame:
    """Lines of expected.csv.

    Args:
        points: see `points_of_grids`.
    """
    points = points[points["seconds"].notna()]
    points = throughputs.of_sheets(
        points, lambda row: sheets.peak(row, row["precision"]), "precision"
    )
    flops = points["flops"].where(known(points["flops"]))
    table = points.assign(
        actual_s=points["seconds"],
        **{f"actual_{part}": of_step(points, part) for part in ("q25_s", "q75_s", "n")},
        expected_datasheet_source=points["datasheet_source"],
        expected_datasheet_note=points["datasheet_note"],
        expected_ceiling_how=points["ceiling_how"],
        ceiling_value=points["ceiling"],
        ceiling_reason=points["ceiling_reason"].fillna(NO_PRODUCT),
    )
    for name in ("datasheet", "ceiling"):
        most = table[f"{name}_value"]
        none = flops.isna().map({True: NO_FLOPS})
        table[f"expected_{name}_s"] = flops / most
        table[f"{name}_flop_per_s"] = most
        table[f"expected_{name}_reason"] = table[f"{name}_reason"].where(most.isna(), none)
        table[f"actual_over_{name}"] = table["actual_s"] / table[f"expected_{name}_s"]
    return table


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
    ends = dict(zip(ENDS, both, strict=True))
    parts = [_ends(measured, ends), _lines(measured), _launches(ends, ceilings)]
    shapes = shapes.join([*parts, _memory(ends, ceilings)])
    for end in ("", "_low"):
        left = shapes[f"fixed_share_smallest{end}"] - shapes["fixed_memory_share_most"]
        shapes[f"overhead_share{end}"] = left.clip(lower=0)
    shapes = shapes.assign(about=ABOUT_SHAPE, cell=shapes.groupby([*KEY], sort=False).ngroup())
    by = ["cell", "n_parameters", "seq_len"]
    shapes = shapes.sort_values(by, kind="stable", na_position="first", ignore_index=True)
    shapes = bound.judged(shapes)
    backends = bound.of_backends(shapes).assign(about=ABOUT_BACKEND)
    backends["cell"] = backends.index
    return pd.concat([shapes, backends], ignore_index=True).sort_values("cell", kind="stable")


Ends = Mapping[str, pd.DataFrame]  # the points at the smallest and at the largest batch of shapes


def _ends(measured: pd.DataFrame, ends: Ends) -> pd.DataFrame:
    of_shape = measured.groupby("shape")
    best = of_shape["flop_per_s"].max()
    found = {
        "batch_sizes": of_shape["batch_size"].agg(
            lambda sizes: ";".join(f"{b:.0f}" for b in sizes)
        ),
        "best_flop_per_s": best,
        "best_of_ceiling": best / ends["smallest"]["ceiling"],
    }
    for end, of in ends.items():
        found |= {f"{end}_batch": of["batch_size"], f"{end}_step_s": of["seconds"]}
        found[f"tokens_per_s_{end}"] = of["tokens_per_s"]
    first, last = (found[f"{end}_batch"] / found[f"{end}_step_s"] for end in ENDS)
    return pd.DataFrame(found | {"throughput_gain": (last / first).where(of_shape.size() > 1)})


def _lines(measured: pd.DataFrame) -> pd.DataFrame:
    of_shape = measured.assign(error_s=_errors(measured)).groupby("shape")
    found = {shape: _line(of) for shape, of in of_shape}
    return pd.DataFrame([*found.values()], [*found], [*LINE])


def _errors(measured: pd.DataFrame) -> pd.Series:
    """Standard errors of steps in seconds."""
    log = np.log(of_step(measured, "high_s") / of_step(measured, "low_s"))
    reach = measured["processes"].map({n: reach_of(n) for n in measured["processes"].unique()})
    errors = measured["seconds"] * log / 2 / reach
    return errors.fillna(0.0).clip(LEAST_ERROR * measured["seconds"])


def _line(of_shape: pd.DataFrame) -> Row:
    """The straight line over batch sizes, with the errors of its points."""
    batches = of_shape["batch_size"].astype(float).tolist()
    line = line_fit.fit(batches, of_shape["seconds"].tolist(), of_shape["error_s"].tolist())
    if line is None:
        return {"fit_reason": f"one batch size only, {batches[0]:.0f}"}
    low, high = line.interval_s()
    found: Row = {"fixed_s": line.fixed_s, "fixed_low_s": low, "fixed_high_s": high}
    found |= {"per_sample_s": line.per_sample_s, "residual": line.residual}
    if line.residual is not None and line.residual > bound.MOST_RESIDUAL:
        why = f"steps lie {line.residual:.0%} off a straight line over the batch"
        return found | {"fit_reason": why}
    share = line.fixed_share(batches[0])
    return found | {
        "fixed_share_smallest": share.value,
        "fixed_share_smallest_low": share.low,
        "fixed_share_smallest_high": share.high,
    }


def _launches(ends: Ends, ceilings: pd.DataFrame) -> pd.DataFrame:
    """Launches of a step times what one was measured to cost."""
    points, where = ends["smallest"], [*PLACE]
    counted = [
        step_work.launches(
            row["backend"],
            int(row["n_layer"]),
            row["precision"],
            bool(row["gradient_checkpointing"]),
            row["max_gradient_norm"] is not None,
        )
        for row in table_files.rows(points)
    ]
    found = pd.DataFrame(counted, points.index, ["launches", "launches_how"])
    dispatched = ceilings[(ceilings["quantity"] == AMORTISED) & (ceilings["how"] == DISPATCH)]
    costs = dispatched.set_index(where)["value"].rename("launch_cost_s")
    none = ceilings[ceilings["quantity"].isin(LAUNCHES) & ceilings["reason"].notna()]
    none = none.drop_duplicates(where, keep="last").set_index(where)
    of_place = points[where].join(costs, where)
    found = found.join(of_place.join(none[["reason"]], where).drop(columns=where))
    count = found["launches"].astype(float)
    seconds = count * found["launch_cost_s"]
    why = found["reason"].fillna(NO_LAUNCH).where(count.notna(), found["launches_how"])
    return found.drop(columns=["reason", "launches_how"]).assign(
        launch_s=seconds,
        launch_reason=why.where(seconds.isna()),
        launch_share_smallest=seconds / points["seconds"],
    )


def _memory(ends: Ends, ceilings: pd.DataFrame) -> pd.DataFrame:
    """Bytes that must come through memory at least, over its bandwidth."""
    of_device = throughputs.bandwidths(ceilings).set_index(DEVICE)
    points = ends["smallest"][[*DEVICE, "cache_bytes"]].join(of_device, DEVICE)
    bandwidth = points["ceiling"]
    cached = points["cache_bytes"].fillna(caches.beyond_bytes(None) / 2)
    found = {
        "last_level_cache_bytes": points["cache_bytes"],
        "bandwidth_bytes_per_s": bandwidth,
        "memory_reason": points["ceiling_reason"].fillna(NO_BANDWIDTH).where(bandwidth.isna()),
    }
    for end, of in ends.items():
        bytes_ = [step_work.least_bytes(row) for row in table_files.rows(of)]
        least = pd.DataFrame(bytes_, of.index, step_work.Bytes._fields)
        moved = least["fixed"] + least["activations"]
        # A cache holds so much of what a step works on from one step to the next at most.
        share = (1 - cached / least["working_set"]).clip(lower=0)
        seconds = share * moved / bandwidth
        found |= {f"least_bytes_{end}": moved, f"from_memory_share_{end}": share}
        found |= {f"memory_s_{end}": seconds, f"memory_share_{end}": seconds / of["seconds"]}
    # Operators that each go through memory move so much for the weights at most.
    weights_s = step_work.EAGER_TRAFFIC * least["fixed"] / bandwidth
    return pd.DataFrame(
        found | {"fixed_memory_share_most": weights_s / ends["smallest"]["seconds"]}
    )
