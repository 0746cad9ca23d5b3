"""What bounds a model shape's step, and a backend: launches, memory, both, neither, or unknown.

The wide/deep report asks whether a system is held back by its memory or by many small launches. A shape says
yes or no where its numbers do (`HOW`), and else that it is unknown; a backend's verdict is what
any of its shapes shows, and its words say which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import pandas as pd

from siliconprof.analyse import step_work
from siliconprof.declarations import mebibytes
from siliconprof.store import table_files
from siliconprof.store.table_files import KEY, Row, grouped, key

STATUSES = ("ok", "oom", "skipped", "failed")
ENDS = ("smallest", "largest")  # batch
YES, NO, UNKNOWN = "yes", "no", "unknown"
BOTH, NEITHER, INCONCLUSIVE = "both", "neither", "inconclusive"
LAUNCH_BOUND, MEMORY_BOUND = "launch-bound", "memory-bound"
VERDICTS = {  # by whether launches and memory bound it
    (YES, YES): BOTH,
    (YES, NO): LAUNCH_BOUND,
    (YES, UNKNOWN): LAUNCH_BOUND,
    (NO, YES): MEMORY_BOUND,
    (UNKNOWN, YES): MEMORY_BOUND,
    (NO, NO): NEITHER,
}
MISSING = (
    ("oom", "ran out of memory"),
    ("skipped", "skipped, predicted not to fit"),
    ("failed", "failed"),
)
NOT_MEASURED = "no point of it was measured"
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


def judged(shapes: pd.DataFrame) -> pd.DataFrame:
    """Shapes with `launch_bound`, `memory_bound` (yes, no, unknown), and the numbers behind them."""
    rows = table_files.rows(shapes)
    for name, sign in (("launch", launch_sign), ("memory", memory_sign)):
        signs = [
            (UNKNOWN, NOT_MEASURED) if row["smallest_step_s"] is None else sign(row) for row in rows
        ]
        names = [f"{name}_bound", f"{name}_why"]
        shapes = shapes.join(pd.DataFrame(signs, shapes.index, names))
    not_measured = shapes["smallest_step_s"].isna()
    return shapes.assign(fit_reason=shapes["fit_reason"].mask(not_measured, NOT_MEASURED))


def launch_sign(row: Row) -> tuple[str, str]:
    """Whether launches bound a shape's step at its smallest batch, and why."""
    share, fixed = row["launch_share_smallest"], row["fixed_share_smallest"]
    low, high = row["fixed_share_smallest_low"], row["fixed_share_smallest_high"]
    why = row["fit_reason"]
    if fixed is not None:
        why = (
            f"{fixed:.0%} ({low:.0%} to {high:.0%}) of the step of "
            f"{seconds_(row['smallest_step_s'])} at batch {row['smallest_batch']:.0f} does not "
            "grow with the batch"
        )
    if share is None:
        why += f"; {row['launch_reason']}"
    else:
        launches = f"{row['launches']:.0f} launches at {seconds_(row['launch_cost_s'])}"
        why += f"; {launches} take {share:.0%} of it"
    if row["overhead_share"] is not None:
        most = row["fixed_memory_share_most"]
        why += f", the weights' and the optimizer's bytes {most:.0%} at most"
    if fixed is not None and high < BOUND:
        return NO, why
    if share is None or share > IMPOSSIBLE:
        return UNKNOWN, why
    if share < CLEAR:
        return NO, why
    is_bound = fixed is not None and low >= BOUND and (share >= BOUND or left_over(row))
    return YES if is_bound else UNKNOWN, why


def left_over(row: Row) -> bool:
    """Whether bytes leave much of the fixed part unexplained, and launches can explain it."""
    left, low = row["overhead_share"], row["overhead_share_low"]
    return left is not None and low >= BOUND and LOW_BY * row["launch_share_smallest"] >= left


def memory_sign(row: Row) -> tuple[str, str]:
    """Whether memory bounds a shape's step, at its smallest or its largest batch, and why."""
    if row["memory_reason"]:
        return UNKNOWN, row["memory_reason"]
    end = max(ENDS, key=lambda name: row[f"memory_share_{name}"])
    share, moved = row[f"memory_share_{end}"], mebibytes(row[f"least_bytes_{end}"])
    why = (
        f"at batch {row[f'{end}_batch']:.0f} a step moves {moved} at least, "
        f"{row[f'from_memory_share_{end}']:.0%} of it through memory, which takes {share:.0%} of "
        f"its {seconds_(row[f'{end}_step_s'])}"
    )
    if not row["last_level_cache_bytes"]:
        why += "; the cache's size is unknown, so the largest cache that we know was subtracted"
    if BOUND <= share <= IMPOSSIBLE:
        return YES, why
    return NO if share < CLEAR and row["last_level_cache_bytes"] else UNKNOWN, why


def seconds_(value: float) -> str:
    """`3.2 ms`, `4.1 µs`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


# -- a backend -----------------------------------------------------------------------------------


def of_backends(shapes: pd.DataFrame) -> pd.DataFrame:
    """What the shapes of each grid say of its backend, as columns of scaling.csv.

    Args:
        shapes: those that are `judged`.
    """
    cells = grouped(table_files.rows(shapes), key).values()
    return pd.DataFrame([_of_backend(of_cell) for of_cell in cells])


def _of_backend(shapes: Sequence[Row]) -> Row:
    row: Row = {"how": HOW} | {name: shapes[0][name] for name in KEY}
    row |= {
        name: sum(shape[name] for shape in shapes) for name in map("points_{}".format, STATUSES)
    }
    measured = [shape for shape in shapes if shape["smallest_step_s"]]
    launch, memory = (_any({s[f"{name}_bound"] for s in measured}) for name in WEIGHTS)
    row |= {"launch_bound": launch, "memory_bound": memory}
    row["verdict"] = VERDICTS.get((launch, memory), INCONCLUSIVE)
    says = [*_of_missing(row)]
    if measured:
        gained = [shape for shape in measured if shape["throughput_gain"]]
        by_gain = sorted(gained, key=lambda shape: -shape["throughput_gain"])
        row["throughput_gain"] = by_gain[0]["throughput_gain"] if by_gain else None
        row |= _by_size(measured)
        limits = (_of_limit(measured, name) for name in WEIGHTS)
        says = [*limits, *_of_batches(by_gain), *_of_sizes(row), *says]
    return row | {"says": ". ".join(part[:1].upper() + part[1:] for part in says)}


def _any(answers: set[str]) -> str:
    """Yes where any shape says so, no where all deny it."""
    return YES if YES in answers else NO if answers == {NO} else UNKNOWN


def _shape_name(shape: Row) -> str:
    """`2 layers of 64, 64 tokens`."""
    layers = int(shape["n_layer"])
    return f"{layers} layer{'s' * (layers > 1)} of {shape['n_embd']:g}, {shape['seq_len']:g} tokens"


# What a limit weighs in a shape's step; of launches then what part does not grow with the batch.
WEIGHTS: Mapping[str, Callable[[Row], list[float]]] = {
    "launch": lambda s: [s["launch_share_smallest"] or 0, s["fixed_share_smallest"] or 0],
    "memory": lambda s: [max(s[f"memory_share_{end}"] or 0 for end in ENDS)],
}


def _of_limit(shapes: Sequence[Row], name: str) -> str:
    """How many shapes a limit bounds, with the numbers of the one where it weighs most."""
    count = Counter(shape[f"{name}_bound"] for shape in shapes)
    kind = next(answer for answer in (YES, UNKNOWN, NO) if count[answer])
    candidates = [shape for shape in shapes if shape[f"{name}_bound"] == kind]
    most = max(candidates, key=WEIGHTS[name])
    undecided = f", undecided in {count[UNKNOWN]}" if count[UNKNOWN] else ""
    where = ""
    if (weighs := any(WEIGHTS[name](most))) or len({s[f"{name}_why"] for s in candidates}) > 1:
        which = "where it weighs most" if weighs else "for example"
        where = f"{which} ({_shape_name(most)}): "
    of_all = f"{count[YES]} of {len(shapes)} model shapes{undecided}"
    return f"{name}-bound in {of_all}; {where}{most[f'{name}_why']}"


def _of_batches(by_gain: Sequence[Row]) -> Iterator[str]:
    if by_gain:
        most, least = by_gain[0], by_gain[-1]
        yield (
            f"samples per second from the smallest to the largest batch: "
            f"{least['throughput_gain']:.3g} to {most['throughput_gain']:.3g} times as many, the "
            f"most with {_shape_name(most)} (batch {most['smallest_batch']:.0f} to "
            f"{most['largest_batch']:.0f})"
        )


def _by_size(shapes: Sequence[Row]) -> Row:
    """The best throughput of the smallest, the largest and the fastest model."""
    rates = [(s["n_parameters"], s["best_flop_per_s"]) for s in shapes if s["best_flop_per_s"]]
    rates = [(n, rate) for n, rate in rates if n]
    if not rates:
        return {}
    found: Row = {}
    for name, (n, rate) in (
        ("smallest", min(rates, key=lambda pair: (pair[0], -pair[1]))),
        ("largest", max(rates)),
        ("best", max(rates, key=lambda pair: pair[1])),
    ):
        found |= {f"{name}_model_parameters": n, f"flop_per_s_{name}_model": rate}
    return found


def _of_sizes(row: Row) -> Iterator[str]:
    if "best_model_parameters" in row:
        share = row["flop_per_s_largest_model"] / row["flop_per_s_best_model"]
        yield (
            f"the largest model ({row['largest_model_parameters'] / 1e6:.3g} million parameters) "
            f"reaches {share:.0%} of the FLOP/s of the fastest "
            f"({row['best_model_parameters'] / 1e6:.3g} million)"
        )


def _of_missing(row: Row) -> Iterator[str]:
    """Points that were not measured: a limit in capacity, which is no limit in speed."""
    counts = [f"{n} {text}" for status, text in MISSING if (n := row[f"points_{status}"])]
    if counts:
        total = sum(row[f"points_{status}"] for status in STATUSES)
        yield f"of {total} points {', '.join(counts)}"
