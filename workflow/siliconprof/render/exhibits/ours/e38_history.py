"""Steps of the answer's trainings by date of record, where a cell was measured more than once."""

import pandas as pd

from siliconprof.analyse import answer
from siliconprof.analyse.equal_work import DISTURBED
from siliconprof.analyse.frames import Frames
from siliconprof.render.drawers import Lines
from siliconprof.render.exhibit import Exhibit


def rows(frames: Frames) -> pd.DataFrame:
    best = answer.fastest(frames)
    sides = pd.concat([best["point_index"], best["rival_index"]]).dropna().astype(int)
    history = frames.table("history")
    frame = history[history["order"].isin(frames.points.loc[sides, "order"])]
    if frame.empty:
        return frame
    started = pd.to_datetime(frame["started_at"], utc=True)
    commit = frame["git_commit"].fillna(frame["code_sha256"]).fillna("").str[:12]
    version = frame["backend"] + " " + frame["framework_version"].fillna("of unknown version")
    return frame.assign(
        line=frame["place"] + " · " + frame["setup"],
        days=(started - started.min()).dt.total_seconds() / 86_400,
        ms=1e3 * frame["step_s"],
        ms_low=1e3 * frame["step_low_s"],
        ms_high=1e3 * frame["step_high_s"],
        disturbed=frame["flags"].fillna("").str.split(";").map(lambda codes: DISTURBED in codes),
        hover=frame["started_at"].str[:16] + ", " + version + ", code " + commit,
    ).sort_values(["family_order", "order", "days"], ascending=[False, True, True], kind="stable")


EXHIBIT = Exhibit(
    id="history",
    rows=rows,
    figure=Lines(
        panel="model",
        line="line",
        x="days",
        y="ms",
        x_label="days since the first record",
        y_label="step, ms",
        log_y=True,
        markers=True,
    ),
    needs="It needs a training of the answer that was measured more than once.",
)
