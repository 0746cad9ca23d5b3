"""Memory and energy of each training; of several sources of energy a row each."""

import pandas as pd

from siliconprof.analyse.frames import POINT, Frames, holds
from siliconprof.render.exhibit import Exhibit, Num, Text

CHECK = "a mechanism check: it says nothing about memory or energy"
JOULES = ["energy_per_step_j", "energy_per_sample_j", "net_energy_per_step_j"]
LINE = [*POINT, "source_of_energy", "reason", *JOULES]


def rows(frames: Frames) -> pd.DataFrame:
    points = frames.points[frames.points["trainer"].notna()]
    lines = frames.table("energy")
    is_read = lines["energy_per_step_j"].notna()
    named = lines["name"] + " (" + lines["scope"] + ", " + lines["quality"] + ")"
    lines = lines.assign(source_of_energy=named.where(is_read))
    # Where nothing was read, one line says why.
    silent = lines[~is_read & ~lines["order"].isin(lines.loc[is_read, "order"])]
    lines = pd.concat([lines[is_read], silent.drop_duplicates("order")])[LINE]
    frame = points.merge(lines, on=POINT, how="left", suffixes=("", "_of_energy"))
    check = frame["is_mechanism_check"].map({True: CHECK, False: None})
    why = check.fillna(frame["reason_of_energy"]).fillna("not read")
    batch = frame["samples_per_step"].map(", batch {:.0f}".format).astype("str")
    predicted, peak = frame["predicted_on_device_bytes"], frame["device_peak_bytes"]
    # What is predicted is an eager step's, which keeps more than a compiled one; a mechanism check's
    # peak holds what it offloads.
    is_like = ~frame["is_mechanism_check"] & ~holds(frame, "compile") & predicted.gt(0) & peak.gt(0)
    frame = frame.assign(
        training=frame["model"] + batch.where(frame["samples_per_step"].notna(), ""),
        predicted_on_device_bytes_why="nothing was predicted for it",
        device_peak_bytes_why=frame["device_peak_means"].fillna("its backend counts no memory"),
        over=(predicted / peak).where(is_like),
        over_why=check.fillna("one of the two is missing, or the step is compiled"),
        growth_bytes=frame["rss_peak_sampled_bytes"] - frame["rss_at_start_bytes"],
        growth_bytes_why="the memory probe was not available",
        **{name: frame[name].mask(frame["is_mechanism_check"]) for name in JOULES},
        **{f"{name}_why": why for name in JOULES},
    )
    by = ["family_order", "order"]
    return frame.sort_values(by, ascending=[False, True], kind="stable", ignore_index=True)


MIB = 2.0**20
EXHIBIT = Exhibit(
    id="memory-energy",
    rows=rows,
    table=(
        Text("training", "Training"),
        Text("place", "Device", folds=True, prose=True),
        Text("setup", "Setup", prose=True),
        Num("predicted_on_device_bytes", "Predicted", "MiB", scale=MIB),
        Num("device_peak_bytes", "Device peak", "MiB", scale=MIB),
        Num("over", "Predicted / peak"),
        Num("growth_bytes", "Process grew by", "MiB", scale=MIB),
        Num("energy_per_step_j", "Energy", "J a step"),
        Num("energy_per_sample_j", "Energy", "J a sample", folds=True),
        Num("net_energy_per_step_j", "Above idle", "J a step", folds=True),
        Text("source_of_energy", "Counted by", folds=True),
    ),
    needs="It needs a training.",
)
