"""The decoder-only transformer: one model in two frameworks, what it needs, wide against deep."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from models import lm, words
from siliconprof.datasets import prepared
from siliconprof.datasets.training_data import TokenData
from siliconprof.memory import footprint

# -- one model ---------------------------------------------------------------------------------


def test_a_token_sees_those_before_it_and_where_they_are() -> None:
    """Later tokens change nothing; the same tokens in another order change the last logits."""
    torch = pytest.importorskip("torch")
    model = lm().torch.model(5)
    with torch.no_grad():
        # As drawn, attention is so flat that the order of what it sees hardly shows.
        for name, weight in model.named_parameters():
            if "qkv" in name:
                weight *= 20
        ids = torch.arange(1, 18)[None]
        logits = model(ids)
        changed, turned = ids.clone(), ids.clone()
        changed[0, 9:] = 7
        turned[0, 2], turned[0, 9] = ids[0, 9], ids[0, 2]
        torch.testing.assert_close(model(changed)[0, :9], logits[0, :9])
        assert (model(changed)[0, 9:] - logits[0, 9:]).abs().max() > 1e-3
        assert (model(turned)[0, -1] - logits[0, -1]).abs().max() > 1e-5


# -- what it needs -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"n_embd": 96, "n_head": 6, "d_ff": None, "seq_len": 64, "vocab_size": 777},
        {"n_layer": 40, "n_embd": 5120, "n_head": 40, "d_ff": 13824, "vocab_size": 32000},
    ],
    ids=str,
)
def test_parameters_are_counted_exactly(own: dict[str, Any]) -> None:
    import torch
    from siliconprof.workloads import _transformer_torch

    workload = lm(**own)
    with torch.device("meta"):
        model = _transformer_torch.Model(workload)
    built = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    assert workload.weights.shapes == built
    total = sum(map(math.prod, built.values()))
    assert workload.weights.n_parameters() == workload.weights.n_trainable_parameters() == total
    stages = workload.stages(footprint.MemoryEstimator(footprint.MemoryProfile(), "fp32"))
    assert sum(s.weights for s in stages) == sum(s.trained for s in stages) == total
    if total < 2**20:
        from mlx.utils import tree_flatten

        theirs = {n: w.shape for n, w in tree_flatten(workload.mlx.model(0).parameters())}
        assert theirs == workload.weights.shapes


# -- how it is trained -------------------------------------------------------------------------


def test_held_out_tokens_are_never_trained_on() -> None:
    """Labels follow their inputs; training has the first 90 % in shuffled windows, evaluation the
    rest in order and always the same, up to its limit."""
    data = TokenData(np.arange(3000, dtype=np.uint16), "sha", 3000, "words")
    workload = lm(batch_size=3, vocab_size=3000, evaluation_batches_limit=4)
    trained = workload.batches(data, 0)
    seen = [next(trained) for _ in range(2 * 2700 // (3 * 18))]
    for batch in seen:
        assert batch["input_ids"].shape == batch["labels"].shape == (3, 17)
        assert batch["input_ids"].dtype == batch["labels"].dtype == np.int32
        np.testing.assert_array_equal(batch["labels"], batch["input_ids"] + 1)
    assert max(batch["labels"].max() for batch in seen) < 2700
    first, again = (list(workload.evaluation_batches(data)) for _ in range(2))
    assert len(first) == 4
    assert first[0]["input_ids"][0, 0] == 2700
    assert first[1]["input_ids"][0, 0] == 2700 + 3 * 18
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one["input_ids"], other["input_ids"])
    assert len(list(lm(batch_size=3, vocab_size=3000).evaluation_batches(data))) == 5
    with pytest.raises(prepared.DataError, match="'words': 100 held-out tokens make 5 windows"):
        lm(batch_size=8).evaluation_batches(words(1000))
