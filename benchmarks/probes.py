"""What the probes cost: `python benchmarks/probes.py`, on a quiet machine.

One process trains GPT-2 nano and tiny in torch on the CPU, for real, in blocks of steps. Blocks
with the sampler on and off come in pairs, in either order equally often and at random, so that
drift meets both alike. All probes together, each one alone, and none (the sampler off on both
sides, which shows what the method can tell apart).

A pair's ratio is the *mean* step with the sampler over the mean step without. The sampler wakes
four times a second, which touches one short step in many: the median step would not see it. The
ratio of medians stands beside it. The figure is the median over pairs with a 95 % bootstrap
interval; the bound is 1 %. Beside it, each probe's cost per sample and the share of the wall
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow"))

from siliconprof import plugins  # noqa: E402
from siliconprof.session.sampler import Sampler  # noqa: E402
from siliconprof.session.timing import PhaseClock  # noqa: E402

BOUND = 0.01
VOCABULARY = 512
SIZES = {
    "gpt2-nano": {"size": "nano", "seq_len": 64},
    "gpt2-tiny": {"size": "tiny", "seq_len": 128},
}
BATCH_SIZE = 4
RESAMPLES = 4000


def training(name: str, backend: Any) -> Callable[[], float]:
    """A function that does one unsplit training step and returns its seconds."""
    plugin = plugins.load("workloads", "gpt2")
    defaults = {k: s["default"] for k, s in plugin.PARAMETERS.items() if "default" in s}
    workload = plugin(
        defaults | {"batch_size": BATCH_SIZE, "dataset_vocab_size": VOCABULARY} | SIZES[name]
    )
    stepper = backend.stepper(workload, 0)
    clock = PhaseClock(backend)

    def batches() -> Iterator[dict[str, Any]]:
        drawn = np.random.default_rng(0)
        shape = (BATCH_SIZE, SIZES[name]["seq_len"])
        while True:
            ids = drawn.integers(0, VOCABULARY, shape).astype(np.int32)  # (B, T)
            labels = ids.copy()
            labels[:, 0] = -100
            yield {"input_ids": ids, "labels": labels}

    stream = batches()

    def step() -> float:
        clock.start(split=False)
        loss = stepper.step(next(stream), clock)
        seconds, _ = clock.stop()
        loss()
        return seconds

    return step


def block(step: Callable[[], float], steps: int) -> list[float]:
    """Seconds of so many steps."""
    return [step() for _ in range(steps)]


def sampled_block(
    step: Callable[[], float], steps: int, backend: Any, only: Sequence[str] | None
) -> tuple[list[float], Sampler]:
    """The same with a sampler around it, whose start and end lie outside of every step."""
    session: Any = SimpleNamespace(backend=backend, under_way=True, flag=lambda code, detail: None)
    with Sampler(session, only) as sampler:
        step()  # the first sample, taken at once, is not what a long run sees some times a second
        return block(step, steps), sampler


def interval(ratios: Sequence[float], drawn: random.Random) -> tuple[float, float]:
    """95 % bootstrap interval of the median, over pairs."""
    medians = sorted(
        statistics.median(drawn.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]


def compare(
    step: Callable[[], float],
    backend: Any,
    only: Sequence[str] | None,
    pairs: int,
    steps: int,
    control: bool,
) -> dict[str, Any]:
    """Paired blocks of one choice of probes; with `control`, no sampler on either side."""
    drawn = random.Random(0)
    first_on = [True, False] * ((pairs + 1) // 2)
    drawn.shuffle(first_on)
    means, medians, shares = [], [], []
    costs: dict[str, list[float]] = {}
    for on_first in first_on[: pairs + pairs % 2]:
        found: dict[bool, list[float]] = {}
        for on in (on_first, not on_first):
            if on and not control:
                found[on], sampler = sampled_block(step, steps, backend, only)
                sampled = {n: s for n, s in sampler.summaries.items() if "share_of_wall" in s}
                for name, summary in sampled.items():
                    costs.setdefault(name, []).append(summary["sample_cost_median_s"])
                shares.append(sum(summary["share_of_wall"] for summary in sampled.values()))
            else:
                step()
                found[on] = block(step, steps)
        means.append(statistics.fmean(found[True]) / statistics.fmean(found[False]))
        medians.append(statistics.median(found[True]) / statistics.median(found[False]))
    low, high = interval(means, drawn)
    return {
        "pairs": len(means),
        "steps_per_block": steps,
        "ratio_of_means": statistics.median(means),
        "ratio_of_means_low": low,
        "ratio_of_means_high": high,
        "ratio_of_medians": statistics.median(medians),
        "share_of_wall": statistics.median(shares) if shares else None,
        "sample_cost_median_s": {name: statistics.median(c) for name, c in sorted(costs.items())},
    }


def verdict(found: dict[str, Any]) -> str:
    """Whether the cost is within the bound, as far as the interval tells."""
    cost = found["ratio_of_means"] - 1
    if found["ratio_of_means_high"] - 1 <= BOUND:
        return f"met: {cost:+.2%}"
    if found["ratio_of_means_low"] - 1 > BOUND:
        return f"missed: {cost:+.2%}"
    if cost > BOUND:
        return f"missed: {cost:+.2%}, and the interval holds {BOUND:.0%}"
    return f"met: {cost:+.2%}, but the interval goes beyond {BOUND:.0%}"


def line(workload: str, name: str, found: dict[str, Any]) -> str:
    """One row of the table."""
    cost_s = found["sample_cost_median_s"]
    own = cost_s.get(name, sum(cost_s.values()))
    percent = [100 * (found[f"ratio_of_means{end}"] - 1) for end in ("", "_low", "_high")]
    share = found["share_of_wall"]
    sample = f"{1e6 * own:8.1f} {100 * share:6.3f}" if cost_s else f"{'-':>8} {'-':>6}"
    said = "what the method tells apart" if name == "none" else found["verdict"]
    return (
        f"{workload:10} {name:14} {sample}  {percent[0]:+6.2f} "
        f"[{percent[1]:+6.2f}, {percent[2]:+6.2f}]  "
        f"{100 * (found['ratio_of_medians'] - 1):+6.2f}   {said}"
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
    backend = plugins.load("backends", "torch-cpu")()
    can, why = backend.available()
    if not can:
        print(f"benchmarks/probes.py: {why}", file=sys.stderr)
        return 1
    backend.open("cpu", 0, arguments.threads, "fp32")
    usable = {name: plugins.load("probes", name).available() for name in plugins.names("probes")}
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
        step = training(workload, backend)
        block(step, 20)  # warm-up
        step_s = statistics.median(block(step, 20))
        steps = max(10, round(arguments.block_s / step_s))
        found: dict[str, Any] = {}
        choices: dict[str, Sequence[str] | None] = {"none": [], "all": None}
        choices |= {name: [name] for name, (can, _) in usable.items() if can}
        for name in arguments.probes or choices:
            only = choices[name]
            found[name] = compare(
                step, backend, only, arguments.pairs, steps, control=name == "none"
            )
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
