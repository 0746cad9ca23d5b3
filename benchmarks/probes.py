"""What the probes cost: `python benchmarks/probes.py`, on a quiet machine.

One process trains GPT-2 nano in torch on the CPU, for real, in blocks of steps. Blocks
with the sampler on and off come in pairs, in either order equally often and at random, so that
drift meets both alike. All probes together, each one alone, and none (the sampler off on both
sides, which shows what the method can tell apart).

A pair's ratio is the *mean* step with the sampler over the mean step without. The sampler wakes
four times a second, which touches one short step in many: the median step would not see it. The
figure is the median over pairs with its 95 % interval, the bound is 1 %. Beside it, the share of
the wall clock that sampling took, as the sampler measured it. Takes some minutes. Sampling on other
hardware costs differently: run it there.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # `python -P` leaves it out

import numpy as np
from shared import arguments, as_ratio, ratio, trained, whole_step_s, workload_of
from siliconprof import plugins
from siliconprof.datasets import training_data
from siliconprof.session.sampler import Sampler
from siliconprof.stats.statistics import median

VOCABULARY = 512
TRAINING = {"size": "nano", "seq_len": 64, "batch_size": 4, "dataset_vocab_size": VOCABULARY}
TOKENS = 2**16
BLOCK_S = 1.0


def step_of(threads: int) -> tuple[Callable[[], float], Any]:
    """(one whole step of a training on another batch each time, its seconds; its backend)."""
    workload = workload_of("gpt2", **TRAINING)
    training = trained(workload, "torch-cpu", "fp32", threads)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, TOKENS, dtype=np.uint16)
    batches = workload.batches(training_data.TokenData(tokens, "", VOCABULARY, "random"), 0)

    def step() -> float:
        training.batch = next(batches)
        return whole_step_s(training)

    return step, training.backend


def block(step: Callable[[], float], steps: int) -> float:
    """Mean seconds of so many steps, after one that does not count."""
    return float(np.mean([step() for _ in range(1 + steps)][1:]))


def compare(
    step: Callable[[], float], backend: Any, probes: Sequence[str] | None, pairs: int, steps: int
) -> dict[str, Any]:
    """Paired blocks with and without some probes; with none of them no sampler on either side."""
    session: Any = SimpleNamespace(backend=backend, under_way=True, flag=lambda code, detail: None)
    on_first = [True, False] * ((pairs + 1) // 2)
    random.Random(0).shuffle(on_first)
    blocks: dict[bool, list[float]] = {True: [], False: []}
    shares = [0.0]
    for first in on_first:
        for on in (first, not first):
            if not on or probes == []:
                blocks[on].append(block(step, steps))
                continue
            # The sampler's start, first sample and end lie outside of every step that counts.
            with Sampler(session, probes) as sampler:
                blocks[on].append(block(step, steps))
            shares.append(sum(s.get("share_of_wall", 0.0) for s in sampler.summaries.values()))
    found = ratio(blocks[True], blocks[False])
    return {"ratio_of_means": found, "share_of_wall": median(shares)}


def costs(names: Sequence[str], pairs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """What probes cost by `compare`, these alone, `none` or `all`; without names each of them."""
    choices: dict[str, Sequence[str] | None] = {"none": [], "all": None}
    for name in plugins.names("probes"):
        if plugins.load("probes", name).available()[0]:
            choices[name] = [name]
    step, backend = step_of(os.cpu_count() or 1)
    block(step, 20)  # warm-up
    steps = max(10, round(BLOCK_S / block(step, 20)))
    for name in names or choices:
        yield name, compare(step, backend, choices[name], pairs, steps)


def main() -> None:
    """Measure and print."""
    asked = arguments(__doc__, pairs=20, probes=[""])
    for name, found in costs([*filter(None, asked.probes)], asked.pairs):
        cost = as_ratio(found["ratio_of_means"])
        share = f"{found['share_of_wall']:.3%} of the wall clock"
        print(f"{name:14} mean step {cost}, {share}", flush=True)


if __name__ == "__main__":
    main()
