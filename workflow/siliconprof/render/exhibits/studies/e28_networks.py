"""MLP, CNN and LSTM of Daniel 2023: a step by batch size, its parts, and the epoch that it makes."""

import pandas as pd

from siliconprof import words
from siliconprof.analyse.frames import Frames
from siliconprof.render.drawers import StackedBars
from siliconprof.render.exhibit import PLACE, Exhibit, Num, Text
from siliconprof.render.exhibits.studies import _models, _networks

PARTS = {
    "data_ms": "data",
    "trace_ms": "building the graph (MLX)",
    "forward_ms": "forward",
    "backward_ms": "backward",
    "optimizer_ms": "optimizer",
    "other_ms": "other",
}


def rows(frames: Frames) -> pd.DataFrame:
    """Each network and batch size; one that was not measured has its reason."""
    cells = frames.cells
    lost = cells[cells["trainer"].eq(_networks.TRAINER) & cells["status"].ne("ok")]
    lost = lost.assign(title=lost["module"].str.upper())
    frame = pd.concat([_networks.measured(frames), lost], ignore_index=True).copy()
    status = frame["point_status"].fillna(frame["status"])
    reason = frame["point_reason"].fillna(frame["reason"]).fillna("no reason given")
    why = (status.map(words.STATUS_WORDS) + ": " + reason).where(status != "ok")
    trained = of(frame, "epoch_measured_steps", "epoch_steps") + " steps"
    validated = of(frame, "epoch_measured_validation_steps", "epoch_validation_steps")
    made = trained + ", " + validated + " validation batches"
    setup = frame["backend_label"] + " · " + frame["precision"]
    return frame.assign(
        why_not=why,
        panel=frame["title"].where(why.isna()),  # what was not measured is in the table alone
        row="batch " + _models.whole(frame["batch_size"]) + ", " + setup,
        made=made.where(frame["epoch_means"] == "extrapolated", ""),
    )


def of(frame: pd.DataFrame, part: str, whole: str) -> pd.Series:
    """`24 of 1563`."""
    return _models.whole(frame[part]) + " of " + _models.whole(frame[whole])


EPOCH = "training and validation; its interval is as wide as that of the steps"
EXHIBIT = Exhibit(
    id="networks",
    rows=rows,
    figure=StackedBars(
        panel="panel",
        group="place",
        row="row",
        parts=PARTS,
        x="time of a step / ms",
        dot=("whole_step_ms", "whole step, timed by itself"),
    ),
    table=(
        Text("title", "Network"),
        Num("batch_size", "Batch", integer=True),
        *PLACE,
        Num("epoch_s", "Epoch", "s", help=EPOCH),
        Text("epoch_means", "Epoch is", below="made"),
        Num("whole_step_ms", "Whole step", "ms"),
        Num("samples_per_s", "Speed", "samples/s"),
        Num("n_parameters", "Parameters", integer=True),
    ),
    folded="Steps and epochs",
    needs="It needs a cell of module mlp, cnn or lstm with trainer epochs.",
)
