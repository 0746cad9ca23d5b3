"""Checks of its clock, its waiting and its arithmetic that a cell failed."""

import pandas as pd

from siliconprof import words
from siliconprof.analyse.frames import CELL, Frames, records
from siliconprof.render.exhibit import PLACE, Exhibit, Text

CHECKS = {  # what is checked -> its name, what it asks for, columns of what was found
    "clock": ("clock", "fine and quickly read", ["clock_resolution_s", "clock_reading_cost_s"]),
    "sleep": ("known sleep", "as long by a second clock", ["sleep_measured_s", "sleep_ratio"]),
    "twice_the_work": (
        "twice the work",
        "1.85 to 2.15 times as long",
        ["twice_product_ratio", "twice_sum_ratio"],
    ),
    "synchronisation": ("synchronisation", "results were there", ["waited_share"]),
    "marks": ("phase clock", "within 10 % of the host's", ["marks_ratio"]),
    "precision": ("precision", "the error of a product is its format's", ["product_error"]),
}


def rows(frames: Frames) -> pd.DataFrame:
    columns = {f"{name}_check": name for name in CHECKS}
    cells = frames.cells.reindex(columns=frames.cells.columns.union([*columns], sort=False))
    long = cells.melt([*CELL, "order"], [*columns], "column", "outcome")
    failed = long[long["outcome"] == "failed"].merge(cells, on=[*CELL, "order"])
    check = failed["column"].map(columns)
    return failed.assign(
        check=check.map({name: title for name, (title, _, _) in CHECKS.items()}),
        asks=check.map({name: asks for name, (_, asks, _) in CHECKS.items()}),
        found=[_found(row, columns[row["column"]]) for row in records(failed)],
    ).sort_values(["check", "order"], kind="stable")


def _found(row: dict, check: str) -> str:
    """`waited share 0.2`, or the check's own reason."""
    values = {name: words.number(row.get(name)) for name in CHECKS[check][2]}
    known = [
        f"{name.removesuffix('_s').replace('_', ' ')} {value:.3g}{' s' * name.endswith('_s')}"
        for name, value in values.items()
        if value is not None
    ]
    return ", ".join(known) or str(row.get(f"{check}_check_reason") or "")


EXHIBIT = Exhibit(
    id="failed-checks",
    rows=rows,
    table=(
        Text("check", "Check", below="asks"),
        *PLACE,
        Text("workload", "Workload"),
        Text("found", "Found", prose=True),
    ),
    needs="No cell failed a check of its clock, its waiting or its arithmetic.",
)
