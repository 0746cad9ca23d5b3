"""config/published/*.csv: numbers that others printed, with their source; one model for each kind of table.

A column maps the line in the file to what stands there, empty where a source has nothing, so that a
mistake is found by its column and line. Values stay texts: their digits are the source's.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import AfterValidator

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


class Table(Part):
    """What every table has."""

    source: Ids
    note: Texts


class Statements(Table):
    """Statements with a number or a sign that a measurement can test: a against b."""

    device_a: Texts
    device_b: Texts
    model: Texts
    batch_size: Positive
    statement: Ids
    value_min: Numbers
    value_max: Numbers
    unit: Texts


class Devices(Table):
    """The paper's Table 1."""

    device: Ids
    device_as_printed: Ids
    memory_gb: Positive
    compute_tflops: Positive
    launch_price_usd: Positive


class Workloads(Table):
    """The paper's Table 2."""

    workload_as_printed: Ids
    parameters_m: Positive
    theoretical_memory_gib: Positive


class Configurations(Table):
    """The paper's Table 3."""

    scenario: Ids
    workload: Ids
    batch_size: Positive
    device: Ids
    device_as_printed: Ids


class PassTimes(Table):
    """The paper's Table 4."""

    device: Ids
    backend: Ids
    workload: Ids
    batch_size: Positive
    pass_time_s: Positive
    precision: Ids


class Energies(Table):
    """The paper's Table 5."""

    device: Ids
    energy_per_iteration_j: Positive
    scope: Ids
    workload: Ids
    batch_size: Positive
    precision: Ids


class Launches(Table):
    """The paper's Table 6."""

    device: Ids
    cold_launch_ms: Positive
    followup_launch_ms: Positive


TABLES: dict[str, type[Table]] = {
    "feng2025_statements": Statements,
    "wide_deep_report_speedups": Statements,
    "daniel2023_speedups": Statements,
    "table1_devices": Devices,
    "table2_workloads": Workloads,
    "table3_configurations": Configurations,
    "table4_pass_time": PassTimes,
    "table5_energy": Energies,
    "table6_kernel_launch": Launches,
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
    if mistakes := model.mistakes(TABLES[name], frame.to_dict(), f"{path}: "):
        raise UserError("\n".join(mistakes[:MOST_MISTAKES]))
    return frame.where(frame != "", None).reset_index(drop=True)
