"""Any causal language model of transformers, in torch and MLX (mlx-lm), with equal weights.

It is named by the hub or a folder, of which `config.json` is read, or stands inline. What is known of
it without building it, such as its parameters, is in a file that a rule makes, see `model_facts`. Both
frameworks read the same batches. Dropout is 0. LoRA (Hu et al. 2021, arXiv:2106.09685) adapts the
linear layers but the head; the adapters too start equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Annotated, Any, Literal

from siliconprof.datasets import model_config, model_facts
from siliconprof.datasets.model_facts import Kept, ModelFacts
from siliconprof.datasets.weights import Checkpoint, Weights
from siliconprof.declarations import Parameter, Settings
from siliconprof.errors import UserError
from siliconprof.memory import footprint
from siliconprof.parameters import Limits, Positive, Several, Whole
from siliconprof.workloads._mlx_checkpoint import checkpoint
from siliconprof.workloads._training import (
    UNLABELLED,
    Batch,
    MlxImplementation,
    StepParameters,
    TrainingWorkload,
    TransformersImplementation,
)

# Parameter of a cell -> the file of what is known of its model; the config names the model alone.
MODEL_FILE_KEY = "model_file"


class CausalLM(TrainingWorkload):
    """A causal language model of which a plug-in says what is known."""

    LIBRARIES = {"torch": ("transformers", "peft", "numpy"), "mlx": ("mlx-lm", "numpy")}
    POINT = {
        **TrainingWorkload.POINT,
        "n_trainable_parameters": Parameter("integer", label="trainable parameters", derived=True),
        "tokens_per_step": Parameter("integer", label="tokens in a step", derived=True),
        "seq_len": Parameter("integer", label="sequence length", identifies=False),
    }
    known: ModelFacts | None

    class Parameters(StepParameters):
        seq_len: Annotated[int, Limits(ge=2), "tokens per sequence"] = 128
        lora_rank: Annotated[Whole, "rank of the LoRA adapters; 0 = train every parameter"] = 0
        lora_alpha: Annotated[
            Positive, "LoRA's alpha: the adapters' output is scaled by alpha / rank"
        ] = 16

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.torch, self.mlx = TorchCausalLM(self), MlxCausalLM(self)
        self.seq_len = int(parameters["seq_len"])
        self.lora_rank = int(parameters["lora_rank"])

    @property
    def facts(self) -> ModelFacts:
        """What is known of the model.

        Raises:
            UserError: its file is not made yet.
        """
        if self.known is None:
            path = self.parameters.get(MODEL_FILE_KEY)
            raise UserError(f"{path}: not made yet; `snakemake --cores 1 {path}` makes it")
        return self.known

    def supports(self, framework: str, precision: str) -> str | None:
        if reason := super().supports(framework, precision) or self.known is None:
            return reason if isinstance(reason, str) else None
        facts, n_tokens = self.facts, self.parameters.get("dataset_vocab_size", 0)
        if missing := {"mlx": facts.mlx_missing}.get(framework):
            return missing
        if self.seq_len > facts.n_positions:
            return f"seq_len is {self.seq_len}, the model has {facts.n_positions} positions"
        if n_tokens > facts.vocab_size:
            return f"the model has {facts.vocab_size} tokens, the data set {n_tokens}"
        return None

    def packages(self, framework: str) -> tuple[str, ...]:
        libraries = super().packages(framework)
        return libraries if self.lora_rank else tuple(n for n in libraries if n != "peft")

    def tokens_per_step(self) -> int:
        return self.batch_size * self.seq_len

    def flops_per_step(self) -> tuple[float, str]:
        """6 operations per token and multiplied parameter, of a mixture those of the experts that a
        token passes, plus 12 n_layer n_head head_dim seq_len for attention scores and values (Chowdhery
        et al. 2022, PaLM, appendix B). Causal masking is not subtracted, which overstates attention by
        up to a factor of two. A frozen parameter has no gradient of its own, which saves 2 of its 6;
        the adapters' parameters pay 6 as well.
        """
        facts = self.facts
        multiplied = self.weights.n_parameters() - facts.looked_up
        if facts.n_experts:
            idle = 1 - facts.n_experts_used / facts.n_experts
            multiplied -= round(idle * facts.expert_parameters)
        attention = 12 * facts.n_layer * facts.n_head * facts.head_dim * self.seq_len
        formula, per_token = "6N", 6 * multiplied + attention
        if self.lora_rank:
            per_token = 4 * multiplied + 6 * self.weights.n_trainable_parameters() + attention
            formula = "4N + 6 N_lora"
        of_experts = "; N with the experts that a token passes" if facts.n_experts else ""
        source = (
            f"{formula} + 12 n_layer n_head head_dim seq_len per token (PaLM, arXiv:2204.02311, "
            f"appendix B){of_experts}"
        )
        return float(per_token * self.tokens_per_step()), source

    def stages(self, estimator: footprint.MemoryEstimator) -> list[footprint.Stage]:
        """Embedding, layers, loss; torch keeps what was counted, MLX and mixtures by formula."""
        facts = self.known
        if facts is None:
            return []
        (_, first), *layers, (_, last) = facts.stages
        tokens, d, full = self.tokens_per_step(), facts.n_embd, not self.lora_rank
        table = facts.vocab_size * d
        shared = facts.is_tied and full  # its gradient comes from both ends of the model
        embedding = footprint.Stage(
            self._counted(first.kept, estimator) or 0,
            work_bytes=table * estimator.master if shared else 0,
            weights=first.weights,
            trained=facts.looked_up if full else 0,
        )
        stages = [embedding]
        for count, layer in layers:
            own = layer.weights + layer.adapters
            trained = layer.weights if full else layer.adapters
            counted = self._counted(layer.kept, estimator)
            saved = self._layer_bytes(estimator) if counted is None else counted
            scores = self.batch_size * facts.n_head * self.seq_len**2
            if counted is not None and estimator.profile.keeps_scores:
                saved += scores * (4 if estimator.profile.scores_fp32 else estimator.width)
            made = estimator.layer(
                saved, tokens, d, self._d_ff, scores, own, trained, facts.is_gated
            )
            stages += [made if counted is None else replace(made, cast=0)] * count
        before = self._head_bytes(estimator)
        head = estimator.head(before, tokens, d, facts.vocab_size, full, True, facts.is_tied)
        head = replace(
            head,
            weights=last.weights,
            trained=last.weights + (table if facts.is_tied else 0) if full else 0,
        )
        counted = self._counted(last.kept, estimator)
        return [*stages, head if counted is None else replace(head, saved_bytes=counted, cast=0)]

    @property
    def _d_ff(self) -> int:
        """Channels of the feed-forward that a token passes."""
        return self.facts.d_ff * max(1, self.facts.n_experts_used)

    def _counted(
        self, kept: Mapping[str, Kept] | None, estimator: footprint.MemoryEstimator
    ) -> float | None:
        """Bytes that torch keeps of a stage; None where that is not counted, or not torch's."""
        if kept is None or not estimator.profile.keeps_norm_input:
            return None
        narrow = "bf16" if estimator.width == 2 else "fp32"
        a, b, c, d = kept["amp-bf16" if estimator.amp else narrow]
        batch, length = self.batch_size, self.seq_len
        return a * batch * length + b * batch * length**2 + c * length + d

    def _head_bytes(self, estimator: footprint.MemoryEstimator) -> float:
        """What the last norm and the head keep by formula, logits left out."""
        tokens, d = self.tokens_per_step(), self.facts.n_embd
        return estimator.rms_norm(tokens, d) + estimator.linear(tokens, d, not self.lora_rank)

    def _layer_bytes(self, estimator: footprint.MemoryEstimator) -> float:
        """What a layer keeps by the formulas for its operations."""
        facts, full, ff = self.facts, not self.lora_rank, self._d_ff
        batch, length, tokens = self.batch_size, self.seq_len, self.tokens_per_step()
        d, inner = facts.n_embd, facts.n_head * facts.head_dim
        saved = facts.norms * estimator.rms_norm(tokens, d)
        saved += estimator.linear(tokens, d, projections=3)
        heads = inner + facts.n_kv_head * facts.head_dim
        if facts.head_norms:
            saved += estimator.rms_norm(tokens, heads)
        saved += estimator.rotary(batch, length, inner, facts.n_head)
        saved += estimator.attention(batch, length, length, inner, facts.n_head, False, full)
        fewer = (
            facts.n_head - facts.n_kv_head
        ) * facts.head_dim  # keys and values that heads share
        saved -= 2 * tokens * fewer * estimator.width
        saved += estimator.linear(tokens, d, projections=2 if facts.is_gated else 1)
        if facts.is_gated:
            saved += estimator.swiglu(tokens, ff)
        else:
            saved += estimator.gelu(tokens, ff, tanh=False)
        return saved + estimator.linear(tokens, ff, full or bool(facts.adapters))

    def batches(self, data: Any, seed: int) -> Iterator[Batch]:
        """input_ids and labels, both int32 of shape (B, T); nothing predicts the first token."""
        for tokens in data.batches(self.batch_size, self.seq_len, seed):
            labels = tokens.copy()
            labels[:, 0] = UNLABELLED
            yield {"input_ids": tokens, "labels": labels}

    @cached_property
    def weights(self) -> Weights:
        """The hub's names; tied weights once. An adapter is two matrices."""
        facts, rank = self.facts, self.lora_rank
        sides = (side for sides in facts.adapters.values() for side in sides)
        sizes = [rank * side for side in sides] if rank else None
        pretrained = self.parameters["weights"] == "pretrained"
        return Weights(facts.weights, pretrained=pretrained, adapter_sizes=sizes)

    def initial_adapters(self, seed: int) -> dict[str, Any]:
        """LoRA's A of every layer that is adapted, float32 (rank, inputs), uniform in ±1/sqrt(inputs)."""
        import numpy as np

        generator = np.random.Generator(np.random.PCG64([seed, 1]))
        return {
            name: (2 * generator.random((self.lora_rank, inputs), dtype=np.float32) - 1)
            * np.float32(1 / math.sqrt(inputs))
            for name, (inputs, _) in self.facts.adapters.items()
        }


class TorchCausalLM(TransformersImplementation):
    """transformers' model, under LoRA inside a peft model."""

    imports = ("transformers.modeling_utils", "transformers.models.auto.modeling_auto")

    def modules(self) -> tuple[str, ...]:
        own = self.workload
        of_model = (own.known.torch_module,) if own.known else ()
        return (*self.imports, *of_model, *(("peft",) if own.lora_rank else ()))

    def model(self, seed: int) -> Any:
        import torch

        from siliconprof.workloads import _causal_lm_torch

        own, initial = self.workload, self.workload.weights.initial(seed)
        model = self.checkpointed(_causal_lm_torch.loaded(own.facts, initial)).train()
        if not own.lora_rank:
            return model
        adapters, alpha = own.initial_adapters(seed), own.parameters["lora_alpha"]
        adapted = _causal_lm_torch.adapted(model, [*adapters], own.lora_rank, alpha)
        with torch.no_grad():
            for name, values in adapters.items():
                layer = adapted.base_model.model.get_submodule(name)
                layer.lora_A["default"].weight.copy_(torch.from_numpy(values))
        return adapted


class MlxCausalLM(MlxImplementation):
    """mlx-lm's model, under LoRA with mlx-lm's adapters."""

    bare = ("mlx_lm", "mlx_lm.tuner")

    def modules(self) -> tuple[str, ...]:
        own = self.workload
        of_model = (own.known.mlx_module,) if own.known and own.known.mlx_module else ()
        return (*of_model, *(("mlx_lm.tuner.lora",) if own.lora_rank else ()))

    def model(self, seed: int) -> Any:
        from siliconprof.workloads import _causal_lm_mlx

        own = self.workload
        model = _causal_lm_mlx.loaded(own.facts, own.weights.initial(seed))
        if own.lora_rank:
            adapters, alpha = own.initial_adapters(seed), own.parameters["lora_alpha"]
            _causal_lm_mlx.adapt(model, adapters, own.lora_rank, alpha)
        if own.parameters["gradient_checkpointing"]:
            checkpoint(model.layers)
        return model

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Any:
        """Mean cross-entropy of the next token in fp32."""
        import mlx.core as mx
        import mlx.nn as nn

        logits = self.output(model, batch)[:, :-1].astype(mx.float32)  # (B, T-1, V)
        return nn.losses.cross_entropy(logits, batch["labels"][:, 1:], reduction="mean")


class Plugin(CausalLM):
    """causal_lm"""

    family = "Your models"
    called = "a causal language model"

    class Parameters(CausalLM.Parameters):
        weights: Annotated[
            Literal["random", "pretrained"],
            "initial weights; speed does not depend on them and `random` needs no download but of "
            "config.json; `pretrained` reads those of `model`",
        ] = "random"
        model: Annotated[
            str | None,
            "hub id, with `@revision` if not of the main branch, or a folder with a config.json; of "
            "either that file alone is read, and with `weights: pretrained` the weights; a model's own "
            "code is never run",
        ] = None
        config: Annotated[
            dict[str, Any] | None,
            "in the place of `model`, what a config.json holds: `{model_type: llama, hidden_size: "
            "576, …}`; the rest is transformers' own",
        ] = None
        lora_targets: Annotated[
            Several[str] | None,
            "last names of the linear layers that get adapters, such as `q_proj`; null = all but the "
            "head, of a mixture of experts those of the attention",
        ] = None

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.known = model_facts.load(parameters.get(MODEL_FILE_KEY))

    @classmethod
    def model_spec(cls, parameters: Mapping[str, Any]) -> dict[str, Any] | None:
        spec = {key: parameters[key] for key in ("model", "config", "lora_rank", "lora_targets")}
        return spec if spec["lora_rank"] else {**spec, "lora_targets": None}

    @classmethod
    def problems(cls, parameters: Settings, dataset: Settings | None) -> list[str]:
        problems = [
            line.replace("weights_path", "model")
            for line in super().problems(
                {**parameters, "weights_path": parameters.get("model")}, dataset
            )
        ]
        model, config = parameters.get("model"), parameters.get("config")
        if bool(model) == bool(config):
            both = "both are set" if model else "neither is set"
            problems.append(f"model: {both}; expected a hub id or folder, or an inline `config`")
        try:
            if isinstance(config, Mapping):
                model_config.check(config, "config")
            elif isinstance(model, str) and model_config.is_local(model):
                model_config.read(model)
        except UserError as error:
            problems.append(f"model: {error}")
        return problems

    def smallest(self) -> TrainingWorkload:
        """Its first layer alone, one sample per step; the vocabulary stays."""
        own = type(self)({**self.parameters, "weights": "random", "batch_size": 1})
        facts = self.facts

        def stays(name: str) -> bool:
            return next((part for part in name.split(".") if part.isdigit()), "0") == "0"

        lists = {
            key: value[:1]
            for key, value in facts.config.items()
            if isinstance(value, list) and len(value) == facts.n_layer
        }
        depth = next(key for key in ("num_hidden_layers", "n_layer") if key in facts.config)
        (first, (_, layer), *_, last) = facts.stages
        own.known = replace(
            facts,
            n_layer=1,
            config={**facts.config, **lists, depth: 1},
            weights={name: shape for name, shape in facts.weights.items() if stays(name)},
            adapters={name: sizes for name, sizes in facts.adapters.items() if stays(name)},
            stages=(first, (1, layer), last),
        )
        return own

    @cached_property
    def weights(self) -> Weights:
        name, revision = self.facts.model, self.facts.revision
        checkpoint = partial(Checkpoint, self.parameters["model"], revision, key="model")
        more = {"model": name, "model_revision": revision}
        return replace(super().weights, checkpoint=checkpoint, more=more)
