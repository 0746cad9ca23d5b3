"""Figure 5 of the paper: matrix products. Its values are in a picture alone."""

from functools import partial

from siliconprof.render.drawers import DotInterval
from siliconprof.render.exhibit import Exhibit
from siliconprof.render.exhibits.paper import _operations

EXHIBIT = Exhibit(
    id="paper-figure-5",
    rows=partial(_operations.rows, module="matmul"),
    figure=DotInterval(row="shape", value="rate", x="GFLOP/s, more is better", unit="GFLOP/s"),
    needs="It needs a cell of module matmul.",
    shows=("matmul",),
)
