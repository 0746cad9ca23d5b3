"""The sizes of a decoder-only transformer, and what follows from them without building it.

Every projection is without bias; the head is not tied to the embedding; each of a layer's two
parts, attention and SwiGLU feed-forward, is preceded by an RMSNorm, and so is the head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# SwiGLU has three matrices where GPT-2's feed-forward has two: two thirds of its width make the
# parameters equal (Shazeer 2020, arXiv:2002.05202).
FEED_FORWARD_RATIO = 8 / 3
ROPE_BASE = 10_000.0  # of the rotary positions' wavelengths
NORM_EPS = 1e-6

FLOPS_SOURCE = (
    "6N + 12 n_layer n_embd seq_len per token (PaLM, arXiv:2204.02311, appendix B); N without the "
    "embedding, which is looked up"
)


def default_d_ff(n_embd: int) -> int:
    """8/3 of n_embd, rounded up to a multiple of 8."""
    return 8 * math.ceil(n_embd / 3)


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, which name it in a grid."""

    n_layer: int
    n_embd: int
    n_head: int
    d_ff: int
    vocab_size: int
    seq_len: int

    @property
    def head_dim(self) -> int:
        """Channels of one head."""
        return self.n_embd // self.n_head

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name, the same in torch and MLX -> shape; projections are (out, in)."""
        d, ff = self.n_embd, self.d_ff
        shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (self.vocab_size, d)}
        for layer in range(self.n_layer):
            shapes |= {
                f"layers.{layer}.{name}.weight": shape
                for name, shape in {
                    "attention_norm": (d,),
                    "attention.qkv": (3 * d, d),
                    "attention.output": (d, d),
                    "feed_forward_norm": (d,),
                    "feed_forward.gate": (ff, d),
                    "feed_forward.up": (ff, d),
                    "feed_forward.down": (d, ff),
                }.items()
            }
        return shapes | {"norm.weight": (d,), "head.weight": (self.vocab_size, d)}

    def n_parameters(self) -> int:
        """All parameters: of embedding and head, layers and their norms, and the last norm."""
        d = self.n_embd
        layer = 4 * d * d + 3 * d * self.d_ff + 2 * d
        return 2 * self.vocab_size * d + self.n_layer * layer + d

    def flops_per_token(self) -> int:
        """Floating-point operations of one token's training, forward and backward.

        6 per token and multiplied parameter, plus 12 n_layer n_embd seq_len for attention scores
        and values (Chowdhery et al. 2022, PaLM, appendix B). Causal masking is not subtracted,
        which overstates attention by up to a factor of two; norms, rotations, activation and loss
        are left out, which understates a little.
        """
        multiplied = self.n_parameters() - self.vocab_size * self.n_embd
        return 6 * multiplied + 12 * self.n_layer * self.n_embd * self.seq_len
