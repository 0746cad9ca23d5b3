"""What claims compare of operations and of whole steps held against them."""

from __future__ import annotations

from collections.abc import Mapping

from siliconprof.claims.evidence import Evidence, Figure, Quantity
from siliconprof.stats import inference
from siliconprof.store.table_files import Row


def _sample_speed(evidence: Evidence, row: Row) -> Figure | str:
    return evidence.timed(row, row.get("samples_per_s"), "no step was timed")


def _fp16_gain(evidence: Evidence, row: Row) -> Figure | str:
    """The rate in fp16 over that of the same operation, place and shape in fp32."""
    if row["precision"] != "fp16":
        return "only what is computed in fp16 has a gain from it"
    plain = evidence.in_fp32(row)
    if plain is None:
        return "the same operation in fp32 was not timed"
    found = [evidence.timed(r, r.get("flop_per_s"), "no rate is known") for r in (row, plain)]
    fast, slow = found
    if isinstance(fast, str) or isinstance(slow, str):
        return fast if isinstance(fast, str) else str(slow)
    assert fast.estimate and slow.estimate
    gain = inference.difference(slow.estimate, fast.estimate, fast.basis)
    return Figure(fast.middle / slow.middle, gain, basis=fast.basis)


def _of_products(evidence: Evidence, row: Row) -> Figure | str:
    """Operations a second of a step over those of the place's fastest matrix product."""
    best = evidence.best_product(row)
    if not best:
        return f"no matrix product in {row['precision']} was timed there"
    if not row.get("flop_per_s"):
        return "no number of operations is known"
    return evidence.timed(row, float(row["flop_per_s"]) / best, "no step was timed")


def _memory_bound(evidence: Evidence, row: Row) -> Figure | str:
    """The share of the memory's bandwidth over the share of the fastest product's rate."""
    if row.get("cache") == "warm":
        return "what is used again and again may stay in a cache, and memory is no limit to it"
    bandwidth, whose = evidence.bandwidth(row)
    best = evidence.best_product(row)
    if bandwidth is None:
        return whose
    if not best:
        return f"no matrix product in {row['precision']} was timed there"
    if not row.get("bytes_per_s") or not row.get("flop_per_s"):
        return "its bytes or its operations are not known"
    # Both shares are of one time, whose error cancels; what is left is that of the two ceilings.
    times = (row["bytes_per_s"] / bandwidth) / (row["flop_per_s"] / best)
    return evidence.timed(row, times, "no time is known")


QUANTITIES: Mapping[str, Quantity] = {
    "sample_speed": Quantity("training samples", "1/s", _sample_speed, fastest=True),
    "fp16_gain": Quantity("rate in fp16 over that in fp32", "times", _fp16_gain),
    "of_products": Quantity(
        "a step's operations over the fastest product's", "times", _of_products, fastest=True
    ),
    "memory_bound": Quantity(
        "share of memory's bandwidth over share of the fastest product's rate", "times",
        _memory_bound,
    ),
}  # fmt: skip
