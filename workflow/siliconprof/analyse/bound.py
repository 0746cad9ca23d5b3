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

import numpy as np
import pandas as pd

from siliconprof.analyse import step_work
from siliconprof.analyse.throughputs import known
from siliconprof.store.table_files import KEY

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
    """Shapes with `launch_bound` and `memory_bound`: yes, no, unknown."""
    not_measured = shapes["smallest_step_s"].isna()
    low, high = (shapes[f"fixed_share_smallest_{end}"] for end in ("low", "high"))
    share, left = shapes["launch_share_smallest"], shapes["overhead_share"]  # by bytes left
    can_explain = shapes["overhead_share_low"].ge(BOUND) & (LOW_BY * share).ge(left)
    is_bound = low.ge(BOUND) & (share.ge(BOUND) | can_explain)
    is_nothing = share.isna() | share.gt(IMPOSSIBLE)
    of_launches = [not_measured, high.lt(BOUND), is_nothing, share.lt(CLEAR), is_bound]
    most = shapes[[f"memory_share_{end}" for end in ENDS]].max(axis=1)
    is_clear = most.lt(CLEAR) & known(shapes["last_level_cache_bytes"])
    of_memory = [not_measured, most.between(BOUND, IMPOSSIBLE), is_clear]
    return shapes.assign(
        launch_bound=np.select(of_launches, [UNKNOWN, NO, UNKNOWN, NO, YES], UNKNOWN),
        memory_bound=np.select(of_memory, [UNKNOWN, YES, NO], UNKNOWN),
        fit_reason=shapes["fit_reason"].mask(not_measured, NOT_MEASURED),
    )


def of_backends(shapes: pd.DataFrame) -> pd.DataFrame:
    """What the shapes of each grid, which are `judged`, say of its backend: columns of scaling.csv."""
    key = [*KEY]
    bounds = ["launch_bound", "memory_bound"]
    backends = shapes[key].drop_duplicates()
    measured = shapes[shapes["smallest_step_s"].notna()].groupby(key)
    of_any = backends.join(measured["throughput_gain"].max(), key)
    of_any = of_any.join(measured[bounds].agg(_any), key).reset_index(drop=True)
    of_any = of_any.fillna(dict.fromkeys(bounds, UNKNOWN))
    both = of_any[bounds].itertuples(index=False, name=None)
    return of_any.assign(verdict=[VERDICTS.get(pair, INCONCLUSIVE) for pair in both])


def _any(answers: pd.Series) -> str:
    """Yes where any shape says so, no where all deny it."""
    return YES if answers.eq(YES).any() else NO if answers.eq(NO).all() else UNKNOWN
