"""results.csv: what a reader wants in a spreadsheet, one line per training and operation.

Its numbers are those of the page: the step with its interval, the share of the fastest product that the step may use, the flags of every check.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from siliconprof.analyse.equal_work import NO_SPEED_FLAG, flagged
from siliconprof.analyse.throughputs import DEVICE, above, known
from siliconprof.declarations import PRODUCT_INTENSITY, TIMES
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.store.table_files import KEY, rows

MS, GIGA, MIB = 1e3, 1e-9, 2**-20  # from seconds, from a rate, from bytes
CELL, POINT = list(KEY), [*KEY, "point"]
AT_FULL_SPEED = [
    *("step_ms", "step_low_ms", "step_high_ms", "samples_per_s", "tokens_per_s", "gflop_per_s"),
    *("gb_per_s", "share_of_ceiling", "energy_per_step_j", "energy_scope"),
]


def lines(
    cells: pd.DataFrame,
    points: pd.DataFrame,
    checks: pd.DataFrame,
    energy: pd.DataFrame,
    sheets: DataSheets,
) -> pd.DataFrame:
    """A line for each point of the cells that are ok, and one for each other cell.

    Args:
        points: of cells that are ok, `throughputs.described`.
        checks: lines of checks.csv, as `energy` are of energy.csv.
    """
    shared = cells[[*CELL, "trainer", "batch_size", "status", "flags"]].join(above(checks), CELL)
    flags = shared["flags"].fillna("") + ";" + shared["above"].fillna("")
    shared = shared.assign(
        flags=flags.str.strip(";"),
        price_usd=[sheets.price_usd(row) or math.nan for row in rows(cells[DEVICE])],
    )
    of_points = _measured(points, checks, energy)
    table = shared.merge(of_points, "left", CELL, suffixes=("", "_of_point"))
    for name in ("batch_size", "status"):
        of_point = table.pop(f"{name}_of_point")
        table[name] = of_point.where(table["point"].notna(), table[name])
    table.loc[flagged(table, NO_SPEED_FLAG), AT_FULL_SPEED] = None
    return table


def _measured(points: pd.DataFrame, checks: pd.DataFrame, energy: pd.DataFrame) -> pd.DataFrame:
    """What points add to the columns of their cells."""
    shares = {
        name: checks[checks["quantity"] == name].set_index(POINT)["of_ceiling"].rename(name)
        for name in ("flop_per_s", "bytes_per_s")
    }
    energy = energy.dropna(subset="energy_per_step_j").drop_duplicates(POINT).set_index(POINT)
    beside = points[POINT].join(energy[["energy_per_step_j", "scope"]], POINT)
    for share in shares.values():
        beside = beside.join(share, POINT)
    has = [known(points[f"{stem}_median_s"]) for stem in TIMES]
    step_ms = {
        f"step_{end}ms": MS * np.select(has, [points[f"{s}_{part}_s"] for s in TIMES], np.nan)
        for end, part in (("", "median"), ("low_", "low"), ("high_", "high"))
    }
    bound_by_memory = points["flops"] < PRODUCT_INTENSITY * points["bytes"]
    by_memory = ~known(points["flop_per_s"]) | (known(points["bytes"]) & bound_by_memory)
    apart = points["apart"].where(points["apart"] == "", ", " + points["apart"])
    samples = points["samples_per_step"]
    as_they_are = ["processes", "samples_per_s", "tokens_per_s", "point_disturbed"]
    return points[[*POINT, *as_they_are]].assign(
        operation=(points["how"] + apart).str.removeprefix(", "),
        batch_size=samples.where(known(samples), points["batch_size"]),
        status=points["point_status"].fillna(points["status"]),
        **step_ms,
        step_n=np.select(has, [points[f"{stem}_n"].astype(float) for stem in TIMES], np.nan),
        gflop_per_s=points["flop_per_s"] * GIGA,
        gb_per_s=points["bytes_per_s"] * GIGA,
        share_of_ceiling=beside["bytes_per_s"].where(by_memory, beside["flop_per_s"]),
        peak_memory_mib=points["device_peak_bytes"] * MIB,
        energy_per_step_j=beside["energy_per_step_j"],
        energy_scope=beside["scope"],
    )
