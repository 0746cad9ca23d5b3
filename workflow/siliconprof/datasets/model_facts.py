"""What is known of a model before it is built: `results/models/{name}.json`, made once by a rule.

`cells.model_file` writes it, where torch and transformers are; plan, cells and memory model read it
on hosts where nothing is installed. Its name follows from what it is of, its `spec`.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from siliconprof.errors import UserError
from siliconprof.store import documents
from siliconprof.store.cell import canonical_json

MODELS_FOLDER = "models"
# Bytes kept of a batch of B sequences of T tokens are a·BT + b·BT² + c·T + d; these four tell all.
COUNTED_SHAPES = ((1, 32), (1, 64), (2, 32), (2, 64))
Kept = tuple[float, float, float, float]  # a, b, c, d


@dataclass(frozen=True)
class StageFacts:
    """Embedding, a layer, or the last norm with head and loss."""

    weights: int
    adapters: int  # parameters of LoRA's adapters in it
    kept: Mapping[str, Kept] | None  # precision -> what autograd keeps of it; None = not counted


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """A model as transformers has it. Sizes have the names that GPT-2's config has for them."""

    model: str | None = None  # hub id or folder; None = inline
    revision: str | None = None  # the hub's commit
    source: str | None = None  # checksum of the config.json in a folder
    config: Mapping[str, Any]  # whole, in transformers' names, without dropout
    torch_module: str  # of its class
    mlx_module: str | None  # of mlx-lm's
    mlx_missing: str | None = None  # why there is none
    weights: Mapping[str, tuple[int, ...]]  # the hub's name -> shape; tied ones once
    looked_up: int  # parameters that are looked up, not multiplied
    n_experts: int = 0  # 0 of a dense model
    n_experts_used: int = 0  # for a token
    expert_parameters: int = 0  # of all experts
    adapters: Mapping[str, tuple[int, int]]  # linear layer that LoRA adapts -> (inputs, outputs)
    stages: tuple[tuple[int, StageFacts], ...]  # (how often in a row, which), in order
    norms: int  # of n_embd, in a layer
    head_norms: bool = False  # a head's queries and keys have norms too
    is_gated: bool = False  # its feed-forward has a gate
    is_tied: bool  # head and embedding are one matrix
    n_layer: int
    n_embd: int
    n_head: int
    n_kv_head: int
    head_dim: int
    d_ff: int
    vocab_size: int
    n_positions: int

    @property
    def n_parameters(self) -> int:
        """Parameters, tied ones once; adapters are not counted."""
        return sum(map(math.prod, self.weights.values()))


def name(spec: Mapping[str, Any]) -> str:
    """Return the name of a model's file: the model's own, and a hash of its spec."""
    own = spec["model"] or spec["config"].get("model_type", "model")
    readable = re.sub(r"[^a-z0-9.]+", "-", Path(str(own)).name.lower()).strip("-.")
    return f"{readable[:40]}-{hashlib.sha256(canonical_json(spec).encode()).hexdigest()[:8]}"


@cache
def _read(path: Path, mtime_ns: int) -> ModelFacts:
    """Return the facts in a file, which is read again only when its time changes."""
    try:
        document = documents.read(path)
        document["weights"] = {key: tuple(shape) for key, shape in document["weights"].items()}
        stages = ((count, StageFacts(**stage)) for count, stage in document["stages"])
        return ModelFacts(**document | {"stages": tuple(stages)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: no file of a model ({error}); delete it, it is made again"
        ) from None


def load(path: str | Path | None) -> ModelFacts | None:
    """Return the facts in a file; None where it does not exist yet.

    Raises:
        UserError: it holds something else.
    """
    if path is None or not (file := Path(path).absolute()).exists():
        return None
    return _read(file, file.stat().st_mtime_ns)
