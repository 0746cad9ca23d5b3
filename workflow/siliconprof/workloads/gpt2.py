"""GPT-2 as a language model, in torch (transformers) and MLX (mlx-lm), with equal weights.

Both frameworks read the same batches, so their losses can be compared step by step. Dropout is 0.
Random weights are drawn as GPT-2's configuration says. The paper fine-tunes GPT-2 "on the IMDB
dataset" and does not say for what: here that is language modelling on the reviews, which trains
every parameter that the paper counts. LoRA (Hu et al. 2021, arXiv:2106.09685) adapts the
attention's input projection `c_attn`, as peft does by default; the adapters too start equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from siliconprof.declarations import Parameter, integer, number
from siliconprof.memory import footprint
from siliconprof.workloads._mlx_checkpoint import checkpoint
from siliconprof.workloads.base import (
    TRAINING_PARAMETERS,
    UNLABELLED,
    Batch,
    TrainingWorkload,
)

# n_layer, n_embd, n_head, vocab_size (None: that of the data), n_positions
SIZES: dict[str, tuple[int, int, int, int | None, int]] = {
    "nano": (2, 64, 2, None, 1024),
    "tiny": (2, 128, 4, None, 1024),
    "mini": (4, 256, 4, None, 1024),
    "small": (12, 768, 12, 50257, 1024),
    "medium": (24, 1024, 16, 50257, 1024),
    "large": (36, 1280, 20, 50257, 1024),
    "xl": (48, 1600, 25, 50257, 1024),
}
# Framework -> modules that adapters need.
LORA_MODULES = {"torch": ("peft",), "mlx": ("mlx_lm.tuner.lora",)}


class Plugin(TrainingWorkload):
    """gpt2"""

    family = called = "GPT-2"
    vocab_sizes = {size: shape[3] for size, shape in SIZES.items()}
    LIBRARIES = {"torch": ("transformers", "peft", "numpy"), "mlx": ("mlx-lm", "numpy")}
    MODULES = {
        "torch": ("transformers.modeling_utils", "transformers.models.gpt2.modeling_gpt2"),
        "mlx": ("mlx_lm.models.gpt2",),
    }
    BARE = ("mlx_lm", "mlx_lm.tuner")
    into_residual = ("c_proj.weight",)
    POINT = {
        **TrainingWorkload.POINT,
        "n_trainable_parameters": Parameter("integer", label="trainable parameters", derived=True),
        "tokens_per_step": Parameter("integer", label="tokens in a step", derived=True),
        "seq_len": Parameter("integer", label="sequence length", identifies=False),
        "vocab_size": Parameter("integer", label="vocabulary", identifies=False, derived=True),
    }
    PARAMETERS = {
        **TRAINING_PARAMETERS,
        "size": {
            "type": "string",
            "enum": list(SIZES),
            "description": "model size; small to xl are OpenAI's, nano to mini are ours",
        },
        "seq_len": integer(128, "tokens per sequence", minimum=2, maximum=1024),
        "lora_rank": integer(
            0, "rank of the LoRA adapters on `c_attn`; 0 = train every parameter", minimum=0
        ),
        "lora_alpha": number(
            16, "LoRA's alpha: the adapters' output is scaled by alpha / rank", exclusiveMinimum=0
        ),
        "vocab_size": integer(
            None, "rows of the embedding; null = the size's own, or that of the data", minimum=256
        ),
    }

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.n_layer, self.n_embd, self.n_head, own, self.n_positions = SIZES[parameters["size"]]
        self.vocab_size = int(parameters["vocab_size"] or own or parameters["dataset_vocab_size"])
        self.seq_len = int(parameters["seq_len"])
        self.lora_rank = int(parameters["lora_rank"])

    @property
    def sizes(self) -> dict[str, int]:
        """By transformers' names, which are mlx-lm's too."""
        names = ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size")
        return {name: getattr(self, name) for name in names}

    def packages(self, framework: str) -> tuple[str, ...]:
        libraries = super().packages(framework)
        return libraries if self.lora_rank else tuple(n for n in libraries if n != "peft")

    # -- how much work ---------------------------------------------------------------------

    def n_trainable_parameters(self) -> int:
        """Under LoRA: A (r, d) and B (3d, r) a layer."""
        if not self.lora_rank:
            return self.n_parameters()
        return self.n_layer * self.lora_rank * (self.n_embd + 3 * self.n_embd)

    def tokens_per_step(self) -> int:
        return self.batch_size * self.seq_len

    def flops_per_step(self) -> tuple[float, str]:
        """6 operations per token and multiplied parameter, plus 12 n_layer n_embd seq_len for
        attention scores and values (Chowdhery et al. 2022, PaLM, appendix B). Positions are
        looked up, not multiplied. Causal masking is not subtracted, which overstates attention
        by up to a factor of two. A frozen parameter has no gradient of its own, which saves 2 of
        its 6; the adapters' parameters pay 6 as well.
        """
        multiplied = self.n_parameters() - self.n_positions * self.n_embd
        attention = 12 * self.n_layer * self.n_embd * self.seq_len
        if self.lora_rank:
            per_token = 4 * multiplied + 6 * self.n_trainable_parameters() + attention
            formula = "4N + 6 N_lora + 12 n_layer n_embd seq_len per token"
        else:
            per_token = 6 * multiplied + attention
            formula = "6N + 12 n_layer n_embd seq_len per token"
        source = f"{formula} (PaLM, arXiv:2204.02311, appendix B)"
        return float(per_token * self.tokens_per_step()), source

    def largest_trained(self) -> int:
        return 3 * self.n_embd * self.lora_rank if self.lora_rank else super().largest_trained()

    def stages(self, estimator: footprint.MemoryEstimator) -> list[footprint.Stage]:
        """Embedding, layers, loss; frozen layers keep no input."""
        d, ff, heads = self.n_embd, 4 * self.n_embd, self.n_head
        batch, length, tokens = self.batch_size, self.seq_len, self.tokens_per_step()
        full = not self.lora_rank
        adapter = 4 * d * self.lora_rank
        own = 12 * d * d + 13 * d  # attention 4d²+4d, feed-forward 8d²+5d, two norms 4d
        saved = (
            2 * estimator.norm(tokens, d, full)
            + estimator.linear(tokens, d)  # c_attn's input, which its adapter needs as well
            + estimator.linear(tokens, self.lora_rank)
            + estimator.attention(batch, length, length, d, heads, joint=True, trained=full)
            + estimator.linear(tokens, d, full)
            + estimator.gelu(tokens, ff, tanh=True)
            + estimator.linear(tokens, ff, full)
        )
        scores = batch * heads * length * length
        layer = estimator.layer(
            saved, tokens, d, ff, scores, own + adapter, own if full else adapter
        )
        table = self.vocab_size * d
        embedding = footprint.Stage(
            saved_bytes=0,
            # Its gradient comes from both ends of the model; the second lies beside the first.
            work_bytes=table * estimator.master if full else 0,
            weights=table + self.n_positions * d,
            trained=self.n_positions * d if full else 0,
        )
        last = estimator.norm(tokens, d, full) + estimator.linear(tokens, d, full)
        head = estimator.head(last, tokens, d, self.vocab_size, full, fp32_loss=True)
        return [embedding, *[layer] * self.n_layer, head]

    # -- data ------------------------------------------------------------------------------

    def batches(self, data: Any, seed: int) -> Iterator[Batch]:
        """input_ids and labels, both int32 of shape (B, T).

        Nothing predicts the first token, so its label is left out. The Trainer divides by the
        number of labels before the shift: left in, it would make the loss (T - 1) / T small.
        """
        for tokens in data.batches(self.batch_size, self.seq_len, seed):
            labels = tokens.copy()
            labels[:, 0] = UNLABELLED
            yield {"input_ids": tokens, "labels": labels}

    # -- weights ---------------------------------------------------------------------------

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names of transformers' state dict; the output head shares the token embedding."""
        d = self.n_embd
        layer = {
            "ln_1": (d,),
            "attn.c_attn": (d, 3 * d),  # transformers' Conv1D: (in, out)
            "attn.c_proj": (d, d),
            "ln_2": (d,),
            "mlp.c_fc": (d, 4 * d),
            "mlp.c_proj": (4 * d, d),
        }
        names = {
            f"h.{i}.{name}": shape for i in range(self.n_layer) for name, shape in layer.items()
        }
        shapes: dict[str, tuple[int, ...]] = {"wte.weight": (self.vocab_size, d)}
        shapes["wpe.weight"] = (self.n_positions, d)
        for name, shape in (names | {"ln_f": (d,)}).items():
            shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[-1:]}
        return shapes

    def initial_adapters(self, seed: int) -> list[Any]:
        """LoRA's A of every layer, float32 (rank, n_embd), uniform in ±1/sqrt(n_embd); B is 0."""
        import numpy as np

        generator = np.random.Generator(np.random.PCG64([seed, 1]))
        bound = 1 / math.sqrt(self.n_embd)
        shape = (self.lora_rank, self.n_embd)
        return [
            ((2 * generator.random(shape, dtype=np.float32) - 1) * np.float32(bound))
            for _ in range(self.n_layer)
        ]

    def checkpoint_config(self) -> dict[str, Any]:
        shape = {name: self.sizes[name] for name in ("n_layer", "n_head", "n_embd")}
        # as transformers' GPT2Config has them
        functions = {"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
        attention = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}
        return shape | functions | attention

    # -- torch -----------------------------------------------------------------------------

    def modules(self, framework: str) -> tuple[str, ...]:
        of_adapters = LORA_MODULES.get(framework, ()) if self.lora_rank else ()
        return (*super().modules(framework), *of_adapters)

    def torch_model(self, seed: int) -> Any:
        """transformers' GPT2LMHeadModel, under LoRA inside a peft model."""
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel
        from transformers.initialization import no_init_weights

        no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        tokens = {"bos_token_id": 0, "eos_token_id": 0}
        config = GPT2Config(**self.sizes, **no_dropout, **tokens, use_cache=False)
        with no_init_weights():  # all are ours
            model = GPT2LMHeadModel(config)
        model.loss_type = "ForCausalLM"  # what it falls back to, after a warning
        weights = {name: torch.from_numpy(array) for name, array in self.initial_weights(seed)}
        model.transformer.load_state_dict(weights)
        model.tie_weights()
        self.checkpointed(model)
        return self._torch_adapters(model, seed) if self.lora_rank else model

    def _torch_adapters(self, model: Any, seed: int) -> Any:
        """The model with LoRA adapters; everything else is frozen."""
        import torch
        from peft import LoraConfig, get_peft_model

        adapted = get_peft_model(
            model,
            LoraConfig(
                task_type="CAUSAL_LM",
                r=self.lora_rank,
                lora_alpha=self.parameters["lora_alpha"],
                lora_dropout=0.0,
                target_modules=["c_attn"],
                fan_in_fan_out=True,
            ),
        )
        blocks = adapted.base_model.model.transformer.h
        with torch.no_grad():
            for block, values in zip(blocks, self.initial_adapters(seed), strict=True):
                block.attn.c_attn.lora_A["default"].weight.copy_(torch.from_numpy(values))
        return adapted

    # -- MLX -------------------------------------------------------------------------------

    def mlx_model(self, seed: int) -> Any:
        """mlx-lm's GPT-2, under LoRA with mlx-lm's adapters."""
        import mlx.core as mx
        from mlx_lm.models import gpt2

        own = {"model_type": "gpt2", "n_ctx": self.n_positions, "layer_norm_epsilon": 1e-5}
        model = gpt2.Model(gpt2.ModelArgs(**own, **self.sizes))
        weights = {name: mx.array(array) for name, array in self.initial_weights(seed)}
        model.load_weights(list(model.sanitize(weights).items()))
        if self.lora_rank:
            self._mlx_adapters(model, seed)
        if self.parameters["gradient_checkpointing"]:
            checkpoint(model.model.h)
        return model

    def _mlx_adapters(self, model: Any, seed: int) -> None:
        """Freeze the model and give it LoRA adapters in place."""
        import mlx.core as mx
        from mlx_lm.tuner.lora import LoRALinear

        model.freeze()
        scale = self.parameters["lora_alpha"] / self.lora_rank
        for block, values in zip(model.model.h, self.initial_adapters(seed), strict=True):
            adapted = LoRALinear.from_base(
                block.attn.c_attn, r=self.lora_rank, dropout=0.0, scale=scale
            )
            adapted.lora_a = mx.array(values.T)  # (n_embd, rank)
            block.attn.c_attn = adapted

    def mlx_loss(self, model: Any, batch: Mapping[str, Any]) -> Any:
        """Mean cross-entropy of the next token in fp32."""
        import mlx.core as mx
        import mlx.nn as nn

        logits = self.mlx_output(model, batch)[:, :-1].astype(mx.float32)  # (B, T-1, V)
        return nn.losses.cross_entropy(logits, batch["labels"][:, 1:], reduction="mean")
