"""Expected against actual time of a grid's points, and what the grid says of its backend.

`expected.csv`: for every measured point of a `transformer_grid` its operations over the data
sheet's peak (the wide/deep report's expectation) and over the fastest product that we measured on the same
device, backend and number format. `scaling.csv`: see `scaling`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from siliconprof.analyse import scaling
from siliconprof.analyse.throughputs import Ceilings, metric, step_s
from siliconprof.hosts import registry
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.store import columns, matrix_file, table_files
from siliconprof.store.results import Results
from siliconprof.store.table_files import Row

GRID = "transformer_grid"
NO_FLOPS = "the point has no number of operations"


def expected_rows(points: Sequence[Row], ceilings: Ceilings, sheets: DataSheets) -> Iterator[Row]:
    """Lines of expected.csv.

    Args:
        points: measured ones of grids.
    """
    for point in points:
        own = ceilings.product(point)
        sheet = sheets.peak(point, point["precision"])
        flops, actual_s = point["flops"], step_s(point)
        stem = metric(point).removesuffix("_s")
        row = columns.blank("expected")
        row |= {name: scaling.whole(point[name]) for name in row if name in point}
        row |= {
            "point": int(point["point"]),
            "actual_s": actual_s,
            **{f"actual_{end}": point[f"{stem}_{end}"] for end in ("q25_s", "q75_s", "n")},
            "expected_datasheet_source": sheet.source,
            "expected_datasheet_note": sheet.note,
            "expected_ceiling_how": own.how,
        }
        for name, most in (("datasheet", sheet), ("ceiling", own)):
            expected_s = flops / most.value if flops and most.value else None
            why = most.reason if most.value is None else None
            row |= {
                f"expected_{name}_s": expected_s,
                f"{name}_flop_per_s": most.value,
                f"expected_{name}_reason": why or (None if flops else NO_FLOPS),
                f"actual_over_{name}": actual_s / expected_s if expected_s else None,
            }
        yield row


def write(results: Results, arguments: argparse.Namespace) -> None:
    """Compute and write: both tables."""
    matrix = matrix_file.read(arguments.matrix)
    sheets = DataSheets(registry.load(arguments.registry), matrix.host)
    ceilings = Ceilings.of(results.rows("ceilings"), results.rows("cells"))
    points = table_files.rows(results.of_ok_cells())
    in_grids = [point for point in points if point["module"] == GRID]
    measured = [point for point in in_grids if scaling.is_measured(point)]
    folder = arguments.output_dir
    table_files.write(folder / "expected.csv", list(expected_rows(measured, ceilings, sheets)))
    table_files.write(folder / "scaling.csv", list(scaling.rows(in_grids, ceilings)))
