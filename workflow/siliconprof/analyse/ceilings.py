"""What each device can do at most by its own measurement, and which throughput claims more.

`ceilings.csv`: for every device, backend and dtype the fastest product, the bandwidth of memory
and caches, and launches in a row that were measured, each with the record that it is from and, where
the registry has one, the data sheet's figure. `checks.csv`: every throughput held against both, see
`throughputs`.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from siliconprof import formatting
from siliconprof.analyse import results_table, scaling, throughputs
from siliconprof.analyse.frames import Frames
from siliconprof.analyse.scaling import AMORTISED, DISPATCH
from siliconprof.analyse.throughputs import BYTE, FLOP, PLACE, nonzero
from siliconprof.hosts import caches
from siliconprof.hosts.datasheet import DataSheets, Figure
from siliconprof.hosts.registry import PEAK_OF_PRECISION
from siliconprof.store import columns, table_files
from siliconprof.store.table_files import Row, Tables

KERNELS = ("copy", "triad", "reduction")
NO_SHEET = Figure(None, reason="data sheets do not give it")
SECONDS = "s"
FORMATS = [*dict.fromkeys(PEAK_OF_PRECISION.values()), ""]  # the last of what has none
OF_LINE = [*PLACE, "format", "quantity"]
OF_POINT = (
    *("precision", "how", "workload", "record", "launch_bound", "cache_bytes"),
    *("gpu_measured_s", "gpu_sm_clock_mhz", "gpu_power_w", "gpu_limits"),
)


class Kind(NamedTuple):
    """A quantity of the table, and the workload and column whose best point gives it."""

    quantity: str
    module: str
    unit: str
    rate: str
    stem: str = "step"  # of the series that it is made of


IN_MEMORY = [f"{what}_bandwidth" for what in (*KERNELS, "memory")]
CEILING_KINDS = (
    Kind("matmul", "matmul", FLOP, "flop_per_s"),
    *(Kind(name, "bandwidth", BYTE, "bytes_per_s") for name in (*IN_MEMORY, "cache_bandwidth")),
    Kind(AMORTISED, "kernel_launch", SECONDS, "amortised_median_s", "amortised"),
)


def lines(points: pd.DataFrame, sheets: DataSheets) -> pd.DataFrame:
    """Lines of ceilings.csv: device by device and backend by backend, format by format.

    Args:
        points: of `Frames`.
    """
    lines = throughputs.with_datasheet(
        _best(points), lambda row: _sheet(row, sheets), *OF_LINE[-2:]
    )
    lines = lines.assign(
        last_level_cache_bytes=lines["cache_bytes"],
        share=lines["value"] / lines["datasheet_value"],
        place=lines.groupby(PLACE, sort=False).ngroup(),
        rank=lines["format"].map(FORMATS.index),
    )
    return lines.sort_values(["place", "rank"], kind="stable")[
        [*columns.declared_columns("ceilings")]
    ]


def counting(points: pd.DataFrame) -> dict[str, pd.Series]:
    """Quantity -> mask of the points that may give it; a quantity not listed takes all.

    Args:
        points: of `Frames`.
    """
    size, cache = points["working_set_bytes"], points["cache_bytes"]
    of_kernel = [points[name] for name in (*PLACE, "precision", "kernel")]
    largest = size.groupby(of_kernel).transform("max")
    beyond = (2 * cache).fillna(caches.beyond_bytes(None))
    in_memory = size.eq(largest) & size.ge(beyond)
    return {
        **{f"{kernel}_bandwidth": in_memory & points["kernel"].eq(kernel) for kernel in KERNELS},
        "memory_bandwidth": in_memory,
        "cache_bandwidth": size.le(cache) & points["cache"].ne("cold"),
        AMORTISED: points["launch"].eq(DISPATCH),
    }


def _best(points: pd.DataFrame) -> pd.DataFrame:
    counts, found = counting(points), []
    for kind in CEILING_KINDS:
        counted = points["module"].eq(kind.module) & nonzero(points[kind.rate])
        counted &= points["precision"].isin(FORMATS) & counts.get(kind.quantity, True)
        of = points[counted]
        value, s = of[kind.rate], of[f"{kind.stem}_median_s"]
        ends = (of[f"{kind.stem}_{end}_s"].where(lambda s: nonzero(s)) for end in ("low", "high"))
        low, high = ends if kind.unit == SECONDS else reversed([value * s / end for end in ends])
        numbers = {
            "value": value,
            "value_low": low,
            "value_high": high,
            "error": (high - low) / 2 / value,
            # Between processes there is an interval of two.
            "n": of[f"{kind.stem}_n"].mask(of["processes"].gt(1)),
        }
        found.append(pd.DataFrame({"quantity": kind.quantity, "unit": kind.unit} | numbers))
    best = pd.concat(found).join(points[[*PLACE, *OF_POINT]]).reset_index(drop=True)
    is_time = best["unit"] == SECONDS
    best["format"] = best["precision"].mask(is_time, "")
    rank = best["value"].mask(is_time, -best["value"])
    best = best.loc[rank.groupby([best[name] for name in OF_LINE], sort=False).idxmax()]
    bound = best["launch_bound"].eq(True).fillna(False).astype(bool)
    how = best["how"].where(~bound, best["how"] + "; launch-bound: at least this")
    return best.assign(how=how + pd.Series(map(_of_gpu, table_files.rows(best)), best.index, str))


def _of_gpu(line: Row) -> str:
    """`; 0.3 s at 1,530 MHz and 612 W (power cap)`, as far as it is known."""
    if line["gpu_measured_s"] is None:
        return ""
    at = [
        f"{line[name]:,.0f} {unit}"
        for name, unit in (("gpu_sm_clock_mhz", "MHz"), ("gpu_power_w", "W"))
        if line[name] is not None
    ]
    limits = f" ({line['gpu_limits']})" if line["gpu_limits"] else ""
    text = f"; {formatting.duration(line['gpu_measured_s'])}"
    return text + (f" at {' and '.join(at)}{limits}" if at else "")


def _sheet(line: Row, sheets: DataSheets) -> Figure:
    if line["quantity"] == "matmul":
        return sheets.peak(line, line["format"])
    return sheets.bandwidth(line) if line["quantity"] in IN_MEMORY else NO_SHEET


def write(frames: Frames, output: Tables) -> None:
    """Compute and write ceilings, checks and results, and the tables of grids, see `scaling`."""
    points = frames.undisturbed
    ceilings = lines(points, frames.sheets)
    checks = throughputs.check(points, ceilings, frames.sheets)
    grids = scaling.points_of_grids(points, ceilings)
    tables = {
        "ceilings": ceilings,
        "checks": checks,
        "expected": scaling.expected(grids),
        "scaling": scaling.lines(grids, ceilings),
    }
    for name, frame in tables.items():
        table_files.write_frame(table_files.path(output, name), frame)
    results = results_table.lines(frames, checks)
    table_files.write_frame(table_files.path(output, "results"), results)
