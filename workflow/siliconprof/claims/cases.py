"""The cases of a comparison: the measured rows that answer a claim, each with its figure.

Cases are a frame of figures that have besides a `label`, `rows`, the labels of the measured rows,
and `module`, that of the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from siliconprof.analyse.equal_work import CHOICES
from siliconprof.analyse.frames import CELL, DEVICE
from siliconprof.analyse.throughputs import PLACE, known
from siliconprof.claims import figures
from siliconprof.claims.claims_file import Claim, Question, Side
from siliconprof.claims.evidence import OPERATION, SAME_TRAINING, Evidence
from siliconprof.claims.quantities import QUANTITIES
from siliconprof.store.table_files import Row
from siliconprof.store.table_files import rows as as_rows

SHAPE = ("n_layer", "n_embd", "n_head", "d_ff", "seq_len", "vocab_size")
OF_THE_BATCH = ("batch_size", "samples_per_step", "epoch_steps")
# The columns in which two compared rows must agree, less those that distinguish their sides.
WORK = (
    *("module", "trainer", "network", *SHAPE, "n_parameters", "n_trainable_parameters"),
    *("target_len", "clip_seconds", *OF_THE_BATCH, "precision", "model", "gradient_checkpointing"),
    *(*CHOICES, *OPERATION),
)
ACROSS_SETTINGS = (*PLACE, "precision", "module", *SHAPE, "n_parameters", "batch_size")
# The columns that are fixed along a trend in a parameter.
FIXED = {
    "batch_size": SHAPE,
    "n_parameters": ("batch_size", "seq_len", "vocab_size"),
    "n_layer": ("n_embd", "n_head", "d_ff", "seq_len", "vocab_size", "batch_size"),
}
WHICH_DEVICE = ("device", "device_kind", "vendor")
OF_A_DEVICE = (*WHICH_DEVICE, "backend", "framework", "like")
SIZES = {
    "n_layer": "{:g} layers",
    "n_embd": "of width {:g}",
    "seq_len": "{:g} tokens",
    "batch_size": "batch {:g}",
}
LABELLED = [*("workload", "precision", "where", "n_parameters"), *SIZES, *("batch", "m", "k", "n")]
Mask = pd.Series
Pairs = tuple[pd.DataFrame, pd.DataFrame]  # equally long
Counts = Callable[[pd.DataFrame], Mask]
Keep = Callable[[Sequence[pd.DataFrame]], Mask]  # of equally long frames, one a side


def fits(rows: pd.DataFrame, side: Side) -> Mask:
    """Which rows or cells belong to a side."""
    mask = pd.Series(True, rows.index)
    for name, expected in side.items():
        values = expected if isinstance(expected, list) else [expected]
        if name == "device":
            mask &= rows["device"].isin(values) | rows["registry_id"].isin(values)
        elif name != "like":
            mask &= rows[name].isin(values)
    return mask


def batch_of(rows: pd.DataFrame) -> pd.Series:
    """The batch size of each training, or batched operation."""
    return rows["batch_size"].where(known(rows["batch_size"]), rows["batch"])


def analogous(side: Side) -> Side | None:
    """The side that cells of other devices belong to; None where the claim does not describe it.

    The keys of `like` replace the device, its backend, and the same keys of the side; a key that is
    null there may have any value.
    """
    if "like" not in side:
        return None if "device" in side else side
    other_side = {k: v for k, v in side.items() if k not in OF_A_DEVICE} | dict(side["like"])
    return {name: value for name, value in other_side.items() if value is not None}


def of(
    evidence: Evidence, claim: Claim, question: Question, counts: Counts, keep: Keep
) -> tuple[pd.DataFrame, list[str]]:
    """The cases of a question, and the reasons why there are no more.

    Args:
        counts: which rows may be used, by their source.
        keep: which rows may form a case.
    """
    quantity = QUANTITIES[claim.quantity]
    rows = evidence.rows(quantity.rows, question.workloads)
    if rows.empty or not evidence.devices.issuperset(question.devices):
        return pd.DataFrame(), []
    asked = counts(rows) & np.logical_or.reduce([fits(rows, side) for side in question.sides])
    if question.batch_sizes:
        asked &= batch_of(rows).isin(question.batch_sizes)
    is_pair = len(question.sides) > 1
    if not is_pair:
        asked &= keep([rows])
    if not asked.any():
        return pd.DataFrame(), []
    every, rows = rows, rows[asked]
    name = (quantity.rows, *question.workloads)
    found = evidence.kept(
        ("figures", claim.quantity, *name), lambda: quantity.read(evidence, every)
    ).loc[rows.index]
    if question.printed is not None:
        found = figures.over(found, question.printed, claim.over_printed)
    reasons = [why for why in found["why_not"].unique() if why]
    found = found[found["why_not"] == ""]
    if not is_pair and not claim.along:
        rows = rows.loc[found.index]
        return _cases(found, map(_label, as_rows(rows[LABELLED])), [rows]), reasons
    alike = [*_alike(claim, question)]
    group = evidence.kept(
        ("groups", *alike, *name),
        lambda: every.reindex(columns=alike).groupby(alike, dropna=False, sort=False).ngroup(),
    )
    rows = rows.assign(group=group, middle=found["middle"])
    if is_pair:
        one, other = _pairs(claim, question, rows.loc[found.index])
        is_similar = _similar_prices(claim, one, other)
        if not is_similar.all():
            reasons.append(f"no two devices have prices within {claim.similar_price:g} times")
        kept = is_similar & keep([one, other])
        one, other, label = one[kept], other[kept], _pair_label
    else:
        one, other = _trends(claim.along, rows, found)
        label = partial(_trend_label, along=claim.along)
    if one.empty:
        return pd.DataFrame(), reasons
    labels = map(label, *(as_rows(of[LABELLED]) for of in (one, other)))
    combine = figures.difference if claim.kind == "difference" else figures.ratio
    combined = combine(_of_workload(found, one), _of_workload(found, other))
    return _cases(combined, labels, [one, other]), reasons


def _of_workload(found: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """The figures of rows, with remarks that name their workload."""
    of = found.loc[rows["row"]].reset_index(drop=True)
    texts = zip(rows["workload"], of["remark"], strict=True)
    return of.assign(remark=[remark and f"of {workload} {remark}" for workload, remark in texts])


def _cases(
    found: pd.DataFrame, labels: Iterable[str], sides: Sequence[pd.DataFrame]
) -> pd.DataFrame:
    """The figures as cases of the rows that they are made of."""
    rows: Any = list(zip(*(side["row"] for side in sides), strict=True))
    module = sides[0]["module"].set_axis(found.index)
    return found.assign(label=list(labels), rows=rows, module=module)


def _trends(along: str, rows: pd.DataFrame, found: pd.DataFrame) -> Pairs:
    """Last and first of each group of rows that differ only in one parameter."""
    rows = rows[known(rows[along])].sort_values(["group", along], kind="stable")
    first, last = (
        rows.drop_duplicates("group", keep=end).reset_index(drop=True) for end in ("first", "last")
    )
    has = (of["row"].isin(found.index) for of in (first, last))
    kept = np.logical_and.reduce([first[along] < last[along], *has])
    return last[kept], first[kept]


def _between_devices(question: Question) -> bool:
    """Whether both sides of a comparison are of different devices."""
    a, b = question.sides
    differ = any(a.get(name) != b.get(name) for name in WHICH_DEVICE)
    return differ or a | {"like": None} == b | {"like": None}


def _alike(claim: Claim, question: Question) -> Sequence[str]:
    """The columns in which the rows of a case must agree, given what distinguishes its sides."""
    if claim.along:
        return [*CELL, *FIXED[claim.along]]
    a, b = question.sides
    if a.get("model") != b.get("model"):
        return SAME_TRAINING
    if a.get("gradient_checkpointing") != b.get("gradient_checkpointing"):
        return ACROSS_SETTINGS
    own = {*a, *b, *(OF_THE_BATCH if claim.any_batch else ())}
    own |= {"network"} if "module" in own else set()
    own |= {"backend"} if "framework" in own else set()
    places = () if _between_devices(question) else PLACE
    return [name for name in (*places, *(claim.same or WORK)) if name not in own]


def _pairs(claim: Claim, question: Question, rows: pd.DataFrame) -> Pairs:
    """All rows of both sides that did the same work, of two devices where the sides are."""
    sides = []
    for side in question.sides:
        of = rows[fits(rows, side)]
        if QUANTITIES[claim.quantity].fastest:
            of = of.loc[of.groupby(["group", *DEVICE], sort=False)["middle"].idxmax()]
        sides.append(of[["group", "row"]])
    labels = sides[0].merge(sides[1], on="group").sort_values("group", kind="stable")
    one, other = (rows.loc[labels[f"row_{side}"]].reset_index(drop=True) for side in "xy")

    def differ(*names: str) -> pd.Series:
        return np.logical_or.reduce([one[name] != other[name] for name in names])

    kept = one["row"] != other["row"]
    if _between_devices(question):
        kept &= differ(*DEVICE)
        if question.same_host:
            kept &= ~differ("source", "host")
    return one[kept], other[kept]


def _similar_prices(claim: Claim, one: pd.DataFrame, other: pd.DataFrame) -> Mask:
    """Of which rows the devices cost about the same, where that counts."""
    if not claim.similar_price:
        return pd.Series(True, one.index)
    prices = pd.concat([of["price_usd"].astype(float) for of in (one, other)], axis=1)
    low, high = prices.min(axis=1, skipna=False), prices.max(axis=1, skipna=False)
    return high <= claim.similar_price * low


# -- labels ----------------------------------------------------------------------------------------


def _label(row: Row, without: str = "") -> str:
    """The label of one row with its size, without the parameter `without`."""
    sizes = [SIZES[n].format(row[n]) for n in SIZES if row[n] and n != without]
    size = ", ".join(sizes).replace(" layers, of", " layers of")
    return ", ".join(filter(None, (f"{row['workload']} on {row['where']}", size, _shape(row))))


def _shape(row: Row) -> str:
    """`8×2000×2000` of an operation; empty for anything else."""
    sizes = [row[name] for name in ("batch", "m", "k", "n")]
    return "×".join(f"{size:g}" for size in sizes if size) if row["m"] else ""


def _trend_label(last: Row, first: Row, along: str) -> str:
    return f"{_label(first, along)}, {along} {first[along]:g} to {last[along]:g}"


def _pair_label(one: Row, other: Row) -> str:
    """The label of two compared rows; what both share comes once."""
    if one["where"] == other["where"]:
        names = " against ".join(dict.fromkeys((one["workload"], other["workload"])))
        formats = " against ".join(dict.fromkeys((one["precision"], other["precision"])))
        return ", ".join(filter(None, (f"{names} on {one['where']}", formats, _shape(one))))
    size = f"batch {one['batch_size']:g}" if one["batch_size"] else _shape(one)
    sides = f"{one['where']} against {other['where']}"
    return ", ".join(filter(None, (one["workload"], size, sides)))
