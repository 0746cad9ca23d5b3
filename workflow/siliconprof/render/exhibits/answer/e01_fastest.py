"""For each model its fastest setup of all, against the best of every other backend or device."""

import pandas as pd

from siliconprof import words
from siliconprof.analyse import answer
from siliconprof.analyse.frames import Frames
from siliconprof.render.exhibit import Exhibit, Num, Text

UNKNOWN = "not taken apart"


def rows(frames: Frames) -> pd.DataFrame:
    frame = answer.fastest(frames)
    label = frame["work_label"].str.extract("([^:]*)(?:: (.*))?")
    share = ", " + frame["cause_share"].map(words.whole_percent).astype(str)
    cause = (frame["cause"].astype("str") + share).where(frame["cause"].notna())
    return frame.assign(
        training=label[0],
        amount=label[1],
        against=frame["comparison"].replace("", pd.NA),
        same_setup=frame["same_setup"].mask(frame["same_index"] == frame["rival_index"]),
        same_times_why="nothing elsewhere was measured in this precision",
        main_cause=cause.mask(frame["cause"].isna() & frame["rival_times_low"].gt(1), UNKNOWN),
        per_1000_usd_why="no source has its price",
        remark=frame["disturbed"].map({True: "disturbed", False: ""}),
    )


EXHIBIT = Exhibit(
    id="fastest",
    rows=rows,
    table=(
        Text("training", "Training", below="amount", prose=True),
        Text("place", "Device", folds=True, prose=True),
        Num("samples_per_s", "Speed", "samples/s"),
        Num(answer.STEP, "Time per step", "ms"),
        Text("setup", "Fastest setup", badge="remark", prose=True),
        Text("against", "Against the best", prose=True),
        Num("same_times", "In the same precision", "times faster", below="same_setup"),
        Text("main_cause", "Main cause", below="cause_of", prose=True),
        Num("per_1000_usd", "For 1,000 USD", "samples/s", folds=True),
    ),
    needs="It needs a training whose whole step was timed.",
)
