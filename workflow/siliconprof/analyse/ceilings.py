"""What each device can do at most by its own measurement, and which throughput claims more.

`ceilings.csv`: for every device, backend and dtype the fastest product, the bandwidth of memory
and caches, transfers, page faults and launches, each with the record that it is from and, where
the registry has one, the data sheet's figure. `checks.csv`: every throughput held against both, see
`throughputs`. `results.csv`, beside the folder of tables: what all of it comes to for each training
and operation, see `results_table`.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
import pandas as pd

from siliconprof.analyse import results_table, scaling, throughputs
from siliconprof.analyse.scaling import DISPATCH
from siliconprof.analyse.throughputs import BYTE, FLOP, PLACE, known
from siliconprof.declarations import mebibytes
from siliconprof.hosts import caches
from siliconprof.hosts.datasheet import DataSheets, Figure
from siliconprof.hosts.registry import PEAK_OF_PRECISION
from siliconprof.store import columns, table_files
from siliconprof.store.results import Results
from siliconprof.store.table_files import Row

KERNELS = ("copy", "triad", "reduction")
STEMS = ("context", "compile_and_load", "cold", "enqueue", "launch_and_wait", "amortised")
ALWAYS = "launch_and_wait"  # in the table whatever was measured
NO_SHEET = Figure(None, reason="data sheets do not give it")
SECONDS = "s"
FORMATS = {name: rank for rank, name in enumerate([*dict.fromkeys(PEAK_OF_PRECISION.values()), ""])}
GROUP = [*PLACE, "format"]  # which is empty for what has none
OF_CELL = (*PLACE, "precision", "module", "device_kind", "blas", "status", "reason")
OF_LINE = [*GROUP, "quantity", "launch"]
OF_POINT = (
    *("blas", "precision", "how", "workload", "point", "record", "processes", "launch"),
    *("launch_bound", "burst_flop_per_s"),
)


class Kind(NamedTuple):
    """A quantity of the table: the best of which workload's points, by which column."""

    quantity: str
    module: str
    unit: str
    rate: str
    stem: str = "step"  # of the series that it is made of


IN_MEMORY = [f"{what}_bandwidth" for what in (*KERNELS, "memory")]
WAYS = ("host_to_device_pinned", "host_to_device", "device_to_host_pinned", "device_to_host")
OF_FORMAT = [Kind("matmul", "matmul", FLOP, "flop_per_s")]
OF_FORMAT += [
    Kind(name, "bandwidth", BYTE, "bytes_per_s") for name in (*IN_MEMORY, "cache_bandwidth")
]
OF_BACKEND = [Kind(way, "copy", BYTE, "bytes_per_s") for way in WAYS]
OF_BACKEND += [Kind("page_fault", "first_touch", SECONDS, "fault_s_per_page")]
OF_LAUNCH = [Kind(stem, "kernel_launch", SECONDS, f"{stem}_median_s", stem) for stem in STEMS]


def lines(cells: pd.DataFrame, points: pd.DataFrame, sheets: DataSheets) -> pd.DataFrame:
    """Lines of ceilings.csv: device by device and backend by backend, format by format.

    Args:
        points: those that are `throughputs.described`.
    """
    sizes, best = throughputs.cache_sizes(cells, cells), _best(points)
    cells = cells[[*OF_CELL]].assign(cache_bytes=sizes)
    lines = _wanted(cells, best).merge(best, "left", OF_LINE, suffixes=("_of_cells", ""))
    lines = lines.merge(_statuses(cells), "left", [*GROUP, "module"])
    largest = points[points["kernel"].notna()].groupby([*PLACE, "precision"])["working_set_bytes"]
    lines = lines.join(largest.max().rename("largest"), GROUP)
    lines = throughputs.of_sheets(lines, lambda row: _sheet(row, sheets), "format", "quantity")
    measured = lines["value"].notna()
    number_format = lines["format"].where(lines["format"] != "")
    lines = lines.assign(
        blas=lines["blas"].where(measured, lines["blas_of_cells"]),
        precision=lines["precision"].where(measured, number_format),
        burst_value=lines["burst_flop_per_s"].where(lines["unit"] == FLOP),
        last_level_cache_bytes=lines["cache_bytes"],
        share=lines["value"] / lines["datasheet_value"],
        reason=throughputs.texts(lines, _reason),
    )
    return lines[[*columns.own("ceilings")]]


def _wanted(cells: pd.DataFrame, best: pd.DataFrame) -> pd.DataFrame:
    """What lines there are, in their order, each with the first cell that it is about."""
    formats = cells["precision"].map(PEAK_OF_PRECISION)
    groups = pd.concat([cells.assign(format=formats), cells.assign(format="")])
    groups = groups.assign(
        place=groups.groupby([*PLACE], sort=False).ngroup(),
        rank=groups["format"].map(FORMATS),
        is_other=groups["precision"] != groups["format"],
    )
    groups = groups.sort_values(["place", "rank", "is_other"], kind="stable")
    groups = groups.drop_duplicates(GROUP).drop(columns=["precision", "module", "status", "reason"])
    is_backend = groups["format"] == ""
    backends = groups[is_backend]
    launchers = best.loc[best["launch"] != "", [*PLACE, "launch"]].drop_duplicates()
    launches = backends.merge(launchers, "left", [*PLACE]).fillna({"launch": DISPATCH})
    launches = launches.merge(pd.DataFrame(OF_LAUNCH), how="cross")
    timed, of_stem = (frame.set_index([*PLACE, "quantity"]).index for frame in (best, launches))
    launches = launches[of_stem.isin(timed) | launches["quantity"].eq(ALWAYS)]
    of_format = groups[~is_backend].merge(pd.DataFrame(OF_FORMAT), how="cross")
    of_backend = backends.merge(pd.DataFrame(OF_BACKEND), how="cross")
    wanted = pd.concat([of_format, of_backend, launches]).fillna({"launch": ""})
    return wanted.sort_values(["place", "rank"], kind="stable", ignore_index=True)


def counting(points: pd.DataFrame) -> dict[str, pd.Series]:
    """Quantity -> which points of its workload may be the best; of others all may be.

    Args:
        points: those that are `throughputs.described`.
    """
    size, pages, cache = (points[name] for name in ("working_set_bytes", "pages", "cache_bytes"))
    of_kernel = [points[name] for name in (*PLACE, "precision", "kernel")]
    largest = size.groupby(of_kernel).transform("max")
    beyond = (2 * cache).fillna(caches.beyond_bytes(None))
    in_memory = size.eq(largest) & size.ge(beyond)
    most_pages = pages.groupby([points[name] for name in PLACE]).transform("max")
    way = points["direction"].astype("string").str.replace("-", "_")
    way += points["pinned"].astype(str).map({"True": "_pinned"}).fillna("").astype("string")
    return {
        **{f"{kernel}_bandwidth": in_memory & points["kernel"].eq(kernel) for kernel in KERNELS},
        "memory_bandwidth": in_memory,
        "cache_bandwidth": size.le(cache) & points["cache"].ne("cold"),
        **{name: way.eq(name).fillna(False).astype(bool) for name in WAYS},
        "page_fault": pages.eq(most_pages),  # what caches hold least of
    }


def _best(points: pd.DataFrame) -> pd.DataFrame:
    """The best point of every group, quantity and launch."""
    counts, found = counting(points), []
    for kind in (*OF_FORMAT, *OF_BACKEND, *OF_LAUNCH):
        counted = points["module"].eq(kind.module) & known(points[kind.rate])
        names = [kind.rate, *(f"{kind.stem}_{part}" for part in ("n", "low_s", "high_s"))]
        of = points[names][counted & counts.get(kind.quantity, True)]
        of = of.set_axis(["value", "n", "low", "high"], axis=1)
        is_of_format, least = kind in OF_FORMAT, kind.unit == SECONDS
        found.append(of.assign(quantity=kind.quantity, is_of_format=is_of_format, least=least))
    best = pd.concat(found).join(points[[*PLACE, *OF_POINT]]).reset_index(drop=True)
    best = best.fillna({"launch": ""}).assign(
        format=best["precision"].where(best["is_of_format"], "")
    )
    rank = best["value"].mask(best["least"], -best["value"])
    best = best.loc[rank.groupby([best[name] for name in OF_LINE], sort=False).idxmax()]
    bound = best["launch_bound"].eq(True).fillna(False).astype(bool)
    return best.assign(
        how=best["how"].where(~bound, best["how"] + "; launch-bound: at least this"),
        error=np.sqrt(best["high"] / best["low"].where(known(best["low"]))) - 1,
        interval=throughputs.texts(best[["processes"]], throughputs.interval_text),
    )


def _statuses(cells: pd.DataFrame) -> pd.DataFrame:
    """Of each group and workload `is_ok`, whether any cell is, and `failed`, what others say."""
    of = [*GROUP, "module"]
    said = cells["status"] + ": " + cells["reason"].astype("string")
    cells = cells.assign(is_ok=cells["status"].eq("ok"), failed=said)
    cells = pd.concat([cells.assign(format=cells["precision"]), cells.assign(format="")])
    failed = cells[~cells["is_ok"]].drop_duplicates([*of, "failed"]).sort_values("failed")
    found = cells.groupby(of)[["is_ok"]].any()
    return found.join(failed.groupby(of)[["failed"]].agg("; ".join)).reset_index()


def _sheet(line: Row, sheets: DataSheets) -> Figure:
    """What the data sheet says of a quantity."""
    if line["quantity"] == "matmul":
        return sheets.peak(line, line["format"])
    return sheets.bandwidth(line) if line["quantity"] in IN_MEMORY else NO_SHEET


def _reason(line: Row) -> str | None:
    """Why a line has no figure."""
    if line["value"] is not None:
        return None
    if line["is_ok"] is None:
        which = f"in {line['format']}" if line["format"] else "of this backend"
        return f"no {line['module']} cell {which} is part of these results"
    if not line["is_ok"]:
        return str(line["failed"])
    size = line["cache_bytes"]
    if line["quantity"] == "cache_bandwidth":
        return "nothing fits the last-level cache" if size else "the cache's size is unknown"
    if line["module"] == "bandwidth":
        cache = mebibytes(size) if size else "of unknown size"
        largest = mebibytes(line["largest"] or 0)
        return f"the largest working set, {largest}, is not twice the last-level cache, {cache}"
    if line["module"] == "kernel_launch":
        return "not part of this launch"
    return "not measured: see the flags of its cell"


def write(results: Results, sheets: DataSheets, arguments: argparse.Namespace) -> None:
    """Compute and write: the three tables, and those of grids, see `scaling`."""
    cells = results.frame("cells")
    points = throughputs.described(results.of_ok_cells(), cells)
    ceilings = lines(cells, points, sheets)
    checks = throughputs.check(points, ceilings, sheets)
    grids = scaling.points_of_grids(points, ceilings)
    tables = {
        "ceilings": ceilings,
        "checks": checks,
        "expected": scaling.expected(grids, sheets),
        "scaling": scaling.lines(grids, ceilings),
        "results": results_table.lines(
            cells, points, ceilings, checks, results.frame("energy"), sheets
        ),
    }
    for name, frame in tables.items():
        table_files.write_frame(table_files.path(arguments.output_dir, name), frame)
