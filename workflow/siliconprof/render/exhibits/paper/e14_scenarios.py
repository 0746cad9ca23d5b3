"""Table 3: which device trains what in which scenario: printed, derived and measured."""

import pandas as pd

from siliconprof.analyse.frames import CELL, DEVICE, Frames, uses_defaults
from siliconprof.render.exhibit import Exhibit, Num, Text
from siliconprof.render.exhibits.paper._needs import SCENARIOS, length, needs, paper_places

KEY = ["model", "batch_size", "device"]
STEP = ["whole_step_ms", "whole_step_ms_low", "whole_step_ms_high", "whole_step_ms_n"]
OF_MODEL = ["predicted_memory_bytes", "capacity_bytes", "scenario_derived"]


def printed(frames: Frames) -> pd.DataFrame:
    """Each configuration once: of two transcriptions the one that agrees with the paper's text."""
    names = {"workload": "model", "source": "source_text"}
    frame = frames.published("table3_configurations").rename(columns=names)
    frame = frame.astype({"batch_size": int}).assign(printed=frame["scenario"].astype(int))
    is_odd = frame["note"].str.contains("contradicts", na=False)
    odd = frame[is_odd].set_index(KEY)["scenario"].map("the other transcription: {}".format)
    return frame[~is_odd].join(odd.rename("other"), on=KEY)


def trained(frames: Frames, models: pd.Series) -> pd.DataFrame:
    """This run's cells of some models with the paper's trainer, one for each device and batch."""
    cells = frames.cells
    has_adapters = pd.to_numeric(cells["lora_rank"]).gt(0)
    usual = uses_defaults(cells) & ~cells["is_mechanism_check"] & ~has_adapters
    cells = cells[cells["trainer"].eq("hf") & usual & cells["batch_size"].notna()]
    cells = cells.assign(
        model=cells["model"].map(dict(zip(models.str.lower(), models, strict=True)))
    )
    points = frames.points[[*CELL, *STEP, "n_parameters"]].rename(
        columns={"n_parameters": "counted"}
    )
    cells = cells.dropna(subset=["model"]).merge(points, on=CELL, how="left")
    exact = frames.results.frame("models")[["model", "size", "n_parameters"]]
    cells = cells.merge(exact.rename(columns={"model": "module"}), on=["module", "size"])
    cells = cells[cells["counted"].fillna(cells["n_parameters"]) == cells["n_parameters"]]
    cells = cells.assign(
        length=length(cells),
        not_fp32=cells["precision"] != "fp32",
        applied=cells["scenario_applied"].where(cells["status"] == "ok"),
        why_not=(cells["status"] + ": " + cells["reason"]).where(cells["status"] != "ok"),
    )
    first = cells.sort_values(["not_fp32", *STEP[:1]], kind="stable")
    return first.drop_duplicates([*DEVICE, "model", "batch_size"]).sort_values("order")


def rows(frames: Frames) -> pd.DataFrame:
    told = printed(frames)
    derived = needs(frames, paper_places(frames))
    derived = derived.assign(length=length(derived))[[*KEY, *OF_MODEL, "length"]]
    own = trained(frames, told["model"].drop_duplicates())
    own = own[[*CELL, "model", "batch_size", "device_label", "whose", "setup", *OF_MODEL, *STEP,
               "length", "applied", "why_not"]]  # fmt: skip
    frame = told.merge(derived, on=KEY, how="left")
    frame = frame.merge(own, on=KEY, how="outer", suffixes=("_printed", ""))
    for name in (*OF_MODEL, "length", "device_label"):
        frame[name] = frame[f"{name}_printed"].where(frame[name].isna(), frame[name])
    number = {name: number for number, name in SCENARIOS.items()}
    places = {name: place for place, name in enumerate(told["model"].drop_duplicates())}
    frame = frame.assign(
        derived=frame["scenario_derived"].map(number) + " " + frame["scenario_derived"],
        share=frame["predicted_memory_bytes"] / frame["capacity_bytes"],
        printed_why="not in Table 3",
        by_model=frame["model"].map(places),
    )
    return frame.sort_values(["by_model", "printed"], kind="stable", ignore_index=True)


EXHIBIT = Exhibit(
    id="paper-table-3",
    rows=rows,
    table=(
        Text("model", "Model"),
        Num("batch_size", "Batch", integer=True),
        Text("length", "Length of a sample"),
        Text("device_label", "Device", badge="whose"),
        Num("printed", "Scenario, printed", integer=True, published=True, below="other"),
        Text("derived", "Derived"),
        Num("share", "Of the capacity", percent=True),
        Text("applied", "Measured", below="setup"),
        Num("whole_step_ms", "Time per step", "ms"),
    ),
)
