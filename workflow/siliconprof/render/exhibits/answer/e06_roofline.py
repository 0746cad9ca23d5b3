"""Roofline: operations a byte and a second of products and trainings, under what was measured at most.

Williams, Waterman and Patterson 2009, Roofline: a computation runs no faster than the fastest
product, and no faster than its operations a byte times the bandwidth: of the cache for what fits it,
of the memory for all else. All three are measured on the device, by whichever backend is the fastest, as
in checks.csv.
"""

from typing import Any

import numpy as np
import pandas as pd

from siliconprof import words
from siliconprof.analyse import step_work, throughputs
from siliconprof.analyse.frames import CELL, DEVICE, Frames, by_phases, holds, records
from siliconprof.hosts.registry import PEAK_OF_PRECISION
from siliconprof.render.drawers import Scatter
from siliconprof.render.exhibit import Exhibit

OPERATIONS = ("matmul", "matvec", "vjp")
TRAINING = "training"
SHAPED = ("transformer_grid", "transformer_lm", "optimizer_sweep")  # that `step_work` can count
KINDS = {
    "matmul": "matrix product",
    "matvec": "matrix-vector product",
    "vjp": "gradients of a product",
    TRAINING: "training step, FLOP per byte at most",
}
MOST_DOTS = 160  # of a panel; above it a cell has the one that is nearest to its roof
GIGA = 1e9


def rows(frames: Frames) -> pd.DataFrame:
    frame = under_roofs(frames)
    if frame.empty:
        return frame
    frame = frame.assign(
        # What markers tell apart.
        place=frame["place"] if frame["place"].nunique() > 1 else frame["kind"].map(KINDS),
        speed=frame["flop_per_s"] / GIGA,
        level=frame["product"] / GIGA,
        slope=(frame["bandwidth"] / GIGA).fillna(np.inf),  # unknown: the products alone
        roof=frame["place"]
        + ", "
        + frame["product_format"].fillna(frame["number_format"])
        + ", "
        + frame["bound"],
    )
    crowded = frame.groupby("number_format")["share"].transform("size") > MOST_DOTS
    nearest = frame.sort_values("share", ascending=False).drop_duplicates([*CELL, "kind"])
    frame = frame[~crowded | frame.index.isin(nearest.index)]
    share = [words.percent(share) if share == share else "no part" for share in frame["share"]]
    frame = frame.assign(
        name=frame["workload"]
        + (", " + frame["setup"]).where(frame["kind"] == TRAINING, ", " + frame["how"]),
        hover=pd.Series(share, frame.index) + " of the roof",
    )
    return pd.concat([frame, _sheets(frame, frames)])


def under_roofs(frames: Frames) -> pd.DataFrame:
    """Every point whose operations and bytes are known; no operation that was disturbed.

    Columns beside those of the point: `kind`, `number_format`, `intensity` (FLOP/byte; of a training
    the most that it can be), `in_cache`; of its roof `product` (FLOP/s) and `bandwidth` (bytes/s)
    with `bound`, whose that is, and `roof`, the lesser of what both allow; `share` of it. The product is
    `throughputs.fastest_product`.
    """
    frame = frames.points[frames.points["point_disturbed"].isna()]
    frame = frame.assign(number_format=frame["precision"].map(PEAK_OF_PRECISION))
    lines = frames.table("ceilings")
    frame = pd.concat([_operations(frame, frames.table("checks")), _trainings(frame)])
    frame = frame[frame["intensity"].gt(0) & frame["flop_per_s"].gt(0)].copy()
    products = throughputs.fastest_product(frame, lines)
    frame = frame.assign(product=products["ceiling"], product_format=products["ceiling_format"])
    # Memory and caches know neither backends nor number formats.
    for name in ("memory", "cache"):
        best = lines[lines["quantity"] == f"{name}_bandwidth"].groupby(DEVICE)["value"].max()
        frame = frame.join(best.rename(f"{name}_bandwidth"), on=DEVICE)
    bandwidth = frame["memory_bandwidth"].mask(frame["in_cache"], frame["cache_bandwidth"])
    below = frame["intensity"] * bandwidth
    roof = frame[["product"]].assign(below=below).min(axis=1).where(frame["product"].notna())
    return frame.assign(
        bandwidth=bandwidth,
        bound=np.where(frame["in_cache"], "cache", "memory"),
        roof=roof,
        share=frame["flop_per_s"] / roof,
    )


def _operations(frame: pd.DataFrame, checks: pd.DataFrame) -> pd.DataFrame:
    frame = frame[frame["module"].isin(OPERATIONS)]
    in_cache = checks["quantity"].eq("bytes_per_s") & checks["compared_value"].isna()
    return frame.assign(
        kind=frame["module"],
        intensity=frame["flops"] / frame["bytes"],
        in_cache=frame["order"].isin(checks.loc[in_cache, "order"]),
    )


def _trainings(frame: pd.DataFrame) -> pd.DataFrame:
    """With the least bytes that a step must move; nobody counts those of an offloaded one."""
    is_training = by_phases(frame) | frame["module"].isin(SHAPED)
    frame = frame[is_training & ~holds(frame, "offloads")]
    least = [_least(row) for row in records(frame)]
    moved, working_set = pd.DataFrame(least, frame.index, ["moved", "set"]).T.to_numpy(float)
    return frame.assign(
        kind=TRAINING,
        intensity=frame["flops"] / moved,
        in_cache=frame["cache_bytes"] >= working_set,
    )


def _least(row: dict[str, Any]) -> tuple[float, float]:
    """(least bytes that a step must move, bytes that it works on); NaN where they are unknown."""
    shape = [words.number(row.get(name)) for name in step_work.SHAPE]
    if row["module"] in SHAPED and None not in shape:
        least = step_work.least_bytes(row)
        return least.fixed + least.activations, least.working_set
    # AdamW's passes over what is trained, and the kept activations written and read once: reading
    # the weights and all gradients are left out.
    width = 2 if step_work.way(row["precision"]) == "pure" else 4
    kept, trained = row["predicted_activations_bytes"], row["n_trainable_parameters"]
    moved = width * trained * step_work.ADAMW_PASSES + 2 * kept
    return moved, width * (row["n_parameters"] + 3 * trained) + kept


def _sheets(frame: pd.DataFrame, frames: Frames) -> pd.DataFrame:
    """The roof by the data sheet, with a mark where both its parts meet."""
    one = frame.drop_duplicates([*DEVICE, "number_format"])
    both = [
        (sheet.peak(row, row["number_format"]).value, sheet.bandwidth(row).value)
        for sheet in (frames.sheets,)
        for row in records(one)
    ]
    printed = pd.DataFrame(both, one.index, ["level", "slope"], float) / GIGA
    printed = printed.assign(
        number_format=one["number_format"],
        intensity=printed["level"] / printed["slope"],
        speed=printed["level"],
        roof="the data sheet, " + one["device_label"],
        name="data sheet",
        published=True,
    )
    return printed.dropna(subset=["intensity"])


EXHIBIT = Exhibit(
    id="roofline",
    rows=rows,
    figure=Scatter(
        x="intensity",
        y="speed",
        x_label="FLOP per byte",
        y_label="GFLOP/s",
        name="name",
        roofs=("level", "slope", "roof"),
        panel="number_format",
        high_in=2.4,
    ),
    needs="It needs a cell of matrix products, or a training whose bytes are known.",
)
