"""The optimizer sweep: the loss curves of its settings, and how each training ended.

Divergence is an outcome of a training like any other: it is drawn, counted and never dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from siliconprof import words
from siliconprof.render.book import Book
from siliconprof.render.data import Data
from siliconprof.render.grid_points import (
    MS,
    Place,
    by_place,
    devices_said,
    named,
    place_name,
    seconds,
    shape,
)
from siliconprof.render.optimizer_figures import (
    SETTINGS,
    diverged,
    draw_curves,
    left_out,
    value,
    value_text,
    values,
)
from siliconprof.render.tables import Column, Table, Value, integer, missing, quantity
from siliconprof.render.variants import Row

MODULE = "optimizer_sweep"
PLACES_PER_FIGURE = 6
FOLD_ABOVE = 12
HELP = {"max_gradient_norm": "the norm that all gradients together are scaled down to"}


@dataclass(frozen=True)
class Sweep:
    """The points of one workload."""

    workload: str
    points: list[Row]

    def trained(self) -> dict[Place, list[Row]]:
        """Device, backend and precision -> settings that were trained, diverged or not."""
        return by_place(p for p in self.points if p.get("point_status") in (None, "ok"))

    def varying(self) -> list[str]:
        """The settings that take more than one value; at least the learning rate."""
        names = [name for name, _ in SETTINGS if len(values(self.points, name)) > 1]
        return names or ["learning_rate"]


def sweeps(data: Data) -> list[Sweep]:
    """Every sweep of these results."""
    by_workload: dict[str, list[Row]] = {}
    for point in data.of_module(MODULE):
        by_workload.setdefault(point["workload"], []).append(point)
    return [Sweep(workload, named(data, points)) for workload, points in by_workload.items()]


def add(data: Data, book: Book, prefix: str = "") -> None:
    """Curves and every setting, sweep by sweep."""
    all_sweeps = sweeps(data)
    if not all_sweeps:
        if not prefix:
            book.heading("Optimizer sweep", anchor="optimizer-sweep")
            book.note(data.why_none(MODULE, "an optimizer sweep"))
        return
    for sweep in all_sweeps:
        where = devices_said(data, sweep.points)
        book.heading(
            f"Optimizer sweep: {sweep.workload}, {where}",
            anchor=f"{prefix}optimizer-{sweep.workload}",
        )
        trained = sweep.trained()
        if trained:
            book.facts(
                [
                    (place_name(points[0]), fact(points, sweep.varying()))
                    for points in trained.values()
                ]
            )
        else:
            book.note("No setting of this sweep was trained; the table has the reason of each.")
        order = list(trained)
        parts = [order[i : i + PLACES_PER_FIGURE] for i in range(0, len(order), PLACES_PER_FIGURE)]
        for index, part in enumerate(parts):
            chosen = {name: trained[name] for name in part}
            number = f"-{index + 1}" if index else ""
            if any(data.traces.curve(p) is not None for points in chosen.values() for p in points):
                book.figure(
                    f"{prefix}optimizer-curves-{sweep.workload}{number}",
                    "optimizer-curves",
                    partial(draw_curves, data, chosen, sweep.varying()),
                    workload=sweep.workload,
                    device=where,
                    setting=dict(SETTINGS)[sweep.varying()[0]],
                    chosen=left_out(chosen),
                )
        n = len(sweep.points)
        book.table(
            f"{prefix}optimizer-{sweep.workload}",
            "optimizer-sweep",
            table(data, sweep),
            folded=words.count(n, "setting") if n > FOLD_ABOVE else "",
            model=shape(sweep.points[0]),
        )


def fact(points: Sequence[Row], varying: Sequence[str]) -> str:
    """The best setting of a place, and how many diverged."""
    n_diverged = sum(map(diverged, points))
    finished = [
        p for p in points if not diverged(p) and words.number(p.get("final_loss")) is not None
    ]
    ends = f"{n_diverged} of {words.count(len(points), 'setting')} diverged"
    if not finished:
        return ends
    best = min(finished, key=lambda point: point["final_loss"])
    setting = ", ".join(f"{dict(SETTINGS)[n]} {value_text(n, value(best, n))}" for n in varying)
    return f"least final loss {words.significant(best['final_loss'], 4)} at {setting}; {ends}"


# -- table -------------------------------------------------------------------------------------


def table(data: Data, sweep: Sweep) -> Table:
    """Every setting with how its training ended."""
    result = Table(
        [
            *(Column(label, "", True, HELP.get(name, ""), folds=True) for name, label in SETTINGS),
            Column("Device", folds=True),
            Column("Backend"),
            Column("Precision", folds=True),
            Column("Outcome"),
            Column("What shows it", folds=True),
            Column("final loss", "nat", True, "mean over the last tenth of the steps"),
            Column("steps", "", True, "taken; a diverged training ends early"),
            Column("step", "ms", True, "median"),
        ]
    )
    for point in sweep.points:
        state = str(point.get("point_status") or "ok")
        ok = state == "ok"
        has_diverged = ok and diverged(point)
        why = str(point.get("point_reason") or "no reason given")
        reason = point.get("outcome_reason") if ok else why
        took = seconds(point)
        result.add(
            *(_setting(point, name) for name, _ in SETTINGS),
            point["device"],
            words.backend_name(point),
            point["precision"],
            Value(
                "diverged" if has_diverged else "trained" if ok else state,
                mark="bad" if has_diverged else "" if ok else f"status-{state}",
            ),
            Value(str(reason or words.DASH), sort=str(reason or ""), mark="note"),
            missing("none: it diverged")
            if has_diverged
            else quantity(point.get("final_loss"), "not recorded" if ok else why, digits=4),
            integer(_steps(data, point), "not recorded" if ok else why),
            quantity(took, "not recorded" if ok else why, MS),
            css="" if ok else "failed",
            of=point,
        )
    return result


def _steps(data: Data, point: Row) -> int | None:
    """How many steps were taken; None without a curve."""
    frame = data.traces.curve(point)
    return None if frame is None else len(frame)


def _setting(point: Row, name: str) -> Value:
    number = value(point, name)
    if number is None:
        return missing("not recorded")
    return Value(value_text(name, number), sort=number)
