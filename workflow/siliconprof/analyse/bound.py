"""What bounds a model shape's step, and a backend: launches, memory, both, neither, or unknown.

The wide/deep report asks whether a system is held back by its memory or by many small launches. A shape says
yes or no where its numbers do (`HOW`), and else that it is unknown; a backend's verdict is what
any of its shapes shows, and its words say which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from siliconprof.analyse import step_work
from siliconprof.analyse.throughputs import mebibytes
from siliconprof.store.table_files import Row

STATUSES = ("ok", "oom", "skipped", "failed")
ENDS = ("smallest", "largest")  # batch
YES, NO, UNKNOWN = "yes", "no", "unknown"
BOTH, NEITHER, INCONCLUSIVE = "both", "neither", "inconclusive"
LAUNCH_BOUND, MEMORY_BOUND = "launch-bound", "memory-bound"
# Without what takes a third of a step, the step would be at most 1.5 times as fast (Amdahl 1967).
BOUND = 1 / 3
# Both estimates are low. Operators that each go through memory move up to five times the least
# (counted, see `step_work.least_bytes`); an operator of a training has a module and autograd around
# it, which the launch of a + 1 has not, and that this is no more than five times is assumed. Below
# this, five times as much is no third.
LOW_BY = step_work.EAGER_TRAFFIC
CLEAR = BOUND / LOW_BY
IMPOSSIBLE = 1.25  # of a step: an estimate further above it does not describe the step
MOST_RESIDUAL = 0.25  # of a step: such as lie further from the line do not lie on one
HOW = (
    f"Launch-bound: at the smallest batch at least {BOUND:.0%} of the step does not grow with the "
    "batch (lower end of its 95 % interval), and launches times their cost take as much of it, or "
    f"take it at up to {LOW_BY:g} times that cost while the weights' and the optimizer's bytes, "
    f"taken {LOW_BY:g} times, leave that much of the step unexplained. Memory-bound: the bytes "
    f"that must move at least take {BOUND:.0%} of the step at the measured bandwidth, at the "
    f"smallest or the largest batch. Why {BOUND:.0%}: without such a part a step is up to "
    f"{1 / (1 - BOUND):.3g} times as fast. Why {LOW_BY:g} times: operators that each go through "
    f"memory were counted to move up to {LOW_BY:g} times the least; that an operator of a training "
    f"costs no more than {LOW_BY:g} launches of a + 1 is assumed. Not bound: the fixed part is "
    f"surely less, or the estimate is below {CLEAR:.1%}. Between the two, or above {IMPOSSIBLE:g} "
    "steps, an estimate decides nothing. A backend is bound where any of its model shapes is"
)


class Sign(NamedTuple):
    """What a shape says of one limit, and the numbers behind it."""

    answer: str
    why: str


def launch_sign(row: Row) -> Sign:
    """Whether launches bound a shape's step at its smallest batch."""
    share, fixed = row["launch_share_smallest"], row["fixed_share_smallest"]
    low, high = row["fixed_share_smallest_low"], row["fixed_share_smallest_high"]
    growth = (
        f"{fixed:.0%} ({low:.0%} to {high:.0%}) of the step of {seconds_(row['smallest_step_s'])} "
        f"at batch {row['smallest_batch']} does not grow with the batch"
        if fixed is not None
        else row["fit_reason"]
    )
    if share is None:
        why = f"{growth}; {row['launch_reason']}"
    else:
        why = (
            f"{growth}; {row['launches']} launches at {seconds_(row['launch_cost_s'])} take "
            f"{share:.0%} of it"
        )
    if row["overhead_share"] is not None:
        most = row["fixed_memory_share_most"]
        why += f", the weights' and the optimizer's bytes {most:.0%} at most"
    if fixed is not None and high < BOUND:
        return Sign(NO, why)
    if share is None or share > IMPOSSIBLE:
        return Sign(UNKNOWN, why)
    if share < CLEAR:
        return Sign(NO, why)
    if fixed is not None and low >= BOUND and (share >= BOUND or left_over(row)):
        return Sign(YES, why)
    return Sign(UNKNOWN, why)


def left_over(row: Row) -> bool:
    """Whether bytes leave much of the fixed part unexplained, and launches can explain it."""
    left, low = row["overhead_share"], row["overhead_share_low"]
    return left is not None and low >= BOUND and LOW_BY * row["launch_share_smallest"] >= left


def memory_sign(row: Row) -> Sign:
    """Whether memory bounds a shape's step, at its smallest or its largest batch."""
    shares = {end: row[f"memory_share_{end}"] for end in ENDS}
    if row["memory_reason"] or shares["smallest"] is None:
        return Sign(UNKNOWN, row["memory_reason"] or "nothing says how much it moves")
    end = max(ENDS, key=lambda name: shares[name])
    share, moved = shares[end], row[f"least_bytes_{end}"]
    from_memory = row[f"from_memory_share_{end}"]
    why = (
        f"at batch {row[f'{end}_batch']} a step moves {mebibytes(moved)} at least, "
        f"{from_memory:.0%} of it through memory, which takes {share:.0%} of its {seconds_(row[f'{end}_step_s'])}"
    )
    if not row["last_level_cache_bytes"]:
        why += "; the cache's size is unknown, so the largest cache that we know was subtracted"
    if share > IMPOSSIBLE:
        return Sign(UNKNOWN, why)
    if share >= BOUND:
        return Sign(YES, why)
    return Sign(NO if share < CLEAR and row["last_level_cache_bytes"] else UNKNOWN, why)


def seconds_(value: float) -> str:
    """`3.2 ms`, `4.1 µs`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


# -- a backend -----------------------------------------------------------------------------------


def of_backend(shapes: Sequence[Row]) -> Row:
    """What the shapes of one grid say of their backend, as columns of scaling.csv."""
    row: Row = {"how": HOW}
    row |= {
        name: sum(shape[name] for shape in shapes)
        for name in (f"points_{status}" for status in STATUSES)
    }
    measured = [shape for shape in shapes if shape["smallest_step_s"]]
    launch, memory = (_any(measured, f"{name}_bound") for name in ("launch", "memory"))
    row |= {"launch_bound": launch, "memory_bound": memory, "verdict": verdict(launch, memory)}
    gains = [shape["throughput_gain"] for shape in measured if shape["throughput_gain"]]
    row["throughput_gain"] = max(gains, default=None)
    parts = [
        _of_limit(measured, "launch", LAUNCH_BOUND),
        _of_limit(measured, "memory", MEMORY_BOUND),
    ]
    row |= by_size(measured)
    if measured:
        parts += [*_of_batches(measured), *_of_sizes(row)]
    parts += _of_missing(row)
    row["says"] = ". ".join(part[:1].upper() + part[1:] for part in parts if part)
    return row


def _any(shapes: Sequence[Row], name: str) -> str:
    """Yes where any shape says so, no where all deny it."""
    answers = {shape[name] for shape in shapes}
    if YES in answers:
        return YES
    return NO if answers == {NO} else UNKNOWN


def verdict(launch: str, memory: str) -> str:
    """The report's question, answered."""
    if launch == memory == YES:
        return BOTH
    if launch == YES:
        return LAUNCH_BOUND
    if memory == YES:
        return MEMORY_BOUND
    return NEITHER if launch == memory == NO else INCONCLUSIVE


def weight(shape: Row, limit: str) -> tuple[float, ...]:
    """What a limit weighs in a shape's step: shares of it, 0 where one is not known.

    Of launches their estimate, then the part of the step that does not grow with the batch.
    """
    if limit == "launch":
        names = "launch_share_smallest", "fixed_share_smallest"
        return tuple(shape.get(name) or 0.0 for name in names)
    return (max(shape.get(f"memory_share_{end}") or 0.0 for end in ENDS),)


class Heaviest(NamedTuple):
    """A shape that stands for others: the one in which a limit weighs most."""

    shape: Row
    weighs: bool  # whether it does anything at all there
    alone: bool  # whether others give another reason, so that it must be named


def heaviest(shapes: Sequence[Row], limit: str) -> Heaviest:
    """Of the shapes that say yes, else of those that do not know, else of all."""
    count = answers(shapes, limit)
    kind = next(answer for answer in (YES, UNKNOWN, NO) if count[answer])
    candidates = [shape for shape in shapes if answer_of(shape, limit) == kind]
    most = max(candidates, key=lambda shape: weight(shape, limit))
    reasons = {shape.get(f"{limit}_why") for shape in candidates}
    return Heaviest(most, any(weight(most, limit)), len(reasons) > 1)


def answer_of(shape: Row, limit: str) -> str:
    """Whether a limit bounds a shape."""
    return str(shape.get(f"{limit}_bound") or UNKNOWN)


def answers(shapes: Sequence[Row], limit: str) -> Counter[str]:
    """Answer -> of how many shapes."""
    return Counter(answer_of(shape, limit) for shape in shapes)


def shape_name(shape: Row) -> str:
    """`2 layers of 64, 64 tokens`."""
    layers = int(shape["n_layer"])
    return f"{layers} layer{'s' * (layers > 1)} of {shape['n_embd']:g}, {shape['seq_len']:g} tokens"


def _of_limit(shapes: Sequence[Row], name: str, what: str) -> str:
    """How many shapes a limit bounds, with the numbers of the one where it weighs most."""
    if not shapes:
        return ""
    count = answers(shapes, name)
    most = heaviest(shapes, name)
    undecided = f", undecided in {count[UNKNOWN]}" if count[UNKNOWN] else ""
    where = ""
    if most.weighs or most.alone:
        which = "where it weighs most" if most.weighs else "for example"
        where = f"{which} ({shape_name(most.shape)}): "
    why = most.shape[f"{name}_why"]
    return f"{what} in {count[YES]} of {len(shapes)} model shapes{undecided}; {where}{why}"


def _of_batches(shapes: Sequence[Row]) -> Iterator[str]:
    gained = [shape for shape in shapes if shape["throughput_gain"]]
    if gained:
        most = max(gained, key=lambda shape: shape["throughput_gain"])
        least = min(gained, key=lambda shape: shape["throughput_gain"])
        yield (
            f"samples per second from the smallest to the largest batch: "
            f"{least['throughput_gain']:.3g} to {most['throughput_gain']:.3g} times as many, the "
            f"most with {shape_name(most)} (batch {most['smallest_batch']} to "
            f"{most['largest_batch']})"
        )


def by_size(shapes: Sequence[Row]) -> Row:
    """The best throughput of the smallest, the largest and the fastest model."""
    with_rate = [shape for shape in shapes if shape["best_flop_per_s"] and shape["n_parameters"]]
    if not with_rate:
        return {}

    columns: Row = {}
    for name, chosen in (
        ("smallest", min(with_rate, key=lambda s: (s["n_parameters"], -s["best_flop_per_s"]))),
        ("largest", max(with_rate, key=lambda s: (s["n_parameters"], s["best_flop_per_s"]))),
        ("best", max(with_rate, key=lambda s: s["best_flop_per_s"])),
    ):
        columns[f"{name}_model_parameters"] = int(chosen["n_parameters"])
        columns[f"flop_per_s_{name}_model"] = chosen["best_flop_per_s"]
    return columns


def _of_sizes(row: Row) -> Iterator[str]:
    if row.get("flop_per_s_best_model") and row.get("largest_model_parameters"):
        share = row["flop_per_s_largest_model"] / row["flop_per_s_best_model"]
        yield (
            f"the largest model ({row['largest_model_parameters'] / 1e6:.3g} million parameters) "
            f"reaches {share:.0%} of the FLOP/s of the fastest "
            f"({row['best_model_parameters'] / 1e6:.3g} million)"
        )


def _of_missing(row: Row) -> Iterator[str]:
    """Points that were not measured: a limit in capacity, which is no limit in speed."""
    counts = [
        f"{row[f'points_{status}']} {text}"
        for status, text in (
            ("oom", "ran out of memory"),
            ("skipped", "skipped, predicted not to fit"),
            ("failed", "failed"),
        )
        if row[f"points_{status}"]
    ]
    if counts:
        total = sum(row[f"points_{status}"] for status in STATUSES)
        yield f"of {total} points {', '.join(counts)}"
