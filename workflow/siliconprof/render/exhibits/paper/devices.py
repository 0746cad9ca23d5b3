"""Figures 1 and 2 and Tables 1 to 3 of the paper: the stack, memory, devices, models, scenarios."""

import numpy as np
import pandas as pd

from siliconprof import formatting
from siliconprof.analyse import throughputs
from siliconprof.analyse.frames import CELL, DEVICE, Frames, records, uses_defaults
from siliconprof.formatting import GIB, MIB, TERA
from siliconprof.memory.memory_model import BUDGET_SOURCE, BYTES_PER_PARAMETER
from siliconprof.render.drawers import Flow, StackedBars
from siliconprof.render.exhibit import Num, Text, exhibit
from siliconprof.render.exhibits.paper._needs import (
    PAPER_SCENARIOS,
    PRECISION,
    length,
    model_and_size,
    needs,
    own_places,
    paper_places,
    short_place,
    texts,
)
from siliconprof.store.contents import MEMORY_PARTS
from siliconprof.workloads.base import KernelWorkload

LAYERS = {
    "family": "Workload",
    "driver": "Trainer",
    "framework": "Backend",
    "library": "Library",
    "device_name": "Device",
}
TRAINER_LABELS = {
    "plain": "plain loop",
    "hf": "Hugging Face Trainer",
    "epochs": "epoch loop",
    "training_run": "whole training",
}
STACK_LIBRARIES = {"torch-cuda": "CUDA", "torch-mps": "MPS"}  # of a GPU, by backend
MLX_LIBRARIES = {"apple": "Metal", "nvidia": "CUDA"}  # and of MLX on it, by its vendor
MOST_IN_STACK = 8


@exhibit("paper-figure-1", figure=Flow(LAYERS))
def paper_figure_1(frames: Frames) -> pd.DataFrame:
    """Figure 1: the stack from workloads down to devices, with what really ran on these hosts."""
    cells = frames.cells[frames.cells["status"] == "ok"]
    workloads = {name: throughputs.workload_of({"module": name}) for name in set(cells["module"])}
    family = {name: plugin.family if plugin else name for name, plugin in workloads.items()}
    entries = [frames.sheets.entry(row) or {} for row in records(cells[DEVICE])]
    vendor = pd.Series([entry.get("vendor") for entry in entries], cells.index, dtype=object)
    on_gpu = cells["backend"].map(STACK_LIBRARIES).fillna(vendor.map(MLX_LIBRARIES)).fillna("GPU")
    blas = cells["blas"].str.split(" (", regex=False).str[0].fillna("BLAS not recorded")
    name = short_place(cells)
    more = set(list(dict.fromkeys(name))[MOST_IN_STACK:])
    frame = pd.DataFrame(
        {
            "family": cells["module"].map(family),
            "driver": cells["trainer"]
            .map(TRAINER_LABELS)
            .fillna(cells["trainer"])
            .fillna("no trainer"),
            "framework": cells["backend"] + (" " + cells["framework_version"]).fillna(""),
            "library": blas.where(cells["device_kind"] == "cpu", on_gpu),
            "device_name": name.mask(name.isin(more), f"{len(more)} more devices"),
            "backend": cells["backend"],
        }
    )
    frame["driver"] = frame["driver"].mask(cells["offloads"], "DeepSpeed")
    single = frame["family"].eq(KernelWorkload.family)
    return frame.assign(single=single).drop_duplicates().sort_values(["single", "family"])


MOST_TRAININGS, MOST_DEVICES = 8, 3
LARGE_SHARE = 0.1  # share of the capacity: on an axis with larger ones, smaller ones would vanish
LARGE_SHARE_WORDS = f"{formatting.whole_percent(LARGE_SHARE)} of the capacity"
OWN_TRAININGS = {
    True: f"This run’s trainings, {LARGE_SHARE_WORDS} or more",
    False: f"This run’s trainings, less than {LARGE_SHARE_WORDS}",
}
THEIRS = "The paper’s models on these devices, predicted with 128 tokens and clips of 30 s"
SKIPPED_TRAININGS = "This run’s trainings that did not run, predicted"
NEAR_PATTERN = r"near capacity(, batch \d+)?( · )?"  # the batch and the scenario say so
NOT_RUN = ["skipped", "unsupported"]


@exhibit(
    "paper-figure-2",
    figure=StackedBars(
        panel="panel",
        group="group",
        row="row",
        parts={part: part for part in MEMORY_PARTS} | {"undivided": "parts not recorded"},
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
)
def paper_figure_2(frames: Frames) -> pd.DataFrame:
    """Figure 2: memory of trainings against their device's capacity, and in which scenario they run."""
    frame = pd.concat([trainings(frames), papers(frames)], ignore_index=True)
    need, capacity = frame["predicted_memory_bytes"], frame["capacity_bytes"]
    needed, size = (sizes.map(formatting.mebibytes).astype(str) for sizes in (need, capacity))
    is_budget = frame["capacity_source"] == BUDGET_SOURCE
    frame = frame.assign(
        **{part: 100 * frame[f"predicted_{part}_bytes"] / capacity for part in MEMORY_PARTS},
        share=need / capacity,
        peak=100 * frame["device_peak_bytes"] / capacity,
        group=short_place(frame) + np.where(is_budget, ", budget ", ", capacity ") + size,
        row=frame["training"] + " · " + frame["backend"] + " · " + frame["precision"],
        hover="predicted " + needed + " of " + size,
        applied=frame["scenario_applied"].mask(frame["status"].isin(NOT_RUN)),
        limit=frame["limit_enforced"].map({True: "limit enforced", False: "limit not enforced"}),
        disturbed=False,  # no prediction is
        offloaded_why="not offloaded",
        panel=pd.Categorical(frame["panel"], [*OWN_TRAININGS.values(), SKIPPED_TRAININGS, THEIRS]),
        place=pd.Categorical(frame["place"], frames.cells["place"].unique()),
    )
    scenarios = frame[["scenario", "scenario_derived", "applied"]]
    offloads = scenarios.isin(["offload"]).any(axis=1)
    frame["undivided"] = (100 * frame["share"]).where(frame[list(MEMORY_PARTS)].isna().all(axis=1))
    frame["offloaded"] = frame["predicted_offloaded_bytes"].where(offloads)
    by = ["panel", "place", "capacity_bytes", "share"]
    return frame.sort_values(by, ascending=[True, True, True, False], ignore_index=True)


def trainings(frames: Frames) -> pd.DataFrame:
    """Predicted ones, each once whatever its trainer; first those that asked for a scenario."""
    cells = frames.cells[frames.cells["trainer"].notna()]
    cells = cells[cells["predicted_memory_bytes"].gt(0) & cells["capacity_bytes"].gt(0)]
    cells = cells.join(frames.points.groupby(CELL)["device_peak_bytes"].max(), on=CELL)
    batch = texts(cells["batch_size"], ", batch {:.0f}")
    apart = cells["variant"].str.replace(NEAR_PATTERN, "", regex=True)
    cells = cells.assign(
        training=cells["model"] + batch + (", " + apart).where(apart != "", ""),
        outcome=cells["status"].map(formatting.STATUS_WORDS),
        share=cells["predicted_memory_bytes"] / cells["capacity_bytes"],
        is_plain=cells["scenario"].isin(["auto", "fits"]) & cells["scenario_derived"].eq("fits"),
    )
    same = ["place", "training", "backend", "precision", "predicted_memory_bytes", "capacity_bytes"]
    cells = cells.sort_values("status", key=lambda status: status != "ok", kind="stable")
    first = cells.drop_duplicates(same).sort_values(["is_plain", "share"], ascending=[True, False])
    first = first.head(MOST_TRAININGS)
    panel = first["share"].ge(LARGE_SHARE).map(OWN_TRAININGS)
    return first.assign(panel=panel.where(first["status"] == "ok", SKIPPED_TRAININGS))


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


PRINTED = {"memory_gb": "memory", "compute_tflops": "peak", "launch_price_usd": "price"}


@exhibit(
    "paper-table-1",
    table=(
        Text("device_label", "Device", badge="whose"),
        Num("memory", "Memory, printed", "GB", published=True),
        Num("device_memory_bytes", "Memory, found", "GiB", scale=GIB),
        Num("peak", "fp32 peak, printed", "TFLOP/s", published=True),
        Num("sheet", "fp32 peak, data sheet", "TFLOP/s", scale=TERA),
        Num("measured", "Fastest fp32 product", "TFLOP/s", scale=TERA, below="how"),
        Num("of_sheet", "Of the data sheet", percent=True, folds=True),
        Num("price", "Launch price, printed", "USD", published=True),
    ),
)
def paper_table_1(frames: Frames) -> pd.DataFrame:
    """Table 1: devices as printed, by their data sheets, and as measured."""
    printed = frames.published("table1_devices").rename(columns={"source": "source_text"})
    printed = printed.astype(dict.fromkeys(PRINTED, float)).rename(columns=PRINTED)
    own = frames.cells.sort_values("device_memory_bytes").drop_duplicates(DEVICE)
    own = own.sort_values("order")[[*DEVICE, "device_label", "whose", "device_memory_bytes"]]
    own = own.merge(fastest_products(frames), on=DEVICE, how="left")
    frame = own.merge(printed, on="device", how="outer", suffixes=("", "_printed"))
    each = records(frame[DEVICE].fillna(""))
    peaks = [frames.sheets.peak(row, "fp32") for row in each]
    frame = frame.assign(
        device_label=frame["device_label"].fillna(frame["device_label_printed"]),
        sheet=pd.Series([peak.value for peak in peaks], frame.index, dtype=float),
        sheet_why=pd.Series([peak.reason for peak in peaks], frame.index, dtype=object),
        **{f"{name}_why": "not a device of Table 1" for name in PRINTED.values()},
    )
    frame["of_sheet"] = frame["measured"] / frame["sheet"]
    places = {device: place for place, device in enumerate([*own["device"], *printed["device"]])}
    return frame.sort_values("device", key=lambda ids: ids.map(places), kind="stable")


def fastest_products(frames: Frames) -> pd.DataFrame:
    """The fastest fp32 product of each device, by any backend, with its interval."""
    points = frames.undisturbed
    points = points[points["module"].eq("matmul") & points["precision"].eq("fp32")]
    first = points.sort_values("flop_per_s", ascending=False).drop_duplicates(DEVICE)
    first = first[first["flop_per_s"].gt(0)]
    shapes = [formatting.shape(row) for row in records(first)]
    return first[DEVICE].assign(
        measured=first["flop_per_s"],
        measured_low=1e3 * first["flops"] / first["step_ms_high"],
        measured_high=1e3 * first["flops"] / first["step_ms_low"],
        measured_n=first["step_ms_n"],
        how=first["backend"] + ", " + pd.Series(shapes, first.index, dtype=object),
    )


MODEL = ["module", "size"]


@exhibit(
    "paper-table-2",
    table=(
        Text("model", "Model"),
        Num("n_parameters", "Parameters", integer=True),
        Num("printed_m", "Parameters, printed", "10⁶", digits=4, published=True),
        Num("printed_gib", "16 bytes each, printed", "“GiB”", digits=5, published=True),
        Num("true_gib", "True, of the printed", "GiB", digits=5, computed=True),
        Num("theoretical_gib", "16 bytes each", "GiB", digits=4),
        Num("lora_trainable", "Trained with LoRA 8", integer=True),
        Num("device_peak_bytes", "Measured peak, fp32", "MiB", scale=2.0**20),
        Text("how", "Measured with"),
    ),
)
def paper_table_2(frames: Frames) -> pd.DataFrame:
    """Table 2: models with their parameters, 16 bytes each as printed and true, and measured peaks."""
    models = frames.results.frame("models").rename(columns={"model": "module"})
    printed = frames.published("table2_workloads").rename(columns={"source": "source_text"})
    names = [model_and_size(name) for name in printed["workload_as_printed"]]
    printed[MODEL] = pd.DataFrame(names, printed.index, MODEL)
    printed["printed_m"] = printed["parameters_m"].astype(float)
    printed["printed_gib"] = printed["theoretical_memory_gib"].astype(float)
    printed["true_gib"] = printed["printed_m"] * 1e6 * BYTES_PER_PARAMETER / GIB
    frame = models.merge(printed, on=MODEL, how="left")
    points = frames.trainings
    points = points[points["device_peak_bytes"].gt(0) & points["apart"].eq("")]
    points = points[points["stage"].eq("fits") & points["precision"].eq("fp32")]
    first = points.drop_duplicates([*MODEL, "place", "backend"])  # trainers differ little
    batch = texts(first["samples_per_step"], ", batch {:.0f}")
    place = short_place(first) + ", " if first["place"].nunique() > 1 else ""
    # The vocabulary of its data, so the number of its parameters, is the measured training's own.
    own = {"how": place + first["backend_label"] + batch, "own_parameters": first["n_parameters"]}
    columns = [*MODEL, "device_peak_bytes", *own]
    frame = frame.merge(first.assign(**own)[columns], on=MODEL, how="left")
    known = frame["own_parameters"].fillna(frame["n_parameters"])
    frame["n_parameters"] = known.astype("Int64")
    frame["theoretical_gib"] = frame["n_parameters"] * BYTES_PER_PARAMETER / GIB
    frame = frame[frame["printed_m"].notna() | frame["how"].notna()]
    missing = dict.fromkeys(("printed_m_why", "printed_gib_why", "true_gib_why"), "not in Table 2")
    return frame.assign(
        model=frame["module"] + "-" + frame["size"],
        lora_trainable_why="has no adapters here",
        **missing,
    )


MEMORY_KEY = ["model", "batch_size", "device"]
STEP_COLUMNS = ["whole_step_ms", "whole_step_ms_low", "whole_step_ms_high", "whole_step_ms_n"]
OF_MODEL = ["predicted_memory_bytes", "capacity_bytes", "scenario_derived"]


@exhibit(
    "paper-table-3",
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
def paper_table_3(frames: Frames) -> pd.DataFrame:
    """Table 3: which device trains what in which scenario: printed, derived and measured."""
    told = printed(frames)
    derived = needs(frames, paper_places(frames))
    derived = derived.assign(length=length(derived))[[*MEMORY_KEY, *OF_MODEL, "length"]]
    own = trained(frames, told["model"].drop_duplicates())
    own = own[[*CELL, "model", "batch_size", "device_label", "whose", "setup", *OF_MODEL, *STEP_COLUMNS,
               "length", "applied", "why_not"]]  # fmt: skip
    frame = told.merge(derived, on=MEMORY_KEY, how="left")
    frame = frame.merge(own, on=MEMORY_KEY, how="outer", suffixes=("_printed", ""))
    for name in (*OF_MODEL, "length", "device_label"):
        frame[name] = frame[f"{name}_printed"].where(frame[name].isna(), frame[name])
    number = {name: number for number, name in PAPER_SCENARIOS.items()}
    places = {name: place for place, name in enumerate(told["model"].drop_duplicates())}
    frame = frame.assign(
        derived=frame["scenario_derived"].map(number) + " " + frame["scenario_derived"],
        share=frame["predicted_memory_bytes"] / frame["capacity_bytes"],
        printed_why="not in Table 3",
        by_model=frame["model"].map(places),
    )
    return frame.sort_values(["by_model", "printed"], kind="stable", ignore_index=True)


def printed(frames: Frames) -> pd.DataFrame:
    """Each configuration once: of two transcriptions the one that agrees with the paper's text."""
    names = {"workload": "model", "source": "source_text"}
    frame = frames.published("table3_configurations").rename(columns=names)
    frame = frame.astype({"batch_size": int}).assign(printed=frame["scenario"].astype(int))
    is_odd = frame["note"].str.contains("contradicts", na=False)
    odd = frame[is_odd].set_index(MEMORY_KEY)["scenario"].map("the other transcription: {}".format)
    return frame[~is_odd].join(odd.rename("other"), on=MEMORY_KEY)


def trained(frames: Frames, models: pd.Series) -> pd.DataFrame:
    """This run's cells of some models with the paper's trainer, one for each device and batch."""
    cells = frames.cells
    usual = uses_defaults(cells) & ~cells["is_mechanism_check"] & ~cells["lora"]
    cells = cells[cells["trainer"].eq("hf") & usual & cells["batch_size"].notna()]
    cells = cells.assign(
        model=cells["model"].map(dict(zip(models.str.lower(), models, strict=True)))
    )
    points = frames.points[[*CELL, *STEP_COLUMNS, "n_parameters"]].rename(
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
    first = cells.sort_values(["not_fp32", *STEP_COLUMNS[:1]], kind="stable")
    return first.drop_duplicates([*DEVICE, "model", "batch_size"]).sort_values("order")
