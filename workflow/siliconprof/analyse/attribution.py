"""Why one training takes longer than another of equal work: by phase, and by part of the step.

`attribution.csv`: for each pair of trainings that did the same work (see `pairs`), a line for the gap
in seconds per step, one for each phase (they sum to the gap exactly), one for each cause, and one for
what no cause explains, which may be negative. The causes are the parts of the step, with 95 %
intervals; the last line also has what they leave of both steps. Where the operators of a step were
not timed, there are phases and no causes, and the last line says so.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from siliconprof.analyse.equal_work import NO_GAP
from siliconprof.analyse.frames import CELL, POINT, Frames, holds
from siliconprof.analyse.operator_rows import BLOCKED, FRAMEWORK, PARTS, WAITING
from siliconprof.stats import inference
from siliconprof.store import columns, table_files
from siliconprof.store.record import HERE
from siliconprof.store.table_files import Tables

SIDES = ("fast", "slow")
STEP_MEDIAN, LOW, HIGH = (f"whole_step_{part}_s" for part in ("median", "low", "high"))
GAP, PHASE, CAUSE, UNEXPLAINED_PART = "gap", "phase", "cause", "unexplained"  # kinds of line
SPLIT_PHASES = ["forward", "backward", "optimizer"]  # and the rest
REST = "rest"
FASTEST, FASTEST_OF_ALL = "against the fastest plain fp32 cell", "against the fastest cell"
FASTEST_IN_FP32 = "against the fastest fp32 cell"
SAME_WORK, ELSEWHERE = "same workload and precision", "fastest of two hosts"
EXPLAINED, PERHAPS = "explained mostly", "perhaps explained"
UNEXPLAINED, OVER = "unexplained mostly", "over-explained"
NOT_TAKEN_APART, DISTURBED_GAP = "not taken apart", "disturbed"
NOT_EXPLAINED = (
    "other processes disturbed it, so that its operators explain nothing; to measure again: "
)
MAIN_CAUSE_SHARE = 0.5  # of the gap
CLOSED_WITHIN = 0.1  # of a step: the most that its parts may leave of it
NOT_TOLD = "none that can be told from its operators and the framework"
NOT_SPLIT = "not timed apart on both sides; it is in the rest"


def has_parts(points: pd.DataFrame) -> pd.Series:
    """Mask of the points whose step can be split into parts.

    A check of a mechanism has no speed, and a compiled step has no phases.
    """
    eager = points["trainer"].notna() & ~holds(points, "compile") & ~points["is_mechanism_check"]
    return eager & points[STEP_MEDIAN].gt(0)


def pairs(points: pd.DataFrame) -> pd.DataFrame:
    """Pair trainings that did the same work and have parts, each pair once.

    - On one host, the fastest plain fp32 cell (else fp32 of any trainer, else any) against each other.
    - On one host, the fastest cell of all against other devices and backends in its precision.
    - Under one workload, scenario and precision, every two backends of a device, and the fastest
      backend of each device against that of the fastest device.
    - The fastest plain fp32 cell of this host against that of each other host.

    Returns:
        `rule`; `fast` and `slow`, labels of points.
    """
    names = [*CELL, "work", "trainer", "disturbed", STEP_MEDIAN]
    steps = points.loc[has_parts(points), names].reset_index(names="at")

    def number(*names: str) -> pd.Series:
        return steps.groupby([*names], sort=False, dropna=False).ngroup()

    steps["work"] = number("work")
    steps["on_host"] = number("work", "source", "host")
    steps["alike"] = number("on_host", "workload", "scenario", "precision")
    steps["on_device"] = number("alike", "device")
    fp32, plain = steps["precision"].eq("fp32"), steps["trainer"].eq("plain")
    steps["tier"] = np.select([fp32 & plain, fp32], [0, 1], 2)

    def fastest(of: str, *first: str) -> pd.DataFrame:
        return steps.sort_values([*first, STEP_MEDIAN], kind="stable").drop_duplicates(of)

    def paired(others: pd.DataFrame, on: str, these: pd.DataFrame = steps) -> pd.DataFrame:
        return these.merge(others, on=on, suffixes=("", "_other"))

    baselines = fastest("on_host", "tier")
    here = baselines["source"].eq(HERE)
    all_others = paired(baselines, "on_host")
    rules = all_others["tier_other"].map({0: FASTEST, 1: FASTEST_IN_FP32, 2: FASTEST_OF_ALL})
    backends = paired(steps, "on_device").query("at_other < at").sort_values(["at_other", "at"])
    devices = paired(fastest("alike"), "alike", fastest("on_device")).assign(on_device=math.inf)
    alike = pd.concat([backends, devices]).sort_values(["alike", "on_device"], kind="stable")
    of_all = paired(fastest("on_host", "disturbed"), "on_host").query(
        "scenario == scenario_other and precision == precision_other"
        " and (device != device_other or backend != backend_other)"
    )
    hosts = paired(baselines[here], "work", baselines[~here].sort_values("on_host"))
    found = pd.concat(
        [
            all_others.assign(rule=rules),
            alike.assign(rule=SAME_WORK),
            of_all.assign(rule=FASTEST_OF_ALL),
            hosts.assign(rule=ELSEWHERE, on_host=math.inf),
        ]
    ).sort_values(["work", "on_host"], kind="stable")
    in_order = found[f"{STEP_MEDIAN}_other"] <= found[STEP_MEDIAN]
    found["fast"] = found["at_other"].where(in_order, found["at"])
    found["slow"] = found["at"].where(in_order, found["at_other"])
    found["first"], found["last"] = found[[*SIDES]].min(axis=1), found[[*SIDES]].max(axis=1)
    found = found[found["first"] < found["last"]].drop_duplicates(["first", "last"])
    return found[["rule", *SIDES]].reset_index(drop=True)


def lines(points: pd.DataFrame, pairs: pd.DataFrame, step_parts: pd.DataFrame) -> pd.DataFrame:
    """Lines of attribution.csv for some pairs; their labels become the column `pair`."""
    fast, slow = (points.loc[pairs[side]].set_axis(pairs.index) for side in SIDES)
    gap, costs = _gap(fast, slow), _costs(points, step_parts)
    timed = pairs[[*SIDES]].isin(costs["at"].unique())
    is_timed, disturbed = timed.all(axis=1), fast["disturbed"] | slow["disturbed"]
    causes = _causes(pairs[is_timed & ~disturbed], costs)
    left = _left(gap, causes)
    verdict = (
        _verdict(gap, causes, left).where(is_timed, NOT_TAKEN_APART).mask(disturbed, DISTURBED_GAP)
    )
    verdict = verdict.where(gap["low_s"] > 0, NO_GAP)
    of_whom = np.select([timed["slow"], timed["fast"]], ["the faster", "the slower"], "both")
    why = "the operators of " + pd.Series(of_whom, gap.index) + " were not timed: no part is known"
    left["reason"] = why.mask(is_timed).mask(disturbed, NOT_EXPLAINED + _measured_again(fast, slow))
    parts = [gap.assign(verdict=verdict), *_phases(fast, slow, gap), causes]
    table = pd.concat([*parts, left.assign(verdict=verdict)]).sort_index(kind="stable")
    for side, of in zip(SIDES, (fast, slow), strict=True):
        table = table.join(of[POINT].add_prefix(f"{side}_"))
    whole = gap["seconds"].where(gap["seconds"] > 0).rename("share")
    table = table.join(pairs["rule"]).join(whole)
    table["share"] = table["seconds"] / table["share"]
    return table.rename_axis("pair").reset_index()[[*columns.columns_of_table("attribution")]]


def _measured_again(fast: pd.DataFrame, slow: pd.DataFrame) -> pd.Series:
    """The command that measures the disturbed sides of each pair again."""
    sides = [side["record"].where(side["disturbed"], "") for side in (fast, slow)]
    elsewhere = (fast["disturbed"] & ~fast["here"]) | (slow["disturbed"] & ~slow["here"])
    records = (sides[0] + " " + sides[1]).str.strip()
    where = elsewhere.map({True: " on its own host", False: ""})
    return "snakemake --cores 1 report --forcerun " + records + where


def _gap(fast: pd.DataFrame, slow: pd.DataFrame) -> pd.DataFrame:
    """The difference of both whole steps; its ends are the worst of both 95 % intervals."""
    bases = [inference.basis(side["processes"]) for side in (fast, slow)]
    numbers = {
        "seconds": slow[STEP_MEDIAN] - fast[STEP_MEDIAN],
        "low_s": slow[LOW] - fast[HIGH],
        "high_s": slow[HIGH] - fast[LOW],
        "fast_s": fast[STEP_MEDIAN],
        "slow_s": slow[STEP_MEDIAN],
        "fast_how": ["; ".join(dict.fromkeys(both)) for both in zip(*bases, strict=True)],
    }
    return pd.DataFrame({"kind": GAP, "part": GAP} | numbers, fast.index)


def _phases(fast: pd.DataFrame, slow: pd.DataFrame, gap: pd.DataFrame) -> list[pd.DataFrame]:
    """The gap by phase; the rest is what is left, so that the phases sum to the gap exactly."""
    names = {f"{name}_median_s": name for name in SPLIT_PHASES}
    fast, slow = (side.reindex(columns=[*names]).rename(columns=names) for side in (fast, slow))
    found, rest_s = [], gap["seconds"]
    for phase in SPLIT_PHASES:
        seconds = slow[phase] - fast[phase]
        rest_s = rest_s - seconds.fillna(0.0)
        reason = seconds.isna().map({True: NOT_SPLIT, False: None})
        both = {"fast_s": fast[phase], "slow_s": slow[phase], "reason": reason}
        found.append(pd.DataFrame({"kind": PHASE, "part": phase, "seconds": seconds} | both))
    how = "data and other timed parts of a step, and what splitting a step changes"
    rest = {"kind": PHASE, "part": REST, "seconds": rest_s, "fast_how": how}
    return [*found, pd.DataFrame(rest, gap.index)]


def _costs(points: pd.DataFrame, step_parts: pd.DataFrame) -> pd.DataFrame:
    """Seconds of each part of each step: `at` (the label of its point), `part`, `s`, its ends, `how`."""
    parts = step_parts.astype({"seconds": float, "low_s": float, "high_s": float, "point": int})
    parts = parts.merge(points[POINT].reset_index(names="at"), on=POINT)
    return parts.rename(columns={"seconds": "s"})[["at", "part", "s", "low_s", "high_s", "how"]]


def _causes(pairs: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    """A line for each part: how much longer the slow step's takes; intervals add in quadrature."""
    fast, slow = (
        pairs[side].rename_axis("pair").reset_index(name="at").merge(costs, on="at")
        for side in SIDES
    )
    both = fast.merge(slow, on=["pair", "part"], how="outer", suffixes=("_fast", "_slow"))
    spent = [f"{name}_{side}" for name in ("s", "low_s", "high_s") for side in SIDES]
    both[spent] = both[spent].fillna(0.0)
    both["order"] = both["part"].map(PARTS.index)
    both = both.sort_values(["pair", "order"]).set_index("pair")
    untold = both["part"].map({BLOCKED: NOT_TOLD, WAITING: NOT_TOLD})
    seconds = both["s_slow"] - both["s_fast"]
    below = both["s_slow"] - both["low_s_slow"], both["high_s_fast"] - both["s_fast"]
    above = both["high_s_slow"] - both["s_slow"], both["s_fast"] - both["low_s_fast"]
    numbers = {
        "seconds": seconds,
        "low_s": seconds - np.hypot(*below),
        "high_s": seconds + np.hypot(*above),
        "fast_s": both["s_fast"],
        "slow_s": both["s_slow"],
        "fast_how": both["how_fast"].fillna(untold),
        "slow_how": both["how_slow"].fillna(untold),
    }
    return pd.DataFrame({"kind": CAUSE, "part": both["part"]} | numbers)


def _left(gap: pd.DataFrame, causes: pd.DataFrame) -> pd.DataFrame:
    """What the parts leave unexplained of each gap and of both steps."""
    ends = causes.assign(
        low_s=(causes["high_s"] - causes["seconds"]) ** 2,
        high_s=(causes["seconds"] - causes["low_s"]) ** 2,
    )
    names = ["seconds", "low_s", "high_s", "fast_s", "slow_s"]
    summed = ends.groupby("pair")[names].sum().reindex(gap.index)
    left = gap[["seconds", "fast_s", "slow_s"]] - summed[["seconds", "fast_s", "slow_s"]]
    below = (gap["seconds"] - gap["low_s"]) ** 2 + summed["low_s"]
    above = (gap["high_s"] - gap["seconds"]) ** 2 + summed["high_s"]
    left["low_s"] = left["seconds"] - np.sqrt(below)
    left["high_s"] = left["seconds"] + np.sqrt(above)
    return left.assign(kind=UNEXPLAINED_PART, part=UNEXPLAINED_PART)


def _verdict(gap: pd.DataFrame, causes: pd.DataFrame, left: pd.DataFrame) -> pd.Series:
    """How much of each gap beyond noise the parts explain, in two words."""
    # Only perhaps explained are: a gap in the framework's part, which is a remainder and explains
    # nothing; a gap whose unexplained part is large but within noise; and a gap of steps whose parts
    # are off by more than `CLOSED_WITHIN`, or whose framework part is negative, because their
    # operators took longer while they were watched.
    rest = causes[causes["part"] == FRAMEWORK].reindex(gap.index)
    sides = ["fast_s", "slow_s"]
    off = left[sides].abs() + rest[sides].clip(upper=0.0).abs()
    closed = (off <= CLOSED_WITHIN * gap[sides]).all(axis=1)
    mostly = MAIN_CAUSE_SHARE * gap["seconds"]
    explained = left["seconds"].abs() <= mostly
    by_the_others = (left["seconds"] + rest["seconds"]).abs() <= mostly
    within_noise = left["low_s"].le(0) & left["high_s"].ge(0)
    rules = [explained & closed & by_the_others, explained | within_noise, left["seconds"] > 0]
    return pd.Series(np.select(rules, [EXPLAINED, PERHAPS, UNEXPLAINED], OVER), gap.index)


def write(frames: Frames, output: Tables) -> None:
    """Compute and write attribution.csv."""
    points = frames.undisturbed
    table = lines(points, pairs(points), frames.results.step_parts)
    table_files.write_frame(table_files.path(output, "attribution"), table)
