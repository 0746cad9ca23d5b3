"""A cell's checks as columns of cells.csv: each one's verdict and reason, and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# In the order in which a reader asks: `checks` of a record, see `truth` and `quality`.
NAMES = ("clock", "sleep", "twice_the_work", "synchronisation", "precision", "results", "drift")


def of(checks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`{name}_check`, `{name}_check_reason` and figures; None for what was not reached."""
    found: dict[str, Any] = {}
    for name in NAMES:
        check = checks.get(name, {})
        found |= {
            f"{name}_check": check.get("verdict"),
            f"{name}_check_reason": check.get("reason"),
        }
    clock, sleep, results, drift = (
        checks.get(name, {}) for name in ("clock", "sleep", "results", "drift")
    )
    kernels = checks.get("twice_the_work", {}).get("kernels", [])
    shares = checks.get("synchronisation", {}).get("waited_shares", {})
    ratios = {kernel["kernel"]: kernel["ratio"] for kernel in reversed(kernels)}
    return found | {
        "clock_resolution_s": clock.get("resolution_s"),
        "clock_reading_cost_s": clock.get("reading_cost_s"),
        "sleep_asked_s": sleep.get("asked_s"),
        "sleep_measured_s": sleep.get("measured_s"),
        "twice_product_ratio": ratios.get("product"),
        "twice_sum_ratio": ratios.get("sum"),
        "twice_attempts": max((len(kernel["attempts"]) for kernel in kernels), default=None),
        "waited_share": min(shares.values(), default=None),
        "worst_result_error": results.get("worst_error"),
        "results_compared": results.get("points"),
        "worst_drift_ratio": drift.get("worst_ratio"),
        "attempts_given_up": drift.get("given_up"),
    }
