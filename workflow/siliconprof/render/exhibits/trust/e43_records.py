"""Records that are used in nothing: those of no cell of the experiment, and unreadable ones."""

import pandas as pd

from siliconprof.analyse.frames import Frames
from siliconprof.render.exhibit import Exhibit, Text


def rows(frames: Frames) -> pd.DataFrame:
    names = {"note": "why", "error": "why"}
    parts = [
        frames.results.frame(table).rename(columns=names).assign(kind=kind)
        for table, kind in (("outside", "not in this experiment"), ("unreadable", "unreadable"))
    ]
    return pd.concat(parts, ignore_index=True)


EXHIBIT = Exhibit(
    id="records",
    rows=rows,
    table=(
        Text("kind", "Used in nothing"),
        Text("record", "Record", code=True),
        Text("why", "Why", prose=True),
    ),
    needs="Every record could be read and belongs to the experiment.",
)
