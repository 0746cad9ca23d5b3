"""From a comparison to its cases: which measured rows answer a claim, and with which figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from siliconprof.analyse.record_rows import KEY
from siliconprof.analyse.throughputs import device_of
from siliconprof.claims import words
from siliconprof.claims.claims_file import Question
from siliconprof.claims.evidence import OPERATION, Evidence, Figure
from siliconprof.stats import inference, training_course
from siliconprof.store.table_files import Row

SHAPE = ("n_layer", "n_embd", "n_head", "d_ff", "seq_len", "vocab_size")
# What two rows must agree in to be held against each other, by what tells their sides apart.
WORK = (
    "module",
    "trainer",
    "network",
    *SHAPE,
    "n_parameters",
    "n_trainable_parameters",
    "target_len",
    "clip_seconds",
    "batch_size",
    "samples_per_step",
    "epoch_steps",
    "precision",
    "method_version",
    "model",
    "gradient_checkpointing",
    "allocator",
    *OPERATION,
)
OF_THE_BATCH = ("batch_size", "samples_per_step", "epoch_steps")
ACROSS_SETTINGS = (
    "source",
    "host",
    "device",
    "backend",
    "precision",
    "module",
    *SHAPE,
    "n_parameters",
    "batch_size",
)
# What is held fixed where a trend along a parameter is looked for.
FIXED = {
    "batch_size": SHAPE,
    "n_parameters": ("batch_size", "seq_len", "vocab_size"),
    "n_layer": ("n_embd", "n_head", "d_ff", "seq_len", "vocab_size", "batch_size"),
}
WHICH_DEVICE = ("device", "device_kind", "vendor")
OF_A_DEVICE = (*WHICH_DEVICE, "backend", "framework", "like")
WORD_LEVEL = ("model", "shape_size")  # of a point, and of no cell


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
        else str(row.get(name)) in map(str, wanted)
        if isinstance(wanted, list)
        else str(row.get(name)) == str(wanted)
        for name, wanted in side.items()
        if name != "like"
    )


def batch_of(row: Row) -> Any:
    """The batch size of a training, or of a batched operation."""
    return row.get("batch_size") or row.get("batch")


def analogous(side: Mapping[str, Any]) -> dict[str, Any] | None:
    """The side that other cells take for a named one; None where nothing says which.

    What `like` names stands instead of the device and its backend, and of what else it names; a
    setting that it names as null may be any.
    """
    if "like" not in side:
        return None if "device" in side else dict(side)
    found = {k: v for k, v in side.items() if k not in OF_A_DEVICE} | dict(side["like"])
    return {name: value for name, value in found.items() if value is not None}


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
    quantity = evidence.quantities[compare["quantity"]]
    rows = [
        row
        for row in evidence.rows(quantity)
        if row["module"] in question.workloads
        and sources(row)
        and (not question.batch_sizes or batch_of(row) in question.batch_sizes)
    ]
    reasons: dict[str, None] = {}
    name = compare["quantity"]

    def figure(row: Row) -> Figure | None:
        found = evidence.figure(name, row)
        if isinstance(found, str):
            reasons[found] = None
            return None
        if question.printed is not None:
            return found.over(question.printed, compare["over_printed"]["table"])
        return found

    if "of" in question.sides:
        chosen = [row for row in rows if fits(row, question.sides["of"]) and keep([row])]
        if kind == "finding":
            cases = list(_found(evidence, compare["quantity"], chosen, reasons))
        else:
            cases = list(_single(kind, compare, chosen, figure))
    else:
        cases = list(
            _paired(kind, compare, question, rows, figure, keep, quantity.fastest, reasons)
        )
    return Found(cases, list(reasons))


# -- one side --------------------------------------------------------------------------------------

Read = Callable[[Row], Figure | None]


def _single(
    kind: str, compare: Mapping[str, Any], rows: Sequence[Row], figure: Read
) -> Iterator[Case]:
    if kind == "trend":
        yield from _trends(compare["along"], rows, figure)
    elif kind == "share":
        known = [(row, found) for row in rows if (found := figure(row))]
        if known:
            yield _share(known)
    else:
        yield from (Case(words.named(row), [row], found) for row in rows if (found := figure(row)))


def _found(
    evidence: Evidence, name: str, rows: Sequence[Row], reasons: dict[str, None]
) -> Iterator[Case]:
    """What was found of each row, in a word."""
    quantity = evidence.quantities[name]
    for row in rows:
        word = quantity.word(evidence, row) if quantity.word else None
        if word:
            yield Case(words.named(row), [row], Figure(math.nan), word)
        else:
            reasons[f"{quantity.words} could not be told"] = None


def _trends(along: str, rows: Sequence[Row], figure: Read) -> Iterator[Case]:
    """Last over first, of rows that differ in one parameter of each cell."""
    for group in _grouped(rows, (*KEY, *FIXED[along])):
        ordered = sorted((row for row in group if row.get(along)), key=lambda row: row[along])
        if len(ordered) < 2 or ordered[0][along] == ordered[-1][along]:
            continue
        first, last = figure(ordered[0]), figure(ordered[-1])
        if first and last:
            ends = f"{along} {ordered[0][along]:g} to {ordered[-1][along]:g}"
            yield Case(f"{words.named(ordered[0], along)}, {ends}", ordered, ratio(last, first))


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


def alike(compare: Mapping[str, Any], a: Mapping[str, Any], b: Mapping[str, Any]) -> Sequence[str]:
    """What rows must agree in to be held against each other, by what tells their sides apart."""
    if a.get("model") != b.get("model"):
        return training_course.SAME
    if a.get("gradient_checkpointing") != b.get("gradient_checkpointing"):
        return ACROSS_SETTINGS
    own = {*a, *b} | ({"network"} if "module" in {*a, *b} else set())
    if "framework" in own or "backend" in own:
        own.add("backend")
    if compare.get("any_batch"):
        own |= set(OF_THE_BATCH)
    names = compare.get("same") or [name for name in WORK if name not in own]
    if across_devices(a, b):
        return names
    place = ("source", "host", "device", *(() if "backend" in own else ("backend",)))
    return [*place, *(name for name in names if name not in place)]


def across_devices(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two sides are of two devices; equal ones are, since nothing else tells them apart."""
    unlike = [name for name in WHICH_DEVICE if a.get(name) != b.get(name)]
    settings = [{k: v for k, v in side.items() if k != "like"} for side in (a, b)]
    return bool(unlike) or settings[0] == settings[1]


def _paired(
    kind: str,
    compare: Mapping[str, Any],
    question: Question,
    rows: Sequence[Row],
    figure: Read,
    keep: Keep,
    fastest: bool,
    reasons: dict[str, None],
) -> Iterator[Case]:
    a, b = question.sides["a"], question.sides["b"]
    names, two_devices = alike(compare, a, b), across_devices(a, b)
    combine = difference if kind == "difference" else ratio
    factor = compare.get("similar_price")
    for group in _grouped(rows, names):
        sides = []
        for side in (a, b):
            known = [(row, found) for row in group if fits(row, side) if (found := figure(row))]
            sides.append(_fastest(known) if fastest else known)
        for one, first in sides[0]:
            for other, second in sides[1]:
                if one is other or (two_devices and not _apart(one, other, question)):
                    continue
                if factor and not _similar_price(one, other, factor):
                    reasons[f"no two devices whose prices lie within {factor:g} times"] = None
                    continue
                if keep([one, other]):
                    figures = (_signed(one, first), _signed(other, second))
                    yield Case(words.against(one, other), [one, other], combine(*figures))


def _similar_price(one: Row, other: Row, factor: float) -> bool:
    """Whether both prices are known and the dearer device costs so many times the other at most."""
    low, high = sorted(float(row.get("price_usd") or 0.0) for row in (one, other))
    return bool(low) and high <= factor * low


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
