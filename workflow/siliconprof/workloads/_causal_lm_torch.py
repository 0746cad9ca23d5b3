"""Causal language models in transformers: built, given LoRA adapters, and looked at without memory."""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from siliconprof import declarations
from siliconprof.backends._torch_isolated import fake_tensors
from siliconprof.datasets import model_config
from siliconprof.datasets.model_facts import COUNTED_SHAPES, Kept, ModelFacts, StageFacts
from siliconprof.errors import UserError, in_one_line, nearest

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")  # as configs call their number
# What a config calls the width between the two layers of a block: most; GPT-2; OPT, XGLM; Falcon; CTRL.
FEED_FORWARD = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "dff")
COUNTED = ("fp32", "amp-bf16", "bf16")  # precisions whose kept bytes are counted
OF_EMBEDDING, OF_HEAD = 0, -1  # stages


def configured(config: Mapping[str, Any], called: str) -> Any:
    """transformers' config of a config.json, without dropout, cache and padding.

    Args:
        called: the model, for errors.

    Raises:
        UserError: transformers has no such architecture as a causal language model, or refuses a value.
    """
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

    kind = config["model_type"]
    if kind not in CAUSAL or kind not in CONFIG_MAPPING:
        version = declarations.installed_version("transformers")
        raise model_config.error(
            called,
            f"transformers {version} has no causal language model of model_type '{kind}', and code that "
            f"comes with a model is not run{nearest(kind, CAUSAL)}",
        )
    try:
        made = CONFIG_MAPPING[kind].from_dict(dict(config))
    except Exception as error:  # of its own checks
        raise model_config.error(
            called, f"transformers refuses its config ({in_one_line(error)})"
        ) from error
    if kind in MASKED and not getattr(made, "is_decoder", False):
        raise model_config.error(
            called,
            f"it is an encoder, which sees later tokens: its {model_config.CONFIG_FILE} does not say "
            '"is_decoder": true',
        )
    for key, value in made.to_dict().items():
        if key.endswith(("dropout", "pdrop")) and isinstance(value, float):
            setattr(made, key, 0.0)
    made.use_cache = False
    made.pad_token_id = None  # its embedding would get no gradient
    return made


def loaded(facts: ModelFacts, weights: Iterator[tuple[str, Any]]) -> Any:
    """The model with weights under the hub's names, which transformers converts where it has others."""
    import torch

    model = _empty(configured(facts.config, facts.model or "config"))
    own, prefix = model.state_dict(), f"{model.base_model_prefix}."  # which the hub's GPT-2 lacks
    own |= {name.removeprefix(prefix): value for name, value in own.items()}
    if facts.weights.keys() <= own.keys():
        for name, array in weights:
            own[name].copy_(torch.from_numpy(array))
    else:
        model = _converted(type(model), model.config, weights)
    model.loss_type = "ForCausalLM"  # what it falls back to, after a warning
    return model


def _converted(kind: Any, config: Any, weights: Iterator[tuple[str, Any]]) -> Any:
    """The model as transformers itself loads it, which merges the weights of experts into one tensor."""
    import torch
    from transformers.utils import logging

    arrays = {name: torch.from_numpy(array) for name, array in weights}
    logging.disable_progress_bar()
    given = {"config": config, "state_dict": arrays, "dtype": torch.float32}
    model, info = kind.from_pretrained(None, **given, output_loading_info=True)
    if wrong := {key: names for key, names in info.items() if names}:
        raise RuntimeError(f"transformers has not taken all weights: {wrong}")
    return model


def _empty(config: Any, dtype: str = "float32") -> Any:
    """The model without initial values, on the device of the context."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.tie_weights()
    return model


def adapted(model: Any, names: Sequence[str], rank: int, alpha: Any) -> Any:
    """The model with LoRA adapters on some linear layers; everything else is frozen."""
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    return get_peft_model(
        model,
        LoraConfig(
            task_type="CAUSAL_LM",
            r=rank,
            lora_alpha=alpha,
            lora_dropout=0.0,
            target_modules=list(names),
            fan_in_fan_out=isinstance(model.get_submodule(names[0]), Conv1D),
        ),
        autocast_adapter_dtype=False,
    )


def facts(spec: Mapping[str, Any]) -> ModelFacts:
    """Everything that its config tells of a model, which is built without memory, on `meta` and fake tensors.

    Args:
        spec: see `causal_lm.Plugin.model_spec`.

    Raises:
        UserError: one line.
    """
    try:
        return _facts(spec)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as wrong:
        raise model_config.error(
            spec["model"] or "config",
            f"its {model_config.CONFIG_FILE} makes no decoder that can be trained and counted here "
            f"({in_one_line(wrong)})",
        ) from wrong


def _facts(spec: Mapping[str, Any]) -> ModelFacts:
    import torch
    from transformers.core_model_loading import revert_weight_conversion

    called, commit, content = spec["model"] or "config", None, spec["config"]
    if spec["model"]:
        content, commit = model_config.read(spec["model"])
    model_config.check(content, called)
    config = configured(content, called)
    try:
        with torch.device("meta"):
            model = _empty(config)
    except Exception as error:
        raise model_config.error(
            called, f"transformers cannot build it ({in_one_line(error)})"
        ) from error
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    is_tied = head.weight is table.weight
    tied = set(getattr(model, "_tied_weights_keys", None) or ()) if is_tied else set()
    state = {name: value for name, value in model.state_dict().items() if name not in tied}
    weights = {n: tuple(v.shape) for n, v in revert_weight_conversion(model, state).items()}
    if config.model_type == "gpt2":  # whose names on the hub, and in mlx-lm, begin below it
        weights = {name.removeprefix("transformer."): shape for name, shape in weights.items()}
    n_experts = next((n for key in EXPERTS if (n := getattr(config, key, None))), 0)
    adapters = _adapters(model, _prefix(model, config), spec, bool(n_experts))
    lookups = [m for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    looked_up = sum(m.weight.numel() for m in lookups if m.weight is not head.weight)
    experts = (p.numel() for name, p in model.named_parameters() if ".experts." in name)
    mlx_module, mlx_missing = in_mlx(config.model_type)
    layer = _layers(model, config)[-1]
    n_head, n_embd = config.num_attention_heads, config.hidden_size
    head_dim = getattr(config, "head_dim", None) or n_embd // n_head
    widths = ["moe_intermediate_size"] if n_experts else []
    d_ff = next(
        (n for key in [*widths, *FEED_FORWARD] if (n := getattr(config, key, None))), 4 * n_embd
    )
    named = layer.named_parameters()
    norms = [p.shape[-1] for n, p in named if ("norm" in n or "ln_" in n) and n.endswith("weight")]
    return ModelFacts(
        model=spec["model"],
        revision=commit,
        source=model_config.state(spec["model"]),
        config=json.loads(config.to_json_string(use_diff=False)),
        torch_module=type(model).__module__,
        mlx_module=mlx_module,
        mlx_missing=mlx_missing,
        weights=weights,
        looked_up=looked_up,
        n_experts=n_experts,
        n_experts_used=getattr(config, "num_experts_per_tok", 0) if n_experts else 0,
        expert_parameters=sum(experts),
        adapters=adapters,
        stages=tuple(_stages(model, config, spec, adapters, countable=not n_experts)),
        norms=sum(width == n_embd for width in norms),
        head_norms=head_dim in norms and head_dim != n_embd,
        is_gated=any("gate" in name for name, _ in layer.named_modules()),
        is_tied=is_tied,
        n_layer=config.num_hidden_layers,
        n_embd=n_embd,
        n_head=n_head,
        n_kv_head=getattr(config, "num_key_value_heads", None) or n_head,
        head_dim=head_dim,
        d_ff=d_ff,
        vocab_size=config.vocab_size,
        n_positions=getattr(config, "max_position_embeddings", None) or 2**31 - 1,
    )


def in_mlx(kind: str) -> tuple[str | None, str | None]:
    """(mlx-lm's module of an architecture, why there is none); nothing of it is imported."""
    package = find_spec("mlx_lm")
    if package is None or not package.submodule_search_locations:
        return None, "mlx-lm is not installed where the model was looked at"
    folder = Path(package.submodule_search_locations[0])
    tree = ast.parse((folder / "utils.py").read_text(encoding="utf-8"))
    named = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODEL_REMAPPING"
    )
    remapped: dict[str, str] = next((ast.literal_eval(value) for value in named), {})
    name = remapped.get(kind, kind)
    if not (folder / "models" / f"{name}.py").is_file():
        version = declarations.installed_version("mlx-lm")
        return None, f"mlx-lm {version} has no model of type '{kind}'"
    return f"mlx_lm.models.{name}", None


def _layers(model: Any, config: Any) -> Any:
    import torch

    return next(
        module
        for module in model.modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == config.num_hidden_layers
    )


def _prefix(model: Any, config: Any) -> str:
    """`model.layers.` of `model.layers.0.self_attn`."""
    first = _layers(model, config)[0]
    return next(name for name, m in model.named_modules() if m is first).removesuffix("0")


def _adapters(
    model: Any, prefix: str, spec: Mapping[str, Any], has_experts: bool
) -> dict[str, tuple[int, int]]:
    """Linear layer that LoRA adapts -> (inputs, outputs): the layers' own, of a mixture the attention's."""
    import torch
    from transformers.pytorch_utils import Conv1D

    found, names = {}, set()
    for name, module in model.named_modules():
        if not (name.startswith(prefix) and isinstance(module, torch.nn.Linear | Conv1D)):
            continue
        last = name.rpartition(".")[2]
        names.add(last)
        if last in (spec["lora_targets"] or names) and not (has_experts and "attn" not in name):
            rows, columns = module.weight.shape
            found[name] = (rows, columns) if isinstance(module, Conv1D) else (columns, rows)
    if unknown := sorted({*(spec["lora_targets"] or ())} - names):
        raise UserError(
            f"lora_targets: the model has no linear layers '{unknown[0]}'; expected some of: "
            f"{', '.join(sorted(names))}{nearest(unknown[0], names)}"
        )
    return found


def _stages(
    model: Any,
    config: Any,
    spec: Mapping[str, Any],
    adapters: Mapping[str, tuple[int, int]],
    countable: bool,
) -> Iterator[tuple[int, StageFacts]]:
    """The stages in order, equal neighbours together: (how many, stage)."""
    import torch

    layers = list(_layers(model, config))
    types = getattr(config, "layer_types", None) or [""] * len(layers)
    kinds = [_kind(layer, of_type) for layer, of_type in zip(layers, types, strict=True)]
    depth = min(len(kinds), max(map(kinds.index, kinds)) + 2)  # has each kind; the last is like all
    counted: Sequence[dict[str, Kept] | None] = [None] * (depth + 2)
    if countable:
        counted = _counted(config, depth, spec, adapters)
    prefix = _prefix(model, config)
    added: dict[int, int] = dict.fromkeys(range(len(layers)), 0)
    for name, (inputs, outputs) in adapters.items():
        layer = int(name.removeprefix(prefix).partition(".")[0])
        added[layer] += spec["lora_rank"] * (inputs + outputs)
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    lookups = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Embedding))
    everything = sum(p.numel() for p in model.parameters())
    yield 1, StageFacts(lookups, 0, counted[OF_EMBEDDING])
    stages = []
    for index, kind in enumerate(kinds):
        place = 1 + max(at for at in range(depth) if kinds[at] == kind)
        stages.append(StageFacts(sizes[index], added[index], counted[place]))
    for stage, alike in groupby(stages):
        yield len([*alike]), stage
    rest = everything - lookups - sum(sizes)
    yield 1, StageFacts(rest, 0, counted[OF_HEAD])


def _kind(layer: Any, of_type: str) -> tuple[Any, ...]:
    """A key that is equal for layers that keep and compute the same."""
    shapes = tuple((name, tuple(p.shape)) for name, p in layer.named_parameters())
    return type(layer).__name__, of_type, shapes


def _counted(
    config: Any, depth: int, spec: Mapping[str, Any], adapters: Mapping[str, tuple[int, int]]
) -> list[dict[str, Kept]]:
    """What each stage of a model of the first layers keeps, by precision, as coefficients of `COUNTED_SHAPES`."""
    import numpy as np

    short = copy.deepcopy(config)
    for key, value in config.to_dict().items():  # such as layer_types
        if isinstance(value, list) and len(value) == config.num_hidden_layers:
            setattr(short, key, value[:depth])
    short.num_hidden_layers = depth
    terms = np.array([(b * t, b * t * t, t, 1) for b, t in COUNTED_SHAPES], float)
    found: list[dict[str, Kept]] = [{} for _ in range(depth + 2)]
    for precision in COUNTED:
        rows = np.array([*_saved_bytes(short, precision, spec, adapters)], float)
        for stage, coefficients in zip(found, np.linalg.solve(terms, rows).T, strict=True):
            stage[precision] = tuple(round(float(value), 3) for value in coefficients)  # type: ignore[assignment]
    return found


def _saved_bytes(
    config: Any,
    precision: str,
    spec: Mapping[str, Any],
    adapters: Mapping[str, tuple[int, int]],
) -> Iterator[list[int]]:
    """Bytes that autograd keeps of each stage's forward pass, weights left out, for each of `COUNTED_SHAPES`.

    On fake tensors, so without memory.
    """
    import torch

    kept: list[dict[int, Any]] = []
    at = [OF_EMBEDDING]

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if not any(storage._cdata in one for one in (held, *kept)):
            kept[at[0]][storage._cdata] = tensor  # kept alive: no address twice
        return tensor

    with fake_tensors(torch):
        model = _empty(config, "bfloat16" if precision == "bf16" else "float32").train()
        layers = _layers(model, config)
        here = {name for name, _ in model.named_modules()}  # of the first layers alone
        names = [name for name in adapters if spec["lora_rank"] and name in here]
        if names:
            model = adapted(model, names, spec["lora_rank"], spec["lora_rank"])
        held = {v.untyped_storage()._cdata for v in (*model.parameters(), *model.buffers())}
        for place, layer in enumerate(layers, 1):
            layer.register_forward_pre_hook(lambda *_, place=place: at.__setitem__(0, place))
            layer.register_forward_hook(lambda *_: at.__setitem__(0, OF_HEAD))
        amp = torch.autocast("cpu", torch.bfloat16) if precision == "amp-bf16" else nullcontext()
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        for shape in COUNTED_SHAPES:
            kept[:] = [{} for _ in range(len(layers) + 2)]
            at[0] = OF_EMBEDDING
            tokens = torch.zeros(shape, dtype=torch.long)
            with hooks, amp:
                _ = model(input_ids=tokens, labels=tokens).loss
            yield [sum(value.untyped_storage().nbytes() for value in one.values()) for one in kept]
