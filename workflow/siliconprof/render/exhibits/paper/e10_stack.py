"""Figure 1: the stack from workloads down to devices, with what really ran on these hosts."""

import pandas as pd

from siliconprof.analyse import throughputs
from siliconprof.analyse.frames import DEVICE, Frames, records
from siliconprof.render.drawers import Flow
from siliconprof.render.exhibit import Exhibit
from siliconprof.render.exhibits.paper._needs import short_place
from siliconprof.workloads.base import KernelWorkload

LAYERS = {
    "family": "Workload",
    "driver": "Trainer",
    "framework": "Backend",
    "library": "Library",
    "device_name": "Device",
}
TRAINERS = {
    "plain": "plain loop",
    "hf": "Hugging Face Trainer",
    "epochs": "epoch loop",
    "training_run": "whole training",
}
LIBRARIES = {"torch-cuda": "CUDA", "torch-mps": "MPS"}  # of a GPU, by backend
MLX_LIBRARIES = {"apple": "Metal", "nvidia": "CUDA"}  # and of MLX on it, by its vendor
MOST_DEVICES = 8


def rows(frames: Frames) -> pd.DataFrame:
    cells = frames.cells[frames.cells["status"] == "ok"]
    workloads = {name: throughputs.workload_of({"module": name}) for name in set(cells["module"])}
    family = {name: plugin.family if plugin else name for name, plugin in workloads.items()}
    entries = [frames.sheets.entry(row) or {} for row in records(cells[DEVICE])]
    vendor = pd.Series([entry.get("vendor") for entry in entries], cells.index, dtype=object)
    on_gpu = cells["backend"].map(LIBRARIES).fillna(vendor.map(MLX_LIBRARIES)).fillna("GPU")
    blas = cells["blas"].str.split(" (", regex=False).str[0].fillna("BLAS not recorded")
    name = short_place(cells)
    more = set(list(dict.fromkeys(name))[MOST_DEVICES:])
    frame = pd.DataFrame(
        {
            "family": cells["module"].map(family),
            "driver": cells["trainer"].map(TRAINERS).fillna(cells["trainer"]).fillna("no trainer"),
            "framework": cells["backend"] + (" " + cells["framework_version"]).fillna(""),
            "library": blas.where(cells["device_kind"] == "cpu", on_gpu),
            "device_name": name.mask(name.isin(more), f"{len(more)} more devices"),
            "backend": cells["backend"],
        }
    )
    frame["driver"] = frame["driver"].mask(cells["offloads"], "DeepSpeed")
    single = frame["family"].eq(KernelWorkload.family)
    return frame.assign(single=single).drop_duplicates().sort_values(["single", "family"])


EXHIBIT = Exhibit(
    id="paper-figure-1",
    rows=rows,
    figure=Flow(LAYERS),
    needs="It needs any measured cell.",
)
