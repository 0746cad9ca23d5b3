"""The points of a device's roofline: operations a byte, the rate, and what bounds it there.

Williams, Waterman and Patterson 2009, Roofline: a computation runs no faster than the
fastest product, and no faster than its operations a byte times the bandwidth. Both are measured
here; a data sheet's stand beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from siliconprof import words
from siliconprof.analyse import step_work
from siliconprof.analyse.equal_work import checkpointed
from siliconprof.analyse.throughputs import describe, device_of, place
from siliconprof.render.ceilings import caution
from siliconprof.render.data import Data
from siliconprof.render.traces import key
from siliconprof.render.variants import Row, variant

OPERATIONS = ("matmul", "matvec", "vjp")
TRAINING = "training"
SHAPED = ("transformer_grid", "transformer_lm", "optimizer_sweep")  # that `step_work` can count
SHAPE = ("n_layer", "n_embd", "d_ff", "seq_len", "vocab_size", "n_parameters")
PRODUCTS, MEMORY, CACHE = "products", "memory", "cache"
NO_PRODUCT = "no product of this device, backend and number format was measured"


def remark(text: str) -> str:
    """` (noisy)`; empty where there is nothing to remark."""
    return f" ({text})" if text else ""


class Limits(NamedTuple):
    """What bounds a row: FLOP/s and bytes/s, None where it was neither measured nor printed."""

    product: float | None
    memory: float | None
    cache: float | None = None
    cautions: tuple[str, ...] = ("", "", "")  # flags of the cells that these three are from


class Roof(NamedTuple):
    """The least of the bounds at one intensity, and which it is."""

    flop_per_s: float
    bound: str


@dataclass(frozen=True)
class Dot:
    """One measured point: how many operations it does a byte, and how fast."""

    row: Row
    kind: str  # of `KINDS`
    name: str
    intensity: float  # FLOP/byte; of a training the most that it can be
    flop_per_s: float
    cached: bool  # what it works on fits the last-level cache
    roof: Roof | None
    limits: Limits  # of which the roof is made
    sheet: Limits  # the same by the data sheet

    @property
    def share(self) -> float | None:
        """Of the roof; None where there is none."""
        return self.flop_per_s / self.roof.flop_per_s if self.roof else None

    @property
    def hover_text(self) -> str:
        """What is shown beside the pointer."""
        at_most = "at most " if self.kind == TRAINING else ""
        share = (
            f"{words.percent(self.share)} of the roof ({self.roof.bound})"
            if (self.roof and self.share)
            else NO_PRODUCT
        )
        return (
            f"{self.name}, {words.backend_name(self.row)} {self.row['precision']}: "
            f"{at_most}{words.significant(self.intensity)} FLOP/byte, "
            f"{words.scaled(self.flop_per_s, 'FLOP/s')}{remark(words.caution(self.row))}, {share}"
        )


def points(data: Data) -> Iterator[Dot]:
    """Every point whose operations and bytes are known, in the page's order."""
    known: dict[tuple, tuple[Limits, Limits, float | None]] = {}

    def bounds(row: Row) -> tuple[Limits, Limits, float | None]:
        where = (*place(row), row["precision"])
        if where not in known:
            known[where] = *limits_of(data, row), data.cache_bytes(row)
        return known[where]

    def dot(row: Row, kind: str, intensity: float, rate: float, cached: bool) -> Dot:
        """With the roof over it; the name says of a training with what it was made."""
        limits, sheet, _ = bounds(row)
        parts = [describe(row)]
        if not parts[0] or kind == TRAINING:
            parts = [row["trainer"], *parts, *variant(row)]
        name = ", ".join(filter(None, (row["workload"], *parts)))
        above_it = roof(limits, intensity, cached)
        return Dot(row, kind, name, intensity, rate, cached, above_it, limits, sheet)

    for module in OPERATIONS:
        for row in data.of_module(module):
            flops, moved, rate = (words.number(row[n]) for n in ("flops", "bytes", "flop_per_s"))
            if flops and moved and rate:
                check = data.check(row, "bytes_per_s")
                cached = check is not None and check["compared_value"] is None
                yield dot(row, module, flops / moved, rate, cached)
    activations_bytes = {
        key(cell): words.number(cell.get("predicted_activations_bytes")) for cell in data.cells
    }
    shaped = [row for module in SHAPED for row in data.of_module(module)]
    others = [row for row in data.training() if row["module"] not in SHAPED]
    for row in [*others, *shaped]:
        flops, rate = words.number(row["flops"]), words.number(row["flop_per_s"])
        least = counted(row) or by_parts(row, activations_bytes.get(key(row)))
        if flops and rate and least and not row.get("offloads"):
            size = bounds(row)[2]
            cached = size is not None and least.working_set_bytes <= size
            yield dot(row, TRAINING, flops / least.moved_bytes, rate, cached)


def limits_of(data: Data, row: Row) -> tuple[Limits, Limits]:
    """Our own ceilings and the data sheet's; caches, like memory, know no backend and no format."""
    caches = (
        line
        for line in data.ceilings
        if line["quantity"] == "cache_bandwidth" and device_of(line) == device_of(row)
    )
    product, memory = (data.ceiling(row, name) for name in ("matmul", "memory_bandwidth"))
    cache = max(caches, key=lambda line: line["value"] or 0.0, default=None)
    lines = (product, memory, cache)
    own, memory_rate, cache_rate = (words.number(line["value"]) if line else None for line in lines)
    flags = tuple(caution(data, line) if line else "" for line in lines)
    printed, bandwidth = (
        words.number(line["datasheet_value"]) if line else None for line in (product, memory)
    )
    sheet = Limits(data.peak_flop_per_s(row) or printed, bandwidth)
    return Limits(own, memory_rate, cache_rate, flags), sheet


class Least(NamedTuple):
    """The least bytes that a step must move, and those that it works on."""

    moved_bytes: float
    working_set_bytes: float


def counted(row: Row) -> Least | None:
    """By the shape of a decoder-only transformer, see `step_work`; None of any other model."""
    shape = {name: words.number(row.get(name)) for name in SHAPE}
    batch = words.number(row.get("batch_size"))
    if batch is None or None in shape.values() or row["module"] not in SHAPED:
        return None
    checkpointing = checkpointed(row)
    least = step_work.least_bytes(shape, int(batch), row["precision"], checkpointing)
    return Least(least.moved, least.working_set)


def by_parts(row: Row, kept_bytes: float | None) -> Least | None:
    """AdamW's passes over what is trained, and the kept activations written and read once.

    Less than `counted` would give: reading the weights and all gradients are left out.
    """
    everything = words.number(row["n_parameters"])
    trained = words.number(row["n_trainable_parameters"])
    if not everything or not trained or kept_bytes is None:
        return None
    width = 2 if step_work.way(row["precision"]) == "pure" else 4
    moved = width * trained * step_work.ADAMW_PASSES + 2 * kept_bytes
    return Least(moved, width * (everything + 3 * trained) + kept_bytes)


def roof(limits: Limits, intensity: float, cached: bool) -> Roof | None:
    """The roof over an intensity; None where the fastest product is unknown.

    Where no bandwidth was measured, the products alone are the roof.
    """
    if limits.product is None:
        return None
    bound, bandwidth = (CACHE, limits.cache) if cached else (MEMORY, limits.memory)
    below = Roof(intensity * bandwidth, bound) if bandwidth else None
    products = Roof(limits.product, PRODUCTS)
    return below if below and below.flop_per_s < products.flop_per_s else products


def above(dots: Sequence[Dot]) -> list[Dot]:
    """Points that are faster than their roof, the farthest first."""
    return sorted((d for d in dots if d.share and d.share > 1), key=lambda d: -(d.share or 0))
