"""The experiment of one model: `model: Qwen/Qwen3-0.6B` at the top of a config, or of `--config`.

It takes the place of the config's workloads: the model's trainings, and of the target `quick` those
operations that explain them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from siliconprof import plugins
from siliconprof.datasets import model_config

DATA = "python-docs-512"  # of few tokens, so that small vocabularies too have them
DEFAULT_SHAPES = {
    "cpu": (1, 128),
    "gpu": (8, 512),
}  # batch × length, the same everywhere, to be compared
MODEL_TRAINERS = ("plain", "hf")
# At least, where the config has less: a large model's steps take seconds, and with fewer of them no
# operator is timed twice, or the training overruns.
TIMING = {"iterations": 5, "budget_s": 10.0}
# Keys beside `model`, which decide its trainings alone.
MODEL_OPTIONS = ("batch", "seq_len", "lora")


def expanded(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config or, where it names a model, that model's; other mistakes in it stay as they are.

    Raises:
        UserError: the model is a folder without one; one line.
    """
    if not isinstance(config, Mapping):
        return config
    model, entries = config.get("model"), config.get("workloads")
    if not isinstance(model, str) or not isinstance(entries, Mapping):
        return config
    if model_config.is_local(model):
        model_config.read(model)
    asked = {key: config[key] for key in MODEL_OPTIONS if config.get(key) is not None}
    trainings = _trainings(model, asked, _timing(config.get("timing")))
    quick = [name for name in config.get("quick") or () if _is_operation(entries.get(name))]
    return {
        **config,
        "datasets": {DATA: {"source": "builtin", "vocab_size": 512}},
        "workloads": {**trainings, **{name: entries[name] for name in quick}},
        "quick": [*trainings, *quick],
        "emulated_workloads": [],
        "only_forked": [],
    }


def _is_operation(entry: Any) -> bool:
    module = entry.get("module") if isinstance(entry, Mapping) else None
    known = module in plugins.names("workloads")
    return bool(known and plugins.load("workloads", str(module)).kind == "kernels")


def _timing(given: Any) -> dict[str, Any]:
    """Return the `timing` of the trainings, which replaces the config's."""
    own = given if isinstance(given, Mapping) else {}
    numbers = {name: own[name] for name in TIMING if isinstance(own.get(name), int | float)}
    return {name: max(least, numbers.get(name, least)) for name, least in TIMING.items()}


def _trainings(
    model: str, asked: Mapping[str, Any], timing: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return a workload entry for each trainer and each kind of device's shape."""
    kinds: dict[tuple[Any, Any], list[str]] = {}
    for kind, (batch, length) in DEFAULT_SHAPES.items():
        shape = asked.get("batch", batch), asked.get("seq_len", length)
        kinds.setdefault(shape, []).append(kind)
    rank = asked.get("lora", 0)
    found = {}
    for (batch, length), of_kinds in kinds.items():
        for trainer in MODEL_TRAINERS:
            lora = f"-lora{rank}" if rank else ""
            found[f"{label(model)}{lora}-{batch}x{length}-{trainer}"] = {
                "module": "causal_lm",
                "trainer": trainer,
                "model": model,
                "batch_size": batch,
                "fit_batch": True,
                "seq_len": length,
                "lora_rank": rank,
                "dataset": DATA,
                "device_kinds": of_kinds,
                "timing": dict(timing),
            }
    return found


def label(model: str) -> str:
    """`qwen3-0.6b` of `Qwen/Qwen3-0.6B@main`, of a folder its own name."""
    path, _ = model_config.parts(model)
    name = Path(path).name if not model_config.is_local(model) else Path(path).resolve().name
    return re.sub(r"[^a-z0-9._]+", "-", name.lower()).strip("-._")[:32] or "model"
