"""Figures 3 and 4 and Tables 4 and 5 of the paper: forward and backward pass, memory over time, energy."""

import numpy as np
import pandas as pd

from siliconprof.analyse.answer import STEP
from siliconprof.analyse.frames import (
    CELL,
    DEVICE,
    PRECISIONS,
    Frames,
    pairs,
    rank,
    timed_by_phase,
    uses_defaults,
)
from siliconprof.formatting import MIB
from siliconprof.render.drawers import StackedBars, Timeline
from siliconprof.render.exhibit import Num, Text, exhibit
from siliconprof.render.exhibits.paper._needs import length, short_place, texts

PHASE_LABELS = {"trace": "building the graph (MLX)", "forward": "forward", "backward": "backward"}
FITS = {"whisper": "(a)(1)", "gpt2": "(a)(2)"}
OFFLOADED = {"whisper": "(b)(1)", "gpt2": "(b)(2)"}
ADAPTED, NEAR = "(a)(3)", "scenario 3"
PANELS = (*FITS.values(), ADAPTED, *OFFLOADED.values(), NEAR)  # in the paper's order
MORE = {ADAPTED: ", LoRA", NEAR: ", near capacity"} | dict.fromkeys(OFFLOADED.values(), ", offload")
XL = "gpt2-xl"  # the paper trains it in its offload panel alone
WORK = ["model", "n_parameters", "tokens", "audio", "target_len", "checkpointed", "started_from"]
IN_TITLE = r" · (?:LoRA|checkpointed|near capacity)(?:(?! · ).)*"  # of a variant
ORDER = ["in_paper", "n_parameters", "model", "work", "is_cpu", "order"]


@exhibit(
    "paper-figure-3",
    figure=StackedBars(
        panel="panel",
        row="row",
        parts=PHASE_LABELS,
        x="time of one sample, ms",
        by_backend=tuple(PHASE_LABELS),
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
)
def paper_figure_3(frames: Frames) -> pd.DataFrame:
    """Figure 3: forward and backward time of a sample, by device, scenario and LoRA."""
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


def timed(frames: Frames) -> pd.DataFrame:
    """Trainings of the paper's models whose passes were timed, in ms per sample."""
    frame = frames.trainings
    frame = frame[frame["module"].isin(list(FITS)) & uses_defaults(frame)]
    is_split = frame["forward_ms"].gt(0) & frame["backward_ms"].gt(0)
    frame = frame[is_split & ~frame["is_mechanism_check"] & frame["samples_per_step"].gt(0)]
    each = frame["samples_per_step"]
    ends = [f"{part}_ms{end}" for part in PHASE_LABELS for end in ("", "_low", "_high")]
    return frame.assign(
        **{name.replace("_ms", ""): frame[name] / each for name in ends if name in frame},
        tokens=frame["tokens_per_step"] / each,
        audio=frame["audio_s_per_step"] / each,
        checkpointed=frame["gradient_checkpointing"].eq(True),
        started_from=frame["weights"].fillna("random"),
    )


def in_panels(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the paper's panel; work that is offloaded on some device is repeated beside it where it fits."""
    adapted, stage = frame["lora"], frame["stage"]
    fits, offloaded = frame["module"].map(FITS), frame["module"].map(OFFLOADED)
    kinds = [stage == "near-capacity", adapted & (stage == "fits"), adapted, stage == "offload"]
    own = np.select([*kinds, frame["model"] == XL], [NEAR, ADAPTED, "", offloaded, offloaded], fits)
    frame = frame.assign(part=own)[own != ""]
    is_offloaded = frame["part"].isin(OFFLOADED.values()) & (frame["stage"] == "offload")
    too = is_offloaded.groupby([frame[name] for name in WORK], dropna=False).transform("any")
    again = frame[too & frame["part"].isin(FITS.values())]
    again = again.assign(part=again["module"].map(OFFLOADED))
    return pd.concat([frame, again], ignore_index=True).copy()  # in one block


TIMELINE_LABELS = {
    "rss": "resident memory",
    "device_memory": "device memory",
    "minor": "minor page faults × page size",
    "major": "major page faults × page size",
    "swapped": "swapped, whole host",
}
SAMPLED = ["rss_bytes", "device_memory_bytes", "minor_faults", "major_faults"]
SWAP = ["swap_in_bytes", "swap_out_bytes"]
MOST_PANELS, MOST_OF_DEVICE, MOST_VALUES = 6, 4, 200


@exhibit(
    "paper-figure-4",
    figure=Timeline(panel="panel", t="t_s", series=TIMELINE_LABELS, y_label="MiB"),
    shows=("memory", "page_faults"),
)
def paper_figure_4(frames: Frames) -> pd.DataFrame:
    """Figure 4: memory and page faults over the seconds of a training, at most six panels."""
    samples = frames.results.frame("samples")[[*CELL, "t_s", *SAMPLED, *SWAP]]
    own = chosen(frames)[[*CELL, "panel", "page_size_bytes"]]
    frame = own.merge(samples, on=CELL, how="inner")
    size = frame.groupby("panel")["t_s"].transform("size")
    frame["bin"] = frame.groupby("panel").cumcount() * MOST_VALUES // size.clip(lower=MOST_VALUES)
    frame = frame.groupby([*CELL, "panel", "bin"], sort=False).max().reset_index()
    counted = ["minor_faults", "major_faults", *SWAP]
    since = frame[counted] - frame.groupby("panel")[counted].transform("first")
    page = frame["page_size_bytes"]
    values = {
        "rss": frame["rss_bytes"],
        "device_memory": frame["device_memory_bytes"],
        "minor": since["minor_faults"] * page,
        "major": since["major_faults"] * page,
        "swapped": since[SWAP].sum(axis=1),
    }
    # What stayed below 1 MiB would be a line at 0.
    shown = {name: v / MIB if v.max() >= MIB else float("nan") for name, v in values.items()}
    return frame.assign(**shown)


def chosen(frames: Frames) -> pd.DataFrame:
    """Of each device in turn its next largest model, on each backend, as plain as there is."""
    frame = frames.trainings
    frame = frame[~frame["probes_off"] & frame["module"].notna()]
    frame = frame.assign(is_variant=frame["variant"] != "")
    frame = frame.sort_values(["is_variant", "order"], kind="stable")
    frame = frame.drop_duplicates(["place", "model", "backend"])
    frame = frame.sort_values(["n_parameters", "order"], ascending=[False, True], kind="stable")
    turn = frame.groupby("place").cumcount()
    several = frame["place"].nunique() > 1
    title = frame["model"] + " · " + frame["setup"]
    frame = frame.assign(turn=turn, panel=short_place(frame) + " · " + title if several else title)
    frame = frame[turn < MOST_OF_DEVICE].sort_values(["turn", "order"], kind="stable")
    return frame.head(MOST_PANELS)


ENDS = ("", "_low", "_high")
PASS = "whole step, optimizer included; the paper does not say what is in its pass"


@exhibit(
    "paper-table-4",
    table=(
        Text("device_label", "Device", badge="whose"),
        Text("work_label", "Training", prose=True),
        Text("compared", "Compared"),
        Num("first", "First named", "ms a pass", help=PASS),
        Num("second", "Second named", "ms a pass", help=PASS),
        Num("times", "First / second", "×", help="above 1: the first takes longer"),
    ),
)
def paper_table_4(frames: Frames) -> pd.DataFrame:
    """Table 4 of the paper: one pass by MLX and by PyTorch; beside it the plain loop and the HF Trainer.

    Both sides of every comparison as named, `first` and `second`, and the first over the second.
    """
    return pd.concat([measured(frames), printed_pass(frames)], ignore_index=True)


def measured(frames: Frames) -> pd.DataFrame:
    """Pairs of equal work on one device, in fp32 and in memory, with all choices at their defaults."""
    frame = frames.steps
    same = frame["precision"].eq("fp32") & frame["stage"].eq("fits") & ~frame["lora"]
    frame = frame[frame["module"].isin(["gpt2", "whisper"]) & same & uses_defaults(frame)]
    backends, trainers = pairs(frame, "backend"), pairs(frame, "trainer")
    backends = backends[backends["backend"].eq("mlx") & backends["trainer"].eq("plain")]
    trainers = trainers[trainers["trainer"].eq("plain") & trainers["trainer_other"].eq("hf")]
    by_trainer = "HF Trainer against plain loop, " + trainers["backend_label"]
    by_backend = backends["backend_label_other"] + " against " + backends["backend_label"]
    both = [backends.assign(compared=by_backend), trainers.assign(compared=by_trainer)]
    found = pd.concat(both).query("source == source_other").sort_values(["order", "order_other"])
    steps = {end: (found[f"{STEP}{end}_other"], found[f"{STEP}{end}"]) for end in (*ENDS, "_n")}
    return found[[*CELL, "device_label", "whose", "work_label", "compared"]].assign(
        **{f"first{end}": first for end, (first, _) in steps.items()},
        **{f"second{end}": second for end, (_, second) in steps.items()},
        times=steps[""][0] / steps[""][1],
        times_low=steps["_low"][0] / steps["_high"][1],
        times_high=steps["_high"][0] / steps["_low"][1],
        times_n=pd.concat(steps["_n"], axis=1).min(axis=1),
    )


def printed_pass(frames: Frames) -> pd.DataFrame:
    """The paper's passes, with their ratio where it prints two of a device."""
    frame = frames.published("table4_pass_time")
    frame["ms"] = 1e3 * frame["pass_time_s"].astype(float)
    of = ["device", "workload", "batch_size"]
    is_mps = frame["backend"] == "torch-mps"
    found = frame[~is_mps].merge(frame[is_mps][[*of, "ms", "backend"]], "left", of)
    others = found["backend_y"].add(" against ").fillna("")
    return pd.DataFrame(
        {
            "compared": others + found["backend_x"],
            "device_label": found["device_label"],
            "whose": "",
            "work_label": found["workload"] + ", batch " + found["batch_size"],
            "first": found["ms_y"].fillna(found["ms_x"]),
            "second": found["ms_x"].where(found["ms_y"].notna()),
            "times": found["ms_y"] / found["ms_x"],
            "published": True,
            "times_computed": True,
            "source_text": found["source"],
            "why_not": "not printed",
        }
    )


QUALITY = "counter: counted by hardware; model: estimated by firmware; integral: power over time"


@exhibit(
    "paper-table-5",
    table=(
        Text("device_label", "Device", badge="whose"),
        Text("work_label", "Training", prose=True),
        Text("setup", "Setup", prose=True),
        Text("scope", "Of what", below="counted", help=QUALITY),
        Num("energy_per_step_j", "Energy", "J per step", digits=4),
        Num("energy_per_sample_j", "Energy", "J per sample", digits=4),
        Num("net_energy_per_step_j", "Above idle", "J per step", digits=4),
        Num("idle_before_w", "Idle", "W", help="context open, nothing running"),
    ),
    shows=("energy",),
)
def paper_table_5(frames: Frames) -> pd.DataFrame:
    """Table 5 of the paper: energy of an iteration; each of ours by what counted it, with its idle power.

    A row for each training and source, then devices without one, then what the paper prints.
    """
    frame = frames.table("energy")
    frame = frame[timed_by_phase(frame) & ~frame["is_mechanism_check"]]
    measured = frame[frame["energy_per_step_j"].notna()]
    counted = measured["name"] + ", " + measured["quality"]
    # Why nothing was measured on a device, once for each reason.
    lost = frame[frame.groupby(DEVICE)["energy_per_step_j"].transform("count") == 0]
    lost = lost.dropna(subset="reason").drop_duplicates([*DEVICE, "reason"])
    lost = lost[["device_label", "whose", "reason"]].rename(columns={"reason": "why_not"})
    return pd.concat(
        [measured.assign(counted=counted), lost, printed_energy(frames)], ignore_index=True
    )


def printed_energy(frames: Frames) -> pd.DataFrame:
    """The paper's four measurements."""
    frame = frames.published("table5_energy")
    per_step = frame["energy_per_iteration_j"].astype(float)
    return pd.DataFrame(
        {
            "device_label": frame["device_label"],
            "whose": "",
            "work_label": frame["workload"] + ", batch " + frame["batch_size"],
            "setup": frame["precision"],
            "scope": frame["scope"],
            "energy_per_step_j": per_step,
            "energy_per_sample_j": per_step / frame["batch_size"].astype(float),
            "energy_per_sample_j_computed": True,
            "published": True,
            "source_text": frame["source"],
            "why_not": "not printed",
        }
    )
