"""What the launch cost of Table 6, peaks and bandwidths can explain of the paper's gaps, in bounds.

Nothing here is measured: times and launch costs are published, peaks and bandwidths the registry's,
operators, operations and bytes by formula. The paper prints no part of a pass and no sequence
length, so a cause gets an interval. It holds every division of both passes, per sample, in which

- each second belongs to launches, products, memory traffic or the rest;
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from siliconprof import plugins, words
from siliconprof.analyse import step_work
from siliconprof.analyse.published_values import Published, Unknown, model_and_size
from siliconprof.errors import UserError
from siliconprof.hosts import registry
from siliconprof.hosts.datasheet import DataSheets
from siliconprof.store import columns, table_files
from siliconprof.store.table_files import Row
from siliconprof.workloads import gpt2

LAUNCHES, PRODUCTS, BANDWIDTH, ALL = "launches", "products", "bandwidth", "all three"
CAUSES = (LAUNCHES, PRODUCTS, BANDWIDTH)
PHASES = {  # whether the update is in the pass -> the phase; the paper does not say which
    True: "forward, backward and update",
    False: "forward and backward",
}
TABLE_4, FIGURE_3 = "Table 4", "Figure 3"
TABLE_6 = "table6_kernel_launch"
A_PICTURE = "Figure 3 prints its times as a picture alone, and no value is read off it"
PUBLISHED, REGISTRY, FORMULA = "published: ", "registry: ", "formula: "
NOTHING, PART, WHOLE = "nothing", "part of it", "all of it"
ROUNDING = 1e-6  # of a gap: what a linear program leaves
# Operators of GPT-2's forward and backward pass in fp32: (of a layer, beside the layers). Counted on a
# CPU without views: in torch 2.13 with transformers 5.23 what a dispatch mode sees on the second step,
# in MLX 0.32 what the graph of a step holds; tests count again.
OPERATORS = {"torch": (34, 26), "mlx": (264, 105)}
TENSORS = (12, 4)  # that GPT-2 trains, likewise


class Missing(Exception):
    """What neither the paper nor the registry tells."""


@dataclass(frozen=True)
class Share:
    """A kind of time that a linear program divides passes into, in seconds per sample.

    Args:
        slow, fast: how much of it each side has for one unit.
    """

    cause: str
    slow: float
    fast: float
    least: float = 0.0
    most: float | None = None


@dataclass(frozen=True)
class Side:
    """One row of Table 4 with what Table 6 and the registry say of its device."""

    row: Mapping[str, str]
    name: str
    batch: float
    s_per_sample: float
    launch_s: float | None
    sheets: DataSheets

    @classmethod
    def of(cls, row: Mapping[str, str], published: Published) -> Side:
        """A side.

        Raises:
            Missing: the row has no time, batch size or precision.
        """
        name = published.label(row, without=("workload",))
        for column in ("pass_time_s", "batch_size", "precision"):
            if not row[column]:
                raise Missing(f"the paper prints no {column} of {name}")
        if row["precision"] not in registry.PEAK_OF_PRECISION:
            raise Missing(f"{name}: no data sheet has peaks for precision {row['precision']}")
        costs = {r["device"]: r["followup_launch_ms"] for r in published.rows(TABLE_6)}
        cost = costs.get(row["device"])
        batch = float(row["batch_size"])
        sheets = DataSheets(published.registry, {"devices": []})
        launch_s = float(cost) / 1e3 if cost else None
        return cls(row, name, batch, float(row["pass_time_s"]) / batch, launch_s, sheets)

    @property
    def _place(self) -> Row:
        return {"source": "published", "device": self.row["device"]}

    def launches_s(self, updates: bool) -> float:
        """Seconds per sample of its launches if none is hidden.

        Raises:
            Missing: no launch cost, or nobody has counted its operators.
        """
        if self.launch_s is None:
            raise Missing(f"Table 6 has no launch of {self.name}")
        return operators(self.row, updates) * self.launch_s / self.batch

    def rate(self, cause: str) -> float:
        """The data sheet's rate of products or of memory, in FLOP/s or bytes/s.

        Raises:
            Missing: no source gives it.
        """
        of_products = cause == PRODUCTS
        figure = (
            self.sheets.peak(self._place, self.row["precision"])
            if of_products
            else self.sheets.bandwidth(self._place)
        )
        if figure.value is None:
            raise Missing(str(figure.reason))
        return figure.value


def operators(row: Mapping[str, str], updates: bool) -> int:
    """The most operators that a pass launches.

    Where a backend updates all weights in one call, that call is several launches; so the update
    counts as by the backend of its framework that launches most.

    Raises:
        Missing: nobody has counted them.
    """
    module, size = model_and_size(row["workload"])
    framework = row["backend"].partition("-")[0]
    of_framework = [
        counted.update
        for backend, counted in step_work.OF_BACKEND.items()
        if backend.partition("-")[0] == framework
    ]
    known = module == "gpt2" and size in gpt2.SIZES and row["precision"] == "fp32"
    if not known or not of_framework:
        name = f"{row['workload']} in {row['precision']} on {row['backend']}"
        raise Missing(f"nobody has counted the operators of {name}")
    n_layer = gpt2.SIZES[size][0]
    of_passes, tensors = (
        each * n_layer + beside for each, beside in (OPERATORS[framework], TENSORS)
    )
    return of_passes + updates * max(each * tensors + beside for each, beside in of_framework)


def least_work(row: Mapping[str, str], updates: bool) -> tuple[float, float]:
    """(operations, bytes) that a pass has at least, at the fewest tokens that a sequence can have.

    Every weight is read and its gradient written, once each; the update moves seven values a weight.

    Raises:
        Missing: no formula.
    """
    module, size = model_and_size(row["workload"])
    plugin = plugins.load("workloads", module) if module in plugins.names("workloads") else None
    if plugin is None or "seq_len" not in plugin.PARAMETERS:
        raise Missing(f"there is no formula for the work of {row['workload']}")
    defaults = {k: v["default"] for k, v in plugin.PARAMETERS.items() if "default" in v}
    fewest = {"seq_len": plugin.PARAMETERS["seq_len"]["minimum"]}
    workload = plugin(
        defaults | fewest | {"size": size, "batch_size": int(float(row["batch_size"]))}
    )
    width = 2 if step_work.way(row["precision"]) == "pure" else 4
    passes = 2 + step_work.ADAMW_PASSES * updates
    return workload.flops_per_step()[0], float(passes * width * workload.n_parameters())


def shares(slow: Side, fast: Side, cause: str, updates: bool) -> list[Share]:
    """What the passes have of one cause.

    Raises:
        Missing: see `Side` and `least_work`.
    """
    if cause == LAUNCHES:
        return [
            Share(cause, 1.0, 0.0, most=slow.launches_s(updates)),
            Share(cause, 0.0, 1.0, most=fast.launches_s(updates)),
        ]
    ratio = slow.rate(cause) / fast.rate(cause)
    operations, moved = least_work(slow.row, updates)
    if cause == PRODUCTS:
        return [Share(cause, 1.0, ratio, least=operations / slow.rate(cause) / slow.batch)]
    least = moved / slow.rate(cause) / slow.batch
    activations = Share(cause, 1.0, ratio)
    return [activations, Share(cause, 1.0, ratio * slow.batch / fast.batch, least)]


def bounds(
    slow_s: float, fast_s: float, parts: Sequence[Share], causes: Sequence[str]
) -> tuple[float, float]:
    """(least, most) seconds that causes take longer on the slow side than on the fast one.

    Raises:
        Missing: the passes are shorter than what they have at least.
    """
    from scipy.optimize import linprog  # slow to load

    longer = [(part.slow - part.fast) * (part.cause in causes) for part in parts]
    ends = []
    for sign in (1, -1):
        solved = linprog(
            [sign * value for value in longer],
            A_ub=[[part.slow for part in parts], [part.fast for part in parts]],
            b_ub=[slow_s, fast_s],
            bounds=[(part.least, part.most) for part in parts],
        )
        if not solved.success:
            raise Missing(
                "a pass is shorter than its products and traffic at the data sheet's rates"
            )
        ends.append(sign * float(solved.fun))
    return ends[0], ends[1]


def table4_rows(published: Published) -> Iterator[Row]:
    """Lines of every pair of Table 4 that shares a device, a backend or a batch size."""
    for pair in combinations(published.rows("table4_pass_time"), 2):
        a, b = pair
        alike = any(a[name] == b[name] for name in ("device", "backend", "batch_size"))
        if a["workload"] != b["workload"] or not alike:
            continue
        for updates in PHASES:
            try:
                fast, slow = sorted(
                    (Side.of(row, published) for row in pair), key=lambda s: s.s_per_sample
                )
            except Missing as reason:
                yield line(TABLE_4, PHASES[updates], a, b) | {"cause": ALL, "reason": str(reason)}
            else:
                yield from pair_rows(slow, fast, updates)


def pair_rows(slow: Side, fast: Side, updates: bool) -> Iterator[Row]:
    """The lines of two passes: each cause, then all three."""
    about = line(TABLE_4, PHASES[updates], slow.row, fast.row) | {
        "slow_s_per_sample": slow.s_per_sample,
        "fast_s_per_sample": fast.s_per_sample,
        "gap_s_per_sample": slow.s_per_sample - fast.s_per_sample,
    }
    parts: list[Share] = []
    reasons: dict[str, str] = {}
    for cause in CAUSES:
        try:
            parts += shares(slow, fast, cause, updates)
        except Missing as reason:
            reasons[cause] = str(reason)
    if reasons:
        reasons[ALL] = "; ".join(dict.fromkeys(reasons.values()))
    lines = []
    for cause in (*CAUSES, ALL):
        found = about | {"cause": cause, "basis": basis(slow, fast, cause, updates, parts)}
        lines.append(found)
        try:
            if cause in reasons:
                raise Missing(reasons[cause])
            if not about["gap_s_per_sample"]:
                raise Missing("both take equally long")
            own = CAUSES if cause == ALL else (cause,)
            ends = bounds(slow.s_per_sample, fast.s_per_sample, parts, own)
        except Missing as reason:
            found |= {"reason": str(reason), "basis": None}
            continue
        gap_s = about["gap_s_per_sample"]
        least, most = (0.0 if abs(end) < ROUNDING * gap_s else end for end in ends)
        found |= {
            "least_s_per_sample": least,
            "most_s_per_sample": most,
            "least_share": least / gap_s,
            "most_share": most / gap_s,
            "can_be": NOTHING if most <= 0 else PART if most < gap_s else WHOLE,
        }
    lines[-1]["conclusion"] = conclusion(lines)
    yield from lines


def conclusion(lines: Sequence[Mapping[str, Any]]) -> str | None:
    """What the published numbers say of one gap, in words; None where a bound is missing."""
    if any(row["reason"] for row in lines):
        return None
    *single, together = lines
    if together["most_share"] < 1:
        least = math.floor(100 * (1 - together["most_share"])) / 100  # rounded up it is not sure
        return f"At least {words.whole_percent(least)} is something else."
    whole = [row["cause"] for row in single if row["can_be"] == WHOLE]
    allowed = " or ".join(f"{cause} alone" for cause in whole) or "the three together"
    return f"Allows {allowed}."


def basis(slow: Side, fast: Side, cause: str, updates: bool, parts: Sequence[Share]) -> str | None:
    """Where the numbers of a line are from."""
    if cause == ALL or not any(part.cause == cause for part in parts):
        return None
    if cause == LAUNCHES:
        counted = " and ".join(f"{operators(side.row, updates)}" for side in (slow, fast))
        costs = " and ".join(f"{side.launch_s:.4g} s" for side in (slow, fast))
        return f"{FORMULA}{counted} operators; {PUBLISHED}{costs} a launch"
    rates = " and ".join(f"{side.rate(cause):.4g}" for side in (slow, fast))
    unit = "FLOP/s" if cause == PRODUCTS else "byte/s"
    work = least_work(slow.row, updates)[CAUSES.index(cause) - 1]
    return f"{REGISTRY}{rates} {unit}; {FORMULA}at least {work:.3g} {unit[:4]} a slow pass"


def line(place: str, phase: str, slow: Mapping[str, str], fast: Mapping[str, str]) -> Row:
    """What a line is about, without its numbers."""
    row = columns.blank("published_gaps") | {
        "published_in": place,
        "workload": slow["workload"],
        "phase": phase,
    }
    for side, of in (("slow", slow), ("fast", fast)):
        batch = of["batch_size"]
        row |= {
            f"{side}_device": of["device"],
            f"{side}_backend": of.get("backend"),
            f"{side}_batch_size": float(batch) if batch else None,
        }
    return row


def figure3_rows(published: Published) -> Iterator[Row]:
    """A line for every two devices of Table 3 that train one workload in one scenario: no times."""
    for a, b in combinations(published.rows("table3_configurations"), 2):
        if all(a[name] == b[name] for name in ("workload", "scenario", "batch_size")):
            yield line(FIGURE_3, PHASES[False], a, b) | {"cause": ALL, "reason": A_PICTURE}


def write(arguments: argparse.Namespace) -> None:
    """Compute and write: the table.

    Raises:
        UserError: a published table lacks something.
    """
    published = Published(arguments.published, registry.load(arguments.registry))
    try:
        lines = [*table4_rows(published), *figure3_rows(published)]
    except Unknown as unknown:
        raise UserError(f"{arguments.published}: {unknown}") from None
    table_files.write(arguments.output_dir / "published_gaps.csv", lines)
