"""The loss of every training by step, a panel for each model and batch.

Losses of equal work, data, seed, weights and settings must be equal whatever computes them: the
pointer has how far each is from the first of them, a panel's title how far those in fp32 are.
"""

import pandas as pd

from siliconprof import words
from siliconprof.analyse.equal_work import WORK
from siliconprof.analyse.frames import CELL, POINT, Frames
from siliconprof.render.drawers import Lines
from siliconprof.render.exhibit import Exhibit

SETTINGS = ("learning_rate", "lora_alpha")  # losses depend on them, the time of a step does not
SAID = ["model", "work_label", "setup", "place", "stage", "family_order", "disturbed"]


def rows(frames: Frames) -> pd.DataFrame:
    losses = compared(frames)
    # Whole trainings with a curve have an exhibit of their own.
    losses = losses[~losses["order"].isin(frames.table("curves")["order"])]
    if losses["loss"].isna().all():
        return losses.iloc[:0]
    of_training = losses.groupby("order")
    # A row for each training, before each of its steps has all that is said of it.
    names = frames.points.set_index("order")
    frame = names.loc[losses["order"].unique(), [*CELL, *SAID]].assign(
        difference=of_training["by"].max(),
        diverged=losses[losses["loss"].isna()].groupby("order")["iteration"].min() + 1,
        first=of_training["first"].first(),
    )
    where = " on " + frame["place"] if frame["place"].nunique() > 1 else ""
    several = frame.groupby("model")["work_label"].transform("nunique") > 1
    several &= frame["stage"] != "near-capacity"  # whose batch is in its setup
    model = frame["model"] + (", " + frame["work_label"].str.partition(", ")[2]).where(several, "")
    ended = frame["diverged"].map(" (diverged: NaN or infinite at step {:.0f})".format, "ignore")
    by = frame["difference"].map(words.scientific, "ignore").astype("str")
    frame = frame.assign(
        panel=model + model.map(_remarks(frame, model)).astype("str").fillna(""),
        line=frame["setup"] + where + ended.astype("str").fillna(""),
        hover="differs from " + frame["first"].map(names["setup"]) + " by at most " + by,
    )
    shown = frame[[*CELL, "place", "disturbed", "panel", "line", "hover"]]
    shown = shown.astype(dict.fromkeys(shown.columns.drop("disturbed"), "category"))
    losses = losses.assign(family_order=losses["order"].map(frame["family_order"]))
    losses = losses.sort_values(["family_order", "order", "iteration"], kind="stable")
    steps = losses[["order", "loss"]].assign(step=losses["iteration"] + 1)
    return steps.join(shown, on="order")


def compared(frames: Frames) -> pd.DataFrame:
    """Every `loss` by the `order` of its point and the `iteration`: most of the longest table.

    `first` is the first of the trainings, in fp32 if any is, whose losses must be equal, since
    work, data, seed, weights and settings are; `by` is how far a loss is from that one's.
    """
    steps = frames.results.frame("steps", series="loss")[[*POINT, "iteration", "loss"]]
    points = frames.trainings.dropna(subset="data_sha256")
    points = points.sort_values("precision", key=lambda of: of != "fp32", kind="stable")
    alike = points.groupby([*WORK, *SETTINGS], dropna=False, sort=False)["order"]
    orders = frames.points[[*POINT, "order"]].assign(first=alike.transform("first"))
    losses = steps.merge(orders, on=POINT).drop(columns=POINT)
    losses = losses.sort_values("order", kind="stable", ignore_index=True)
    firsts = pd.MultiIndex.from_frame(losses[["first", "iteration"]])
    against = losses.set_index(["order", "iteration"])["loss"].reindex(firsts).to_numpy()
    by = (losses["loss"] / against - 1).abs()
    return losses.assign(by=by.mask(losses["order"] == losses["first"]))


def _remarks(frame: pd.DataFrame, model: pd.Series) -> pd.Series:
    """Model -> ` (fp32: 3 × 10⁻⁷)`, or how many diverged."""
    diverged = frame["diverged"].groupby(model).count().loc[lambda n: n > 0]
    most = frame["difference"][frame["precision"] == "fp32"].groupby(model).max().dropna()
    texts = most.map(words.scientific).map(" (fp32: {})".format)
    return diverged.map(" ({} diverged)".format).combine_first(texts)


EXHIBIT = Exhibit(
    id="losses",
    rows=rows,
    figure=Lines(
        panel="panel",
        line="line",
        x="step",
        y="loss",
        x_label="training step",
        y_label="cross-entropy loss",
    ),
    needs="It needs a training.",
)
