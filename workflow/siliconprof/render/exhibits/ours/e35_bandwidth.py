"""Memory bandwidth over the working set, a panel for each kernel, beside the data sheets'."""

import pandas as pd

from siliconprof.analyse import throughputs
from siliconprof.analyse.frames import DEVICE, Frames
from siliconprof.render.drawers import Lines
from siliconprof.render.exhibit import Exhibit

MIB, GIGA = 2.0**20, 1e9


def rows(frames: Frames) -> pd.DataFrame:
    frame = frames.points[frames.points["module"] == "bandwidth"]
    if frame.empty or frame["step_ms"].isna().all():
        return frame.iloc[:0]
    each = frame["bytes"] / (GIGA * 1e-3)
    frame = frame.assign(
        line=frame["place"] + " · " + frame["setup"] + " · " + frame["cache"],
        mib=frame["working_set_bytes"] / MIB,
        rate=each / frame["step_ms"],
        rate_low=each / frame["step_ms_high"],
        rate_high=each / frame["step_ms_low"],
        cold=frame["cache"] == "cold",
        kernel_order=frame["kernel"].map({"copy": 0, "triad": 1, "reduction": 2}).fillna(3),
    ).sort_values(["kernel_order", "order", "working_set_bytes"], kind="stable")
    ends = frame.groupby([*DEVICE, "place", "kernel"], sort=False)["mib"].agg(["min", "max"])
    printed = ends.melt(value_name="mib", ignore_index=False).reset_index()
    printed = throughputs.of_sheets(printed, frames.sheets.bandwidth)
    printed = printed.dropna(subset=["datasheet_value"])
    printed = printed.assign(
        line="data sheet of " + printed["place"],
        rate=printed["datasheet_value"] / GIGA,
        published=True,
        hover=printed["datasheet_source"],
    )
    return pd.concat([frame, printed])


EXHIBIT = Exhibit(
    id="bandwidth",
    rows=rows,
    figure=Lines(
        panel="kernel",
        line="line",
        x="mib",
        y="rate",
        x_label="working set, MiB",
        y_label="GB/s",
        log_x=True,
        log_y=True,
        dashed="cold",
        markers=True,
        dashed_markers=True,
    ),
    needs="It needs a cell of the workload bandwidth.",
    shows=("bandwidth",),
)
