"""The cases of a comparison: the measured rows that answer a claim, each with its figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from siliconprof.analyse.equal_work import CHOICES
from siliconprof.analyse.record_rows import KEY
from siliconprof.analyse.throughputs import device_of
from siliconprof.claims import words
from siliconprof.claims.claims_file import Question
from siliconprof.claims.evidence import OPERATION, Evidence, Figure
from siliconprof.stats import inference, training_course
from siliconprof.store.table_files import Row

SHAPE = ("n_layer", "n_embd", "n_head", "d_ff", "seq_len", "vocab_size")
# The columns in which two compared rows must agree, less those that distinguish their sides.
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
    *CHOICES,
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
# The columns that are fixed along a trend in a parameter.
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
    """One comparison of measured rows, with a figure or, for a finding, a word."""

    label: str
    rows: Sequence[Row]
    figure: Figure
    word: str = ""


@dataclass
class QuestionResult:
    """The cases that answer a question, and the reasons why there are no more."""

    cases: list[Case]
    reasons: list[str]


Keep = Callable[[Sequence[Row]], bool]  # whether rows may form a case


def fits(row: Row, side: Mapping[str, Any]) -> bool:
    """Whether a row or cell belongs to a side."""
    return all(
        row["device"] == expected or row["registry_id"] == expected
        if name == "device"
        else str(row.get(name)) in map(str, expected)
        if isinstance(expected, list)
        else str(row.get(name)) == str(expected)
        for name, expected in side.items()
        if name != "like"
    )


def batch_of(row: Row) -> Any:
    """The batch size of a training, or of a batched operation."""
    return row.get("batch_size") or row.get("batch")


def analogous(side: Mapping[str, Any]) -> dict[str, Any] | None:
    """The side that cells of other devices belong to; None where the claim does not describe it.

    The keys of `like` replace the device, its backend, and the same keys of the side; a key that is
    null there may have any value.
    """
    if "like" not in side:
        return None if "device" in side else dict(side)
    other_side = {k: v for k, v in side.items() if k not in OF_A_DEVICE} | dict(side["like"])
    return {name: value for name, value in other_side.items() if value is not None}


def of(
    evidence: Evidence,
    compare: Mapping[str, Any],
    question: Question,
    sources: Callable[[Row], bool],
    keep: Keep,
) -> QuestionResult:
    """The cases of a question.

    Args:
        sources: whether a row may be used, by its source.
        keep: whether rows may form a case.
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
        measured = evidence.figure(name, row)
        if isinstance(measured, str):
            reasons[measured] = None
            return None
        if question.printed is not None:
            return measured.over(question.printed, compare["over_printed"]["table"])
        return measured

    if "of" in question.sides:
        matching = [row for row in rows if fits(row, question.sides["of"]) and keep([row])]
        if kind == "finding":
            cases = list(_findings(evidence, compare["quantity"], matching, reasons))
        else:
            cases = list(_single(kind, compare, matching, figure))
    else:
        cases = list(
            _paired(kind, compare, question, rows, figure, keep, quantity.fastest, reasons)
        )
    return QuestionResult(cases, list(reasons))


# -- one side --------------------------------------------------------------------------------------

Read = Callable[[Row], Figure | None]


def _single(
    kind: str, compare: Mapping[str, Any], rows: Sequence[Row], figure: Read
) -> Iterator[Case]:
    if kind == "trend":
        yield from _trends(compare["along"], rows, figure)
    elif kind == "share":
        measured = [(row, value) for row in rows if (value := figure(row))]
        if measured:
            yield _share(measured)
    else:
        yield from (Case(words.label(row), [row], value) for row in rows if (value := figure(row)))


def _findings(
    evidence: Evidence, name: str, rows: Sequence[Row], reasons: dict[str, None]
) -> Iterator[Case]:
    """One case for each row whose finding, a word, is known."""
    quantity = evidence.quantities[name]
    for row in rows:
        word = quantity.word(evidence, row) if quantity.word else None
        if word:
            yield Case(words.label(row), [row], Figure(math.nan), word)
        else:
            reasons[f"{quantity.words} could not be determined"] = None


def _trends(along: str, rows: Sequence[Row], figure: Read) -> Iterator[Case]:
    """Last over first of the rows that differ only in one parameter."""
    for group in _grouped(rows, (*KEY, *FIXED[along])):
        ordered = sorted((row for row in group if row.get(along)), key=lambda row: row[along])
        if len(ordered) < 2 or ordered[0][along] == ordered[-1][along]:
            continue
        first, last = figure(ordered[0]), figure(ordered[-1])
        if first and last:
            ends = f"{along} {ordered[0][along]:g} to {ordered[-1][along]:g}"
            yield Case(f"{words.label(ordered[0], along)}, {ends}", ordered, ratio(last, first))


def _share(measured: Sequence[tuple[Row, Figure]]) -> Case:
    """The share of rows above 1; its ends are those that certainly are and those that may be."""
    n = len(measured)
    ends = [value.interval(1 - (1 - inference.CONFIDENCE) / n) for _, value in measured]
    low, high = (sum(end[i] > 1 for end in ends) / n for i in (0, 1))
    middle = sum(value.middle > 1 for _, value in measured) / n
    sizes = sorted(value.middle for _, value in measured)
    label = f"{n} points, from {sizes[0]:.2g} to {sizes[-1]:.2g} times"
    basis = "; ".join(dict.fromkeys(value.basis for _, value in measured))
    return Case(label, [row for row, _ in measured], Figure(middle, None, low, high, basis))


# -- two sides -------------------------------------------------------------------------------------


def alike(compare: Mapping[str, Any], a: Mapping[str, Any], b: Mapping[str, Any]) -> Sequence[str]:
    """The columns in which two compared rows must agree, given what distinguishes their sides."""
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
    """Whether two sides are of two devices, as equal sides must be."""
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
            measured = [(row, value) for row in group if fits(row, side) if (value := figure(row))]
            sides.append(_fastest(measured) if fastest else measured)
        for one, first in sides[0]:
            for other, second in sides[1]:
                if one is other or (two_devices and not _apart(one, other, question)):
                    continue
                if factor and not _similar_price(one, other, factor):
                    reasons[f"no two devices have prices within {factor:g} times"] = None
                    continue
                if keep([one, other]):
                    figures = (_signed(one, first), _signed(other, second))
                    yield Case(words.pair_label(one, other), [one, other], combine(*figures))


def _similar_price(one: Row, other: Row, factor: float) -> bool:
    """Whether both prices are known and the dearer is at most `factor` times the other."""
    low, high = sorted(float(row.get("price_usd") or 0.0) for row in (one, other))
    return bool(low) and high <= factor * low


def _signed(row: Row, figure: Figure) -> Figure:
    """A figure whose remark names its workload."""
    if not figure.remark:
        return figure
    return replace(figure, remark=f"of {row['workload']} {figure.remark}")


def _apart(one: Row, other: Row, question: Question) -> bool:
    """Whether two rows are of two devices, and of one host where the question requires it."""
    same_host = (one["source"], one["host"]) == (other["source"], other["host"])
    return device_of(one) != device_of(other) and (same_host or not question.same_host)


def _fastest(measured: Iterable[tuple[Row, Figure]]) -> list[tuple[Row, Figure]]:
    """The backend with the largest figure of each device."""
    best: dict[tuple, tuple[Row, Figure]] = {}
    for row, value in measured:
        name = device_of(row)
        if name not in best or value.middle > best[name][1].middle:
            best[name] = (row, value)
    return list(best.values())


def _grouped(rows: Iterable[Row], columns: Sequence[str]) -> list[list[Row]]:
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in columns), []).append(row)
    return list(groups.values())


def _quotient(upper: float, lower: float) -> float:
    return upper / lower if lower else math.inf


def ratio(a: Figure, b: Figure) -> Figure:
    """a over b, with the uncertainty of both."""
    basis = "; ".join(dict.fromkeys(filter(None, (a.basis, b.basis))))
    remark = "; ".join(dict.fromkeys(filter(None, (a.remark, b.remark))))
    middle = _quotient(a.middle, b.middle)
    if a.estimate and b.estimate:
        estimate = inference.difference(b.estimate, a.estimate, basis)
        return Figure(middle, estimate, basis=basis, remark=remark)
    (a_low, a_high), (b_low, b_high) = (x.interval(inference.CONFIDENCE) for x in (a, b))
    return Figure(middle, None, _quotient(a_low, b_high), _quotient(a_high, b_low), basis, remark)


def difference(a: Figure, b: Figure) -> Figure:
    """a minus b, with the uncertainty of both."""
    basis = "; ".join(dict.fromkeys(filter(None, (a.basis, b.basis))))
    remark = "; ".join(dict.fromkeys(filter(None, (a.remark, b.remark))))
    (a_low, a_high), (b_low, b_high) = (x.interval(inference.CONFIDENCE) for x in (a, b))
    if not any((a_low, a_high, b_low, b_high)):
        return Figure(0.0, None, -math.inf, math.inf, basis, "nothing to compare: both are 0")
    return Figure(a.middle - b.middle, None, a_low - b_high, a_high - b_low, basis, remark)


def reduced(cases: Sequence[Case], how: str) -> Case:
    """The largest (most), smallest (least) or geometric mean (mean) of several cases as one."""
    if len(cases) == 1:
        return cases[0]
    ends = [case.figure.interval(inference.CONFIDENCE) for case in cases]
    lows, highs = [end[0] for end in ends], [end[1] for end in ends]
    middles = [case.figure.middle for case in cases]
    combine: Any = {"most": max, "least": min, "mean": _geometric}[how]
    rows = list({id(row): row for case in cases for row in case.rows}.values())
    basis = "; ".join(dict.fromkeys(case.figure.basis for case in cases))
    remark = "; ".join(dict.fromkeys(filter(None, (case.figure.remark for case in cases))))
    names = {"most": "largest", "least": "smallest", "mean": "geometric mean"}
    label = f"{names[how]} of {len(cases)} cases"
    if how != "mean":
        chosen = combine(middles)
        label += f", {next(c.label for c in cases if c.figure.middle == chosen)}"
    middle, low, high = combine(middles), combine(lows), combine(highs)
    return Case(label, rows, Figure(middle, None, low, high, basis, remark))


def _geometric(values: Sequence[float]) -> float:
    if any(value <= 0 for value in values):
        return 0.0
    return math.exp(math.fsum(map(math.log, values)) / len(values))
