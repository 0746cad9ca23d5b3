"""Expected against actual time of a grid's points, and what the grid says of its backend.

    python -m siliconprof.analyse.expected --matrix results/matrix.json --tables results/tables \
        --registry config/devices.yaml --output-dir results/tables

`expected.csv`: for every measured point of a `transformer_grid` its operations over the data
sheet's peak (seed 003's expectation) and over the fastest product that we measured on the same
device, backend and number format. `scaling.csv`: see `scaling`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from siliconprof.analyse import ceilings, scaling
from siliconprof.analyse.ceilings import Limits
from siliconprof.analyse.record_rows import KEY
from siliconprof.analyse.throughputs import Noise, metric
from siliconprof.errors import stage
from siliconprof.hosts import registry
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.store import left_out, matrix_file, noise_floors, table_files
from siliconprof.store.table_files import Row

GRID = "transformer_grid"
COLUMNS = (
    *KEY,
    "module",
    "point",
    "n_layer",
    "n_embd",
    "n_head",
    "head_dim",
    "d_ff",
    "seq_len",
    "batch_size",
    "vocab_size",
    "n_parameters",
    "tokens_per_step",
    "flops",
    "actual_s",
    "actual_q25_s",
    "actual_q75_s",
    "actual_n",
    "expected_datasheet_s",
    "datasheet_flop_per_s",
    "expected_datasheet_source",
    "expected_datasheet_note",
    "expected_datasheet_reason",
    "expected_ceiling_s",
    "ceiling_flop_per_s",
    "expected_ceiling_how",
    "expected_ceiling_reason",
    "actual_over_datasheet",
    "actual_over_ceiling",
    "tokens_per_s",
    "flop_per_s",
)
NO_FLOPS = "the point has no number of operations"


def expected_rows(points: Sequence[Row], limits: Limits, sheets: DataSheets) -> Iterator[Row]:
    """Lines of expected.csv.

    Args:
        points: measured ones of grids.
    """
    for point in points:
        own = limits.product(point)
        sheet = sheets.peak(point, point["precision"])
        flops, actual_s = point["flops"], scaling.step_s(point)
        missing = None if flops else NO_FLOPS
        row: Row = dict.fromkeys(COLUMNS) | {
            name: scaling.whole(point[name]) for name in COLUMNS if name in point
        }
        row |= {
            "point": int(point["point"]),
            "actual_s": actual_s,
            **quartiles(point),
            "expected_datasheet_s": flops / sheet.value if flops and sheet.value else None,
            "datasheet_flop_per_s": sheet.value,
            "expected_datasheet_source": sheet.source,
            "expected_datasheet_note": sheet.note,
            "expected_datasheet_reason": sheet.reason or missing,
            "expected_ceiling_s": flops / own.value if flops and own.value else None,
            "ceiling_flop_per_s": own.value,
            "expected_ceiling_how": own.how,
            "expected_ceiling_reason": (own.reason if own.value is None else None) or missing,
        }
        for name in ("datasheet", "ceiling"):
            expected_s = row[f"expected_{name}_s"]
            row[f"actual_over_{name}"] = actual_s / expected_s if expected_s else None
        yield row


def quartiles(point: Row) -> Row:
    """Spread and number of the whole steps."""
    stem = metric(point).removesuffix("_s")
    return {
        "actual_q25_s": point[f"{stem}_q25_s"],
        "actual_q75_s": point[f"{stem}_q75_s"],
        "actual_n": point[f"{stem}_n"],
    }


def grid_points(cells: Sequence[Row], points: Sequence[Row]) -> list[Row]:
    """All points of grids whose cell is ok, each with whether its cell checkpoints."""
    checkpointing = {
        tuple(cell[axis] for axis in KEY): cell["gradient_checkpointing"] for cell in cells
    }
    return [
        point | {"gradient_checkpointing": checkpointing[tuple(point[axis] for axis in KEY)]}
        for point in ceilings.measured(cells, [p for p in points if p["module"] == GRID])
    ]


def write(arguments: argparse.Namespace) -> None:
    """Compute and write: both tables."""
    matrix = matrix_file.read(arguments.matrix)
    cells, points, lines = (
        table_files.rows(table_files.read(arguments.tables / f"{name}.csv"))
        for name in ("cells", "points", "ceilings")
    )
    floors = {floor.host: floor for floor in map(noise_floors.read, arguments.noise_floors)}
    sheets = DataSheets(registry.load(arguments.registry), matrix["host"])
    limits, in_grids = Limits.of(lines, cells), grid_points(cells, points)
    measured = [point for point in in_grids if scaling.is_measured(point)]
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    table_files.write(
        arguments.output_dir / "expected.csv",
        list(expected_rows(measured, limits, sheets)),
        COLUMNS,
    )
    table_files.write(
        arguments.output_dir / "scaling.csv",
        list(scaling.rows(in_grids, limits, Noise(floors))),
        scaling.COLUMNS,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Write both tables."""
    parser = argparse.ArgumentParser(
        prog="siliconprof.analyse.expected",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--matrix", type=Path, required=True)
    parser.add_argument("--tables", type=Path, required=True, help="of aggregate and of ceilings")
    parser.add_argument("--registry", type=Path, required=True)
    parser.add_argument("--noise-floors", type=Path, nargs="*", default=[], help="of any hosts")
    parser.add_argument("--output-dir", type=Path, required=True)
    left_out.guarded("expected", write, parser.parse_args(argv))
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
