"""The keys of an entry of `transformer_lm`, beside those of every training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from siliconprof.declarations import Parameter, Quantity, choice, integer, number
from siliconprof.workloads import _wide_deep
from siliconprof.workloads.base import TrainingWorkload

# Parameters of the points of the grid and the sweep; one that all points share is of the cell.
SHAPE_POINT: Mapping[str, Parameter] = {
    "n_layer": Parameter("integer", label="layers"),
    "n_embd": Parameter("integer", label="channels"),
    "n_head": Parameter("integer", label="heads"),
    "d_ff": Parameter("integer", label="feed-forward channels"),
    "seq_len": Parameter("integer", label="sequence length"),
    "vocab_size": Parameter("integer", label="vocabulary", derived=True),
    "head_dim": Parameter("integer", label="channels of a head", identifies=False, derived=True),
}
OPTIMIZER_POINT: Mapping[str, Parameter] = {
    "learning_rate": Parameter("number", label="learning rate", identifies=False),
    "warmup_steps": Parameter("integer", label="warm-up steps", identifies=False),
    "decay_steps": Parameter("integer", label="decay steps", identifies=False),
    "weight_decay": Parameter("number", label="weight decay", identifies=False),
    "beta1": Parameter("number", label="beta 1", identifies=False),
    "beta2": Parameter("number", label="beta 2", identifies=False),
    "max_gradient_norm": Parameter("number", label="clipped at a norm of", identifies=False),
}
# Of a point that is a training of its own, or one step of it, timed whole.
SWEPT_POINT: Mapping[str, Parameter] = {
    **{name: TrainingWorkload.POINT[name] for name in ("batch_size", "n_parameters")},
    "tokens_per_step": Parameter("integer", label="tokens in a step", derived=True),
    "samples_per_step": Parameter(
        "integer", label="samples in a step", identifies=False, derived=True
    ),
}
WHOLE_STEP: dict[str, Quantity] = {
    name: TrainingWorkload.QUANTITIES[name]
    for name in ("whole_step_s", "flop_per_s", "tokens_per_s")
}


def with_betas(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters, and AdamW's two betas by the names that `OPTIMIZER_POINT` has for them."""
    betas = parameters.get("betas")
    if not isinstance(betas, list | tuple) or len(betas) != 2:
        return {**parameters}
    return {**parameters, "beta1": betas[0], "beta2": betas[1]}


BY_BUDGET = "; `parameter_budget` solves it"  # ends the description of a size that it does
SHAPE_PARAMETERS: Mapping[str, Any] = {
    "n_layer": integer(4, f"layers{BY_BUDGET}", minimum=1),
    "n_embd": integer(128, f"channels, a multiple of 2 n_head{BY_BUDGET}", minimum=2),
    "n_head": integer(4, "attention heads of n_embd / n_head channels", minimum=1),
    "d_ff": integer(
        None,
        "channels of the SwiGLU feed-forward; null = 8/3 n_embd rounded up to a "
        f"multiple of 8{BY_BUDGET}",
        minimum=1,
    ),
    "seq_len": integer(128, "tokens per sequence", minimum=2),
    "vocab_size": integer(
        None, "rows of the embedding and of the head; null = that of the data", minimum=2
    ),
    "parameter_budget": integer(
        None,
        "parameters that a wide and a deep model of n_head heads are solved for, "
        "equal in parameters and compute; `aspect` says which one this is; null = none",
        minimum=1,
    ),
    "aspect": choice(
        ["wide", "deep", None], "which of the two that `parameter_budget` gives", default=None
    ),
    "depth_ratio": number(
        _wide_deep.DEPTH_RATIO,
        "with `parameter_budget`: the deep model has at least so many times the wide one's layers",
        exclusiveMinimum=1,
    ),
}

OPTIMIZER_PARAMETERS: Mapping[str, Any] = {
    "learning_rate": number(
        0.001, "AdamW's learning rate after the warm-up, before the decay", exclusiveMinimum=0
    ),
    "warmup_steps": integer(0, "steps in which the learning rate rises linearly", minimum=0),
    "decay_steps": integer(
        None,
        "steps after the warm-up in which it falls along a cosine to a tenth, constant "
        "afterwards; null = it does not fall",
        minimum=1,
    ),
    "weight_decay": number(0.1, "AdamW's decoupled weight decay, of every parameter", minimum=0),
    "betas": {
        "type": "array",
        "items": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        "minItems": 2,
        "maxItems": 2,
        "default": [0.9, 0.95],
        "description": "AdamW's decay rates of the averages of gradient and squared gradient",
    },
    "max_gradient_norm": {
        "type": ["number", "null"],
        "exclusiveMinimum": 0,
        "default": 1.0,
        "description": "largest joint norm of all gradients, to which larger ones are scaled down; "
        "null = no clipping",
    },
}

RUN_PARAMETERS: Mapping[str, Any] = {
    "steps": integer(200, "training steps, under trainer training_run", minimum=1),
    "evaluate_every": integer(
        50, "steps between two evaluations on held-out data, under trainer training_run", minimum=1
    ),
    "evaluation_batches_limit": integer(
        8, "largest number of batches of an evaluation, the first of the held-out data", minimum=1
    ),
    "checkpoint_every": integer(
        50, "steps between two checkpoints, under trainer training_run", minimum=1
    ),
    "sample_temperatures": {
        "type": "array",
        "items": {"type": "number", "minimum": 0},
        "default": [0, 0.8],
        "description": "temperatures at which the trained model writes, under trainer "
        "training_run; 0 = always the likeliest token",
    },
    "sample_tokens": integer(
        48, "tokens that it writes at each, under trainer training_run", minimum=1
    ),
}
