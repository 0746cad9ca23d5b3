"""The long tables of the page, by cell or point: raw times and losses, steps, curves, samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from siliconprof.analyse import step_parts
from siliconprof.store.table_files import KEY, Row, key, point_key

POINT = (*KEY, "point")


@dataclass
class Traces:
    """The long tables: every raw time and loss, every training step, every sample of the probes."""

    steps: pd.DataFrame
    samples: pd.DataFrame
    training_steps: pd.DataFrame
    curves: pd.DataFrame = field(default_factory=pd.DataFrame)
    evaluations: pd.DataFrame = field(default_factory=pd.DataFrame)
    operators: pd.DataFrame = field(default_factory=pd.DataFrame)
    step_parts: pd.DataFrame = field(default_factory=pd.DataFrame)

    def __post_init__(self) -> None:
        self._by_name: dict[str, dict[tuple, pd.DataFrame]] = {}  # of a table, made so far

    def _lines(
        self, table: str, name: tuple, columns: Sequence[str] = POINT, order: str | None = None
    ) -> pd.DataFrame | None:
        """The lines of a table that are about one cell or point, or None."""
        if table not in self._by_name:
            self._by_name[table] = _split(getattr(self, table), columns, order)
        return self._by_name[table].get(name)

    @cached_property
    def _series(self) -> Mapping[Any, Any]:
        """Where the lines of each series of a point are."""
        names = [*POINT, "series"]
        return {} if self.steps.empty else self.steps.groupby(names, sort=False).indices

    @cached_property
    def parts_of_steps(self) -> dict[tuple, dict[str, Row]]:
        """See `step_parts.by_point`."""
        return step_parts.by_point(self.step_parts)

    def step_operators(self, point: Mapping[str, Any]) -> pd.DataFrame | None:
        """The operators of a training's step, short ones first, or None; see operators.csv."""
        return self._lines("operators", point_key(point), order="seconds")

    def curve(self, point: Mapping[str, Any]) -> pd.DataFrame | None:
        """Every step of a whole training in order, or None; see `aggregate`'s curves.csv."""
        return self._lines("curves", point_key(point), order="step")

    def curve_values(self, point: Mapping[str, Any], column: str) -> np.ndarray:
        """One column of a training's curve by step; empty when there is none."""
        frame = self.curve(point)
        if frame is None or column not in frame:
            return np.array([])
        return frame[column].to_numpy(dtype=float)

    def evaluated(self, point: Mapping[str, Any]) -> pd.DataFrame | None:
        """The evaluations of a whole training in order, or None; see evaluations.csv."""
        return self._lines("evaluations", point_key(point), order="step")

    def series(self, point: Mapping[str, Any], name: str) -> list[float]:
        """Raw values of one series of a point, by iteration: seconds, or losses."""
        where = self._series.get((*point_key(point), name))
        if where is None:
            return []
        return self.steps["loss" if name == "loss" else "time_s"].to_numpy()[where].tolist()

    def sampled_values(self, cell: Mapping[str, Any], column: str) -> tuple[np.ndarray, np.ndarray]:
        """(seconds, values) of a column of a cell's probes where it has a value; empty without any."""
        frame = self._lines("samples", key(cell), KEY)
        if frame is None or column not in frame:
            return np.array([]), np.array([])
        known = frame[frame[column].notna()]
        return known["t_s"].to_numpy(dtype=float), known[column].to_numpy(dtype=float)

    def course(self, cell: Mapping[str, Any]) -> pd.DataFrame | None:
        """The training steps of a cell in order, or None: kind, and started_s on the probes' clock."""
        return self._lines("training_steps", key(cell), KEY, order="iteration")


def _split(
    frame: pd.DataFrame, columns: Sequence[str], order: str | None = None
) -> dict[tuple, pd.DataFrame]:
    """The lines of each cell, point or series, by what names it; in order of a column."""
    if frame.empty:
        return {}
    if order:
        frame = frame.sort_values(order, kind="stable")
    groups = frame.groupby(list(columns), sort=False)
    return {tuple(name): part.reset_index(drop=True) for name, part in groups}
