"""What the launch cost of Table 6, peaks and bandwidths can explain of the paper's gaps, in bounds.

Nothing here is measured: times and launch costs are published, peaks and bandwidths the registry's,
operators, operations and bytes by formula. The paper prints no part of a pass and no sequence
length, so a cause gets an interval. It holds every division of both passes, per sample, in which
each second belongs to launches, products, memory traffic or the rest, and

- launches take from nothing, where the device's work hides them, to one of Table 6's follow-up
  launches for each operator;
- products and traffic take at least what they take at the data sheet's rate, and both devices reach
  the same share of that rate. A share that differs is a matter of software, of which the paper
  prints no number (Figures 5 to 7 are pictures); it could explain any gap, or none.

These are linear, so a linear program finds both ends. Traffic is of two kinds: activations are
equal by sample, weights by pass, so they weigh more where the batch is smaller.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from siliconprof import words
from siliconprof.analyse import step_work
from siliconprof.analyse.published_values import Published, Unknown, model_and_size
from siliconprof.errors import UserError
from siliconprof.hosts import registry
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.store import table_files
from siliconprof.workloads import gpt2

LAUNCHES, PRODUCTS, BANDWIDTH, ALL = "launches", "products", "bandwidth", "all three"
# Whether the update is in the pass: the paper does not say.
PHASES = {True: "forward, backward and update", False: "forward and backward"}
A_PICTURE = "Figure 3 prints its times as a picture alone, and no value is read off it"
TOO_SHORT = "a pass is shorter than its products and traffic at the data sheet's rates"
NOTHING, PART, WHOLE = "nothing", "part of it", "all of it"
ROUNDING = 1e-6  # of a gap: what a linear program leaves
# Operators of GPT-2's forward and backward pass in fp32: (of a layer, beside the layers). Counted on a
# CPU without views: in torch 2.13 with transformers 5.23 what a dispatch mode sees on the second step,
# in MLX 0.32 what the graph of a step holds; tests count again.
OPERATORS = {"torch": (34, 26), "mlx": (264, 105)}
TENSORS = (12, 4)  # that GPT-2 trains, likewise
SEQ_LEN = gpt2.Plugin.PARAMETERS["seq_len"]
Printed = Mapping[str, str]  # a row of a published table


class Missing(Exception):
    """What neither the paper nor the registry tells."""


class Side(NamedTuple):
    """A row of Table 4, its pass with or without the update."""

    row: Printed
    batch: float
    seconds: float  # of a sample
    operators: int
    launch_s: float
    flop_per_s: float
    bytes_per_s: float
    flops: float  # of a pass, at the fewest tokens of a sequence
    moved: float  # bytes of a pass, at least

    @classmethod
    def of(cls, row: Printed, published: Published, updates: bool) -> Side:
        """A side. Raises `Missing` where a number of it is not known."""
        name = published.label(row, without=("workload",))
        for column in ("pass_time_s", "batch_size", "precision"):
            if not row[column]:
                raise Missing(f"the paper prints no {column} of {name}")
        costs = published.rows("table6_kernel_launch")
        costs_ms = {cost["device"]: cost["followup_launch_ms"] for cost in costs}
        if not costs_ms.get(row["device"]):
            raise Missing(f"Table 6 has no launch of {name}")
        launch_s, counted = float(costs_ms[row["device"]]) / 1e3, operators(row, updates)
        sheets = DataSheets(published.registry, {"devices": []})
        of = {"source": "", "device": row["device"]}
        peak, bandwidth = sheets.peak(of, row["precision"]), sheets.bandwidth(of)
        if peak.value is None or bandwidth.value is None:
            raise Missing(str(peak.reason or bandwidth.reason))
        batch, (_, size) = float(row["batch_size"]), model_and_size(row["workload"])
        own = {"size": size, "batch_size": int(batch), "seq_len": SEQ_LEN["minimum"]}
        workload = gpt2.Plugin(gpt2.Plugin.defaults() | own)
        # Each weight is read and its gradient written once; the update moves seven values of each.
        moved = 4.0 * (2 + step_work.ADAMW_PASSES * updates) * workload.n_parameters()
        seconds, flops = float(row["pass_time_s"]) / batch, workload.flops_per_step()[0]
        rates = peak.value, bandwidth.value
        return cls(row, batch, seconds, counted, launch_s, *rates, flops, moved)


def operators(row: Printed, updates: bool) -> int:
    """The most operators that a pass launches. Raises `Missing` where nobody has counted them.

    Where a backend updates all weights in one call, that call is several launches; so the update
    counts as by the backend of its framework that launches most.
    """
    (module, size), framework = model_and_size(row["workload"]), row["backend"].split("-")[0]
    of_backend = step_work.OF_BACKEND.items()
    update = [counted.update for name, counted in of_backend if name.split("-")[0] == framework]
    known = module == "gpt2" and size in gpt2.SIZES and row["precision"] == "fp32"
    if not known or not update:
        name = f"{row['workload']} in {row['precision']} on {row['backend']}"
        raise Missing(f"nobody has counted the operators of {name}")
    layers = gpt2.SIZES[size][0]
    of_passes, tensors = (a * layers + b for a, b in (OPERATORS[framework], TENSORS))
    return of_passes + updates * max(each * tensors + beside for each, beside in update)


def about(slow: Printed, fast: Printed) -> dict[str, Any]:
    """What a line is about, without its numbers."""
    sides = {"slow": slow, "fast": fast}.items()
    devices = {f"{name}_device": of["device"] for name, of in sides}
    backends = {f"{name}_backend": of.get("backend") for name, of in sides}
    batches = {f"{name}_batch_size": float(of["batch_size"] or "nan") for name, of in sides}
    return {"workload": slow["workload"]} | devices | backends | batches


def bounds(slow: Side, fast: Side) -> Iterator[tuple[str, float, float]]:
    """Each cause, and the least and most seconds that it takes longer on the slow side."""
    from scipy.optimize import linprog  # slow to load

    traffic = slow.bytes_per_s / fast.bytes_per_s
    products_s = slow.flops / slow.flop_per_s / slow.batch
    weights_s = slow.moved / slow.bytes_per_s / slow.batch
    kinds = [  # of time, per sample: cause, how much of it each side has, its least and most
        (LAUNCHES, 1.0, 0.0, (0.0, slow.operators * slow.launch_s / slow.batch)),
        (LAUNCHES, 0.0, 1.0, (0.0, fast.operators * fast.launch_s / fast.batch)),
        (PRODUCTS, 1.0, slow.flop_per_s / fast.flop_per_s, (products_s, None)),
        (BANDWIDTH, 1.0, traffic, (0.0, None)),  # activations
        (BANDWIDTH, 1.0, traffic * slow.batch / fast.batch, (weights_s, None)),
    ]
    causes, of_slow, of_fast, ends = zip(*kinds, strict=True)
    passes = {"A_ub": [of_slow, of_fast], "b_ub": [slow.seconds, fast.seconds], "bounds": ends}
    for cause in (LAUNCHES, PRODUCTS, BANDWIDTH, ALL):
        longer = np.subtract(of_slow, of_fast) * [cause in (own, ALL) for own in causes]
        least, most = linprog(longer, **passes), linprog(-longer, **passes)
        if not (least.success and most.success):
            raise Missing(TOO_SHORT)
        yield cause, float(least.fun), -float(most.fun)


def of_gap(slow: Side, fast: Side) -> list[dict[str, Any]]:
    """The lines of two passes: each cause, then all three."""
    gap_s = slow.seconds - fast.seconds
    if not gap_s:
        raise Missing("both take equally long")
    basis = {
        LAUNCHES: f"formula: {slow.operators} and {fast.operators} operators; "
        f"published: {slow.launch_s:.4g} s and {fast.launch_s:.4g} s a launch",
        PRODUCTS: f"registry: {slow.flop_per_s:.4g} and {fast.flop_per_s:.4g} FLOP/s; "
        f"formula: at least {slow.flops:.3g} FLOP a slow pass",
        BANDWIDTH: f"registry: {slow.bytes_per_s:.4g} and {fast.bytes_per_s:.4g} byte/s; "
        f"formula: at least {slow.moved:.3g} byte a slow pass",
    }
    lines: list[dict[str, Any]] = []
    for cause, *ends in bounds(slow, fast):
        least, most = (0.0 if abs(end) < ROUNDING * gap_s else end for end in ends)
        numbers = {
            **{"slow_s_per_sample": slow.seconds, "fast_s_per_sample": fast.seconds},
            **{"least_s_per_sample": least, "most_s_per_sample": most, "gap_s_per_sample": gap_s},
            **{"least_share": least / gap_s, "most_share": most / gap_s},
            "can_be": NOTHING if most <= 0 else PART if most < gap_s else WHOLE,
        }
        of = {"cause": cause, "basis": basis.get(cause)}
        lines.append(about(slow.row, fast.row) | of | numbers)
    *single, together = lines
    alone = [f"{line['cause']} alone" for line in single if line["can_be"] == WHOLE]
    together["conclusion"] = f"Allows {' or '.join(alone) or 'the three together'}."
    if together["most_share"] < 1:
        other = math.floor(100 * (1 - together["most_share"])) / 100  # rounded up it is not sure
        together["conclusion"] = f"At least {words.whole_percent(other)} is something else."
    return lines


def table4(published: Published) -> pd.DataFrame:
    """The lines of every pair of Table 4 that shares a device, a backend or a batch size."""
    lines = []
    for a, b in combinations(published.rows("table4_pass_time"), 2):
        alike = any(a[name] == b[name] for name in ("device", "backend", "batch_size"))
        for updates, phase in PHASES.items() if alike and a["workload"] == b["workload"] else ():
            try:
                sides = [Side.of(row, published, updates) for row in (a, b)]
                fast, slow = sorted(sides, key=lambda side: side.seconds)
                found = of_gap(slow, fast)
            except Missing as reason:
                found = [about(a, b) | {"cause": ALL, "reason": str(reason)}]
            lines += [line | {"phase": phase} for line in found]
    return pd.DataFrame(lines).assign(published_in="Table 4")


def figure3(published: Published) -> pd.DataFrame:
    """A line for every two devices of Table 3 that train one workload in one scenario: no times."""
    rows = combinations(published.rows("table3_configurations"), 2)
    same = ("workload", "scenario", "batch_size")
    lines = [about(a, b) for a, b in rows if all(a[name] == b[name] for name in same)]
    told = {"published_in": "Figure 3", "phase": PHASES[False], "cause": ALL, "reason": A_PICTURE}
    return pd.DataFrame(lines).assign(**told)


def write(arguments: argparse.Namespace) -> None:
    """Compute and write: the table.

    Raises:
        UserError: a published table lacks something.
    """
    published = Published(arguments.published, registry.load(arguments.registry))
    try:
        table = pd.concat([table4(published), figure3(published)])
    except Unknown as unknown:
        raise UserError(f"{arguments.published}: {unknown}") from None
    table_files.write_frame(arguments.output_dir / "published_gaps.csv", table)
