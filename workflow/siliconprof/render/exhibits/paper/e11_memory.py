"""Figure 2: memory of trainings against their device's capacity, and in which scenario they run."""

import numpy as np
import pandas as pd

from siliconprof import words
from siliconprof.analyse.frames import CELL, Frames
from siliconprof.analyse.record_rows import PARTS
from siliconprof.memory.memory_model import BUDGET_SOURCE
from siliconprof.render.drawers import StackedBars
from siliconprof.render.exhibit import Exhibit, Num, Text
from siliconprof.render.exhibits.paper._needs import (
    PRECISION,
    needs,
    own_places,
    short_place,
    texts,
)

MOST_TRAININGS, MOST_DEVICES = 8, 3
FULL = 0.1  # share of the capacity: on an axis with larger ones, smaller ones would vanish
SHARE = f"{words.whole_percent(FULL)} of the capacity"
OWN = {
    True: f"This run’s trainings, {SHARE} or more",
    False: f"This run’s trainings, less than {SHARE}",
}
THEIRS = "The paper’s models on these devices, predicted with 128 tokens and clips of 30 s"
SKIPPED = "This run’s trainings that did not run, predicted"
NEAR = r"near capacity(, batch \d+)?( · )?"  # the batch and the scenario say so
NOT_RUN = ["skipped", "unsupported"]
MIB = 2.0**20


def trainings(frames: Frames) -> pd.DataFrame:
    """Predicted ones, each once whatever its trainer; first those that asked for a scenario."""
    cells = frames.cells[frames.cells["trainer"].notna()]
    cells = cells[cells["predicted_memory_bytes"].gt(0) & cells["capacity_bytes"].gt(0)]
    cells = cells.join(frames.points.groupby(CELL)["device_peak_bytes"].max(), on=CELL)
    batch = texts(cells["batch_size"], ", batch {:.0f}")
    apart = cells["variant"].str.replace(NEAR, "", regex=True)
    cells = cells.assign(
        training=cells["model"] + batch + (", " + apart).where(apart != "", ""),
        outcome=cells["status"].map(words.STATUS_WORDS),
        share=cells["predicted_memory_bytes"] / cells["capacity_bytes"],
        is_plain=cells["scenario"].isin(["auto", "fits"]) & cells["scenario_derived"].eq("fits"),
    )
    same = ["place", "training", "backend", "precision", "predicted_memory_bytes", "capacity_bytes"]
    cells = cells.sort_values("status", key=lambda status: status != "ok", kind="stable")
    first = cells.drop_duplicates(same).sort_values(["is_plain", "share"], ascending=[True, False])
    first = first.head(MOST_TRAININGS)
    panel = first["share"].ge(FULL).map(OWN)
    return first.assign(panel=panel.where(first["status"] == "ok", SKIPPED))


def papers(frames: Frames) -> pd.DataFrame:
    """The paper's models on the first of this run's devices; equal ones of a host count once."""
    places = own_places(frames).drop_duplicates(["place", "capacity_bytes"])
    places = places[places["capacity_bytes"].gt(0)].head(MOST_DEVICES)
    if places.empty:
        return places
    frame = needs(frames, places)
    training = frame.pop("model") + texts(frame["batch_size"], ", batch {:.0f}")
    return frame.assign(
        training=training, precision=PRECISION, outcome="predicted only", panel=THEIRS
    )


def rows(frames: Frames) -> pd.DataFrame:
    frame = pd.concat([trainings(frames), papers(frames)], ignore_index=True)
    need, capacity = frame["predicted_memory_bytes"], frame["capacity_bytes"]
    needed, size = (sizes.map(words.mebibytes).astype(str) for sizes in (need, capacity))
    is_budget = frame["capacity_source"] == BUDGET_SOURCE
    frame = frame.assign(
        **{part: 100 * frame[f"predicted_{part}_bytes"] / capacity for part in PARTS},
        share=need / capacity,
        peak=100 * frame["device_peak_bytes"] / capacity,
        group=short_place(frame) + np.where(is_budget, ", budget ", ", capacity ") + size,
        row=frame["training"] + " · " + frame["backend"] + " · " + frame["precision"],
        hover="predicted " + needed + " of " + size,
        applied=frame["scenario_applied"].mask(frame["status"].isin(NOT_RUN)),
        limit=frame["limit_enforced"].map({True: "limit enforced", False: "limit not enforced"}),
        disturbed=False,  # no prediction is
        offloaded_why="not offloaded",
        panel=pd.Categorical(frame["panel"], [*OWN.values(), SKIPPED, THEIRS]),
        place=pd.Categorical(frame["place"], frames.cells["place"].unique()),
    )
    scenarios = frame[["scenario", "scenario_derived", "applied"]]
    offloads = scenarios.isin(["offload"]).any(axis=1)
    frame["undivided"] = (100 * frame["share"]).where(frame[list(PARTS)].isna().all(axis=1))
    frame["offloaded"] = frame["predicted_offloaded_bytes"].where(offloads)
    by = ["panel", "place", "capacity_bytes", "share"]
    return frame.sort_values(by, ascending=[True, True, True, False], ignore_index=True)


EXHIBIT = Exhibit(
    id="paper-figure-2",
    rows=rows,
    figure=StackedBars(
        panel="panel",
        group="group",
        row="row",
        parts={part: part for part in PARTS} | {"undivided": "parts not recorded"},
        x="% of the capacity",
        unit="%",
        dot=("peak", "measured peak"),
        total=False,
    ),
    table=(
        Text("device_label", "Device", badge="whose", folds=True),
        Text("row", "Training"),
        Text("scenario", "Asked"),
        Text("scenario_derived", "Derived"),
        Text("applied", "Applied", below="limit"),
        Num("predicted_memory_bytes", "Predicted", "MiB", scale=MIB),
        Num("share", "Of the capacity", percent=True),
        Num("offloaded", "Stays when offloaded", "MiB", scale=MIB, folds=True),
        Num("capacity_bytes", "Capacity", "MiB", scale=MIB),
        Num("device_peak_bytes", "Measured peak", "MiB", scale=MIB),
        Text("outcome", "Outcome", below="reason"),
    ),
    needs="It needs a training whose memory is predicted, on a device of known memory.",
)
