"""results.csv: what a reader wants in a spreadsheet, one line per training and operation.

Its numbers are those of the page: the step with its interval, the share of the fastest product that the step may use, the flags of every check.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from siliconprof.analyse.equal_work import NO_SPEED_FLAG, flagged
from siliconprof.analyse.frames import CELL, DEVICE, POINT, Frames
from siliconprof.analyse.throughputs import nonzero
from siliconprof.declarations import PRODUCT_INTENSITY, TIMES
from siliconprof.formatting import GIGA, MIB
from siliconprof.store.table_files import rows

AT_FULL_SPEED = [
    *("step_ms", "step_low_ms", "step_high_ms", "samples_per_s", "tokens_per_s", "gflop_per_s"),
    *("gb_per_s", "share_of_ceiling", "energy_per_step_j", "energy_scope"),
]


def lines(frames: Frames, checks: pd.DataFrame) -> pd.DataFrame:
    """A line for each point of an ok cell, and one for each other cell.

    Args:
        checks: lines of checks.csv, which is already written: its flags are read from there.
    """
    cells, points = frames.cells.sort_index(), frames.points
    shared = cells[[*CELL, "trainer", "batch_size", "status", "flags"]].assign(
        price_usd=[frames.sheets.price_usd(row) or math.nan for row in rows(cells[DEVICE])]
    )
    energy = frames.results.frame("energy").dropna(subset="energy_per_step_j")
    energy = energy.drop_duplicates(POINT).set_index(POINT)[["energy_per_step_j", "scope"]]
    beside = points[POINT].join(energy, POINT)
    for name in ("flop_per_s", "bytes_per_s"):
        share = checks[checks["quantity"] == name].set_index(POINT)["of_ceiling"].rename(name)
        beside = beside.join(share, POINT)
    has = [nonzero(points[f"{stem}_median_s"]) for stem in TIMES]
    step_ms = {
        f"step_{end}ms": 1e3 * np.select(has, [points[f"{s}_{part}_s"] for s in TIMES], np.nan)
        for end, part in (("", "median"), ("low_", "low"), ("high_", "high"))
    }
    bound_by_memory = points["flops"] < PRODUCT_INTENSITY * points["bytes"]
    by_memory = ~nonzero(points["flop_per_s"]) | (nonzero(points["bytes"]) & bound_by_memory)
    variant = points[CELL].join(cells.set_index(CELL)["variant"], CELL)["variant"]
    variant = variant.where(points["trainer"].notna(), "").str.replace(" · ", ", ")
    samples = points["samples_per_step"]
    as_they_are = ["processes", "samples_per_s", "tokens_per_s", "point_disturbed"]
    of_points = points[[*POINT, *as_they_are]].assign(
        operation=(points["how"] + ", " + variant).str.removeprefix(", ").str.removesuffix(", "),
        batch_size=samples.where(nonzero(samples), points["batch_size"]),
        status=points["point_status"].fillna(points["status"]),
        **step_ms,
        step_n=np.select(has, [points[f"{stem}_n"].astype(float) for stem in TIMES], np.nan),
        gflop_per_s=points["flop_per_s"] / GIGA,
        gb_per_s=points["bytes_per_s"] / GIGA,
        share_of_ceiling=beside["bytes_per_s"].where(by_memory, beside["flop_per_s"]),
        peak_memory_mib=points["device_peak_bytes"] / MIB,
        energy_per_step_j=beside["energy_per_step_j"],
        energy_scope=beside["scope"],
    )
    table = shared.merge(of_points, "left", CELL, suffixes=("", "_of_point"))
    for name in ("batch_size", "status"):
        of_point = table.pop(f"{name}_of_point")
        table[name] = of_point.where(table["point"].notna(), table[name])
    table.loc[flagged(table, NO_SPEED_FLAG), AT_FULL_SPEED] = None
    return table
