"""What one step of a training spends on each cause of a gap, estimated from what was measured.

Every cause is a cost of one side in seconds per step; what it explains of a gap is the difference
of both sides' costs. How nothing is counted twice:

- `products`: products as the matmul cell of the same step timed them in bursts, that is launches
  in a row with one wait at the end, so without a wait for each. A burst still hands every product
  over, so `launches` leaves out the products that were timed so.
  Where they were not timed: at least the operations over the fastest product, at most the step.
- `memory`: the optimizer's passes and the activations that are written once and read once. Weights
  and operands that products read are in the products' times; many kept activations are operands
  too, so the range begins with the optimizer alone.
- `launches`: the other operators times what one launch of many costs. Where a backend queues, the
  device may still be at work meanwhile and a launch then costs nothing: the range begins at 0.
- `page_faults`, `swap`, `offload`, `clocks`: what the step did times the measured cost of one.

No cause covers what operators other than products compute: that stays unexplained.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from siliconprof.analyse import step_operators, step_work
from siliconprof.analyse.attribution_inputs import Measured
from siliconprof.analyse.throughputs import mebibytes, place, scaled
from siliconprof.hosts import caches
from siliconprof.hosts.registry import PEAK_OF_PRECISION
from siliconprof.store.table_files import Row, key

PRODUCTS, MEMORY, LAUNCHES = "products", "memory", "launches"
PAGE_FAULTS, SWAP, OFFLOAD, CLOCKS = "page_faults", "swap", "offload", "clocks"
CAUSES = (PRODUCTS, MEMORY, LAUNCHES, PAGE_FAULTS, SWAP, OFFLOAD, CLOCKS)
COARSER = "coarser"  # first word of `how` where products are estimated without a sweep
QUEUES_FROM = 1.5  # times as long to launch and wait as to launch among many


class Cost(NamedTuple):
    """What one side spends on a cause, in seconds per step, or why nobody knows."""

    seconds: float | None
    low: float | None = None  # where a range can be had
    high: float | None = None
    how: str = ""
    reason: str = ""
    # Costs of equal `rests_on` share their uncertainty: their lows and their highs belong together.
    rests_on: Any = None

    def ends(self) -> tuple[float, float]:
        """The range, or the estimate twice."""
        assert self.seconds is not None
        low = self.seconds if self.low is None else self.low
        return low, self.seconds if self.high is None else self.high


def unknown(reason: str) -> Cost:
    """A cost that nobody knows."""
    return Cost(None, reason=reason)


# -- products --------------------------------------------------------------------------------------


def by_sweep(row: Row, measured: Measured) -> Cost:
    """Products of a step as they were timed one shape after the other."""
    points = measured.sweep(row)
    if not points:
        return unknown("its step's products were not timed (matmul with `of`)")
    wait = measured.line(row, "launch_and_wait")
    wait_s = wait["value"] if wait else 0.0
    seconds = low = high = flops = 0.0
    bursts = 0
    for point in points:
        count, single_s = point["count"], point["step_median_s"]
        ends = measured.noise.interval(point, "step") or (single_s, single_s, None)
        waited_for = max(ends[0] - wait_s, 0.0)
        burst_s = point["burst_mean_s"] or max(single_s - wait_s, 0.0)
        bursts += bool(point["burst_mean_s"])
        seconds += count * burst_s
        low, high = low + count * min(burst_s, waited_for), high + count * max(burst_s, ends[1])
        flops += count * point["flops"]
    whole = max(row["flops"] or flops, flops)
    scale = whole / flops
    how = (
        f"{len(points)} shapes of its step in {points[0]['workload']}, "
        f"{bursts or 'none'} of them in bursts{measured.warned(points[0])}; range: bursts and "
        "single calls"
    )
    if scale > 1.001:
        how += f"; they are {flops / whole:.0%} of its operations, the rest at their mean rate"
    rests_on = (*place(row), points[0]["workload"], points[0]["precision"])
    return Cost(scale * seconds, scale * low, scale * high, how, rests_on=rests_on)


def by_ceiling(row: Row, measured: Measured) -> Cost:
    """Operations of a step over the fastest product: at least so long, at most the whole step."""
    ceiling, flops = measured.limits.product(row), row["flops"]
    if not ceiling.value or not flops:
        return unknown(ceiling.reason or "its step has no number of operations")
    line = measured.line(row, f"matmul in {PEAK_OF_PRECISION[row['precision']]}")
    how = (
        f"{COARSER}: operations of its step over the fastest product measured, "
        f"{scaled(ceiling.value, 'FLOP/s')} ({ceiling.how}){measured.warned(line) if line else ''}; "
        "range: that at least, its whole step at most"
    )
    seconds = flops / ceiling.value
    most = max(row["unsplit_step_median_s"], seconds)
    return Cost(seconds, seconds, most, how, rests_on=(ceiling.how, ceiling.value))


# -- memory ----------------------------------------------------------------------------------------


def memory(row: Row, measured: Measured) -> Cost:
    """The optimizer's passes and the kept activations, over the bandwidths that were measured."""
    master = 2 if step_work.way(row["precision"]) == "pure" else 4
    n_trained, n_parameters = row["n_trainable_parameters"], row["n_parameters"]
    if not n_trained or not n_parameters:
        return unknown("its record has no number of parameters")
    weights = n_trained * master * step_work.ADAMW_PASSES
    activations = row.get("predicted_activations_bytes") or 0.0
    working_set = master * (n_parameters + 3 * n_trained) + activations
    offloaded = row["scenario_applied"] == "offload"
    host = measured.of_host_cpu if offloaded else measured.of_device
    if offloaded and not host(row, "memory_bandwidth"):
        return unknown("its optimizer works in the host's memory, whose bandwidth was not measured")
    of_weights = _moved(row, measured, weights, working_set, host)
    of_activations = _moved(row, measured, 2 * activations, working_set, measured.of_device)
    if of_weights is None or of_activations is None:
        return unknown("no bandwidth of this device's memory was measured")
    (weights_s, how), (activations_s, _) = of_weights, of_activations
    text = f"AdamW's {step_work.ADAMW_PASSES} passes over {mebibytes(n_trained * master)}"
    if activations:
        text += f", kept activations of {mebibytes(activations)} written and read"
    else:
        text += " alone: its activations are not predicted"
    text += f"; {how}; range: the optimizer alone to {step_work.EAGER_TRAFFIC:g} times as much"
    most = step_work.EAGER_TRAFFIC * (weights_s + activations_s)
    return Cost(weights_s + activations_s, weights_s, most, text, rests_on=MEMORY)


def _moved(
    row: Row,
    measured: Measured,
    n_bytes: float,
    working_set: float,
    find: Callable[[Row, str], Row | None],
) -> tuple[float, str] | None:
    """(seconds, how) to move bytes of which a cache may hold some."""
    beyond, within = find(row, "memory_bandwidth"), find(row, "cache_bandwidth")
    if beyond is None:
        return None
    cache = measured.limits.cache_bytes(beyond)
    cached = float(cache or caches.beyond_bytes(None) / 2)
    share = max(1 - cached / working_set, 0.0)
    seconds = share * n_bytes / beyond["value"]
    from_memory = f"memory at {scaled(beyond['value'], 'byte/s')} ({beyond['backend']})"
    from_memory += measured.warned(beyond)
    how = f"{share:.0%} of it through {from_memory}" if share else "all of it fits the cache"
    if share < 1 and within is not None:
        seconds += (1 - share) * n_bytes / within["value"]
        how += ", the rest through the cache" if share else ""
        how += f" at {scaled(within['value'], 'byte/s')} ({within['backend']})"
        how += "" if share else measured.warned(within)
    elif share < 1:
        how += "; the cache's bandwidth was not measured, what may fit it counts as 0"
    return seconds, how


# -- launches --------------------------------------------------------------------------------------


def launches(row: Row, measured: Measured, swept: bool) -> Cost:
    """Operators that are not among the products that were timed, times one launch of many.

    Args:
        swept: whether the products' own launches are in their times.
    """
    count, count_how = step_operators.launches(row)
    cost = measured.limits.launch(row)
    if count is None:
        return unknown(count_how)
    if not cost.value:
        return unknown(cost.reason or "no launch was measured")
    inside = sum(int(point["count"]) for point in measured.sweep(row)) if swept else 0
    others = max(count - inside, 0)
    seconds = others * cost.value
    wait = measured.line(row, "launch_and_wait")
    queues = wait is None or wait["value"] > QUEUES_FROM * cost.value
    how = f"{others} launches of {1e6 * cost.value:.3g} µs: {count_how}"
    if inside:
        how += f"; without the {inside} products that were timed"
    how += measured.warned(wait) if wait else ""
    if queues:
        how += "; range from 0, where the device is still at work when the next one comes"
    return Cost(seconds, 0.0 if queues else seconds, seconds, how, rests_on=place(row))


# -- page faults, swap, offload, clocks ------------------------------------------------------------


def page_faults(row: Row, measured: Measured) -> Cost:
    """Minor faults times what one was measured to cost."""
    count = row.get("minor_faults_per_step")
    if count is None:
        return unknown("nobody counted its page faults")
    if not count:
        return Cost(0.0, how="no minor fault in a step", rests_on=PAGE_FAULTS)
    line = measured.page_fault(row)
    if line is None:
        return unknown(
            f"{count:g} minor faults a step; what one costs was not measured on this host "
            "(first_touch)"
        )
    how = f"{count:g} minor faults of {1e6 * line['value']:.3g} µs ({line['workload']})"
    how += measured.warned(line)
    seconds = count * line["value"]
    if row["device_kind"] == "cpu":
        return Cost(seconds, how=how, rests_on=PAGE_FAULTS)
    # The host takes the faults, and the device may be at work meanwhile.
    how += "; range from 0, where the device is at work meanwhile"
    return Cost(seconds, 0.0, seconds, how, rests_on=(PAGE_FAULTS, *place(row)))


def swap(row: Row, measured: Measured) -> Cost:
    """Major faults: nothing measures what one costs, so only their absence is known."""
    count = row.get("major_faults_per_step")
    if count is None:
        return unknown("nobody counted its major faults")
    if count:
        return unknown(f"{count:g} major faults a step; what one costs was not measured")
    return Cost(0.0, how="no major fault in a step", rests_on=SWAP)


def offload(row: Row, measured: Measured) -> Cost:
    """Gradients to the host and weights back, over the copies' bandwidth."""
    if row["scenario_applied"] != "offload":
        return Cost(0.0, how="nothing is offloaded", rests_on=OFFLOAD)
    trained = row["n_trainable_parameters"]
    if not trained:
        return unknown("its record has no number of parameters")
    width = 4 if step_work.way(row["precision"]) == "full" else 2
    # Under stage 3 the weights live on the host and visit for the forward and the backward pass.
    back = 2 * (row["n_parameters"] or trained) if row.get("zero_stage") == 3 else trained
    seconds, copies = 0.0, []
    for direction, values in (("device_to_host", trained), ("host_to_device", back)):
        line = measured.line(row, f"{direction}_pinned") or measured.line(row, direction)
        if line is None:
            return unknown("no copy between host and device was measured (copy)")
        moved = float(values * width)
        seconds += moved / line["value"]
        copies.append(
            f"{mebibytes(moved)} {direction.replace('_', ' ')} at {scaled(line['value'], 'byte/s')}"
        )
    how = f"{', '.join(copies)}; range from 0, where copies overlap with the backward pass"
    return Cost(seconds, 0.0, seconds, how, rests_on=(OFFLOAD, *place(row)))


def clocks(row: Row, measured: Measured) -> Cost:
    """Time lost by the clock's median below its highest, where the hardware says it was held down.

    Memory does not wait for that clock: the range begins at 0.
    """
    line = measured.clocks.get(key(row))
    if line is None:
        return unknown("no probe looked at its clocks")
    signs = [line.get(name) for name in ("throttled", "power_capped")]
    if True not in signs:
        if signs[0] is None:
            why = line.get("limits_means") or line.get("means") or "nothing tells"
            return unknown(f"throttling cannot be told ({why})")
        return Cost(0.0, how="the hardware says that nothing held its clock down", rests_on=CLOCKS)
    shares = [float(share) for share in re.findall(r": ([\d.]+)", line.get("limits") or "")]
    text = f"held down in up to {max(shares, default=0.0):.0%} of the samples"
    stem = "gpu_sm_clock" if line.get("gpu_sm_clock_median_mhz") else "cpu_clock"
    median, top = (line.get(f"{stem}_{part}_mhz") for part in ("median", "max"))
    if not median or not top:
        return unknown(f"{text}; no clock tells by how much")
    lost_s = row["unsplit_step_median_s"] * max(1 - median / top, 0.0)
    how = f"{text}; its clock's median was {median:.0f} of {top:.0f} MHz; range from 0"
    return Cost(lost_s, 0.0, lost_s, how)


def of_pair(fast: Row, slow: Row, measured: Measured) -> dict[str, tuple[Cost, Cost]]:
    """Cause -> what either side spends on it, both by the same method."""
    swept = bool(measured.sweep(fast) and measured.sweep(slow))
    costs: dict[str, tuple[Cost, Cost]] = {}
    ways: Mapping[str, Callable[[Row], Cost]] = {
        PRODUCTS: lambda row: (by_sweep if swept else by_ceiling)(row, measured),
        MEMORY: lambda row: memory(row, measured),
        LAUNCHES: lambda row: launches(row, measured, swept),
        PAGE_FAULTS: lambda row: page_faults(row, measured),
        SWAP: lambda row: swap(row, measured),
        OFFLOAD: lambda row: offload(row, measured),
        CLOCKS: lambda row: clocks(row, measured),
    }
    for cause in CAUSES:
        costs[cause] = ways[cause](fast), ways[cause](slow)
    return costs
