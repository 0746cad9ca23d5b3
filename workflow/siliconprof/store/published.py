"""config/published/*.csv: numbers that others printed, with their source. Values stay texts: their
digits are the source's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from siliconprof.errors import UserError, nearest

MOST_MISTAKES = 20  # of a file that are listed
# Of columns, which are alike in all tables: those that may be empty, and those of numbers.
NUMBERS = ("value_min", "value_max")
POSITIVE = (
    *("batch_size", "parameters_m", "theoretical_memory_gib", "memory_gb", "compute_tflops"),
    *("launch_price_usd", "pass_time_s", "energy_per_iteration_j", "cold_launch_ms"),
    "followup_launch_ms",
)
MAY_BE_EMPTY = ("device_a", "device_b", "model", "unit", "note", *NUMBERS, *POSITIVE)
STATEMENTS = "device_a device_b model batch_size statement value_min value_max unit source note"
COLUMNS = {
    "feng2025_statements": STATEMENTS,
    "wide_deep_report_speedups": STATEMENTS,
    "daniel2023_speedups": STATEMENTS,
    "table1_devices": "device device_as_printed memory_gb compute_tflops launch_price_usd source note",
    "table2_workloads": "workload_as_printed parameters_m theoretical_memory_gib source note",
    "table3_configurations": "scenario workload batch_size device device_as_printed source note",
    "table4_pass_time": "device backend workload batch_size pass_time_s precision source note",
    "table5_energy": "device energy_per_iteration_j scope workload batch_size precision source note",
    "table6_kernel_launch": "device cold_launch_ms followup_launch_ms source note",
}


def read(folder: Path, name: str) -> pd.DataFrame:
    """One of the tables as texts; what a source does not have is None.

    Raises:
        UserError: all that is wrong with it, one line each.
    """
    path = folder / f"{name}.csv"
    try:
        frame = pd.read_csv(path, dtype=object, keep_default_na=False, encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None
    if mistakes := [f"{path}: {line}" for line in _mistakes(frame, COLUMNS[name].split())]:
        raise UserError("\n".join(mistakes[:MOST_MISTAKES]))
    return frame.where(frame != "", None)


def _mistakes(frame: pd.DataFrame, declared: list[str]) -> Iterator[str]:
    """By column and line of the file, whose first has the names."""
    yield from (f"{column}: is missing" for column in declared if column not in frame)
    for column, texts in frame.items():
        if column not in declared:
            near = nearest(column, declared)
            yield f"{column}: unknown column; expected one of: {', '.join(declared)}{near}"
            continue
        is_wrong, expected = (texts == "") & (column not in MAY_BE_EMPTY), "a text"
        if column in NUMBERS or column in POSITIVE:
            values = pd.to_numeric(texts.where(texts != "", "1"), errors="coerce")
            expected = "a positive number" if column in POSITIVE else "a number"
            is_wrong = ~np.isfinite(values) | ((values <= 0) & (column in POSITIVE))
        for line in frame.index[is_wrong]:
            yield f"{column}.{line + 2}: is {texts[line][:60]!r}; expected {expected}"
