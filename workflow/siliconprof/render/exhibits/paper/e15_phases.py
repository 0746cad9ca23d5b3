"""Figure 3: forward and backward time of a sample, by device, scenario and LoRA."""

import numpy as np
import pandas as pd

from siliconprof.analyse.frames import PRECISIONS, Frames, rank, uses_defaults
from siliconprof.render.drawers import StackedBars
from siliconprof.render.exhibit import Exhibit, Num, Text
from siliconprof.render.exhibits.paper._needs import length, short_place, texts

PARTS = {"trace": "building the graph (MLX)", "forward": "forward", "backward": "backward"}
FITS = {"whisper": "(a)(1)", "gpt2": "(a)(2)"}
OFFLOADED = {"whisper": "(b)(1)", "gpt2": "(b)(2)"}
ADAPTED, NEAR = "(a)(3)", "scenario 3"
PANELS = (*FITS.values(), ADAPTED, *OFFLOADED.values(), NEAR)  # in the paper's order
MORE = {ADAPTED: ", LoRA", NEAR: ", near capacity"} | dict.fromkeys(OFFLOADED.values(), ", offload")
XL = "gpt2-xl"  # the paper trains it in its offload panel alone
WORK = ["model", "n_parameters", "tokens", "audio", "target_len", "checkpointed", "started_from"]
IN_TITLE = r" · (?:LoRA|checkpointed|near capacity)(?:(?! · ).)*"  # of a variant
ORDER = ["in_paper", "n_parameters", "model", "work", "is_cpu", "order"]


def timed(frames: Frames) -> pd.DataFrame:
    """Trainings of the paper's models whose passes were timed, in ms per sample."""
    frame = frames.trainings
    frame = frame[frame["module"].isin(list(FITS)) & uses_defaults(frame)]
    is_split = frame["forward_ms"].gt(0) & frame["backward_ms"].gt(0)
    frame = frame[is_split & ~frame["is_mechanism_check"] & frame["samples_per_step"].gt(0)]
    each = frame["samples_per_step"]
    ends = [f"{part}_ms{end}" for part in PARTS for end in ("", "_low", "_high")]
    return frame.assign(
        **{name.replace("_ms", ""): frame[name] / each for name in ends if name in frame},
        tokens=frame["tokens_per_step"] / each,
        audio=frame["audio_s_per_step"] / each,
        checkpointed=frame["gradient_checkpointing"].eq(True),
        started_from=frame["weights"].fillna("random"),
    )


def in_panels(frame: pd.DataFrame) -> pd.DataFrame:
    """With the paper's panel; what is offloaded somewhere stands beside the same that fits."""
    adapted, stage = pd.to_numeric(frame["lora_rank"]).gt(0), frame["stage"]
    fits, offloaded = frame["module"].map(FITS), frame["module"].map(OFFLOADED)
    kinds = [stage == "near-capacity", adapted & (stage == "fits"), adapted, stage == "offload"]
    own = np.select([*kinds, frame["model"] == XL], [NEAR, ADAPTED, "", offloaded, offloaded], fits)
    frame = frame.assign(part=own)[own != ""]
    is_offloaded = frame["part"].isin(OFFLOADED.values()) & (frame["stage"] == "offload")
    too = is_offloaded.groupby([frame[name] for name in WORK], dropna=False).transform("any")
    again = frame[too & frame["part"].isin(FITS.values())]
    again = again.assign(part=again["module"].map(OFFLOADED))
    return pd.concat([frame, again], ignore_index=True).copy()  # in one block


def rows(frames: Frames) -> pd.DataFrame:
    frame = in_panels(timed(frames))
    frame["work"] = frame.groupby(["part", *WORK], dropna=False).ngroup()
    place = rank(frame["precision"], PRECISIONS)  # fp32, the paper's, where it is
    frame = frame[place == place.groupby(frame["work"]).transform("min")]
    is_cpu = frame["device_kind"] == "cpu"  # its bars would hide a GPU's
    both = is_cpu.groupby(frame["work"]).transform("nunique") > 1
    batch = texts(frame["samples_per_step"], ", batch {:.0f}")
    one_batch = batch.groupby(frame["work"]).transform("nunique") == 1
    printed = frames.published("table3_configurations")
    theirs = printed["workload"].str.lower() + ", batch " + printed["batch_size"]
    is_theirs = (frame["model"] + batch).isin(theirs).groupby(frame["work"]).transform("any")
    apart = (" · " + frame["variant"]).where(frame["variant"] != "", "")
    several = frame["place"].nunique() > 1
    long = ", " + length(frame)
    title = frame["part"] + " " + frame["model"] + frame["part"].map(MORE).fillna("")
    title += batch.where(one_batch, "") + np.where(frame["checkpointed"], ", checkpointed", "")
    title += long.where(long != ", ", "") + ", " + frame["precision"]
    title += np.where(is_theirs, ", as in the paper", "")
    title += np.where(is_cpu & both, ", CPU", "")
    setup = frame["backend_label"] + " · " + frame["trainer"]
    setup += apart.str.replace(IN_TITLE, "", regex=True) + batch.mask(one_batch, "")
    frame = frame.assign(
        panel=title,
        row=short_place(frame) + " · " + setup if several else setup,
        is_cpu=is_cpu,
        trace_why="builds no graph beforehand",
        in_paper=frame["part"].map(PANELS.index),
    )
    up = [name != "n_parameters" for name in ORDER]
    return frame.sort_values(ORDER, ascending=up, kind="stable", ignore_index=True)


EXHIBIT = Exhibit(
    id="paper-figure-3",
    rows=rows,
    figure=StackedBars(
        panel="panel", row="row", parts=PARTS, x="time of one sample, ms", by_backend=tuple(PARTS)
    ),
    table=(
        Text("part", "Panel"),
        Text("model", "Model"),
        Text("device_label", "Device", badge="whose", folds=True),
        Text("setup", "Setup"),
        Num("samples_per_step", "Batch", integer=True),
        Text("stage", "Scenario"),
        Num("trace", "Building the graph", "ms per sample", folds=True),
        Num("forward", "Forward", "ms per sample"),
        Num("backward", "Backward", "ms per sample"),
    ),
    needs="It needs a training of gpt2 or whisper, timed phase by phase.",
)
