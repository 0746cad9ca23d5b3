"""Table 1: devices as printed, by their data sheets, and as measured."""

import pandas as pd

from siliconprof import words
from siliconprof.analyse.frames import DEVICE, Frames, records
from siliconprof.render.exhibit import Exhibit, Num, Text

PRINTED = {"memory_gb": "memory", "compute_tflops": "peak", "launch_price_usd": "price"}
GIB, TERA = 2.0**30, 1e12


def fastest_products(frames: Frames) -> pd.DataFrame:
    """The fastest fp32 product of each device, by any backend, with its interval."""
    points = frames.points
    points = points[points["module"].eq("matmul") & points["precision"].eq("fp32")]
    points = points[points["point_disturbed"].isna()]
    first = points.sort_values("flop_per_s", ascending=False).drop_duplicates(DEVICE)
    first = first[first["flop_per_s"].gt(0)]
    shapes = [words.shape(row) for row in records(first)]
    return first[DEVICE].assign(
        measured=first["flop_per_s"],
        measured_low=1e3 * first["flops"] / first["step_ms_high"],
        measured_high=1e3 * first["flops"] / first["step_ms_low"],
        measured_n=first["step_ms_n"],
        how=first["backend"] + ", " + pd.Series(shapes, first.index, dtype=object),
    )


def rows(frames: Frames) -> pd.DataFrame:
    printed = frames.published("table1_devices").rename(columns={"source": "source_text"})
    printed = printed.astype(dict.fromkeys(PRINTED, float)).rename(columns=PRINTED)
    own = frames.cells.sort_values("device_memory_bytes").drop_duplicates(DEVICE)
    own = own.sort_values("order")[[*DEVICE, "device_label", "whose", "device_memory_bytes"]]
    own = own.merge(fastest_products(frames), on=DEVICE, how="left")
    frame = own.merge(printed, on="device", how="outer", suffixes=("", "_printed"))
    each = records(frame[DEVICE].fillna(""))
    peaks = [frames.sheets.peak(row, "fp32") for row in each]
    frame = frame.assign(
        device_label=frame["device_label"].fillna(frame["device_label_printed"]),
        sheet=pd.Series([peak.value for peak in peaks], frame.index, dtype=float),
        sheet_why=pd.Series([peak.reason for peak in peaks], frame.index, dtype=object),
        **{f"{name}_why": "not a device of Table 1" for name in PRINTED.values()},
    )
    frame["of_sheet"] = frame["measured"] / frame["sheet"]
    places = {device: place for place, device in enumerate([*own["device"], *printed["device"]])}
    return frame.sort_values("device", key=lambda ids: ids.map(places), kind="stable")


EXHIBIT = Exhibit(
    id="paper-table-1",
    rows=rows,
    table=(
        Text("device_label", "Device", badge="whose"),
        Num("memory", "Memory, printed", "GB", published=True),
        Num("device_memory_bytes", "Memory, found", "GiB", scale=GIB),
        Num("peak", "fp32 peak, printed", "TFLOP/s", published=True),
        Num("sheet", "fp32 peak, data sheet", "TFLOP/s", scale=TERA),
        Num("measured", "Fastest fp32 product", "TFLOP/s", scale=TERA, below="how"),
        Num("of_sheet", "Of the data sheet", percent=True, folds=True),
        Num("price", "Launch price, printed", "USD", published=True),
    ),
)
