"""The cases of comparisons: the measured rows that answer claims, each with its figure.

Each quantity is read once, of all rows that some claim asks for, and all pairs are combined at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from siliconprof.analyse.equal_work import CHOICES
from siliconprof.analyse.frames import CELL, DEVICE
from siliconprof.analyse.throughputs import PLACE
from siliconprof.claims import figures
from siliconprof.claims.claims_file import Claim, Compare, Question
from siliconprof.claims.evidence import OPERATION, SAME_TRAINING, Evidence, Rows
from siliconprof.claims.quantities import QUANTITIES
from siliconprof.stats import inference
from siliconprof.store import table_files
from siliconprof.store.records import HERE
from siliconprof.store.table_files import Row

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
WHICH_DEVICE = ("device", "device_kind")
SHOWN = [  # of a row, by its case
    *("workload", "precision", "where", "module", "n_parameters", "n_layer", "n_embd", "seq_len"),
    *("batch_size", "any_batch_size", "batch", "m", "k", "n"),
]
MULTIPLES = {"most": "largest", "least": "smallest", "mean": "geometric mean"}  # of several cases
SIZES = {
    "n_layer": "{:g} layers",
    "n_embd": "of width {:g}",
    "seq_len": "{:g} tokens",
    "batch_size": "batch {:g}",
}
Side = tuple[np.ndarray, np.ndarray]  # the groups and the numbers of rows


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


@dataclass(eq=False)
class Asked:
    """A question of a claim to the devices that decide it, and its cases.

    Attributes:
        rows: which rows of the quantity's table it asks for.
        reasons: why there are no more cases.
    """

    claim: Claim
    question: Question
    table: Rows
    rows: np.ndarray
    cases: list[Case] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def ask(evidence: Evidence, claim: Claim, question: Question) -> Asked:
    """A question whose cases are not known yet: to the devices that a claim names, else to this host."""
    table = evidence.rows(QUANTITIES[claim.compare.quantity].rows)
    mask = table.has("module", question.workloads)
    mask = mask & np.logical_or.reduce([table.fits(side) for side in question.sides])
    if not evidence.devices.issuperset(question.devices):
        mask = np.zeros_like(mask)
    if not claim.devices:
        mask &= table.has("source", [HERE])
    if question.batch_sizes:
        mask &= table.has("any_batch_size", question.batch_sizes)
    return Asked(claim, question, table, mask)


class Reading:
    """The figures of a quantity, read once of all rows that any question asks for."""

    def __init__(self, evidence: Evidence, quantity: str, every: Sequence[Asked]) -> None:
        rows = every[0].table.frame
        asked = np.logical_or.reduce([asked.rows for asked in every])
        self.figures = QUANTITIES[quantity].read(evidence, rows[asked])
        self.middle, self.has = np.full(len(rows), np.nan), np.full(len(rows), False)
        self.middle[asked] = self.figures["middle"]
        self.has[asked] = self.figures["why_not"] == ""


def fill(evidence: Evidence, every: Sequence[Asked]) -> None:
    """Find the cases of all questions, and the reasons why there are no more."""
    every = [asked for asked in every if asked.rows.any()]
    by_quantity: dict[str, list[Asked]] = {}
    for asked in every:
        by_quantity.setdefault(asked.claim.compare.quantity, []).append(asked)
    read = {name: Reading(evidence, name, of) for name, of in by_quantity.items()}
    sides: list[list[np.ndarray]] = [[], []]
    for number, asked in enumerate(every):
        known = read[asked.claim.compare.quantity]
        figures = known.figures.loc[np.flatnonzero(asked.rows), "why_not"]
        asked.reasons += filter(None, figures.unique())
        for rows, of in zip(sides, _sides(asked, known), strict=True):
            rows.append(np.array([np.full_like(of[0], number), *of]).T)
    if every:
        by = ["question", "group"]
        one, other = (
            pd.DataFrame(np.concatenate(rows), columns=[*by, name])
            for name, rows in zip(("one", "other"), sides, strict=True)
        )
        pairs = one.merge(other, on=by).sort_values(by, kind="stable", ignore_index=True)
        kept = [
            _is_case(asked, *pairs.loc[pairs["question"] == number, ["one", "other"]].to_numpy().T)
            for number, asked in enumerate(every)
        ]
        _combine(every, pairs[np.concatenate(kept)].reset_index(drop=True), read)


def _sides(asked: Asked, known: Reading) -> tuple[Side, Side]:
    """(group, row) of both sides of the cases: any two rows of one group form one.

    A row that stands alone forms a group by itself.
    """
    compare, question, table = asked.claim.compare, asked.question, asked.table
    if compare.along:
        return _trends(asked, known)
    rows = np.flatnonzero(asked.rows & known.has)
    if len(question.sides) == 1:
        return (rows, rows), (rows, rows)
    group = table.groups(rows, _alike(compare, question))
    sides = []
    for side in question.sides:
        chosen = np.flatnonzero(table.fits(side)[rows])
        if QUANTITIES[compare.quantity].fastest:
            fastest_first = chosen[np.argsort(-known.middle[rows[chosen]], kind="stable")]
            place = np.stack([group, table.groups(rows, DEVICE)])[:, fastest_first]
            chosen = np.sort(fastest_first[np.unique(place, axis=1, return_index=True)[1]])
        sides.append((group[chosen], rows[chosen]))
    return sides[0], sides[1]


def _trends(asked: Asked, known: Reading) -> tuple[Side, Side]:
    """The last and the first of each group of rows that differ only in one parameter."""
    table, along = asked.table, str(asked.claim.compare.along)
    values = table.frame[along].to_numpy(float)
    rows = np.flatnonzero(asked.rows & (values > 0))
    group = table.groups(rows, [*CELL, *FIXED[along]])
    order = np.lexsort((values[rows], group))
    rows, group = rows[order], group[order]
    names = np.unique(group)
    first = rows[np.searchsorted(group, names)]
    last = rows[np.searchsorted(group, names, side="right") - 1]
    kept = (values[first] < values[last]) & known.has[first] & known.has[last]
    return (names[kept], last[kept]), (names[kept], first[kept])


def _is_case(asked: Asked, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Which pairs of alike rows form cases."""
    question, table = asked.question, asked.table
    if len(question.sides) == 1:
        return np.full(len(one), True)
    kept = one != other
    if _between_devices(question):
        kept &= table.differ(one, other, DEVICE)
        if question.same_host:
            kept &= ~table.differ(one, other, ["source", "host"])
    return kept


def _between_devices(question: Question) -> bool:
    """Whether both sides of a comparison are of different devices."""
    a, b = question.sides
    return a == b or any(a.get(name) != b.get(name) for name in WHICH_DEVICE)


def _alike(compare: Compare, question: Question) -> Sequence[str]:
    """The columns in which two compared rows must agree, given what distinguishes their sides."""
    a, b = question.sides
    if a.get("model") != b.get("model"):
        return SAME_TRAINING
    if a.get("gradient_checkpointing") != b.get("gradient_checkpointing"):
        return ACROSS_SETTINGS
    own = {*a, *b, *(OF_THE_BATCH if compare.any_batch else ())}
    own |= {"network"} if "module" in own else set()
    places = () if _between_devices(question) else PLACE
    return [name for name in (*places, *(compare.same or WORK)) if name not in own]


# -- all at once -----------------------------------------------------------------------------------


def _combine(every: Sequence[Asked], pairs: pd.DataFrame, read: Mapping[str, Reading]) -> None:
    """Fill in the cases.

    Args:
        pairs: `one` and `other` row of each, and the number of its `question`.
    """
    facts = pd.DataFrame(
        [
            (of.claim.entry.id, of.claim.compare.quantity, of.claim.compare.kind)
            + (of.claim.compare.cases, of.question.printed)  # which counts as exact
            for of in every
        ],
        columns=["claim", "quantity", "kind", "counted", "printed"],
    )
    printed = [of.claim.compare.over_printed for of in every]
    facts["over"] = [f"; over the printed {of.table}" if of else "" for of in printed]
    pairs = pairs.join(facts, "question")
    figures_of = pd.concat({name: of.figures for name, of in read.items()})
    upper, lower = (
        figures_of.loc[pd.MultiIndex.from_frame(pairs[["quantity", side]])].reset_index(drop=True)
        for side in ("one", "other")
    )
    ends = ["middle", "low", "high"]
    upper[ends] = upper[ends].div(pairs["printed"], axis=0)
    upper["basis"] += pairs["over"]
    tables = {id(of.table): of.table.frame for of in every}
    lines = {key: table_files.rows(frame[SHOWN]) for key, frame in tables.items()}
    one, other = (
        [lines[id(every[of].table)][row] for of, row in pairs[["question", side]].to_numpy()]
        for side in ("one", "other")
    )
    is_alone, is_difference = pairs["one"] == pairs["other"], pairs["kind"] == "difference"
    for shown, side in ((one, upper), (other, lower)):
        workload = pd.Series([row["workload"] for row in shown], dtype=object)
        is_named = ~is_alone & side["remark"].ne("")
        side["remark"] = ("of " + workload + " ").where(is_named, "") + side["remark"]
    differences, ratios = ~is_alone & is_difference, ~is_alone & ~is_difference
    combined = pd.concat(
        [
            upper[is_alone],
            figures.ratio(upper[ratios], lower[ratios]),
            figures.difference(upper[differences], lower[differences]),
        ]
    ).sort_index()
    # How many intervals have to hold together: one where several count as one.
    n = pairs.groupby("claim")["claim"].transform("size").mask(pairs["counted"].isin(MULTIPLES), 1)
    low, high = figures.interval(combined, 1 - (1 - inference.CONFIDENCE) / n)
    names = ["middle", "low", "high", "basis", "remark", "word"]
    texts = combined.assign(low=low, high=high)[names].itertuples(index=False)
    for number, a, b, text in zip(pairs["question"], one, other, texts, strict=True):
        asked = every[number]
        rows, label = (
            ([a], _label(a))
            if a is b
            else ([a, b], _label_of_both(a, b, asked.claim.compare.along))
        )
        places = tuple(row["where"] for row in rows)
        sizes = tuple((row["module"], row["any_batch_size"]) for row in rows)
        asked.cases.append(Case(label, places, sizes, *text))


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


def _label_of_both(one: Row, other: Row, along: str | None) -> str:
    """The label of two compared rows, or of a trend from the other; what both share comes once."""
    if along:
        return f"{_label(other, along)}, {along} {other[along]:g} to {one[along]:g}"
    if one["where"] == other["where"]:
        names = " against ".join(dict.fromkeys((one["workload"], other["workload"])))
        formats = " against ".join(dict.fromkeys((one["precision"], other["precision"])))
        return ", ".join(filter(None, (f"{names} on {one['where']}", formats, _shape(one))))
    size = f"batch {one['batch_size']:g}" if one["batch_size"] else _shape(one)
    sides = f"{one['where']} against {other['where']}"
    return ", ".join(filter(None, (one["workload"], size, sides)))
