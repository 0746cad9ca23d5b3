"""The cases of comparisons: the measured rows that answer claims, each with its figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

import pandas as pd

from siliconprof.analyse.equal_work import CHOICES
from siliconprof.analyse.frames import CELL
from siliconprof.analyse.throughputs import PLACE
from siliconprof.claims import figures
from siliconprof.claims.claims_file import Claim, Compare, Question
from siliconprof.claims.evidence import OPERATION, SAME_TRAINING, Evidence, fits
from siliconprof.stats import inference
from siliconprof.store import table_files
from siliconprof.store.record import HERE
from siliconprof.store.table_files import Row

SHAPE = ("n_layer", "n_embd", "n_head", "d_ff", "seq_len", "vocab_size")
OF_THE_BATCH = ("batch_size", "samples_per_step", "epoch_steps")
# The columns in which two compared rows must agree, less those that distinguish their sides.
MUST_AGREE = (
    *("module", "trainer", "network", *SHAPE, "n_parameters", "n_trainable_parameters"),
    *("target_len", "clip_seconds", *OF_THE_BATCH, "precision", "proportions"),
    *("gradient_checkpointing", *CHOICES, *OPERATION),
)
ACROSS_SETTINGS = (*PLACE, "precision", "module", *SHAPE, "n_parameters", "batch_size")
# The columns that are fixed along a trend in a parameter.
FIXED = {
    "batch_size": SHAPE,
    "n_parameters": ("batch_size", "seq_len", "vocab_size"),
    "n_layer": ("n_embd", "n_head", "d_ff", "seq_len", "vocab_size", "batch_size"),
}
WHICH_DEVICE = ("device", "device_kind")
SHOWN_COLUMNS = [  # of a row, by its case
    *("workload", "precision", "where", "module", "n_parameters", "n_layer", "n_embd", "seq_len"),
    *("batch_size", "any_batch_size", "batch", "m", "k", "n"),
]
# How several cases count as one: its name, and the figure of theirs.
MULTIPLES: dict[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "most": ("largest", max),
    "least": ("smallest", min),
    "mean": ("geometric mean", inference.geometric_mean),
}
SIZE_WORDS = {
    "n_layer": "{:g} layers",
    "n_embd": "of width {:g}",
    "seq_len": "{:g} tokens",
    "batch_size": "batch {:g}",
}


class Case(NamedTuple):
    """The figure of measured rows: of one alone, or of one over or minus another."""

    label: str = ""
    places: Sequence[str] = ()  # where its rows were measured
    sizes: Sequence[tuple[str, float | None]] = ()  # their modules and batch sizes
    middle: float = math.nan
    low: float = math.nan  # the ends of the interval that decides
    high: float = math.nan
    basis: str = ""
    remark: str = ""
    word: str = ""


class QuestionWithCases(NamedTuple):
    """A question of a claim with its cases."""

    question: Question
    cases: Sequence[Case]
    reasons: Sequence[str]  # why there are no more


def questions_of_claim(evidence: Evidence, claim: Claim) -> list[QuestionWithCases]:
    """The questions of a claim, to the devices that it names, else to this host, with their cases."""
    quantity = claim.quantity
    rows = evidence.rows(quantity.rows)
    masks = [_asks(evidence, rows, claim, question) for question in claim.questions]
    rows = rows[reduce(or_, masks)]
    if rows.empty:
        return [QuestionWithCases(question, (), ()) for question in claim.questions]
    known = quantity.figures(evidence, rows)
    rows = rows.assign(middle=known["middle"], has=known["why_not"] == "")
    pairs = pd.concat(
        [
            _pairs(claim, question, rows[mask[rows.index]]).assign(question=number)
            for number, (question, mask) in enumerate(zip(claim.questions, masks, strict=True))
        ]
    )
    cases = _cases(claim, rows, known, pairs) if len(pairs) else []
    return [
        QuestionWithCases(
            question,
            [case for case, of in zip(cases, pairs["question"], strict=True) if of == number],
            [*filter(None, known["why_not"][masks[number][rows.index]].unique())],
        )
        for number, question in enumerate(claim.questions)
    ]


def _asks(evidence: Evidence, rows: pd.DataFrame, claim: Claim, question: Question) -> pd.Series:
    if not evidence.devices.issuperset(question.devices):
        return pd.Series(False, rows.index)
    mask = rows["module"].isin(question.workloads)
    mask &= reduce(or_, (fits(rows, side) for side in question.sides))
    if not claim.devices:
        mask &= rows["source"] == HERE
    if question.batch_sizes:
        mask &= rows["any_batch_size"].isin(question.batch_sizes)
    return mask


def _group(rows: pd.DataFrame, names: Iterable[str]) -> pd.Series:
    """Number the groups of rows that agree in some columns; missing values are equal."""
    return rows.groupby([n for n in names if n in rows], dropna=False, sort=False).ngroup()


def _pairs(claim: Claim, question: Question, rows: pd.DataFrame) -> pd.DataFrame:
    """The labels of the two rows of each case, `one` and `other`; equal where a row stands alone.

    Args:
        rows: with the `middle` of their figures, and whether they `has` one.
    """
    compare = claim.compare
    if compare.along:
        return _trends(compare.along, rows)
    rows = rows[rows["has"]]
    if len(question.sides) == 1:
        return pd.DataFrame({"one": rows.index, "other": rows.index})
    group = _group(rows, _alike(compare, question))
    rows = rows.assign(group=group)
    sides = []
    for side in question.sides:
        chosen = rows[fits(rows, side)]
        if claim.quantity.fastest:
            chosen = chosen.sort_values("middle", ascending=False, kind="stable")
            chosen = chosen.drop_duplicates(["group", "unit"]).sort_index()
        sides.append(chosen[["group", "unit", "computer"]].reset_index(names="row"))
    pairs = sides[0].merge(sides[1], on="group").sort_values("group", kind="stable")
    pairs = pairs.rename(columns={"row_x": "one", "row_y": "other"})
    kept = pairs["one"] != pairs["other"]
    if _between_devices(question):
        kept &= pairs["unit_x"] != pairs["unit_y"]
        if question.same_host:
            kept &= pairs["computer_x"] == pairs["computer_y"]
    return pairs[kept]


def _trends(along: str, rows: pd.DataFrame) -> pd.DataFrame:
    """The last and the first of each group of rows that differ only in one parameter."""
    rows = rows[rows[along] > 0]
    rows = rows.assign(group=_group(rows, [*CELL, *FIXED[along]]))
    by = rows.sort_values(along, kind="stable").reset_index(names="row").groupby("group")
    ends = by.agg(one=("row", "last"), other=("row", "first"))
    one, other = (rows.loc[ends[name]].reset_index(drop=True) for name in ("one", "other"))
    return ends[((one[along] > other[along]) & one["has"] & other["has"]).to_numpy()]


def _between_devices(question: Question) -> bool:
    a, b = question.sides
    return a == b or any(a.get(name) != b.get(name) for name in WHICH_DEVICE)


def _alike(compare: Compare, question: Question) -> Sequence[str]:
    """The columns in which two compared rows must agree."""
    a, b = question.sides
    if a.get("model") != b.get("model"):
        return SAME_TRAINING
    if a.get("gradient_checkpointing") != b.get("gradient_checkpointing"):
        return ACROSS_SETTINGS
    own = {*a, *b, *(OF_THE_BATCH if compare.any_batch else ())}
    own |= {"network"} if "module" in own else set()
    places = () if _between_devices(question) else PLACE
    return [name for name in (*places, *(compare.same or MUST_AGREE)) if name not in own]


def _cases(
    claim: Claim, rows: pd.DataFrame, known: pd.DataFrame, pairs: pd.DataFrame
) -> list[Case]:
    """The cases of a claim.

    Args:
        known: the figures of `rows`.
        pairs: `one` and `other` row of each, and the number of its `question`.
    """
    compare = claim.compare
    found, lower = (known.loc[pairs[side]].reset_index(drop=True) for side in ("one", "other"))
    one, other = (
        table_files.rows(rows.loc[pairs[side], SHOWN_COLUMNS]) for side in ("one", "other")
    )
    if compare.over_printed:  # which counts as exact
        printed = [claim.questions[number].printed for number in pairs["question"]]
        ends = ["middle", "low", "high"]
        found[ends] = found[ends].div(printed, axis=0)
        found["basis"] += f"; over the printed {compare.over_printed.table}"
    is_alone = len(claim.questions[0].sides) == 1 and not compare.along
    if not is_alone:
        for shown, side in ((one, found), (other, lower)):
            named = zip(shown, side["remark"], strict=True)
            side["remark"] = [f"of {row['workload']} {text}" if text else "" for row, text in named]
        combine = figures.difference if compare.kind == "difference" else figures.ratio
        found = combine(found, lower)
    # How many intervals have to hold together: one where several count as one.
    n = 1 if compare.cases in MULTIPLES else len(pairs)
    low, high = figures.interval(found, 1 - (1 - inference.CONFIDENCE) / n)
    names = ["middle", "low", "high", "basis", "remark", "word"]
    texts = found.assign(low=low, high=high)[names].itertuples(index=False)
    cases = []
    for a, b, text in zip(one, other, texts, strict=True):
        label = _label(a) if is_alone else _label_of_both(a, b, compare.along)
        both = [a] if is_alone else [a, b]
        places = tuple(row["where"] for row in both)
        sizes = tuple((row["module"], row["any_batch_size"]) for row in both)
        cases.append(Case(label, places, sizes, *text))
    return cases


def _label(row: Row, without: str = "") -> str:
    sizes = [SIZE_WORDS[n].format(row[n]) for n in SIZE_WORDS if row[n] and n != without]
    size = ", ".join(sizes).replace(" layers, of", " layers of")
    return ", ".join(filter(None, (f"{row['workload']} on {row['where']}", size, _shape(row))))


def _shape(row: Row) -> str:
    """`8×2000×2000` of an operation; empty for anything else."""
    sizes = [row[name] for name in ("batch", "m", "k", "n")]
    return "×".join(f"{size:g}" for size in sizes if size) if row["m"] else ""


def _label_of_both(one: Row, other: Row, along: str | None) -> str:
    """The label of two compared rows, or of a trend, without repeating what both share."""
    if along:
        return f"{_label(other, along)}, {along} {other[along]:g} to {one[along]:g}"
    if one["where"] == other["where"]:
        names = " against ".join(dict.fromkeys((one["workload"], other["workload"])))
        formats = " against ".join(dict.fromkeys((one["precision"], other["precision"])))
        return ", ".join(filter(None, (f"{names} on {one['where']}", formats, _shape(one))))
    size = f"batch {one['batch_size']:g}" if one["batch_size"] else _shape(one)
    sides = f"{one['where']} against {other['where']}"
    return ", ".join(filter(None, (one["workload"], size, sides)))
