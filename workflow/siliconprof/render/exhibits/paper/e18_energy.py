"""Table 5 of the paper: energy of an iteration; each of ours by what counted it, with its idle power."""

import pandas as pd

from siliconprof.analyse.frames import DEVICE, Frames, by_phases
from siliconprof.render.exhibit import Exhibit, Num, Text


def rows(frames: Frames) -> pd.DataFrame:
    """A row for each training and source, then devices without one, then what the paper prints."""
    frame = frames.table("energy")
    frame = frame[by_phases(frame) & ~frame["is_mechanism_check"]]
    measured = frame[frame["energy_per_step_j"].notna()]
    counted = measured["name"] + ", " + measured["quality"]
    # Why nothing was measured on a device, once for each reason.
    lost = frame[frame.groupby(DEVICE)["energy_per_step_j"].transform("count") == 0]
    lost = lost.dropna(subset="reason").drop_duplicates([*DEVICE, "reason"])
    lost = lost[["device_label", "whose", "reason"]].rename(columns={"reason": "why_not"})
    return pd.concat([measured.assign(counted=counted), lost, printed(frames)], ignore_index=True)


def printed(frames: Frames) -> pd.DataFrame:
    """The paper's four."""
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


QUALITY = "counter: counted by hardware; model: estimated by firmware; integral: power over time"
EXHIBIT = Exhibit(
    id="paper-table-5",
    rows=rows,
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
    needs="It needs a training over whose window of 10 s a counter was read (timing: energy_window_s).",
    shows=("energy",),
)
