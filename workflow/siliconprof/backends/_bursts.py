"""How long an operator takes on a device whose own clock nothing reads: the slope of long bursts.

A burst hands an operator to the device many times and waits once. What waiting costs, and what
comes before the first, is the same in a short burst and in a long one, so their difference leaves
it out. The operands are those of the step, so what fits into caches is read from there.
"""

from __future__ import annotations

from collections.abc import Callable

LASTS_S = 2e-3  # of the longer burst, at least
MOST_IN_A_BURST = 4096  # calls in it


def seconds_each(burst: Callable[[int], float]) -> float:
    """Seconds of a call; `burst` hands over so many, waits for the last and returns its seconds."""
    burst(1)  # what the first call compiles or allocates
    calls, shorter_s = 1, burst(1)
    while True:
        longer_s = burst(2 * calls)
        if longer_s >= LASTS_S or 2 * calls >= MOST_IN_A_BURST:
            return (longer_s - shorter_s) / calls
        calls, shorter_s = 2 * calls, longer_s
