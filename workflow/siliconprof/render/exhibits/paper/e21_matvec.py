"""Figure 6 of the paper: matrix-vector products, which the memory bounds and not the arithmetic."""

import pandas as pd

from siliconprof.analyse.frames import Frames
from siliconprof.render.drawers import DotInterval
from siliconprof.render.exhibit import Exhibit
from siliconprof.render.exhibits.paper import _operations

WAYS = {"cold": ", from memory", "warm": ", from cache"}


def rows(frames: Frames) -> pd.DataFrame:
    frame = _operations.rows(frames, "matvec", "bytes")
    return frame.assign(shape=frame["shape"] + frame["cache"].map(WAYS).astype("string"))


EXHIBIT = Exhibit(
    id="paper-figure-6",
    rows=rows,
    figure=DotInterval(row="shape", value="rate", x="GB/s, more is better", unit="GB/s"),
    needs="It needs a cell of module matvec.",
    shows=("matvec",),
)
