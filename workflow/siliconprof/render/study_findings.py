"""Findings of the wide/deep report's studies: what bounds the grid, and how wide and deep came out."""

from __future__ import annotations

from typing import NamedTuple

from siliconprof import words
from siliconprof.analyse import bound
from siliconprof.analyse.scaling import ABOUT_BACKEND
from siliconprof.analyse.throughputs import device_of
from siliconprof.render import wide_deep
from siliconprof.render.blocks import Finding
from siliconprof.render.compare import Line, Step, ratio_words, remarks, told
from siliconprof.render.data import Data
from siliconprof.render.grid_points import place_name
from siliconprof.render.variants import Row

ONE_SEED = "one training each, so what another seed would change is not known"


def grid(data: Data) -> Finding | None:
    """Whether small models wait for launches, for memory, for both or for neither."""
    cpus = {device_of(cell) for cell in data.cells if cell["device_kind"] == "cpu"}
    rows = [row for row in data.scaling if row["about"] == ABOUT_BACKEND]
    rows.sort(key=lambda row: device_of(row) in cpus)
    several = len({row["device"] for row in rows}) > 1
    lines = []
    for row in rows:
        where = f"{row['device']}, {place_name(row)}" if several else place_name(row)
        verdict = str(row.get("verdict") or bound.INCONCLUSIVE)
        # of both limits a sentence; that of memory is told where memory alone is the limit
        launch, memory, *_ = [*str(row.get("says") or "").split(". "), ""]
        numbers = memory if verdict == bound.MEMORY_BOUND else launch
        sentence = ". ".join(filter(None, [f"{row['workload']} on {where}: {verdict}", numbers]))
        unknown = bound.UNKNOWN in (row.get("launch_bound"), row.get("memory_bound"))
        lines.append(Line(f"{sentence}.", doubtful=unknown or verdict == bound.INCONCLUSIVE))
    return told("Small transformers: launches or memory", lines, "grid")


class Evaluated(NamedTuple):
    """The last evaluation of a whole training."""

    step: int
    loss: float
    perplexity: float | None
    change: float | None  # of the loss since the evaluation before it


def last_evaluation(data: Data, row: Row) -> Evaluated | None:
    """The loss on held-out data after the last step, None without a finite one."""
    frame = data.traces.evaluated(row)
    if frame is None or frame.empty:
        return None
    last = frame.iloc[-1]
    loss = words.number(last["loss"])
    if loss is None:
        return None
    before = words.number(frame.iloc[-2]["loss"]) if len(frame) > 1 else None
    change = None if before is None else loss - before
    return Evaluated(int(last["step"]), loss, words.number(last["perplexity"]), change)


def wide_and_deep(data: Data) -> Finding | None:
    """Which of two models of equal size ended with the lower evaluation loss, and by how much."""
    lines = [
        line
        for pair in wide_deep.pairs(wide_deep.trainings(data))
        if (line := _against(data, *pair)) is not None
    ]
    return told("Wide against deep", lines, "wide-deep")


def _against(data: Data, wide: Row, deep: Row) -> Line | None:
    wide_end, deep_end = last_evaluation(data, wide), last_evaluation(data, deep)
    if wide_end is None or deep_end is None or wide_end.step != deep_end.step:
        return None
    (better, low), (worse, high) = sorted(
        ((wide, wide_end), (deep, deep_end)), key=lambda pair: pair[1].loss
    )
    gap = high.loss - low.loss
    places = " (".join([words.backend_name(wide), f"{wide['device']}, {wide['precision']})"])
    if words.significant(low.loss, 4) == words.significant(high.loss, 4):
        outcome = f"both end with the same evaluation loss, {words.significant(low.loss, 4)} nat"
    else:
        outcome = (
            f"{_named(better)} ends with the lower evaluation loss, {_loss(low)} against "
            f"{_loss(high)} of {_named(worse)}: {words.significant(gap, 2)} nat less"
        )
    changes = [abs(end.change) for end in (low, high) if end.change is not None]
    if changes and gap < max(changes):
        outcome += (
            f", which is less than a loss still changed between its last two evaluations "
            f"({words.significant(max(changes), 2)})"
        )
    outcome += f"; {ONE_SEED}"
    steps = [step for row in (wide, deep) if (step := Step.of(row))]
    if len(steps) == 2:
        fast, slow = sorted(steps, key=lambda step: step.middle)
        outcome += (
            "; no difference beyond noise in their step times"
            if fast.overlaps(slow)
            else f"; a step of {fast.row['workload']} is {ratio_words(slow, fast)} faster than "
            f"one of {slow.row['workload']}{remarks(*steps)}"
        )
    doubtful = any("contended" in (row.get("flags") or "") for row in (wide, deep))
    return Line(f"After {words.count(low.step, 'step')} on {places}, {outcome}.", doubtful)


def _named(row: Row) -> str:
    """`lm-wide (2 layers of width 128)`."""
    size = _size(row)
    return f"{row['workload']} ({size})" if size else str(row["workload"])


def _size(row: Row) -> str:
    """`2 layers of width 128`; empty where the shape is not known."""
    layers, width = words.number(row.get("n_layer")), words.number(row.get("n_embd"))
    return f"{words.count(int(layers), 'layer')} of width {width:.0f}" if layers and width else ""


def _loss(evaluated: Evaluated) -> str:
    """`3.50 nat (perplexity 33.1)`."""
    perplexity = evaluated.perplexity
    beside = f" (perplexity {words.significant(perplexity)})" if perplexity else ""
    return f"{words.significant(evaluated.loss, 4)} nat{beside}"
