"""Causal language models in mlx-lm, of transformers' configs and the hub's weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from siliconprof.datasets.model_facts import ModelFacts
from siliconprof.errors import UserError, in_one_line


def arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """What mlx-lm's ModelArgs ask for under the names of transformers 4, from a config of transformers 5."""
    own = dict(config)
    rope = own.get("rope_parameters") or {}
    if "rope_theta" not in rope and any(isinstance(one, Mapping) for one in rope.values()):
        local = rope.get("sliding_attention") or {}  # one for each kind of layer
        own.setdefault("rope_local_base_freq", local.get("rope_theta"))
        rope = rope.get("full_attention") or {}
    own |= {k: rope[k] for k in ("rope_theta", "partial_rotary_factor") if rope.get(k) is not None}
    own.setdefault("rope_scaling", None)
    heads = own.get("num_attention_heads") or own.get("n_head")
    if own.get("head_dim") is None and heads:
        own["head_dim"] = (own.get("hidden_size") or own.get("n_embd", 0)) // heads
    renamed = {
        "rotary_emb_base": own.get("rope_theta"),
        "rotary_pct": own.get("partial_rotary_factor"),
        "n_ctx": own.get("n_positions"),
        "num_experts": own.get("num_local_experts"),
        "num_local_experts": own.get("num_experts"),
    }
    return own | {k: v for k, v in renamed.items() if own.get(k) is None and v is not None}


def loaded(facts: ModelFacts, weights: Iterator[tuple[str, Any]]) -> Any:
    """The model with weights under the hub's names, which mlx-lm converts to its own.

    Raises:
        UserError: mlx-lm needs another package for it, or takes no notice of a part of the config.
    """
    import mlx.core as mx

    assert facts.mlx_module is not None
    try:
        module: Any = import_module(facts.mlx_module)
    except SystemExit:  # of mlx_lm.models.olmo
        raise UserError(f"{facts.mlx_module} needs a package that is not installed") from None
    model = module.Model(module.ModelArgs.from_dict(arguments(facts.config)))
    arrays = {name: mx.array(array) for name, array in weights}
    if hasattr(model, "sanitize"):
        arrays = model.sanitize(arrays)
    try:
        model.load_weights(list(arrays.items()))
    except ValueError as error:
        kind = facts.config["model_type"]
        raise UserError(f"mlx-lm's {kind} is another model: {in_one_line(error)}") from None
    return model


def adapt(model: Any, adapters: Mapping[str, Any], rank: int, alpha: float) -> None:
    """Freeze a model and give its linear layers LoRA adapters, in place.

    Args:
        adapters: transformers' name of a layer -> A of shape (rank, inputs); B is 0.
    """
    import mlx.core as mx
    from mlx.utils import tree_unflatten
    from mlx_lm.tuner.lora import LoRALinear

    model.freeze()
    # transformers may call what is above the layers otherwise: transformer.h.0, model.h.0
    named = {name.partition(".")[2]: (name, module) for name, module in model.named_modules()}
    added = []
    for theirs, values in adapters.items():
        name, module = named[theirs.partition(".")[2]]
        layer = LoRALinear.from_base(module, r=rank, dropout=0.0, scale=alpha / rank)
        layer.lora_a = mx.array(values.T)  # (inputs, rank)
        added.append((name, layer))
    model.update_modules(tree_unflatten(added))
