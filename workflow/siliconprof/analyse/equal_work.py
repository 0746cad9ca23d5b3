"""Which training cells did the same work, so that their times may be held against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from siliconprof.formatting import number
from siliconprof.store.table_files import KEY

if TYPE_CHECKING:
    import pandas as pd

OTHER_LOSS = "other_loss"  # a column of points, and a flag
WORK = (
    "module",
    "n_parameters",
    "n_trainable_parameters",
    "samples_per_step",
    "tokens_per_step",
    "audio_s_per_step",
    "target_len",
    "data_sha256",
    "seed",
    "weights",
    "max_gradient_norm",
    OTHER_LOSS,
)
# Keys of a training that choose how its step runs, and not what it computes.
CHOICES = ("compile", "attention", "adamw", "allocator")
# Of whole trainings: they have sections of their own, several points a cell or no split steps.
WHOLE_TRAININGS = ("training_run", "epochs")
NO_SPEED_FLAG = "offload_on_cpu"
DISTURBED = "contended"  # the flag: other processes used the processor
NO_GAP = "no gap beyond noise"  # the verdict on two that take equally long
FULL = ("fp32", "tf32")
# Relative: sums in another order have differed by 1e-6, 16-bit formats by 2e-5 of a loss.
LOSS_WITHIN, LOSS_WITHIN_16_BIT = 1e-3, 1e-2
SMALLER = "smaller_batch"  # the flag: of a batch that fits in place of the config's


def mark_other_losses(cells: Sequence[dict[str, Any]], points: Sequence[dict[str, Any]]) -> None:
    """Mark lines of points.csv, and flag those of cells.csv, whose first loss differs.

    The first step's loss is that of the same weights on the same batch, so it is the same on every
    backend but for rounding. Where it is not, another model was trained. It is held against the
    first in fp32, else the first of all; where dropout draws, each framework has its own.
    """
    of_cell = {tuple(cell[name] for name in KEY): cell for cell in cells}
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for point in points:
        point[OTHER_LOSS] = None
        if number(point["loss_first"]) and not point["draws"]:
            known = {name: value for name, value in point.items() if value is not None}
            every = of_cell[tuple(point[name] for name in KEY)] | known
            groups.setdefault(tuple(every.get(name) for name in WORK), []).append(point)
    for alike in groups.values():
        is_full = [point["precision"] in FULL for point in alike]
        first = is_full.index(True) if any(is_full) else 0
        expected = alike[first]["loss_first"]
        for point, full in zip(alike, is_full, strict=True):
            within = LOSS_WITHIN if full and is_full[first] else LOSS_WITHIN_16_BIT
            if abs(point["loss_first"] - expected) > within * abs(expected):
                said = f"the first loss is {point['loss_first']:.6g}, on {alike[first]['backend']} "
                said += f"{expected:.6g} of the same weights and batch"
                point[OTHER_LOSS] = said
                cell = of_cell[tuple(point[name] for name in KEY)]
                cell["flags"] = ";".join(filter(None, [cell["flags"], OTHER_LOSS]))
                details = [cell["flag_details"], f"{OTHER_LOSS}: {said}"]
                cell["flag_details"] = "; ".join(filter(None, details))


def flagged(frame: pd.DataFrame, code: str) -> pd.Series:
    """Mask of the rows whose cell has a flag."""
    return frame["flags"].astype("object").fillna("").astype(str).str.contains(rf"\b{code}\b")


def variant_label(row: Mapping[str, Any]) -> str:
    """`LoRA 8` where a training computes something else than the plain one; empty otherwise."""
    parts = [f"LoRA {int(row['lora_rank'])}"] if row.get("lora_rank") else []
    if row.get("weights") not in (None, "random"):
        parts.append(str(row["weights"]))
    return ", ".join(parts)


def setting_labels(row: Mapping[str, Any]) -> list[str]:
    """The settings in which a training runs differently from the plain one of its model."""
    parts = []
    applied = row.get("scenario_applied") or row["scenario"]
    if applied == "offload":
        stage = row.get("zero_stage")
        parts.append(f"offload stage {int(stage)}" if stage else "offload")
    elif applied == "near-capacity":
        batch = row.get("batch_size") if row.get("batch_size_found") else None
        parts.append("near capacity" + (f", batch {int(batch)}" if batch else ""))
    if row["scenario"] not in ("auto", applied):
        parts.append(f"asked for {row['scenario']}")
    if row.get("gradient_checkpointing"):
        parts.append("checkpointed")
    if row.get("compile"):
        parts.append("compiled")
    for name, title in (("attention", "attention"), ("adamw", "AdamW"), ("allocator", "allocator")):
        if row.get(name) not in (None, "default"):
            parts.append(f"{title}: {row[name]}")
    if row.get("probes_off"):
        parts.append("no probes")
    return parts
