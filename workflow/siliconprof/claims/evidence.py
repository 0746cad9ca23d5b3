"""The measured data that published claims are tested with: frames of rows, and courses of some."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd

from siliconprof.analyse import scaling
from siliconprof.analyse.frames import CELL, DEVICE, POINT, Frames, holds
from siliconprof.analyse.throughputs import (
    PLACE,
    bandwidths,
    nonzero,
    step_number,
    with_datasheet,
)
from siliconprof.stats import inference
from siliconprof.store import columns

# The rows that a quantity is read from: of a table, or lines of scaling.csv about something.
POINTS, CELLS, SHAPES, BACKENDS = "points", "cells", scaling.ABOUT_SHAPE, scaling.ABOUT_BACKEND
# The paper gives no shapes but 2000 x 2000: a matrix with that many values or more counts as
# large, one with at most a quarter of them as small, and others as neither.
LARGE_VALUES, SMALL_VALUES = 2000 * 2000, 1000 * 1000
SIZED = ("matvec", "vjp", "matmul")
OPERATION = ("batch", "m", "k", "n", "of", "cache", "forward", "launch")
# Trainings that differ in any of these are different experiments, whatever their model.
SAME_TRAINING = [
    *("source", "host", "device", "backend", "precision", "data_sha256", "seed", "seq_len"),
    *("batch_size", "training_steps", "learning_rate", "warmup_steps", "decay_steps"),
    *("weight_decay", "beta1", "beta2", "max_gradient_norm"),
]
FIGURE_ENDS = ("median", "low", "high")  # of a time's columns
# By which share the larger of two models of "equal" size may exceed the smaller.
SIZE_TOLERANCE = 0.25


def fits(rows: pd.DataFrame, side: Mapping[str, Any]) -> pd.Series:
    """Which rows belong to a side of a claim."""
    mask = pd.Series(True, rows.index)
    for name, expected in side.items():
        values = expected if isinstance(expected, list) else [expected]
        of_name = rows["proportions" if name == "model" else name].isin(values)
        mask &= of_name | rows["registry_id"].isin(values) if name == "device" else of_name
    return mask


class Evidence:
    """All measured data that claims are tested with.

    Rows have all columns of points.csv and cells.csv and those of `Frames`; `any_batch_size`, of a
    training or a batched operation; and numbers of their device (`unit`) and of their `computer`.
    """

    def __init__(self, frames: Frames) -> None:
        self.frames, self.results = frames, frames.results
        self._cache: dict[tuple[str, ...], Any] = {}

    def rows(self, of: str) -> pd.DataFrame:
        """All points or cells, or the lines of scaling.csv about something."""
        if of in (POINTS, CELLS):
            return self.points if of == POINTS else self.cells
        return self._lines[self._lines["about"] == of]

    def _cached(self, name: tuple[str, ...], make: Callable[[], Any]) -> Any:
        """The cached value of this name, made by the first caller."""
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]

    @cached_property
    def cells(self) -> pd.DataFrame:
        """All cells, with words about each.

        `heat`: whether the hardware throttled while the cell ran. `support`: whether its precision is
        supported; missing after any other failure.
        """
        probes = self.results.probes
        clocks = probes[probes["probe"] == "clocks"].drop_duplicates(CELL).set_index(CELL)
        cells = _complete(self.frames.cells.sort_index())
        throttled = cells[CELL].join(clocks["throttled"], CELL)["throttled"]
        return cells.assign(
            heat=throttled.map({True: "throttled", False: "not throttled"}),
            support=cells["status"].map({"ok": "supported", "unsupported": "unsupported"}),
        )

    @cached_property
    def devices(self) -> set[str]:
        """The devices that have cells, by their own ids and the registry's."""
        return {*self.cells["device"], *self.cells["registry_id"]}

    @cached_property
    def points(self) -> pd.DataFrame:
        """The points of cells that are ok; every claim is about eager steps.

        Beside the columns of all rows: `shape_size` of an operation; `proportions`, whether a training
        is the `wide` or the `deep` one of two of equal size; `product`, FLOP/s of the fastest matrix
        product of its place and precision; `bandwidth` of its memory in bytes/s; `no_product` and
        `no_bandwidth`, why there is none; the `spread` of its step's time.
        """
        points = self.frames.undisturbed
        status = points["point_status"]
        points = points[(status.isna() | status.eq("ok")) & ~holds(points, "compile")]
        points = _complete(points.reset_index(drop=True))
        values = (points["m"] * points["k"]).where(points["module"].isin(SIZED))
        sizes = [values >= LARGE_VALUES, values.gt(0) & (values <= SMALL_VALUES)]
        here = [*PLACE, "precision"]
        products = points[points["module"].eq("matmul")].groupby(here)["flop_per_s"].max()
        tokens = points["tokens_per_s"]
        faulted = [f"{kind}_faulted_bytes_per_step" for kind in ("minor", "major")]
        made = points[here].assign(
            shape_size=np.select(sizes, ["large", "small"], ""),
            proportions=_wide_and_deep(points[points["trainer"] == "training_run"]),
            step_s=step_number(points, "median_s"),
            speed_per_s=tokens.where(nonzero(tokens), points["samples_per_s"]),
            faulted_bytes=points[faulted].sum(axis=1, skipna=False),
            no_product="no matrix product in " + points["precision"] + " was timed there",
        )
        made = made.join(products.rename("product"), here).drop(columns=here)
        spreads = spread([step_number(points, f"{p}_s") for p in FIGURE_ENDS], points["processes"])
        return pd.concat([points, made, self._bandwidths(points), spreads], axis=1).copy()

    @cached_property
    def _lines(self) -> pd.DataFrame:
        lines, cells = self.results.frame("scaling"), self.frames.cells
        own = cells[[*CELL, *cells.columns.difference(lines.columns)]]
        return _complete(lines.merge(own[own["status"] == "ok"], on=CELL))

    def courses(
        self, table: str, of: pd.DataFrame, *names: str, on: Sequence[str] = POINT
    ) -> Iterator[list[np.ndarray]]:
        """For each row, columns of a table's lines about its point or cell; missing values are NaN."""
        lines = self.results.frame(table)
        places = self._cached((table, *on), lambda: lines.groupby([*on], sort=False).indices)
        arrays = [
            self._cached((table, name), partial(lines[name].to_numpy, na_value=math.nan))
            for name in names
        ]
        for key in of[[*on]].itertuples(index=False, name=None):
            yield [array[places.get(key, [])] for array in arrays]

    def sampled(self, of: pd.DataFrame, column: str) -> Iterator[list[float]]:
        """For each row, the values of a column of samples.csv from the first timed step on."""
        steps = self.courses("training_steps", of, "started_s", "kind", on=CELL)
        samples = self.courses("samples", of, "t_s", column, on=CELL)
        for (started_s, kinds), sampled in zip(steps, samples, strict=True):
            timed = started_s[kinds != "warm-up"]
            seconds, values = (array.astype(float) for array in sampled)
            used = (abs(values) < math.inf) & (seconds >= (timed[0] if len(timed) else math.inf))
            yield values[used].tolist()

    def _bandwidths(self, points: pd.DataFrame) -> pd.DataFrame:
        """The memory bandwidth of each point's device, measured or from its data sheet."""
        found = with_datasheet(points[DEVICE], self.frames.sheets.bandwidth)
        found = found.merge(bandwidths(self.results.frame("ceilings")), "left", DEVICE)
        is_measured, is_warm = nonzero(found["ceiling"]), points["cache"].eq("warm")
        none = "no bandwidth of its memory was measured, and " + found["datasheet_reason"]
        warm = "its data may stay in a cache, so memory does not limit it"
        bandwidth = found["ceiling"].where(is_measured, found["datasheet_value"])
        return pd.DataFrame(
            {
                "bandwidth": bandwidth.mask(is_warm),
                "no_bandwidth": none.mask(is_warm, warm),
            }
        )


def _complete(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the columns that all rows have, see `Evidence`."""
    every = {
        **columns.columns_of_table(POINTS),
        **columns.columns_of_table(CELLS),
        **dict.fromkeys(OPERATION),
    }
    frame = frame.reindex(columns=frame.columns.union([*every], sort=False))
    size = frame["batch_size"]
    return frame.assign(
        any_batch_size=size.where(nonzero(size), frame["batch"]),
        unit=frame.groupby(DEVICE, sort=False).ngroup(),
        computer=frame.groupby(DEVICE[:2], sort=False).ngroup(),
    ).copy()  # in one block


def spread(times: Sequence[pd.Series], processes: pd.Series) -> pd.DataFrame:
    """The `error` of the logarithm of times, its degrees of freedom `df`, and its `basis`.

    Args:
        times: their `FIGURE_ENDS`: median, and the ends of its interval.
    """
    middle, low, high = times
    is_known = nonzero(middle) & nonzero(low) & nonzero(high)
    df = inference.degrees_of_freedom(processes)
    return pd.DataFrame(
        {
            "error": (np.log(high / low) / 2 / inference.half_width_factor(df)).where(is_known),
            "df": df,
            "basis": inference.basis(processes),
        }
    )


def _wide_and_deep(trainings: pd.DataFrame) -> pd.Series:
    """Name the `wide` and the `deep` one of like trainings of about equal size."""
    trainings = trainings[[*SAME_TRAINING, "n_parameters"]].assign(
        aspect=trainings["n_embd"] / trainings["n_layer"]
    )
    trainings = trainings[trainings["aspect"].gt(0) & trainings["n_parameters"].gt(0)]
    trainings = trainings.sort_values("n_parameters", kind="stable")
    names = pd.Series(index=trainings.index, dtype="str")
    for _, alike in trainings.groupby(SAME_TRAINING, dropna=False):
        while len(alike):
            sizes = alike["n_parameters"]
            equal = sizes <= (1 + SIZE_TOLERANCE) * sizes.iloc[0]
            aspect = alike["aspect"][equal].sort_values(kind="stable")
            if aspect.iloc[0] < aspect.iloc[-1]:
                names[aspect.index[[0, -1]]] = ["deep", "wide"]
            alike = alike[~equal]
    return names
