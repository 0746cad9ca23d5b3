"""The least time of a training's step by the limits of its device, and its likely range.

An operator takes at least its FLOP over the fastest product measured on the device, and its bytes
over the bandwidth of memory, or of the caches where they fit. A step takes at least the time in which
the host launches its operators. The likely range follows from how many times their own bound the
measured trainings of the device take. This factor falls as steps grow, so the trainings with the
nearest bounds count; a step with a far larger bound may come as close to it as any of them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from siliconprof.analyse.attribution import STEP_MEDIAN
from siliconprof.analyse.prediction import TimedTrainings
from siliconprof.analyse.scaling import AMORTISED
from siliconprof.analyse.throughputs import PLACE

NEAREST = 5  # trainings, by their bound, that give the likely range
LIKELY_FACTOR = 2.0  # of the largest measured bound; beyond it a step may come near its own bound


class Ceilings(NamedTuple):
    """Limits of a device, backend and number format; NaN where unknown."""

    flop_per_s: float
    memory_bytes_per_s: float
    cache_bytes_per_s: float
    cache_bytes: float
    launch_s: float

    def least_s(self, rows: pd.DataFrame) -> float:
        """Least seconds of a step.

        Args:
            rows: its operators with `flops`, `bytes` and `count`; see `prediction.with_kinds`.
        """
        fits = rows["bytes"] <= self.cache_bytes
        bandwidth = np.where(fits, self.cache_bytes_per_s, self.memory_bytes_per_s)
        limits = np.vstack([rows["flops"] / self.flop_per_s, rows["bytes"] / bandwidth])
        work_s = rows["count"] * np.nan_to_num(limits).max(axis=0)
        return float(max(work_s.sum(), np.nan_to_num(rows["count"].sum() * self.launch_s)))


class Bound(NamedTuple):
    """The least time of a step, and the range in which it probably lies."""

    seconds: float
    low_s: float | None
    high_s: float | None
    trainings: int  # measured on the place in this precision
    within: int  # of these, whose step lies in the range that the others give
    nearest: str | None  # workload of the training with the nearest bound


def ceilings(lines: pd.DataFrame, there: TimedTrainings, precision: str) -> Ceilings:
    """The ceilings of a device, raised to what its trainings reach.

    Args:
        lines: of ceilings.csv.
        there: trainings of one device and backend.
    """
    first = there.trainings.iloc[0]
    own = lines[np.logical_and.reduce([lines[axis] == first[axis] for axis in PLACE])]
    number_format = precision.removeprefix("amp-")

    def best(quantity: str, *formats: str) -> float:
        of = own[(own["quantity"] == quantity) & (own["precision"].isin(formats) | (not formats))]
        return float(of["value"].astype(float).max())

    of_format = there.trainings["precision"].str.removeprefix("amp-") == number_format
    products = there.operators[there.operators["training"].map(of_format)]
    reached = (products["flops"] / products["call_s"].where(products["call_s"] > 0)).max()
    memory, launch_s = best("memory_bandwidth"), best(AMORTISED)
    dispatched = (there.trainings["dispatch_s"] / there.trainings["calls"]).min()
    return Ceilings(
        float(np.fmax(best("matmul", number_format), reached)),
        memory,
        float(np.fmax(best("cache_bandwidth"), memory)),
        float(own["last_level_cache_bytes"].astype(float).max()),
        float(np.fmin(launch_s, dispatched)),
    )


def bound_of_step(
    rows: pd.DataFrame, there: TimedTrainings, of: Ceilings, precision: str
) -> Bound | None:
    """The bound of a step; None where no limit is known.

    Args:
        rows: its operators, see `prediction.with_kinds`.
        there: trainings of its device and backend, undisturbed.
    """
    least_s = of.least_s(rows)
    if not least_s:
        return None
    alike = there.trainings[there.trainings["precision"] == precision]
    own = there.operators.groupby("training")
    bounds = [of.least_s(own.get_group(label)) for label in alike.index]
    known = pd.DataFrame(
        {"bound_s": bounds, "step_s": alike[STEP_MEDIAN].astype(float)}, alike.index
    )
    known = known[known["bound_s"] > 0]
    inside = 0
    for label in known.index:
        low_s, high_s = _range(known["bound_s"][label], known.drop(label))
        inside += bool(low_s <= known["step_s"][label] <= high_s)
    low_s, high_s = _range(least_s, known)
    if not math.isfinite(high_s):
        return Bound(least_s, None, None, len(known), inside, None)
    nearest = np.log(known["bound_s"] / least_s).abs().idxmin()
    workload = str(there.trainings["workload"][nearest])
    return Bound(least_s, low_s, high_s, len(known), inside, workload)


def bound_of_products(flops: float | None, of: Ceilings) -> Bound | None:
    """The bound of a step by the FLOP of its products alone; None without a ceiling."""
    least_s = (flops or math.nan) / of.flop_per_s
    return Bound(least_s, None, None, 0, 0, None) if math.isfinite(least_s) else None


def _range(bound_s: float, known: pd.DataFrame) -> tuple[float, float]:
    """The range of the seconds of a step with this bound; NaN without trainings.

    Args:
        known: `bound_s` and `step_s` of measured trainings.
    """
    if known.empty:
        return math.nan, math.nan
    distance = np.log(known["bound_s"] / bound_s).abs()
    near = known.loc[distance.nsmallest(NEAREST).index]
    times = near["step_s"] / near["bound_s"]
    is_beyond = bound_s > LIKELY_FACTOR * known["bound_s"].max()
    return bound_s * (1.0 if is_beyond else float(times.min())), bound_s * float(times.max())
