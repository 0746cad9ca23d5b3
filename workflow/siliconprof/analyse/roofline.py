"""Operations a byte and a second of every point, and the roof over it.

Williams, Waterman and Patterson 2009, Roofline: a computation runs no faster than the fastest
product, and no faster than its operations a byte times the bandwidth: of the cache for what fits it,
of the memory for all else. All three are measured on the device, as in ceilings.csv.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from siliconprof import words
from siliconprof.analyse import step_work
from siliconprof.analyse.frames import DEVICE, Frames, by_phases, holds, records
from siliconprof.hosts.registry import PEAK_OF_PRECISION

OPERATIONS = ("matmul", "matvec", "vjp")
TRAINING = "training"
SHAPED = ("transformer_grid", "transformer_lm", "optimizer_sweep")  # that `step_work` can count
FORMAT = [*DEVICE, "backend", "number_format"]


def points(frames: Frames) -> pd.DataFrame:
    """Every point whose operations and bytes are known.

    Columns beside those of the point: `kind`, `number_format`, `intensity` (FLOP/byte; of a training
    the most that it can be), `in_cache`; of its roof `product` (FLOP/s) and `bandwidth` (bytes/s)
    with `bound`, whose that is, and `roof`, the lesser of what both allow; `share` of it.
    """
    frame = frames.points.assign(number_format=frames.points["precision"].map(PEAK_OF_PRECISION))
    lines = frames.table("ceilings").rename(columns={"precision": "number_format"})
    cache_bytes = lines.groupby(DEVICE)["last_level_cache_bytes"].first().rename("cache_bytes")
    frame = frame.join(cache_bytes, on=DEVICE)
    frame = pd.concat([_operations(frame, frames.table("checks")), _trainings(frame)])
    frame = frame[frame["intensity"].gt(0) & frame["flop_per_s"].gt(0)].copy()
    products = lines[lines["quantity"] == "matmul"].groupby(FORMAT)["value"].max()
    frame = frame.join(products.rename("product"), on=FORMAT)
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
