"""For each model its fastest setup of all, against the best of every other backend or device."""

import pandas as pd

from siliconprof import words
from siliconprof.analyse import answer
from siliconprof.analyse.frames import Frames
from siliconprof.render.exhibit import Exhibit, Num, Text

UNKNOWN = "not taken apart on this page"


def rows(frames: Frames) -> pd.DataFrame:
    frame = answer.fastest(frames)
    label = frame["work_label"].str.extract("([^:]*)(?:: (.*))?")
    share = ", " + frame["cause_share"].map(words.whole_percent).astype(str)
    cause = (frame["cause"].astype("str") + share).where(frame["cause"].notna())
    is_same = frame["same_index"] == frame["rival_index"]
    for end in ("", "_low", "_high"):
        frame[f"same_times{end}"] = frame[f"same_times{end}"].mask(is_same)
    of_same = frames.points[f"{answer.STEP}_n"].reindex(frame["same_index"]).set_axis(frame.index)
    fewest = pd.concat([frame[f"{answer.STEP}_n"], of_same], axis=1).min(axis=1)
    frame["same_times_n"] = fewest.where(frame["same_times"].notna())
    missing = pd.Series("nothing elsewhere was measured in this precision", frame.index)
    return frame.assign(
        amount=label[1],
        against=frame["comparison"].replace("", pd.NA),
        same_setup=frame["same_setup"].mask(is_same),
        same_times_why=missing.mask(is_same, "as against the best, which is in the same precision"),
        main_cause=cause.mask(frame["cause"].isna() & frame["rival_times_low"].gt(1), UNKNOWN),
        per_1000_usd_why="no source has its price",
    )


EXHIBIT = Exhibit(
    id="fastest",
    rows=rows,
    table=(
        Text("training", "Training", below="amount", prose=True),
        Text("place", "Device", folds=True, prose=True),
        Num("samples_per_s", "Speed", "samples/s"),
        Num(answer.STEP, "Time per step", "ms"),
        Text("setup", "Fastest setup", below="of_model", badge="remark", prose=True),
        Text("against", "Against the best other backend or device", prose=True),
        Num("same_times", "In the same precision", "times faster", below="same_setup", folds=True),
        Text("main_cause", "Main cause", below="cause_of", prose=True),
        Num("per_1000_usd", "For 1,000 USD", "samples/s", folds=True),
    ),
    needs="It needs a training whose whole step was timed.",
)
