"""The answer: the fastest setup of each training, all devices on one axis, why gaps are there, a step's parts."""

import pandas as pd

from siliconprof import formatting
from siliconprof.analyse import answer, findings
from siliconprof.analyse.attribution import (
    CAUSE,
    DISTURBED_GAP,
    GAP,
    NOT_TAKEN_APART,
    PHASE,
    REST,
    SPLIT_PHASES,
    UNEXPLAINED_PART,
)
from siliconprof.analyse.frames import CELL, Frames
from siliconprof.analyse.operator_rows import OPERATOR_PARTS, PARTS
from siliconprof.render.drawers import DotInterval, StackedBars
from siliconprof.render.exhibit import Num, Text, exhibit


@exhibit(
    "fastest",
    table=(
        Text("training", "Training", below="amount", prose=True),
        Text("place", "Device", folds=True, prose=True),
        Num("samples_per_s", "Speed", "samples/s"),
        Num(answer.STEP, "Time per step", "ms"),
        Text("setup", "Fastest setup", below="of_model", badge="remark", prose=True),
        Text("against", "Against the best other backend or device", prose=True),
        Num("same_times", "In the same precision", "times faster", below="same_setup", folds=True),
        Text("main_cause", "Main cause", below="cause_of", prose=True),
        Num("per_1000_usd", "For 1,000 USD", "samples/s", folds=True),
    ),
)
def fastest(frames: Frames) -> pd.DataFrame:
    """For each model its fastest setup of all, against the best of every other backend or device."""
    frame = answer.fastest(frames).copy()
    label = frame["work_label"].str.extract("([^:]*)(?:: (.*))?")
    is_same = frame["same_index"] == frame["rival_index"]
    for end in ("", "_low", "_high"):
        frame[f"same_times{end}"] = frame[f"same_times{end}"].mask(is_same)
    of_same = frames.points[f"{answer.STEP}_n"].reindex(frame["same_index"]).set_axis(frame.index)
    fewest = pd.concat([frame[f"{answer.STEP}_n"], of_same], axis=1).min(axis=1)
    frame["same_times_n"] = fewest.where(frame["same_times"].notna())
    missing = pd.Series("nothing elsewhere was measured in this precision", frame.index)
    is_untold = frame["cause"].isna() & frame["rival_times_low"].gt(1)
    rival = frame["rival_remark"].astype("str").str.contains(DISTURBED_GAP).eq(True)
    untold = (frame["disturbed"] | rival).map({True: DISTURBED_GAP, False: NOT_TAKEN_APART})
    return frame.assign(
        amount=label[1],
        against=frame["comparison"].replace("", pd.NA),
        same_setup=frame["same_setup"].mask(is_same),
        same_times_why=missing.mask(is_same, "as against the best, which is in the same precision"),
        main_cause=frame["cause"].mask(is_untold, untold),
        per_1000_usd_why="no source has its price",
    )


MODEL_AND_BATCH = ["module", "n_parameters", "batch_size"]


@exhibit(
    "all-devices",
    figure=DotInterval(
        row="training", value="rate", x="samples per second, more is better", unit="samples/s"
    ),
)
def all_devices(frames: Frames) -> pd.DataFrame:
    """All devices on one axis: samples per second of each training in every setup; the paper's Table 4."""
    frame = answer.ranked_trainings(frames)
    frame = frame[frame["samples_per_s"].gt(0)]
    frame = frame.sort_values("family_order", ascending=False, kind="stable")
    if frame.empty:
        return frame
    each = 1e3 * frame["samples_per_step"]
    frame = frame.assign(
        rate=frame["samples_per_s"],
        rate_low=each / frame[f"{answer.STEP}_high"],
        rate_high=each / frame[f"{answer.STEP}_low"],
        training=frame["model"]
        + (", " + frame["apart"]).where(frame["apart"] != "", "")
        + frame["samples_per_step"].map(", batch {:.0f}".format),
    )
    works = frame.groupby("training")["work"].transform("nunique")
    frame["training"] = frame["training"].where(works == 1, frame["work_label"])
    return pd.concat([frame, _printed(frames, frame)])


def _printed(frames: Frames, frame: pd.DataFrame) -> pd.DataFrame:
    """What Table 4 prints of the same model and batch: by no trainer, in fp32, of all parameters."""
    alike = frame[frame["trainer"].eq("plain") & frame["precision"].eq("fp32")]
    alike = alike[alike["apart"] == ""].drop_duplicates(MODEL_AND_BATCH)
    counts = frames.table("models").rename(columns={"model": "module"})
    table = frames.published("table4_pass_time")
    table[["module", "size"]] = table["workload"].str.lower().str.split("-", n=1, expand=True)
    table = table.assign(
        hover=table["source"] + ", one pass of batch " + table["batch_size"],
        batch_size=table["batch_size"].astype(float),
    )
    table = table.merge(counts[["module", "size", "n_parameters"]], on=["module", "size"])
    table = table.merge(
        alike[[*MODEL_AND_BATCH, "training", "samples_per_step"]], on=MODEL_AND_BATCH
    )
    return pd.DataFrame(
        {
            "training": table["training"],
            "rate": table["samples_per_step"] / table["pass_time_s"].astype(float),
            "setup": table["device_label"].fillna(table["device"]) + " · " + table["backend"],
            "backend": table["backend"],
            "source_text": table["source"],
            "hover": table["hover"],
            "published": True,
        }
    )


sentences = exhibit("findings", sentences=True)(findings.sentences)


MOST_PAIRS = 4
BAR_OF = {PHASE: "by phase", CAUSE: "by cause", UNEXPLAINED_PART: "by cause"}
OTHERS, MOST_DRAWN = "other operators", 4  # parts of operators with a colour of their own
DRAWN_PARTS = (*SPLIT_PHASES, REST, *OPERATOR_PARTS, OTHERS, *PARTS, UNEXPLAINED_PART)
PART_NAMES = {part: formatting.PART_WORDS.get(part, part) for part in DRAWN_PARTS}


def drawn_parts(parts: pd.DataFrame) -> pd.Series:
    """The name under which each part is drawn: all but the largest operators become `OTHERS`."""
    operators = parts[parts["part"].isin(OPERATOR_PARTS)]
    sizes = operators["ms"].astype(float).abs().groupby(operators["part"]).max()
    largest = sizes.nlargest(MOST_DRAWN)
    small = [part for part in OPERATOR_PARTS if part not in largest]
    return parts["part"].replace(dict.fromkeys(small, OTHERS))


@exhibit(
    "why",
    figure=StackedBars(
        panel="title",
        row="bar",
        parts=PART_NAMES,
        x="ms a step that the slower setup takes longer",
        by_backend=(*SPLIT_PHASES, REST),
        dot=("gap", "the whole gap"),
    ),
)
def why(frames: Frames) -> pd.DataFrame:
    """Why: the gaps that the first table names the causes of, then the most telling others, at most four.

    By phase and by cause; the table of all gaps has the intervals.
    """
    gaps = frames.gaps
    pairs = gaps[gaps["kind"].eq(GAP) & ~gaps["is_noise"]]
    answers = answer.fastest(frames)["cause_pair"].dropna()
    pairs = pairs.assign(
        is_other=~pairs["pair"].isin(answers),
        place=pairs.groupby("work_label").cumcount().mask(pairs["pair"].isin(answers), 0),
        title=pairs["work_label"].str.replace(":.*", "", regex=True)
        + (": " + pairs["slow_name"] + " against " + pairs["fast_name"]),
        gap=1e3 * pairs["seconds"],
        gap_low=1e3 * pairs["low_s"],
        gap_high=1e3 * pairs["high_s"],
    )
    by = ["is_other", "place", "family_order"]
    pairs = pairs.sort_values(by, ascending=[True, True, False], kind="stable").head(MOST_PAIRS)
    parts = gaps[gaps["pair"].isin(pairs["pair"]) & gaps["kind"].isin(BAR_OF)]
    # Of a step whose operators were not timed nothing is explained, which is no part of its gap.
    timed = parts.loc[parts["kind"] == CAUSE, "pair"]
    # A whole training's steps are not split into phases.
    is_phase = parts["kind"].eq(PHASE) & parts["part"].ne(REST)
    split = parts.loc[is_phase & parts["seconds"].notna(), "pair"]
    is_known = parts["pair"].isin(timed).mask(parts["kind"] == PHASE, parts["pair"].isin(split))
    parts = parts[is_known]
    parts = parts.assign(bar=parts["kind"].map(BAR_OF), ms=1e3 * parts["seconds"])
    drawn = drawn_parts(parts[parts["kind"] == CAUSE])  # `optimizer` is a phase, too
    parts = parts.assign(part=drawn.combine_first(parts["part"])).dropna(subset="ms")
    bars = parts.pivot_table("ms", ["pair", "bar"], "part", "sum").reset_index()
    named = ["pair", "title", "gap", "gap_low", "gap_high", "disturbed", *CELL]
    return pairs[named].merge(bars.sort_values("bar", ascending=False), on="pair")


BESIDES = ["data", "trace", "other"]  # timed parts of a step that are in the rest
STEP_COLUMNS = [f"{answer.STEP}{end}" for end in ("", "_low", "_high")]
SHOWN_COLUMNS = [*CELL, "order", "setup", "place", "disturbed", *STEP_COLUMNS]


@exhibit(
    "step",
    figure=StackedBars(
        panel="title",
        group="kind",
        row="setup",
        parts=PART_NAMES,
        x="ms a step",
        by_backend=(*SPLIT_PHASES, REST),
        dot=(answer.STEP, "whole step"),
        shares="% of the step",
    ),
)
def step(frames: Frames) -> pd.DataFrame:
    """Where a step's time goes: phases and operators of the largest model, in ms and as shares."""
    frame, parts = answer.ranked_trainings(frames), frames.table("step_parts")
    frame = frame[frame["forward_ms"].notna() | frame["order"].isin(parts["order"])]
    frame = frame[frame["family_order"] == frame["family_order"].max()]
    frame = frame[frame["apart"] == frame["apart"].min()]  # the plain training, where there is one
    named = frame[SHOWN_COLUMNS].assign(title=frame["work_label"] + ", " + frame["place"])
    phases = frame[[f"{name}_ms" for name in SPLIT_PHASES]].set_axis(SPLIT_PHASES, axis=1)
    phases[REST] = frame.reindex(columns=[f"{name}_ms" for name in BESIDES]).sum(axis=1)
    phases = named.join(phases.dropna(), how="inner").assign(kind="phases")
    parts = parts[parts["order"].isin(named["order"])].assign(ms=1e3 * parts["seconds"])
    parts = parts.assign(part=drawn_parts(parts))
    operators = parts.pivot_table("ms", "order", "part", "sum").reset_index()
    both = pd.concat([phases, named.merge(operators, on="order").assign(kind="operators")])
    first = both.groupby("title")["order"].transform("min")
    return both.assign(first=first).sort_values("first", kind="stable")
