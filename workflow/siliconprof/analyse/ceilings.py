"""What each device can do at most by its own measurement, and which throughput claims more.

`ceilings.csv`: for every device, backend and dtype the fastest product, the bandwidth of memory
and caches, transfers, page faults and launches, each with the record that it is from and, where
the registry has one, the data sheet's figure. Others look them up in `throughputs.Ceilings`. `checks.csv`:
every throughput held against both, see `throughputs`. `results.csv`, beside the folder of tables:
what all of it comes to for each training and operation, see `results_table`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from siliconprof.analyse import results_table, throughputs
from siliconprof.analyse.throughputs import (
    BYTE,
    FLOP,
    PLACE,
    Ceilings,
    cache_sizes,
    describe,
    device_of,
    estimate,
    interval_text,
    place,
)
from siliconprof.hosts import caches, registry
from siliconprof.hosts.datasheet import DataSheets, Figure
from siliconprof.hosts.registry import PEAK_OF_PRECISION
from siliconprof.store import columns, contents, matrix_file, table_files
from siliconprof.store.results import Results
from siliconprof.store.table_files import Row, grouped

KERNELS = ("copy", "triad", "reduction")
LAUNCH_STEMS = ("context", "compile_and_load", "cold", "enqueue", "launch_and_wait", "amortised")
NO_SHEET = "data sheets do not give it"
SECONDS = "s"


@dataclass(frozen=True)
class Kind:
    """One line of the table: which points count for it, and how their figure is made."""

    quantity: str
    module: str
    unit: str
    rate: str  # the column of a point that has the figure
    counts: Callable[[Row], bool] = lambda point: True
    series: str = "step_s"  # which the figure is made of
    least: bool = False  # whether the smallest is the best: times
    # why there is none, where cells were measured
    none: str = "not measured: see the flags of its cell"


def kinds_of_format(points: Sequence[Row], cache_bytes: int | None) -> list[Kind]:
    """What is measured for every number format.

    Args:
        points: those of one format.
    """
    beyond = caches.beyond_bytes(cache_bytes)
    largest = {
        kernel: max(
            (p["working_set_bytes"] for p in points if p.get("kernel") == kernel), default=0
        )
        for kernel in KERNELS
    }
    size = throughputs.mebibytes(max(largest.values()))
    cache = throughputs.mebibytes(cache_bytes) if cache_bytes else "of unknown size"
    small = f"the largest working set, {size}, is not twice the last-level cache, {cache}"

    def in_memory(*kernels: str) -> Callable[[Row], bool]:
        return lambda p: (
            p.get("kernel") in kernels
            and p["working_set_bytes"] == largest[p["kernel"]]
            and p["working_set_bytes"] >= beyond
        )

    def in_cache(point: Row) -> bool:
        fits = point["working_set_bytes"] <= (cache_bytes or 0)
        return fits and point.get("cache") != "cold"

    unknown = "nothing fits the last-level cache" if cache_bytes else "the cache's size is unknown"
    bandwidths = [
        *((kernel, in_memory(kernel), small) for kernel in KERNELS),
        ("memory", in_memory(*KERNELS), small),
        ("cache", in_cache, unknown),
    ]
    return [
        Kind("matmul", "matmul", FLOP, "flop_per_s"),
        *(
            Kind(f"{of}_bandwidth", "bandwidth", BYTE, "bytes_per_s", counts, none=none)
            for of, counts, none in bandwidths
        ),
    ]


def kinds_of_backend(points: Sequence[Row]) -> list[Kind]:
    """What has no number format: transfers, page faults, launches.

    Args:
        points: of all formats.
    """

    def transfers(way: str, end: str) -> Callable[[Row], bool]:
        return lambda p: p.get("direction") == way and str(p["pinned"]) == str(bool(end))

    def launched(what: str) -> Callable[[Row], bool]:
        return lambda p: p.get("launch") == what

    def keeps_out(point: Row) -> bool:  # of the caches: the largest
        return point["pages"] == most_pages

    most_pages = max((p["pages"] for p in points if p.get("pages")), default=0)
    launchers = dict.fromkeys(p["launch"] for p in points if p.get("launch")) or {"dispatch": None}
    return [
        *(
            Kind(f"{way.replace('-', '_')}{end}", "copy", BYTE, "bytes_per_s", transfers(way, end))
            for way in ("host-to-device", "device-to-host")
            for end in ("_pinned", "")
        ),
        Kind("page_fault", "first_touch", SECONDS, "fault_s_per_page", keeps_out, least=True),
        *(
            Kind(
                stem,
                "kernel_launch",
                SECONDS,
                f"{stem}_median_s",
                launched(what),
                f"{stem}_s",
                least=True,
                none="not part of this launch",
            )
            for what in launchers
            for stem in LAUNCH_STEMS
            if stem == "launch_and_wait" or any(p.get(f"{stem}_median_s") for p in points)
        ),
    ]


class Table:
    """Makes the lines of ceilings.csv from measured points."""

    def __init__(self, cells: Sequence[Row], points: Sequence[Row], sheets: DataSheets) -> None:
        self.cells, self.points, self.sheets = cells, points, sheets
        self.caches = cache_sizes(cells)

    def rows(self) -> Iterator[Row]:
        """Device by device and backend by backend, format by format."""
        points_of = grouped(self.points, place)
        for where, cells in grouped(self.cells, place).items():
            points, used = points_of.get(where, []), {cell["precision"] for cell in cells}
            formats = [PEAK_OF_PRECISION[name] for name in PEAK_OF_PRECISION if name in used]
            for number_format in dict.fromkeys(formats):
                yield from self._lines(
                    [cell for cell in cells if cell["precision"] == number_format] or cells[:1],
                    [point for point in points if point["precision"] == number_format],
                    number_format,
                )
            yield from self._lines(cells, points, None)

    def _lines(
        self, cells: Sequence[Row], points: Sequence[Row], number_format: str | None
    ) -> Iterator[Row]:
        size = self.caches.get(device_of(cells[0]))
        kinds = kinds_of_format(points, size) if number_format else kinds_of_backend(points)
        for kind in kinds:
            yield self._line(kind, cells, points, number_format) | {"last_level_cache_bytes": size}

    def _line(
        self, kind: Kind, cells: Sequence[Row], points: Sequence[Row], number_format: str | None
    ) -> Row:
        candidates = [
            (value, point)
            for point in points
            if point["module"] == kind.module
            and kind.counts(point)
            and (value := point.get(kind.rate))
        ]
        first = cells[0]
        sheet = self._sheet(kind, first, number_format)
        line: Row = (
            columns.blank("ceilings")
            | {name: first[name] for name in (*PLACE, "device_kind", "blas")}
            | {"precision": number_format, "quantity": kind.quantity, "unit": kind.unit}
            | contents.columns(sheet, "datasheet_")
        )
        if not candidates:
            return line | {"reason": why_none(kind, cells, number_format)}
        value, point = (min if kind.least else max)(candidates, key=lambda pair: pair[0])
        how = describe(point)
        if point.get("launch_bound"):
            how += "; launch-bound: at least this"
        stem = kind.series.removesuffix("_s")
        known = estimate(point, stem)
        return line | {
            "blas": point["blas"],
            "precision": point["precision"],
            "value": value,
            "how": how,
            "workload": point["workload"],
            "point": int(point["point"]),
            "record": point["record"],
            "n": point.get(f"{stem}_n"),
            "error": known.interval()[1] / known.ratio - 1 if known else None,
            "interval": interval_text(point),
            "burst_value": point["burst_flop_per_s"] if kind.unit == FLOP else None,
            "share": value / sheet.value if sheet.value else None,
        }

    def _sheet(self, kind: Kind, row: Row, number_format: str | None) -> Figure:
        """What the data sheet says of a quantity."""
        if kind.unit == FLOP and number_format:
            return self.sheets.peak(row, number_format)
        if kind.quantity.endswith("_bandwidth") and kind.quantity != "cache_bandwidth":
            return self.sheets.bandwidth(row)
        return Figure(None, reason=NO_SHEET)


def why_none(kind: Kind, cells: Sequence[Row], number_format: str | None) -> str:
    """Why a line has no figure."""
    of_module = [cell for cell in cells if cell["module"] == kind.module]
    own = [cell for cell in of_module if number_format in (None, cell["precision"])]
    if not own:
        which = f"in {number_format}" if number_format else "of this backend"
        return f"no {kind.module} cell {which} is part of these results"
    failed = sorted({f"{c['status']}: {c['reason']}" for c in own if c["status"] != "ok"})
    return kind.none if any(c["status"] == "ok" for c in own) else "; ".join(failed)


def write(results: Results, arguments: argparse.Namespace) -> None:
    """Compute and write: all three tables."""
    matrix = matrix_file.read(arguments.matrix)
    sheets = DataSheets(registry.load(arguments.registry), matrix.host)
    points = table_files.rows(results.of_ok_cells())
    table = Table(results.rows("cells"), points, sheets)
    lines = list(table.rows())
    checks = list(throughputs.check(points, Ceilings.of(lines, table.cells), sheets))
    table_files.write(arguments.output_dir / "ceilings.csv", lines)
    table_files.write(arguments.output_dir / "checks.csv", checks)
    products = [line for line in lines if line["quantity"] == "matmul"]
    listed = results_table.Table(products, checks, results.rows("energy"), sheets)
    table_files.write(
        table_files.path(arguments.output_dir, "results"),
        list(listed.rows(results.rows("cells"), points)),
    )
