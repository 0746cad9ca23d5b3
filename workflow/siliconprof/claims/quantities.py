"""The quantities that a claim may compare: figures of measured rows with their uncertainty.

config/claims.yaml declares each: as a formula of columns, as a column of words, or by one of
`READERS`. The error of a time is the one between processes, or within the process if there is one only.
"""

from __future__ import annotations

import ast
import math
import re
import statistics as plain
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import model_validator

from siliconprof.analyse.frames import CELL, POINT
from siliconprof.analyse.throughputs import PLACE, nonzero
from siliconprof.claims import figures
from siliconprof.claims.evidence import (
    BACKENDS,
    CELLS,
    FIGURE_ENDS,
    OPERATION,
    POINTS,
    SHAPES,
    Evidence,
    spread,
)
from siliconprof.claims.figures import Figure, ratio
from siliconprof.errors import nearest
from siliconprof.memory.memory_model import BYTES_PER_PARAMETER
from siliconprof.parameters import Checked, one_of
from siliconprof.stats import line_fit, statistics, training_course
from siliconprof.store import columns
from siliconprof.store.model import Part, Text, matches

LEAST_SAMPLES = 9  # three in each third of a course
LEAST_COURSE = 100  # steps; the report compares courses that differ by 20 steps
# Relative error of an IQR estimated from n normal values: 1.57 sigma / sqrt(n) over 1.349 sigma
# (Kendall and Stuart, The Advanced Theory of Statistics 1, 14.10-14.12, for sample quantiles).
IQR_ERROR = 1.165
ENERGY_SCOPES = {"gpu": "gpu", "cpu": "cpu-package"}  # device kind -> scope of its energy
NO_SPEED = "a mechanism check, whose times mean nothing: device and host share one memory here"
NO_SAMPLES = "too few samples of memory after the warm-up"
NO_DEVICE_SAMPLES = "no counter samples the memory of its device"
NO_FAULTS = "its record has no page faults of single steps"
NO_STEP = "no step was timed"
# Column -> why a row without it has no figure, or the column with the reason.
ABSENT = {
    "peak": "no_peak",
    "bandwidth": "no_bandwidth",
    "product": "no_product",
    "faulted_bytes": NO_FAULTS,
    **dict.fromkeys(("autorange_min_run_time_s", "autorange_median_s"), "autorange_reason"),
    **dict.fromkeys(("cold_median_s", "cold_low_s"), "cold_reason"),
    "epoch_s": "no epoch was timed",
    "flops": "no number of operations is known",
    "bytes_per_s": "its bytes are not known",
    "flop_per_s": "no rate of operations is known",
    **dict.fromkeys(("step_s", "samples_per_s", "speed_per_s"), NO_STEP),
    "device_peak_bytes": "no counter reports its peak of memory",
    "n_parameters": "no number of parameters is known",
    "launch_and_wait_median_s": "no launch was timed",
    "fixed_share_smallest": "fit_reason",
}
Read = Callable[[Evidence, pd.DataFrame], pd.DataFrame]
Why = tuple[pd.Series, Any]  # which rows have no figure, and why


def _why_not(*reasons: Why) -> np.ndarray:
    """The first reason that holds for each row, else an empty text."""
    return np.select([holds for holds, _ in reasons], [text for _, text in reasons], "")


def _lacking(rows: pd.DataFrame, *names: str) -> Iterable[Why]:
    for name in names:
        why = ABSENT.get(name, f"its record has no {name}")
        said = rows[why].astype("object").fillna("it was not timed") if why in rows else why
        yield ~nonzero(rows[name]), said


def _timed(
    rows: pd.DataFrame, value: pd.Series, *why: Why, times: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Figures that are proportional to a time or to its reciprocal, with the error of that time.

    Args:
        times: their `spread`, where it is not that of the steps.
    """
    times, value = rows if times is None else times, value.astype(float)
    is_absent = ~(value.ge(0) & (value < math.inf) & times["error"].notna())
    return figures.frame(
        rows.index,
        middle=value,
        error=times["error"],
        df=times["df"],
        basis=times["basis"],
        why_not=_why_not((rows["is_mechanism_check"], NO_SPEED), *why, (is_absent, NO_STEP)),
    )


def _names(formula: str) -> list[str]:
    """The columns of a formula; those in `ABSENT` come first, whose reasons say more."""
    used = {*re.findall(r"\b[A-Za-z_]\w*", formula)}
    return [name for name in ABSENT if name in used] + sorted(used - {*ABSENT})


def _computed(rows: pd.DataFrame, formula: str, basis: str = "") -> pd.DataFrame:
    """The values of a formula: exact if it has a basis, else with the error of the step's time."""
    names = _names(formula)
    values: Any = rows[names].eval(formula, engine="python")
    why = _lacking(rows, *names)
    if basis:
        return figures.exact(values, basis, _why_not(*why))
    return _timed(rows, values, *why)


# -- speed -----------------------------------------------------------------------------------------


def _fp16_gain(evidence: Evidence, rows: pd.DataFrame) -> pd.DataFrame:
    points, same = evidence.points, [*PLACE, "module", *OPERATION]
    fp32 = points[points["precision"] == "fp32"].drop_duplicates(same, keep="last")
    slow = fp32[same].join(_computed(fp32, "flop_per_s").assign(is_timed=True))
    slow = rows[same].merge(slow, "left", same).drop(columns=same).set_axis(rows.index)
    slow = slow.fillna({"basis": "", "remark": "", "why_not": ""})
    fast = _computed(rows, "flop_per_s")
    why = (
        (rows["precision"] != "fp16", "only a cell in fp16 has a gain from fp16"),
        (slow["is_timed"].isna(), "the same operation in fp32 was not timed"),
        *((of["why_not"] != "", of["why_not"]) for of in (fast, slow)),
    )
    return ratio(fast, slow).assign(basis=fast["basis"], why_not=_why_not(*why))


def _step_spread(evidence: Evidence, rows: pd.DataFrame) -> pd.DataFrame:
    n, middle, low, high = (
        rows[f"whole_step_{part}"] for part in ("n", "median_s", "q25_s", "q75_s")
    )
    too_few = ~(n.ge(LEAST_SAMPLES) & nonzero(middle) & (high > low))
    return figures.frame(
        rows.index,
        middle=(high - low) / middle,
        error=IQR_ERROR / n**0.5,
        df=n - 1,
        basis="of " + n.map("{:.0f}".format) + " steps of one process",
        why_not=_why_not((too_few, "too few whole steps to estimate their spread")),
    )


def _fixed_share(evidence: Evidence, rows: pd.DataFrame) -> pd.DataFrame:
    share, low, high = (rows[f"fixed_share_smallest{end}"] for end in ("", "_low", "_high"))
    low, high = low.fillna(share).clip(lower=0.0), high.fillna(share)
    why = (share.isna(), rows["fit_reason"].fillna("no line through its batch sizes"))
    return figures.frame(rows.index, middle=share, low=low, high=high, why_not=_why_not(why))


# -- courses -----------------------------------------------------------------------------------------


def _each(
    figure: Callable[..., Figure], table: str, *names: str, on: Sequence[str] = POINT
) -> Read:
    """Make a reader that calls `figure` with columns of a table's lines about each row."""

    def read(evidence: Evidence, rows: pd.DataFrame) -> pd.DataFrame:
        courses = evidence.courses(table, rows, *names, on=on)
        return figures.listed(rows.index, [figure(*course) for course in courses])

    return read


def _read_off(
    read: Callable[[list[float]], training_course.Reading | None],
    table: str,
    column: str,
    basis: str,
    none: str,
    least: int = 0,
) -> Read:
    """Make a reader that calls `read` with a column of each point's lines, in the order of steps.

    Args:
        least: number of lines below which there is no figure.
    """

    def figure(steps: np.ndarray, values: np.ndarray) -> Figure:
        if 0 < len(steps) < least:
            return Figure(why_not=f"{len(steps)} steps are too few to tell; {least} may do")
        reading = read(values[steps.argsort(kind="stable")].astype(float).tolist())
        return Figure(*reading[:3], basis, reading[3]) if reading else Figure(why_not=none)

    return _each(figure, table, "step", column)


_settled = training_course.settled_loss
EVALUATED = (
    *("evaluations", "loss"),
    "by the change of the loss between its last two evaluations; one seed",
    "fewer than three evaluations have a finite loss, or the loss never fell",
)
LOSSES = (
    *("curves", "loss"),
    "by the distance of single steps from the smoothed loss; one seed",
    "too few steps with a finite loss, or the loss never fell",
)
NORMS = (
    *("curves", "gradient_norm"),
    "by the distance of single steps from their running median; one seed",
    "too few steps with a finite gradient norm",
)


def _unusual_share(marks: np.ndarray) -> Figure:
    """The share of steps that took far longer than the run's own spread explains."""
    is_unusual = [bool(mark) for mark in marks if mark == mark]  # which no NaN does
    n = len(is_unusual)
    if not n:
        return Figure(why_not="no course of step times, or too few steps")
    share = sum(is_unusual) / n
    # Wilson's interval (J. Am. Stat. Assoc. 22, 1927), which holds for shares near 0.
    z = line_fit.NORMAL
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return Figure(share, max(0.0, middle - reach), middle + reach, f"95 % of a share of {n} steps")


def _faults(kinds: np.ndarray, minor: np.ndarray, major: np.ndarray) -> Figure:
    faults = (minor + major)[kinds == "whole"].astype(float)
    counts = faults[abs(faults) < math.inf].tolist()
    if not counts:
        return Figure(why_not=NO_FAULTS)
    basis = f"95 % interval of the median of {len(counts)} steps; one process"
    return Figure(plain.median(counts), *statistics.median_interval(counts), basis)


SPREAD_OF_THIRDS = "by the 95 % intervals of the medians of its first and last third; one process"


def _sampled_growth(column: str, none: str = NO_SAMPLES) -> Read:
    """The growth of the samples of a column from the first timed step on.

    The resident set is that above what the process had before the training.
    """

    def read(evidence: Evidence, rows: pd.DataFrame) -> pd.DataFrame:
        start = rows["rss_at_start_bytes"].fillna(0.0)
        above = start if column == "rss_bytes" else start * 0
        courses = zip(evidence.sampled(rows, column), above, strict=True)
        each = [
            _growth([value - less for value in values])
            if len(values) >= LEAST_SAMPLES
            else Figure(why_not=none)
            for values, less in courses
        ]
        return figures.listed(rows.index, each)

    return read


def _rss_over_theory(evidence: Evidence, rows: pd.DataFrame) -> pd.DataFrame:
    most = [max(values, default=math.nan) for values in evidence.sampled(rows, "rss_bytes")]
    times = pd.Series(most, rows.index, float) / (BYTES_PER_PARAMETER * rows["n_parameters"])
    why = *_lacking(rows, "n_parameters"), (times.isna(), NO_SAMPLES)
    return figures.exact(times, "the largest sample", _why_not(*why))


def _growth(values: Sequence[float]) -> Figure:
    """The median of a course's last third over that of its first."""
    third = len(values) // 3
    ends = values[:third], values[-third:]
    (first, *first_ends), (last, *last_ends) = (
        (plain.median(end), *statistics.median_interval(end)) for end in ends
    )
    if first <= 0 or first_ends[0] <= 0:
        return Figure(why_not="its memory did not exceed what it used before the training")
    low, high = last_ends[0] / first_ends[1], last_ends[1] / first_ends[0]
    return Figure(last / first, low, high, SPREAD_OF_THIRDS)


# -- energy, launches ------------------------------------------------------------------------------


def _energy_per_sample(evidence: Evidence, rows: pd.DataFrame) -> pd.DataFrame:
    """Joules per sample of the GPU alone, or on a CPU of its package."""
    scope = rows["device_kind"].map(ENERGY_SCOPES).fillna("gpu")
    lines = rows[POINT].assign(row=rows.index, own=scope).merge(evidence.results.energy, on=POINT)
    lines["own"] = lines["scope"] == lines["own"]
    lines = lines.sort_values("own", ascending=False, kind="stable")
    measured = lines[lines["own"] & nonzero(lines["energy_per_sample_j"])]
    measured = measured.drop_duplicates("row").set_index("row").reindex(rows.index)
    reasons = lines.dropna(subset="reason").drop_duplicates("row").set_index("row")["reason"]
    reasons = reasons.reindex(rows.index).astype("object").fillna("the record has none")
    joules = measured["energy_per_sample_j"]
    found = _timed(rows, joules, (joules.isna(), "no energy of its " + scope + ": " + reasons))
    assumed = measured["name"].fillna("") + "; its power is assumed to be steady; its time: "
    return found.assign(basis=assumed + found["basis"])


def _cold_launch(evidence: Evidence, rows: pd.DataFrame) -> pd.DataFrame:
    middle, low, high = (rows[f"cold_{part}_s"] for part in ("median", "low", "high"))
    n = rows["cold_n"].fillna(0).map("{:.0f}".format)
    basis = "95 % interval of the median of " + n + " processes"
    why_not = _why_not(*_lacking(rows, "cold_median_s", "cold_low_s"))
    return figures.frame(
        rows.index, middle=middle, low=low, high=high, basis=basis, why_not=why_not
    )


def _followup_launch(evidence: Evidence, rows: pd.DataFrame) -> pd.DataFrame:
    """Launch and wait: the paper does not say which time it means."""
    times = [rows[f"launch_and_wait_{part}_s"] for part in FIGURE_ENDS]
    why = _lacking(rows, "launch_and_wait_median_s")
    return _timed(rows, times[0], *why, times=spread(times, rows["processes"]))


def _cold_over_followup(evidence: Evidence, rows: pd.DataFrame) -> pd.DataFrame:
    cold, followup = _cold_launch(evidence, rows), _followup_launch(evidence, rows)
    why = ((of["why_not"] != "", of["why_not"]) for of in (cold, followup))
    return ratio(cold, followup).assign(why_not=_why_not(*why))


# -- all of them -----------------------------------------------------------------------------------

READERS: dict[str, Read] = {
    "fp16_gain": _fp16_gain,
    "step_spread": _step_spread,
    "unusual_share": _each(_unusual_share, "curves", "unusual"),
    "fixed_share": _fixed_share,
    "steady_loss": _read_off(_settled, *EVALUATED),
    "least_loss": _read_off(partial(_settled, least=True), *EVALUATED),
    "convergence_step": _read_off(training_course.converged_at, *LOSSES, least=LEAST_COURSE),
    "norm_elevated_until": _read_off(training_course.elevated_until, *NORMS, least=LEAST_COURSE),
    "rss_over_theory": _rss_over_theory,
    "rss_growth": _sampled_growth("rss_bytes"),
    "device_memory_growth": _sampled_growth("device_memory_bytes", NO_DEVICE_SAMPLES),
    "faults_per_step": _each(
        _faults, "training_steps", "kind", "minor_faults", "major_faults", on=CELL
    ),
    "energy_per_sample": _energy_per_sample,
    "cold_launch": _cold_launch,
    "followup_launch": _followup_launch,
    "cold_over_followup": _cold_over_followup,
}
UNITS = (
    *("", "times", "1/s", "tokens/s", "FLOP/s", "FLOP", "nat", "steps", "byte", "million"),
    *("faults", "J", "s"),
)
_OPERAND = r"[ (]*(\d[\d.e]*|[A-Za-z_]\w*)[ )]*"
FORMULA = rf"{_OPERAND}([*/+-]{_OPERAND})*"
MADE_WORDS = ("heat", "support")  # by `Evidence`, as all numbers in `ABSENT` that no table has


def _parsed(formula: str) -> str:
    try:
        ast.parse(formula, mode="eval")
    except SyntaxError:
        raise ValueError(f"is {formula!r}; expected a formula with its brackets closed") from None
    return formula


def _known(is_word: bool, *tables: str) -> set[str]:
    """The columns that a quantity may read, of words or of numbers."""
    every = [item for table in tables for item in columns.columns_of_table(table).items()]
    named = {name for name, column in every if (column.type == "text") == is_word}
    return named.union(MADE_WORDS if is_word else ABSENT)


class Quantity(Part):
    """What claims compare: a figure of each row, or a word about it."""

    label: Text
    unit: Annotated[str, one_of(UNITS)] = ""
    rows: Annotated[str, one_of((POINTS, CELLS, SHAPES, BACKENDS))] = POINTS
    fastest: bool = False  # whether only the backend with the largest figure counts
    # One of these says how it is read: a formula, a column of words, one of `READERS`.
    value: Annotated[str, matches(FORMULA, "a formula of columns"), Checked("After", _parsed)] = ""
    word: str = ""
    reader: Annotated[str, one_of(sorted(READERS))] = ""
    basis: str = ""  # of a value that is exact; without it one has the error of its step's time

    @model_validator(mode="after")
    def _is_known(self) -> Quantity:
        if [self.value, self.word, self.reader].count("") != 2:
            raise ValueError("expected one of value, word and reader")
        known = _known(True, CELLS, "scaling") if self.word else _known(False, POINTS)
        for name in [self.word] if self.word else _names(self.value):
            if name not in known:
                raise ValueError(f"no column is called {name!r}{nearest(name, known)}")
        return self

    def figures(self, evidence: Evidence, rows: pd.DataFrame) -> pd.DataFrame:
        """The figure of each row, or why it has none."""
        if self.reader:
            return READERS[self.reader](evidence, rows)
        if self.value:
            return _computed(rows, self.value, self.basis)
        found = rows[self.word].astype("object")
        why_not = _why_not((found.isna(), f"{self.label} could not be determined"))
        return figures.frame(rows.index, word=found.fillna(""), why_not=why_not)
