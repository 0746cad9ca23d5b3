"""What both exhibits of the small networks share: their batch sizes in order, with their epochs."""

import pandas as pd

from siliconprof.analyse.frames import DEVICE, Frames, rank

TRAINER = "epochs"
ARTICLES_ORDER = ("MLP", "CNN", "LSTM")
STEP = "whole_step_ms"


def measured(frames: Frames) -> pd.DataFrame:
    """Points with `title` and `epoch_s`, whose interval is as wide as that of its steps."""
    frame = frames.points[frames.points["trainer"] == TRAINER]
    frame = frame[~frame["is_mechanism_check"]]
    names = frame["network"].fillna(frame["module"]).str.upper()
    several = frame.groupby(names)["workload"].transform("nunique") > 1
    ends = {f"epoch_s{end}": frame[f"{STEP}{end}"] / frame[STEP] for end in ("_low", "_high")}
    return frame.assign(
        title=names + (" (" + frame["workload"] + ")").where(several, ""),
        network_order=rank(names, ARTICLES_ORDER),
        place_order=frame.groupby(DEVICE)["order"].transform("min"),
        **{name: frame["epoch_s"] * share for name, share in ends.items()},
        epoch_s_n=frame[f"{STEP}_n"],
    ).sort_values(["network_order", "title", "place_order", "batch_size", "order"])
