"""The long tables of the page, by cell or point: raw times and losses, steps, curves, samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from siliconprof.analyse import step_parts
from siliconprof.store.table_files import KEY, Row, key, point_key

SERIES_OF_KIND = {
    "compile": "compile_step_s",
    "warm-up": "warmup_step_s",
    "split": "step_s",
    "unsplit": "unsplit_step_s",
}


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
    _timed: dict[tuple, pd.DataFrame] = field(default_factory=dict)  # courses made so far

    @cached_property
    def _series(self) -> dict[tuple, pd.DataFrame]:
        columns = [*KEY, "point", "series"]
        if self.steps.empty:
            return {}
        return {tuple(name): part for name, part in self.steps.groupby(columns, sort=False)}

    @cached_property
    def _samples(self) -> dict[tuple, pd.DataFrame]:
        return _by_cell(self.samples)

    @cached_property
    def _courses(self) -> dict[tuple, pd.DataFrame]:
        return _by_cell(self.training_steps)

    @cached_property
    def _curves(self) -> dict[tuple, pd.DataFrame]:
        return _by_point(self.curves)

    @cached_property
    def _evaluations(self) -> dict[tuple, pd.DataFrame]:
        return _by_point(self.evaluations)

    @cached_property
    def parts_of_steps(self) -> dict[tuple, dict[str, Row]]:
        """See `step_parts.by_point`."""
        return step_parts.by_point(self.step_parts)

    @cached_property
    def _operators(self) -> dict[tuple, pd.DataFrame]:
        return _by_point(self.operators, "seconds")

    def step_operators(self, point: Mapping[str, Any]) -> pd.DataFrame | None:
        """The operators of a training's step, short ones first, or None; see operators.csv."""
        return self._operators.get(point_key(point))

    def curve(self, point: Mapping[str, Any]) -> pd.DataFrame | None:
        """Every step of a whole training in order, or None; see `aggregate`'s curves.csv."""
        return self._curves.get(point_key(point))

    def evaluated(self, point: Mapping[str, Any]) -> pd.DataFrame | None:
        """The evaluations of a whole training in order, or None; see evaluations.csv."""
        return self._evaluations.get(point_key(point))

    def series(self, point: Mapping[str, Any], name: str) -> list[float]:
        """Raw values of one series of a point, by iteration: seconds, or losses."""
        frame = self._series.get((*key(point), int(point["point"]), name))
        if frame is None:
            return []
        return frame["loss" if name == "loss" else "time_s"].tolist()

    def sampled(self, cell: Mapping[str, Any]) -> pd.DataFrame | None:
        """The probes of a cell over time, or None."""
        return self._samples.get(key(cell))

    def sampled_values(self, cell: Mapping[str, Any], column: str) -> tuple[np.ndarray, np.ndarray]:
        """(seconds, values) of a column of a cell's probes where it has a value; empty without any."""
        frame = self.sampled(cell)
        if frame is None or column not in frame:
            return np.array([]), np.array([])
        known = frame[frame[column].notna()]
        return known["t_s"].to_numpy(dtype=float), known[column].to_numpy(dtype=float)

    def course(self, point: Mapping[str, Any]) -> pd.DataFrame | None:
        """The training steps of a point in order, or None.

        Columns: kind, started_s on the clock of `sampled`'s t_s, and step_s, NaN where a step's time
        is in no series.
        """
        name = key(point)
        if name in self._timed or name not in self._courses:
            return self._timed.get(name)
        frame = self._courses[name].sort_values("iteration").reset_index(drop=True)
        frame["step_s"] = float("nan")
        for kind, series in SERIES_OF_KIND.items():
            times = self.series(point, series)
            places = frame.index[frame["kind"] == kind][: len(times)]
            frame.loc[places, "step_s"] = times[: len(places)]
        self._timed[name] = frame
        return frame


def _by_point(frame: pd.DataFrame, order: str = "step") -> dict[tuple, pd.DataFrame]:
    if frame.empty:
        return {}
    frames = {}
    for name, part in frame.groupby([*KEY, "point"], sort=False):
        names: tuple[Any, ...] = tuple(name)
        ordered = part.sort_values(order, kind="stable").reset_index(drop=True)
        frames[(*names[:-1], int(names[-1]))] = ordered
    return frames


def _by_cell(frame: pd.DataFrame) -> dict[tuple, pd.DataFrame]:
    if frame.empty:
        return {}
    return {tuple(name): part for name, part in frame.groupby(list(KEY), sort=False)}
