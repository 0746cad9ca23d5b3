"""GPT-2 by the names of its sizes: models of `causal_lm` whose facts are known without a look at them.

Random weights are drawn as GPT-2's configuration says. The paper fine-tunes GPT-2 "on the IMDB
dataset" and does not say for what: here that is language modelling on the reviews, which trains
every parameter that the paper counts. LoRA adapts the attention's input projection `c_attn`, as peft
does by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Annotated, Any

from siliconprof.datasets.model_facts import ModelFacts, StageFacts
from siliconprof.datasets.weights import Checkpoint, Weights, drawn_weights
from siliconprof.declarations import Parameter
from siliconprof.memory import footprint
from siliconprof.parameters import Limits, Whole, one_of
from siliconprof.workloads._training import CheckpointParameters
from siliconprof.workloads.causal_lm import CausalLM

N_POSITIONS = 1024
# n_layer, n_embd, n_head, vocab_size (None: that of the data)
SIZES: dict[str, tuple[int, int, int, int | None]] = {
    "nano": (2, 64, 2, None),
    "tiny": (2, 128, 4, None),
    "mini": (4, 256, 4, None),
    "small": (12, 768, 12, 50257),
    "medium": (24, 1024, 16, 50257),
    "large": (36, 1280, 20, 50257),
    "xl": (48, 1600, 25, 50257),
}
FUNCTIONS = {  # as transformers' GPT2Config has them
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
}


class Plugin(CausalLM):
    """gpt2"""

    family = called = "GPT-2"
    vocab_sizes = {size: shape[3] for size, shape in SIZES.items()}
    POINT = {
        **CausalLM.POINT,
        "vocab_size": Parameter("integer", label="vocabulary", identifies=False, derived=True),
    }

    class Parameters(CausalLM.Parameters, CheckpointParameters):
        size: Annotated[
            str, one_of(SIZES), "model size; small to xl are OpenAI's, nano to mini are ours"
        ]
        seq_len: Annotated[int, Limits(ge=2, le=N_POSITIONS), "tokens per sequence"] = 128
        lora_rank: Annotated[
            Whole, "rank of the LoRA adapters on `c_attn`; 0 = train every parameter"
        ] = 0

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.n_layer, n_embd, n_head, own = SIZES[parameters["size"]]
        self.vocab_size = int(parameters["vocab_size"] or own or parameters["dataset_vocab_size"])
        self.known = facts(self.n_layer, n_embd, n_head, self.vocab_size, self.lora_rank)

    @cached_property
    def weights(self) -> Weights:
        draw = partial(drawn_weights, narrow=("c_proj.weight",), n_layer=self.n_layer)
        decisive = ("n_layer", "n_head", "n_embd", *FUNCTIONS)
        config = {name: self.facts.config[name] for name in decisive}
        checkpoint = partial(Checkpoint, self.parameters["weights_path"], config=config)
        return replace(super().weights, draw=draw, checkpoint=checkpoint)

    def _head_bytes(self, estimator: footprint.MemoryEstimator) -> float:
        tokens, d, full = self.tokens_per_step(), self.facts.n_embd, not self.lora_rank
        return estimator.norm(tokens, d, full) + estimator.linear(tokens, d, full)

    def _layer_bytes(self, estimator: footprint.MemoryEstimator) -> float:
        """Frozen layers keep no input but `c_attn`'s, which its adapter needs as well."""
        d, heads, ff, full = self.facts.n_embd, self.facts.n_head, self._d_ff, not self.lora_rank
        batch, length, tokens = self.batch_size, self.seq_len, self.tokens_per_step()
        return (
            2 * estimator.norm(tokens, d, full)
            + estimator.linear(tokens, d)
            + estimator.linear(tokens, self.lora_rank)
            + estimator.attention(batch, length, length, d, heads, joint=True, trained=full)
            + estimator.linear(tokens, d, full)
            + estimator.gelu(tokens, ff, tanh=True)
            + estimator.linear(tokens, ff, full)
        )


def facts(n_layer: int, n_embd: int, n_head: int, vocab_size: int, lora_rank: int) -> ModelFacts:
    """The facts that building such a model would yield, by arithmetic; saved values are left to formulas."""
    layer = {
        "ln_1": (n_embd,),
        "attn.c_attn": (n_embd, 3 * n_embd),  # transformers' Conv1D: (in, out)
        "attn.c_proj": (n_embd, n_embd),
        "ln_2": (n_embd,),
        "mlp.c_fc": (n_embd, 4 * n_embd),
        "mlp.c_proj": (4 * n_embd, n_embd),
    }
    names = {f"h.{i}.{name}": shape for i in range(n_layer) for name, shape in layer.items()}
    weights: dict[str, tuple[int, ...]] = {"wte.weight": (vocab_size, n_embd)}
    weights["wpe.weight"] = (N_POSITIONS, n_embd)
    for name, shape in (names | {"ln_f": (n_embd,)}).items():
        weights |= {f"{name}.weight": shape, f"{name}.bias": shape[-1:]}
    # attention 4d² + 4d, feed-forward 8d² + 5d, two norms 4d
    of_layer = StageFacts(12 * n_embd**2 + 13 * n_embd, 4 * n_embd * lora_rank, None)
    return ModelFacts(
        config={
            "model_type": "gpt2",
            "n_layer": n_layer,
            "n_embd": n_embd,
            "n_head": n_head,
            "vocab_size": vocab_size,
            "n_positions": N_POSITIONS,
            "bos_token_id": 0,
            "eos_token_id": 0,
            **FUNCTIONS,
        },
        torch_module="transformers.models.gpt2.modeling_gpt2",
        mlx_module="mlx_lm.models.gpt2",
        weights=weights,
        looked_up=N_POSITIONS * n_embd,
        adapters={f"transformer.h.{i}.attn.c_attn": (n_embd, 3 * n_embd) for i in range(n_layer)},
        stages=(
            (1, StageFacts((vocab_size + N_POSITIONS) * n_embd, 0, None)),
            (n_layer, of_layer),
            (1, StageFacts(2 * n_embd, 0, None)),
        ),
        norms=2,
        is_tied=True,
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=n_head,
        n_kv_head=n_head,
        head_dim=n_embd // n_head,
        d_ff=4 * n_embd,
        vocab_size=vocab_size,
        n_positions=N_POSITIONS,
    )
