"""The wide/deep report: a grid of transformers, whole trainings, a sweep of the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd

from siliconprof import formatting
from siliconprof.analyse.frames import CELL, DEVICE, POINT, Frames
from siliconprof.analyse.scaling import ABOUT_SHAPE
from siliconprof.render.drawers import Lines, Scatter
from siliconprof.render.exhibit import PLACE_TEXTS, Num, Text, exhibit
from siliconprof.stats import training_course

SHAPE = ["n_layer", "n_embd", "n_head", "head_dim", "d_ff", "seq_len"]


def shape(frame: pd.DataFrame) -> pd.Series:
    """`4 × 256, 8 heads of 32, d_ff 1024, 128 tokens` of each row."""
    n_layer, n_embd, n_head, head_dim, d_ff, seq_len = (
        integers_as_text(frame[name]) for name in SHAPE
    )
    heads = ", " + n_head + " heads of " + head_dim
    return n_layer + " × " + n_embd + heads + ", d_ff " + d_ff + ", " + seq_len + " tokens"


def integers_as_text(numbers: pd.Series) -> pd.Series:
    """Whole numbers as texts."""
    return numbers.astype("Int64").astype("string")


def means(curves: pd.DataFrame, values: Sequence[str], most: int) -> pd.DataFrame:
    """Each training's values by step, averaged over so many steps that at most `most` remain."""
    width = -(-curves.groupby(POINT)["step"].transform("size") // most)
    parts = curves.assign(part=curves["step"] // width).groupby([*POINT, "part"], sort=False)
    return parts[["step", *values]].mean().reset_index()


BASES = {
    "expected_ceiling_s": "By the fastest product measured",
    "expected_datasheet_s": "By the data sheet's peak",
}


@exhibit(
    "grid-expected",
    figure=Scatter(
        panel="basis",
        x="expected_ms",
        y="actual_ms",
        x_label="expected / ms",
        y_label="actual / ms",
        name="name",
        equal=True,
    ),
)
def grid_expected(frames: Frames) -> pd.DataFrame:
    """Grid of the wide/deep report: expected against actual time of a step.

    Each point of a grid, once for each of the rates that its operations are held against.
    """
    frame = frames.table("expected")
    batch = integers_as_text(frame["batch_size"])
    whose = frame["place"] + ", " + frame["setup"] + ", "
    frame = frame.assign(name=whose + shape(frame) + ", batch " + batch)
    others = [name for name in frame if name not in BASES]
    long = frame.melt(others, list(BASES), "basis", "expected_s").dropna(subset="expected_s")
    expected_ms, actual_ms = 1e3 * long["expected_s"], 1e3 * long["actual_s"]
    over = (actual_ms / expected_ms).map("{:.3g} × as long".format)
    basis = long["basis"].map(BASES)
    return long.assign(expected_ms=expected_ms, actual_ms=actual_ms, hover=over, basis=basis)


KEPT = [*CELL, "place", "setup", "order", "disturbed", *SHAPE, "n_parameters", "batch_size"]
SHARE_STEPS = pd.DataFrame(
    {"share": np.linspace(0, 1, 25)}
)  # of a fitted line, on a logarithmic axis


@exhibit(
    "grid-throughput",
    figure=Lines(
        panel="panel",
        line="line",
        columns_of_panels=2,
        x="batch_size",
        y="rate",
        x_label="batch size",
        y_label="tokens per second",
        log_x=True,
        log_y=True,
        colour="size",
        dashed="fit",
        markers=True,
    ),
    shows=("transformer_grid",),
)
def grid_throughput(frames: Frames) -> pd.DataFrame:
    """Grid of the wide/deep report: throughput over batch size, and the fit "fixed part + per token".

    Tokens per second of every measured point, and of every fit.
    """
    frame = pd.concat([measured(frames), fitted(frames)], ignore_index=True)
    layers, width, tokens = (
        integers_as_text(frame[name]) for name in ("n_layer", "n_embd", "seq_len")
    )
    of_length = ", " + tokens + " tokens" if frame["seq_len"].nunique() > 1 else ""
    return frame.assign(
        panel=frame["setup"] + of_length + ", " + frame.pop("place"),
        line=shape(frame) + frame["fit"].map({True: ", fit", False: ""}),
        size=layers + " layers of " + width,
    ).sort_values(["order", "seq_len", "n_parameters", "fit", "batch_size"], kind="stable")


def measured(frames: Frames) -> pd.DataFrame:
    frame = frames.table("expected")
    return frame[KEPT].assign(rate=frame["tokens_per_s"], fit=False)


def fitted(frames: Frames) -> pd.DataFrame:
    frame = frames.table("scaling")
    frame = frame[frame["about"].eq(ABOUT_SHAPE) & frame["per_sample_s"].gt(0)]
    frame = frame.merge(SHARE_STEPS, how="cross")
    smallest, largest = frame["smallest_batch"], frame["largest_batch"]
    batch = smallest * (largest / smallest) ** frame["share"]
    each = 1e6 * frame["per_sample_s"] / frame["seq_len"]
    hover = [
        f"{formatting.significant(1e3 * fixed, 2)} ms + {formatting.significant(token, 2)} µs a token"
        for fixed, token in zip(frame["fixed_s"], each, strict=True)
    ]
    rate = batch * frame["seq_len"] / (frame["fixed_s"] + batch * frame["per_sample_s"])
    return frame.assign(batch_size=batch, rate=rate, fit=True, hover=hover)[
        [*KEPT, "rate", "fit", "hover"]
    ]


GRID_TRAINER = "training_run"
SIZES = ("n_parameters", "flops")
FINAL = "training, mean over the last tenth of the steps"
ELEVATED_MEANING = (
    "the last step whose gradient norm, as a running median, is over "
    f"{training_course.ELEVATED_FACTOR:g} times its median over the second half; 0: never"
)
UNUSUAL = "far longer than the spread of the others explains"


@exhibit(
    "wide-deep",
    table=(
        Text("workload", "Model", below="shape"),
        Num("n_parameters", "Parameters", "10⁶", 1e6, 4, below="n_parameters_against"),
        Num("flops", "Operations", "10⁹ a step", 1e9, 4, below="flops_against"),
        *PLACE_TEXTS,
        Num("training_steps", "Steps", integer=True, folds=True),
        Num("final_loss", "Final cross-entropy loss", "", digits=4, help=FINAL),
        Num("evaluation_loss", "Evaluation loss", "", digits=4, below="best"),
        Num("elevated_until", "Norm elevated until", "step", integer=True, help=ELEVATED_MEANING),
        Num("whole_step_ms", "Whole step", "ms"),
        Num("tokens_per_s", "Speed", "tokens/s"),
        Num("unusual", "Unusual steps", integer=True, folds=True, help=UNUSUAL),
        Num("device_peak_bytes", "Peak memory", "MiB", 2**20),
    ),
)
def wide_deep(frames: Frames) -> pd.DataFrame:
    """Wide against deep: two models of equal size and compute, what each is made of and came to.

    Every whole training, wide models first; one that was not measured has its reason.
    """
    frame = frames.points[frames.points["trainer"] == GRID_TRAINER]
    frame = frame.join(readings_of_course(frames), on=POINT).join(evaluated(frames), on=POINT)
    frame = frame.assign(
        shape=shape(frame),
        aspect=frame["n_embd"] / frame["n_layer"],
        place_order=frame.groupby(DEVICE)["order"].transform("min"),
        final_loss_why=frame["outcome_reason"],
        unusual_why="not every step was timed by itself",
    ).sort_values(["place_order", "aspect", "order"], ascending=[True, False, True])
    widest = frame.groupby([*DEVICE, "backend", "precision"])[list(SIZES)].transform("first")
    for name in SIZES:
        frame[f"{name}_against"] = (frame[name] / widest[name] - 1).map(difference)
    lost = frames.cells[frames.cells["trainer"].eq(GRID_TRAINER) & frames.cells["status"].ne("ok")]
    why = (
        lost["status"].map(formatting.STATUS_WORDS)
        + ": "
        + lost["reason"].fillna("no reason given")
    )
    return pd.concat([frame, lost.assign(why_not=why)], ignore_index=True)


def difference(share: float) -> str:
    """`−4.85 %` of the widest model; nothing for that itself."""
    known = share and share == share
    return f"{100 * share:+.2f}{formatting.NARROW}%".replace("-", "−") if known else ""


def readings_of_course(frames: Frames) -> pd.DataFrame:
    """Until which step the gradient norm of a training was elevated, and its steps of unusual length."""
    curves = frames.table("curves")
    curves = curves[curves["trainer"] == GRID_TRAINER]
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
    loss = best["loss"].map(partial(formatting.significant, digits=4))
    said = "best " + loss + best["step"].map(" at {:.0f}".format)
    return last.rename(columns={"loss": "evaluation_loss"}).join(said.rename("best"))


PANELS = {
    "loss": "Training cross-entropy loss",
    "evaluation": "Evaluation cross-entropy loss",
    "gradient_norm": "Gradient norm before clipping",
    "step_ms": "Step time / ms",
}


@exhibit(
    "wide-deep-training",
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
)
def wide_deep_training(frames: Frames) -> pd.DataFrame:
    """Wide against deep: loss, gradient norm and step time over training; what the models wrote, folded.

    Each quantity of each training over its steps; below them, in rows of their own, the texts.
    """
    points = frames.points[frames.points["trainer"] == GRID_TRAINER]
    curves = frames.table("curves").assign(step_ms=lambda frame: 1e3 * frame["step_s"])
    course = means(curves, ["loss", "gradient_norm", "step_ms"], most=200)
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
    texts = texts[texts["trainer"] == GRID_TRAINER].assign(texts="texts")
    return pd.concat([long, texts], ignore_index=True)


MOST_SERIES, MOST_VALUES = 32, 120  # of a panel, of a line
SETTING_LABELS = {
    "learning_rate": "learning rate",
    "warmup_steps": "warm-up steps",
    "weight_decay": "weight decay",
    "beta1": "β₁",
    "beta2": "β₂",
    "max_gradient_norm": "clipping",
}


@exhibit(
    "optimizer-sweep",
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
    shows=("optimizer_sweep",),
)
def optimizer_sweep(frames: Frames) -> pd.DataFrame:
    """Optimizer sweep: loss over training by setting. Divergence is a result like any other.

    The losses of every training; of one that diverged until it leaves the others' scale.
    """
    points = frames.points
    points = points[points["module"].eq("optimizer_sweep") & points["diverged"].notna()]
    if points.empty:
        return points
    points = points.assign(diverged=points["diverged"].eq(True))
    chosen = pd.concat(spaced(group) for _, group in points.groupby(CELL, sort=False))
    panel = chosen["workload"] + ", " + chosen["setup"] + ", " + chosen["place"]
    named = chosen[[*POINT, "diverged"]].assign(panel=panel, **varied_in_words(chosen))
    named["cell_order"] = chosen.groupby(CELL)["order"].transform("min")
    course = means(frames.table("curves").dropna(subset="loss"), ["loss"], MOST_VALUES)
    frame = course.merge(named, on=POINT).sort_values(["cell_order", "value", "point", "step"])
    limit = 1.05 * frame.groupby("panel")["loss"].transform("first")
    above = frame["diverged"] & frame["loss"].gt(limit)
    frame = frame.assign(loss=frame["loss"].mask(above, limit))
    return frame[above.groupby([frame[name] for name in POINT]).cumsum() < 2]


def spaced(points: pd.DataFrame) -> pd.DataFrame:
    """At most `MOST_SERIES` of a cell's trainings, evenly spaced by final loss."""
    ordered = points.sort_values(["diverged", "final_loss"], kind="stable")
    places = np.linspace(0, len(ordered) - 1, min(len(ordered), MOST_SERIES))
    return ordered.iloc[places.round().astype(int)]


def varied_in_words(points: pd.DataFrame) -> dict[str, pd.Series]:
    """Each training's `value` of the first setting that varies, this in words, and all that vary."""
    varying = [name for name in SETTING_LABELS if points[name].nunique(dropna=False) > 1]
    first, *_ = varying or SETTING_LABELS
    texts = pd.DataFrame(
        {
            name: SETTING_LABELS[name] + " " + points[name].map("{:g}".format).replace("nan", "off")
            for name in varying or [first]
        }
    )
    return {"value": points[first], "setting": texts[first], "line": texts.agg(", ".join, axis=1)}
