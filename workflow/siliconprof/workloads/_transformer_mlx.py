"""The decoder-only transformer in MLX; imported by `transformer_lm` when it builds a model.

Modules and parameters are named as in torch, so one set of weights is both models'.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from siliconprof.workloads._mlx_checkpoint import checkpoint


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, sizes: Any) -> None:
        super().__init__()
        d = sizes.n_embd
        self.n_head, self.rope_base = sizes.n_head, sizes.rope_base
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.output = nn.Linear(d, d, bias=False)

    def __call__(self, x: Any) -> Any:
        """x (B, T, d) -> (B, T, d)."""
        batch, length, d = x.shape
        dim = d // self.n_head

        def heads(part: Any) -> Any:
            return part.reshape(batch, length, self.n_head, dim).transpose(0, 2, 1, 3)

        def rotated(part: Any) -> Any:  # pairs are (i, i + dim / 2)
            return mx.fast.rope(
                part, dim, traditional=False, base=self.rope_base, scale=1.0, offset=0
            )

        q, k, v = (heads(part) for part in mx.split(self.qkv(x), 3, axis=-1))
        mixed = mx.fast.scaled_dot_product_attention(
            rotated(q), rotated(k), v, scale=dim**-0.5, mask="causal"
        )
        return self.output(mixed.transpose(0, 2, 1, 3).reshape(batch, length, d))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, d: int, d_ff: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d, d_ff, bias=False)
        self.up = nn.Linear(d, d_ff, bias=False)
        self.down = nn.Linear(d_ff, d, bias=False)

    def __call__(self, x: Any) -> Any:
        """x (B, T, d) -> (B, T, d)."""
        return self.down(nn.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Attention, then feed-forward, each added to what came in."""

    def __init__(self, sizes: Any) -> None:
        super().__init__()
        d = sizes.n_embd
        self.attention_norm = nn.RMSNorm(d, eps=sizes.norm_eps)
        self.attention = Attention(sizes)
        self.feed_forward_norm = nn.RMSNorm(d, eps=sizes.norm_eps)
        self.feed_forward = FeedForward(d, sizes.d_ff)

    def __call__(self, x: Any) -> Any:
        """x (B, T, d) -> (B, T, d)."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Model(nn.Module):
    """Token ids to logits; the workload has its sizes."""

    def __init__(self, sizes: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocab_size, sizes.n_embd)
        self.layers = [Layer(sizes) for _ in range(sizes.n_layer)]
        self.norm = nn.RMSNorm(sizes.n_embd, eps=sizes.norm_eps)
        self.head = nn.Linear(sizes.n_embd, sizes.vocab_size, bias=False)
        if sizes.parameters["gradient_checkpointing"]:
            checkpoint(self.layers)

    def __call__(self, input_ids: Any) -> Any:
        """input_ids (B, T) -> logits (B, T, V)."""
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))
