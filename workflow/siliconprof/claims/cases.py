"""The cases of a comparison: the measured rows that answer a claim, each with its figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from siliconprof.analyse.equal_work import CHOICES
from siliconprof.analyse.throughputs import PLACE, device_of, place
from siliconprof.claims.claims_file import Claim, Question, Side
from siliconprof.claims.evidence import OPERATION, Evidence, Missing
from siliconprof.claims.figures import Figure, difference, ratio, similar
from siliconprof.claims.quantities import QUANTITIES
from siliconprof.stats import training_course
from siliconprof.store.records import HERE
from siliconprof.store.table_files import KEY, Row, by, grouped

SHAPE = ("n_layer", "n_embd", "n_head", "d_ff", "seq_len", "vocab_size")
OF_THE_BATCH = ("batch_size", "samples_per_step", "epoch_steps")
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
    *OF_THE_BATCH,
    "precision",
    "model",
    "gradient_checkpointing",
    *CHOICES,
    *OPERATION,
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


@dataclass(frozen=True)
class Case:
    """One comparison of measured rows."""

    label: str
    rows: Sequence[Row]
    figure: Figure


def fits(row: Row, side: Side) -> bool:
    """Whether a row or cell belongs to a side."""
    return all(
        expected in (row["device"], row["registry_id"])
        if name == "device"
        else str(row.get(name)) in map(str, expected if isinstance(expected, list) else [expected])
        for name, expected in side.items()
        if name != "like"
    )


def batch_of(row: Row) -> Any:
    """The batch size of a training, or of a batched operation."""
    return row.get("batch_size") or row.get("batch")


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
    evidence: Evidence,
    claim: Claim,
    question: Question,
    counts: Callable[[Row], bool],
    keep: Callable[[Sequence[Row]], bool] = lambda rows: True,
) -> tuple[list[Case], list[str]]:
    """The cases of a question, and the reasons why there are no more.

    Args:
        counts: whether a row may be used, by its source.
        keep: whether rows may form a case.
    """
    quantity = QUANTITIES[claim.quantity]
    rows = [
        row
        for row in evidence.rows(quantity)
        if row["module"] in question.workloads
        and counts(row)
        and (not question.batch_sizes or batch_of(row) in question.batch_sizes)
    ]
    reasons: dict[str, None] = {}

    def figure(row: Row) -> Figure | None:
        measured = evidence.figure(claim.quantity, quantity, row)
        if isinstance(measured, Missing):
            reasons[str(measured)] = None
            return None
        if question.printed is None:
            return measured
        return measured.over(question.printed, f"over the printed {claim.over_printed}")

    if len(question.sides) > 1:
        cases = list(_paired(claim, question, rows, figure, keep, reasons))
    else:
        rows = [row for row in rows if fits(row, question.sides[0]) and keep([row])]
        if claim.along:
            cases = list(_trends(claim.along, rows, figure))
        else:
            cases = [Case(label(row), [row], value) for row in rows if (value := figure(row))]
    return cases, list(reasons)


Read = Callable[[Row], Figure | None]


def _trends(along: str, rows: Sequence[Row], figure: Read) -> Iterator[Case]:
    """Last over first of the rows that differ only in one parameter."""
    for group in grouped(rows, by((*KEY, *FIXED[along]))).values():
        ordered = sorted((row for row in group if row.get(along)), key=lambda row: row[along])
        if not ordered or ordered[0][along] == ordered[-1][along]:
            continue
        first, last = figure(ordered[0]), figure(ordered[-1])
        if first and last:
            ends = f"{along} {ordered[0][along]:g} to {ordered[-1][along]:g}"
            yield Case(f"{label(ordered[0], along)}, {ends}", ordered, ratio(last, first))


def _alike(claim: Claim, a: Side, b: Side, two_devices: bool) -> Sequence[str]:
    """The columns in which two compared rows must agree, given what distinguishes their sides."""
    if a.get("model") != b.get("model"):
        return training_course.SAME
    if a.get("gradient_checkpointing") != b.get("gradient_checkpointing"):
        return ACROSS_SETTINGS
    own = {*a, *b, *(OF_THE_BATCH if claim.any_batch else ())}
    own |= {"network"} if "module" in own else set()
    own |= {"backend"} if "framework" in own else set()
    names = claim.same or [name for name in WORK if name not in own]
    return names if two_devices else [*(n for n in PLACE if n not in own), *names]


def _paired(
    claim: Claim,
    question: Question,
    rows: Sequence[Row],
    figure: Read,
    keep: Callable[[Sequence[Row]], bool],
    reasons: dict[str, None],
) -> Iterator[Case]:
    """a over or minus b of all rows that did the same work."""
    a, b = question.sides
    two_devices = any(a.get(name) != b.get(name) for name in WHICH_DEVICE)
    two_devices |= a | {"like": None} == b | {"like": None}
    combine = difference if claim.kind == "difference" else ratio
    for group in grouped(rows, by(_alike(claim, a, b, two_devices))).values():
        sides = []
        for side in (a, b):
            measured = [(row, value) for row in group if fits(row, side) if (value := figure(row))]
            sides.append(_fastest(measured) if QUANTITIES[claim.quantity].fastest else measured)
        for one, first in sides[0]:
            for other, second in sides[1]:
                if one is other or (two_devices and not _apart(one, other, question)):
                    continue
                prices = one.get("price_usd"), other.get("price_usd")
                if claim.similar_price and not similar(*prices, claim.similar_price):
                    none = f"no two devices have prices within {claim.similar_price:g} times"
                    reasons[none] = None
                elif keep([one, other]):
                    figures = _of_workload(one, first), _of_workload(other, second)
                    yield Case(_pair_label(one, other), [one, other], combine(*figures))


def _of_workload(row: Row, figure: Figure) -> Figure:
    """A figure whose remark names its workload."""
    return replace(figure, remark=figure.remark and f"of {row['workload']} {figure.remark}")


def _apart(one: Row, other: Row, question: Question) -> bool:
    """Whether two rows are of two devices, and of one host where the question requires it."""
    same_host = (one["source"], one["host"]) == (other["source"], other["host"])
    return device_of(one) != device_of(other) and (same_host or not question.same_host)


def _fastest(measured: Iterable[tuple[Row, Figure]]) -> list[tuple[Row, Figure]]:
    """The backend with the largest figure of each device."""
    devices = grouped(measured, lambda pair: device_of(pair[0])).values()
    return [max(of_device, key=lambda pair: pair[1].middle) for of_device in devices]


# -- labels ----------------------------------------------------------------------------------------

SIZES = {
    "n_layer": "{:g} layers",
    "n_embd": "of width {:g}",
    "seq_len": "{:g} tokens",
    "batch_size": "batch {:g}",
}


def where(row: Row) -> str:
    """`cpu-x (torch-cpu)`, with host and source where it is another host."""
    away = "" if row["source"] == HERE else f", {row['host']}, {row['source']}"
    return f"{row['device']} ({row['backend']}{away})"


def label(row: Row, without: str = "") -> str:
    """The label of one row with its size, without the parameter `without`."""
    sizes = [SIZES[n].format(row[n]) for n in SIZES if row.get(n) and n != without]
    size = ", ".join(sizes).replace(" layers, of", " layers of")
    return ", ".join(filter(None, (f"{row['workload']} on {where(row)}", size, _shape(row))))


def _shape(row: Row) -> str:
    """`8×2000×2000` of an operation; empty for anything else."""
    sizes = [row.get(name) for name in ("batch", "m", "k", "n")]
    return "×".join(f"{size:g}" for size in sizes if size) if row.get("m") else ""


def _pair_label(one: Row, other: Row) -> str:
    """The label of two compared rows; what both share comes once."""
    if place(one) == place(other):
        names = " against ".join(dict.fromkeys((one["workload"], other["workload"])))
        formats = " against ".join(dict.fromkeys((one["precision"], other["precision"])))
        return ", ".join(filter(None, (f"{names} on {where(one)}", formats, _shape(one))))
    size = f"batch {one['batch_size']:g}" if one.get("batch_size") else _shape(one)
    sides = f"{where(one)} against {where(other)}"
    return ", ".join(filter(None, (one["workload"], size, sides)))
