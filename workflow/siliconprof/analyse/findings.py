"""At most ten sentences, each made of one comparison of these results, with what intervals allow."""

from __future__ import annotations

from typing import Any

import pandas as pd

from siliconprof import words
from siliconprof.analyse.answer import ENDS, STEP
from siliconprof.analyse.equal_work import WORK
from siliconprof.analyse.frames import (
    CIRCUMSTANCES,
    DEVICE,
    Frames,
    alike_but,
    holds,
    pairs,
)

FEW = 6  # steps, below which there is no 95 % interval; the range stands in
PATH = ("host", "device", "backend", "threads")  # in which two devices may differ besides
NEEDED = (  # columns of the trainings that are held against each other
    *(*WORK, *CIRCUMSTANCES, *DEVICE, *(f"{STEP}{end}" for end, *_ in ENDS), "unsplit_step_n"),
    *("model", "place", "whose", "backend_label", "variant", "compiled", "disturbed", "order"),
)
COMPARED = {  # axis -> title, the column that names a side, what one side must be
    "backend": ("Backends", "backend_label", None),
    "precision": ("Precision", "precision", "fp32"),
    "trainer": ("Trainer", "trainer", "plain"),
    "compile": ("Compiled", "compiled", None),
}


def sentences(frames: Frames) -> pd.DataFrame:
    """Those that these results allow: `name` and `sentence`.

    Of each kind the one about the largest model, undisturbed if there is one.
    """
    steps = frames.steps.sort_values(["n_parameters", "order"], ascending=[False, True])
    steps = steps.assign(compiled=holds(steps, "compile").map({True: "compiled", False: "eager"}))
    steps = steps[[name for name in dict.fromkeys(NEEDED) if name in steps]]  # pairs are many
    found = [("Devices", _said(_devices(steps), "device", "device_and_backend"))]
    for axis, (title, name, side) in COMPARED.items():
        both = pairs(steps, axis)
        both = both[both[axis] == side if side else both["order"] < both["order_other"]]
        found.append((title, _said(both, axis, name)))
    found += [
        ("How close to the hardware", _hardware(frames)),
        ("Diverged", _diverged(frames)),
        ("Losses", _losses(frames)),
        ("Predicted memory", _memory(frames)),
    ]
    return pd.DataFrame([one for one in found if one[1]], columns=["name", "sentence"])


def _devices(steps: pd.DataFrame) -> pd.DataFrame:
    """The fastest device of each work done alike beside each other one, both at their best."""
    steps = steps.assign(
        alike=alike_but(steps, *PATH),
        device_and_backend=steps["place"] + " (" + steps["backend_label"] + ")",
    )
    best = steps.sort_values(STEP, kind="stable").drop_duplicates(["alike", *DEVICE])
    both = best.drop_duplicates("alike").merge(best, on="alike", suffixes=("", "_other"))
    return both[both["order"] != both["order_other"]].sort_values("alike", kind="stable")


def _said(both: pd.DataFrame, axis: str, name: str) -> str:
    """The first of some pairs in words, `…_other` its second side."""
    if both.empty:
        return ""
    is_disturbed = both["disturbed"] | both["disturbed_other"]
    row = both.loc[is_disturbed.sort_values(kind="stable").index[0]].to_dict()
    fast, slow = sorted(("", "_other"), key=lambda side: row[f"{STEP}{side}"])
    ratio, low, high = (
        row[f"{STEP}{of_slow}{slow}"] / row[f"{STEP}{of_fast}{fast}"]
        for _, of_slow, of_fast in ENDS
    )
    faster = f"{words.significant(ratio)} × ({_span(low, high)}) faster than"
    if low <= 1:
        faster = "no faster beyond noise than"
    times = (words.duration(row[f"{STEP}{side}"] / 1e3) for side in (fast, slow))
    few = min(row["unsplit_step_n"], row["unsplit_step_n_other"])
    remarks = [f"only {few:.0f} steps"] if few <= FEW else []
    remarks += ["disturbed by other processes"] if is_disturbed.all() else []
    return (
        f"{row['model']} ({_manner(row, axis)}): {row[name + fast]} is {faster} {row[name + slow]}, "
        f"{' against '.join(times)} a step{f' ({words.listing(remarks)})' * bool(remarks)}."
    )


def _span(low: float, high: float, digits: int = 3) -> str:
    """`2.39 to 3.27`."""
    return f"{words.significant(low, digits)} to {words.significant(high, digits)}"


def _manner(row: dict[str, Any], axis: str) -> str:
    """`torch-cpu, plain, fp32`: what a comparison holds fixed."""
    fixed = {
        "device": "" if axis == "device" else row["whose"],
        "backend": "" if axis in ("device", "backend") else row["backend_label"],
        "trainer": row["trainer"],
        "precision": row["precision"],
        "compile": row["variant"],
    }
    return ", ".join(value for name, value in fixed.items() if value and name != axis)


def _hardware(frames: Frames) -> str:
    """The largest share of the fastest product that a training in fp32 reaches."""
    lines = frames.table("ceilings")
    lines = lines[lines["quantity"].eq("matmul") & lines["precision"].eq("fp32")]
    steps = frames.trainings[frames.trainings["precision"] == "fp32"]
    steps = steps[~steps["is_mechanism_check"]].join(
        lines.groupby(DEVICE)["value"].max().rename("product"), on=DEVICE
    )
    steps = steps.assign(share=steps["flop_per_s"] / steps["product"]).dropna(subset=["share"])
    if steps.empty:
        return ""
    by = ["disturbed", "share"]
    best = steps.sort_values(by, ascending=[True, False], kind="stable").iloc[0]
    work = 100 * best["share"] * best[STEP]
    span = _span(work / best[f"{STEP}_high"], work / best[f"{STEP}_low"], digits=2)
    return (
        f"{best['model']} ({best['setup']}) reaches {words.percent(best['share'])} ({span}) of the "
        f"fastest matrix product measured on {best['place']}."
    )


def _diverged(frames: Frames) -> str:
    """The first training whose losses became NaN or infinite: a record has neither."""
    steps, curves = frames.losses, frames.table("curves").rename(columns={"step": "iteration"})
    names = frames.trainings[["order", "model", "setup"]]
    steps = steps[steps["loss"].isna()].merge(names, on="order")
    lost = pd.concat([steps, curves[curves["loss"].isna()]])
    if lost.empty:
        return ""
    first = lost.sort_values(["order", "iteration"], kind="stable").iloc[0]
    at = f"NaN or infinite at step {first['iteration'] + 1:.0f}"
    return f"{first['model']}: {first['setup']} diverged: {at}."


def _losses(frames: Frames) -> str:
    """The trainings in fp32 from equal data, seed and weights whose losses differ most."""
    points = frames.trainings[frames.trainings["precision"] == "fp32"].set_index("order")
    losses = frames.losses[frames.losses["order"].isin(points.index)]
    most = losses.groupby("order")["by"].agg(lambda by: by.max(skipna=False)).dropna()
    if most.empty:
        return ""
    row = losses[losses["order"] == most.idxmax()].iloc[0]
    one, first = points.loc[row["order"]], points.loc[row["first"]]
    return (
        f"{one['model']}: losses of {one['setup']} and {first['setup']} differ by at most "
        f"{words.scientific(most.max())} of their value at any step."
    )


def _memory(frames: Frames) -> str:
    """How far predictions are from measured peaks, in the median."""
    error = (predicted_over_peak(frames.trainings) - 1).abs().dropna()
    if error.empty:
        return ""
    middle, checks = error.median(), words.count(len(error), "check")
    typical = f"of {words.whole_percent(middle)}" if middle >= 0.005 else "below 0.5 %"
    return f"Peak memory is predicted with a typical error {typical} ({checks})."


def predicted_over_peak(points: pd.DataFrame) -> pd.Series:
    """Predicted over measured peak memory; NA where both are not of the same memory.

    Of an offloaded training it is what stays on the device; where that is the host's own memory, the
    peak holds what was offloaded as well. What is predicted is an eager step's, which keeps more than
    a compiled one.
    """
    predicted = predicted_bytes(points)
    is_like = ~points["is_mechanism_check"] & ~holds(points, "compile")
    is_known = predicted.gt(0) & points["device_peak_bytes"].gt(0)
    return (predicted / points["device_peak_bytes"]).where(is_like & is_known)


def predicted_bytes(points: pd.DataFrame) -> pd.Series:
    """What was predicted for each training as it ran: of an offloaded one what stays on the device."""
    whole, offloaded = points["predicted_memory_bytes"], points["predicted_offloaded_bytes"]
    return whole.mask(points["offloads"], offloaded).astype(float)
