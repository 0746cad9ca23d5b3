"""Wide against deep: two models of equal size and compute, what each is made of and came to."""

from __future__ import annotations

from functools import partial

import pandas as pd

from siliconprof import words
from siliconprof.analyse.frames import DEVICE, POINT, Frames
from siliconprof.render.exhibit import PLACE, Exhibit, Num, Text
from siliconprof.render.exhibits.studies import _models
from siliconprof.stats import training_course

TRAINER = "training_run"
SIZES = ("n_parameters", "flops")


def rows(frames: Frames) -> pd.DataFrame:
    """Every whole training, wide models first; one that was not measured has its reason."""
    frame = frames.points[frames.points["trainer"] == TRAINER]
    frame = frame.join(of_course(frames), on=POINT).join(evaluated(frames), on=POINT)
    frame = frame.assign(
        shape=_models.shape(frame),
        aspect=frame["n_embd"] / frame["n_layer"],
        place_order=frame.groupby(DEVICE)["order"].transform("min"),
        final_loss_why=frame["outcome_reason"],
        unusual_why="not every step was timed by itself",
    ).sort_values(["place_order", "aspect", "order"], ascending=[True, False, True])
    widest = frame.groupby([*DEVICE, "backend", "precision"])[list(SIZES)].transform("first")
    for name in SIZES:
        frame[f"{name}_against"] = (frame[name] / widest[name] - 1).map(difference)
    lost = frames.cells[frames.cells["trainer"].eq(TRAINER) & frames.cells["status"].ne("ok")]
    why = lost["status"].map(words.STATUS_WORDS) + ": " + lost["reason"].fillna("no reason given")
    return pd.concat([frame, lost.assign(why_not=why)], ignore_index=True)


def difference(share: float) -> str:
    """`−4.85 %` of the widest model; nothing for that itself."""
    known = share and share == share
    return f"{100 * share:+.2f}{words.THIN}%".replace("-", "−") if known else ""


def of_course(frames: Frames) -> pd.DataFrame:
    """Until which step the gradient norm of a training was elevated, and its steps of unusual length."""
    curves = frames.table("curves")
    curves = curves[curves["trainer"] == TRAINER]
    unusual = curves["unusual"].astype("boolean").astype("Float64").astype(float)
    of = curves.assign(unusual=unusual).groupby(POINT)
    norms = of["gradient_norm"].agg(elevated).rename("elevated_until")
    return of["unusual"].sum(min_count=1).to_frame().join(norms)


def elevated(norms: pd.Series) -> float | None:
    course = training_course.elevated_until(norms.tolist())
    return None if course is None else course.middle


def evaluated(frames: Frames) -> pd.DataFrame:
    """The last evaluation of a training, and its best in words."""
    frame = frames.table("evaluations").dropna(subset="loss").sort_values("step", kind="stable")
    last = frame.drop_duplicates(POINT, keep="last").set_index(POINT)[["loss"]]
    best = frame.sort_values("loss", kind="stable").drop_duplicates(POINT).set_index(POINT)
    loss = best["loss"].map(partial(words.significant, digits=4))
    said = "best " + loss + best["step"].map(" at {:.0f}".format)
    return last.rename(columns={"loss": "evaluation_loss"}).join(said.rename("best"))


FINAL = "training, mean over the last tenth of the steps"
ELEVATED = (
    "the last step whose gradient norm, as a running median, is over "
    f"{training_course.ELEVATED:g} times its median over the second half; 0: never"
)
UNUSUAL = "far longer than the spread of the others explains"
EXHIBIT = Exhibit(
    id="wide-deep",
    rows=rows,
    table=(
        Text("workload", "Model", below="shape"),
        Num("n_parameters", "Parameters", "10⁶", 1e6, 4, below="n_parameters_against"),
        Num("flops", "Operations", "10⁹ a step", 1e9, 4, below="flops_against"),
        *PLACE,
        Num("training_steps", "Steps", integer=True, folds=True),
        Num("final_loss", "Final cross-entropy loss", "", digits=4, help=FINAL),
        Num("evaluation_loss", "Evaluation loss", "", digits=4, below="best"),
        Num("elevated_until", "Norm elevated until", "step", integer=True, help=ELEVATED),
        Num("whole_step_ms", "Whole step", "ms"),
        Num("tokens_per_s", "Speed", "tokens/s"),
        Num("unusual", "Unusual steps", integer=True, folds=True, help=UNUSUAL),
        Num("device_peak_bytes", "Peak memory", "MiB", 2**20),
    ),
    needs="It needs a cell of module transformer_lm with trainer training_run.",
)
