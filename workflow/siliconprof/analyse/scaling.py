"""How a grid's steps scale with the batch, model shape by model shape, and what that says.

Of each shape: the part of its step that does not grow with the batch, from a straight line over
batch sizes; the launches of a step times what a launch was measured to cost; and the bytes that a
step must move at least over the measured bandwidth. `bound` makes a verdict of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from siliconprof.analyse import bound, step_work
from siliconprof.analyse.bound import ENDS, STATUSES, UNKNOWN
from siliconprof.analyse.equal_work import checkpointed
from siliconprof.analyse.throughputs import Ceilings, device_of, estimate, metric, step_s
from siliconprof.hosts import caches
from siliconprof.stats import line_fit
from siliconprof.store import columns
from siliconprof.store.table_files import KEY, Row, by, grouped

SHAPE = ("n_layer", "n_embd", "n_head", "head_dim", "d_ff", "seq_len", "vocab_size", "n_parameters")
LEAST_ERROR = 1e-3  # of a step: no interval of a few equal times is as narrow as it looks
ABOUT_SHAPE, ABOUT_BACKEND = "model shape", "backend"


def whole(value: Any) -> Any:
    """2 for 2.0: a column with gaps turns whole numbers into floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_measured(point: Row) -> bool:
    """Whether a point was measured."""
    return point.get("point_status") in (None, "ok") and bool(step_s(point))


def rows(points: Sequence[Row], ceilings: Ceilings) -> Iterator[Row]:
    """Lines of scaling.csv: of each grid its model shapes and then its backend.

    Args:
        points: of grids, with `gradient_checkpointing` beside the columns of points.csv; those
            that were not measured too.
    """
    for of_cell in grouped(points, by(KEY)).values():
        shapes = [Scaling(group, ceilings).row() for group in grouped(of_cell, by(SHAPE)).values()]
        shapes.sort(key=lambda row: (row["n_parameters"] or 0, row["seq_len"] or 0))
        yield from shapes
        backend = {name: shapes[0][name] for name in KEY} | {"about": ABOUT_BACKEND}
        yield columns.blank("scaling") | backend | bound.of_backend(shapes)


class Scaling:
    """One model shape over its batch sizes."""

    def __init__(self, points: Sequence[Row], ceilings: Ceilings) -> None:
        self.points, self.ceilings = points, ceilings
        measured = [point for point in points if is_measured(point)]
        self.measured = sorted(measured, key=lambda point: point["batch_size"])

    def row(self) -> Row:
        """Its line of scaling.csv."""
        first = self.points[0]
        row: Row = columns.blank("scaling") | {
            name: whole(first.get(name)) for name in (*KEY, *SHAPE)
        }
        row |= {"about": ABOUT_SHAPE} | counted(self.points)
        if not self.measured:
            why = "no point of it was measured"
            signs = {"launch_bound": UNKNOWN, "memory_bound": UNKNOWN}
            return row | signs | {"launch_why": why, "memory_why": why, "fit_reason": why}
        row |= self._ends() | self._line() | self._launches() | self._memory()
        for name, fixed in (("", "fixed_share_smallest"), ("_low", "fixed_share_smallest_low")):
            if row[fixed] is not None and row["fixed_memory_share_most"] is not None:
                row[f"overhead_share{name}"] = max(row[fixed] - row["fixed_memory_share_most"], 0.0)
        for name, sign in (("launch", bound.launch_sign(row)), ("memory", bound.memory_sign(row))):
            row |= {f"{name}_bound": sign.answer, f"{name}_why": sign.why}
        return row

    def _ends(self) -> Row:
        smallest, largest = self.measured[0], self.measured[-1]
        rates = [point["flop_per_s"] for point in self.measured if point["flop_per_s"]]
        best, own = max(rates, default=None), self.ceilings.product(smallest).value
        columns: Row = {
            "batch_sizes": ";".join(f"{int(point['batch_size'])}" for point in self.measured),
            "best_flop_per_s": best,
            "best_of_ceiling": best / own if best and own else None,
        }
        for end, point in zip(ENDS, (smallest, largest), strict=True):
            columns |= {
                f"{end}_batch": int(point["batch_size"]),
                f"{end}_step_s": step_s(point),
                f"tokens_per_s_{end}": point["tokens_per_s"],
            }
        if len(self.measured) > 1:
            per_s = [columns[f"{end}_batch"] / columns[f"{end}_step_s"] for end in ENDS]
            columns["throughput_gain"] = per_s[1] / per_s[0]
        return columns

    def _line(self) -> Row:
        """The straight line over batch sizes, with the errors of its points."""
        times = [step_s(point) or 0.0 for point in self.measured]
        errors = [
            max(_error_s(point), LEAST_ERROR * seconds)
            for point, seconds in zip(self.measured, times, strict=True)
        ]
        batches = [float(point["batch_size"]) for point in self.measured]
        line = line_fit.fit(batches, times, errors)
        if line is None:
            return {"fit_reason": f"one batch size only, {int(batches[0])}"}
        low, high = line.interval_s()
        columns: Row = {
            "fixed_s": line.fixed_s,
            "fixed_low_s": low,
            "fixed_high_s": high,
            "per_sample_s": line.per_sample_s,
            "residual": line.residual,
        }
        if line.residual is not None and line.residual > bound.MOST_RESIDUAL:
            return columns | {
                "fit_reason": f"steps lie {line.residual:.0%} off a straight line over the batch"
            }
        share = line.fixed_share(batches[0])
        return columns | {
            "fixed_share_smallest": share.value,
            "fixed_share_smallest_low": share.low,
            "fixed_share_smallest_high": share.high,
            "fixed_share_largest": line.fixed_share(batches[-1]).value,
        }

    def _launches(self) -> Row:
        """Launches of a step times what one was measured to cost."""
        point = self.measured[0]
        shape = point["backend"], int(point["n_layer"]), point["precision"]
        clipped = point["max_gradient_norm"] is not None
        count, how = step_work.launches(*shape, checkpointed(point), clipped)
        cost = self.ceilings.launch(point)
        seconds = count * cost.value if count and cost.value else None
        columns: Row = {
            "launches": count,
            "launches_how": how if count else None,
            "launch_cost_s": cost.value,
            "launch_cost_how": cost.how,
            "launch_s": seconds,
        }
        if seconds is None:
            return columns | {"launch_reason": how if count is None else cost.reason}
        return columns | self._shares("launch", dict.fromkeys(ENDS, seconds))

    def _memory(self) -> Row:
        """Bytes that must come through memory at least, over its bandwidth."""
        cache = self.ceilings.caches.get(device_of(self.measured[0]))
        ceiling = self.ceilings.bandwidth(self.measured[0])
        bandwidth = ceiling.value
        columns: Row = {
            "last_level_cache_bytes": cache,
            "bandwidth_bytes_per_s": bandwidth,
            "bandwidth_how": ceiling.how,
            "memory_reason": ceiling.reason if bandwidth is None else None,
        }
        cached = float(cache or caches.beyond_bytes(None) / 2)
        seconds, fixed_bytes = {}, 0.0
        for end, point in zip(ENDS, (self.measured[0], self.measured[-1]), strict=True):
            least = step_work.least_bytes(
                point, int(point["batch_size"]), point["precision"], checkpointed(point)
            )
            # A cache holds so much of what a step works on from one step to the next at most.
            share = max(1 - cached / least.working_set, 0.0)
            columns |= {f"least_bytes_{end}": least.moved, f"from_memory_share_{end}": share}
            fixed_bytes = least.fixed
            if bandwidth:
                seconds[end] = share * least.moved / bandwidth
                columns[f"memory_s_{end}"] = seconds[end]
        if bandwidth:
            # Operators that each go through memory move so much for the weights at most.
            weights_s = step_work.EAGER_TRAFFIC * fixed_bytes / bandwidth
            columns["fixed_memory_share_most"] = weights_s / (step_s(self.measured[0]) or math.inf)
        return columns | (self._shares("memory", seconds) if seconds else {})

    def _shares(self, name: str, seconds: Mapping[str, float]) -> Row:
        ends = zip(ENDS, (self.measured[0], self.measured[-1]), strict=True)
        return {f"{name}_share_{end}": seconds[end] / (step_s(p) or math.inf) for end, p in ends}


def _error_s(point: Row) -> float:
    """Standard error of a step in seconds, 0 where it is unknown."""
    known = estimate(point, metric(point).removesuffix("_s"))
    return known.ratio * known.error if known else 0.0


def counted(points: Sequence[Row]) -> Row:
    """How many points came to which status."""
    count = Counter(point.get("point_status") or "ok" for point in points)
    return {f"points_{status}": count[status] for status in STATUSES}
