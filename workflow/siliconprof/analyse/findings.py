"""At most ten sentences, each made of one comparison of these results, with what intervals allow."""

from __future__ import annotations

from typing import Any

import pandas as pd

from siliconprof import formatting
from siliconprof.analyse import throughputs
from siliconprof.analyse.answer import INTERVAL_ENDS, STEP
from siliconprof.analyse.equal_work import WORK
from siliconprof.analyse.frames import CIRCUMSTANCES, DEVICE, Frames, holds, pairs
from siliconprof.store.record import REFERENCE

NEEDED = (  # columns of the trainings that are held against each other
    *(*WORK, *CIRCUMSTANCES, *DEVICE, "whole_step_n"),
    *(f"{STEP}{end}" for end, *_ in INTERVAL_ENDS),
    *("model", "place", "whose", "backend_label", "variant", "compiled", "disturbed"),
    *("is_launch_bound", "order"),
)
COMPARED = {  # axis -> title, the column that names a side, what one side must be
    "backend": ("Backends", "backend_label", None),
    "precision": ("Precision", "precision", "fp32"),
    "trainer": ("Trainer", "trainer", "plain"),
    "compile": ("Compiled", "compiled", None),
}


OUTPUT_LAYER = "lm_head"
# Roles of operators that score all tokens: the layer, and the loss, which transformers' classes take.
OUTPUT = rf"{OUTPUT_LAYER}|\w+(?:ForCausalLM|LMHeadModel)"


def sentences(frames: Frames) -> pd.DataFrame:
    """The sentences that these results allow: `name` and `sentence`.

    Of each kind the one about the largest model, undisturbed if there is one.
    """
    steps = frames.steps.sort_values(["n_parameters", "order"], ascending=[False, True])
    steps = steps.assign(compiled=holds(steps, "compile").map({True: "compiled", False: "eager"}))
    steps = steps[[name for name in dict.fromkeys(NEEDED) if name in steps]]  # pairs are many
    found = []
    for axis, (title, name, side) in COMPARED.items():
        both = pairs(steps, axis)
        both = both[both[axis] == side if side else both["order"] < both["order_other"]]
        found.append((title, _pair_in_words(both, axis, name)))
    found.append(("How close to the hardware", _hardware(frames)))
    of_model = frames.matrix.experiment.get("model")  # first, where the run is about one
    found.insert(0 if of_model else len(found), ("Output layer", _output_layer(frames)))
    return pd.DataFrame([one for one in found if one[1]], columns=["name", "sentence"])


def _pair_in_words(both: pd.DataFrame, axis: str, name: str) -> str:
    """A sentence on the first undisturbed pair; columns of its second side end in `_other`."""
    if both.empty:
        return ""
    is_disturbed = both["disturbed"] | both["disturbed_other"]
    row = both.loc[is_disturbed.sort_values(kind="stable").index[0]].to_dict()
    fast, slow = sorted(("", "_other"), key=lambda side: row[f"{STEP}{side}"])
    ratio, low, high = (
        row[f"{STEP}{of_slow}{slow}"] / row[f"{STEP}{of_fast}{fast}"]
        for _, of_slow, of_fast in INTERVAL_ENDS
    )
    faster = f"{formatting.significant(ratio)} × ({_span(low, high)}) faster than"
    if low <= 1:
        faster = "no faster beyond noise than"
    times = (formatting.duration(row[f"{STEP}{side}"] / 1e3) for side in (fast, slow))
    few = min(row["whole_step_n"], row["whole_step_n_other"])
    bound = [row[name + side] for side in (fast, slow) if row[f"is_launch_bound{side}"]]
    return (
        f"{row['model']} ({_held_fixed(row, axis)}): {row[name + fast]} is {faster} {row[name + slow]}, "
        f"{' against '.join(times)} a step{_remarks(few, bool(is_disturbed.all()), bound)}."
    )


def _remarks(steps: float, is_disturbed: bool, launch_bound: list[str]) -> str:
    """Caveats in brackets, such as ` (only 3 steps)`; empty without any."""
    remarks = [f"only {steps:.0f} steps"] if steps < formatting.FEWEST_OF_INTERVAL else []
    remarks += ["disturbed by other processes"] if is_disturbed else []
    remarks += [f"{name} waits for its host to launch" for name in launch_bound]
    return f" ({formatting.listing(remarks)})" * bool(remarks)


def _span(low: float, high: float, digits: int = 3) -> str:
    """`2.39 to 3.27`."""
    return f"{formatting.significant(low, digits)} to {formatting.significant(high, digits)}"


def _held_fixed(row: dict[str, Any], axis: str) -> str:
    """`torch-cpu, plain, fp32`: what a comparison holds fixed."""
    columns = {"backend": "backend_label", "compile": "variant"}
    fixed = [name for name in ("backend", "trainer", "precision", "compile") if name != axis]
    return ", ".join(filter(None, [row["whose"], *(row[columns.get(of, of)] for of in fixed)]))


def _hardware(frames: Frames) -> str:
    """The largest share of the fastest product that a training in fp32 reaches."""
    steps = frames.trainings[frames.trainings["precision"] == "fp32"]
    products = throughputs.fastest_product(steps, frames.table("ceilings"))
    steps = steps.assign(share=steps["flop_per_s"] / products["ceiling"]).join(products)
    steps = steps[~steps["is_mechanism_check"]].dropna(subset=["share"])
    if steps.empty:
        return ""
    by = ["disturbed", "share"]
    best = steps.sort_values(by, ascending=[True, False], kind="stable").iloc[0]
    work = 100 * best["share"] * best[STEP] * best["ceiling"]
    low, high = (work / best[f"{STEP}{end}"] / best[f"ceiling{end}"] for end in ("_high", "_low"))
    span, few = _span(low, high, digits=2), best["whole_step_n"]
    return (
        f"{best['model']} ({best['setup']}) reaches {formatting.percent(best['share'])} ({span}) of the "
        f"fastest matrix product measured on {best['place']}{_remarks(few, best['disturbed'], [])}."
    )


def _output_layer(frames: Frames) -> str:
    """The share of its step that the largest model spends on its output layer and the loss."""
    operators = frames.table("operators").dropna(subset="seconds")  # some steps are too long
    role, passes = operators["role"].astype("str"), ["forward_s", "backward_s"]
    is_output = role.str.fullmatch(OUTPUT, na=False) & operators["phase"].isin(passes)
    has_layer = operators.loc[role.eq(OUTPUT_LAYER), "order"]
    spent_ms = 1e3 * operators[is_output].groupby("order")["seconds"].sum()
    steps = frames.steps[frames.steps["source"].ne(REFERENCE)]
    steps = steps[steps["order"].isin(has_layer)]
    if steps.empty:
        return ""
    by = ["disturbed", "n_parameters", "order"]
    row = steps.sort_values(by, ascending=[True, False, True], kind="stable").iloc[0]
    share = formatting.whole_percent(spent_ms[row["order"]] / row[STEP])
    return (
        f"{row['model']} ({row['setup']}) spends {share} of its step on the output layer and the cross "
        "entropy, which score every token of its vocabulary."
    )
