"""Optimizer sweep: loss over training by setting. Divergence is a result like any other."""

import numpy as np
import pandas as pd

from siliconprof.analyse.frames import CELL, POINT, Frames
from siliconprof.render.drawers import Lines
from siliconprof.render.exhibit import Exhibit
from siliconprof.render.exhibits.studies import _models

MOST_LINES, MOST_VALUES = 32, 120  # of a panel, of a line
SETTINGS = {
    "learning_rate": "learning rate",
    "warmup_steps": "warm-up steps",
    "weight_decay": "weight decay",
    "beta1": "β₁",
    "beta2": "β₂",
    "max_gradient_norm": "clipping",
}


def rows(frames: Frames) -> pd.DataFrame:
    """The losses of every training; of one that diverged until it leaves the others' scale."""
    points = frames.points
    points = points[points["module"].eq("optimizer_sweep") & points["diverged"].notna()]
    if points.empty:
        return points
    points = points.assign(diverged=points["diverged"].eq(True))
    chosen = pd.concat(spaced(group) for _, group in points.groupby(CELL, sort=False))
    panel = chosen["workload"] + ", " + chosen["setup"] + ", " + chosen["place"]
    named = chosen[[*POINT, "diverged"]].assign(panel=panel, **said(chosen))
    named["cell_order"] = chosen.groupby(CELL)["order"].transform("min")
    course = _models.means(frames.table("curves").dropna(subset="loss"), ["loss"], MOST_VALUES)
    frame = course.merge(named, on=POINT).sort_values(["cell_order", "value", "point", "step"])
    limit = 1.05 * frame.groupby("panel")["loss"].transform("first")
    above = frame["diverged"] & frame["loss"].gt(limit)
    frame = frame.assign(loss=frame["loss"].mask(above, limit))
    return frame[above.groupby([frame[name] for name in POINT]).cumsum() < 2]


def spaced(points: pd.DataFrame) -> pd.DataFrame:
    """As many of a cell's trainings as a panel holds, evenly spaced by final loss."""
    ordered = points.sort_values(["diverged", "final_loss"], kind="stable")
    places = np.linspace(0, len(ordered) - 1, min(len(ordered), MOST_LINES))
    return ordered.iloc[places.round().astype(int)]


def said(points: pd.DataFrame) -> dict[str, pd.Series]:
    """Each training's `value` of the first setting that varies, this in words, and all that vary."""
    varying = [name for name in SETTINGS if points[name].nunique(dropna=False) > 1]
    first, *_ = varying or SETTINGS
    texts = pd.DataFrame(
        {
            name: SETTINGS[name] + " " + points[name].map("{:g}".format).replace("nan", "off")
            for name in varying or [first]
        }
    )
    return {"value": points[first], "setting": texts[first], "line": texts.agg(", ".join, axis=1)}


EXHIBIT = Exhibit(
    id="optimizer-sweep",
    rows=rows,
    figure=Lines(
        panel="panel",
        line="line",
        x="step",
        y="loss",
        x_label="step",
        y_label="cross-entropy loss",
        columns_of_panels=2,
        colour="setting",
        dashed="diverged",
    ),
    needs="It needs a cell of module optimizer_sweep.",
    shows=("optimizer_sweep",),
)
