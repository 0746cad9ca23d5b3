"""Figure 7 of the paper: vector-Jacobian products, which are what a backward pass computes."""

import pandas as pd

from siliconprof.analyse.frames import Frames
from siliconprof.render.drawers import DotInterval
from siliconprof.render.exhibit import Exhibit
from siliconprof.render.exhibits.paper import _operations

WAYS = {"without": "", "with": ", with the forward pass"}


def rows(frames: Frames) -> pd.DataFrame:
    frame = _operations.rows(frames, "vjp")
    return frame.assign(shape=frame["shape"] + frame["forward"].map(WAYS).astype("string"))


EXHIBIT = Exhibit(
    id="paper-figure-7",
    rows=rows,
    figure=DotInterval(row="shape", value="rate", x="GFLOP/s, more is better", unit="GFLOP/s"),
    needs="It needs a cell of module vjp.",
    shows=("vjp",),
)
