"""Records -> tidy tables: one line per cell, point, iteration, training step, sample, source of
energy, probe, operator and model, per earlier record, and per step, evaluation and text of a whole training.

    python -m siliconprof.analyse.aggregate --matrix results/matrix.json --output results/tables

Own records, of the hosts that this run measures, come from the matrix, those of other hosts from a
listing of the results, reference bundles from `--reference`. `this host` is the one that the page
is about. `outside.csv` names own records outside today's matrix; nothing uses them. A cell that
failed is a row with its status and reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from siliconprof import options
from siliconprof.analyse import equal_work, operator_rows, record_rows, step_parts
from siliconprof.errors import UserError
from siliconprof.memory import memory_model
from siliconprof.store import columns, matrix_file, record, table_files
from siliconprof.store.contents import Point
from siliconprof.store.matrix_file import Matrix
from siliconprof.store.record import HERE, IMPORTED_SOURCE, REFERENCE, foreign_records
from siliconprof.store.table_files import Block, Row, Tables

# What a table has of each point; the lines of others are of a record.
BLOCKS_OF: Mapping[str, Callable[[Point], Iterator[Block]]] = {
    "steps": record_rows.step_blocks,
    "training_steps": record_rows.training_step_blocks,
    "curves": record_rows.curve_blocks,
}
ROWS_OF: Mapping[str, Callable[[Point], Iterator[Row]]] = {
    "energy": record_rows.energy_rows,
    "operators": operator_rows.operators_of_point,
    "evaluations": lambda point: map(columns.row, point.evaluations),
    "texts": lambda point: map(columns.row, point.texts),
}
OF_RECORD = ("cells", "points", "probes", "samples", "step_parts", "history", "unreadable")


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
        yield HERE if planned.cell.host == focus else IMPORTED_SOURCE, path
    for path in foreign_records(results, matrix.labels):
        label = path.relative_to(results / "records").parts[0]
        yield HERE if label == focus else IMPORTED_SOURCE, path
    for folder in reference:
        for path in sorted((folder / "records").rglob("*.json")):
            yield REFERENCE, path


def outside(matrix: Matrix, results: Path) -> dict[str, str]:
    """Own records that belong to no cell of the matrix -> why they are not used."""
    wanted = {planned.record for planned in matrix.cells}
    own = sorted(
        path for label in matrix.labels for path in (results / "records" / label).rglob("*.json")
    )
    return {p.as_posix(): "not in this experiment" for p in own if p.as_posix() not in wanted}


def write_tables(
    records: Sequence[tuple[str, Path]], outsiders: Mapping[str, str], history: Path, output: Tables
) -> None:
    """Read and check every record and write the tables; unreadable records have a table of their own.

    Raises:
        UserError: two different records of a cell.
    """
    tables: dict[str, list[Any]] = {name: [] for name in (*OF_RECORD, *BLOCKS_OF, *ROWS_OF)}
    seen: dict[tuple[str, str], tuple[Path, str]] = {}
    for source, path in records:
        try:
            data = record.load(path, in_place=True)
        except UserError as error:
            tables["unreadable"].append({"record": path.as_posix(), "error": str(error)})
            print(error, file=sys.stderr)
            continue
        first, sha256 = seen.setdefault((source, data.cell.path), (path, data.sha256))
        if first != path:  # possible in two reference bundles of one host alone
            if sha256 == data.sha256:
                continue
            raise UserError(
                f"{path}: another record of the cell {data.cell.path} is {first}; keep one of the "
                "two bundles in config/measured/"
            )
        key = table_files.key_of(source, data.cell)
        tables["cells"].append(record_rows.cell_row(source, path, data))
        if source == HERE:
            tables["history"] += [key | row for row in record_rows.history_rows(data, history)]
        tables["points"] += [key | row for row in record_rows.point_rows(data)]
        tables["probes"] += [key | row for row in record_rows.probe_rows(data)]
        tables["samples"].append((key, record_rows.samples(data)))
        for index, point in enumerate(data.points):
            of_point = key | {"point": index}
            parts = step_parts.parts_of_point(point, data.cell.device_kind)
            tables["step_parts"] += [of_point | row for row in parts]
            for name, blocks in BLOCKS_OF.items():
                tables[name] += [(of_point | shared, rest) for shared, rest in blocks(point)]
            for name, rows in ROWS_OF.items():
                tables[name] += [of_point | row for row in rows(point)]
    equal_work.mark_other_losses(tables["cells"], tables["points"])
    for name, lines in tables.items():
        in_blocks = name == "samples" or name in BLOCKS_OF
        write = table_files.write_blocks if in_blocks else table_files.write
        write(table_files.path(output, name), lines)
    notes = [{"record": path, "note": reason} for path, reason in outsiders.items()]
    table_files.write(table_files.path(output, "outside"), notes)
    table_files.write(table_files.path(output, "models"), memory_model.model_table())


def main(
    *,
    matrix: options.Matrix,
    results: Annotated[Path | None, "of a run; default: the matrix's folder"] = None,
    reference: Annotated[Sequence[Path], "unpacked bundles", {"nargs": "*"}] = (),
    output: options.Output = (),
) -> None:
    """Write the tables."""
    cells, folder = matrix_file.read(matrix), results or matrix.parent
    records, outsiders = list(gather(cells, folder, reference)), outside(cells, folder)
    write_tables(records, outsiders, folder / "history", options.tables_of(output, matrix))


if __name__ == "__main__":
    options.run(main)
