"""config/published/*.csv: numbers that others printed, with their source. Values stay texts: their
digits are the source's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from siliconprof.errors import UserError

# Of columns, which are alike in all tables: those that may be empty, and those of numbers.
NUMBER_COLUMNS = ("value_min", "value_max")
POSITIVE = (
    *("batch_size", "parameters_m", "theoretical_memory_gib", "memory_gb", "compute_tflops"),
    *("launch_price_usd", "pass_time_s", "energy_per_iteration_j", "cold_launch_ms"),
    "followup_launch_ms",
)
MAY_BE_EMPTY = ("device_a", "device_b", "model", "unit", "note", *NUMBER_COLUMNS, *POSITIVE)
STATEMENTS = ("feng2025_statements", "wide_deep_report_speedups", "daniel2023_speedups")
PUBLISHED_TABLES = (
    *(*STATEMENTS, "table1_devices", "table2_workloads", "table3_configurations"),
    *("table4_pass_time", "table5_energy", "table6_kernel_launch"),
)


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
    if mistakes := [f"{path}: {line}" for line in _mistakes(frame)]:
        raise UserError("\n".join(mistakes))
    return frame.where(frame != "", None)


def _mistakes(frame: pd.DataFrame) -> Iterator[str]:
    """By column and line of the file, whose first has the names."""
    for column, texts in frame.items():
        is_wrong, expected = (texts == "") & (column not in MAY_BE_EMPTY), "a text"
        if column in NUMBER_COLUMNS or column in POSITIVE:
            values = pd.to_numeric(texts.where(texts != "", "1"), errors="coerce")
            expected = "a positive number" if column in POSITIVE else "a number"
            is_wrong = ~np.isfinite(values) | ((values <= 0) & (column in POSITIVE))
        for line in frame.index[is_wrong]:
            yield f"{column}.{line + 2}: is {texts[line][:60]!r}; expected {expected}"
