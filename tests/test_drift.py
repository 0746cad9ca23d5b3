"""Drift, jumps and bowls in a series of times are found, and noise is none of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from siliconprof.session import timing
from siliconprof.stats import statistics


def said(times: Sequence[float]) -> tuple[bool, bool]:
    """Whether a series is said to drift, and to change."""
    found = timing.order(times)
    return timing.drifting(found) is not None, timing.changing(found) is not None


def wandering(source: random.Random, size: int) -> list[float]:
    """Times that resemble their neighbours: lag-1 correlation 0.6, 5 % standard deviation."""
    value, found = 0.0, []
    for _ in range(size + 50):
        value = 0.6 * value + 0.8 * source.gauss(0, 1)
        found.append(1 + 0.05 * value)
    return found[50:]


@pytest.mark.parametrize("size", [12, 30, 102, 345])
def test_constant_noise_is_no_drift(size: int) -> None:
    """Of 50 series of each kind 3 at most are said to drift or change."""
    kinds: dict[str, Callable[[random.Random], list[float]]] = {
        "normal": lambda r: [r.gauss(1, 0.08) for _ in range(size)],
        "outliers": lambda r: [math.exp(r.gauss(0, 0.3)) for _ in range(size)],
        "two levels": lambda r: [1 + 0.4 * (r.random() < 0.3) for _ in range(size)],
        "neighbours": lambda r: wandering(r, size),
        "equal": lambda r: [2.0] * size,
    }
    for kind, draw in kinds.items():
        found = [said(draw(random.Random(seed))) for seed in range(50)]
        assert sum(drifts or changes for drifts, changes in found) <= 3, kind


@pytest.mark.parametrize("size", [30, 102])
def test_drifts_and_jumps_are_found(size: int) -> None:
    """45 of 50 series at least: times that grow by 20 %, and a jump by 10 % and where it is."""
    grows = jumps = placed = 0
    for seed in range(50):
        source = random.Random(seed)
        noise = [source.gauss(1, 0.02) for _ in range(size)]
        grows += any(said([x * (1 + 0.2 * i / size) for i, x in enumerate(noise)]))
        jump = [x * (1.1 if i >= size // 2 else 1) for i, x in enumerate(noise)]
        jumps += said(jump) == (True, True)
        change = statistics.change_point(jump)
        assert change is not None
        placed += abs(change["after"] - size // 2) <= 1
    assert grows >= 45
    assert jumps >= 45
    assert placed >= 45


def test_a_level_that_falls_and_rises_again_is_found() -> None:
    """48 of 50 at least, where its halves are alike; of those whose neighbours are alike 3 at most."""
    found = seemed = 0
    for seed in range(50):
        source = random.Random(seed)
        bowl = [1.2 - 0.2 * math.sin(math.pi * i / 120) + source.gauss(0, 0.03) for i in range(120)]
        found += timing.wandering(bowl) is not None
        assert not timing.wandering([source.gauss(1, 0.1) for _ in range(120)])
        seemed += statistics.wandering(wandering(source, 120)) is not None
    assert found >= 48 and seemed <= 3
