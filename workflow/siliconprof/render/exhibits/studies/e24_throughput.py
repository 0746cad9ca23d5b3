"""Grid of the wide/deep report: throughput over batch size, and the fit "fixed part + per token"."""

import numpy as np
import pandas as pd

from siliconprof import words
from siliconprof.analyse.frames import CELL, Frames
from siliconprof.analyse.scaling import ABOUT_SHAPE
from siliconprof.render.drawers import Lines
from siliconprof.render.exhibit import Exhibit
from siliconprof.render.exhibits.studies import _models

KEPT = [*CELL, "place", "setup", "order", "disturbed", *_models.SHAPE, "n_parameters", "batch_size"]
STEPS = pd.DataFrame({"share": np.linspace(0, 1, 25)})  # of a fitted line, on a logarithmic axis


def rows(frames: Frames) -> pd.DataFrame:
    """Tokens per second of every measured point, and of every fit."""
    frame = pd.concat([measured(frames), fitted(frames)], ignore_index=True)
    layers, width, tokens = (
        _models.whole(frame[name]) for name in ("n_layer", "n_embd", "seq_len")
    )
    of_length = ", " + tokens + " tokens" if frame["seq_len"].nunique() > 1 else ""
    return frame.assign(
        panel=frame["setup"] + of_length + ", " + frame.pop("place"),
        line=_models.shape(frame) + frame["fit"].map({True: ", fit", False: ""}),
        size=layers + " layers of " + width,
    ).sort_values(["order", "seq_len", "n_parameters", "fit", "batch_size"], kind="stable")


def measured(frames: Frames) -> pd.DataFrame:
    frame = frames.table("expected")
    return frame[KEPT].assign(rate=frame["tokens_per_s"], fit=False)


def fitted(frames: Frames) -> pd.DataFrame:
    frame = frames.table("scaling")
    frame = frame[frame["about"].eq(ABOUT_SHAPE) & frame["per_sample_s"].gt(0)]
    frame = frame.merge(STEPS, how="cross")
    smallest, largest = frame["smallest_batch"], frame["largest_batch"]
    batch = smallest * (largest / smallest) ** frame["share"]
    each = 1e6 * frame["per_sample_s"] / frame["seq_len"]
    hover = [
        f"{words.significant(1e3 * fixed, 2)} ms + {words.significant(token, 2)} µs a token"
        for fixed, token in zip(frame["fixed_s"], each, strict=True)
    ]
    rate = batch * frame["seq_len"] / (frame["fixed_s"] + batch * frame["per_sample_s"])
    return frame.assign(batch_size=batch, rate=rate, fit=True, hover=hover)[
        [*KEPT, "rate", "fit", "hover"]
    ]


EXHIBIT = Exhibit(
    id="grid-throughput",
    rows=rows,
    figure=Lines(
        panel="panel",
        line="line",
        columns_of_panels=2,
        x="batch_size",
        y="rate",
        x_label="batch size",
        y_label="tokens per second",
        log_x=True,
        log_y=True,
        colour="size",
        dashed="fit",
        markers=True,
    ),
    needs="It needs a cell of module transformer_grid.",
    shows=("transformer_grid",),
)
