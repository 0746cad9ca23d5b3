"""Predict a training's step from the operators of other trainings on its device.

`predicted.csv`: for each training whose operators were timed, the step predicted by all other
trainings with its device, backend and threads, and the measured step. An operator that others ran
on the same shapes takes the same time. Any other takes the time of its kind's line: a call's
seconds over its bytes and FLOP, fitted to nearby sizes. The framework's time is a line over a
step's calls and bytes, fitted mostly to trainings of the same model. On a GPU that line gives the
time in which the host dispatches a step, and the longer of host and operators bounds the step. The
sum is scaled by how much longer the others' whole steps last than their parts. Trainings that other
processes disturbed predict nothing, and nothing is predicted where operators of unknown kinds may
take more than a little of the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from siliconprof import formatting
from siliconprof.analyse.attribution import STEP_MEDIAN
from siliconprof.analyse.equal_work import DISTURBED, flagged
from siliconprof.analyse.frames import CELL, POINT, Frames
from siliconprof.analyse.operator_rows import ATTENTION, FRAMEWORK, PARTS
from siliconprof.analyse.step_parts import MOST_OF_A_STEP
from siliconprof.analyse.throughputs import PLACE
from siliconprof.store import table_files
from siliconprof.store.table_files import Tables

PLACE_WITH_THREADS = [*PLACE, "threads"]
MODEL = ["module", "trainer", "lora_rank", "precision"]  # on these the framework's time depends
KIND = ["name", "dtype"]  # operators of one kind share a line
OPERATOR_SIZES = ["bytes", "flops"]
TIMED_ELSEWHERE, BY_LINE, UNSEEN = "timed elsewhere", "by its kind's line", "of an unseen kind"
UNSEEN_AT_MOST = 0.05  # of the predicted time
# A call of an unseen kind may take as long as this quantile of all calls, for its size.
SLOWEST = 0.95
FEWEST_SIZES = 2  # of a kind, for a line
# The fixed cost of a call is at most this quantile of the calls of all kinds and sizes.
SHORTEST = 0.25
REACH = 8.0  # a line is not extrapolated beyond this factor from the nearest timed size
NEAR_FACTOR = 4.0  # a size that differs by this factor has the weight exp(-1/2)
# Fits of a line. The first minimises errors relative to the times, and is too low where these scatter;
# the others minimise errors relative to the fit before.
LINE_FITS = 3
# Weights of another model's trainings in the framework's line, by the same trainer and by another one.
LIKE_WEIGHT, OTHER_WEIGHT = 0.1, 0.01
SHORT_S = 5e-6  # errors are relative to a call's time, at least to this: less is noise
NO_OTHER_TRAINING = "no other training on its device has operators that were timed undisturbed"


class Prediction(NamedTuple):
    """The predicted step of a training."""

    parts: Mapping[str, float]  # of `PARTS` -> seconds
    shares: Mapping[str, float]  # how an operator's time is known -> share of all operators' time
    closure: float  # the step over the sum of its parts
    unseen: pd.Series  # kind that no line covers -> what it might take, seconds

    @property
    def seconds(self) -> float:
        """The whole step, also where `refusal` says not to show it."""
        return self.closure * sum(self.parts.values())

    @property
    def refusal(self) -> str | None:
        """Why the prediction is not shown; None where it is."""
        if self.shares[UNSEEN] <= UNSEEN_AT_MOST:
            return None
        kinds = ", ".join(self.unseen.sort_values(ascending=False, kind="stable").index[:3])
        return (
            f"operators of which no training tells, such as {kinds}, may take "
            f"{formatting.percent(self.shares[UNSEEN])} of its operators' time; beyond "
            f"{formatting.whole_percent(UNSEEN_AT_MOST)} nothing is predicted"
        )


class Errors(NamedTuple):
    """How far predictions are off from measured steps."""

    trainings: int
    median_size: float  # of |predicted / measured - 1|
    worst: float  # with its sign

    def __str__(self) -> str:
        return (
            f"{formatting.whole_percent(self.median_size)} off in the median of "
            f"{formatting.count(self.trainings, 'step')}, at worst {formatting.change(self.worst)}"
        )


def errors(predicted: pd.DataFrame) -> Errors | None:
    """The errors of lines of predicted.csv; None where nothing was predicted."""
    off = predicted.reindex(columns=["error"])["error"].dropna().astype(float)
    if off.empty:
        return None
    return Errors(len(off), float(off.abs().median()), max(off, key=abs))


class Line:
    """A linear model of a call's seconds over its features, fitted anew around each size asked for.

    Args:
        features: (calls, features), at least 0.
        seconds: of each call.
        fixed_s: the most that a call costs however small it is.
    """

    def __init__(self, features: Any, seconds: Any, fixed_s: float = math.inf) -> None:
        self.features = np.asarray(features, dtype=float)
        self.seconds = np.asarray(seconds, dtype=float)
        self.fixed_s = fixed_s

    def through(self, calls: Sequence[int]) -> Line:
        """The line fitted to some of the calls alone."""
        return Line(self.features[calls], self.seconds[calls], self.fixed_s)

    def at(self, features: Sequence[float]) -> tuple[float, float]:
        """(seconds, how many times larger or smaller the nearest call is)."""
        call = np.array(features, dtype=float)
        # log ratio of the feature that differs most
        distance = np.abs(np.log((self.features + 1.0) / (call + 1.0))).max(axis=1)
        weight = np.exp(-((distance / math.log(NEAR_FACTOR)) ** 2) / 2) + 1e-4
        seconds = float(self.coefficients(weight) @ [1.0, *call])
        return seconds, math.exp(distance.min())

    def coefficients(self, weight: Any = 1.0) -> np.ndarray:
        """(1 + features): seconds that any call costs, and seconds per unit of each feature; at least 0.

        The first is at most the shortest call's time: otherwise a few large calls of equal time would
        make small ones as long. It is at most `fixed_s` too, because scattered times of large calls
        overestimate it.

        Args:
            weight: of each call.
        """
        from scipy.optimize import nnls

        scale = np.maximum(self.features.max(axis=0), 1.0)
        scaled, fitted = self.features / scale, self.seconds
        calls = np.hstack([np.ones((len(fitted), 1)), scaled])
        least_s = max(min(float(self.seconds.min()), self.fixed_s), 0.0)
        for _ in range(LINE_FITS):
            relative = weight / np.maximum(fitted, SHORT_S)
            found, _ = nnls(calls * relative[:, None], self.seconds * relative)
            if found[0] > least_s:
                beyond, _ = nnls(scaled * relative[:, None], (self.seconds - least_s) * relative)
                found = np.array([least_s, *beyond])
            fitted = calls @ found
        return found / np.array([1.0, *scale])


@dataclass(frozen=True)
class TimedTrainings:
    """Trainings whose operators were timed, from which others on their device are predicted.

    Args:
        trainings: their points with, of a step, `operators_s`, `calls` and `moved_bytes` of its
            operators, `framework_s` beyond them, and `dispatch_s`; see `timed`.
        operators: `with_kinds`; `training` is a label of `trainings`, `call_s` what a call takes.
    """

    trainings: pd.DataFrame
    operators: pd.DataFrame

    def only(self, which: pd.Series) -> TimedTrainings:
        """Some of the trainings."""
        trainings = self.trainings[which]
        return TimedTrainings(
            trainings, self.operators[self.operators["training"].isin(trainings.index)]
        )

    @property
    def sound(self) -> TimedTrainings:
        """The trainings that no other process disturbed, from which others may be predicted."""
        return self.only(~flagged(self.trainings, DISTURBED))

    def _with_seconds(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Operators with the predicted `seconds` of all their calls, and `how` these are known."""
        # The median call of each kind, operands and size.
        of_size = self.operators.groupby([*KIND, "inputs", *OPERATOR_SIZES], sort=False)
        sizes = of_size["call_s"].median().reset_index(OPERATOR_SIZES)
        shortest_s = float(sizes["call_s"].quantile(SHORTEST))
        every_kind = Line(sizes[OPERATOR_SIZES], sizes["call_s"], shortest_s)
        timed_s = sizes.set_index(OPERATOR_SIZES, append=True)["call_s"].to_dict()
        of_kind: dict[Any, Any] = sizes.groupby(KIND).indices

        @cache
        def slow() -> np.ndarray:
            """Coefficients of slow operators, which bound what an unseen kind may take."""
            found = every_kind.coefficients()
            usual_s = found[0] + every_kind.features @ found[1:]
            times = every_kind.seconds / np.maximum(usual_s, SHORT_S)
            return found * np.quantile(times, SLOWEST)

        @cache
        def call(name: str, dtype: str, inputs: str, *size: float) -> tuple[float, str]:
            """(seconds of a call, how that is known)."""
            if (name, dtype, inputs, *size) in timed_s:
                return timed_s[name, dtype, inputs, *size], TIMED_ELSEWHERE
            alike = of_kind.get((name, dtype), ())
            if len(alike) >= FEWEST_SIZES:
                seconds, reach = every_kind.through(alike).at(size)
                if reach <= REACH:
                    return seconds, BY_LINE
            return float(slow() @ [1.0, *size]), UNSEEN

        operators = rows[[*KIND, "inputs", *OPERATOR_SIZES]].itertuples(index=False, name=None)
        calls = pd.DataFrame([call(*one) for one in operators], rows.index, ["call_s", "how"])
        return rows.assign(seconds=rows["count"] * calls["call_s"], how=calls["how"])

    @property
    def _on_gpu(self) -> bool:
        """Whether a host dispatches the steps to a GPU."""
        return bool(self.trainings["dispatch_s"].notna().any())

    def framework_s(self, rows: pd.DataFrame, model: Sequence[Any]) -> float:
        """Seconds of a step that the framework takes; on a GPU, that dispatching the step takes.

        They grow with the number of calls and with the memory that is freed between them. Trainings of
        the same model weigh most in that line, where there are any.
        """
        name = "dispatch_s" if self._on_gpu else "framework_s"
        known = self.trainings.dropna(subset=[name])
        module, trainer, lora_rank, precision = model
        like = known["trainer"] == trainer
        same = like & (known["module"] == module) & (known["lora_rank"] == lora_rank)
        same &= known["precision"] == precision
        line = Line(known[["calls", "moved_bytes"]], known[name])
        call_s, *more_s = line.coefficients(
            np.select([same, like], [1.0, LIKE_WEIGHT], OTHER_WEIGHT)
        )
        return float(
            call_s + np.dot(more_s, [rows["count"].sum(), (rows["count"] * rows["bytes"]).sum()])
        )

    def call_s(self, model: Sequence[Any]) -> float:
        """Seconds of the framework for each operator, in trainings of the same module if there are any."""
        of = self.trainings
        each_s = of["framework_s"] / of["calls"]
        like = each_s[of["module"].eq(model[0])]
        return float((like if len(like) else each_s).median())

    def _added_s(self, operators_s: Any, framework_s: Any) -> Any:
        """Seconds that the framework adds to the operators: on a GPU both run at the same time."""
        return np.maximum(framework_s - operators_s, 0.0) if self._on_gpu else framework_s

    @cached_property
    def closure(self) -> float:
        """The whole step over the sum of its parts."""
        of = self.trainings
        framework_s = of["dispatch_s"].fillna(0.0) if self._on_gpu else of["framework_s"]
        parts_s = of["operators_s"] + self._added_s(of["operators_s"], framework_s)
        return float((of[STEP_MEDIAN] / parts_s).median())

    def predict(
        self,
        rows: pd.DataFrame,
        model: Sequence[Any],
        faster: Mapping[str, float] | None = None,
    ) -> Prediction:
        """Predict the step of a training.

        Args:
            rows: its operators, `with_kinds`.
            model: its `MODEL`, as in `trainings`.
            faster: part of the step -> how many times as fast it shall be.
        """
        faster, taken = faster or {}, self._with_seconds(rows)
        spent = taken.groupby("group")["seconds"].sum()
        parts = {part: float(spent.get(part, 0.0)) / faster.get(part, 1.0) for part in PARTS}
        operators_s, framework_s = sum(parts.values()), self.framework_s(rows, model)
        added_s = self._added_s(operators_s, framework_s)
        parts[FRAMEWORK] = added_s / faster.get(FRAMEWORK, 1.0)
        known = taken.groupby("how")["seconds"].sum() / (taken["seconds"].sum() or 1.0)
        shares = {how: float(known.get(how, 0.0)) for how in (TIMED_ELSEWHERE, BY_LINE, UNSEEN)}
        unseen = taken[taken["how"] == UNSEEN].groupby("kind", sort=False)["seconds"].sum()
        return Prediction(parts, shares, self.closure, unseen)


def with_kinds(rows: pd.DataFrame) -> pd.DataFrame:
    """Operators with their `KIND`, by which trainings share them.

    Fused attention, which each device and implementation names otherwise, is one operator.

    Args:
        rows: `kind`, `inputs`, `flops`, `bytes`, `count` and `group`, as in operators.csv.
    """
    inputs, backward = rows["inputs"].fillna(""), rows["kind"].str.contains("backward")
    attention = np.where(backward, f"{ATTENTION}, backward", ATTENTION)
    return rows.drop(columns=["phase", "role", "reason", *CELL], errors="ignore").assign(
        inputs=inputs,
        flops=rows["flops"].fillna(0.0).astype(float),
        name=rows["kind"].mask(rows["group"] == ATTENTION, attention),
        dtype=inputs.str.split("[").str[0],
    )


def timed(points: pd.DataFrame, lines: pd.DataFrame) -> TimedTrainings:
    """Join trainings' points and operators.

    `dispatch_s` are the seconds in which the host dispatches a step to a GPU: NA where the host
    computes the step itself, where they were not measured, and where both GPU and host are busy
    for the whole step, since the host then waited for the GPU in between.

    Args:
        lines: of operators.csv; `training` is a label of `points`.
    """
    is_framework = lines["group"] == FRAMEWORK
    own = with_kinds(lines[~is_framework])
    own["call_s"], own["moved"] = own["seconds"] / own["count"], own["count"] * own["bytes"]
    more = ["flags", STEP_MEDIAN, "dispatch_median_s"]
    names = [*dict.fromkeys([*POINT, "threads", *MODEL, *more])]  # the precision is of both
    found = points.reindex(columns=names).loc[lines["training"].unique()]
    found = found.fillna({"module": "", "trainer": "", "lora_rank": 0.0})
    of_step = own.groupby("training")[["seconds", "count", "moved"]].sum()
    of_step = of_step.reindex(found.index, fill_value=0.0)
    of_step.columns = pd.Index(["operators_s", "calls", "moved_bytes"])
    rest = lines[is_framework].groupby("training")["seconds"].sum()
    of_step["framework_s"] = rest.reindex(found.index, fill_value=0.0).clip(lower=0.0)
    dispatch_s = found["dispatch_median_s"].astype(float)
    waited = np.minimum(dispatch_s, of_step["operators_s"]) >= MOST_OF_A_STEP * found[STEP_MEDIAN]
    return TimedTrainings(found.join(of_step).assign(dispatch_s=dispatch_s.mask(waited)), own)


def trainings(frames: Frames) -> TimedTrainings:
    """All of a run, labelled as in its `points`."""
    points = frames.undisturbed
    names = points.loc[points[STEP_MEDIAN].gt(0), POINT].reset_index(names="training")
    operators = frames.results.operators.dropna(subset="seconds")
    return timed(points, operators.merge(names, on=POINT))


def lines(timed_trainings: TimedTrainings) -> pd.DataFrame:
    """The lines of predicted.csv: each training, predicted by the others on its device."""
    points, sound = timed_trainings.trainings, timed_trainings.sound
    operators = timed_trainings.operators
    places = points.groupby(PLACE_WITH_THREADS, dropna=False).ngroup()
    told: dict[int, dict[str, Any]] = {}
    for label, measured_s in zip(map(int, points.index), points[STEP_MEDIAN], strict=True):
        here = places[sound.trainings.index] == places[label]
        others = sound.only(here & (here.index != label))
        if others.trainings.empty:
            told[label] = {"others": 0, "reason": NO_OTHER_TRAINING}
            continue
        rows = operators[operators["training"] == label]
        found = others.predict(rows, [*points[MODEL].loc[label]])
        predicted_s = None if found.refusal else found.seconds
        told[label] = {
            "others": len(others.trainings),
            "predicted_s": predicted_s,
            "error": predicted_s and predicted_s / measured_s - 1.0,
            "framework_s": found.parts[FRAMEWORK],
            "closure": found.closure,
            "line_share": found.shares[BY_LINE],
            "reason": found.refusal,
        }
    named = points[POINT].assign(measured_s=points[STEP_MEDIAN])
    return named.join(pd.DataFrame.from_dict(told, "index"))


def write(frames: Frames, output: Tables) -> None:
    """Compute and write predicted.csv."""
    path = table_files.path(output, "predicted")
    table_files.write_frame(path, lines(trainings(frames)))
