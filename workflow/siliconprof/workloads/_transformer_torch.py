"""The decoder-only transformer in torch; imported by `transformer_lm` when it builds a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def rotation(length: int, dim: int, base: float, device: Any) -> tuple[Any, Any]:
    """Cosine and sine of each position's angles, fp32 (T, 1, dim / 2); arXiv:2104.09864."""
    pairs = torch.arange(dim // 2, device=device, dtype=torch.float32)
    positions = torch.arange(length, device=device, dtype=torch.float32)
    angles = positions[:, None, None] * base ** (-2 * pairs / dim)
    return angles.cos(), angles.sin()


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Turn each pair of channels (i, i + dim / 2) of x (B, T, H, dim) by its position's angle."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, sizes: Any) -> None:
        super().__init__()
        d = sizes.n_embd
        self.n_head = sizes.n_head
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.output = nn.Linear(d, d, bias=False)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        """x (B, T, d) -> (B, T, d)."""
        batch, length, d = x.shape
        joint = self.qkv(x).view(batch, length, 3, self.n_head, d // self.n_head)
        q, k, v = joint.unbind(2)  # each (B, T, H, dim)
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
        heads = (rotate(q, cos, sin), rotate(k, cos, sin), v)
        # In this order in memory, the result's heads lie beside each other, and no copy is made.
        q, k, v = (part.transpose(1, 2) for part in heads)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, d))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, d: int, d_ff: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d, d_ff, bias=False)
        self.up = nn.Linear(d, d_ff, bias=False)
        self.down = nn.Linear(d_ff, d, bias=False)

    def forward(self, x: Any) -> Any:
        """x (B, T, d) -> (B, T, d)."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Attention, then feed-forward, each added to what came in."""

    def __init__(self, sizes: Any) -> None:
        super().__init__()
        d = sizes.n_embd
        self.attention_norm = nn.RMSNorm(d, eps=sizes.norm_eps)
        self.attention = Attention(sizes)
        self.feed_forward_norm = nn.RMSNorm(d, eps=sizes.norm_eps)
        self.feed_forward = FeedForward(d, sizes.d_ff)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        """x (B, T, d) -> (B, T, d)."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Model(nn.Module):
    """Token ids to logits; the workload has its sizes."""

    def __init__(self, sizes: Any) -> None:
        super().__init__()
        self.head_dim, self.rope_base = sizes.head_dim, sizes.rope_base
        self.checkpointing = sizes.parameters["gradient_checkpointing"]
        self.embedding = nn.Embedding(sizes.vocab_size, sizes.n_embd)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.n_layer))
        self.norm = nn.RMSNorm(sizes.n_embd, eps=sizes.norm_eps)
        self.head = nn.Linear(sizes.n_embd, sizes.vocab_size, bias=False)

    def forward(self, input_ids: Any) -> Any:
        """input_ids (B, T) -> logits (B, T, V)."""
        x = self.embedding(input_ids)
        # Not in a buffer, which a model in 16 bit would round: the angles stay fp32.
        cos, sin = rotation(input_ids.shape[1], self.head_dim, self.rope_base, x.device)
        for layer in self.layers:
            if self.checkpointing and self.training:
                x = checkpoint(layer, x, cos, sin, use_reentrant=False)
            else:
                x = layer(x, cos, sin)
        return self.head(self.norm(x))
