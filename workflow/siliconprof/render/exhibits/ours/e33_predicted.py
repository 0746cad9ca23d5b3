"""Each training's step as the operators of all others on its device predict it, and as measured."""

import pandas as pd

from siliconprof import words
from siliconprof.analyse.frames import Frames
from siliconprof.render.drawers import Scatter
from siliconprof.render.exhibit import Exhibit


def rows(frames: Frames) -> pd.DataFrame:
    frame = frames.table("predicted")
    frame = frame[frame["error"].notna() & frame["others"].gt(0)]
    errors = frame["error"].abs().mask(frame["disturbed"]).groupby(frame["backend_label"])
    titles = errors.agg(["median", "count"]).apply(_title, axis=1, result_type="reduce")
    return frame.assign(
        panel=frame["backend_label"] + frame["backend_label"].map(titles),
        training=frame["work_label"] + " · " + frame["setup"],
        measured_ms=1e3 * frame["measured_s"],
        predicted_ms=1e3 * frame["predicted_s"],
        hover=frame["error"].map("{:+.0%}".format),
    )


def _title(error: pd.Series) -> str:
    if not error["count"]:
        return ": no undisturbed check"
    typical = words.whole_percent(error["median"])
    return f": typical error {typical} ({words.count(int(error['count']), 'check')})"


EXHIBIT = Exhibit(
    id="predicted-step",
    rows=rows,
    figure=Scatter(
        x="measured_ms",
        y="predicted_ms",
        x_label="measured, ms",
        y_label="predicted, ms",
        name="training",
        equal=True,
        panel="panel",
        high_in=2.4,
    ),
    needs="It needs two trainings on one device and backend whose operators were timed.",
)
