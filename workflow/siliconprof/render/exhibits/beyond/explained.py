"""Losses, operators, gaps and predictions of trainings, beyond the published studies."""

from collections.abc import Callable

import pandas as pd

from siliconprof import formatting
from siliconprof.analyse.attribution import CAUSE, GAP, UNEXPLAINED_PART
from siliconprof.analyse.equal_work import NO_GAP, WORK
from siliconprof.analyse.frames import CELL, DEVICE, POINT, Frames
from siliconprof.analyse.operator_rows import PARTS
from siliconprof.formatting import MIB
from siliconprof.render.drawers import Lines, Scatter
from siliconprof.render.exhibit import PLACE_TEXTS, Column, Exhibit, Num, Rows, Text, exhibit

# Losses depend on them, the time of a step does not.
VARIED_SETTINGS = ("learning_rate", "lora_alpha")
SAID = ["model", "work_label", "setup", "place", "stage", "family_order", "disturbed"]


@exhibit(
    "losses",
    figure=Lines(
        panel="panel",
        line="line",
        x="step",
        y="loss",
        x_label="training step",
        y_label="cross-entropy loss",
    ),
)
def losses(frames: Frames) -> pd.DataFrame:
    """The loss of every training by step, a panel for each model and batch.

    Losses of equal work, data, seed, weights and settings must be equal whatever computes them: the
    pointer has how far each is from the first of them, a panel's title how far those in fp32 are.
    """
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
    by = frame["difference"].map(formatting.scientific, "ignore").astype("str")
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
    alike = points.groupby([*WORK, *VARIED_SETTINGS], dropna=False, sort=False)["order"]
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
    texts = most.map(formatting.scientific).map(" (fp32: {})".format)
    return diverged.map(" ({} diverged)".format).combine_first(texts)


MOST_OPERATORS = 10  # rows of each backend
FRAMEWORK_TIME = "the framework's own time, which is no operator's"


@exhibit(
    "operators",
    table=(
        Text("work_label", "Training", folds=True, prose=True),
        *PLACE_TEXTS,
        Text("operator", "Operator"),
        Text("role", "Module"),
        Text("of_phase", "Phase"),
        Num("count", "Calls", "in a step", integer=True),
        Num("ms", "Time", "ms", help="of all its calls in a step"),
        Num("share", "Share", "of the step", percent=True),
        Num("gflop_per_s", "Rate", "GFLOP/s"),
        Num("gb_per_s", "Traffic", "GB/s", help="operands, each once"),
    ),
)
def operators(frames: Frames) -> pd.DataFrame:
    """The longest operators of a step of the largest model, on each device and backend."""
    operators = frames.table("operators")
    timed = frames.steps[frames.steps["order"].isin(operators["order"])]
    timed = timed.assign(is_variant=timed["variant"] != "").sort_values(
        ["n_parameters", "is_variant", "order"], ascending=[False, True, True]
    )
    largest = timed.drop_duplicates([*DEVICE, "backend"])[POINT]
    frame = operators.merge(largest, on=POINT)
    whole = frame.groupby("order")["seconds"].transform("sum")
    each = 1e-9 * frame["count"] / frame["seconds"].where(frame["seconds"] > 0)
    frame = frame.assign(
        operator=frame["kind"]
        .fillna(frame["group"].replace("framework", "framework overhead"))
        .str.removeprefix("aten::"),
        role=frame["role"].replace("", pd.NA),
        role_why=frame["backend"].map({"mlx": "MLX's graph of a step knows no modules"}),
        of_phase=frame["phase"].str.removesuffix("_s"),
        ms=1e3 * frame["seconds"],
        share=frame["seconds"] / whole,
        gflop_per_s=frame["flops"] * each,
        gb_per_s=frame["bytes"] * each,
        gflop_per_s_why="no product, convolution or attention: its operations are not counted",
        why_not=FRAMEWORK_TIME,
    ).sort_values(["order", "seconds"], ascending=[True, False], kind="stable")
    return frame.groupby("order", sort=False).head(MOST_OPERATORS)


def table(frame: pd.DataFrame) -> list[Column]:
    """A column for each part that any pair has."""
    return [
        Text("work_label", "Training", folds=True, prose=True),
        Text("slow_name", "Slower", below="rule", badge="remark", prose=True),
        Text("fast_name", "Faster", prose=True),
        Num(GAP, "Gap", "ms a step"),
        Num("ratio", "Ratio", "slower / faster"),
        Num("explained", "Explained", "of the gap", percent=True),
        Num(
            UNEXPLAINED_PART,
            "Unexplained",
            "ms",
            help="gap − sum of its parts; negative: over-explained",
        ),
        *(
            Num(part, formatting.PART_WORDS.get(part, part).capitalize(), "ms")
            for part in PARTS
            if part in frame
        ),
    ]


@exhibit("gaps", table=table, folded="All gaps")
def gaps(frames: Frames) -> pd.DataFrame:
    """The gap of every pair of trainings of equal work: what each part of a step explains of it."""
    gaps = frames.gaps
    pairs = gaps[gaps["kind"] == GAP].set_index("pair")
    left = gaps[gaps["kind"] == UNEXPLAINED_PART].set_index("pair")
    n = frames.points["whole_step_ms_n"]
    frame = pairs.assign(
        gap_n=pd.concat([pairs["fast"].map(n), pairs["slow"].map(n)], axis=1).min(axis=1),
        remark=pairs["disturbed"].map({True: "disturbed", False: ""}),
        ratio=pairs["slow_s"] / pairs["fast_s"],
        explained=(1 - left["share"]).mask(pairs["is_noise"]),
        explained_why=left["reason"].mask(pairs["is_noise"], NO_GAP),
        why_not=left["reason"].fillna("neither side has any"),
    )
    parts = gaps[gaps["kind"].isin([GAP, CAUSE, UNEXPLAINED_PART])]
    for end, name in (("", "seconds"), ("_low", "low_s"), ("_high", "high_s")):
        wide = 1e3 * parts.pivot(index="pair", columns="part", values=name)
        frame = frame.join(wide.add_suffix(end))
    return frame.reset_index()


def against_measured(
    id_: str, unit: str, measured: str, high_in: float
) -> Callable[[Rows], Exhibit]:
    """An exhibit of `predicted` over `measured` values, with the typical error of each panel."""
    return exhibit(
        id_,
        figure=Scatter(
            x=f"measured_{unit.lower()}",
            y=f"predicted_{unit.lower()}",
            x_label=f"{measured}, {unit}",
            y_label=f"predicted, {unit}",
            name="training",
            equal=True,
            panel="panel",
            high_in=high_in,
        ),
    )


@against_measured("predicted-step", "ms", "measured", 2.4)
def predicted_step(frames: Frames) -> pd.DataFrame:
    """Each training's step as the operators of all others on its device predict it, and as measured."""
    frame = frames.table("predicted")
    frame = frame[frame["error"].notna() & frame["others"].gt(0)]
    errors = frame["error"].mask(frame["disturbed"]).groupby(frame["backend_label"])
    typical = errors.agg(_typical).astype("str")
    return frame.assign(
        panel=frame["backend_label"] + ": " + frame["backend_label"].map(typical),
        training=frame["work_label"] + " · " + frame["setup"],
        measured_ms=1e3 * frame["measured_s"],
        predicted_ms=1e3 * frame["predicted_s"],
        hover=frame["error"].map("{:+.0%}".format),
    )


@against_measured("predicted-memory", "MiB", "measured peak", 2.8)
def predicted_memory(frames: Frames) -> pd.DataFrame:
    """Predicted against measured peak memory of each training."""
    frame = frames.trainings
    # A mechanism check's peak holds what it offloads; what is predicted is an eager step's.
    frame = frame[~frame["is_mechanism_check"] & ~frame["compile"].eq(True)]
    frame = frame.assign(
        training=frame["work_label"] + " · " + frame["setup"],
        measured_mib=frame["device_peak_bytes"].astype(float) / MIB,
        predicted_mib=frame["predicted_on_device_bytes"] / MIB,
        disturbed=False,  # other processes change no peak
    )
    frame = frame[frame["predicted_mib"].gt(0) & frame["measured_mib"].gt(0)]
    errors = (frame["predicted_mib"] / frame["measured_mib"]).astype(float) - 1
    hover = errors.map("{:+.1%}; ".format) + frame["device_peak_means"].fillna("")
    return frame.assign(panel=_typical(errors), hover=hover)


def _typical(errors: pd.Series) -> str:
    if not errors.count():
        return "no undisturbed check"
    typical = formatting.whole_percent(errors.abs().median())
    return f"typical error {typical} ({formatting.count(int(errors.count()), 'check')})"
