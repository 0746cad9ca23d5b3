"""What was noticed while a cell was measured, and what each flag means.

What the intervals already say is no flag: that repeats scatter, drift or change their level. Nor is
what every cell has, which the page's head says once.
"""

from typing import Any

import pandas as pd

from siliconprof import words
from siliconprof.analyse.frames import Frames, records
from siliconprof.render.exhibit import PLACE, Exhibit, Text

NOTES = {"no_empty_kernel"}  # puts no number in doubt; the table of cells has it
UNKNOWN = "This version has no explanation of it."


def rows(frames: Frames) -> pd.DataFrame:
    cells = frames.cells.dropna(subset=["flags"])
    found: list[Any] = [list(words.flags(row)) for row in records(cells)]
    frame = cells.assign(found=pd.Series(found, cells.index, object)).explode("found")
    frame = frame.dropna(subset=["found"])
    frame = frame.assign(flag=frame["found"].str[0], seen=frame["found"].str[1])
    elsewhere = words.STATISTICS | frames.flags_of_all | NOTES
    frame = frame[~frame["flag"].isin(elsewhere)].sort_values(["flag", "order"], kind="stable")
    means = frame["flag"].map(words.FLAG_WORDS).fillna(UNKNOWN)
    return frame.assign(means=means.where(~frame["flag"].duplicated()))


EXHIBIT = Exhibit(
    id="flags",
    rows=rows,
    table=(
        Text("flag", "Flag", below="means", prose=True),
        *PLACE,
        Text("workload", "Workload"),
        Text("seen", "What was seen", prose=True),
    ),
    folded="All flags",
    needs="No cell was flagged.",
    shows=("clocks", "interference"),
)
