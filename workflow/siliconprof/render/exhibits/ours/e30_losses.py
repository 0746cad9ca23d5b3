"""The loss of every training by step, a panel for each model.

Losses of equal work, data, seed, weights and settings must be equal whatever computes them: the
pointer has how far each is from the first of them, a panel's title how far those in fp32 are.
"""

import pandas as pd

from siliconprof import words
from siliconprof.analyse.equal_work import WORK
from siliconprof.analyse.frames import Frames, by_phases
from siliconprof.render.drawers import Lines
from siliconprof.render.exhibit import Exhibit

SETTINGS = ("learning_rate", "lora_alpha")  # losses depend on them, the time of a step does not


def rows(frames: Frames) -> pd.DataFrame:
    steps, curves = frames.table("steps", series="loss"), frames.table("curves")
    # Whole trainings with a curve have an exhibit of their own.
    drawn = ~steps["order"].isin(curves["order"])
    if steps.loc[drawn, "loss"].isna().all():
        return steps.iloc[:0]
    frame = steps[drawn].sort_values(["family_order", "order", "iteration"], kind="stable")
    frame = frame.merge(_alike(frames.points), on="order", how="left")
    is_first = frame["order"] == frame["first"]
    against = frame[is_first].set_index(["alike", "iteration"])["loss"]
    keys = pd.MultiIndex.from_frame(frame[["alike", "iteration"]])
    differences = (frame["loss"] / against.reindex(keys).to_numpy() - 1).abs()
    differences = differences.groupby(frame["order"]).max()
    end = frame[frame["loss"].isna()].groupby("order")["iteration"].min() + 1
    frame = frame.assign(
        step=frame["iteration"] + 1,
        difference=frame["order"].map(differences).mask(is_first),
        diverged=frame["order"].map(end),
    )
    names = frames.points.set_index("order")["setup"]
    where = " on " + frame["place"] if frame["place"].nunique() > 1 else ""
    several = frame.groupby("model")["work_label"].transform("nunique") > 1
    several &= frame["stage"] != "near-capacity"  # whose batch is in its setup
    batch = " · " + frame["work_label"].str.partition(", ")[2]
    ends = frame["diverged"].map(" (diverged: NaN or infinite at step {:.0f})".format, "ignore")
    ends = ends.astype("str").fillna("")
    by = frame["difference"].map(words.scientific, "ignore").astype("str")
    return frame.assign(
        panel=frame["model"] + frame["model"].map(_remarks(frame)).astype("str").fillna(""),
        line=frame["setup"] + where + batch.where(several, "") + ends,
        hover="differs from " + frame["first"].map(names) + " by at most " + by,
    )


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
    diverged = frame.dropna(subset=["diverged"]).groupby("model")["order"].nunique()
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
