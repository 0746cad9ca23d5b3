"""Which training cells did the same work, so that their times may be held against each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

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
)
# Keys of a training that choose how its step runs, and not what it computes.
CHOICES = ("compile", "attention", "adamw", "allocator")
# Of whole trainings: they have sections of their own, several points a cell or no split steps.
WHOLE_TRAININGS = ("training_run", "epochs")
NO_SPEED_FLAG = "offload_on_cpu"
DISTURBED = "contended"  # the flag: other processes used the processor
NO_GAP = "no gap beyond noise"  # the verdict on two that take equally long
SMALLER = "smaller_batch"  # the flag: of a batch that fits in place of the config's
NOISY = "noisy"  # the flag: repeats scatter


def flagged(frame: pd.DataFrame, code: str) -> pd.Series:
    """Of which rows the cell carries a flag."""
    return frame["flags"].astype("object").fillna("").astype(str).str.contains(rf"\b{code}\b")


def apart(row: Mapping[str, Any]) -> str:
    """`LoRA 8` of a training that computes something else than the plain one; empty for it."""
    parts = [f"LoRA {int(row['lora_rank'])}"] if row.get("lora_rank") else []
    if row.get("weights") not in (None, "random"):
        parts.append(str(row["weights"]))
    return ", ".join(parts)


def manner(row: Mapping[str, Any]) -> list[str]:
    """How a training runs otherwise than the plain one of its model."""
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
