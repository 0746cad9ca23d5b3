"""The loss of every training by step, a panel for each model.

Losses of equal work, data, seed, weights and settings must be equal whatever computes them: the
pointer has how far each is from the first of them, a panel's title how far those in fp32 are.
"""

import pandas as pd

from siliconprof import words
from siliconprof.analyse.equal_work import WORK
from siliconprof.analyse.frames import CELL, Frames, by_phases
from siliconprof.render.drawers import Lines
from siliconprof.render.exhibit import Exhibit

SETTINGS = ("learning_rate", "lora_alpha")  # losses depend on them, the time of a step does not
SAID = ["model", "work_label", "setup", "place", "stage", "family_order", "disturbed"]


def rows(frames: Frames) -> pd.DataFrame:
    losses = frames.losses
    # Whole trainings with a curve have an exhibit of their own.
    losses = losses[~losses["order"].isin(frames.table("curves")["order"])]
    if losses["loss"].isna().all():
        return losses.iloc[:0]
    losses = losses.merge(_alike(frames.points), on="order", how="left")
    is_first = losses["order"] == losses["first"]
    against = losses[is_first].set_index(["alike", "iteration"])["loss"]
    keys = pd.MultiIndex.from_frame(losses[["alike", "iteration"]])
    differences = (losses["loss"] / against.reindex(keys).to_numpy() - 1).abs()
    ends = losses[losses["loss"].isna()].groupby("order")["iteration"].min() + 1
    # A row for each training, before each of its steps has all that is said of it.
    names = frames.points.set_index("order")
    frame = names.loc[losses["order"].unique(), [*CELL, *SAID]].assign(
        difference=differences[~is_first].groupby(losses["order"]).max(),
        diverged=ends,
        first=losses.groupby("order")["first"].first(),
    )
    where = " on " + frame["place"] if frame["place"].nunique() > 1 else ""
    several = frame.groupby("model")["work_label"].transform("nunique") > 1
    several &= frame["stage"] != "near-capacity"  # whose batch is in its setup
    batch = " · " + frame["work_label"].str.partition(", ")[2]
    ended = frame["diverged"].map(" (diverged: NaN or infinite at step {:.0f})".format, "ignore")
    by = frame["difference"].map(words.scientific, "ignore").astype("str")
    frame = frame.assign(
        panel=frame["model"] + frame["model"].map(_remarks(frame)).astype("str").fillna(""),
        line=frame["setup"] + where + batch.where(several, "") + ended.astype("str").fillna(""),
        hover="differs from " + frame["first"].map(names["setup"]) + " by at most " + by,
    )
    shown = frame[[*CELL, "place", "disturbed", "panel", "line", "hover"]]
    shown = shown.astype(dict.fromkeys(shown.columns.drop("disturbed"), "category"))
    losses = losses.assign(family_order=losses["order"].map(frame["family_order"]))
    losses = losses.sort_values(["family_order", "order", "iteration"], kind="stable")
    steps = losses[["order", "loss"]].assign(step=losses["iteration"] + 1)
    return steps.join(shown, on="order")


def _alike(points: pd.DataFrame) -> pd.DataFrame:
    """`alike`, a number for trainings that must give equal losses; the `first` is in fp32 if any is."""
    frame = points[by_phases(points) & points["data_sha256"].notna()]
    frame = frame.assign(
        alike=frame.groupby([*WORK, *SETTINGS], dropna=False, sort=False).ngroup(),
        other=frame["precision"] != "fp32",
    ).sort_values(["other", "order"])
    return frame[["order", "alike"]].assign(
        first=frame.groupby("alike")["order"].transform("first")
    )


def _remarks(frame: pd.DataFrame) -> pd.Series:
    """Model -> ` (fp32: 3 × 10⁻⁷)`, or how many diverged."""
    diverged = frame["diverged"].groupby(frame["model"]).count().loc[lambda n: n > 0]
    most = frame[frame["precision"] == "fp32"].groupby("model")["difference"].max().dropna()
    texts = most.map(words.scientific).map(" (fp32: {})".format)
    return diverged.map(" ({} diverged)".format).combine_first(texts)


EXHIBIT = Exhibit(
    id="losses",
    rows=rows,
    figure=Lines(
        panel="panel", line="line", x="step", y="loss", x_label="training step", y_label="loss, nat"
    ),
    needs="It needs a training.",
)
