"""config/published/*.csv: numbers that others printed, with their source; one model for each kind of table.

A column maps the line in the file to what stands there, empty where a source has nothing, so that a
mistake is found by its column and line. Values stay texts: their digits are the source's.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import AfterValidator, create_model

from siliconprof.errors import UserError
from siliconprof.store import model
from siliconprof.store.model import Part, Text

MOST_MISTAKES = 20  # of a file that are listed


def _number(least: float, expected: str) -> Any:
    """Metadata of a text that is empty or a finite number above a least one."""

    def check(text: str) -> str:
        try:
            is_number = not text or least < float(text) < math.inf
        except ValueError:
            is_number = False
        if not is_number:
            raise ValueError(f"is {text[:60]!r}; expected {expected}")
        return text

    return AfterValidator(check)


Texts = dict[int, str]
Ids = dict[int, Text]
Numbers = dict[int, Annotated[str, _number(-math.inf, "a number")]]
Positive = dict[int, Annotated[str, _number(0, "a positive number")]]


KINDS = {  # of columns, which are alike in all tables; every other column always has a text
    **dict.fromkeys(("device_a", "device_b", "model", "unit", "note"), Texts),
    **dict.fromkeys(("value_min", "value_max"), Numbers),
    **dict.fromkeys(
        ("batch_size", "parameters_m", "theoretical_memory_gib", "memory_gb"), Positive
    ),
    **dict.fromkeys(("compute_tflops", "launch_price_usd", "pass_time_s"), Positive),
    **dict.fromkeys(("energy_per_iteration_j", "cold_launch_ms", "followup_launch_ms"), Positive),
}
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
TABLES: dict[str, type[Part]] = {
    name: create_model(
        name,
        __base__=Part,
        **{column: (KINDS.get(column, Ids), ...) for column in columns.split()},  # type: ignore[call-overload]
    )
    for name, columns in COLUMNS.items()
}


def read(folder: Path, name: str) -> pd.DataFrame:
    """One of `TABLES` as texts; what a source does not have is None.

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
    frame.index = pd.RangeIndex(2, len(frame) + 2)  # the first line has the names
    if mistakes := model.problems(TABLES[name], frame.to_dict(), f"{path}: "):
        raise UserError("\n".join(mistakes[:MOST_MISTAKES]))
    return frame.where(frame != "", None).reset_index(drop=True)
