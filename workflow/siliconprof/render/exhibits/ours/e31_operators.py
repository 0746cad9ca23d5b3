"""The longest operators of a step of the largest model, on each device and backend."""

import pandas as pd

from siliconprof.analyse.frames import DEVICE, POINT, Frames
from siliconprof.render.exhibit import PLACE, Exhibit, Num, Text

MOST = 10  # rows of each backend
NOT_TIMED = "the framework's own time, which is no operator's"


def rows(frames: Frames) -> pd.DataFrame:
    operators = frames.table("operators")
    timed = frames.steps[frames.steps["order"].isin(operators["order"])]
    timed = timed.assign(is_variant=timed["variant"] != "").sort_values(
        ["n_parameters", "is_variant", "order"], ascending=[False, True, True]
    )
    largest = timed.drop_duplicates([*DEVICE, "backend"])[POINT].sort_index()
    frame = operators.merge(largest, on=POINT)
    whole = frame.groupby("order")["seconds"].transform("sum")
    each = 1e-9 * frame["count"] / frame["seconds"].where(frame["seconds"] > 0)
    frame = frame.assign(
        operator=frame["kind"]
        .fillna(frame["group"].replace("framework", "framework overhead"))
        .str.removeprefix("aten::"),
        role=frame["role"].replace("", pd.NA),
        role_why=frame["backend"].map({"mlx": "MLX's graph of a step knows no modules"}),
        of_phase=frame["phase"].str.removesuffix("_s"),
        ms=1e3 * frame["seconds"],
        share=frame["seconds"] / whole,
        gflop_per_s=frame["flops"] * each,
        gb_per_s=frame["bytes"] * each,
        gflop_per_s_why="no product, convolution or attention: its operations are not counted",
        why_not=NOT_TIMED,
    ).sort_values(["order", "seconds"], ascending=[True, False], kind="stable")
    return frame.groupby("order", sort=False).head(MOST)


EXHIBIT = Exhibit(
    id="operators",
    rows=rows,
    table=(
        Text("work_label", "Training", folds=True, prose=True),
        *PLACE,
        Text("operator", "Operator"),
        Text("role", "Module"),
        Text("of_phase", "Phase"),
        Num("count", "Calls", "in a step", integer=True),
        Num("ms", "Time", "ms", help="of all its calls in a step"),
        Num("share", "Share", "of the step", percent=True),
        Num("gflop_per_s", "Rate", "GFLOP/s"),
        Num("gb_per_s", "Traffic", "GB/s", help="operands, each once"),
    ),
    needs="It needs a training whose operators were timed.",
)
