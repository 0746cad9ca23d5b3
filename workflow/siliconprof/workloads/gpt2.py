"""GPT-2 as a language model, in torch (transformers) and MLX (mlx-lm), with equal weights.

Both frameworks start from the same random weights, drawn by numpy as GPT-2's configuration says
(normal, standard deviation 0.02, residual projections scaled by 1/sqrt(2 n_layer)), and read the
same batches, so their losses can be compared step by step. Dropout is 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from siliconprof.workloads.base import TrainingWorkload

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


class Plugin(TrainingWorkload):
    """gpt2"""

    frameworks = ("torch", "mlx")
    PARAMETERS = {
        "size": {
            "type": "string",
            "enum": list(SIZES),
            "description": "model size; small to xl are OpenAI's, nano to mini are ours",
        },
        "batch_size": {
            "type": "integer",
            "minimum": 1,
            "description": "sequences per training step",
        },
        "seq_len": {
            "type": "integer",
            "minimum": 2,
            "maximum": 1024,
            "default": 128,
            "description": "tokens per sequence",
        },
        "learning_rate": {
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 0.001,
            "description": "AdamW's learning rate, constant",
        },
        "vocab_size": {
            "type": ["integer", "null"],
            "minimum": 256,
            "default": None,
            "description": "rows of the embedding; null = the size's own, or that of the data",
        },
    }
    REQUIRED = ("size", "batch_size")

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        n_layer, n_embd, n_head, vocab_size, n_positions = SIZES[parameters["size"]]
        self.n_layer, self.n_embd, self.n_head = n_layer, n_embd, n_head
        self.n_positions = n_positions
        self.vocab_size = int(
            parameters["vocab_size"] or vocab_size or parameters["dataset_vocab_size"]
        )
        self.batch_size = int(parameters["batch_size"])
        self.seq_len = int(parameters["seq_len"])

    @classmethod
    def packages(cls, framework: str) -> tuple[str, ...]:
        """See `Workload.packages`."""
        return {"torch": ("transformers", "numpy"), "mlx": ("mlx-lm", "numpy")}[framework]

    @classmethod
    def problems(
        cls, parameters: Mapping[str, Any], dataset: Mapping[str, Any] | None
    ) -> list[str]:
        """See `Workload.problems`."""
        if dataset is None:
            return ["dataset: is missing; GPT-2 trains on a text data set"]
        size = parameters.get("size")
        known = SIZES.get(size) if isinstance(size, str) else None
        own = parameters.get("vocab_size") or (known and known[3])
        if isinstance(own, int) and own < dataset["vocab_size"]:
            return [
                f"vocab_size: is {own}; the data set has {dataset['vocab_size']} tokens, "
                "expected at least as many"
            ]
        return []

    # -- how much work ---------------------------------------------------------------------

    def n_parameters(self) -> int:
        """See `TrainingWorkload.n_parameters`; the output head shares the token embedding."""
        d = self.n_embd
        block = 12 * d * d + 13 * d  # attention 4d²+4d, feed-forward 8d²+5d, two norms 4d
        return (self.vocab_size + self.n_positions) * d + self.n_layer * block + 2 * d

    def tokens_per_step(self) -> int:
        """See `TrainingWorkload.tokens_per_step`."""
        return self.batch_size * self.seq_len

    def flops_per_step(self) -> tuple[float, str]:
        """See `TrainingWorkload.flops_per_step`.

        6 operations per token and multiplied parameter, plus 12 n_layer n_embd seq_len for
        attention scores and values (Chowdhery et al. 2022, PaLM, appendix B). Positions are
        looked up, not multiplied. Causal masking is not subtracted, which overstates attention
        by up to a factor of two.
        """
        multiplied = self.n_parameters() - self.n_positions * self.n_embd
        per_token = 6 * multiplied + 12 * self.n_layer * self.n_embd * self.seq_len
        source = "6N + 12 n_layer n_embd seq_len per token (PaLM, arXiv:2204.02311, appendix B)"
        return float(per_token * self.tokens_per_step()), source

    def memory_bytes(self, precision: str) -> dict[str, int]:
        """See `Workload.memory_bytes`.

        16 bytes a parameter for fp32 or AMP with AdamW (Rajbhandari et al. 2020, ZeRO,
        section 3.1), 8 for pure 16-bit. Activations per layer: 34 B T d + 5 n_head B T² for
        16-bit values (Korthikanti et al. 2022, equation 2), twice that in fp32, and the logits
        three times in fp32.
        """
        n = self.n_parameters()
        width = 2 if precision in ("fp16", "bf16") else 4
        tokens = self.tokens_per_step()
        layer = tokens * (34 * self.n_embd + 5 * self.n_head * self.seq_len)
        scale = 1 if "16" in precision else 2
        return {
            "weights": n * width,
            "gradients": n * width,
            "optimizer": 2 * n * width,
            "activations": self.n_layer * layer * scale + 3 * 4 * tokens * self.vocab_size,
        }

    # -- weights ---------------------------------------------------------------------------

    def initial_weights(self, seed: int) -> Iterator[tuple[str, Any]]:
        """(name in transformers' state, float32 array) of every tensor; the same everywhere."""
        import numpy as np

        generator = np.random.Generator(np.random.PCG64(seed))
        d = self.n_embd
        residual = 0.02 / math.sqrt(2 * self.n_layer)

        def normal(shape: tuple[int, ...], deviation: float) -> Any:
            return generator.standard_normal(shape, dtype=np.float32) * np.float32(deviation)

        def norm(name: str) -> Iterator[tuple[str, Any]]:
            yield f"{name}.weight", np.ones(d, np.float32)
            yield f"{name}.bias", np.zeros(d, np.float32)

        def linear(name: str, m: int, n: int, deviation: float) -> Iterator[tuple[str, Any]]:
            yield f"{name}.weight", normal((m, n), deviation)  # transformers' Conv1D: (in, out)
            yield f"{name}.bias", np.zeros(n, np.float32)

        yield "wte.weight", normal((self.vocab_size, d), 0.02)
        yield "wpe.weight", normal((self.n_positions, d), 0.02)
        for layer in range(self.n_layer):
            block = f"h.{layer}"
            yield from norm(f"{block}.ln_1")
            yield from linear(f"{block}.attn.c_attn", d, 3 * d, 0.02)
            yield from linear(f"{block}.attn.c_proj", d, d, residual)
            yield from norm(f"{block}.ln_2")
            yield from linear(f"{block}.mlp.c_fc", d, 4 * d, 0.02)
            yield from linear(f"{block}.mlp.c_proj", 4 * d, d, residual)
        yield from norm("ln_f")

    # -- torch -----------------------------------------------------------------------------

    def torch_model(self, seed: int) -> Any:
        """transformers' GPT2LMHeadModel with our initial weights, fp32, on the CPU."""
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=self.vocab_size,
            n_positions=self.n_positions,
            n_embd=self.n_embd,
            n_layer=self.n_layer,
            n_head=self.n_head,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
        model = GPT2LMHeadModel(config)
        weights = {name: torch.from_numpy(array) for name, array in self.initial_weights(seed)}
        model.transformer.load_state_dict(weights)
        model.tie_weights()
        return model

    @staticmethod
    def torch_loss(model: Any, tokens: Any) -> Any:
        """Mean cross-entropy of the next token; tokens (B, T)."""
        return model(input_ids=tokens, labels=tokens).loss

    # -- MLX -------------------------------------------------------------------------------

    def mlx_model(self, seed: int) -> Any:
        """mlx-lm's GPT-2 with the same initial weights, fp32."""
        import mlx.core as mx
        from mlx_lm.models import gpt2

        model = gpt2.Model(
            gpt2.ModelArgs(
                model_type="gpt2",
                n_ctx=self.n_positions,
                n_embd=self.n_embd,
                n_head=self.n_head,
                n_layer=self.n_layer,
                n_positions=self.n_positions,
                layer_norm_epsilon=1e-5,
                vocab_size=self.vocab_size,
            )
        )
        weights = {name: mx.array(array) for name, array in self.initial_weights(seed)}
        model.load_weights(list(model.sanitize(weights).items()))
        return model

    @staticmethod
    def mlx_output(model: Any, tokens: Any) -> Any:
        """Logits of shape (B, T, V) in the dtype that the model computes in; tokens (B, T)."""
        return model(tokens)

    @classmethod
    def mlx_loss(cls, model: Any, tokens: Any) -> Any:
        """Mean cross-entropy of the next token in fp32; tokens (B, T)."""
        import mlx.core as mx
        import mlx.nn as nn

        logits = cls.mlx_output(model, tokens)[:, :-1].astype(mx.float32)  # (B, T-1, V)
        return nn.losses.cross_entropy(logits, tokens[:, 1:], reduction="mean")
