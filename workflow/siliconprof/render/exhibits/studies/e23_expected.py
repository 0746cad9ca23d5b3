"""Grid of the wide/deep report: expected against actual time of a step."""

import pandas as pd

from siliconprof.analyse.frames import Frames
from siliconprof.render.drawers import Scatter
from siliconprof.render.exhibit import Exhibit
from siliconprof.render.exhibits.studies import _models

BASES = {
    "expected_ceiling_s": "By the fastest product measured",
    "expected_datasheet_s": "By the data sheet's peak",
}


def rows(frames: Frames) -> pd.DataFrame:
    """Each point of a grid, once for each of the rates that its operations are held against."""
    frame = frames.table("expected")
    batch = _models.whole(frame["batch_size"])
    whose = frame["place"] + ", " + frame["setup"] + ", "
    frame = frame.assign(name=whose + _models.shape(frame) + ", batch " + batch)
    others = [name for name in frame if name not in BASES]
    long = frame.melt(others, list(BASES), "basis", "expected_s").dropna(subset="expected_s")
    expected_ms, actual_ms = 1e3 * long["expected_s"], 1e3 * long["actual_s"]
    over = (actual_ms / expected_ms).map("{:.3g} × as long".format)
    basis = long["basis"].map(BASES)
    return long.assign(expected_ms=expected_ms, actual_ms=actual_ms, hover=over, basis=basis)


EXHIBIT = Exhibit(
    id="grid-expected",
    rows=rows,
    figure=Scatter(
        panel="basis",
        x="expected_ms",
        y="actual_ms",
        x_label="expected / ms",
        y_label="actual / ms",
        name="name",
        equal=True,
    ),
    needs="It needs cells of modules transformer_grid and matmul in the same precision.",
)
