"""Records -> tidy tables: one line per cell, point, iteration, training step, sample, source of
energy, probe, operator and model, per earlier record, and per step, evaluation and text of a whole training.

    python -m siliconprof.analyse.aggregate --matrix results/matrix.json --output-dir results/tables

Own records, of the hosts that this run measures, come from the matrix, those of other hosts from a
listing of the results, reference bundles from `--reference`. `this host` is the one that the page
is about. `outside.csv` names own records outside today's matrix; nothing uses them. A cell that
failed is a row with its status and reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from siliconprof import options
from siliconprof.analyse import history as history_
from siliconprof.analyse import (
    operator_rows,
    record_rows,
    step_parts,
    study_rows,
)
from siliconprof.errors import UserError, stage
from siliconprof.memory import memory_model
from siliconprof.store import matrix_file, record, table_files
from siliconprof.store.contents import Record
from siliconprof.store.matrix_file import Matrix
from siliconprof.store.records import HERE, IMPORTED, REFERENCE, foreign_records
from siliconprof.store.table_files import Block, Row

BLOCKS_OF: Mapping[str, Callable[[Record], Iterator[Block]]] = {
    "steps": record_rows.step_blocks,
    "training_steps": record_rows.training_step_blocks,
    "samples": record_rows.sample_blocks,
    "curves": study_rows.curve_blocks,
}
ROWS_OF: Mapping[str, Callable[[Record], Iterator[Row]]] = {
    "points": record_rows.point_rows,
    "energy": record_rows.energy_rows,
    "probes": record_rows.probe_rows,
    "operators": operator_rows.rows,
    "step_parts": step_parts.lines,
    "evaluations": study_rows.evaluation_rows,
    "texts": study_rows.text_rows,
}


def gather(matrix: Matrix, results: Path, reference: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """(source, path) of every record that counts.

    Args:
        reference: unpacked bundles; one whose zip is gone is not among them.

    Raises:
        UserError: an own record of the matrix is missing.
    """
    focus = matrix.host["label"]
    for planned in matrix.cells:
        path = Path(planned.record)
        if not path.is_file():
            raise UserError(f"{path}: missing; run `snakemake --cores 1 report` to measure it")
        yield HERE if planned.cell.host == focus else IMPORTED, path
    for path in foreign_records(results, matrix.labels):
        label = path.relative_to(results / "records").parts[0]
        yield HERE if label == focus else IMPORTED, path
    for folder in reference:
        for path in sorted((folder / "records").rglob("*.json")):
            yield REFERENCE, path


def outside(matrix: Matrix, results: Path) -> dict[str, str]:
    """Own records that belong to no cell of today's matrix, and are used in nothing -> why."""
    wanted = {planned.record for planned in matrix.cells}
    own = sorted(
        path for label in matrix.labels for path in (results / "records" / label).rglob("*.json")
    )
    return {p.as_posix(): "not in this experiment" for p in own if p.as_posix() not in wanted}


def write_tables(
    records: Sequence[tuple[str, Path]], outsiders: Mapping[str, str], history: Path, output: Path
) -> None:
    """Read every record, checked, and write the tables; one that cannot be read is in its own.

    Raises:
        UserError: two different records of a cell; all of them, one line each.
    """
    tables: dict[str, list[Any]] = {name: [] for name in ("cells", *BLOCKS_OF, *ROWS_OF, "history")}
    unreadable = []
    doubles = []
    seen: dict[tuple[str, str], tuple[Path, str]] = {}
    for source, path in records:
        try:
            data = record.load(path, in_place=True)
        except UserError as error:
            unreadable.append({"record": path.as_posix(), "error": str(error)})
            print(error, file=sys.stderr)
            continue
        place = (source, data.cell.path)
        first = seen.setdefault(place, (path, data.sha256))
        if first[0] != path:  # possible in two reference bundles of one host alone
            if first[1] != data.sha256:
                doubles.append(
                    f"{path}: another record of the cell {place[1]} is {first[0]}; keep one of the "
                    "two bundles in config/measured/"
                )
            continue
        cell, key = (
            record_rows.cell_row(source, path, data, history),
            table_files.key_of(source, data.cell),
        )
        tables["cells"].append(cell)
        if cell["earlier_records"]:
            tables["history"] += history_.of_cell(data, history)
        for name, blocks in BLOCKS_OF.items():
            tables[name] += [(key | shared, rest) for shared, rest in blocks(data)]
        for name, rows in ROWS_OF.items():
            tables[name] += [key | row for row in rows(data)]
    if doubles:
        raise UserError("\n".join(doubles))
    for name, lines in tables.items():
        write = table_files.write_blocks if name in BLOCKS_OF else table_files.write
        write(output / f"{name}.csv", lines)
    outside_rows = [{"record": path, "note": reason} for path, reason in outsiders.items()]
    table_files.write(output / "outside.csv", outside_rows)
    table_files.write(output / "unreadable.csv", unreadable)
    table_files.write(output / "models.csv", memory_model.model_table())


def main(argv: Sequence[str] | None = None) -> int:
    """Write the tables."""
    arguments = options.parsed(main, argv, "matrix", "results", "reference", "output-dir")
    matrix = matrix_file.read(arguments.matrix)
    results = arguments.results
    write_tables(
        list(gather(matrix, results, arguments.reference)),
        outside(matrix, results),
        results / "history",
        arguments.output_dir,
    )
    return 0


if __name__ == "__main__":
    sys.exit(stage(main))
