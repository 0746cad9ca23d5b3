"""Figure 4: memory and page faults over the seconds of a training, at most six panels."""

import pandas as pd

from siliconprof.analyse.frames import CELL, Frames
from siliconprof.render.drawers import Timeline
from siliconprof.render.exhibit import Exhibit
from siliconprof.render.exhibits.paper._needs import short_place

SERIES = {
    "rss": "resident memory",
    "device_memory": "device memory",
    "minor": "minor page faults × page size",
    "major": "major page faults × page size",
    "swapped": "swapped, whole host",
}
SAMPLED = ["rss_bytes", "device_memory_bytes", "minor_faults", "major_faults"]
SWAP = ["swap_in_bytes", "swap_out_bytes"]
MOST_PANELS, MOST_OF_DEVICE, MOST_VALUES = 6, 4, 200
MIB = 2.0**20


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


def rows(frames: Frames) -> pd.DataFrame:
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


EXHIBIT = Exhibit(
    id="paper-figure-4",
    rows=rows,
    figure=Timeline(panel="panel", t="t_s", series=SERIES, y_label="MiB"),
    needs="It needs a training with the memory and page-fault probes.",
    shows=("memory", "page_faults"),
)
