"""Findings: at most ten sentences, each made from one row of the results, with its uncertainty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from siliconprof import words
from siliconprof.analyse.equal_work import DISTURBED
from siliconprof.render import memory, wide_deep
from siliconprof.render.blocks import Finding
from siliconprof.render.book import Book
from siliconprof.render.compare import Step, manner, pairs, ratio_words, remarks, steps
from siliconprof.render.data import Data, grouped
from siliconprof.render.losses import divergence, loss_groups, relative_differences
from siliconprof.render.variants import (
    CIRCUMSTANCES,
    WORK,
    Row,
    family,
    flagged,
    label,
    model,
    precision,
)


def add_findings(data: Data, book: Book) -> None:
    """The findings."""
    items = findings(data)
    book.findings(items)
    if not items:
        book.note(
            "There is nothing to compare: no two measured cells of this host answer a "
            "question together."
        )


def add_absent(data: Data, book: Book) -> None:
    """What was not measured, and why."""
    absent = not_measured(data)
    if absent:
        book.listing(absent, "Not measured, and why:")


def findings(data: Data) -> list[Finding]:
    """Of this host: of each kind the one about the largest model, undisturbed if there is one."""
    families = steps(data).values()
    of_devices = [pair for own in families for pair in _best_of_devices(own)]
    by_axis = {
        axis: [pair for own in families for pair in pairs(own, axis, first)]
        for axis, first in (("backend", None), ("precision", "fp32"), ("trainer", "plain"))
    }
    found = (
        comparison("Devices", of_devices, "device"),
        comparison("Backends", by_axis["backend"], "backend"),
        comparison("Precision", by_axis["precision"], "precision"),
        comparison("Trainer", by_axis["trainer"], "trainer"),
        hardware(data),
        diverged(data),
        losses(data),
        memory.finding(data),
    )
    return [finding for finding in found if finding]


def comparison(title: str, compared: Sequence[tuple[Step, Step]], axis: str) -> Finding | None:
    """The first of some pairs that differ in one axis, in words."""
    if not compared:
        return None
    one, other = min(compared, key=lambda pair: any(flagged(s.row, DISTURBED) for s in pair))
    fast, slow = sorted((one, other), key=lambda step: step.middle)
    names = {
        "device": lambda row: f"{row['device']} ({words.backend_name(row)})",
        "backend": words.backend_name,
        "precision": precision,
        "trainer": lambda row: row["trainer"],
    }
    a, b = (names[axis](step.row) for step in (fast, slow))
    where = [manner(fast.row, axis)]
    if axis not in ("device", "backend"):
        where.insert(0, words.backend_name(fast.row))
    apart = f"{ratio_words(slow, fast)} faster than"
    return Finding(
        title,
        f"{family(fast.row).name} ({', '.join(where)}): {a} is "
        f"{'no faster beyond noise than' if fast.overlaps(slow) else apart} {b}, "
        f"{words.duration(fast.middle)} against {words.duration(slow.middle)} a step"
        f"{remarks(fast, slow)}.",
        "training",
    )


def _best_of_devices(family_steps: Sequence[Step]) -> Iterator[tuple[Step, Step]]:
    """(fastest device's best step, another device's best step) at equal work, done alike."""
    alike = [x for x in (*WORK, *CIRCUMSTANCES) if x not in ("device", "backend", "threads")]
    for group in grouped(family_steps, lambda step: tuple(map(step.row.get, alike))).values():
        group.sort(key=lambda step: step.middle)
        fastest, *others = (own[0] for own in grouped(group, lambda s: s.row["device"]).values())
        yield from ((fastest, other) for other in others)


def hardware(data: Data) -> Finding | None:
    """The largest share of the fastest product that a training in fp32 reaches."""
    rows = [row for row in data.with_speed() if row["precision"] == "fp32"]
    sound = [row for row in rows if not flagged(row, DISTURBED)] or rows
    reached = [(share, row) for row in sound if (share := of_best_product(data, row))]
    if not reached:
        return None
    share, best = max(reached, key=lambda one: one[0])
    step = Step.of(best)
    over = (step.middle / step.high, step.middle / step.low) if step else (1.0, 1.0)
    low, high = (words.significant(100 * share * end, 2) for end in over)
    return Finding(
        "How close to the hardware",
        f"{model(best)} ({label(best)}) reaches {words.percent(share)} [{low}, {high}] of "
        "the fastest matrix product measured on the device.",
        "training",
    )


def of_best_product(data: Data, row: Row) -> float | None:
    """A training's rate over that of its device's fastest product; None where one is unknown."""
    rate, product = words.number(row["flop_per_s"]), data.best_product(row)
    return rate / product if rate and product else None


def diverged(data: Data) -> Finding | None:
    """The first training whose losses became NaN or infinite."""
    courses = [
        (f"{family(point).name}: {label(point)}", data.traces.series(point, "loss"))
        for point in data.training()
    ] + [
        (wide_deep.name(point), data.traces.curve_values(point, "loss").tolist())
        for point in wide_deep.trainings(data)
    ]
    found = [f"{name} {text}." for name, values in courses if (text := divergence(values))]
    return Finding("Diverged", found[0], "training") if found else None


def losses(data: Data) -> Finding | None:
    """The pair of fp32 trainings from equal data, seed and weights whose losses differ most."""
    found: list[tuple[float, Row, Row]] = []
    for baseline, *others in loss_groups(data):
        for other in others:
            difference = relative_differences(data, other, baseline)
            in_fp32 = baseline["precision"] == other["precision"] == "fp32"
            if in_fp32 and len(difference) and np.isfinite(difference).all():
                found.append((float(difference.max()), other, baseline))
    if not found:
        return None
    most, other, baseline = max(found, key=lambda one: one[0])
    return Finding(
        "Losses",
        f"{family(other).name}: losses of {label(other)} and {label(baseline)} differ by at most "
        f"{words.scientific(most)} of their value at any step.",
        "training",
    )


def not_measured(data: Data) -> list[str]:
    """What could not be measured, and why: cells, devices, backends."""
    lines = []
    absent = (cell for cell in data.cells if cell["status"] != "ok")
    reasons = grouped(absent, lambda c: (c["status"], c["reason"] or "no reason given"))
    for (status, reason), cells in reasons.items():
        names = list(dict.fromkeys(f"{c['workload']}/{c['backend']}" for c in cells))
        shown = words.listing(names) if len(names) <= 4 else f"{', '.join(names[:3])} and others"
        lines.append(f"{words.count(len(cells), 'cell')} {status}: {reason} ({shown}).")
    for name, state in sorted(data.host["backends"].items()):
        if state["reason"]:
            mend = f" To mend: {state['mend']}." if state["mend"] else ""
            lines.append(f"Backend {name}: {state['reason']}.{mend}")
    for missing in data.matrix.not_measured:
        entry = data.registry["devices"].get(missing["device"])
        name = entry["name"] if entry else missing["device"]
        lines.append(f"Device {name}: {missing['reason']}.")
    return lines
