"""All devices on one axis: samples per second of each training in every setup; the paper's Table 4."""

import pandas as pd

from siliconprof.analyse import answer
from siliconprof.analyse.frames import Frames
from siliconprof.render.drawers import DotInterval
from siliconprof.render.exhibit import Exhibit

SAME = ["module", "n_parameters", "batch_size"]


def rows(frames: Frames) -> pd.DataFrame:
    frame = answer.timed(frames)
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
    alike = alike[alike["apart"] == ""].drop_duplicates(SAME)
    counts = frames.table("models").rename(columns={"model": "module"})
    table = frames.published("table4_pass_time")
    table[["module", "size"]] = table["workload"].str.lower().str.split("-", n=1, expand=True)
    table = table.assign(
        hover=table["source"] + ", one pass of batch " + table["batch_size"],
        batch_size=table["batch_size"].astype(float),
    )
    table = table.merge(counts[["module", "size", "n_parameters"]], on=["module", "size"])
    table = table.merge(alike[[*SAME, "training", "samples_per_step"]], on=SAME)
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


EXHIBIT = Exhibit(
    id="all-devices",
    rows=rows,
    figure=DotInterval(
        row="training", value="rate", x="samples per second, more is better", unit="samples/s"
    ),
    needs="It needs a training whose whole step was timed.",
)
