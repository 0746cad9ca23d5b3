"""Predicted against measured peak memory of each training."""

import pandas as pd

from siliconprof import words
from siliconprof.analyse.frames import Frames
from siliconprof.render.drawers import Scatter
from siliconprof.render.exhibit import Exhibit

MIB = 2.0**20


def rows(frames: Frames) -> pd.DataFrame:
    frame = frames.trainings
    # A mechanism check's peak holds what it offloads; what is predicted is an eager step's.
    frame = frame[~frame["is_mechanism_check"] & ~frame["compile"].eq(True)]
    frame = frame.assign(
        training=frame["work_label"] + " · " + frame["setup"],
        measured_mib=frame["device_peak_bytes"].astype(float) / MIB,
        predicted_mib=frame["predicted_on_device_bytes"] / MIB,
        disturbed=False,  # other processes change no peak
    )
    frame = frame[frame["predicted_mib"].gt(0) & frame["measured_mib"].gt(0)]
    errors = (frame["predicted_mib"] / frame["measured_mib"]).astype(float) - 1
    typical = words.whole_percent(errors.abs().median()) if len(frame) else ""
    return frame.assign(
        panel=f"typical error {typical} ({words.count(len(frame), 'check')})",
        hover=errors.map("{:+.1%}; ".format) + frame["device_peak_means"].fillna(""),
    )


EXHIBIT = Exhibit(
    id="predicted-memory",
    rows=rows,
    figure=Scatter(
        x="measured_mib",
        y="predicted_mib",
        x_label="measured peak, MiB",
        y_label="predicted, MiB",
        name="training",
        equal=True,
        panel="panel",
        high_in=2.8,
    ),
    needs="It needs a training on a backend that counts its memory.",
)
