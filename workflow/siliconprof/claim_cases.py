"""From a comparison to its cases: which measured rows answer a claim, and with which figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from siliconprof import inference, training_course
from siliconprof.claim_quantities import QUANTITIES, Evidence, Figure
from siliconprof.claims_file import Question
from siliconprof.record_rows import HERE, KEY
from siliconprof.table_files import Row
from siliconprof.throughputs import device_of, place

SHAPE = ("n_layer", "n_embd", "n_head", "d_ff", "seq_len", "vocab_size")
# What two rows must agree in to be held against each other, by what tells their sides apart.
ACROSS_DEVICES = ("module", "trainer", "network", *SHAPE, "n_parameters", "batch_size",
                  "samples_per_step", "epoch_steps", "precision", "method_version", "model")  # fmt: skip
ACROSS_SETTINGS = ("source", "host", "device", "backend", "precision", "module", *SHAPE,
                   "n_parameters", "batch_size")  # fmt: skip
# What is held fixed where a trend along a parameter is looked for.
FIXED = {
    "batch_size": SHAPE,
    "n_parameters": ("batch_size", "seq_len", "vocab_size"),
    "n_layer": ("n_embd", "n_head", "d_ff", "seq_len", "vocab_size", "batch_size"),
}
OF_A_DEVICE = ("device", "device_kind", "vendor", "backend", "like")


@dataclass(frozen=True)
class Case:
    """One comparison of measured rows: a figure, or a word."""

    label: str
    rows: Sequence[Row]
    figure: Figure
    word: str = ""


@dataclass
class Found:
    """What a question came to: its cases, and what stands in the way of more."""

    cases: list[Case]
    reasons: list[str]


Keep = Callable[[Sequence[Row]], bool]  # whether rows may stand beside each other


def fits(row: Row, side: Mapping[str, Any]) -> bool:
    """Whether a row or cell stands on a side."""
    return all(
        row["device"] == wanted or row["registry_id"] == wanted
        if name == "device"
        else str(row.get(name)) == str(wanted)
        for name, wanted in side.items()
        if name != "like"
    )


def analogous(side: Mapping[str, Any]) -> dict[str, Any] | None:
    """The side that other devices take for a named one; None where nothing says which."""
    if "device" not in side:
        return dict(side)
    if "like" not in side:
        return None
    return {k: v for k, v in side.items() if k not in OF_A_DEVICE} | dict(side["like"])


def of(
    evidence: Evidence,
    compare: Mapping[str, Any],
    question: Question,
    sources: Callable[[Row], bool],
    keep: Keep,
) -> Found:
    """The cases of a question.

    Args:
        sources: whose rows count.
    """
    kind = compare["kind"]
    quantity = QUANTITIES[compare["quantity"]]
    rows = [
        row
        for row in evidence.rows(quantity)
        if row["module"] in question.workloads
        and sources(row)
        and (not question.batch_sizes or row.get("batch_size") in question.batch_sizes)
    ]
    reasons: dict[str, None] = {}
    name = compare["quantity"]

    def figure(row: Row) -> Figure | None:
        found = evidence.figure(name, row)
        if isinstance(found, str):
            reasons[found] = None
            return None
        return found

    if "of" in question.sides:
        chosen = [row for row in rows if fits(row, question.sides["of"]) and keep([row])]
        cases = list(_single(kind, compare, chosen, figure))
    else:
        cases = list(_paired(kind, compare, question, rows, figure, keep))
    return Found(cases, list(reasons))


# -- one side --------------------------------------------------------------------------------------

Read = Callable[[Row], Figure | None]


def _single(
    kind: str, compare: Mapping[str, Any], rows: Sequence[Row], figure: Read
) -> Iterator[Case]:
    if kind == "finding":
        for row in rows:
            if row.get("verdict"):
                word = str(row["verdict"])
                yield Case(_named(row), [row], Figure(math.nan), word)
    elif kind == "trend":
        yield from _trends(compare["along"], rows, figure)
    elif kind == "share":
        known = [(row, found) for row in rows if (found := figure(row))]
        if known:
            yield _share(known)
    else:
        yield from (Case(_named(row), [row], found) for row in rows if (found := figure(row)))


def _trends(along: str, rows: Sequence[Row], figure: Read) -> Iterator[Case]:
    """Last over first, of rows that differ in one parameter of each cell."""
    for group in _grouped(rows, (*KEY, *FIXED[along])):
        ordered = sorted((row for row in group if row.get(along)), key=lambda row: row[along])
        if len(ordered) < 2 or ordered[0][along] == ordered[-1][along]:
            continue
        first, last = figure(ordered[0]), figure(ordered[-1])
        if first and last:
            ends = f"{along} {ordered[0][along]:g} to {ordered[-1][along]:g}"
            yield Case(f"{_named(ordered[0], along)}, {ends}", ordered, ratio(last, first))


def _share(known: Sequence[tuple[Row, Figure]]) -> Case:
    """How many rows lie above 1: those that certainly do, and those that may."""
    n = len(known)
    ends = [found.interval(1 - (1 - inference.CONFIDENCE) / n) for _, found in known]
    low, high = (sum(end[i] > 1 for end in ends) / n for i in (0, 1))
    middle = sum(found.middle > 1 for _, found in known) / n
    sizes = sorted(found.middle for _, found in known)
    label = f"{n} points, from {sizes[0]:.2g} to {sizes[-1]:.2g} times"
    basis = "; ".join(dict.fromkeys(found.basis for _, found in known))
    return Case(label, [row for row, _ in known], Figure(middle, None, low, high, basis))


# -- two sides -------------------------------------------------------------------------------------


def _paired(
    kind: str,
    compare: Mapping[str, Any],
    question: Question,
    rows: Sequence[Row],
    figure: Read,
    keep: Keep,
) -> Iterator[Case]:
    a, b = question.sides["a"], question.sides["b"]
    alike: Sequence[str] = ACROSS_DEVICES
    if a.get("model") != b.get("model"):
        alike = training_course.SAME
    elif a.get("gradient_checkpointing") != b.get("gradient_checkpointing"):
        alike = ACROSS_SETTINGS
    combine = difference if kind == "difference" else ratio
    fastest = QUANTITIES[compare["quantity"]].fastest
    for group in _grouped(rows, alike):
        sides = []
        for side in (a, b):
            known = [(row, found) for row in group if fits(row, side) if (found := figure(row))]
            sides.append(_fastest(known) if fastest else known)
        for one, first in sides[0]:
            for other, second in sides[1]:
                if one is other or (alike is ACROSS_DEVICES and not _apart(one, other, question)):
                    continue
                if keep([one, other]):
                    figures = (_signed(one, first), _signed(other, second))
                    yield Case(_against(one, other), [one, other], combine(*figures))


def _signed(row: Row, figure: Figure) -> Figure:
    """A figure whose remark says which workload it is about."""
    if not figure.remark:
        return figure
    return replace(figure, remark=f"of {row['workload']} {figure.remark}")


def _apart(one: Row, other: Row, question: Question) -> bool:
    """Whether two rows are of two devices, and of one host where the question asks for it."""
    same_host = (one["source"], one["host"]) == (other["source"], other["host"])
    return device_of(one) != device_of(other) and (same_host or not question.same_host)


def _fastest(known: Iterable[tuple[Row, Figure]]) -> list[tuple[Row, Figure]]:
    """Of each device the backend with the largest figure."""
    best: dict[tuple, tuple[Row, Figure]] = {}
    for row, found in known:
        name = device_of(row)
        if name not in best or found.middle > best[name][1].middle:
            best[name] = (row, found)
    return list(best.values())


def _grouped(rows: Iterable[Row], columns: Sequence[str]) -> list[list[Row]]:
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in columns), []).append(row)
    return list(groups.values())


def _quotient(upper: float, lower: float) -> float:
    return upper / lower if lower else math.inf


def ratio(a: Figure, b: Figure) -> Figure:
    """a over b, as uncertain as both together."""
    basis = "; ".join(dict.fromkeys(filter(None, (a.basis, b.basis))))
    remark = "; ".join(dict.fromkeys(filter(None, (a.remark, b.remark))))
    middle = _quotient(a.middle, b.middle)
    if a.estimate and b.estimate:
        found = inference.difference(b.estimate, a.estimate, basis)
        return Figure(middle, found, basis=basis, remark=remark)
    (a_low, a_high), (b_low, b_high) = (x.interval(inference.CONFIDENCE) for x in (a, b))
    return Figure(middle, None, _quotient(a_low, b_high), _quotient(a_high, b_low), basis, remark)


def difference(a: Figure, b: Figure) -> Figure:
    """a minus b, as uncertain as both together."""
    basis = "; ".join(dict.fromkeys(filter(None, (a.basis, b.basis))))
    remark = "; ".join(dict.fromkeys(filter(None, (a.remark, b.remark))))
    (a_low, a_high), (b_low, b_high) = (x.interval(inference.CONFIDENCE) for x in (a, b))
    if not any((a_low, a_high, b_low, b_high)):
        return Figure(0.0, None, -math.inf, math.inf, basis, "nothing to compare: both are 0")
    return Figure(a.middle - b.middle, None, a_low - b_high, a_high - b_low, basis, remark)


def reduced(cases: Sequence[Case], how: str) -> Case:
    """The largest, the smallest or the geometric mean of several cases as one."""
    if len(cases) == 1:
        return cases[0]
    ends = [case.figure.interval(inference.CONFIDENCE) for case in cases]
    lows, highs = [end[0] for end in ends], [end[1] for end in ends]
    middles = [case.figure.middle for case in cases]
    combine: Any = {"most": max, "least": min, "mean": _geometric}[how]
    rows = list({id(row): row for case in cases for row in case.rows}.values())
    basis = "; ".join(dict.fromkeys(case.figure.basis for case in cases))
    remark = "; ".join(dict.fromkeys(filter(None, (case.figure.remark for case in cases))))
    label = f"{'geometric mean' if how == 'mean' else how} of {len(cases)} cases"
    if how != "mean":
        chosen = combine(middles)
        label += f", {next(c.label for c in cases if c.figure.middle == chosen)}"
    middle, low, high = combine(middles), combine(lows), combine(highs)
    return Case(label, rows, Figure(middle, None, low, high, basis, remark))


def _geometric(values: Sequence[float]) -> float:
    if any(value <= 0 for value in values):
        return 0.0
    return math.exp(math.fsum(map(math.log, values)) / len(values))


# -- words -----------------------------------------------------------------------------------------


def where(row: Row) -> str:
    """`cpu-x (torch-cpu)`, with the host's name where it is not this one's."""
    away = "" if row["source"] == HERE else f", {row['host']}, {row['source']}"
    return f"{row['device']} ({row['backend']}{away})"


def _size(row: Row, without: str = "") -> str:
    said = []
    for name, words in (("n_layer", "{:g} layers"), ("n_embd", "of width {:g}"),
                        ("seq_len", "{:g} tokens"), ("batch_size", "batch {:g}")):  # fmt: skip
        if row.get(name) and name != without:
            said.append(words.format(row[name]))
    return ", ".join(said).replace(" layers, of", " layers of")


def _named(row: Row, without: str = "") -> str:
    return ", ".join(filter(None, [f"{row['workload']} on {where(row)}", _size(row, without)]))


def _against(one: Row, other: Row) -> str:
    if place(one) == place(other):
        names = " against ".join(dict.fromkeys((one["workload"], other["workload"])))
        return f"{names} on {where(one)}, {one['precision']}"
    batch = f", batch {one['batch_size']:g}" if one.get("batch_size") else ""
    return f"{one['workload']}{batch}, {where(one)} against {where(other)}"
