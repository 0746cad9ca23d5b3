"""How long a training's step should take, from the operators of other trainings on its device.

`predicted.csv`: for each training whose operators were timed the step that all other trainings on
its device with its backend and threads predict, and the one that was measured. An operator that
others have too, of the same kind on the same shapes, takes what it took there; any other one what
the line of its kind says: a call's seconds over its bytes and operations, nearby sizes first. The
framework takes what a line over calls and bytes of a step says, of trainings of the same model
where there are some; beside a GPU that line tells how long the host takes to hand a step over, and
the longer of both, the host or the GPU's operators, bounds the step. One factor, how much longer
the others' unsplit steps last than their own parts, closes the sum. Trainings that other processes
disturbed predict nothing. Where kinds that no line covers take more than a little of the step,
nothing is predicted.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from siliconprof import words
from siliconprof.analyse.equal_work import DISTURBED, flagged
from siliconprof.analyse.operator_rows import ATTENTION, FRAMEWORK, OTHERS, PARTS
from siliconprof.analyse.step_parts import MOSTLY
from siliconprof.stats import statistics
from siliconprof.store import table_files
from siliconprof.store.results import Results
from siliconprof.store.table_files import Row, grouped, point_key

PLACE = ("source", "host", "device", "backend", "threads")
TIMED, BY_LINE, UNSEEN = "timed elsewhere", "by its kind's line", "of an unseen kind"
KERNEL = "time in the kernel"  # of the measuring thread, in a measured training
UNSEEN_AT_MOST = 0.05  # of the predicted time
FEWEST_SIZES = 2  # of a kind, that make a line
REACH = 8.0  # as many times larger or smaller than any size that was timed, a line says nothing
NEAR = 4.0  # a size so many times another weighs exp(-1/2) in its estimate
# Fits of a line; in the first, errors count relative to the times themselves, and where these scatter
# it lies too low; in the others they count relative to the fit before.
FITS = 3
SHORT_S = 5e-6  # errors count relative to a call's time; to this of shorter ones, which is noise
ALONE = "no other training on its device has operators that were timed undisturbed"


class Training(NamedTuple):
    """A training whose operators were timed."""

    point: Row
    operators: Sequence[Row]  # lines of operators.csv without the framework's
    framework_s: float  # of a step, beyond them

    @property
    def handed_over_s(self) -> float | None:
        """What the host takes to hand a step over to a GPU.

        None where the host itself computes it, where nothing tells, and where both the GPU and the
        host are busy for as long as the step: then the host has waited for the GPU in between.
        """
        seconds = words.number(self.point.get("handed_over_median_s"))
        waited = seconds is not None and min(seconds, self.operators_s) >= MOSTLY * self.step_s
        return None if waited else seconds

    @property
    def operators_s(self) -> float:
        """Of a step."""
        return math.fsum(row["seconds"] for row in self.operators)

    @property
    def place(self) -> tuple[Any, ...]:
        """Where it ran."""
        return tuple(self.point[name] for name in PLACE)

    @property
    def step_s(self) -> float:
        """Its unsplit step."""
        return float(self.point["unsplit_step_median_s"])

    @property
    def model(self) -> tuple[Any, ...]:
        """Trainings with the same one have the framework do alike."""
        return tuple(self.point.get(name) for name in ("module", "trainer", "lora_rank"))


class Prediction(NamedTuple):
    """A step as it should be."""

    parts: Mapping[str, float]  # of `PARTS`, and `KERNEL` where asked -> seconds
    shares: Mapping[str, float]  # how an operator's time is known -> share of all operators' time
    closure: float  # the step over the sum of its parts
    unseen: Mapping[str, float]  # kind that no line covers -> what it might take, seconds

    @property
    def seconds(self) -> float:
        """Of the whole step, whether it may be said or not."""
        return self.closure * sum(self.parts.values())

    @property
    def refusal(self) -> str | None:
        """Why it may not be said; None where it may."""
        if self.shares[UNSEEN] <= UNSEEN_AT_MOST:
            return None
        kinds = sorted(self.unseen, key=self.unseen.__getitem__, reverse=True)
        return (
            f"operators of which no training tells, such as {', '.join(kinds[:3])}, may take "
            f"{words.percent(self.shares[UNSEEN])} of its operators' time; beyond "
            f"{words.whole_percent(UNSEEN_AT_MOST)} nothing is predicted"
        )


class Errors(NamedTuple):
    """How far off predictions of measured steps are."""

    trainings: int
    median_size: float  # of predicted over measured less 1, without its sign
    worst: float

    def __str__(self) -> str:
        return (
            f"{words.whole_percent(self.median_size)} off in the median of "
            f"{words.count(self.trainings, 'step')}, at worst {words.change(self.worst)}"
        )


def errors(predicted: Iterable[Row]) -> Errors | None:
    """Those of some lines of predicted.csv; None where nothing was predicted."""
    found = [row["error"] for row in predicted if row.get("error") is not None]
    if not found:
        return None
    return Errors(len(found), statistics.median(list(map(abs, found))), max(found, key=abs))


def sound(measured: Iterable[Training]) -> list[Training]:
    """Those that no other process disturbed: the others predict nothing."""
    return [training for training in measured if not flagged(training.point, DISTURBED)]


def trainings(results: Results) -> list[Training]:
    """All of them."""
    frame = results.operators
    points = {point_key(point): point for point in table_files.rows(results.of_ok_cells())}
    lines = grouped(table_files.rows(frame[frame["seconds"].notna()]), point_key)
    found = []
    for name, rows in lines.items():
        point = points.get(name)
        if point and point["unsplit_step_median_s"]:
            operators = [row for row in rows if row["group"] != FRAMEWORK]
            rest_s = sum(row["seconds"] for row in rows if row["group"] == FRAMEWORK)
            found.append(Training(point, operators, max(rest_s, 0.0)))
    return found


def _work(rows: Iterable[Row]) -> tuple[float, float]:
    """(calls of a step, bytes that they read and write)."""
    rows = list(rows)
    calls = sum(row["count"] for row in rows)
    return calls, sum(row["count"] * row["bytes"] for row in rows)


class Line:
    """Seconds of a call over its features, each line's coefficients fitted near what is asked for.

    Args:
        features: (calls, features), at least 0.
        seconds: of each call.
    """

    def __init__(self, features: Sequence[Sequence[float]], seconds: Sequence[float]) -> None:
        import numpy as np

        self.features = np.array(features, dtype=float)
        self.seconds = np.array(seconds, dtype=float)

    def at(self, features: Sequence[float]) -> tuple[float, float]:
        """(seconds, how many times larger or smaller the nearest call is).

        A call costs something however small it is, and more with every feature, never less.
        """
        import numpy as np
        from scipy.optimize import nnls

        asked = np.array(features, dtype=float)
        # of the feature that differs most, its logarithm
        distance = np.abs(np.log((self.features + 1.0) / (asked + 1.0))).max(axis=1)
        weight = np.exp(-((distance / math.log(NEAR)) ** 2) / 2) + 1e-4
        scale = np.maximum(asked, 1.0)
        ones = np.ones((len(self.seconds), 1))
        calls = np.hstack([ones, self.features / scale])
        fitted = self.seconds
        for _ in range(FITS):
            relative = weight / np.maximum(fitted, SHORT_S)
            coefficients, _ = nnls(calls * relative[:, None], self.seconds * relative)
            fitted = calls @ coefficients
        return float(coefficients @ [1.0, *(asked / scale)]), math.exp(distance.min())


class Timed:
    """What trainings on one device tell about its operators and about the framework."""

    def __init__(self, of: Collection[Training]) -> None:
        self.of = of

    @cached_property
    def _calls(self) -> dict[tuple[str, str], dict[str, list[tuple[Row, float]]]]:
        """(kind, dtype) -> operands -> its calls, and the seconds of each."""
        rows = [row for training in self.of for row in training.operators]
        return {
            kind: grouped(
                ((row, row["seconds"] / row["count"]) for row in of_kind),
                lambda call: call[0]["inputs"] or "",
            )
            for kind, of_kind in grouped(rows, _kind).items()
        }

    @cached_property
    def _lines(self) -> dict[tuple[str, str], Line]:
        return {
            kind: _line_of(sizes.values())
            for kind, sizes in self._calls.items()
            if len(sizes) >= FEWEST_SIZES
        }

    @cached_property
    def _any_kind(self) -> Line:
        """What operators take whatever they do: only to judge how much unseen kinds matter."""
        return _line_of(calls for sizes in self._calls.values() for calls in sizes.values())

    def seconds(self, row: Row) -> tuple[float, str]:
        """(seconds of one call, how that is known).

        Args:
            row: `kind`, `group`, `inputs`, `flops` and `bytes` of an operator.
        """
        kind = _kind(row)
        if same := self._calls.get(kind, {}).get(row["inputs"] or ""):
            return statistics.median([seconds for _, seconds in same]), TIMED
        if line := self._lines.get(kind):
            seconds, reach = line.at(_size(row))
            return seconds, BY_LINE if reach <= REACH else UNSEEN
        return self._any_kind.at(_size(row))[0], UNSEEN

    def framework_s(self, model: tuple[Any, ...], rows: Iterable[Row]) -> float:
        """What the framework takes of a step; beside a GPU, what handing it over takes.

        It grows with the number of calls, and with the memory that is given back between them.

        Args:
            model: see `Training.model`.
            rows: the step's operators.
        """
        known = self._beside or [(t, t.framework_s) for t in self.of]
        alike = [(t, s) for t, s in known if t.model == model]
        alike = alike or [(t, s) for t, s in known if t.model[1] == model[1]] or known
        line = Line([_work(t.operators) for t, _ in alike], [s for _, s in alike])
        return line.at(_work(rows))[0]

    @cached_property
    def _beside(self) -> list[tuple[Training, float]]:
        """Trainings on a GPU, and what the host takes to hand a step over; none on a CPU."""
        return [(t, s) for t in self.of if (s := t.handed_over_s) is not None]

    def _beyond_s(self, operators_s: float, framework_s: float) -> float:
        """What of the framework's time is beyond that of the operators."""
        return max(framework_s - operators_s, 0.0) if self._beside else framework_s

    @cached_property
    def closure(self) -> float:
        """How many times as long as the sum of its parts an unsplit step lasts."""
        ratios = []
        for training in self.of:
            framework_s = training.handed_over_s or 0.0 if self._beside else training.framework_s
            parts_s = training.operators_s + self._beyond_s(training.operators_s, framework_s)
            ratios.append(training.step_s / parts_s)
        return statistics.median(ratios)

    def predict(
        self,
        rows: Iterable[Row],
        model: tuple[Any, ...],
        faster: Mapping[str, float] | None = None,
        kernel_s: float = 0.0,
    ) -> Prediction:
        """The step of a training.

        Args:
            rows: `kind`, `inputs`, `flops`, `bytes`, `count` and `group` of its operators.
            model: see `Training.model`.
            faster: part of the step, or `KERNEL` -> how many times as fast it shall be.
            kernel_s: of the step, what the measuring thread spends in the kernel.
        """
        rows, faster = list(rows), faster or {}
        parts, hows = dict.fromkeys(PARTS, 0.0), dict.fromkeys((TIMED, BY_LINE, UNSEEN), 0.0)
        unseen: dict[str, float] = {}
        for row in rows:
            seconds, how = self.seconds(row)
            seconds *= row["count"]
            parts[row["group"] if row["group"] in PARTS else OTHERS] += seconds
            hows[how] += seconds
            if how == UNSEEN:
                unseen[row["kind"]] = unseen.get(row["kind"], 0.0) + seconds
        whole = sum(hows.values())
        parts = {part: seconds / faster.get(part, 1.0) for part, seconds in parts.items()}
        operators_s, framework_s = sum(parts.values()), self.framework_s(model, rows)
        beyond_s = self._beyond_s(operators_s, framework_s)
        parts[FRAMEWORK] = beyond_s / faster.get(FRAMEWORK, 1.0)
        if KERNEL in faster:
            framework_s += kernel_s * (1 / faster[KERNEL] - 1)
            parts[KERNEL] = self._beyond_s(operators_s, framework_s) - beyond_s
        shares = {how: seconds / whole if whole else 0.0 for how, seconds in hows.items()}
        return Prediction(parts, shares, self.closure, unseen)


def _kind(row: Row) -> tuple[str, str]:
    """What a line is of: an operator's name and the dtype of its first operand.

    Fused attention is one operator under names of the devices and of its implementations.
    """
    name = row["kind"]
    if row["group"] == ATTENTION:
        name = f"{ATTENTION}, backward" if "backward" in name else ATTENTION
    return name, (row["inputs"] or "").partition("[")[0]


def _size(row: Row) -> tuple[float, float]:
    return row["bytes"], row["flops"] or 0.0


def _line_of(sizes: Iterable[Sequence[tuple[Row, float]]]) -> Line:
    """A line through the median of each size."""
    medians = [
        (_size(same[0][0]), statistics.median([seconds for _, seconds in same])) for same in sizes
    ]
    return Line([size for size, _ in medians], [seconds for _, seconds in medians])


def lines(found: Sequence[Training]) -> list[Row]:
    """The lines of predicted.csv: each training, predicted by the others on its device."""
    rows, sound_ones = [], sound(found)
    for training in found:
        others = [t for t in sound_ones if t.place == training.place and t is not training]
        named = {name: training.point[name] for name in (*table_files.KEY, "point")}
        named |= {"measured_s": training.step_s, "others": len(others)}
        if not others:
            rows.append(named | {"reason": ALONE})
            continue
        prediction = Timed(others).predict(training.operators, training.model)
        refusal, shares = prediction.refusal, prediction.shares
        rows.append(
            named
            | {
                "predicted_s": None if refusal else prediction.seconds,
                "error": None if refusal else prediction.seconds / training.step_s - 1.0,
                "framework_s": prediction.parts[FRAMEWORK],
                "closure": prediction.closure,
                "timed_share": shares[TIMED],
                "line_share": shares[BY_LINE],
                "unseen_share": shares[UNSEEN],
                "reason": refusal,
            }
        )
    return rows


def write(results: Results, arguments: argparse.Namespace) -> None:
    """Compute and write: the table."""
    table_files.write(arguments.output_dir / "predicted.csv", lines(trainings(results)))
