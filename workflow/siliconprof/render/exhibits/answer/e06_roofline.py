"""Roofline: operations a byte and a second of products and trainings, under what was measured at most."""

import numpy as np
import pandas as pd

from siliconprof import words
from siliconprof.analyse import roofline
from siliconprof.analyse.frames import CELL, DEVICE, Frames, records
from siliconprof.analyse.throughputs import describe
from siliconprof.render.drawers import Scatter
from siliconprof.render.exhibit import Exhibit

KINDS = {
    "matmul": "matrix product",
    "matvec": "matrix-vector product",
    "vjp": "gradients of a product",
    roofline.TRAINING: "training step, FLOP per byte at most",
}
MOST_DOTS = 160  # of a panel; above it a cell has the one that is nearest to its roof
GIGA = 1e9


def rows(frames: Frames) -> pd.DataFrame:
    frame = roofline.points(frames)
    if frame.empty:
        return frame
    frame = frame.assign(
        # What markers tell apart.
        place=frame["place"] if frame["place"].nunique() > 1 else frame["kind"].map(KINDS),
        speed=frame["flop_per_s"] / GIGA,
        level=frame["product"] / GIGA,
        slope=(frame["bandwidth"] / GIGA).fillna(np.inf),  # unknown: the products alone
        roof=frame["place"]
        + ", "
        + frame["backend"]
        + " "
        + frame["number_format"]
        + ", "
        + frame["bound"],
    )
    crowded = frame.groupby("number_format")["share"].transform("size") > MOST_DOTS
    nearest = frame.sort_values("share", ascending=False).drop_duplicates([*CELL, "kind"])
    frame = frame[~crowded | frame.index.isin(nearest.index)]
    details = pd.Series([describe(row) for row in records(frame)], frame.index)
    share = [words.percent(share) if share == share else "no part" for share in frame["share"]]
    frame = frame.assign(
        name=frame["workload"]
        + (", " + frame["setup"]).where(frame["kind"] == roofline.TRAINING, ", " + details),
        hover=pd.Series(share, frame.index) + " of the roof",
    )
    return pd.concat([frame, _sheets(frame, frames)])


def _sheets(frame: pd.DataFrame, frames: Frames) -> pd.DataFrame:
    """The roof by the data sheet, with a mark where both its parts meet."""
    one = frame.drop_duplicates([*DEVICE, "number_format"])
    both = [
        (sheet.peak(row, row["number_format"]).value, sheet.bandwidth(row).value)
        for sheet in (frames.sheets,)
        for row in records(one)
    ]
    printed = pd.DataFrame(both, one.index, ["level", "slope"], float) / GIGA
    printed = printed.assign(
        number_format=one["number_format"],
        intensity=printed["level"] / printed["slope"],
        speed=printed["level"],
        roof="the data sheet, " + one["device_label"],
        name="data sheet",
        published=True,
    )
    return printed.dropna(subset=["intensity"])


EXHIBIT = Exhibit(
    id="roofline",
    rows=rows,
    figure=Scatter(
        x="intensity",
        y="speed",
        x_label="FLOP per byte",
        y_label="GFLOP/s",
        name="name",
        roofs=("level", "slope", "roof"),
        panel="number_format",
        high_in=2.4,
    ),
    needs="It needs a cell of matrix products, or a training whose bytes are known.",
)
