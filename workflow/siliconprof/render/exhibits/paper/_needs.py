"""What the paper's exhibits share: its four trainings by the memory model, and short names."""

from typing import Any

import pandas as pd

from siliconprof import plugins
from siliconprof.analyse.frames import BACKENDS, DEVICE, Frames, rank
from siliconprof.hosts import registry
from siliconprof.memory import footprint, memory_model
from siliconprof.store.contents import MEMORY_PARTS

PAPER_SCENARIOS = {"1": "fits", "2": "offload", "3": "near-capacity"}  # the paper's numbers
# As config/paper.yaml has them: the paper states neither lengths nor checkpointing, without which
# Whisper-large at its batch would need five times an M2 Max.
LENGTHS = {"gpt2": {"seq_len": 128}, "whisper": {"target_len": 128, "dataset_clip_seconds": 30}}
CHECKPOINTED = ("Whisper-large",)
PRECISION = "fp32"
SHARED_WORDS = "NVIDIA |GeForce |Apple | GPU cores"  # of a vendor's devices


def model_and_size(workload: str) -> tuple[str, str]:
    """`Whisper-medium`, as the paper names it, in our names: module and size."""
    name, _, size = workload.lower().partition("-")
    return name, size


def short_place(cells: pd.DataFrame) -> pd.Series:
    """What tells devices apart in a label: `RTX 4090`, `M2 Ultra, 76 · mac`."""
    name = cells["device_label"].str.replace(SHARED_WORDS, "", regex=True)
    return name.where(cells["here"], name + " · " + cells["host"])


def texts(numbers: pd.Series, form: str) -> pd.Series:
    """Format numbers; a missing one is an empty text."""
    written = numbers.map(form.format, na_action="ignore")
    return written.astype("string").fillna("").astype(object)


def length(frame: pd.DataFrame) -> pd.Series:
    """How long one sample of a training is: `128 tokens`, `30 s clips, 128 tokens`."""
    clips = texts(frame["clip_seconds"], "{:g} s clips, ")
    return clips + texts(frame["target_len"].where(clips != "", frame["seq_len"]), "{:g} tokens")


def needs(frames: Frames, places: pd.DataFrame) -> pd.DataFrame:
    """Every training of Table 3 on each of some places, which have a `backend` and `capacity_bytes`.

    Columns: `model` (as printed), and those of cells.csv on the batch, its length, what is predicted.
    """
    printed = frames.published("table3_configurations")[["workload", "batch_size"]]
    trainings = printed.drop_duplicates().set_axis(["model", "batch_size"], axis=1)
    each = trainings.astype({"batch_size": int}).merge(
        places[["backend"]].drop_duplicates(), how="cross"
    )
    predicted = [_predicted(*row) for row in each.itertuples(index=False)]
    frame = places.merge(each.join(pd.DataFrame(predicted, each.index)), on="backend")
    both = zip(frame["predicted_memory_bytes"], frame["capacity_bytes"], strict=True)
    derived = [
        memory_model.derive_scenario(need, have if have > 0 else None) for need, have in both
    ]
    return frame.assign(scenario_derived=pd.Series(derived, frame.index, dtype=object))


def _predicted(model: str, batch_size: int, backend: str) -> dict[str, Any]:
    module, size = model_and_size(model)
    plugin, own = plugins.load("workloads", module), LENGTHS[module]
    more = {"size": size, "batch_size": batch_size, "dataset_vocab_size": memory_model.VOCAB_SIZE}
    more |= {"gradient_checkpointing": model in CHECKPOINTED, "zero_stage": 3}
    workload = plugin(plugin.defaults() | own | more)
    parts = workload.memory_bytes(PRECISION, backend)
    offloaded = workload.memory_bytes(PRECISION, backend, offloads=True)
    return {f"predicted_{part}_bytes": parts[part] for part in MEMORY_PARTS} | {
        "predicted_memory_bytes": footprint.total(parts),
        "predicted_offloaded_bytes": footprint.total(offloaded) if offloaded else None,
        "seq_len": own.get("seq_len"),
        "target_len": own.get("target_len"),
        "clip_seconds": own.get("dataset_clip_seconds"),
    }


def own_places(frames: Frames) -> pd.DataFrame:
    """Every device with cells, its first backend, and what its cells may use without a budget."""
    cells = frames.cells[frames.cells["backend"].isin(plugins.names("backends"))]
    is_budget = cells["capacity_source"] == memory_model.BUDGET_SOURCE
    known = cells["capacity_bytes"].mask(is_budget).groupby([cells[name] for name in DEVICE])
    cells = cells.assign(
        capacity_bytes=known.transform("first").fillna(cells["device_memory_bytes"]),
        backend_order=rank(cells["backend"], BACKENDS),
    )
    first = cells.sort_values("backend_order", kind="stable").drop_duplicates(DEVICE)
    names = ["here", "place", "device_label", "whose", "backend", "capacity_bytes"]
    return first.sort_values("order")[[*DEVICE, *names]]


def paper_places(frames: Frames) -> pd.DataFrame:
    """The devices of Table 1 that the registry has, with what a training may use of each."""
    rows = []
    for device in frames.published("table1_devices")["device"]:
        entry = frames.sheets.registry["devices"].get(device)
        if entry is None or not entry["memory_gib"] or not entry["backends"]:
            continue
        size = int(entry["memory_gib"]["value"] * registry.GIB)
        kind = {"kind": entry["kind"], "memory_kind": entry["memory_kind"], "memory_bytes": size}
        usable = memory_model.usable(kind) or {"bytes": size}
        rows.append((device, entry["name"], entry["backends"][0], usable["bytes"]))
    return pd.DataFrame(rows, columns=["device", "device_label", "backend", "capacity_bytes"])
