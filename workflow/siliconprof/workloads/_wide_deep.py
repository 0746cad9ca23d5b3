"""A wide and a deep transformer that match in parameters and compute, for a budget of parameters.

Head count equal, head dimension, width, feed-forward and number of layers differing. No two such
models are equal in both: at equal parameters the deep one computes more, since attention's scores
grow with depth, and its narrower embedding, which is looked up, leaves more parameters to multiply.
What is left of that in the best pair is shared: half in parameters, half in compute, each bounded
by `TOLERANCE`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice

from siliconprof.errors import UserError
from siliconprof.workloads._transformer_shape import FEED_FORWARD_RATIO, Shape

DEPTH_RATIO = 4
TOLERANCE = 0.05  # largest mismatch in parameters, and in compute
FEED_FORWARD_RATIOS = (1.0, 8.0)  # least and most of d_ff / n_embd
MOST_CANDIDATES = 12_000  # every one is compared with every other, for seconds
LEAST_LAYERS = 2  # one layer of attention cannot build on another
MOST_LAYERS = 256
LEAST_HEAD_DIM = 8
# Of the pairs that match, the cheapest is chosen. Its cost is the distance of both d_ff from the
# usual 8/3 of n_embd plus, by these weights, that of the layers from the ratio (both as natural
# logarithms) and the difference in compute.
RATIO_WEIGHT = 0.5
COMPUTE_WEIGHT = 10.0


@dataclass(frozen=True)
class Pair:
    """The wide and the deep model of a budget."""

    wide: Shape
    deep: Shape

    @property
    def parameter_mismatch(self) -> float:
        """Parameters of the deep model over those of the wide one, less 1."""
        return self.deep.n_parameters() / self.wide.n_parameters() - 1

    @property
    def compute_mismatch(self) -> float:
        """Operations per token of the deep model over those of the wide one, less 1."""
        return self.deep.flops_per_token() / self.wide.flops_per_token() - 1


@dataclass(frozen=True)
class _Candidate:
    shape: Shape
    flops: int
    ratio_cost: float  # how far d_ff is from the usual


@cache
def solve(
    budget: int, n_head: int, vocab_size: int, seq_len: int, depth_ratio: float = DEPTH_RATIO
) -> Pair:
    """The pair for a budget, embedding and head included, or a `UserError` where none matches."""
    where = (
        f"parameter_budget: {budget:,} parameters with n_head {n_head}, vocab_size {vocab_size:,}, "
        f"seq_len {seq_len:,} and depth_ratio {depth_ratio:g}"
    )
    models = _candidates(budget, n_head, vocab_size, seq_len)
    candidates = sorted(islice(models, MOST_CANDIDATES + 1), key=lambda c: c.flops)
    if len(candidates) > MOST_CANDIDATES:
        raise UserError(
            f"{where}: more than {MOST_CANDIDATES:,} models have it, too many to compare; expected "
            "more heads or a smaller budget"
        )
    for compute_alone in (False, True):
        pair = _best(candidates, depth_ratio, compute_alone)
        pair = pair and _shared(pair, budget)
        if pair and max(abs(pair.parameter_mismatch), abs(pair.compute_mismatch)) <= TOLERANCE:
            return pair
    d, layers = LEAST_HEAD_DIM * n_head, math.ceil(LEAST_LAYERS * depth_ratio)
    least = Shape(layers, d, n_head, d, vocab_size, seq_len).n_parameters()
    raise UserError(
        f"{where}: no two models of at most {MOST_LAYERS} layers match to {TOLERANCE:.0%} in "
        f"parameters and compute, the smallest deep one ({layers} layers of heads of "
        f"{LEAST_HEAD_DIM}) has {least:,}; expected a larger budget, fewer heads, a smaller "
        "vocabulary, shorter sequences or a smaller depth_ratio"
    )


def _candidates(budget: int, n_head: int, vocab_size: int, seq_len: int) -> Iterator[_Candidate]:
    """Models of the budget: for each width and depth the one whose d_ff uses it up."""
    least_ratio, most_ratio = FEED_FORWARD_RATIOS
    head_dim = LEAST_HEAD_DIM
    while (d := n_head * head_dim) and 2 * vocab_size * d < budget:
        inside = budget - 2 * vocab_size * d - d  # for the layers
        # What a layer has at each end of the range bounds their number.
        fewest = math.ceil(inside / ((4 + 3 * most_ratio) * d * d + 2 * d))
        most = math.floor(inside / ((4 + 3 * least_ratio) * d * d + 2 * d))
        if most < LEAST_LAYERS:
            return  # as of any larger width
        for n_layer in range(max(fewest, LEAST_LAYERS), min(most, MOST_LAYERS) + 1):
            filling = _filled(Shape(n_layer, d, n_head, 1, vocab_size, seq_len), budget)
            yield _Candidate(
                filling,
                filling.flops_per_token(),
                abs(math.log(filling.d_ff / d / FEED_FORWARD_RATIO)),
            )
        head_dim += 2


def _filled(shape: Shape, n_parameters: float) -> Shape:
    """The shape with the d_ff that brings it nearest to a number of parameters."""
    per_channel = 3 * shape.n_embd * shape.n_layer
    missing = n_parameters - shape.n_parameters()
    return replace(shape, d_ff=max(1, shape.d_ff + round(missing / per_channel)))


def _best(candidates: Sequence[_Candidate], depth_ratio: float, compute_alone: bool) -> Pair | None:
    """The cheapest pair of candidates, which are sorted by their operations; see above."""
    flops = [candidate.flops for candidate in candidates]
    best, least = None, math.inf
    for wide in candidates:
        start = bisect_left(flops, wide.flops * (1 - 2 * TOLERANCE))
        end = bisect_right(flops, wide.flops * (1 + 2 * TOLERANCE))
        for deep in candidates[start:end]:
            ratio = deep.shape.n_layer / wide.shape.n_layer
            if ratio < depth_ratio or deep.shape.n_embd >= wide.shape.n_embd:
                continue
            cost = abs(deep.flops / wide.flops - 1)
            if not compute_alone:
                cost = COMPUTE_WEIGHT * cost + RATIO_WEIGHT * math.log(ratio / depth_ratio)
                cost += wide.ratio_cost + deep.ratio_cost
            if cost < least:
                best, least = Pair(wide.shape, deep.shape), cost
    return best


def _shared(pair: Pair, budget: int) -> Pair:
    """The pair with half of its difference in compute turned into one in parameters."""
    share = pair.compute_mismatch / 4  # each model gives half of that half
    return Pair(_filled(pair.wide, budget * (1 + share)), _filled(pair.deep, budget * (1 - share)))
