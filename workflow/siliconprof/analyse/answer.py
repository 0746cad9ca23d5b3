"""The answer: each training's fastest setup, against what. Page, terminal and files take it from here."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from siliconprof import formatting
from siliconprof.analyse.attribution import CAUSE
from siliconprof.analyse.frames import CELL, DEVICE, Frames, holds, records
from siliconprof.analyse.throughputs import PLACE
from siliconprof.store.record import REFERENCE

STEP = "whole_step_ms"
FAILED_STATUSES = ("failed", "oom", "timeout")
ONLY_ONE = " (the only one)"  # setup that was measured of a training: the fastest of nothing
MANY_TOKENS = 1e8  # that a training of the user's model is told in hours of
MOST_CAUSES, LEAST_SHARE = 3, 0.1  # of a gap, that its row names
LONGEST_REASON = 240  # of a reason; the table of all cells has the whole
INTERVAL_ENDS = (("", "", ""), ("_low", "_low", "_high"), ("_high", "_high", "_low"))  # of a ratio


def ranked_trainings(frames: Frames) -> pd.DataFrame:
    """`Frames.steps` by the batch that the config gives: of a cell with several, the largest.

    Trainings near capacity are left out: each setup chose its batch itself.
    """
    steps = frames.steps[~holds(frames.steps, "batch_size_found")]
    largest = steps.groupby(CELL)["samples_per_step"].transform("max")
    return steps[steps["samples_per_step"].eq(largest) | largest.isna()]


@lru_cache(maxsize=1)  # page, terminal and three exhibits ask of the same run
def fastest(frames: Frames) -> pd.DataFrame:
    """A row for the fastest setup of each training measured here or on another host.

    The frame is cached for a run: callers must not change it.

    Large models come first. Setups of reference bundles are only compared with, even if they are
    faster. Disturbed trainings count only where nothing else was measured. Columns beside those of
    the point:

    - of the fastest setup on any other backend, device or host: `rival_setup`, `rival_place`,
      `rival_index`, and `rival_times`, how many times as long it takes, with its interval; of the
      fastest of these in the same precision: `same_…`
    - `comparison` in words; `names_device`, whether it names the device
    - `training`, its name
    - up to three largest `cause`s of a gap with their shares; `cause_of`, which gap in words;
      `cause_pair`, its pair in `Frames.gaps`
    - `per_1000_usd`, samples/s, where a source has the device's price
    - `of_model`, how fast the user's model learns and whether it fits, in words
    """
    trainings = ranked_trainings(frames)
    trainings = trainings.assign(remark=_remarks(trainings))
    own = trainings.loc[trainings["source"] != REFERENCE, "work"]
    trainings = trainings[trainings["work"].isin(own)]
    is_plain = trainings["apart"] == ""
    has_plain = trainings["work_label"].isin(trainings.loc[is_plain, "work_label"])
    ranked = trainings[is_plain | ~has_plain].sort_values(["disturbed", STEP], kind="stable")
    own_ranked = ranked[ranked["source"] != REFERENCE]
    frame = own_ranked.drop_duplicates("work").assign(point_index=lambda best: best.index)
    setups = ranked.drop_duplicates(["work", *PLACE, "setup"]).groupby("work").size()
    frame["setup"] += frame["work"].map(setups).eq(1).map({True: ONLY_ONE, False: ""})
    rivals = ranked.assign(index=ranked.index).merge(
        frame[["work", *PLACE, "precision"]], on="work", suffixes=("", "_best")
    )
    elsewhere = [f"{name}_best" for name in PLACE]
    rivals = rivals[(rivals[PLACE] != rivals[elsewhere].set_axis(PLACE, axis=1)).any(axis=1)]
    same = rivals[rivals["precision"] == rivals["precision_best"]]
    for name, rows in (("rival", rivals), ("same", same)):
        first = rows.drop_duplicates("work").set_index("work")
        for column in ("source", "setup", "place", "index", "remark"):
            frame[f"{name}_{column}"] = frame["work"].map(first[column])
        for end, slow, fast in INTERVAL_ENDS:
            step = frame["work"].map(first[f"{STEP}{slow}"])
            frame[f"{name}_times{end}"] = step / frame[f"{STEP}{fast}"]
    sides = zip(("source", "rival_source"), ("place", "rival_place"), strict=True)
    own_places = [frame.loc[frame[source].ne(REFERENCE), place].dropna() for source, place in sides]
    several = pd.concat(own_places).nunique() > 1
    elsewhere_too = frame["rival_place"].notna() & frame["rival_place"].ne(frame["place"])
    frame["names_device"] = several | elsewhere_too
    frame["training"] = _names(frame["work_label"])
    frame["comparison"] = pd.Series([_in_words(row) for row in records(frame)], frame.index, str)
    frame = _with_causes(frame, frames)
    price = [frames.sheets.price_usd(row) for row in records(frame[DEVICE])]
    frame["per_1000_usd"] = 1e3 * frame["samples_per_s"] / pd.Series(price, frame.index, float)
    frame["of_model"] = _model_in_words(frame, frames)
    by = ["n_parameters", "family_order"]
    return frame.sort_values(by, ascending=False, kind="stable", ignore_index=True)


def _model_in_words(frame: pd.DataFrame, frames: Frames) -> pd.Series:
    """`76.3 tokens/s, 364 h per 100 million tokens, 69 % of the ceiling …`; NA of other trainings."""
    checks = frames.table("checks")
    shares = checks[checks["quantity"].eq("flop_per_s")].set_index("order")["of_ceiling"]
    told: list[str | None] = []
    for row in records(frame):
        if row["module"] != "causal_lm" or not frames.matrix.experiment.get("model"):
            told.append(None)
            continue
        rate, share = row["tokens_per_s"], shares.get(row["order"], np.nan)
        need, capacity = row["predicted_memory_bytes"], row["capacity_bytes"]
        parts = [f"{formatting.significant(rate)} tokens/s"]
        parts += [f"{formatting.significant(MANY_TOKENS / rate / 3600)} h per 100 million tokens"]
        if not np.isnan(share):
            parts.append(f"{formatting.whole_percent(share)} of the ceiling of products")
        if need and capacity and need <= capacity:
            parts += [f"it fits: {formatting.mebibytes(need)} of {formatting.mebibytes(capacity)}"]
        told.append(", ".join(parts))
    return pd.Series(told, frame.index, "str")


def failures(frames: Frames) -> list[str]:
    """What failed and may have been the fastest: a sentence for each backend of each host.

    Where all trainings of a backend were measured, nothing could turn a ranking round.
    """
    cells = frames.cells[frames.cells["source"] != REFERENCE]
    sentences = []
    for (_, _, backend), rows in cells.groupby([*DEVICE[1:], "backend"], sort=False):
        lost = rows[rows["status"].isin(FAILED_STATUSES)]
        if lost["trainer"].notna().any():
            reasons = lost["reason"].fillna("").value_counts()
            others = f" (and {len(reasons) - 1} other reasons)" if len(reasons) > 1 else ""
            whose = "" if rows["here"].all() else f"{rows['place'].iloc[0]} · "
            why = formatting.shortened(reasons.index[0], LONGEST_REASON)
            cells_ = formatting.count(len(rows), "cell")
            sentences.append(f"{whose}{backend}: {len(lost)} of {cells_} failed: {why}{others}")
    if frames.matrix.experiment.get("model"):
        unfit = cells[cells["status"].eq("skipped") & cells["module"].eq("causal_lm")]
        unfit = unfit[unfit["reason"].str.contains("predicted")]
        whys = unfit["model"] + " under " + unfit["backend"] + ": " + unfit["reason"]
        sentences += [*whys.drop_duplicates()]
    absent: dict[str, list[str]] = {}
    asked = frames.matrix.experiment.get("backends", ())
    for name, state in frames.matrix.host["backends"].items():
        if not state["available"] and state["fix"] and name in asked:
            absent.setdefault(f"{state['reason']}; {state['fix']}", []).append(name)
    sentences += [f"{', '.join(names)}: not measured: {why}" for why, names in absent.items()]
    return sentences


def _names(labels: pd.Series) -> list[str]:
    """`gpt2-nano` of each label, followed by what differs between labels of one name."""
    split = [label.partition(": ") for label in labels]
    names = [name for name, *_ in split]
    amounts = [amount.split(", ") for *_, amount in split]
    told = []
    for name, amount in zip(names, amounts, strict=True):
        others = [a for n, a in zip(names, amounts, strict=True) if n == name and a != amount]
        apart = [part for part in amount if part and not all(part in other for other in others)]
        told.append(", ".join([name, *apart]))
    return told


def _in_words(row: dict[str, Any]) -> str:
    """`2.10 × faster than mlx · plain · fp32`; empty where there is nothing to compare with."""
    if not isinstance(row["rival_setup"], str):
        return ""
    elsewhere = f"{row['rival_place']}, " if row["names_device"] else ""
    remark = f" ({row['rival_remark']})" if row["rival_remark"] else ""
    rival = f"{elsewhere}{row['rival_setup']}{remark}"
    if row["rival_times_high"] < 1:  # a reference's
        return f"{formatting.significant(1 / row['rival_times'])} × slower than {rival}"
    if row["rival_times_low"] <= 1:
        return f"no faster beyond noise than {rival}"
    return f"{formatting.significant(row['rival_times'])} × faster than {rival}"


def _remarks(trainings: pd.DataFrame) -> pd.Series:
    """Caveats about each time, such as `disturbed, launch-bound`."""
    disturbed = trainings["disturbed"].map({True: "disturbed", False: ""})
    launches = trainings["is_launch_bound"].map({True: "launch-bound", False: ""})
    both = disturbed.ne("") & launches.ne("")
    return disturbed + both.map({True: ", ", False: ""}) + launches


def _with_causes(frame: pd.DataFrame, frames: Frames) -> pd.DataFrame:
    """Add the largest cause of the gap to the rival, else of another gap to its place."""
    gaps, points = frames.gaps, frames.points
    causes = gaps[gaps["kind"].eq(CAUSE) & ~gaps["is_noise"] & gaps["share"].gt(0)]
    pairs = causes.sort_values("share", ascending=False).drop_duplicates("pair").sort_index()
    pairs = pairs[["pair", "fast", "slow", "fast_name", "slow_name"]]
    pairs = pairs.join(points[["work", *PLACE]], on="fast").join(
        points[PLACE].add_suffix("_slow"), on="slow"
    )
    slow = pairs[[f"{name}_slow" for name in PLACE]].set_axis(PLACE, axis=1)
    of_best = ["work", *PLACE, "point_index", "rival_index", "same_index"]
    pairs = pairs[(pairs[PLACE] != slow).any(axis=1)].merge(frame[of_best], on=["work", *PLACE])
    # Not every two setups are taken apart, and compiled ones never are.
    is_best = pairs["fast"] == pairs["point_index"]
    to_rival, to_same = (
        is_best & (pairs["slow"] == pairs[f"{n}_index"]) for n in ("rival", "same")
    )
    pairs["rank"] = np.select([to_rival, to_same, is_best], [0, 1, 2], 3)
    pairs["cause_of"] = np.select(
        [to_rival, is_best],
        ["of this gap", "of the gap to " + pairs["slow_name"]],
        "of the gap between " + pairs["fast_name"] + " and " + pairs["slow_name"],
    )
    first = pairs.sort_values("rank", kind="stable").drop_duplicates("work")
    first = first.rename(columns={"pair": "cause_pair"})
    first["cause"] = first["cause_pair"].map(_largest(gaps)).astype("str")
    told = ["work", "cause", "cause_of", "cause_pair"]
    return frame.merge(first[told], on="work", how="left")


def _largest(gaps: pd.DataFrame) -> pd.Series:
    """`elementwise operators 62 %, matrix products 28 %, recurrent layers −19 %` of each gap."""
    parts = gaps[gaps["kind"].eq(CAUSE) & gaps["share"].abs().ge(LEAST_SHARE)]
    parts = parts.sort_values("share", key=np.abs, ascending=False, kind="stable")
    parts = parts.groupby("pair").head(MOST_CAUSES)
    parts = parts.sort_values("share", ascending=False, kind="stable")
    told = (
        parts["part"].replace(formatting.PART_WORDS)
        + " "
        + parts["share"].map(formatting.whole_percent)
    )
    return told.groupby(parts["pair"]).agg(", ".join)
