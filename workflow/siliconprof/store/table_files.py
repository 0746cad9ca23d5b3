"""The tidy tables as CSV files: how every stage writes and reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siliconprof import declarations
from siliconprof.errors import UserError, printable
from siliconprof.store import temporary
from siliconprof.store.cell import AXES

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
Block = tuple[Row, Mapping[str, Sequence[Any]]]  # what lines share; columns of the rest
KEY = ("source", *AXES)  # the columns that name a cell
SIDES = ("", "fast_", "slow_")  # how they begin in tables of a cell, and of pairs of cells
_left_out: set[tuple[Any, ...]] = set()  # cells that nothing reads, see `leaving_out`
# Names stay text, whatever they look like; so do the words among the parameters of points.
TEXT = {
    "source",
    "host",
    "device",
    "backend",
    "workload",
    "scenario",
    "precision",
    "module",
    "trainer",
    "device_kind",
    "status",
    "reason",
    "scenario_derived",
    "scenario_applied",
    "capacity_source",
    "limit_how",
    "limit_reason",
    "confirmed_by",
    "size",
    "weights",
    "allocator",
    "attention",
    "adamw",
    "offload",
    "effective_precision",
    "master_weights_dtype",
    "activations_dtype",
    "dataset",
    "data_sha256",
    "flags",
    "flag_details",
    "system",
    "python",
    "framework_version",
    "device_name",
    "blas",
    "git_commit",
    "started_at",
    "record",
    "record_sha256",
    "earlier_ok_record",
    "burst_reason",
    "enqueue_means",
    "cold_means",
    "cold_failures",
    "cold_reason",
    "compile_and_load_reason",
    "series",
    "device_peak_means",
    "kind",
    "name",
    "scope",
    "quality",
    "probe",
    "means",
    "model",
    "limits_means",
    "power_source",
    "power_mode",
    "low_power_means",
    "cpu_governor",
    "cpu_governor_driver",
    "gpu_means",
    "gpu_utilization_before_means",
    "device_means",
    "swap_means",
    "tool",
    "file",
    "file_sha256",
    "params",
    "stopped_by",
    "last_level_cache_source",
    "quantity",
    "unit",
    "how",
    "error_basis",
    "datasheet_source",
    "datasheet_note",
    "datasheet_reason",
    "ceiling_how",
    "noise_basis",
    "verdict",
    "point_status",
    "point_reason",
    "autorange_reason",
    "epoch_means",
    "outcome_reason",
    "prompt",
    "text",
    "resumed_at",
    "published_value",
    "claimed",
    "measured_word",
    "analogue_word",
    *(
        f"{side}_{name}"
        for side in ("fast", "slow")
        for name in (
            "source",
            "host",
            "device",
            "backend",
            "workload",
            "scenario",
            "precision",
            "how",
        )
    ),
}


def write(path: Path, lines: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
    """Write one table.

    Args:
        columns: names of the columns where there are no lines.

    Raises:
        CannotWrite: one line.
    """
    import pandas as pd

    shown = [{name: _shown(value) for name, value in line.items()} for line in lines]
    frame = pd.DataFrame(shown) if lines else pd.DataFrame(columns=list(columns))
    temporary.write(path, frame.to_csv(index=False).encode("utf-8"), sealed=True)


def write_blocks(path: Path, blocks: Iterable[Block], columns: Sequence[str]) -> None:
    """Write a long table, whose lines are never all there as dictionaries.

    Args:
        blocks: a column that a block lacks has no values there. The columns of the rest are equally
            long, and hold numbers or words that a schema lists.
        columns: names of the columns where there are no lines.

    Raises:
        CannotWrite: one line.
    """
    import pandas as pd

    values: dict[str, list[Any]] = {}
    length = 0
    for shared, rest in blocks:
        more = len(next(iter(rest.values()), ()))
        if not more:
            continue
        for name in (*shared, *rest):
            if name not in values:
                values[name] = [None] * length
        for name, column in values.items():
            column += rest[name] if name in rest else [_shown(shared.get(name))] * more
        length += more
    frame = pd.DataFrame(values) if values else pd.DataFrame(columns=list(columns))
    temporary.write(path, frame.to_csv(index=False).encode("utf-8"), sealed=True)


def _shown(value: Any) -> Any:
    """A value as pages and terminals may show it: values from tables are not checked again."""
    return printable(value) if isinstance(value, str) and not value.isprintable() else value


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What names a cell; None for each column that the row lacks."""
    return tuple(row.get(name) for name in KEY)


@contextmanager
def leaving_out(cells: Collection[tuple[Any, ...]]) -> Iterator[None]:
    """Read tables as if these cells, named by their `key`, did not exist."""
    before = set(_left_out)
    _left_out.update(cells)
    try:
        yield
    finally:
        _left_out.clear()
        _left_out.update(before)


def _kept(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that are about no cell left out."""
    for side in SIDES if _left_out else ():
        columns = [f"{side}{name}" for name in KEY]
        if set(columns) <= set(frame.columns) and len(frame):
            names = frame[columns].itertuples(index=False, name=None)
            frame = frame[[name not in _left_out for name in names]]
    return frame


def read(path: Path) -> pd.DataFrame:
    """One table without the cells that are left out; missing values are NaN.

    Raises:
        UserError: the file is missing or not a table.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(
            path, dtype=dict.fromkeys(_text(), "object"), keep_default_na=False, na_values=[""]
        )
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; `snakemake --cores 1 report` makes it") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: not a table ({' '.join(str(error).split())})") from None
    return _kept(frame)


def _text() -> set[str]:
    words = ("string", "boolean")
    return TEXT | {name for name, one in declarations.parameters().items() if one.type in words}


def rows(frame: pd.DataFrame) -> list[Row]:
    """A frame as dictionaries; missing values are None."""
    plain = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in plain]
