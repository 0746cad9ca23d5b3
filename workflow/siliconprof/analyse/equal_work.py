"""Which training cells did the same work, so that their times may be held against each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
NOISY = "noisy"  # the flag: repeats scatter


def by_phases(row: Mapping[str, Any]) -> bool:
    """Whether a cell or point is of a training that is timed phase by phase."""
    return bool(row["trainer"]) and row["trainer"] not in WHOLE_TRAININGS


def flagged(row: Mapping[str, Any], code: str) -> bool:
    """Whether a cell carries a flag."""
    return code in (row.get("flags") or "").split(";")


def has_no_speed(row: Mapping[str, Any]) -> bool:
    """Whether the times of a cell are kept out of every statement and ratio about speed."""
    return flagged(row, NO_SPEED_FLAG)


def checkpointed(row: Mapping[str, Any]) -> bool:
    """Whether a training computes its layers again in the backward pass."""
    return bool(row.get("gradient_checkpointing"))


def compiles(row: Mapping[str, Any]) -> bool:
    """Whether a training's step is compiled."""
    return bool(row.get("compile"))


def as_usual(row: Mapping[str, Any]) -> bool:
    """Whether a training runs eagerly, with whatever its framework chooses, and is probed."""
    chosen = (row.get(name) for name in CHOICES[1:])
    return not compiles(row) and not row.get("probes_off") and {*chosen} <= {None, "default"}


def work(row: Mapping[str, Any]) -> tuple:
    """What a step of a training computes: equal for equal work."""
    return tuple(row.get(name) for name in WORK)


def stem(row: Mapping[str, Any]) -> str:
    """A training workload's name without its trainer: `gpt2-nano` of `gpt2-nano-hf`."""
    return row["workload"].removesuffix(f"-{row['trainer']}")


def zero_stage(row: Mapping[str, Any]) -> str:
    """The ZeRO stage of an offloaded cell as ` stage 2`; empty when not recorded."""
    return f" stage {int(row['zero_stage'])}" if row.get("zero_stage") else ""


def variant(row: Mapping[str, Any]) -> list[str]:
    """What sets a training cell apart from the plain training of its model."""
    parts = []
    if row.get("lora_rank"):
        parts.append(f"LoRA {int(row['lora_rank'])}")
    applied = row.get("scenario_applied") or row["scenario"]
    if applied == "offload":
        parts.append(f"offload{zero_stage(row)}")
    elif applied == "near-capacity":
        batch = row.get("batch_size") if row.get("batch_size_found") else None
        parts.append("near capacity" + (f", batch {int(batch)}" if batch else ""))
    if row["scenario"] not in ("auto", applied):
        parts.append(f"asked for {row['scenario']}")
    if row.get("gradient_checkpointing"):
        parts.append("checkpointed")
    if compiles(row):
        parts.append("compiled")
    for name, title in (("attention", "attention"), ("adamw", "AdamW"), ("allocator", "allocator")):
        if row.get(name) not in (None, "default"):
            parts.append(f"{title}: {row[name]}")
    if row.get("weights") not in (None, "random"):
        parts.append(str(row["weights"]))
    if row.get("probes_off"):
        parts.append("no probes")
    if row.get("twin"):
        parts.append(stem(row))
    return parts
