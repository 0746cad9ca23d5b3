"""results.csv: what a reader wants in a spreadsheet, one line per training and operation.

Its numbers are those of the page: the step with its interval, the share of the fastest product that the step may use, the flags of every check.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from siliconprof.analyse.equal_work import NO_SPEED_FLAG, flagged
from siliconprof.analyse.throughputs import DEVICE, above, ceilings_of, known
from siliconprof.declarations import PRODUCT_INTENSITY, TIMES
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.hosts.registry import PEAK_OF_PRECISION
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
    ceilings: pd.DataFrame,
    checks: pd.DataFrame,
    energy: pd.DataFrame,
    sheets: DataSheets,
) -> pd.DataFrame:
    """A line for each point of the cells that are ok, and one for each other cell.

    Args:
        points: of cells that are ok, `throughputs.described`.
        ceilings: lines of ceilings.csv, as the next two are of checks.csv and energy.csv.
    """
    shared = cells[[*CELL, "trainer", "batch_size", "status", "flags"]].join(above(checks), CELL)
    flags = shared["flags"].fillna("") + ";" + shared["above"].fillna("")
    shared = shared.assign(
        flags=flags.str.strip(";"),
        price_usd=[sheets.price_usd(row) or math.nan for row in rows(cells[DEVICE])],
    )
    of_points = _measured(points, ceilings, checks, energy)
    table = shared.merge(of_points, "left", CELL, suffixes=("", "_of_point"))
    for name in ("batch_size", "status"):
        of_point = table.pop(f"{name}_of_point")
        table[name] = of_point.where(table["point"].notna(), table[name])
    table.loc[flagged(table, NO_SPEED_FLAG), AT_FULL_SPEED] = None
    return table


def _measured(
    points: pd.DataFrame, ceilings: pd.DataFrame, checks: pd.DataFrame, energy: pd.DataFrame
) -> pd.DataFrame:
    """What points add to the columns of their cells."""
    of_bandwidth = checks[checks["quantity"] == "bytes_per_s"].set_index(POINT)["of_ceiling"]
    energy = energy.dropna(subset="energy_per_step_j").drop_duplicates(POINT).set_index(POINT)
    beside = points[POINT].join(of_bandwidth, POINT)
    beside = beside.join(energy[["energy_per_step_j", "scope"]], POINT)
    has = [known(points[f"{stem}_median_s"]) for stem in TIMES]
    step_ms = {
        f"step_{end}ms": MS * np.select(has, [points[f"{s}_{part}_s"] for s in TIMES], np.nan)
        for end, part in (("", "median"), ("low_", "low"), ("high_", "high"))
    }
    bound_by_memory = points["flops"] < PRODUCT_INTENSITY * points["bytes"]
    of_product = points["flop_per_s"] / _fastest_product(points, ceilings)
    of_product = of_product.where(points["point_disturbed"].isna())
    by_memory = ~known(points["flop_per_s"]) | (known(points["bytes"]) & bound_by_memory)
    apart = points["apart"].where(points["apart"] == "", ", " + points["apart"])
    samples = points["samples_per_step"]
    as_they_are = ["processes", "samples_per_s", "tokens_per_s", "point_disturbed"]
    return points[[*POINT, *as_they_are]].assign(
        operation=(points["how"] + apart).str.removeprefix(", "),
        batch_size=samples.where(known(samples), points["batch_size"]),
        status=points["point_status"].fillna(points["status"]),
        **step_ms,
        gflop_per_s=points["flop_per_s"] * GIGA,
        gb_per_s=points["bytes_per_s"] * GIGA,
        share_of_ceiling=beside["of_ceiling"].where(by_memory, of_product),
        peak_memory_mib=points["device_peak_bytes"] * MIB,
        energy_per_step_j=beside["energy_per_step_j"],
        energy_scope=beside["scope"],
    )


def _fastest_product(points: pd.DataFrame, ceilings: pd.DataFrame) -> pd.Series:
    """FLOP/s of the fastest product of its device by any backend, in its format or in fp32."""
    best = ceilings_of(ceilings, "matmul").groupby([*DEVICE, "format"])["ceiling"].max()
    formats = points["precision"].map(PEAK_OF_PRECISION), "fp32"
    both = [points[DEVICE].assign(format=of).join(best, [*DEVICE, "format"]) for of in formats]
    own, fp32 = (of["ceiling"] for of in both)
    return own.mask(fp32 > own, fp32)  # none without one in its own, which may be the faster
