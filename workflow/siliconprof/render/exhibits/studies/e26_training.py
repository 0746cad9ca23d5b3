"""Wide against deep: loss, gradient norm and step time over training; what the models wrote, folded."""

import pandas as pd

from siliconprof.analyse.frames import POINT, Frames
from siliconprof.render.drawers import Lines
from siliconprof.render.exhibit import Exhibit, Num, Text
from siliconprof.render.exhibits.studies import _models
from siliconprof.render.exhibits.studies.e25_wide_deep import TRAINER

PANELS = {
    "loss": "Training cross-entropy loss",
    "evaluation": "Evaluation cross-entropy loss",
    "gradient_norm": "Gradient norm before clipping",
    "step_ms": "Step time / ms",
}


def rows(frames: Frames) -> pd.DataFrame:
    """Each quantity of each training over its steps; below them, in rows of their own, the texts."""
    points = frames.points[frames.points["trainer"] == TRAINER]
    curves = frames.table("curves").assign(step_ms=lambda frame: 1e3 * frame["step_s"])
    course = _models.means(curves, ["loss", "gradient_norm", "step_ms"], most=200)
    evaluations = frames.table("evaluations")[[*POINT, "step", "loss"]]
    course = pd.concat([course, evaluations.rename(columns={"loss": "evaluation"})])
    long = course.melt([*POINT, "step"], list(PANELS), "quantity").dropna(subset="value")
    aspect = points["n_embd"] / points["n_layer"]
    names = points[[*POINT, "place", "setup", "order"]].assign(deep=aspect < aspect.max())
    long = long.merge(names, on=POINT)
    place = ", " + long["place"]
    long = long.assign(
        panel=long["quantity"].map(PANELS) + place.where(long["quantity"] == "step_ms", ""),
        line=long["workload"] + " · " + long["setup"] + place,
        quantity=pd.Categorical(long["quantity"], list(PANELS)),
    ).sort_values(["quantity", "order", "step"])
    texts = frames.table("texts")
    texts = texts[texts["trainer"] == TRAINER].assign(texts="texts")
    return pd.concat([long, texts], ignore_index=True)


EXHIBIT = Exhibit(
    id="wide-deep-training",
    rows=rows,
    figure=Lines(
        panel="panel", line="line", x="step", y="value", x_label="step", y_label="", dashed="deep"
    ),
    each="texts",
    table=(
        Text("workload", "Model"),
        Text("place", "Device", folds=True),
        Text("setup", "Setup"),
        Num("temperature", "Temperature"),
        Text("prompt", "Prompt", code=True),
        Text("text", "Text", code=True),
    ),
    folded="Sample texts",
    needs="It needs a cell of module transformer_lm with trainer training_run.",
)
