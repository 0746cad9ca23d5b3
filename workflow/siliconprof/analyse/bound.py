"""What bounds a model shape's step, and a backend: launches, memory, both, neither, or unknown.

The wide/deep report asks whether a system is held back by its memory or by many small launches.

- Launch-bound: at the smallest batch at least `BOUND` of the step does not grow with the batch (lower
  end of its 95 % interval), and launches times their cost take as much of it; or they take it at up
  to `LOW_BY` times that cost, while the bytes of weights and optimizer, taken as many times, leave
  that much of the step unexplained.
- Memory-bound: the bytes that must move at least take `BOUND` of the step at the measured bandwidth,
  at the smallest or the largest batch.
- Not bound: the fixed part is surely less, or the estimate is below `CLEAR`. Between the two, or above
  `IMPOSSIBLE` steps, an estimate decides nothing.
- A backend is bound where any of its model shapes is.
"""

from __future__ import annotations

import pandas as pd

from siliconprof.analyse import step_work
from siliconprof.declarations import mebibytes
from siliconprof.store import table_files
from siliconprof.store.table_files import KEY, Row

STATUSES = ("ok", "oom", "skipped", "failed")
ENDS = ("smallest", "largest")  # batch
YES, NO, UNKNOWN = "yes", "no", "unknown"
INCONCLUSIVE, LAUNCH_BOUND, MEMORY_BOUND = "inconclusive", "launch-bound", "memory-bound"
VERDICTS = {  # by whether launches and memory bound it
    (YES, YES): "both",
    (YES, NO): LAUNCH_BOUND,
    (YES, UNKNOWN): LAUNCH_BOUND,
    (NO, YES): MEMORY_BOUND,
    (UNKNOWN, YES): MEMORY_BOUND,
    (NO, NO): "neither",
}
NOT_MEASURED = "no point of it was measured"
# Without what takes a third of a step, the step would be at most 1.5 times as fast (Amdahl 1967).
BOUND = 1 / 3
# Both estimates are low. Operators that each go through memory move up to five times the least
# (counted, see `step_work.least_bytes`); an operator of a training has a module and autograd around
# it, which the launch of a + 1 has not, and that this is no more than five times is assumed. Below
# this, five times as much is no third.
LOW_BY = step_work.EAGER_TRAFFIC
CLEAR = BOUND / LOW_BY
IMPOSSIBLE = 1.25  # of a step: an estimate further above it does not describe the step
MOST_RESIDUAL = 0.25  # of a step: such as lie further from the line do not lie on one


def judged(shapes: pd.DataFrame) -> pd.DataFrame:
    """Shapes with `launch_bound`, `memory_bound` (yes, no, unknown), and the numbers behind them."""
    rows = table_files.rows(shapes)
    for name, sign in (("launch", launch_sign), ("memory", memory_sign)):
        signs = [
            (UNKNOWN, NOT_MEASURED) if row["smallest_step_s"] is None else sign(row) for row in rows
        ]
        names = [f"{name}_bound", f"{name}_why"]
        shapes = shapes.join(pd.DataFrame(signs, shapes.index, names))
    not_measured = shapes["smallest_step_s"].isna()
    return shapes.assign(fit_reason=shapes["fit_reason"].mask(not_measured, NOT_MEASURED))


def launch_sign(row: Row) -> tuple[str, str]:
    """Whether launches bound a shape's step at its smallest batch, and why."""
    share, fixed = row["launch_share_smallest"], row["fixed_share_smallest"]
    low, high = row["fixed_share_smallest_low"], row["fixed_share_smallest_high"]
    why = row["fit_reason"]
    if fixed is not None:
        why = (
            f"{fixed:.0%} ({low:.0%} to {high:.0%}) of the step of "
            f"{seconds_(row['smallest_step_s'])} at batch {row['smallest_batch']:.0f} does not "
            "grow with the batch"
        )
    if share is None:
        why += f"; {row['launch_reason']}"
    else:
        launches = f"{row['launches']:.0f} launches at {seconds_(row['launch_cost_s'])}"
        why += f"; {launches} take {share:.0%} of it"
    if row["overhead_share"] is not None:
        most = row["fixed_memory_share_most"]
        why += f", the weights' and the optimizer's bytes {most:.0%} at most"
    if fixed is not None and high < BOUND:
        return NO, why
    if share is None or share > IMPOSSIBLE:
        return UNKNOWN, why
    if share < CLEAR:
        return NO, why
    left = row["overhead_share"]  # what bytes leave of the fixed part
    can_explain = left is not None and row["overhead_share_low"] >= BOUND and LOW_BY * share >= left
    is_bound = fixed is not None and low >= BOUND and (share >= BOUND or can_explain)
    return YES if is_bound else UNKNOWN, why


def memory_sign(row: Row) -> tuple[str, str]:
    """Whether memory bounds a shape's step, at its smallest or its largest batch, and why."""
    if row["memory_reason"]:
        return UNKNOWN, row["memory_reason"]
    end = max(ENDS, key=lambda name: row[f"memory_share_{name}"])
    share, moved = row[f"memory_share_{end}"], mebibytes(row[f"least_bytes_{end}"])
    why = (
        f"at batch {row[f'{end}_batch']:.0f} a step moves {moved} at least, "
        f"{row[f'from_memory_share_{end}']:.0%} of it through memory, which takes {share:.0%} of "
        f"its {seconds_(row[f'{end}_step_s'])}"
    )
    if not row["last_level_cache_bytes"]:
        why += "; the cache's size is unknown, so the largest cache that we know was subtracted"
    if BOUND <= share <= IMPOSSIBLE:
        return YES, why
    return NO if share < CLEAR and row["last_level_cache_bytes"] else UNKNOWN, why


def seconds_(value: float) -> str:
    """`3.2 ms`, `4.1 µs`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def of_backends(shapes: pd.DataFrame) -> pd.DataFrame:
    """What the shapes of each grid, which are `judged`, say of its backend: columns of scaling.csv."""
    key = [*KEY]
    counts = shapes.groupby(key, sort=False)[[f"points_{status}" for status in STATUSES]].sum()
    measured = shapes[shapes["smallest_step_s"].notna()].groupby(key)
    bounds = ["launch_bound", "memory_bound"]
    of_any = counts.join([measured["throughput_gain"].max(), measured[bounds].agg(_any)])
    of_any = of_any.fillna(dict.fromkeys(bounds, UNKNOWN)).reset_index()
    both = of_any[bounds].itertuples(index=False, name=None)
    return of_any.assign(verdict=[VERDICTS.get(pair, INCONCLUSIVE) for pair in both])


def _any(answers: pd.Series) -> str:
    """Yes where any shape says so, no where all deny it."""
    return YES if answers.eq(YES).any() else NO if answers.eq(NO).all() else UNKNOWN
