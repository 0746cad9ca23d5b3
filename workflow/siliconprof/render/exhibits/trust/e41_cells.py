"""Every cell, measured or not, with its status, the reason and the hash of its record."""

import pandas as pd

from siliconprof import words
from siliconprof.analyse.frames import Frames
from siliconprof.render.exhibit import PLACE, Exhibit, Text


def rows(frames: Frames) -> pd.DataFrame:
    frame = frames.cells
    ran = frame["scenario_applied"].fillna(frame["scenario_derived"])
    codes = frame["flags"].fillna("").str.split(";")
    elsewhere = {""} | words.STATISTICS | frames.flags_of_all
    flags = [", ".join(sorted(set(own) - elsewhere)) for own in codes]
    return frame.assign(
        means=frame["status"].map(words.STATUS_WORDS).mask(frame["status"] == "ok"),
        remarks=frame["reason"].fillna(pd.Series(flags, frame.index)),
        ran=(frame["scenario"] + " → " + ran).fillna(frame["scenario"]),
        css=(frame["status"] == "ok").map({True: "", False: "failed"}),
    )


EXHIBIT = Exhibit(
    id="every-cell",
    rows=rows,
    table=(
        *PLACE,
        Text("workload", "Workload"),
        Text("status", "Status", below="means"),
        Text("remarks", "Reason, or flags", prose=True),
        Text("ran", "Scenario", help="asked for → run, or what the memory model derives"),
        Text("effective_precision", "Effective precision", help="by the error of a product"),
        Text("record_sha256", "SHA-256", code=True),
    ),
    folded="All cells",
    needs="The experiment has no cell on this host.",
)
