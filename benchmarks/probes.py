"""What the probes cost: `python benchmarks/probes.py`, on a quiet machine.

One process trains GPT-2 nano and tiny in torch on the CPU, for real, in blocks of steps. Blocks
with the sampler on and off come in pairs, in either order equally often and at random, so that
drift meets both alike. All probes together, each one alone, and none (the sampler off on both
sides, which shows what the method can tell apart).

A pair's ratio is the *mean* step with the sampler over the mean step without. The sampler wakes
four times a second, which touches one short step in many: the median step would not see it. The
ratio of medians stands beside it. The figure is the median over pairs with its 95 % interval, the
bound is 1 %. Beside it, each probe's cost per sample and the share of the wall
clock that its sampling took, as the sampler measured them. Takes about seven minutes.
Sampling on other hardware costs differently: run it there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from shared import ratio, trained, unsplit_s, workload_of
from siliconprof import plugins
from siliconprof.datasets import token_data
from siliconprof.session.sampler import Sampler

BOUND = 0.01
VOCABULARY = 512
BATCH_SIZE = 4
TOKENS = 2**16
SIZES = {
    "gpt2-nano": {"size": "nano", "seq_len": 64},
    "gpt2-tiny": {"size": "tiny", "seq_len": 128},
}


def step_of(name: str, threads: int) -> tuple[Callable[[], float], Any]:
    """(one unsplit step of a training on another batch each time, its seconds; its backend)."""
    shared = {"batch_size": BATCH_SIZE, "dataset_vocab_size": VOCABULARY}
    workload = workload_of("gpt2", **shared, **SIZES[name])
    training = trained(workload, "torch-cpu", "fp32", threads)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, TOKENS, dtype=np.uint16)
    batches = workload.batches(token_data.TokenData(tokens, "", VOCABULARY, "random"), 0)

    def step() -> float:
        training.batch = next(batches)
        return unsplit_s(training)

    return step, training.backend


def block(step: Callable[[], float], steps: int) -> list[float]:
    """Seconds of so many steps, after one that does not count."""
    return [step() for _ in range(1 + steps)][1:]


def compare(
    step: Callable[[], float], backend: Any, probes: Sequence[str] | None, pairs: int, steps: int
) -> dict[str, Any]:
    """Paired blocks with and without some probes; with none of them no sampler on either side."""
    session: Any = SimpleNamespace(backend=backend, under_way=True, flag=lambda code, detail: None)
    on_first = [True, False] * ((pairs + 1) // 2)
    random.Random(0).shuffle(on_first)
    blocks: dict[bool, list[list[float]]] = {True: [], False: []}
    shares, costs = [], dict[str, list[float]]()
    for first in on_first:
        for on in (first, not first):
            if not on or probes == []:
                blocks[on].append(block(step, steps))
                continue
            # The sampler's start, first sample and end lie outside of every step that counts.
            with Sampler(session, probes) as sampler:
                blocks[on].append(block(step, steps))
            sampled = {n: s for n, s in sampler.summaries.items() if "share_of_wall" in s}
            for name, summary in sampled.items():
                costs.setdefault(name, []).append(summary["sample_cost_median_s"])
            shares.append(sum(summary["share_of_wall"] for summary in sampled.values()))
    means, medians = (
        ratio(*([middle(one) for one in blocks[on]] for on in (True, False)))
        for middle in (statistics.fmean, statistics.median)
    )
    return {
        "pairs": len(on_first),
        "steps_per_block": steps,
        "ratio_of_means": means[0],
        "ratio_of_means_low": means[1],
        "ratio_of_means_high": means[2],
        "ratio_of_medians": medians[0],
        "share_of_wall": statistics.median(shares) if shares else None,
        "sample_cost_median_s": {name: statistics.median(c) for name, c in sorted(costs.items())},
    }


def verdict(found: dict[str, Any]) -> str:
    """Whether the cost is within the bound, as far as the interval tells."""
    cost, low, high = (found[f"ratio_of_means{end}"] - 1 for end in ("", "_low", "_high"))
    if cost > BOUND:
        unsure = f", and the interval holds {BOUND:.0%}" if low <= BOUND else ""
        return f"missed: {cost:+.2%}{unsure}"
    unsure = f", but the interval goes beyond {BOUND:.0%}" if high > BOUND else ""
    return f"met: {cost:+.2%}{unsure}"


def line(workload: str, name: str, found: dict[str, Any]) -> str:
    """One row of the table."""
    cost_s = found["sample_cost_median_s"]
    own = cost_s.get(name, sum(cost_s.values()))
    sample = (
        f"{1e6 * own:8.1f} {100 * found['share_of_wall']:6.3f}" if cost_s else f"{'-':>8} {'-':>6}"
    )
    ends = ("means", "means_low", "means_high", "medians")
    middle, low, high, median = (100 * (found[f"ratio_of_{end}"] - 1) for end in ends)
    said = found.get("verdict", "what the method tells apart")
    return (
        f"{workload:10} {name:14} {sample}  {middle:+6.2f} [{low:+6.2f}, {high:+6.2f}]  "
        f"{median:+6.2f}   {said}"
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of blocks, at least")
    parser.add_argument("--block-s", type=float, default=1.0, help="seconds of a block")
    parser.add_argument("--workloads", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--probes", nargs="+", metavar="NAME", help="these, or none, or all")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    can, why = plugins.load("backends", "torch-cpu")().available()
    if not can:
        print(f"benchmarks/probes.py: {why}", file=sys.stderr)
        return 1
    usable = {name: plugins.load("probes", name).available() for name in plugins.names("probes")}
    choices: dict[str, Sequence[str] | None] = {"none": [], "all": None}
    choices |= {name: [name] for name, (can, _) in usable.items() if can}
    result: dict[str, Any] = {
        "bound": BOUND,
        "threads": arguments.threads,
        "absent": {name: why for name, (can, why) in usable.items() if not can},
        "workloads": {},
    }
    if not arguments.json:
        print(f"{'':25} {'sample':>8} {'share':>6}  mean step, % more          median")
        print(f"{'workload':10} {'probes':14} {'µs':>8} {'%':>6}  [95 % interval]   step, % more")
    for workload in arguments.workloads:
        step, backend = step_of(workload, arguments.threads)
        block(step, 20)  # warm-up
        step_s = statistics.median(block(step, 20))
        steps = max(10, round(arguments.block_s / step_s))
        found: dict[str, Any] = {}
        for name in arguments.probes or choices:
            found[name] = compare(step, backend, choices[name], arguments.pairs, steps)
            if name != "none":
                found[name]["verdict"] = verdict(found[name])
            if not arguments.json:
                print(line(workload, name, found[name]), flush=True)
        result["workloads"][workload] = {"step_s": step_s, "probes": found}
    if arguments.json:
        print(json.dumps(result, indent=2))
        return 0
    for name, why in result["absent"].items():
        print(f"not here: {name}: {why}")
    return 0


if __name__ == "__main__":
    started = time.perf_counter()
    status = main()
    print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)
    sys.exit(status)
